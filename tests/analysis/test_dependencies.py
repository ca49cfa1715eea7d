from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.analyse import main
from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.bootstrap import poisson_weights
from bert_jax.analysis.controls import engine_with_random_weights, permuted_heads, random_weights, shuffled_words
from bert_jax.analysis.dependencies.figures import heat_map, write_dependencies
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.dependencies.measure import DIRECTIONS, MOST_RELATIONS, Dependents, Relations, count_hits
from bert_jax.analysis.dependencies.published_heads import PUBLISHED_COLUMNS, published_rows
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.reading import Treebank
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model
from bert_jax.tasks.readers.conllu import Sentence
from tests.analysis.made_up import dependency_scores
from tests.analysis.reference import in_words, verb_model, weights_of
from tests.analysis.test_treebank import row
from tests.interop.tiny import WORDS, as_model, make_model
from tests.prediction.reference import engine_on

RELATIONS = ("nsubj", "nsubj:pass", "obj", "det", "punct")
NEAR = 1e-4
"""Two weights with a smaller relative difference may be in a different order on another CPU."""


def sentence(rng: np.random.Generator, length: int) -> list[str]:
    """Returns the lines of a random tree over words of one to three pieces and punctuation marks."""
    words = rng.choice([*WORDS, "cab", "xy", ",", "!"], length)
    order = rng.permutation(length)
    heads = np.zeros(length, int)
    for i in range(1, length):  # each word depends on an earlier one in a random order
        heads[order[i]] = order[rng.integers(i)] + 1
    return [row(i, w, h, rng.choice(RELATIONS) if h else "root") for i, (w, h) in enumerate(zip(words, heads, strict=True), 1)]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> pathlib.Path:
    """Returns ten sentences, two of them longer than the position table, with a multiword token and an empty node."""
    rng = np.random.default_rng(3)
    lines = [sentence(rng, length) for length in (7, 12, 2, 9, 30, 5, 11, 45, 8, 1)]
    lines[1].insert(2, row("3-4", "don't", "_", "_"))
    lines[3].append(row("9.1", "go", "_", "_"))
    path = tmp_path_factory.mktemp("treebank") / "ten.conllu"
    path.write_text("\n".join("".join(some) for some in lines))
    return path


@pytest.fixture(scope="module")
def found(analyser, treebank):
    return analyser.dependencies(treebank, reach=3, replicates=100)


def looked_at(analyser, model, sentences) -> tuple[dict[str, list[np.ndarray]], int]:
    """Returns (for each relation and each of its dependents, [2, direction, layer, head]: the weight of the head, and the largest
    of the other weights; the number of dependents whose heads are in other windows)."""
    found: dict[str, list[np.ndarray]] = {}
    across = 0
    for one in sentences:
        for window in word_windows(analyser.engine, one.words):
            attention = in_words(weights_of(model, window), window)[:, :, 1:-1, 1:-1]
            count = attention.shape[-1]
            for i in range(count):
                head = one.heads[window.start + i] - window.start
                if one.heads[window.start + i] < 0:
                    continue
                if not 0 <= head < count:
                    across += 1
                    continue
                others = [j for j in range(count) if j not in (i, head)]
                to_others = attention[:, :, i, others].max(-1, initial=-1), attention[:, :, others, i].max(-1, initial=-1)
                own = attention[:, :, i, head], attention[:, :, head, i]
                found.setdefault(one.relations[window.start + i], []).append(np.array((own, to_others)))
    return found, across


@pytest.mark.parametrize(("half", "array", "counts"), [(0, "choosing", "n_choosing"), (1, "accuracy", "n")])
def test_accuracies_of_every_head_equal_a_loop_over_dependents(found, analyser, model, treebank, half, array, counts):
    by_relation, _ = looked_at(analyser, model, Treebank(treebank).half(half))
    by_relation["nsubj:*"] = [*by_relation["nsubj"], *by_relation["nsubj:pass"]]
    by_relation["all"] = [one for name in RELATIONS[:-1] for one in by_relation[name]]
    unsure = 0
    for relation, some in by_relation.items():
        assert getattr(found, counts).sel(relation=relation).values == len(some)
        hits = getattr(found, array).sel(relation=relation).values * len(some)
        own, others = np.moveaxis(some, 1, 0)
        surely, perhaps = ((own > others * share).sum(0) for share in (1 + NEAR, 1 - NEAR))
        assert (surely - 1e-6 <= hits).all()
        assert (hits <= perhaps + 1e-6).all()
        unsure += int((perhaps - surely).sum())
    assert unsure < 10
    assert list(found.accuracy["relation"]) == ["all", *[r for r in found.accuracy["relation"] if r in RELATIONS], "nsubj:*"]


def test_dependents_whose_head_is_in_another_window_are_counted_and_left_out(found, analyser, model, treebank):
    _, across = looked_at(analyser, model, Treebank(treebank))
    assert found.across == across > 0
    assert (found.sentences_choosing, found.sentences) == (5, 5)


def test_heads_and_offsets_are_chosen_on_one_half_and_measured_on_the_other(found):
    assert [best.relation for best in found.best[:1]] == ["all"]
    assert [best.n for best in found.best[1:]] == sorted((best.n for best in found.best[1:]), reverse=True)
    for best in found.best:
        where = {"direction": best.direction, "layer": best.layer, "head": best.head}
        choosing = found.choosing.sel(relation=best.relation)
        assert choosing.sel(**where).values == choosing.values.max() == best.chosen_at
        assert found.accuracy.sel(relation=best.relation, **where).values == best.accuracy
        assert found.baseline.sel(relation=best.relation, offset=best.offset).values == best.baseline
        assert best.low <= best.high
        assert best.gain_low <= best.gain_high
    values = found.replicates.sel(relation="all").values
    assert 0 < np.nanstd(values) < 0.2
    assert np.nanmean(values) == pytest.approx(found.best[0].accuracy, abs=0.05)


def test_frequencies_of_offsets_equal_a_loop_over_dependents(found, analyser, treebank):
    distances: dict[str, list[int]] = {}
    for one in Treebank(treebank).half(1):
        for window in word_windows(analyser.engine, one.words):
            inside = range(window.start, window.start + len(window.words) - 2)
            for i in inside:
                if one.heads[i] in inside:
                    distances.setdefault(one.relations[i], []).append(one.heads[i] - i)
    for relation, some in distances.items():
        shares = [some.count(offset) / len(some) for offset in range(-3, 4)]
        np.testing.assert_allclose(found.baseline.sel(relation=relation).values, shares)


def test_intervals_of_equal_sentences_are_points(analyser, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text("\n".join(["".join(sentence(np.random.default_rng(5), 14))] * 8))
    found = analyser.dependencies(path, reach=3, replicates=100)
    assert {best.relation for best in found.best} == {"all", "nsubj:*", *RELATIONS}
    for best in found.best:
        gain = best.accuracy - best.baseline
        assert (best.low, best.high, best.gain_low, best.gain_high) == pytest.approx((best.accuracy,) * 2 + (gain,) * 2)
    assert 0 < found.best[0].accuracy < 1


def test_without_a_chosen_head_no_dependent_is_found(found, analyser, treebank):
    taken: list[Dependents] = []
    count_hits(analyser.engine, Treebank(treebank).half(1), Relations(), 3, use=lambda counts, some: taken.append(some))
    assert sum(len(some.relation) for some in taken) > 20
    assert not any(some.hits.any() for some in taken)


@pytest.mark.usefixtures("figures")
def test_dependents_within_the_window_have_a_piece_near_a_piece_of_their_head(vocabulary, tmp_path, monkeypatch, capsys):
    settings = {"num_heads": 1, "layer_types": ("full", "sliding"), "sliding_radius": 2}
    export_model(tmp_path / "model", as_model(*make_model(vocabulary, **settings), vocabulary))
    lines = [row(1, "cab", 0, "root"), row(2, "the", 4, "a"), row(3, "of", 1, "b"), row(4, "xyz", 1, "c"), row(5, "is", 4, "d")]
    (tmp_path / "x.conllu").write_text("\n".join(["".join(lines)] * 2))  # "cab" and "xyz" have three pieces
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    flags = [f"--model={tmp_path / 'model'}", f"--input={tmp_path / 'x.conllu'}", f"--output={tmp_path / 'out'}", "--least=1"]
    assert main(["dependencies", *flags, "--replicates=100"]) == 0
    said = capsys.readouterr().out
    assert "dependents whose heads are within the window: all 75.0 %, a 100.0 %, b 100.0 %, c 0.0 %, d 100.0 %\n" in said
    assert "the heads of layer 2 see 2 tokens on each side, 5 in all\n" in said


SUBJECT = [row(1, "the", 2, "det"), row(2, "river", 3, "nsubj"), row(3, "is", 0, "root"), row(4, "Paris", 3, "obj")]
SUBJECTS = [row(1, "the", 3, "det"), row(2, "a", 1, "prt"), row(3, "river", 5, "nsubj"), row(4, "b", 3, "prt")]
SUBJECTS += [row(5, "is", 0, "root"), row(6, "of", 7, "case"), row(7, "France", 5, "obj"), row(8, "!", 5, "punct")]
PAIR = [row(1, "river", 0, "root"), row(2, "is", 1, "cop")]


@pytest.fixture(scope="module")
def verbs(vocabulary, tmp_path_factory) -> Analyser:
    path = tmp_path_factory.mktemp("verb") / "model"
    export_model(path, verb_model(vocabulary, "is"))
    return Analyser(engine_on(path))


def test_heads_that_attend_to_the_verb_and_the_word_before_are_found(verbs, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text("\n".join("".join(some) for some in (SUBJECT, SUBJECT, SUBJECTS, SUBJECTS, PAIR, PAIR) * 5))
    best = {row.relation: row for row in verbs.dependencies(path, replicates=100, reach=4).best}
    for relation in ("nsubj", "obj", "punct"):  # these depend on the verb
        assert (best[relation].name, best[relation].direction, best[relation].accuracy) == ("2-2", DIRECTIONS[0], 1), relation
    assert (best["prt"].name, best["prt"].direction, best["prt"].accuracy, best["prt"].offset) == ("1-1", DIRECTIONS[0], 1, -1)
    assert (best["prt"].low, best["prt"].high) == (1, 1)  # of the first head in the first direction
    assert (best["case"].name, best["case"].direction) == ("1-1", DIRECTIONS[1])  # the next word attends back to it
    assert (best["nsubj"].baseline, best["nsubj"].n) == (0.5, 10)
    # a head that attends uniformly has no most attended word
    scores = verbs.dependencies(path, replicates=100)
    assert scores.accuracy.sel(layer=1, head=2, relation="nsubj").values.tolist() == [0, 0]
    # the verb attends only to itself, so it does not find the only other word
    assert scores.accuracy.sel(layer=2, head=2, relation="cop").values.tolist() == [0, 1]


MIXED = [row(1, "the", 3, "x"), row(2, "river", 3, "y"), row(3, "is", 0, "root"), row(4, "Paris", 1, "x")]
"""The head that attends to the verb finds one of the two x, and so does the offset 2."""


def test_intervals_equal_a_bootstrap_over_sentences(verbs, tmp_path):
    path = tmp_path / "x.conllu"
    other = [*MIXED[:3], row(4, "of", 3, "x"), row(5, "Paris", 3, "x")]
    kinds = [MIXED, MIXED, other, MIXED, other, other, other] * 3  # the second, fourth, ... are reported
    path.write_text("\n".join("".join(some) for some in kinds))
    found = verbs.dependencies(path, replicates=200, seed=3)
    (best,) = [best for best in found.best if best.relation == "x"]
    assert (best.name, best.direction, best.offset) == ("2-2", DIRECTIONS[0], 2)
    reported = kinds[1::2]
    n, hits = np.array([(3, 3) if some is other else (2, 1) for some in reported]).T
    at_offset = np.ones(len(reported))
    assert (best.accuracy, best.baseline) == pytest.approx((hits.sum() / n.sum(), at_offset.sum() / n.sum()))
    weights = poisson_weights(3, range(len(reported)), 200)
    n, hits, at_offset = (values @ weights for values in (n, hits, at_offset))
    ends = np.quantile(hits / n, (0.025, 0.975)), np.quantile((hits - at_offset) / n, (0.025, 0.975))
    assert (best.low, best.high, best.gain_low, best.gain_high) == pytest.approx((*ends[0], *ends[1]), abs=1e-6)
    np.testing.assert_allclose(found.replicates.sel(relation="x").values, hits / n, rtol=1e-6)
    for low, beats in ((-0.1, False), (0.0, False), (0.01, True), (1.0, True)):
        assert dataclasses.replace(best, gain_low=low).beats_offset == beats


def test_reported_sentences_do_not_influence_the_choice_of_heads(verbs, tmp_path):
    adverse = [row(1, "the", 3, "det"), row(2, "a", 3, "prt"), row(3, "river", 4, "nsubj"), row(4, "b", 0, "root")]
    files = {"choose": SUBJECTS, "same": SUBJECTS, "adverse": [*adverse, row(5, "is", 1, "obj")]}
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(["".join(lines)] * 3))
    found = [verbs.dependencies(tmp_path / name, tmp_path / "choose", replicates=100) for name in ("same", "adverse")]
    chosen = [{b.relation: (b.direction, b.name, b.offset, b.chosen_at, b.n_choosing) for b in some.best} for some in found]
    assert {"nsubj", "prt", "all"} < chosen[1].keys() < chosen[0].keys(), "a relation of one part only is not among the best"
    assert {relation: chosen[0][relation] for relation in chosen[1]} == chosen[1]
    nsubj = [next(best for best in some.best if best.relation == "nsubj") for some in found]
    assert (nsubj[0].accuracy, nsubj[1].accuracy) == (1, 0), "other heads are the best of the reported sentences"
    assert nsubj[1].baseline == 0 < found[1].baseline.sel(relation="nsubj").values.max(), "and other offsets"


def test_punctuation_of_the_reported_sentences_alone_is_not_counted_in_all_relations(verbs, tmp_path):
    words = [row(1, "the", 3, "det"), row(2, "river", 3, "nsubj"), row(3, "is", 0, "root")]
    (tmp_path / "choose").write_text("\n".join(["".join(words)] * 3))
    (tmp_path / "scored").write_text("\n".join(["".join([*words, row(4, "of", 3, "punct"), row(5, "of", 3, "case")])] * 3))
    found = verbs.dependencies(tmp_path / "scored", tmp_path / "choose", replicates=100)
    assert found.n.sel(relation="all").values == 3 * 3, "det, nsubj and case"


def test_a_control_is_reproducible_by_its_seed(verbs, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text("\n".join("".join(SUBJECTS) for _ in range(8)))
    one, again, other = (
        verbs.dependencies(path, replicates=100, control="shuffled-words", seed=seed).accuracy.values for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other, equal_nan=True)


def test_controls_remove_what_the_known_heads_find(verbs, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text("\n".join("".join(SUBJECTS) for _ in range(40)))
    scores = {name: verbs.dependencies(path, replicates=100, control=name) for name in ("", "shuffled-words", "permuted-heads")}

    def accuracy(control: str, relation: str, layer: int, head: int) -> float:
        return float(scores[control].accuracy.sel(relation=relation, direction=DIRECTIONS[0], layer=layer, head=head).values)

    assert accuracy("", "nsubj", 2, 2) == accuracy("shuffled-words", "nsubj", 2, 2) == 1  # it finds the verb anywhere
    assert accuracy("permuted-heads", "nsubj", 2, 2) < 0.8
    assert accuracy("", "prt", 1, 1) == 1
    assert accuracy("shuffled-words", "prt", 1, 1) < 0.4
    folder = Folder(tmp_path / "out")
    write_dependencies(folder, scores.pop(""), scores, least=10_000)
    header, *rows = [line.split("\t") for line in (tmp_path / "out" / "dependency_controls.tsv").read_text().splitlines()]
    of_verb = {row[1]: dict(zip(header, row, strict=True)) for row in rows if row[0] == "nsubj"}
    assert float(of_verb["shuffled-words"]["beaten_by"]) == 0
    assert float(of_verb["permuted-heads"]["beaten_low"]) > 0


@pytest.mark.usefixtures("two_devices")
def test_the_control_of_random_weights_follows_the_seed(analyser, treebank):
    given = analyser.dependencies(treebank, replicates=100, control="random-weights", seed=7)
    drawn = [Analyser(engine_with_random_weights(analyser.engine, seed)) for seed in (7, 8)]
    same, other = (own.dependencies(treebank, replicates=100, seed=7).accuracy.values for own in drawn)
    np.testing.assert_array_equal(given.accuracy.values, same)
    assert not np.array_equal(same, other, equal_nan=True)


def test_random_weights_keep_shapes_and_follow_the_seed(verbs, monkeypatch):
    model = verbs.engine.model
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    engine = engine_with_random_weights(verbs.engine, 1)
    assert engine.tokens == verbs.engine.tokens
    drawn = engine.model.params
    assert drawn.keys() == {"embeddings", "encoder"}
    shapes = jax.tree.map(np.shape, {part: model.params[part] for part in drawn})
    assert jax.tree.map(np.shape, drawn) == shapes
    values = drawn["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert values.std() == pytest.approx(model.config.initializer_range, rel=0.2)
    again = random_weights(model, 1).params["encoder"]["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(again, values)


def test_shuffled_words_keep_their_heads_and_permuted_heads_come_from_other_words():
    one = Sentence("", 0, *[tuple("abcdef")] * 5, (1, -1, 1, 2, 2, 0), tuple("rstuvw"), tuple("abcdef"))
    of_last: set[int] = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        moved = shuffled_words(one, rng)
        heads = [moved.words[head] if head >= 0 else "" for head in moved.heads]
        pairs = {*zip(moved.words, moved.relations, heads, strict=True)}
        assert pairs == {("a", "r", "b"), ("b", "s", ""), ("c", "t", "b"), ("d", "u", "c"), ("e", "v", "c"), ("f", "w", "a")}
        assert moved.misc == moved.lemmas == moved.words
        heads = permuted_heads(one, rng).heads
        assert heads[1] == -1
        assert sorted(heads) == sorted(one.heads)
        assert all(head != i for i, head in enumerate(heads))
        of_last.add(heads[5])
    assert len(of_last) > 1, "the head of a word may be the first word of the sentence"
    assert permuted_heads(dataclasses.replace(one, heads=(-1,)), rng).heads == (-1,)


def test_controls_keep_the_root_and_sentences_without_heads():
    one = Sentence("", 0, *[tuple("abc")] * 5, (-1, 0, 0), tuple("rst"), tuple("abc"))
    for seed in range(6):
        assert sorted(shuffled_words(one, np.random.default_rng(seed)).heads)[0] == -1
        assert permuted_heads(one, np.random.default_rng(seed)).heads == (-1, 0, 0)
    bare = dataclasses.replace(one, heads=())
    assert shuffled_words(bare, np.random.default_rng(0)).heads == ()


def test_every_number_of_a_table_has_its_n_and_the_figure_its_tables(found, tmp_path, figures):
    write_dependencies(Folder(tmp_path), found, {"permuted-heads": found}, least=5)
    assert [path.name for path in tmp_path.glob("*.png")] == ["dependencies.png"]
    for table in tmp_path.glob("*.tsv"):
        header, *rows = (line.split("\t") for line in table.read_text().splitlines())
        assert header[-1] == "n"
        assert rows
        assert all(len(row) == len(header) and row[-1].isdigit() for row in rows), table.name
    drawn = figures[0].axes[0].images[0].get_array()
    rows = [best for best in found.best if best.n >= 5]
    np.testing.assert_array_equal(drawn, heat_map(found, rows))
    for y, best in enumerate(rows):
        assert drawn[y, 4 * (best.layer - 1) + best.head - 1] == best.accuracy


def test_published_rows_are_listed_with_the_nearest_relation():
    made = dependency_scores(2, 2)

    def beside(*relations: str) -> dict[str, dict[str, object]]:
        best = tuple(dataclasses.replace(made.best[1], relation=relation) for relation in relations)
        rows = published_rows(dataclasses.replace(made, best=best))
        return {str(row[0]): dict(zip(PUBLISHED_COLUMNS, row, strict=True)) for row in rows}

    universal = beside("obj", "case", "obl:unmarked")
    assert len(universal) == 33
    dobj, pobj = universal["dobj"], universal["pobj"]
    theirs = [dobj[f"published_{name}"] for name in ("accuracy", "baseline", "offset", "head", "direction", "n")]
    assert theirs == [0.868, 0.4, "-2", "8-10", DIRECTIONS[0], 1591]
    assert (pobj["published_n"], pobj["published_direction"]) == (3720, DIRECTIONS[1])
    assert universal["all"]["published_n"] == ""
    assert [dobj[name] for name in ("relation", "nearness", "difference", "accuracy", "n")] == ["obj", "same", "", 0.7, 30]
    assert (pobj["relation"], pobj["nearness"]) == ("case", "other")
    assert (universal["tmod"]["relation"], universal["tmod"]["nearness"]) == ("obl:unmarked", "near")
    for relation in ("prep", "prt"):
        assert (universal[relation]["relation"], universal[relation]["head"], universal[relation]["n"]) == ("", "", 0)
    stanford = beside("pobj", "case")["pobj"]
    assert [stanford[name] for name in ("relation", "nearness", "difference")] == ["pobj", "same", ""]


def test_unusable_options_and_treebanks_are_refused(analyser, tmp_path):
    with pytest.raises(UserError, match="control='shuffle' is unknown"):
        Dependencies(control="shuffle")
    with pytest.raises(UserError, match=r"dependencies.reach=0 must be at least 1"):
        Dependencies(reach=0)
    path = tmp_path / "one.conllu"
    path.write_text("\n".join([row(1, "the")] * 40))  # enough to fill a row of the usual length
    with pytest.raises(UserError, match="no word has a syntactic head in the sentences on which attention heads are chosen"):
        analyser.dependencies(path)
    (tmp_path / "bare.conllu").write_text("\n".join([row(1, "the", "_")] * 2))
    for files in (("bare.conllu",), ("one.conllu", "bare.conllu")):
        with pytest.raises(UserError, match=r"bare\.conllu has no sentence that can be read"):
            analyser.dependencies(*(tmp_path / name for name in files))
    path.write_text("\n".join([row(1, "the") + row(2, "cab", 1), row(1, "the")] * 20))
    with pytest.raises(UserError, match="and those on which they are scored have no relation in common"):
        analyser.dependencies(path)
    relations = Relations()
    assert [relations.number(f"r{i}", "") for i in range(MOST_RELATIONS)] == list(range(1, MOST_RELATIONS + 1))
    with pytest.raises(UserError, match="x, line 3: 'det' is relation 256 of this treebank, but at most 255 are supported"):
        relations.number("det", "x, line 3: ")
