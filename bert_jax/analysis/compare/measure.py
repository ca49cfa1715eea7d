"""Compares the heads, layers and predictions of two models word by word on the same text."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Float32, Float64

from bert_jax.analysis.compare.aligned import Other, WindowPair, aligned_slots, other_batch, own_batch
from bert_jax.analysis.compare.cka import alignments, cross_sums, own_sums
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.compare.masked import MaskedWords, Predictions
from bert_jax.analysis.divergence import cross_entropies, crosswise, entropies, sampled_sources
from bert_jax.analysis.heads.measure import WINDOWS, head_names
from bert_jax.analysis.maps import Batch, Params, layer_maps, word_vectors
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.windows import grouped
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.questions import NOT_FINITE

MOST_PRODUCTS = 512 << 20
"""Maximum size in bytes of the products of layers that each batch transfers from the devices. For larger models, only evenly
spaced layers are compared."""


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two models on the same words."""

    divergence: NamedArray
    """[head, other]: the mean Jensen-Shannon divergence between the attention of a head of the first model and a head of the
    second model, in nats. NaN if divergences were not measured."""
    n_divergence: int
    """The number of words over which the divergences are averaged."""
    cka: NamedArray
    """[layer, other]: the unbiased linear CKA of the word vectors (`cka.py`). Layer 0 is the embeddings."""
    biased_cka: NamedArray
    """[layer, other]: the biased estimate, as in the paper."""
    words: int
    windows: int
    predictions: Predictions | None
    missing: str
    """The reason why `predictions` is None, otherwise ""."""

    @property
    def same_shape(self) -> bool:
        """Whether both models have the same heads, so that a head can be compared with itself."""
        return self.divergence["head"] == self.divergence["other"]


def matched(divergence: Float64[np.ndarray, "heads _"]) -> dict[int, int]:
    """Returns the partner of each head in the other model, by index. Heads are matched one to one, so that the sum of the
    distances (square roots of the divergences) is minimal. This is the Hungarian method, scipy's `linear_sum_assignment`. If
    one model has more heads than the other, some of its heads have no partner."""
    return dict(zip(*(side.tolist() for side in scipy.optimize.linear_sum_assignment(np.sqrt(divergence))), strict=True))


@flax.struct.dataclass
class _Plan:
    """The settings of a comparison: the other model, the layers of both models, and the vectors that are subtracted from the
    word vectors of each layer. The subtraction keeps the means small. With large means, the float32 sums of products would be
    inaccurate."""

    other: Other
    shifts: tuple[Float32[np.ndarray, "S D"], Float32[np.ndarray, "_ I"]]
    layers: tuple[tuple[int, ...], tuple[int, ...]] = flax.struct.field(pytree_node=False)
    sampled: int = flax.struct.field(pytree_node=False)


@functools.partial(jax.jit, static_argnames=("config",))
def pair_sums(params: Params, batch: Batch, *, config: ModelConfig, plan: _Plan) -> dict[str, Any]:
    """Returns sums over the words of a batch. "words" [] is the number of words. "own", "other" and "cross" are the sums of
    `cka.py` over the word vectors. If `plan.sampled` is not 0, heads are compared on about this many words of each row. Then
    "sampled" [] is the number of these words, and "entropies", "other_entropies" and "mixtures" are the sums of `divergence.py`
    over them."""
    models = ((params, own_batch(batch), config), (plan.other.params, other_batch(batch), plan.other.config))
    slots = [aligned_slots(own) for _, own, _ in models]
    words, _ = slots
    real = words.is_word
    vectors = []
    for (weights, own, settings), each, layers, shift in zip(models, slots, plan.layers, plan.shifts, strict=True):
        found = word_vectors(weights, own, each, settings, layers) - shift[:, None, None]
        vectors.append((found * real[None, :, :, None]).reshape(len(layers), -1, found.shape[-1]))
    first, second = vectors
    sums = {"words": real.sum(), "own": own_sums(first), "other": own_sums(second), "cross": cross_sums(first, second)}
    if plan.sampled:
        sources = real.astype(jnp.float32)
        (maps, chosen), (others, _) = (
            sampled_sources(jnp.stack(layer_maps(weights, own, each, settings, True)), sources, plan.sampled)
            for (weights, own, settings), each in zip(models, slots, strict=True)
        )
        sums |= {
            "sampled": chosen.sum(),
            "entropies": entropies(maps),
            "other_entropies": entropies(others),
            "mixtures": cross_entropies(maps, others),
        }
    return sums


def compared_layers(config: ModelConfig, other: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the layers of both models to compare. These are all layers. If the products of all layers would exceed
    MOST_PRODUCTS, they are evenly spaced layers."""
    counts = [config.num_layers + 1, other.num_layers + 1]
    most = max(4, MOST_PRODUCTS // (4 * config.hidden_size * other.hidden_size))
    while math.prod(counts) > most:
        counts[counts.index(max(counts))] -= 1
    ends = (config.num_layers, other.num_layers)
    own, others = (
        tuple(np.unique(np.linspace(0, last, count).round().astype(int)).tolist())
        for last, count in zip(ends, counts, strict=True)
    )
    return own, others


def check_comparable(engine: Engine, options: Comparing) -> None:
    """Raises UserError if the model is an encoder-decoder, or if its heads are to be compared but it has no attention."""
    engine.require_encoder()
    if options.divergence_words:
        engine.require_attention("to compare", "compare only layers and predictions, with --divergence-words=0")


def compare_models(
    engine: Engine,
    other: Engine,
    pairs: Iterable[WindowPair],
    options: Comparing,
    say: Callable[[str], None] = lambda note: None,
) -> Comparison:
    """Compares two models on the windows of `aligned.paired_windows`, which are read one by one. `say` is called with the number
    of words so far.

    Raises UserError if heads are to be compared but a model has no attention, if there are no windows, or if a model returns
    numbers that are not finite."""
    for one in (engine, other):
        check_comparable(one, options)
    configs = (engine.config, other.config)
    layers = compared_layers(*configs)
    own, others = (np.zeros((len(some), config.hidden_size), np.float32) for some, config in zip(layers, configs, strict=True))
    plan = _Plan(Other(other.params, other.config), (own, others), layers, options.sampled)
    pads = (engine.model.tokenizer.pad_id, other.model.tokenizer.pad_id)
    totals: dict[tuple[str, ...], Float64[np.ndarray, " ..."]] = {}
    masked, predictions, missing, windows = None, None, "", 0

    def total(*name: str) -> Float64[np.ndarray, " ..."]:
        return np.asarray(totals.get(name, 0.0))

    try:
        masked = MaskedWords((engine, other), options.masked, options.seed, options.differences)
    except UserError as error:
        missing = str(error)
    for group in grouped(pairs, WINDOWS * engine.mesh.size):
        items = [pair.item(pads) for pair in group]
        if float(total("sampled")) >= options.divergence_words:
            plan = dataclasses.replace(plan, sampled=0)
        if not totals:  # subtracts the mean of the first batch's words from all vectors
            found = next(engine.batches(pair_sums, items, plan=plan))
            count = np.float32(max(1, int(found["words"])))
            plan = dataclasses.replace(plan, shifts=(found["own"]["total"] / count, found["other"]["total"] / count))
        for found in engine.batches(pair_sums, items, plan=plan):
            for path, value in jax.tree_util.tree_leaves_with_path(found):
                name = tuple(step.key for step in path)
                totals[name] = total(*name) + value.astype(np.float64)
        if masked:
            masked.read(group, windows)
        windows += len(group)
        say(counted(round(float(total("words"))), "word"))
    n, sampled = float(total("words")), float(total("sampled"))
    if not n:
        raise UserError("there is no word to compare the models on; give text")
    if not all(np.isfinite(value).all() for value in totals.values()):
        raise UserError(f"{engine.name} or {other.name} returns {NOT_FINITE}")
    if masked:
        try:
            predictions = masked.result()
        except UserError as error:
            missing = str(error)
    names = [head_names(config.num_layers, config.num_heads) for config in configs]
    divergence = np.full((len(names[0]), len(names[1])), np.nan)
    if sampled:
        divergence = crosswise(total("mixtures"), total("entropies"), total("other_entropies")) / sampled
    firsts, seconds, crossed = (
        {path[1]: value for path, value in totals.items() if path[0] == kind} for kind in ("own", "other", "cross")
    )
    unbiased, biased = alignments(firsts, seconds, crossed, n)
    axes: Mapping[str, Sequence[int]] = dict(zip(("layer", "other"), layers, strict=True))
    return Comparison(
        divergence=NamedArray(divergence, {"head": names[0], "other": names[1]}),
        n_divergence=round(sampled),
        cka=NamedArray(unbiased, axes),
        biased_cka=NamedArray(biased, axes),
        words=round(n),
        windows=windows,
        predictions=predictions,
        missing=missing,
    )
