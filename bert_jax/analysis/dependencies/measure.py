"""Scores attention heads on the dependency relations of a treebank. Heads are chosen on some sentences and scored on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int64

from bert_jax.analysis.bootstrap import ResampledSums, interval
from bert_jax.analysis.controls import engine_with_random_weights, permuted_heads, shuffled_words
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.maps import Batch, Params, layer_maps, word_slots
from bert_jax.analysis.named_array import Axes, NamedArray
from bert_jax.analysis.reading import Show, Treebank, in_silence
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import NOT_FINITE
from bert_jax.tasks.readers.conllu import Sentence

DIRECTIONS = ("dependent -> head", "head -> dependent")
MOST_RELATIONS = 255
"""The maximum number of relations in a treebank. Universal Dependencies has about 60, including the subtypes of one language."""
PICKS = ("own", "family", "whole")
"""The groups to which a dependent belongs: its relation, its relation with all subtypes, and all relations."""


class Relations:
    """Numbers the relations from 1 in order of appearance. Index 0 marks words that are not counted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str, place: str) -> int:
        """Returns the index of a relation. Raises UserError if there are more than MOST_RELATIONS."""
        if name not in self._numbers:
            if len(self.names) == MOST_RELATIONS:
                raise UserError(
                    f"{place}{name!r} is relation {MOST_RELATIONS + 1} of this treebank, but at most {MOST_RELATIONS} are "
                    "supported; correct the relations (column 8)"
                )
            self.names.append(name)
            self._numbers[name] = len(self.names)
        return self._numbers[name]


@dataclasses.dataclass(frozen=True, eq=False)
class Dependents:
    """The counted dependents of one batch. Every array has one entry per dependent."""

    sentence: Int64[np.ndarray, " dependents"]
    """The index of the dependent's sentence."""
    relation: Int64[np.ndarray, " dependents"]
    distance: Int64[np.ndarray, " dependents"]
    """The distance from the dependent to its head, in words. The next word has distance 1."""
    hits: Int64[np.ndarray, "dependents 3"]
    """For each group in PICKS, 1 if the attention head that was picked for the group finds the head of the dependent, otherwise
    0."""


@dataclasses.dataclass
class HitCounts:
    """Sums over the dependents of some sentences, by the index of the relation."""

    hits: Int64[np.ndarray, "2 N H relations"]
    """Hits by direction, layer and attention head."""
    distances: Int64[np.ndarray, "relations _"]
    """The number of dependents at each distance from their head, from -reach to reach."""
    counts: Int64[np.ndarray, " relations"]
    """The number of dependents."""
    near: Int64[np.ndarray, " relations"]
    """The number of dependents that are close enough to their head for sliding layers. A piece of such a dependent is within
    the window of a piece of its head."""
    sentences: int = 0
    across: int = 0
    """The number of dependents that are not counted because the sentence was cut and their head is in another window."""

    @property
    def size(self) -> str:
        """The number of dependents, as text."""
        return counted(int(self.counts.sum()), "dependent")


def count_hits(
    engine: Engine,
    sentences: Iterable[Sentence],
    relations: Relations,
    reach: int,
    picks: Int64[np.ndarray, "relations 3"] | None = None,
    use: Callable[[HitCounts, Dependents], object] = lambda found, dependents: None,
) -> HitCounts:
    """Returns the sums over `sentences`, which are read one by one.

    `picks` has the attention head that was picked for each group of each relation, as an index in the flat [2, N, H]. The index
    counts from 1, and 0 stands for no head. `use` is called after each batch with the sums so far and the dependents of the
    batch. Raises UserError if the model returns numbers that are not finite.
    """
    config, size = engine.config, MOST_RELATIONS + 1
    found = HitCounts(
        hits=np.zeros((len(DIRECTIONS), config.num_layers, config.num_heads, size), np.int64),
        distances=np.zeros((size, 2 * reach + 1), np.int64),
        counts=np.zeros(size, np.int64),
        near=np.zeros(size, np.int64),
    )
    picked = np.zeros((size, len(PICKS)), np.int64) if picks is None else picks

    def items() -> Iterator[Item]:
        """Yields the windows of all sentences with the columns of `dependency_hits`. Also counts the sentences, and the
        dependents whose head is in another window."""
        for number, sentence in enumerate(sentences):
            found.sentences += 1
            for window in word_windows(engine, sentence.words):
                item = window.item(config.has_segments)
                inside = range(window.start, window.start + len(window.words) - 2)
                heads, own = np.zeros((2, len(window.words)), np.int64)  # 0 for a word whose head is not in the window
                for word, i in enumerate(inside, 1):
                    if sentence.heads[i] in inside:
                        heads[word] = sentence.heads[i] - inside.start + 1
                        own[word] = relations.number(sentence.relations[i], sentence.place)
                found.across += sum(sentence.heads[i] >= 0 for i in inside) - int(np.count_nonzero(own))
                word_of = np.array(item.columns["words"])
                words = np.flatnonzero(own)
                first, last = np.searchsorted(word_of, words), np.searchsorted(word_of, words, "right")
                its_first, its_last = np.searchsorted(word_of, heads[words]), np.searchsorted(word_of, heads[words], "right")
                gap = np.maximum(its_first - last, first - its_last) + 1  # the distance between their nearest pieces
                np.add.at(found.near, own[words][gap <= config.sliding_radius], 1)
                columns = {"heads": heads[word_of], "relations": own[word_of], "sentences": np.full(len(word_of), number)}
                columns |= dict(zip(PICKS, picked[own[word_of]].T, strict=True))
                further = {name: values.tolist() for name, values in columns.items()}
                yield dataclasses.replace(item, columns={**item.columns, **further})

    for batch in engine.batches(dependency_hits, items()):
        if not batch["finite"]:
            raise UserError(f"{engine.name} returns {NOT_FINITE}")
        there = batch["relation"] > 0
        dependents = Dependents(*(batch[field.name][there].astype(np.int64) for field in dataclasses.fields(Dependents)))
        found.hits += batch["sums"].astype(np.int64)
        found.counts += np.bincount(dependents.relation, minlength=size)
        near = np.abs(dependents.distance) <= reach
        np.add.at(found.distances, (dependents.relation[near], dependents.distance[near] + reach), 1)
        use(found, dependents)
    return found


@compiled
def dependency_hits(params: Params, batch: Batch, *, config: ModelConfig) -> dict[str, Array]:
    """Returns the hits of all attention heads, summed over a batch. Also returns the hits of the attention heads that were
    picked for each dependent.

    In addition to the columns of words, the batch has columns about the word of each token. "heads" is the index of the word's
    syntactic head in the window. "relations" is the index of the word's relation, or 0 for a word that is not counted.
    "sentences" is the index of the word's sentence. The columns in PICKS have the attention heads that were picked for the
    word.

    Returns sums int32 [2, N, H, relations]; relation [B, Z], 0 for words that are not counted; sentence and distance [B, Z];
    hits [B, Z, 3]; finite [].
    """
    slots = word_slots(batch)
    maps = layer_maps(params, batch, slots, config, True)
    relation = jnp.where(slots.is_word, batch["relations"], 0)
    of_text = slots.together & slots.is_word[:, :, None] & slots.is_word[:, None, :]
    others = of_text & (slots.number[:, :, None] != slots.number[:, None, :])
    gold = others & (slots.number[:, None, :] == batch["heads"][:, :, None])  # head 0 is [CLS], which is not counted
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
    """Returns, for each word, whether the weight between the word and its syntactic head is larger than 0 and than the weights
    between the word and all other words. `gold` [.., word, head] marks the syntactic head, and `others` marks all other words
    of the text.

    `axis` is the axis of `attention` that has the syntactic heads. It is 3 if words attend to their heads, and 2 if heads
    attend to their words.
    """
    rest = others & ~gold
    place = gold.argmax(2)
    if axis == 2:
        rest = rest.swapaxes(1, 2)
    own = jnp.take_along_axis(attention, jnp.expand_dims(place[:, None], axis), axis).squeeze(axis)
    most = jnp.where(rest[:, None], attention, 0.0).max(axis)
    return (own > most) & gold.any(2)[:, None]


WHOLE = "all"
"""The group of all relations except punctuation. The root has no head and is never counted."""
PUNCTUATION = "punct"


@dataclasses.dataclass(frozen=True)
class Best:
    """The attention head and the offset chosen for a relation, with their accuracies on other sentences."""

    relation: str
    direction: str
    layer: int
    head: int
    accuracy: float
    low: float
    high: float
    """The lower and upper end of the 95 % interval of the accuracy, from the bootstrap over sentences."""
    offset: int
    """The chosen offset from the dependent to its head. The next word has offset 1."""
    baseline: float
    """The accuracy of the chosen offset."""
    gain_low: float
    gain_high: float
    """The lower and upper end of the interval of accuracy minus baseline."""
    n: int
    """The number of dependents."""
    chosen_at: float
    """The accuracy on the sentences on which the head was chosen."""
    n_choosing: int

    @property
    def name(self) -> str:
        """The name of the head, as in the papers."""
        return f"{self.layer}-{self.head}"

    @property
    def beats_offset(self) -> bool:
        """Whether the interval of the gain is above 0."""
        return self.gain_low > 0


@dataclasses.dataclass(frozen=True, eq=False)
class DependencyScores:
    """The accuracies of all attention heads by relation. A relation with subtypes has a row for each subtype ("nsubj",
    "nsubj:pass") and a row for all of them together ("nsubj:*"). The row "all" covers everything except punctuation. Accuracies
    are NaN if there are no dependents."""

    best: tuple[Best, ...]
    """The relations that occur in both parts of the sentences. "all" comes first, and the others are in order of decreasing
    n."""
    accuracy: NamedArray
    """[relation, direction, layer, head] on the reported sentences."""
    choosing: NamedArray
    """[relation, direction, layer, head] on the sentences on which heads are chosen."""
    baseline: NamedArray
    """[relation, offset] on the reported sentences."""
    n: NamedArray
    """[relation]: the number of reported dependents."""
    n_choosing: NamedArray
    """[relation]: the number of dependents on which heads are chosen."""
    near: NamedArray
    """[relation]: the number of reported dependents whose heads are within the window of sliding layers. It is 0 for a model
    without sliding layers."""
    replicates: NamedArray
    """[relation, replicate]: the accuracy of the chosen head in each replicate of the bootstrap. The replicates of two models,
    or of a model and a control, can be paired if the sentences and the seed are the same."""
    sentences: int
    """The number of reported sentences."""
    sentences_choosing: int
    across: int
    """The number of dependents in both parts that are left out because the sentence was cut and their head is in another
    window."""


def score_dependencies(
    engine: Engine, treebank: Treebank, choosing: Treebank | None, options: Dependencies, progress: Show = in_silence
) -> DependencyScores:
    """Chooses the attention heads that find the relations of a treebank, and scores these heads. Heads are chosen on the
    treebank `choosing`. If `choosing` is None, heads are chosen on every other sentence of `treebank`, starting with the first.
    `progress` shows notes for each file (see `reading.Show`).

    For each group of relations, the head and the offset with the highest accuracy are chosen. If several are equal, the first
    one is chosen. Their accuracies and intervals are measured on the sentences that were not used to choose. Raises UserError
    if the model has no attention, if one of the two parts has no word with a head, or if the parts have no relation in
    common."""
    engine.require_attention("that can find relations")
    if options.control == "random-weights":
        engine = engine_with_random_weights(engine, options.seed)
    change = {"shuffled-words": shuffled_words, "permuted-heads": permuted_heads}.get(options.control)

    def controlled(sentences: Iterable[Sentence], part: int) -> Iterator[Sentence]:
        for number, sentence in enumerate(sentences):
            yield change(sentence, np.random.default_rng((options.seed, part, number))) if change else sentence

    relations = Relations()
    with progress(choosing or treebank) as say:
        sentences = controlled(choosing or treebank.half(0), 1)
        chosen = count_hits(engine, sentences, relations, options.reach, use=lambda found, _: say(found.size))
    if not chosen.counts.any():
        raise UserError("no word has a syntactic head in the sentences on which attention heads are chosen; give more sentences")
    groups, of_relation = _groups(relations.names.copy())
    of_relation[relations.number(PUNCTUATION, ""), 2] = -1  # never in "all", even if only the reported sentences have it
    # [group, relation]: 1 if the relation belongs to the group
    members = (of_relation.T[None] == np.arange(len(groups))[:, None, None]).any(1).astype(np.int64)
    offsets = (members @ chosen.distances).argmax(1) - options.reach
    heads = (members @ chosen.hits.reshape(-1, MOST_RELATIONS + 1).T).argmax(1)

    sums = ResampledSums((3, len(groups)), seed=options.seed, replicates=options.replicates)

    def use(found: HitCounts, dependents: Dependents) -> None:
        """Adds three counts for each sentence and group: the dependents, those that the group's attention head finds, and those
        that the group's offset finds."""
        say(found.size)
        units, unit = np.unique(dependents.sentence, return_inverse=True)
        values = np.zeros((len(units), 3, len(groups)), np.int64)
        for pick, group in enumerate(of_relation[dependents.relation].T):
            at_offset = dependents.distance == offsets[group]
            for row, value in enumerate((np.ones_like(at_offset), dependents.hits[:, pick], at_offset)):
                np.add.at(values, (unit[group >= 0], row, group[group >= 0]), value[group >= 0])
        sums.add(units, values)

    picks = np.where(of_relation >= 0, heads[of_relation] + 1, 0)
    with progress(treebank) as say:
        sentences = controlled(treebank if choosing else treebank.half(1), 2)
        found = count_hits(engine, sentences, relations, options.reach, picks, use)
    n, n_choosing = members @ found.counts, members @ chosen.counts

    def shares(counts: HitCounts) -> Float64[np.ndarray, "groups 2 N H"]:
        hits = np.moveaxis(counts.hits, -1, 0).reshape(MOST_RELATIONS + 1, -1)
        return np.asarray((members @ hits) / (members @ counts.counts)[:, None]).reshape(-1, *counts.hits.shape[:-1])

    with np.errstate(invalid="ignore"):  # a replicate may have no dependent of a rare relation
        of_head, of_offset = sums.replicates[1:] / sums.replicates[0]
        choice, accuracy, baseline = shares(chosen), shares(found), (members @ found.distances) / n[:, None]
    low, high = interval(of_head)
    gain_low, gain_high = interval(of_head - of_offset)
    best = []
    for g in sorted(np.flatnonzero((n > 0) & (n_choosing > 0)), key=lambda g: (g != 0, -n[g])):
        direction, layer, head = at = np.unravel_index(heads[g], choice.shape[1:])
        numbers = accuracy[g][at], low[g], high[g], baseline[g, offsets[g] + options.reach], gain_low[g], gain_high[g]
        shown, below, above, at_offset, least, most = map(float, numbers)
        name = groups[g], DIRECTIONS[direction], int(layer) + 1, int(head) + 1
        chance = int(n[g]), float(choice[g][at]), int(n_choosing[g])
        best.append(Best(*name, shown, below, above, int(offsets[g]), at_offset, least, most, *chance))
    if not best:
        raise UserError(
            "the sentences on which heads are chosen and those on which they are scored have no relation in common; give more "
            "sentences"
        )
    config, relation = engine.config, {"relation": groups}
    layers = {"layer": range(1, config.num_layers + 1), "head": range(1, config.num_heads + 1)}
    every: Axes = {**relation, "direction": DIRECTIONS, **layers}
    return DependencyScores(
        best=tuple(best),
        accuracy=NamedArray(accuracy, every),
        choosing=NamedArray(choice, every),
        baseline=NamedArray(baseline, {**relation, "offset": range(-options.reach, options.reach + 1)}),
        n=NamedArray(n, relation),
        n_choosing=NamedArray(n_choosing, relation),
        near=NamedArray(members @ found.near, relation),
        replicates=NamedArray(of_head, {**relation, "replicate": range(options.replicates)}),
        sentences=found.sentences,
        sentences_choosing=chosen.sentences,
        across=found.across + chosen.across,
    )


def _groups(names: list[str]) -> tuple[tuple[str, ...], Int64[np.ndarray, "relations 3"]]:
    """Returns (the names of all groups, the indices of the groups of each relation in the order of PICKS)."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition(":")[0], []).append(name)
    groups = (WHOLE, *names, *(f"{family}:*" for family, members in families.items() if len(members) > 1))
    place = {name: i for i, name in enumerate(groups)}
    of_relation = np.full((MOST_RELATIONS + 1, len(PICKS)), -1, np.int64)
    of_relation[1:, 2] = 0  # a relation that occurs only in the reported sentences counts only in "all"
    for number, name in enumerate(names, 1):
        of_relation[number, :2] = place[name], place.get(f"{name.partition(':')[0]}:*", -1)
    return groups, of_relation
