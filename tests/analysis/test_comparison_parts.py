"""The parts of a comparison of two models: rows of the same words, masked words, sums over groups of windows."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.analysis.compare import measure as models
from bert_jax.analysis.compare.aligned import WindowPair, aligned_slots, other_batch, own_batch, paired_windows, with_column
from bert_jax.analysis.compare.cka import alignments, biased_hsic, hsic
from bert_jax.analysis.compare.masked import MaskedWords, Predictions
from bert_jax.analysis.compare.measure import Comparing, compare_models, compared_layers
from bert_jax.analysis.windows import Kind, Window, Word
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from tests.analysis.made_up import PREDICTIONS


def pair() -> WindowPair:
    """[CLS] a b [SEP]: of one and two pieces in the first model, of two and one in the second."""

    def window(*pieces: tuple[int, ...]) -> Window:
        kinds = (Kind.CLS, Kind.WORD, Kind.WORD, Kind.SEP)
        return Window(tuple(Word(t, ids, kind) for t, ids, kind in zip("(ab)", pieces, kinds, strict=True)))

    return WindowPair(window((1,), (5,), (6,), (2,)), window((11,), (15,), (16, 17), (12,)))


def test_a_pair_of_rows_is_filled_to_the_same_length_and_says_where_its_masked_words_are():
    item = pair().item((90, 91), masked=(1,), masks=(80, 81))
    assert item.ids == [1, 80, 6, 2, 90]
    assert item.query_positions == (1,)
    assert item.columns == {
        "other_ids": [11, 81, 16, 17, 12],
        "words": [0, 1, 2, 3, 0],
        "other_words": [0, 1, 2, 2, 3],
        "kinds": [3, 1, 1, 4, 0],
        "other_kinds": [3, 1, 1, 1, 4],
        "real": [1, 1, 1, 1, 0],
        "other_real": [1, 1, 1, 1, 1],
        "masked": [0, 1, 0, 0, 0],
        "target": [0, 5, 0, 0, 0],
        "other_target": [0, 15, 0, 0, 0],
        "other_position": [0, 1, 0, 0, 0],
    }
    other_way = WindowPair(pair().other, pair().own).item((90, 91))
    assert (other_way.ids, other_way.columns["other_ids"]) == ([11, 15, 16, 17, 12], [1, 5, 6, 2, 91])
    assert other_way.query_positions == ()
    assert with_column(item, "windows", 7).columns["windows"] == [7] * 5


def test_the_batches_of_both_models_hold_the_same_windows_and_their_words_at_the_same_columns():
    item = pair().item((90, 91))
    batch = {name: jnp.array([values * 2 + [0]], jnp.int32) for name, values in item.columns.items()}
    batch |= {
        "input_ids": jnp.array([[*item.ids] * 2 + [0]], jnp.int32),
        "position_ids": jnp.array([[*range(5)] * 2 + [0]], jnp.int32),
        "sequence_ids": jnp.array([[1] * 5 + [2] * 5 + [0]], jnp.int32),
    }
    own, other = own_batch(batch), other_batch(batch)
    np.testing.assert_array_equal(own["sequence_ids"], [[1, 1, 1, 1, 0, 2, 2, 2, 2, 0, 0]])
    np.testing.assert_array_equal(other["sequence_ids"], batch["sequence_ids"])
    np.testing.assert_array_equal(other["input_ids"], batch["other_ids"])
    np.testing.assert_array_equal(other["token_type_ids"], np.zeros((1, 11)))
    for each, pieces in ((own, [0, 1, 2, 3, None]), (other, [0, 1, 2, 2, 3])):
        slots = aligned_slots(each)
        members = np.zeros((11, 11))
        for start in (0, 5):
            for place, word in enumerate(pieces):
                if word is not None:
                    members[start + place, start + word] = 1
        np.testing.assert_array_equal(slots.members[0], members)
        np.testing.assert_array_equal(slots.sequence, [[1, 1, 1, 1, 0, 2, 2, 2, 2, 0, 0]])
        np.testing.assert_array_equal(slots.number, [[0, 1, 2, 3, 0] * 2 + [0]])
        np.testing.assert_array_equal(slots.kind, [[3, 1, 1, 4, 0] * 2 + [0]])


def test_windows_are_as_full_as_the_shorter_table_allows(analyser):
    sizes = [len(each.own.item().ids) for each in paired_windows(analyser.engine, analyser.engine, "the " * 80)]
    assert sizes == [40, 40, 6]
    (long,) = paired_windows(analyser.engine, analyser.engine, "x" * 90)
    assert len(long.own.item().ids) == 40
    with pytest.raises(UserError, match="holds no token; give text"):
        list(paired_windows(analyser.engine, analyser.engine, " "))


# ------------------------------------------------------------------------------------------------------------------ masked words


def test_words_that_are_one_known_piece_of_both_models_are_masked_at_random_in_each_window_anew(analyser):
    engines = (analyser.engine, analyser.engine)
    (window,) = paired_windows(*engines, "the cab, river \u2603 of Paris!")
    words = window.own.words
    fit = [i for i, word in enumerate(words) if word.text in ("the", "river", "of", "Paris")]
    assert {len(words[i].ids) for i in fit} == {1}
    every = MaskedWords(engines, 1.0, 0, 0)
    assert every.choose(window) == every.choose(window) == fit
    unlike = WindowPair(
        window.own, dataclasses.replace(window.other, words=(*words[:1], Word("the", (5, 6), Kind.WORD), *words[2:]))
    )
    assert every.choose(unlike) == fit[1:]
    half, again = MaskedWords(engines, 0.5, 3, 0), MaskedWords(engines, 0.5, 3, 0)
    chosen = [half.choose(window) for _ in range(20)]
    assert chosen == [again.choose(window) for _ in range(20)]
    assert len({*map(tuple, chosen)}) > 5
    assert 20 < sum(map(len, chosen)) < 60
    assert chosen != [MaskedWords(engines, 0.5, 4, 0).choose(window) for _ in range(20)]


def test_a_model_without_a_head_for_masked_words_predicts_none(analyser):
    asked: list[tuple[str, str, str]] = []

    def engine(name: str) -> Any:
        return types.SimpleNamespace(
            model=analyser.engine.model,
            params={},
            config=analyser.engine.config,
            require_direction=lambda *what: asked.append((name, *what)),
            require=lambda *what: asked.append((name, *what)),
        )

    MaskedWords((engine("a"), engine("b")), 0.5, 0, 0)
    assert asked == [(name, what, "predict masked words") for name in ("a", "b") for what in ("both", "mlm_head")]


# ------------------------------------------------------------------------------------------------------------------------- sums


class Engine:
    """Gives for each batch of windows the numbers of its words, and says what it was asked for."""

    name, params = "m", {}

    def __init__(self, layers: int, heads: int, size: int, words: float = 3.0, total: float = 1.0):
        self.config = ModelConfig(vocab_size=9, num_layers=layers, num_heads=heads, hidden_size=2 * heads, intermediate_size=4)
        self.model = types.SimpleNamespace(tokenizer=types.SimpleNamespace(pad_id=0))
        self.mesh = types.SimpleNamespace(size=size)
        self.require_attention = lambda *_: None
        self.asked: list[tuple[int, int, list[float]]] = []
        self.words, self.total = words, total

    def require_direction(self, *what: str) -> None:
        raise UserError("no head")

    def batches(self, function: Any, items: list[Any], *, plan: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((len(items), plan.sampled, [float(shift.max()) for shift in plan.shifts]))
        n = np.float32(self.words * len(items))

        def products(own: int, other: int, a: int, b: int) -> dict[str, np.ndarray]:
            shapes = {"products": (own, other, a, b), "norms": (own, other), "left": (own, other, a), "right": (own, other, b)}
            return {name: np.full(shape, n, np.float32) for name, shape in shapes.items()}

        layers, widths = [len(each) for each in plan.layers], [4, 2]
        own, other = (
            {**{name: each.diagonal().T if name == "norms" else each[np.arange(s), np.arange(s)] for name, each in
                products(s, s, w, w).items()}, "total": np.full((s, w), n * (k + self.total), np.float32)}
            for k, (s, w) in enumerate(zip(layers, widths, strict=True))
        )  # fmt: skip
        found = {"words": n, "own": own, "other": other, "cross": products(*layers, *widths)}
        if plan.sampled:
            found |= {"sampled": n, "entropies": np.zeros(4), "other_entropies": np.zeros(1), "mixtures": np.full((1, 4), n / 2)}
        yield found


def compared(windows: int = 5, words: float = 3.0, total: float = 1.0, **options: Any) -> tuple[Any, Engine, list[str]]:
    engine, says = Engine(2, 2, 2, words, total), list[str]()
    return compare_models(engine, Engine(1, 1, 1), [pair()] * windows, Comparing(**options), says.append), engine, says


def test_windows_are_summed_in_groups_on_all_devices_and_vectors_less_the_mean_of_the_first(monkeypatch):
    monkeypatch.setattr(models, "WINDOWS", 1)
    found, engine, says = compared(divergence_words=12, sampled=7)
    # the first group twice, for its mean; words are sampled until there are as many as wanted
    assert engine.asked == [(2, 7, [0, 0]), (2, 7, [1, 2]), (2, 7, [1, 2]), (1, 0, [1, 2])]
    assert says == ["6 words", "12 words", "15 words"]
    assert (found.words, found.windows, found.n_divergence) == (15, 5, 12)
    np.testing.assert_allclose(found.divergence.values, np.full((4, 1), 0.5))
    assert (found.predictions, found.missing) == (None, "no head")
    assert (list(found.divergence["head"]), list(found.divergence["other"])) == (["1-1", "1-2", "2-1", "2-2"], ["1-1"])
    assert (list(found.cka["layer"]), list(found.cka["other"])) == ([0, 1, 2], [0, 1])


def test_without_sampled_words_there_is_no_divergence_and_of_one_word_no_alignment():
    found, engine, _ = compared(windows=1, words=1.0, divergence_words=0)
    assert engine.asked == [(1, 0, [0, 0]), (1, 0, [1, 2])]
    assert (found.divergence.shape, found.n_divergence) == ((4, 1), 0)
    assert np.isnan(found.divergence.values).all()
    assert np.isnan(found.cka.values).all()
    assert np.isnan(found.biased_cka.values).all()
    with pytest.raises(UserError, match="there is no word to compare the models on"):
        compared(words=0.0)
    with pytest.raises(UserError, match=r"^m, or m, gives "):
        compared(total=np.inf)


def test_where_no_word_was_masked_there_are_no_predictions_and_the_reason(monkeypatch):
    read: list[Any] = []

    class Masked:
        def __init__(self, *given: Any):
            read.append(given)

        def read(self, pairs: list[WindowPair], start: int) -> None:
            read.append((len(pairs), start))

        def result(self) -> Predictions:
            if read[0][-1] == 20:
                raise UserError("no word")
            return PREDICTIONS

    monkeypatch.setattr(models, "MaskedWords", Masked)
    monkeypatch.setattr(models, "WINDOWS", 1)
    found, engine, _ = compared(windows=3, masked=0.25, seed=4)
    assert (found.predictions, found.missing) == (None, "no word")
    assert (read[0][0][0], read[0][1:], read[1:]) == (engine, (0.25, 4, 20), [(2, 0), (1, 2)])
    read.clear()
    found, _, _ = compared(differences=3)
    assert (found.predictions, found.missing) == (PREDICTIONS, "")


def test_the_estimates_from_sums_are_those_from_the_matrices_of_all_words():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6, 3)) + 1, rng.normal(size=(6, 2)) - 2
    a, b = (x**2).sum(-1), (y**2).sum(-1)
    sums = {"products": x.T @ y, "norms": np.asarray(a @ b), "left": x.T @ b, "right": y.T @ a}
    k, other = (gram - np.diag(np.diag(gram)) for gram in (x @ x.T, y @ y.T))
    unbiased = (np.trace(k @ other) + k.sum() * other.sum() / (5 * 4) - 2 / 4 * (k @ other).sum()) / (6 * 3)
    assert hsic(sums, x.sum(0), y.sum(0), (float(a.sum()), float(b.sum())), 6.0) == pytest.approx(unbiased)
    biased = (((x - x.mean(0)).T @ (y - y.mean(0))) ** 2).sum() / 5**2
    assert biased_hsic(sums, x.sum(0), y.sum(0), 6.0) == pytest.approx(biased)


def test_the_alignment_needs_four_words():
    rng = np.random.default_rng(0)
    for n in (3, 4):
        x = rng.normal(size=(n, 2))
        squares = (x**2).sum(-1)
        one = {"products": x.T @ x, "norms": squares @ squares, "left": x.T @ squares, "right": x.T @ squares}
        own = {**{name: np.asarray(value)[None] for name, value in one.items()}, "total": x.sum(0)[None]}
        cross = {name: np.asarray(value)[None, None] for name, value in one.items()}
        found = np.array(alignments(own, own, cross, float(n)))
        assert np.isnan(found).all() if n == 3 else found[1] == pytest.approx(1)


def test_fewer_layers_are_compared_while_their_products_are_too_large(monkeypatch):
    def config(layers: int) -> Any:
        return types.SimpleNamespace(num_layers=layers, hidden_size=8)

    monkeypatch.setattr(models, "MOST_PRODUCTS", 4 * 8 * 8 * 6)
    assert compared_layers(config(4), config(4)) == ((0, 4), (0, 2, 4))
    assert compared_layers(config(1), config(2)) == ((0, 1), (0, 1, 2))
    monkeypatch.setattr(models, "MOST_PRODUCTS", 1)
    assert compared_layers(config(10), config(0)) == ((0, 3, 7, 10), (0,))


def test_the_differences_that_are_kept_are_the_largest_with_their_place():
    masking = MaskedWords.__new__(MaskedWords)
    masking._n, masking._sums, masking._same, masking._most, masking._differences = 0, np.zeros(5), True, 2, []
    masking._twins = np.array([0, 1, 2])
    masking._tokenizers = tuple(types.SimpleNamespace(pieces=[f"{name}{i}" for i in range(3)]) for name in "ab")
    found = {
        "own": np.array([0, 1, 2]), "other": np.array([0, 2, 2]), "target": np.array([0, 0, 2]),
        "other_target": np.array([1, 2, 2]),
        "kl": np.array([0.5, 2.0, 1.0], np.float32), "other_kl": np.array([0.25, 0.25, 1.0], np.float32),
        "window": np.array([7, 8, 8]), "number": np.array([1, 1, 2]),
    }  # fmt: skip
    masking._add(found, [pair(), pair()], 7)
    masking._add({name: values[:1] for name, values in found.items()} | {"kl": np.float32([1.5])}, [pair()], 7)
    result = masking.result()
    assert result == Predictions(4, 0.75, 0.5, 0.75, 1.25, 0.4375, result.differences)
    assert [(each.context, each.own, each.other, each.kl) for each in result.differences] == [
        ("[a] b", "a1", "b2", 2.0), ("[a] b", "a0", "b0", 1.5),
    ]  # fmt: skip
    masking._n = 0
    with pytest.raises(UserError, match="no word that was masked is one piece"):
        masking.result()
