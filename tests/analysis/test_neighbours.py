from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from scipy.spatial.distance import cosine

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.neighbours import measure as module
from bert_jax.analysis.neighbours.figures import draw, summary, write_neighbours, write_pieces
from bert_jax.analysis.neighbours.flags import Neighbouring
from bert_jax.analysis.neighbours.measure import (
    Nearest,
    Sample,
    checked_layers,
    clusters,
    cohesion,
    find_neighbours,
    middles,
    nearest_pieces,
    one_word,
    principal_plane,
    word_key,
)
from bert_jax.analysis.windows import marked_window, read_windows, text_words
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe, train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item
from tests.analysis.reference import sources, word_vectors_of
from tests.data.tokenizers.test_json_tokenizer import SPECIALS, plain
from tests.interop.tiny import as_model, make_model

TEXTS = ["the capital of France is Paris.", "cab", "of the river, xyz (Apfel) is!", "the cab " * 12, "the river is the capital"]
MARKED = ("of the [river] cab", "Paris is the [cab].")
WORDS = [*MARKED, "the", "xyz", "nowhere"]


@pytest.fixture(scope="module")
def found(analyser):
    """Reads groups of two windows, so that results have to be carried from group to group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOWS", 1)
        return analyser.neighbours(WORDS, TEXTS, count=4, occurrences=9)


@pytest.fixture(scope="module")
def by_hand(analyser, model):
    """Returns [(window, its word vectors)], each window in a row of its own."""
    windows = [window for text in TEXTS for window in read_windows(analyser.engine, text)]
    return [(window, word_vectors_of(model, window)) for window in windows]


def test_the_nearest_words_equal_an_exhaustive_search(found, by_hand, analyser, model):
    everything = [
        (window.context(i), vectors[:, i]) for window, vectors in by_hand for i in sources(window)
    ]  # in the order of the text
    assert found.words == len(everything)
    for q, text in enumerate(MARKED):
        window, number = marked_window(analyser.engine, text)
        asked = word_vectors_of(model, window)[:, number]
        np.testing.assert_allclose(found.vectors.values[:, q], asked, atol=1e-5)
        for layer in range(3):
            cosines = np.array([1 - cosine(asked[layer], vector[layer]) for _, vector in everything])
            best = np.sort(cosines)[::-1][:4]
            np.testing.assert_allclose(found.cosines.sel(layer=layer, marked=q + 1).values, best, atol=1e-5)
            for rank in range(4):  # words with equal cosines may be in any order
                alike = np.flatnonzero(np.abs(cosines - best[rank]) < 1e-5)
                assert found.contexts[layer, q, rank] in {everything[i][0] for i in alike}


def test_the_reference_cosine_is_the_mean_over_all_pairs_of_words(found, by_hand):
    for layer in range(3):
        vectors = [vectors[layer, i] for window, vectors in by_hand for i in sources(window)]
        pairs = [1 - cosine(a, b) for a, b in itertools.combinations(vectors, 2)]
        assert found.random.sel(layer=layer).values == pytest.approx(np.mean(pairs), abs=1e-5)


def test_occurrences_of_a_word_are_counted_and_have_their_vectors(found, by_hand):
    own = {each.word: each for each in found.occurrences}
    assert {name: each.n for name, each in own.items()} == {"river": 2, "cab": 13, "the": 16, "xyz": 1, "nowhere": 0}
    assert [len(each.contexts) for each in own.values()] == [2, 9, 9, 1, 0]
    assert own["river"].marked == (0,)
    assert own["the"].marked == ()
    there = {window.context(i): vectors[:, i] for window, vectors in by_hand for i in sources(window)}
    for context, vector in zip(own["river"].contexts, np.moveaxis(own["river"].vectors.values, 1, 0), strict=True):
        np.testing.assert_allclose(vector, there[context], atol=1e-5)
    assert own["xyz"].contexts == ("of the river, [xyz] (Apfel) is!",)


def test_a_running_selection_equals_the_top_of_a_full_sort():
    rng = np.random.default_rng(1)
    cosines = rng.integers(0, 9, (2, 3, 40)).astype(np.float32) / 10  # with ties
    windows, numbers = np.divmod(np.broadcast_to(np.arange(40), (2, 3, 40)), 7)
    kept = Nearest(2, 3, 5)
    for start, end in itertools.pairwise([0, 3, 20, 26, 40]):
        some = rng.permutation(np.arange(start, end))
        kept.add(cosines[..., some], windows[..., some], numbers[..., some])
        kept.describe(lambda key: str(7 * key[0] + key[1]))
    order = np.argsort(-cosines, axis=-1, kind="stable")[..., :5]
    np.testing.assert_array_equal(kept.cosines, np.take_along_axis(cosines, order, -1))
    np.testing.assert_array_equal(7 * kept.windows + kept.numbers, order)
    assert {kept.contexts[key] for key in kept.keys().values()} == {str(i) for i in order.ravel()} == set(kept.contexts.values())


def test_a_sample_of_occurrences_is_uniform():
    drawn = np.zeros(30)
    for seed in range(400):
        sample = Sample(6)
        sample._rng = np.random.default_rng(seed)
        for i in range(30):
            sample.offer((0, i), lambda key: str(key[1]))
        assert sorted(sample.contexts) == sorted(sample.chosen)
        assert len(set(sample.chosen)) == 6
        drawn[[number for _, number in sample.chosen]] += 1
    assert np.abs(drawn / 400 - 0.2).max() < 0.1  # five standard deviations


def test_senses_are_clusters_that_are_separate_in_the_plane():
    rng = np.random.default_rng(2)
    middle = np.eye(6)[[0] * 9 + [1] * 5]
    vectors = (middle + 0.05 * rng.standard_normal((14, 6))) * rng.uniform(1, 9, (14, 1))  # lengths do not count
    labels = clusters(vectors, 2)
    assert labels.tolist() == [1] * 9 + [2] * 5
    points, marked, share = principal_plane(vectors, 3 * vectors[:1])
    assert np.ptp(np.sign(points[:9, 0])) == 0
    assert np.sign(points[0, 0]) == -np.sign(points[13, 0])
    np.testing.assert_allclose(marked, points[:1], atol=1e-9)
    assert 0.9 < share <= 1
    found = cohesion(vectors, labels)
    pairs = {"any": list(itertools.combinations(range(14), 2))}
    pairs["same"] = [(i, j) for i, j in pairs["any"] if labels[i] == labels[j]]
    pairs["other"] = [(i, j) for i, j in pairs["any"] if labels[i] != labels[j]]
    for name, some in pairs.items():
        assert found[name][1] == len(some)
        assert found[name][0] == pytest.approx(np.mean([1 - cosine(vectors[i], vectors[j]) for i, j in some]))
    assert {label: labels[i] for label, i in middles(vectors, labels).items()} == {1: 1, 2: 2}


def test_an_axis_points_to_its_largest_entry_and_two_vectors_are_two_senses():
    vectors = np.array([[0.8, 0.0, 0.6], [-1.6, 0.0, 1.2]])
    points, marked, share = principal_plane(vectors, np.array([[0.0, 0.0, 7.0]]))
    np.testing.assert_allclose(points, [[0.8, 0.0], [-0.8, 0.0]], atol=1e-12)
    assert (marked[0, 0], share) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    assert sorted(clusters(vectors, 2).tolist()) == [1, 2]
    assert clusters(vectors, 1).tolist() == [1, 1]


def test_layers_are_read_once_in_order_and_all_by_default():
    assert checked_layers((2, 0, 2), 2) == (0, 2)
    assert checked_layers((), 2) == (0, 1, 2)
    for layer in (-1, 3):
        with pytest.raises(UserError, match=f"--layer={layer} does not exist"):
            checked_layers((layer,), 2)


def test_one_word_has_no_mean_cosine_and_two_have_one(analyser):
    one, two = (analyser.neighbours(WORDS, [text], count=4, occurrences=9).random.values for text in ("cab", "the cab"))
    assert np.isnan(one).tolist() == [True] * 3
    assert (np.abs(two) <= 1).tolist() == [True] * 3


def test_single_and_identical_occurrences_can_be_drawn():
    for vectors in (np.ones((1, 4)), np.ones((3, 4))):
        points, _, share = principal_plane(vectors, vectors[:0])
        np.testing.assert_allclose(points, 0, atol=1e-12)
        assert np.isnan(share)
    assert clusters(np.ones((1, 4)), 2).tolist() == [1]
    assert np.isnan(cohesion(np.ones((1, 4)), np.ones(1, np.int64))["any"][0])


def test_the_nearest_pieces_equal_a_search_through_the_table(analyser, model):
    tokenizer = model.tokenizer
    table = model.params["embeddings"]["word_embeddings"]["embedding"][: tokenizer.size]
    for word, found in zip(("Paris", "cab"), analyser.nearest_pieces(["Paris", "cab"], count=5), strict=True):
        ids = tokenizer.encode(word)
        vector = table[ids].mean(0)
        cosines = {i: 1 - cosine(table[i], vector) for i in range(tokenizer.size) if i not in ids}
        best = sorted(cosines, key=lambda i: -cosines[i])[:5]
        assert [near.piece for near in found.nearest] == tokenizer.tokens(best)
        np.testing.assert_allclose([near.cosine for near in found.nearest], [cosines[i] for i in best], atol=1e-5)
        assert found.nearest[0].norm == pytest.approx(np.linalg.norm(table[best[0]]), rel=1e-5)
        assert found.norm == pytest.approx(np.linalg.norm(vector), rel=1e-5)
        assert (found.n, list(found.pieces)) == (len(cosines), tokenizer.tokens(ids))
    (every,) = analyser.nearest_pieces(["the"], count=1_000_000)
    assert len({near.piece for near in every.nearest}) == len(every.nearest) == tokenizer.size - 1
    assert len(nearest_pieces(model, ["the"])[0].nearest) == len(analyser.nearest_pieces(["the"])[0].nearest) == 10


def test_a_word_has_the_pieces_that_follow_a_space_if_the_tokenizer_distinguishes_them(tmp_path):
    tokenizer = load_tokenizer(plain(tmp_path, SPECIALS))
    table = np.random.default_rng(0).normal(size=(tokenizer.size, 3)).astype(np.float32)
    params = {"embeddings": {"word_embeddings": {"embedding": table}}}
    words = {"for": " for", ".": "."}
    found = nearest_pieces(Model(params=params, config=ModelConfig(vocab_size=tokenizer.size), tokenizer=tokenizer), list(words))
    assert [list(word.pieces) for word in found] == [tokenizer.tokens(tokenizer.encode(text)) for text in words.values()]
    assert tokenizer.encode(".") != tokenizer.encode(" .")


def test_words_are_found_in_texts_and_marks_do_not_change_pieces_if_the_tokenizer_distinguishes_spaces(tmp_path):
    path = plain(tmp_path, SPECIALS)
    engine = Engine(as_model(*make_model(path), path))
    tokenizer, text = engine.model.tokenizer, "wait for the trains!"
    marked, number = marked_window(engine, "wait [for] the trains!")
    (window,) = read_windows(engine, text)
    assert [word.ids for word in marked.words] == [word.ids for word in window.words]
    assert tokenizer.encode(text) == [i for word in marked.words[1:-1] for i in word.ids]
    assert window.words[number].ids == one_word(tokenizer, "for").ids != tuple(tokenizer.encode("for"))
    inside, number = marked_window(engine, "wait for the [train]s!")  # a part of a word is a word of its own
    assert [word.text for word in inside.words[number : number + 2]] == ["train", "s"]


def without_model(tokenizer: Tokenizer) -> Any:
    """Returns an engine in which the only entry of the vector of an occurrence is the index of its word."""

    def batches(_function: object, items: Sequence[Item], **_static: object) -> Iterator[dict[str, np.ndarray]]:
        for item in items:
            numbers = np.array([item.columns["words"][i] for i in item.query_positions])
            none = np.zeros((1, 0, 1), np.int32)
            nearest = {"cosines": none.astype(np.float32), "window": none, "number": none}
            asked = {"occurrence_window": np.full(len(numbers), item.columns["windows"][0]), "occurrence_number": numbers}
            vectors = numbers[None, :, None].astype(np.float32)
            sums = {"total": np.zeros((1, 1)), "words": np.array(len({*item.columns["words"]}))}
            yield {**nearest, **asked, **sums, "occurrences": vectors}

    config = types.SimpleNamespace(num_layers=0, hidden_size=1, max_position=99, has_segments=True)
    parts = {"model": types.SimpleNamespace(tokenizer=tokenizer), "mesh": types.SimpleNamespace(size=1)}
    return types.SimpleNamespace(
        **parts, config=config, require_encoder=lambda: None, run=lambda *_, **__: [], batches=batches, name="none"
    )


def test_an_occurrence_is_found_next_to_any_mark_with_any_tokenizer(tmp_path):
    text = "bank of the bank, (bank) \"bank.\" bank's bank-bank [bank] but not banks, Bank"
    by_spaces = train_sentencepiece([[text] * 5], 40, False)
    by_spaces.save(tmp_path)
    marks = [",", "(", ")", '"', ".", "'", "-", "[", "]"]
    assert set(marks) <= {*by_spaces.pieces}
    unigram, by_bytes = load_tokenizer(tmp_path / "tokenizer.json"), train_bpe([[text] * 5], 600, None)
    assert [tokenizer.vocabulary.kind for tokenizer in (by_spaces, unigram, by_bytes)] == ["sentencepiece", "unigram", "bpe"]
    for tokenizer in (by_spaces, unigram, by_bytes):
        words = text_words(tokenizer, text)
        assert [i for word in words for i in word.ids] == tokenizer.encode(text)
        assert [word.text for word in words if word_key(tokenizer, word.text) == word_key(tokenizer, "bank")] == ["bank"] * 8
        assert word_key(tokenizer, "(bank") == word_key(tokenizer, "bank") != word_key(tokenizer, "Bank")
        assert word_key(tokenizer, "[MASK]") == (tokenizer.mask_id,)
    engine, words = without_model(by_spaces), text_words(by_spaces, text)
    (found,) = find_neighbours(engine, ["bank"], read_windows(engine, text), Neighbouring()).occurrences
    banks = [[number] for number, word in enumerate(words, 1) if word.text == "bank"]
    assert (found.word, found.n, found.vectors.values.tolist()) == ("bank", 8, [banks])
    assert found.contexts[2].startswith("bank of the bank, ([bank])")


def test_a_model_without_word_embeddings_is_refused(vocabulary):
    model = as_model(*make_model(vocabulary, encoder="bilm", character_cnn=True, tied_decoder=False), vocabulary)
    with pytest.raises(UserError, match="elmo computes word vectors from characters, so it has no table of them; name another"):
        nearest_pieces(dataclasses.replace(model, source="elmo"), ["the"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("the cab", "'the cab' is 2 words; give one word, or a sentence with one word in brackets"),
        ("the [cab of] Paris", r"\[cab of\] in .* is 2 words; put one word in brackets"),
        ("the [cab] of [Paris]", "has 2 words in brackets; put only one in brackets"),
        ("the [cab] " + "of " * 50, "more than the 40 of the model's position table; shorten it"),
    ],
)
def test_more_or_less_than_one_word_is_refused(analyser, word, says):
    with pytest.raises(UserError, match=says):
        analyser.neighbours([word], TEXTS)


def test_bad_layers_and_texts_are_refused_and_a_special_token_is_not_a_mark(analyser):
    assert marked_window(analyser.engine, "the [MASK] of") is None
    with pytest.raises(UserError, match=r"--layer=3 does not exist: the model has layers 0 \(the embeddings\) to 2"):
        analyser.neighbours(["the"], TEXTS, layers=(0, 3))
    with pytest.raises(UserError, match="there is no word to compare with; give text"):
        analyser.neighbours(["the"], [])
    with pytest.raises(UserError, match="one text, not a list of texts"):
        analyser.neighbours(["the"], "the")
    with pytest.raises(UserError, match=r"neighbours.count=0 must be at least 1"):
        Neighbouring(count=0)


@pytest.mark.parametrize(("word", "text"), [("the [river]", "the cab"), ("the", "river of cab")], ids=["the word", "the text"])
def test_a_model_that_returns_nan_is_named(model, word, text):
    params = jax.tree.map(np.array, {part: model.params[part] for part in ("embeddings", "encoder")})
    (piece,) = model.tokenizer.encode("river")
    params["embeddings"]["word_embeddings"]["embedding"][piece] = np.nan
    with pytest.raises(UserError, match="returns numbers that are not finite"):
        Analyser(Engine(dataclasses.replace(model, params=params))).neighbours([word], [text])


def test_every_number_has_its_n_and_every_figure_its_table(found, analyser, tmp_path, figures):
    folder = Folder(tmp_path / "out")
    write_pieces(folder, analyser.nearest_pieces(["the", "cab"], count=3))
    drawn = write_neighbours(folder, found, 2)
    tables = {path.stem: path.read_text().splitlines() for path in folder.path.glob("*.tsv")}
    assert tables.keys() == {"pieces", "neighbours", "layers", "senses"}
    assert [path.name for path in folder.written if path.suffix == ".png"] == ["layers.png", "senses.png"]
    for name, (header, *rows) in tables.items():
        assert header.split("\t")[-1] == "n"
        assert rows
        assert all(int(row.split("\t")[-1]) > 0 and row.count("\t") == header.count("\t") for row in rows), name
    assert len(tables["neighbours"]) == 1 + 2 * 3 * 4
    assert len(tables["senses"]) == 1 + 3 * (2 + 9 + 9 + 1 + 2)
    numbers = [row.split("\t")[2] for row in tables["senses"][1:] if row.split("\t")[:2] == ["cab", "1"]]
    assert [n for n in numbers if n] == [str(n) for n in range(1, 10)]  # the word of the given sentence has no number
    assert [own.word for own in drawn] == ["river", "cab", "the", "xyz"]
    layers, senses = figures
    shown = senses.axes
    points = [line.get_xydata() for line in shown[0].lines]
    assert sum(len(line) for line in points) == 2 + 1  # two occurrences, and the word of the given sentence
    assert len(layers.axes[0].lines) == len({row.split("\t")[0] for row in tables["layers"][1:]})
    assert next(summary(draw(found, found.occurrences[1], 2))) == "cab: 13 occurrences, 9 of them drawn at random"
