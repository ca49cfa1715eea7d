"""Computes statistics of every head's attention over any number of texts, summed on the devices batch by batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from bert_jax.analysis.divergence import mixture_entropies, sampled_sources, symmetric
from bert_jax.analysis.heads.flags import Heads
from bert_jax.analysis.maps import Batch, Params, Slots, layer_maps, word_slots
from bert_jax.analysis.named_array import Axes, NamedArray
from bert_jax.analysis.windows import Kind, Window, grouped
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.questions import NOT_FINITE

STATISTICS = ("entropy", "cls", "sep", "punctuation", "self", "previous", "next")
"""The first statistic is the entropy in nats. The others are the attention to [CLS], [SEP], punctuation, the word itself, the
word before and the word after."""
_KINDS = (Kind.CLS, Kind.SEP, Kind.PUNCTUATION)
WINDOWS = 128
"""The number of windows per device that are measured together. A group is sampled for the divergences only if the earlier
groups have too few sampled words."""


@dataclasses.dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Means over the words of all texts. Attention to [CLS] and [SEP] is counted, but attention from [CLS] and [SEP] is not."""

    statistics: NamedArray
    """[statistic, layer, head], with the entries of STATISTICS."""
    profile: NamedArray
    """[distance, layer, head]: the mean attention to the word at that distance, over all words that have a word at that
    distance. Negative distances are earlier words."""
    uniform: NamedArray
    """[statistic]: the statistics of a head that attends uniformly to the words of a text, including [CLS] and [SEP]."""
    uniform_profile: NamedArray
    """[distance]: the mean attention of the uniform head to the word at each distance."""
    n: NamedArray
    """[statistic]: the number of words in the mean."""
    n_profile: NamedArray
    """[distance]: the number of words that have a word at that distance."""
    divergence: NamedArray
    """[head, other]: the mean Jensen-Shannon divergence of the attention of two heads, in nats (arXiv:1906.04341, section 6)."""
    n_divergence: int
    """The number of words over which the divergences are averaged."""
    windows: int
    """The number of windows. A text that is longer than the position table counts once for each of its windows."""


def head_names(layers: int, heads: int) -> list[str]:
    """Returns the names of all heads, as in the papers. A name is LAYER-HEAD, starting at 1-1."""
    return [f"{layer}-{head}" for layer in range(1, layers + 1) for head in range(1, heads + 1)]


def measure_heads(
    engine: Engine, windows: Iterable[Window], options: Heads, say: Callable[[str], None] = lambda note: None
) -> HeadStatistics:
    """Returns the statistics of all heads over `windows`, which are read one by one. `say` is called with the number of words so
    far.

    Raises UserError if the model has no attention, if there are no windows, or if the model returns numbers that are not finite.
    """
    engine.require_attention("to measure")
    totals: dict[str, Float64[np.ndarray, " ..."]] = {}
    done = 0
    for group in grouped(windows, WINDOWS * engine.mesh.size):
        done += len(group)
        more = float(totals.get("sampled", 0.0)) < options.divergence_words
        batches = engine.batches(
            head_sums,
            [window.item(engine.config.has_segments) for window in group],
            reach=options.reach,
            in_words=options.in_words,
            sampled=options.sampled if more else 0,
        )
        for sums in batches:
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
        say(counted(round(float(totals["words"])), "word"))
    if not totals or not totals["words"]:
        raise UserError("there is no word to measure attention on; give text")
    if not all(np.isfinite(value).all() for value in totals.values()):
        raise UserError(f"{engine.name} returns {NOT_FINITE}")
    return _statistics(engine.config, totals, options, done)


@compiled
def head_sums(
    params: Params, batch: Batch, *, config: ModelConfig, reach: int, in_words: bool, sampled: int
) -> dict[str, Float[Array, " ..."]]:
    """Returns sums over the words of a batch, and counts of words, float32. The statistics are computed from both.

    Returns words []; entropy [N, H]; relations [N, H, F], for the targets of `relations`; uniform_entropy [], uniform [F] and
    counts [F] for the same targets. If `sampled` is not 0, also returns mixtures (`mixture_entropies`) of about this many words
    of each row, and their count sampled [].
    """
    slots = word_slots(batch, in_words)
    maps = layer_maps(params, batch, slots, config, in_words)
    sources = slots.is_word.astype(jnp.float32)
    targets = relations(slots, reach)
    together = slots.together.astype(jnp.float32)
    evenly = (together / jnp.maximum(together.sum(-1, keepdims=True), 1.0))[:, None]
    sums = {
        "words": sources.sum(),
        "entropy": jnp.stack([_entropy(layer, sources) for layer in maps]),
        "relations": jnp.stack([_to_targets(layer, targets, sources) for layer in maps]),
        "uniform_entropy": _entropy(evenly, sources).squeeze(),
        "uniform": _to_targets(evenly, targets, sources).squeeze(0),
        "counts": (targets.max(2) * sources[:, :, None]).sum((0, 1)),
    }
    if sampled:
        chosen, own = sampled_sources(jnp.stack(maps), sources, sampled)
        sums |= {"mixtures": mixture_entropies(chosen), "sampled": own.sum()}
    return sums


def relations(slots: Slots, reach: int) -> Float[Array, "B Z Z _"]:
    """Returns 1 if a relation holds between two words of a text, otherwise 0, [.., from, to, relation]. In the first three
    relations, `to` is [CLS], [SEP] or punctuation. In the others, both are words, and `to` is at a distance from -`reach` to
    `reach` (0 is the word itself)."""
    together = slots.together
    kinds = jnp.array([kind.value for kind in _KINDS], jnp.int32)
    of_kind = together[..., None] & (slots.kind[:, None, :, None] == kinds[None, None, None])
    distance = slots.number[:, None, :] - slots.number[:, :, None]
    both = together & slots.is_word[:, :, None] & slots.is_word[:, None, :]
    distances = jnp.arange(-reach, reach + 1, dtype=jnp.int32)
    at_distance = both[..., None] & (distance[..., None] == distances[None, None, None])
    return jnp.concatenate([of_kind, at_distance], axis=-1).astype(jnp.float32)


def _entropy(attention: Float[Array, "B H Z Z"], sources: Float[Array, "B Z"]) -> Float[Array, " H"]:
    return (jax.scipy.special.entr(attention).sum(-1) * sources[:, None]).sum((0, 2))


def _to_targets(
    attention: Float[Array, "B H Z Z"], targets: Float[Array, "B Z Z _"], sources: Float[Array, "B Z"]
) -> Float[Array, "H _"]:
    weighted = attention * sources[:, None, :, None]
    return jnp.tensordot(weighted, targets, axes=((0, 2, 3), (0, 1, 2)), precision=jax.lax.Precision.HIGHEST)


def _statistics(
    config: ModelConfig, totals: Mapping[str, Float64[np.ndarray, " ..."]], options: Heads, windows: int
) -> HeadStatistics:
    reach, words = options.reach, totals["words"]
    layers, heads = range(1, config.num_layers + 1), range(1, config.num_heads + 1)
    kinds, middle = len(_KINDS), len(_KINDS) + reach
    # a word whose text has no [SEP] or no punctuation counts in the mean with an attention of 0
    counts = np.concatenate([np.full(kinds, words), totals["counts"][kinds:]])
    with np.errstate(invalid="ignore"):
        means = np.moveaxis(totals["relations"] / counts, -1, 0)
        uniform = totals["uniform"] / counts
    chosen = [*range(kinds), middle, middle - 1, middle + 1]
    statistic: Axes = {"statistic": STATISTICS}
    distance: Axes = {"distance": range(-reach, reach + 1)}
    every: Axes = {"layer": layers, "head": heads}
    names = head_names(config.num_layers, config.num_heads)
    sampled = float(totals.get("sampled", 0.0))
    divergence = symmetric(totals["mixtures"]) / sampled if sampled else np.full((len(names),) * 2, np.nan)
    return HeadStatistics(
        statistics=NamedArray(np.concatenate([totals["entropy"][None] / words, means[chosen]]), {**statistic, **every}),
        profile=NamedArray(means[kinds:], {**distance, **every}),
        uniform=NamedArray(np.concatenate([[totals["uniform_entropy"] / words], uniform[chosen]]), statistic),
        uniform_profile=NamedArray(uniform[kinds:], distance),
        n=NamedArray(np.rint([words, *counts[chosen]]).astype(np.int64), statistic),
        n_profile=NamedArray(np.rint(counts[kinds:]).astype(np.int64), distance),
        divergence=NamedArray(divergence, {"head": names, "other": names}),
        n_divergence=round(sampled),
        windows=windows,
    )
