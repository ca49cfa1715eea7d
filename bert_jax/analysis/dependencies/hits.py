"""Counts how often each head finds the head of a dependent, in both directions, counted on the devices batch by batch.

A head of the model predicts as in Clark et al. 2019 (arXiv:1906.04341, section 4.2): "dependent -> head" is the word that the
dependent attends to most, "head -> dependent" the word that attends to it most. Every other word of the sentence can be it,
punctuation marks too, [CLS], [SEP] and the dependent itself cannot; where two words have the most, neither is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int64

from bert_jax.analysis.maps import Batch, Params, layer_maps, word_slots
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError
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
