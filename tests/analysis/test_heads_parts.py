"""What is summed over batches for the statistics of heads, and what becomes of the sums."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.analysis.heads import measure as statistics
from bert_jax.analysis.heads.measure import Heads, head_sums, measure_heads
from bert_jax.analysis.windows import Kind, Window, Word
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig


def window() -> Window:
    kinds = (Kind.CLS, Kind.WORD, Kind.WORD, Kind.PUNCTUATION, Kind.SEP)
    return Window(tuple(Word(t, (i,), kind) for i, (t, kind) in enumerate(zip("(ab.)", kinds, strict=True))))


class Engine:
    """Gives sums for each group of windows and says what it was asked for."""

    name = "m"

    def __init__(self, **changes: Any):
        self.config = ModelConfig(vocab_size=9, num_layers=2, num_heads=1, hidden_size=2, intermediate_size=4)
        self.mesh = types.SimpleNamespace(size=2)
        self.require_attention = lambda *_: None
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.changes = changes

    def batches(self, function: Any, items: list[Any], **options: Any) -> Iterator[dict[str, np.ndarray]]:
        assert function is head_sums
        self.asked.append((len(items), options))
        n = np.float32(3 * len(items))
        sums = {
            "words": n,
            "entropy": n * np.array([[1], [2]], np.float32),
            "relations": n * np.arange(12, dtype=np.float32).reshape(2, 1, 6) / 12,
            "uniform_entropy": n * np.float32(1.5),
            "uniform": n * np.arange(6, dtype=np.float32) / 10,
            "counts": n * np.array([9, 9, 9, 0.5, 1, 0.25], np.float32),
        }
        if options["sampled"]:
            mixtures = n * np.array([[0.25, 0.5], [1.0, 1.0]], np.float32)
            sums |= {"mixtures": mixtures, "sampled": n}
        yield dict(sorted({**sums, **self.changes}.items()))


def test_windows_are_summed_in_groups_on_all_devices_until_enough_words_are_sampled(monkeypatch):
    monkeypatch.setattr(statistics, "WINDOWS", 1)
    engine, says = Engine(), list[str]()
    found = measure_heads(engine, [window()] * 5, Heads(reach=1, divergence_words=12, sampled=7, in_words=False), says.append)
    usual = {"reach": 1, "in_words": False}
    assert engine.asked == [(2, {**usual, "sampled": 7}), (2, {**usual, "sampled": 7}), (1, {**usual, "sampled": 0})]
    assert says == ["6 words", "12 words", "15 words"]
    assert (found.windows, found.n_divergence) == (5, 12)
    np.testing.assert_allclose(found.divergence.values, [[0, 0.625], [0.625, 0]])
    statistic = {name: found.statistics.sel(statistic=name).values[:, 0].tolist() for name in found.statistics["statistic"]}
    # a kind's mean is over all words, a distance's over the words that have one there
    expected = {"entropy": [1, 2], "cls": [0, 0.5], "sep": [1 / 12, 7 / 12], "punctuation": [2 / 12, 8 / 12]}
    expected |= {"self": [4 / 12, 10 / 12], "previous": [6 / 12, 18 / 12], "next": [20 / 12, 44 / 12]}
    assert {name: pytest.approx(values) for name, values in expected.items()} == statistic
    np.testing.assert_allclose(found.uniform.values, [1.5, 0, 0.1, 0.2, 0.4, 0.6, 2.0])
    assert found.n.values.tolist() == [15, 15, 15, 15, 15, 8, 4]
    assert found.n_profile.values.tolist() == [8, 15, 4]
    np.testing.assert_allclose(found.uniform_profile.values, [0.6, 0.4, 2.0])
    np.testing.assert_allclose(found.profile.values[:, 1, 0], [18 / 12, 10 / 12, 44 / 12])


def test_without_sampled_words_there_is_no_divergence():
    engine = Engine()
    found = measure_heads(engine, [window()], Heads(reach=1, divergence_words=0))
    assert engine.asked[0][1]["sampled"] == found.n_divergence == 0
    assert np.isnan(found.divergence.values).all()
    assert found.divergence.shape == (2, 2)


def test_heads_are_measured_on_words_and_by_finite_numbers():
    for windows, changes in (([], {}), ([window()], {"words": np.float32(0)})):
        with pytest.raises(UserError, match="there is no word to measure attention on; give text"):
            measure_heads(Engine(**changes), windows, Heads(reach=1))
    for name in ("entropy", "mixtures"):
        with pytest.raises(UserError, match=r"^m gives "):
            measure_heads(Engine(**{name: np.full((2, 2), np.nan, np.float32)}), [window()], Heads(reach=1))
