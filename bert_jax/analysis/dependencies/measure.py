"""Heads against the dependency relations of a treebank: chosen on some sentences, measured on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import numpy as np
from annotated_types import Interval
from jaxtyping import Float64, Int64

from bert_jax.analysis.bootstrap import ResampledSums, interval
from bert_jax.analysis.controls import CONTROLS, engine_with_random_weights, permuted_heads, shuffled_words
from bert_jax.analysis.dependencies.hits import DIRECTIONS, MOST_RELATIONS, PICKS, Dependents, HitCounts, Relations, count_hits
from bert_jax.analysis.named import Axes, NamedArray
from bert_jax.analysis.progress import Show, in_silence
from bert_jax.analysis.treebank import Treebank
from bert_jax.errors import UserError, nearest
from bert_jax.interface.ranges import CountOrZero, check_ranges
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine
from bert_jax.tasks.readers.conllu import Sentence

WHOLE = "all"
"""The group of all relations but punctuation; the root has no head, and is never counted."""
PUNCTUATION = "punct"
REPLICATES = Interval(ge=100, le=100_000)
OFFSETS = Interval(ge=1, le=128)


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """The options of the verb `dependencies`."""

    reach: Annotated[int, OFFSETS] = 10
    """The farthest fixed offset of the baseline, in words."""
    replicates: Annotated[int, REPLICATES] = 1000
    """Replicates of the bootstrap over sentences."""
    control: str = ""
    """One of CONTROLS; none if it is empty."""
    seed: CountOrZero = 0
    """Of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "dependencies")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"dependencies.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


@dataclasses.dataclass(frozen=True)
class Best:
    """The head that was chosen for a relation, and the offset, with their accuracies on other sentences."""

    relation: str
    direction: str
    layer: int
    head: int
    accuracy: float
    low: float
    high: float
    """The ends of the 95 % interval of the accuracy, from the bootstrap over sentences."""
    offset: int
    """Of the head from the dependent: 1 is the next word."""
    baseline: float
    """The accuracy of the offset."""
    gain_low: float
    gain_high: float
    """The ends of the interval of accuracy - baseline."""
    n: int
    """The number of dependents."""
    chosen_at: float
    """The accuracy on the sentences that the head was chosen on."""
    n_choosing: int

    @property
    def name(self) -> str:
        """The name of the head, as in the papers."""
        return f"{self.layer}-{self.head}"

    @property
    def beats_offset(self) -> bool:
        """Whether the interval of the gain lies above 0."""
        return self.gain_low > 0


@dataclasses.dataclass(frozen=True, eq=False)
class DependencyScores:
    """Accuracies of all heads by relation. A relation with subtypes has a row for each ("nsubj", "nsubj:pass") and one for all of
    them ("nsubj:*"); "all" are all but punctuation. NaN where there is no dependent."""

    best: tuple[Best, ...]
    """The relations that both parts of the sentences hold, "all" first, then by falling n."""
    accuracy: NamedArray
    """[relation, direction, layer, head] on the sentences that are reported."""
    choosing: NamedArray
    """[relation, direction, layer, head] on those that the heads are chosen on."""
    baseline: NamedArray
    """[relation, offset] on the sentences that are reported."""
    n: NamedArray
    """[relation]: the number of dependents that are reported."""
    n_choosing: NamedArray
    """[relation]: the number that the heads are chosen on."""
    replicates: NamedArray
    """[relation, replicate]: the accuracy of the chosen head in the replicates of the bootstrap. Those of two models, or of a
    model and a control, are pairs, if sentences and seed are the same."""
    sentences: int
    """The number of sentences that are reported."""
    sentences_choosing: int
    across: int
    """Dependents of both parts that are left out, since their head is in another window of a sentence that is cut."""


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """The choices made on the first sentences."""

    relations: Relations
    groups: tuple[str, ...]
    """The names of the groups of relations."""
    of_relation: Int64[np.ndarray, "relations 3"]
    """For each relation the indices of its groups of PICKS; -1 for none."""
    heads: Int64[np.ndarray, " groups"]
    """For each group the index of the chosen head in a flat [2, N, H]."""
    offsets: Int64[np.ndarray, " groups"]
    found: HitCounts


def score_dependencies(
    engine: Engine, treebank: Treebank, choosing: Treebank | None, options: Dependencies, progress: Show = in_silence
) -> DependencyScores:
    """The heads that find the relations of a treebank, chosen on those of `choosing`; None: on every other sentence of the
    treebank, from the first on. `progress` gives for each file a function that shows a note.

    Raises UserError for a model without attention, where a part has no word with a head, and where no relation is in both.
    """
    engine.require_attention("that could find relations")
    engine = controlled_engine(engine, options)
    with progress(choosing or treebank) as say:
        chosen = choose_heads(engine, choosing or treebank.half(0), options, say)
    with progress(treebank) as say:
        return report_heads(engine, treebank if choosing else treebank.half(1), chosen, options, say)


def controlled_engine(engine: Engine, options: Dependencies) -> Engine:
    """The engine to measure with: that of a model with random weights for that control, else the same."""
    return engine_with_random_weights(engine, options.seed) if options.control == "random-weights" else engine


def choose_heads(
    engine: Engine, sentences: Iterable[Sentence], options: Dependencies, say: Callable[[str], None] = lambda note: None
) -> Chosen:
    """The best head and the best offset of each group of relations on `sentences`; of equal ones the first.

    `say` is told the number of dependents so far. Raises UserError where there is no dependent.
    """
    relations = Relations()
    found = count_hits(engine, _controlled(sentences, options, 1), relations, options.reach, use=_telling(say))
    if not found.counts.any():
        raise UserError("the sentences that heads are chosen on hold no word with a head; give more sentences")
    groups, of_relation = _groups(relations.names)
    members = _members(of_relation, len(groups))
    offsets = (members @ found.distances).argmax(1) - options.reach
    heads = (members @ found.hits.reshape(-1, MOST_RELATIONS + 1).T).argmax(1)
    return Chosen(relations, groups, of_relation, heads, offsets, found)


def report_heads(
    engine: Engine,
    sentences: Iterable[Sentence],
    chosen: Chosen,
    options: Dependencies,
    say: Callable[[str], None] = lambda note: None,
) -> DependencyScores:
    """The accuracies on `sentences`, which are others than those that were chosen on; with intervals for the chosen heads.

    Raises UserError where no relation is in both.
    """
    picks = np.where(chosen.of_relation >= 0, chosen.heads[chosen.of_relation] + 1, 0)
    sums = ResampledSums((3, len(chosen.groups)), seed=options.seed, replicates=options.replicates)
    tell = _telling(say)

    def use(found: HitCounts, dependents: Dependents) -> None:
        tell(found, dependents)
        sums.add(*_by_sentence(chosen, dependents))

    found = count_hits(engine, _controlled(sentences, options, 2), chosen.relations, options.reach, picks, use)
    scores = _scores(engine, chosen, found, sums, options)
    if not scores.best:
        raise UserError("no relation is both in the sentences that heads are chosen on and in the others; give more sentences")
    return scores


def _controlled(sentences: Iterable[Sentence], options: Dependencies, part: int) -> Iterator[Sentence]:
    change = {"shuffled-words": shuffled_words, "permuted-heads": permuted_heads}.get(options.control)
    for number, sentence in enumerate(sentences):
        yield change(sentence, np.random.default_rng((options.seed, part, number))) if change else sentence


def _telling(say: Callable[[str], None]) -> Callable[[HitCounts, Dependents], None]:
    return lambda found, dependents: say(counted(int(found.counts.sum()), "dependent"))


def _groups(names: list[str]) -> tuple[tuple[str, ...], Int64[np.ndarray, "relations 3"]]:
    """(the names of all groups, for each relation the indices of its groups of PICKS)."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition(":")[0], []).append(name)
    groups = (WHOLE, *names, *(f"{family}:*" for family, members in families.items() if len(members) > 1))
    place = {name: i for i, name in enumerate(groups)}
    of_relation = np.full((MOST_RELATIONS + 1, len(PICKS)), -1, np.int64)
    of_relation[1:, 2] = 0  # a relation that only the sentences to report hold belongs to the whole
    for number, name in enumerate(names, 1):
        family = place.get(f"{name.partition(':')[0]}:*", -1)
        of_relation[number] = place[name], family, -1 if name == PUNCTUATION else 0
    return groups, of_relation


def _members(of_relation: Int64[np.ndarray, "relations 3"], count: int) -> Int64[np.ndarray, "groups relations"]:
    """1 where a relation belongs to a group."""
    return (of_relation.T[None] == np.arange(count)[:, None, None]).any(1).astype(np.int64)


def _by_sentence(
    chosen: Chosen, dependents: Dependents
) -> tuple[Int64[np.ndarray, " units"], Int64[np.ndarray, "units 3 groups"]]:
    """(the sentences of a batch, for each the dependents of every group, those that the chosen head finds and those that the
    chosen offset finds)."""
    units, unit = np.unique(dependents.sentence, return_inverse=True)
    values = np.zeros((len(units), 3, len(chosen.groups)), np.int64)
    for pick, group in enumerate(chosen.of_relation[dependents.relation].T):
        at_offset = dependents.distance == chosen.offsets[group]
        for row, value in enumerate((np.ones_like(at_offset), dependents.hits[:, pick], at_offset)):
            np.add.at(values, (unit[group >= 0], row, group[group >= 0]), value[group >= 0])
    return units, values


def _scores(engine: Engine, chosen: Chosen, found: HitCounts, sums: ResampledSums, options: Dependencies) -> DependencyScores:
    config, members = engine.config, _members(chosen.of_relation, len(chosen.groups))
    relation: Axes = {"relation": chosen.groups}
    layers, heads = range(1, config.num_layers + 1), range(1, config.num_heads + 1)
    every: Axes = {**relation, "direction": DIRECTIONS, "layer": layers, "head": heads}
    n, n_choosing = members @ found.counts, members @ chosen.found.counts

    def accuracies(counts: HitCounts) -> Float64[np.ndarray, "groups 2 N H"]:
        hits = np.moveaxis(counts.hits, -1, 0).reshape(MOST_RELATIONS + 1, -1)
        return _shares(members @ hits, members @ counts.counts).reshape(-1, *counts.hits.shape[:-1])

    with np.errstate(invalid="ignore"):  # a replicate may hold no dependent of a rare relation
        of_head, of_offset = sums.replicates[1:] / sums.replicates[0]
    choosing, accuracy = accuracies(chosen.found), accuracies(found)
    baseline = _shares(members @ found.distances, n)
    low, high = interval(of_head)
    gain_low, gain_high = interval(of_head - of_offset)
    best = []
    for g in sorted(np.flatnonzero((n > 0) & (n_choosing > 0)), key=lambda g: (g != 0, -n[g])):
        direction, layer, head = np.unravel_index(chosen.heads[g], choosing.shape[1:])
        at = (g, direction, layer, head)
        best.append(
            Best(
                relation=chosen.groups[g],
                direction=DIRECTIONS[direction],
                layer=int(layer) + 1,
                head=int(head) + 1,
                accuracy=float(accuracy[at]),
                low=float(low[g]),
                high=float(high[g]),
                offset=int(chosen.offsets[g]),
                baseline=float(baseline[g, chosen.offsets[g] + options.reach]),
                gain_low=float(gain_low[g]),
                gain_high=float(gain_high[g]),
                n=int(n[g]),
                chosen_at=float(choosing[at]),
                n_choosing=int(n_choosing[g]),
            )
        )
    return DependencyScores(
        best=tuple(best),
        accuracy=NamedArray(accuracy, every),
        choosing=NamedArray(choosing, every),
        baseline=NamedArray(baseline, {**relation, "offset": range(-options.reach, options.reach + 1)}),
        n=NamedArray(n, relation),
        n_choosing=NamedArray(n_choosing, relation),
        replicates=NamedArray(of_head, {**relation, "replicate": range(options.replicates)}),
        sentences=found.sentences,
        sentences_choosing=chosen.found.sentences,
        across=found.across + chosen.found.across,
    )


def _shares(hits: Int64[np.ndarray, "groups _"], n: Int64[np.ndarray, " groups"]) -> Float64[np.ndarray, "groups _"]:
    with np.errstate(invalid="ignore"):
        return np.asarray(hits / n[:, None], np.float64)
