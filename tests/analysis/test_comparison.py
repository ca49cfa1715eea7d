from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.compare import command, measure
from bert_jax.analysis.compare.aligned import WindowPair, paired_windows
from bert_jax.analysis.compare.cka import alignments, cross_sums, own_sums
from bert_jax.analysis.compare.figures import write_comparison
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.compare.masked import MaskedWords, twins
from bert_jax.analysis.compare.measure import Comparison, compared_layers, matched
from bert_jax.analysis.flags import parse_flags
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.windows import Kind, Word
from bert_jax.data.tokenizers.tokenizer import load_tokenizer, with_added_tokens
from bert_jax.data.tokenizers.vocabulary_training import train_bpe, train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine
from tests.analysis.reference import in_words, sources, weights_of, word_vectors_of
from tests.data.tokenizers.test_json_tokenizer import plain
from tests.interop.tiny import SPECIALS, as_model, make_model, make_vocabulary, write_xlm_r
from tests.prediction.reference import engine_on, first_devices, pretrained_outputs

TEXTS = ["the capital of France is Paris.", "cab", "of the river, xyz (Apfel) is!", "the cab of Paris " * 8, "is the river"]
ORDER = np.array([[2, 0, 3, 1], [1, 3, 0, 2]])
"""[layer, head]: the head that the copy has at this place."""


@pytest.fixture(scope="module")
def copy(model: Model, tmp_path_factory) -> Analyser:
    """Returns the random model with its heads in a different order and another MLM head."""
    params = jax.tree.map(np.array, model.params)
    attention = params["encoder"]["layers"]["attention"]
    for layer, order in enumerate(ORDER):
        for part in ("query", "key", "value"):
            attention[part]["kernel"][layer] = attention[part]["kernel"][layer][:, order]
            attention[part]["bias"][layer] = attention[part]["bias"][layer][order]
        attention["output"]["kernel"][layer] = attention["output"]["kernel"][layer][order]
    rng = np.random.default_rng(3)
    params["mlm_head"] = jax.tree.map(lambda x: x + rng.normal(0, 0.3, x.shape).astype(x.dtype), params["mlm_head"])
    return exported(dataclasses.replace(model, params=params), tmp_path_factory)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Analyser:
    """Returns a model with one layer of two heads, half as wide, with a lower-case vocabulary and a shorter position table. The
    means of its last layer are large."""
    vocabulary = make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "lower", cased=False)
    fields = {"num_layers": 1, "num_heads": 2, "hidden_size": 8, "max_position": 24, "type_vocab_size": 2}
    params, config = make_model(vocabulary, **fields)
    params["encoder"]["layers"]["feed_forward_layer_norm"]["bias"] += 100.0
    return exported(as_model(params, config, vocabulary), tmp_path_factory)


def exported(model: Model, tmp_path_factory) -> Analyser:
    path = tmp_path_factory.mktemp("other") / "model"
    export_model(path, model)
    return Analyser(engine_on(path, devices=2))


@pytest.fixture(scope="module")
def same(analyser, copy) -> Comparison:
    return analyser.compare(copy, TEXTS, masked=0.5, differences=3)


@pytest.fixture(scope="module")
def other(analyser, stranger) -> Comparison:
    return analyser.compare(stranger, TEXTS, sampled=64, masked=0.5)


def pairs_of(first: Analyser, second: Analyser) -> list:
    return [pair for text in TEXTS for pair in paired_windows(first.engine, second.engine, text)]


def test_windows_have_the_same_words_for_both_models_and_fit_both_position_tables(analyser, stranger):
    pairs = pairs_of(analyser, stranger)
    for pair in pairs:
        assert [word.text for word in pair.own.words] == [word.text for word in pair.other.words]
        assert max(len(window.item().ids) for window in (pair.own, pair.other)) <= 24
    for side, engine in (("own", analyser.engine), ("other", stranger.engine)):
        read = [i for pair in pairs for i in getattr(pair, side).item().ids[1:-1]]
        assert read == [i for text in TEXTS for i in engine.model.tokenizer.encode(text)]


def test_the_summary_names_the_shorter_position_table(analyser, stranger, other, tmp_path, monkeypatch, capsys):
    def read_all(engine, rival, pairs, options, show) -> Comparison:
        return dataclasses.replace(other, windows=len(list(pairs)))

    monkeypatch.setattr(command, "load_analyser", lambda flags: analyser)
    monkeypatch.setattr(command.Analyser, "load", lambda path: stranger)
    monkeypatch.setattr(command, "compare_models", read_all)
    monkeypatch.setattr(command, "write_comparison", lambda folder, found: None)
    given = ["compare", "--model=m", "--with=o", f"--output={tmp_path / 'out'}", "the cab " * 30]
    assert command.run(parse_flags("", given)[1]) == 0
    assert "texts longer than 24 tokens were cut" in capsys.readouterr().out


def test_reordered_heads_of_a_copy_are_matched_and_its_layers_are_equal(same):
    partners = matched(same.divergence.values)
    assert same.same_shape
    # the copy has head `order[k]` of the model at place k
    assert partners == {4 * layer + int(head): 4 * layer + place for layer in (0, 1) for place, head in enumerate(ORDER[layer])}
    assert max(same.divergence.values[i, j] for i, j in partners.items()) < 2e-6
    for cka in (same.cka, same.biased_cka):
        np.testing.assert_allclose(np.diag(cka.values), 1, atol=1e-5)
        assert cka.sel(layer=0, other=2).values < 0.99


def test_the_divergence_of_heads_of_two_models_equals_scipy(other, analyser, stranger):
    expected, n = np.zeros((8, 2)), 0
    for pair in pairs_of(analyser, stranger):
        sides = ((analyser, pair.own), (stranger, pair.other))
        weights = [in_words(weights_of(each.engine.model, window), window) for each, window in sides]
        maps = [layers.reshape(-1, *layers.shape[2:]) for layers in weights]
        for i in sources(pair.own):
            expected += [[jensenshannon(p[i], q[i]) ** 2 for q in maps[1]] for p in maps[0]]
            n += 1
    np.testing.assert_allclose(other.divergence.values, expected / n, atol=2e-6)
    assert (other.n_divergence, other.words) == (n, n)
    assert not other.same_shape
    assert sorted(matched(other.divergence.values).values()) == [0, 1]


def direct(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Returns (unbiased CKA from the Gram matrices of all words, CKA as in the paper from centred vectors)."""
    n = len(x)

    def hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
        k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
        apart = k.sum() * l.sum() / ((n - 1) * (n - 2))
        return (np.trace(k @ l) + apart - 2 / (n - 2) * (k @ l).sum()) / (n * (n - 3))

    k, l = x @ x.T, y @ y.T  # noqa: E741
    a, b = x - x.mean(0), y - y.mean(0)
    biased = np.linalg.norm(a.T @ b) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l)), biased


def test_cka_equals_the_gram_matrix_of_all_words(other, analyser, stranger):
    rows: list[list] = [[], []]
    for pair in pairs_of(analyser, stranger):
        for side, each, window in ((0, analyser, pair.own), (1, stranger, pair.other)):
            rows[side].append(word_vectors_of(each.engine.model, window)[:, sources(window)])
    own, others = (np.concatenate(side, axis=1) for side in rows)
    assert (list(other.cka["layer"]), list(other.cka["other"])) == ([0, 1, 2], [0, 1])
    for i, j in itertools.product(range(3), range(2)):
        unbiased, biased = direct(own[i], others[j])
        assert other.cka.sel(layer=i, other=j).values == pytest.approx(unbiased, abs=2e-5)
        assert other.biased_cka.sel(layer=i, other=j).values == pytest.approx(biased, abs=2e-5)


def test_cka_is_one_for_a_rotated_copy_and_zero_on_average_for_noise():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 60, 20)).astype(np.float32)
    rotation = np.linalg.qr(rng.standard_normal((20, 20)))[0].astype(np.float32)
    y = np.concatenate([3 * x @ rotation, rng.standard_normal((8, 60, 20)).astype(np.float32)])
    found = jax.jit(lambda x, y: (own_sums(x), own_sums(y), cross_sums(x, y)))(x, y)
    sums = [{name: np.asarray(a, np.float64) for name, a in each.items()} for each in found]
    unbiased, biased = alignments(*sums, 60.0)
    np.testing.assert_allclose([unbiased[0, 0], biased[0, 0]], 1, atol=1e-5)
    assert abs(unbiased[0, 1:].mean()) < 0.05 < 0.15 < biased[0, 1:].min()
    assert np.isnan(alignments(*sums, 3.0)[0]).all()
    assert np.isfinite(alignments(*sums, 4.0)[1]).all()


def by_hand(first: Analyser, second: Analyser) -> dict[str, list[float]]:
    """Returns the measures of every masked word, each window in a row of its own."""
    masking = MaskedWords((first.engine, second.engine), 0.5, 0, 0)
    twin = twins(first.engine.model.tokenizer, second.engine.model.tokenizer)
    found: dict[str, list[float]] = {name: [] for name in ("accuracy", "other_accuracy", "agreement", "kl", "other_kl")}
    for pair in pairs_of(first, second):
        chosen = masking.choose(pair)
        distributions, targets = [], []
        for analyser, window in ((first, pair.own), (second, pair.other)):
            model, item = analyser.engine.model, window.item()
            places = [item.columns["words"].index(number) for number in chosen]
            ids = [model.tokenizer.mask_id if i in places else piece for i, piece in enumerate(item.ids)]
            distributions.append(pretrained_outputs(model, ids)["mlm"][places])
            targets.append([item.ids[place] for place in places])
        for p, q, target, other_target in zip(*distributions, *targets, strict=True):
            found["accuracy"].append(p.argmax() == target)
            found["other_accuracy"].append(q.argmax() == other_target)
            found["agreement"].append(twin[q.argmax()] == p.argmax())
            if len(p) == len(q):
                found["kl"].append((p * np.log(p / q)).sum())
                found["other_kl"].append((q * np.log(q / p)).sum())
    return found


def test_predictions_of_the_same_masked_words_equal_a_loop(same, other, analyser, copy, stranger):
    for comparison, second in ((same, copy), (other, stranger)):
        measures, found = by_hand(analyser, second), comparison.predictions
        assert found.n == len(measures["agreement"]) > 10
        for name in ("accuracy", "other_accuracy", "agreement"):
            assert getattr(found, name) == pytest.approx(np.mean(measures[name]))
    assert np.isnan(found.kl)
    assert found.differences == ()
    measures, found = by_hand(analyser, copy), same.predictions
    assert found.kl == pytest.approx(np.mean(measures["kl"]), abs=1e-5)
    assert found.other_kl == pytest.approx(np.mean(measures["other_kl"]), abs=1e-5)
    np.testing.assert_allclose([each.kl for each in found.differences], sorted(measures["kl"])[:-4:-1], atol=1e-5)
    assert all("[" in each.context for each in found.differences)


def test_pieces_are_matched_between_reordered_vocabularies(same, analyser, model, tmp_path_factory):
    pieces, params = model.tokenizer.pieces, jax.tree.map(np.array, model.params)
    table = params["embeddings"]["word_embeddings"]
    order = np.arange(len(table["embedding"]))  # rows without pieces fill the table
    order[len(SPECIALS) : len(pieces)] = order[len(SPECIALS) : len(pieces)][::-1]
    table["embedding"], params["mlm_head"]["bias"] = table["embedding"][order], params["mlm_head"]["bias"][order]
    source = tmp_path_factory.mktemp("vocabulary") / "source.txt"
    source.write_text("".join(f"{pieces[i]}\n" for i in order[: len(pieces)]), encoding="utf-8")
    moved = dataclasses.replace(model, params=params, tokenizer=load_tokenizer(source, lowercase=False))
    found = analyser.compare(exported(moved, tmp_path_factory), TEXTS, masked=0.5).predictions
    assert (found.n, found.accuracy, found.other_accuracy) == (same.predictions.n, *[same.predictions.accuracy] * 2)
    assert found.agreement == 1, "only the ids differ, not the subwords"
    assert same.predictions.agreement < 1


def test_pieces_of_two_vocabularies_match_by_letters_and_position_in_the_word(analyser, stranger):
    own, others = analyser.engine.model.tokenizer, stranger.engine.model.tokenizer
    twin = twins(own, others)
    for piece in ("paris", "##a", "a", "[CLS]", "7"):
        assert own.pieces[twin[others.pieces.index(piece)]] == piece
    assert -1 in twins(others, own)  # cased pieces are missing from a lower-case vocabulary


def test_each_piece_of_a_vocabulary_only_matches_itself_also_if_pieces_are_added(tmp_path):
    train_bpe([["It is here . (There .) It is there ."] * 9], 300, None).save(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert {".", "\u0120."} <= {*tokenizer.pieces}
    np.testing.assert_array_equal(twins(tokenizer, load_tokenizer(tmp_path)), range(tokenizer.size))
    larger = with_added_tokens(tokenizer, ["[E1]"])
    changed = [i for i, twin in enumerate(twins(tokenizer, larger)) if twin != i]
    assert [larger.pieces[i] for i in changed] == ["[E1]"]


def test_large_models_are_compared_at_evenly_spaced_layers():
    large = ModelConfig(vocab_size=100, num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=64)
    own, others = compared_layers(large, large)
    assert own == others
    assert (own[0], own[-1]) == (0, 24)
    assert len(own) == 11
    small = dataclasses.replace(large, num_layers=12, hidden_size=768)
    assert compared_layers(small, small) == (tuple(range(13)),) * 2
    wide, half = (dataclasses.replace(large, num_layers=3, hidden_size=width) for width in (4_096, 2_048))
    assert compared_layers(wide, half) == ((0, 1, 2, 3),) * 2  # 16 products of 2^25 bytes
    widest = dataclasses.replace(large, hidden_size=16_384)
    static = dataclasses.replace(widest, encoder="static", num_layers=0)
    assert compared_layers(widest, static) == ((0, 8, 16, 24), (0,))  # at least four products


def test_windows_fill_the_shorter_position_table(analyser):
    sizes = [len(each.own.item().ids) for each in paired_windows(analyser.engine, analyser.engine, "the " * 80)]
    assert sizes == [40, 40, 6]
    (long,) = paired_windows(analyser.engine, analyser.engine, "x" * 90)
    assert len(long.own.item().ids) == 40
    with pytest.raises(UserError, match="has no tokens; give text"):
        list(paired_windows(analyser.engine, analyser.engine, " "))


def untrained(vocabulary: pathlib.Path, **fields: Any) -> Engine:
    """Returns an engine for a random model with the vocabulary in this directory."""
    with first_devices():
        return Engine(as_model(*make_model(vocabulary, **fields), vocabulary))


@pytest.fixture(scope="module")
def by_json(tmp_path_factory) -> Engine:
    """Returns an engine for a model with a tokenizer.json that splits only at spaces."""
    write_xlm_r(directory := tmp_path_factory.mktemp("json"))
    return untrained(directory)


def test_words_are_whole_for_both_models_and_have_the_pieces_of_the_text(analyser, by_json, tmp_path):
    text = "(for) the cab, don't ... is"
    train_sentencepiece([TEXTS], 40, False).save(tmp_path / "spaces")
    by_spaces, by_bytes = untrained(tmp_path / "spaces"), untrained(plain(tmp_path, list(SPECIALS)))
    split = ["(", "for", ")", "the", "cab", ",", "don", "'", "t", "...", "is"]  # "..." is three words of WordPiece
    for other, expected in ((by_spaces, split), (by_json, text.split()), (by_bytes, split)):  # "(for)" is unknown to by_json
        (pair,), (turned,) = (paired_windows(*engines, text) for engines in ((analyser.engine, other), (other, analyser.engine)))
        assert (pair.own, pair.other) == (turned.other, turned.own)
        assert [word.text for word in pair.own.words[1:-1]] == expected
        for window, engine in ((pair.own, analyser.engine), (pair.other, other)):
            assert window.item().ids[1:-1] == engine.model.tokenizer.encode(text)
    assert [word.text for word in pair.other.words if word.kind == Kind.PUNCTUATION] == ["(", ")", ",", "'", "..."]


def test_a_special_token_of_one_model_is_one_word_for_both(analyser, by_json):
    (pair,) = paired_windows(analyser.engine, by_json, "cab <mask>is")
    assert [word.text for word in pair.own.words[1:-1]] == ["cab", "<mask>", "is"]
    assert pair.other.words[2].ids == (by_json.model.tokenizer.mask_id,)
    assert len(pair.own.words[2].ids) == 6


def test_masked_words_are_predicted_only_by_models_that_read_both_sides(analyser, vocabulary):
    one = untrained(vocabulary, direction="left_to_right")
    with pytest.raises(UserError, match="reads from left to right, so it cannot predict masked words; name a model trained"):
        MaskedWords((analyser.engine, one), 0.5, 0, 0)


def test_a_difference_has_the_context_of_its_window_in_any_group(analyser):
    pairs, masking = pairs_of(analyser, analyser), MaskedWords((analyser.engine,) * 2, 0.5, 0, 2)
    arrays = {"own": [1, 2], "other": [3, 2], "target": [1, 2], "other_target": [1, 2], "window": [8, 7], "number": [1, 3]}
    found = {name: np.array(values) for name, values in arrays.items()}
    masking._add({**found, "kl": np.array([0.5, 2.0]), "other_kl": np.zeros(2)}, pairs[:2], 7)
    assert [each.context for each in masking.result().differences] == [pairs[0].own.context(3), pairs[1].own.context(1)]


def test_masked_words_are_one_known_piece_in_both_models_and_drawn_per_window(analyser):
    engines = (analyser.engine, analyser.engine)
    (window,) = paired_windows(*engines, "the cab, river \u2603 of Paris!")
    words = window.own.words
    fit = [i for i, word in enumerate(words) if word.text in ("the", "river", "of", "Paris")]
    assert {len(words[i].ids) for i in fit} == {1}
    every = MaskedWords(engines, 1.0, 0, 0)
    assert every.choose(window) == every.choose(window) == fit
    split = dataclasses.replace(window.other, words=(*words[:1], Word("the", (5, 6), Kind.WORD), *words[2:]))
    assert every.choose(WindowPair(window.own, split)) == fit[1:]
    half, again = MaskedWords(engines, 0.5, 3, 0), MaskedWords(engines, 0.5, 3, 0)
    chosen = [half.choose(window) for _ in range(20)]
    assert chosen == [again.choose(window) for _ in range(20)]
    assert len({*map(tuple, chosen)}) > 5
    assert 20 < sum(map(len, chosen)) < 60
    assert chosen != [MaskedWords(engines, 0.5, 4, 0).choose(window) for _ in range(20)]


def test_without_a_masked_word_the_reason_replaces_predictions(other, analyser, stranger, monkeypatch):
    monkeypatch.setattr(measure, "WINDOWS", 1)
    again = analyser.compare(stranger, [" ", *TEXTS], sampled=64, masked=1e-9, divergence_words=8)
    assert (again.words, again.windows) == (other.words, other.windows)
    assert again.n_divergence == 8 < other.n_divergence, "the first two windows contain enough words"
    np.testing.assert_allclose(again.cka.values, other.cka.values, atol=2e-4)  # with a different mean subtracted
    assert again.predictions is None
    assert "no masked word is a single piece" in again.missing
    none = analyser.compare(stranger, ["river"], divergence_words=0)
    assert (none.words, none.n_divergence) == (1, 0)
    assert np.isnan([*none.divergence.values.ravel(), *none.cka.values.ravel(), *none.biased_cka.values.ravel()]).all()


def test_incomparable_parts_are_refused_or_left_out_with_the_reason(analyser, copy):
    with pytest.raises(UserError, match="there is no word to compare the models on; give text"):
        analyser.compare(copy, [])
    with pytest.raises(UserError, match=r"compare.masked=0 must be above 0"):
        Comparing(masked=0)


def test_every_number_has_its_n_and_every_figure_its_table(same, other, tmp_path, figures):
    for found, own in ((same, {"moved", "differences"}), (other, set())):
        folder = Folder(tmp_path / str(len(own)))
        figures.clear()
        write_comparison(folder, found)
        tables = {path.stem: path.read_text().splitlines() for path in folder.path.glob("*.tsv")}
        assert tables.keys() == {"heads", "divergences", "layers", "predictions"} | own
        drawn = [path.stem for path in folder.written if path.suffix == ".png"]
        assert {*drawn} <= tables.keys()
        for name, (header, *rows) in tables.items():
            assert header.split("\t")[-1] == "n"
            assert rows
            assert all(int(row.split("\t")[-1]) > 0 and row.count("\t") == header.count("\t") for row in rows), name
    shown = figures[drawn.index("divergences")].axes[0]
    np.testing.assert_allclose(shown.images[0].get_array(), np.sqrt(other.divergence.values))
    assert len(shown.lines[0].get_xdata()) == 2
    assert sum(row.split("\t")[1] == "" for row in tables["heads"]) == 6  # two of eight heads have a partner
