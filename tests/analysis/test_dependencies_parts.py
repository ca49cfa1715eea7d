"""What is chosen on some sentences and reported on others, on counts made up here."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from typing import Any

import numpy as np
import pytest

from bert_jax.analysis.bootstrap import poisson_weights
from bert_jax.analysis.controls import permuted_heads, shuffled_words
from bert_jax.analysis.dependencies import measure
from bert_jax.analysis.dependencies.measure import DIRECTIONS, MOST_RELATIONS, Dependencies, Dependents, HitCounts, Relations
from bert_jax.model.config import ModelConfig
from bert_jax.tasks.readers.conllu import Sentence
from tests.analysis.made_up import dependency_scores

RELATIONS = ("obl:a", "obl:b", "det", "punct")
REACH = 2
HEADS = 2 * 2 * 3
"""Directions x layers x heads."""


class Counted:
    """In the place of `count_hits`: the sums over made-up dependents, given in two batches."""

    def __init__(self, seed: int, size: int = 240):
        rng = np.random.default_rng(seed)
        self.relation = rng.integers(1, 5, size)
        self.sentence = np.sort(rng.integers(0, 12, size))
        self.distance = rng.integers(-3, 4, size)
        self.found = rng.random((size, HEADS)) < rng.random((5, HEADS))[self.relation]  # by each head
        self.sentences: list[Sentence] = []

    def __call__(
        self, engine: Any, sentences: Any, relations: Relations, reach: int, picks: Any = None, use: Any = None
    ) -> HitCounts:
        self.sentences = list(sentences)
        for name in RELATIONS:
            relations.number(name, "")
        size = MOST_RELATIONS + 1
        found = HitCounts(
            np.zeros((2, 2, 3, size), np.int64), np.zeros((size, 2 * reach + 1), np.int64), np.zeros(size, np.int64), 12, 3
        )
        for batch in (slice(0, 40), slice(40, None)):
            relation, distance, hits = self.relation[batch], self.distance[batch], self.found[batch]
            for r, d, row in zip(relation, distance, hits, strict=True):
                found.hits[..., r] += row.reshape(2, 2, 3)
                found.counts[r] += 1
                if abs(d) <= reach:
                    found.distances[r, d + reach] += 1
            picked = np.zeros((len(relation), 3), np.int64)
            if picks is not None:
                for i, r in enumerate(relation):
                    picked[i] = [pick > 0 and hits[i, pick - 1] for pick in picks[r]]
            use(found, Dependents(self.sentence[batch], relation, distance, picked))
        return found

    def members(self, group: str) -> np.ndarray:
        names = np.array(("", *RELATIONS))[self.relation]
        if group == "all":
            return names != "punct"
        return np.char.startswith(names, group[:-1]) if group.endswith("*") else names == group


ENGINE = types.SimpleNamespace(
    config=ModelConfig(vocab_size=9, num_layers=2, num_heads=3, hidden_size=6, intermediate_size=4),
    require_attention=lambda *_: None,
)
SENTENCE = Sentence("", 0, *[tuple("abcdef")] * 5, (1, -1, 1, 2, 2, 0), tuple("rstuvw"), tuple("abcdef"))


def scored(
    monkeypatch: pytest.MonkeyPatch, choosing: Counted, reported: Counted, options: Dependencies, says: list[str] | None = None
) -> measure.DependencyScores:
    """The scores of a treebank of 3 sentences whose halves hold the made-up dependents."""
    parts = iter((choosing, reported))
    monkeypatch.setattr(measure, "count_hits", lambda *given, **use: next(parts)(*given, **use))
    treebank: Any = types.SimpleNamespace(half=lambda which: [SENTENCE] * 3)
    say = [] if says is None else says
    return measure.score_dependencies(ENGINE, treebank, None, options, lambda file: contextlib.nullcontext(say.append))


def test_the_chosen_heads_and_offsets_have_their_shares_and_the_intervals_of_a_bootstrap_over_sentences(monkeypatch):
    choosing, reported = Counted(0), Counted(1)
    options, says = Dependencies(reach=REACH, replicates=200, seed=3), list[str]()
    found = scored(monkeypatch, choosing, reported, options, says)
    assert says == ["40 dependents", "240 dependents"] * 2
    assert [best.relation for best in found.best] == sorted(
        ("all", *RELATIONS, "obl:*"), key=lambda group: (group != "all", -reported.members(group).sum())
    )
    assert (found.sentences, found.sentences_choosing, found.across) == (12, 12, 6)
    offsets = np.arange(-REACH, REACH + 1)
    weights = poisson_weights(3, range(12), 200)
    for best in found.best:
        first, own = choosing.members(best.relation), reported.members(best.relation)
        head = int(choosing.found[first].sum(0).argmax())
        direction, layer, number = np.unravel_index(head, (2, 2, 3))
        assert (best.direction, best.layer, best.head, best.name) == (
            DIRECTIONS[direction],
            layer + 1,
            number + 1,
            f"{layer + 1}-{number + 1}",
        )
        at = [(choosing.distance[first] == each).sum() for each in offsets]
        offset = int(offsets[at.index(max(at))])
        hit, at_offset = reported.found[own, head], reported.distance[own] == offset
        assert (best.offset, best.n, best.n_choosing) == (offset, own.sum(), first.sum())
        assert (best.accuracy, best.baseline, best.chosen_at) == pytest.approx(
            (hit.mean(), at_offset.mean(), choosing.found[first, head].mean())
        )
        of_sentence = [np.bincount(reported.sentence[own], value, 12) for value in (np.ones(own.sum()), hit, at_offset)]
        n, hits, offs = (values @ weights for values in of_sentence)
        ends = np.quantile(hits / n, (0.025, 0.975)), np.quantile((hits - offs) / n, (0.025, 0.975))
        assert (best.low, best.high, best.gain_low, best.gain_high) == pytest.approx((*ends[0], *ends[1]), abs=1e-6)
        np.testing.assert_allclose(found.replicates.sel(relation=best.relation).values, hits / n, rtol=1e-6)


def test_the_choice_of_heads_and_offsets_does_not_see_the_sentences_that_are_reported(monkeypatch):
    """With other sentences to report, in which each head finds what it did not and the dependents stand elsewhere, heads and
    offsets are the same."""
    adverse = Counted(1)
    adverse.found, adverse.distance = ~adverse.found, -adverse.distance
    options = Dependencies(reach=REACH, replicates=100)
    found = [scored(monkeypatch, Counted(0), reported, options) for reported in (Counted(1), adverse)]
    chosen = [{b.relation: (b.direction, b.name, b.offset, b.chosen_at, b.n_choosing) for b in some.best} for some in found]
    assert chosen[0] == chosen[1]
    for some in found:
        others = [best.relation for best in some.best if some.accuracy.sel(relation=best.relation).values.max() > best.accuracy]
        offsets = [best.relation for best in some.best if some.baseline.sel(relation=best.relation).values.max() > best.baseline]
        assert others, "another head is the best of the reported sentences"
        assert offsets, "another offset is the best of the reported sentences"


def test_a_relation_belongs_to_itself_its_family_and_the_whole_but_for_punctuation():
    groups, of_relation = measure._groups(["obl:a", "det", "punct", "obl:b"])
    assert groups == ("all", "obl:a", "det", "punct", "obl:b", "obl:*")
    assert of_relation[:6].tolist() == [[-1, -1, -1], [1, 5, 0], [2, -1, 0], [3, -1, -1], [4, 5, 0], [-1, -1, 0]]
    assert of_relation.shape == (MOST_RELATIONS + 1, 3)


def test_a_relation_that_one_part_alone_holds_is_not_among_the_best(monkeypatch):
    parts = []
    for seed, missing in ((0, 3), (1, 4)):
        part = Counted(seed)
        part.relation[part.relation == missing] = 1
        parts.append(part)
    found = scored(monkeypatch, *parts, Dependencies(reach=REACH, replicates=100))
    assert {best.relation for best in found.best} == {"all", "obl:a", "obl:b", "obl:*"}
    assert found.n.sel(relation="punct").values == found.n_choosing.sel(relation="det").values == 0
    assert np.isnan(found.accuracy.sel(relation="punct").values).all()


@pytest.mark.parametrize(("control", "change"), [("shuffled-words", shuffled_words), ("permuted-heads", permuted_heads)])
def test_a_control_changes_each_sentence_by_its_seed_part_and_number(monkeypatch, control, change):
    parts = Counted(0), Counted(1)
    scored(monkeypatch, *parts, Dependencies(reach=REACH, replicates=100, control=control, seed=5))
    for number, part in enumerate(parts, 1):
        assert part.sentences == [change(SENTENCE, np.random.default_rng((5, number, i))) for i in range(3)]


def test_a_head_beats_its_offset_if_the_interval_of_the_gain_is_above_nothing():
    best = dependency_scores(1, 2).best[0]
    for low, beats in ((-0.1, False), (0.0, False), (0.01, True), (1.0, True)):
        assert dataclasses.replace(best, gain_low=low).beats_offset == beats
