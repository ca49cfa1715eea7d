"""Heads against the dependency relations of a treebank: chosen on some sentences, measured on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Bool, Float, Float64, Int64

from bert_jax.analysis.bootstrap import Replicates, ResampledSums, interval
from bert_jax.analysis.controls import CONTROLS, engine_with_random_weights, permuted_heads, shuffled_words
from bert_jax.analysis.maps import Batch, Params, layer_maps, word_slots
from bert_jax.analysis.named import Axes, NamedArray
from bert_jax.analysis.reading import Show, Treebank, in_silence
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import flag
from bert_jax.interface.ranges import CountOrZero, check_ranges
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import NOT_FINITE
from bert_jax.tasks.readers.conllu import Sentence

DIRECTIONS = ("dependent -> head", "head -> dependent")
MOST_RELATIONS = 255
"""Relations of a treebank; those of Universal Dependencies with the subtypes of one language are about 60."""
PICKS = ("own", "family", "whole")
"""A dependent belongs to these groups of relations: its own, that of all subtypes of its relation, and that of all relations."""


class Relations:
    """The relations in the order in which they were met: number 1 is the first; 0 stands for a word that is not counted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str, place: str) -> int:
        """The number of a relation. Raises UserError for more than MOST_RELATIONS."""
        if name not in self._numbers:
            if len(self.names) == MOST_RELATIONS:
                raise UserError(
                    f"{place}{name!r} is relation {MOST_RELATIONS + 1} of this treebank, and {MOST_RELATIONS} is the most; "
                    "correct the relations (column 8)"
                )
            self.names.append(name)
            self._numbers[name] = len(self.names)
        return self._numbers[name]


@dataclasses.dataclass(frozen=True, eq=False)
class Dependents:
    """Counted dependents of one batch, one entry each in every array."""

    sentence: Int64[np.ndarray, " dependents"]
    """The number of its sentence."""
    relation: Int64[np.ndarray, " dependents"]
    distance: Int64[np.ndarray, " dependents"]
    """From the dependent to its head, in words: 1 is the next word."""
    hits: Int64[np.ndarray, "dependents 3"]
    """For each group of PICKS 1 if the head that was picked for the group finds the head of the dependent."""


@dataclasses.dataclass
class HitCounts:
    """The sums over the dependents of some sentences, by the number of their relation."""

    hits: Int64[np.ndarray, "2 N H relations"]
    """By direction, layer and head."""
    distances: Int64[np.ndarray, "relations _"]
    """The number of dependents at each distance of their head, from -reach to reach."""
    counts: Int64[np.ndarray, " relations"]
    """The number of dependents."""
    sentences: int = 0
    across: int = 0
    """Dependents that are not counted, since their head is in another window of a sentence that is cut."""


def count_hits(
    engine: Engine,
    sentences: Iterable[Sentence],
    relations: Relations,
    reach: int,
    picks: Int64[np.ndarray, "relations 3"] | None = None,
    use: Callable[[HitCounts, Dependents], object] = lambda found, dependents: None,
) -> HitCounts:
    """The sums over `sentences`, which are read as they are needed.

    picks: for each relation the heads that are picked for its groups, as indices of a flat [2, N, H] plus 1; 0 for none.
    use: is called after each batch with the sums so far and the dependents of the batch.
    Raises UserError where the model gives numbers that are not finite.
    """
    config, size = engine.config, MOST_RELATIONS + 1
    found = HitCounts(
        hits=np.zeros((len(DIRECTIONS), config.num_layers, config.num_heads, size), np.int64),
        distances=np.zeros((size, 2 * reach + 1), np.int64),
        counts=np.zeros(size, np.int64),
    )
    picked = np.zeros((size, len(PICKS)), np.int64) if picks is None else picks
    items = _items(engine, sentences, relations, picked, found)
    for batch in engine.batches(dependency_hits, items):
        if not batch["finite"]:
            raise UserError(f"{engine.name} gives {NOT_FINITE}")
        there = batch["relation"] > 0
        dependents = Dependents(*(batch[field.name][there].astype(np.int64) for field in dataclasses.fields(Dependents)))
        found.hits += batch["sums"].astype(np.int64)
        found.counts += np.bincount(dependents.relation, minlength=size)
        near = np.abs(dependents.distance) <= reach
        np.add.at(found.distances, (dependents.relation[near], dependents.distance[near] + reach), 1)
        use(found, dependents)
    return found


def _items(
    engine: Engine,
    sentences: Iterable[Sentence],
    relations: Relations,
    picked: Int64[np.ndarray, "relations 3"],
    found: HitCounts,
) -> Iterator[Item]:
    """The windows of all sentences with the columns of `dependency_hits`; counts sentences and pairs across windows."""
    of_pairs = engine.config.has_segments
    for number, sentence in enumerate(sentences):
        found.sentences += 1
        for window in word_windows(engine, sentence.words):
            item = window.item(of_pairs)
            inside = range(window.start, window.start + len(window.words) - 2)
            heads, own = _dependents(sentence, inside, relations)
            found.across += sum(sentence.heads[i] >= 0 for i in inside) - int(np.count_nonzero(own))
            word = np.array(item.columns["words"])
            columns = {"heads": heads[word], "relations": own[word], "sentences": np.full(len(word), number)}
            columns |= dict(zip(PICKS, picked[own[word]].T, strict=True))
            further = {name: values.tolist() for name, values in columns.items()}
            yield dataclasses.replace(item, columns={**item.columns, **further})


def _dependents(sentence: Sentence, inside: range, relations: Relations) -> tuple[np.ndarray, np.ndarray]:
    """(the number of the head's word in the window, the number of the relation) of each word of a window, [CLS] and [SEP] among
    them; 0 for the root, and where the head is not in the window."""
    heads, own = np.zeros((2, len(inside) + 2), np.int64)
    for word, i in enumerate(inside, 1):
        if sentence.heads[i] in inside:
            heads[word] = sentence.heads[i] - inside.start + 1
            own[word] = relations.number(sentence.relations[i], sentence.place)
    return heads, own


@compiled
def dependency_hits(params: Params, batch: Batch, *, config: ModelConfig) -> dict[str, Array]:
    """The hits of all heads, summed over a batch, and those of the heads that are picked for each dependent.

    The batch has the columns of words, and: "heads", the number of the head's word in the window; "relations", 0 for a word that
    is not counted; those of PICKS; "sentences". Returns sums int32 [2, N, H, relations]; relation [B, Z], 0 where none is
    counted; sentence and distance [B, Z]; hits [B, Z, 3]; finite [].
    """
    slots = word_slots(batch)
    maps = layer_maps(params, batch, slots, config, True)
    relation = jnp.where(slots.of_text, batch["relations"], 0)
    of_text = slots.together & slots.of_text[:, :, None] & slots.of_text[:, None, :]
    others = of_text & (slots.number[:, :, None] != slots.number[:, None, :])
    gold = others & (slots.number[:, None, :] == batch["heads"][:, :, None])  # nothing where it is 0, the number of [CLS]
    hits = jnp.stack([jnp.stack([finds(layer, gold, others, to) for layer in maps]) for to in (3, 2)])  # [2, N, B, H, Z]
    of_relation = jax.nn.one_hot(relation, MOST_RELATIONS + 1, dtype=jnp.float32)
    flat = hits.swapaxes(2, 3).reshape(-1, *relation.shape)
    picked = [jnp.take_along_axis(flat, (batch[name] - 1)[None], 0).squeeze(0) & (batch[name] > 0) for name in PICKS]
    return {
        "sums": jnp.tensordot(hits.astype(jnp.float32), of_relation, axes=((2, 4), (0, 1))).astype(jnp.int32),
        "relation": relation,
        "sentence": batch["sentences"],
        "distance": batch["heads"] - slots.number,
        "hits": jnp.stack(picked, axis=-1).astype(jnp.int32),
        "finite": jnp.isfinite(jnp.stack([layer.sum() for layer in maps])).all(),
    }


def finds(
    attention: Float[Array, "B H Z Z"], gold: Bool[Array, "B Z Z"], others: Bool[Array, "B Z Z"], axis: int
) -> Bool[Array, "B H Z"]:
    """Whether the weight between a word and its head, `gold` [.., word, head], is more than that of each other of its `others`.

    axis: that of the heads in `attention`; 3, where words attend to their heads, or 2, where heads attend to words.
    """
    rest = others & ~gold
    place = gold.argmax(2)
    if axis == 2:
        rest = rest.swapaxes(1, 2)
    own = jnp.take_along_axis(attention, jnp.expand_dims(place[:, None], axis), axis).squeeze(axis)
    most = jnp.where(rest[:, None], attention, -jnp.inf).max(axis)
    return (own > most) & gold.any(2)[:, None]


WHOLE = "all"
"""The group of all relations but punctuation; the root has no head, and is never counted."""
PUNCTUATION = "punct"


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """The options of the verb `dependencies`."""

    reach: Annotated[int, Interval(ge=1, le=128)] = flag(10, "of offsets (10)", "WORDS")
    """The farthest fixed offset of the baseline, in words."""
    replicates: Replicates = flag(1000, "of the bootstrap (1000)", "N")
    """Replicates of the bootstrap over sentences."""
    control: str = ""
    """One of CONTROLS; none if it is empty."""
    seed: CountOrZero = flag(0, "of bootstrap and controls (0)", "N")
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
