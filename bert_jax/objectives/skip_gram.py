"""Skip-gram with negative sampling (word2vec; Mikolov et al., arXiv:1310.4546, sections 2.2 and 2.3), as sums over a batch.

Where word2vec draws at random, this has the expected value: weights (W - d + 1) / W of contexts at distance d for a window of
random size, weights of pairs for words left out of the text, and for k negatives per pair N per row with the weight k / N
(shared negatives make products of matrices; Ji et al., arXiv:1604.04661). Two differences remain. Frequent words that are left
out do not bring the words around them closer together, as they do in word2vec. And a negative that equals the context counts;
word2vec.c skips it. With the 8,192 pieces of `experiments/pretrain/static.py` that is 0.13 % of the negatives and less than 0.01
of the loss; skipping them would change the reference curve and the study `lineage.py`, which were measured this way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Float, Int, Num, UInt32

from bert_jax.interface.ranges import check_ranges
from bert_jax.model.layers import Seed, hash_word, random_words
from bert_jax.objectives.losses import IGNORED, Sums

NOISE_POWER = 0.75
"""Negatives are drawn from the unigram distribution to this power (section 2.2)."""
EVALUATION_SEED = np.uint32(0x736B6970)
""""skip" in ASCII: the seed of the negatives in evaluation, which are the same at every evaluation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGramConfig:
    """The settings of skip-gram; the defaults are those of the released word2vec, whose negatives are not shared."""

    window: Annotated[int, Interval(ge=1, le=1_000)] = 5
    """The largest distance between a word and its context."""
    negatives: Annotated[int, Interval(ge=1, le=1_000)] = 5
    """k, the weight of the negatives of a pair."""
    shared_negatives: Annotated[int, Interval(ge=1, le=100_000)] = 64
    """N, the negatives drawn for each row, which all of its pairs share."""
    subsampling: Annotated[float, Interval(ge=0, le=1)] = 1e-3
    """t: a word of frequency f is left out of the text with probability 1 - sqrt(t / f) - t / f, that of the released code; 0
    leaves none out."""

    def __post_init__(self) -> None:
        check_ranges(self, "skip_gram")


def window_weights(batch: Mapping[str, Num[Array, "B ..."]], window: int) -> Float[Array, "B M L"]:
    """The weight of every token as a context of each of "masked_positions": (W - d + 1) / W at distance d from 1 to W in the same
    text, else 0."""
    centres, ids = batch["masked_positions"], batch["sequence_ids"]
    distance = jnp.abs(centres[:, :, None] - jnp.arange(ids.shape[1], dtype=jnp.int32)[None, None])
    same = jnp.take_along_axis(ids, centres, axis=1)[:, :, None] == ids[:, None, :]
    used = (batch["masked_targets"] != IGNORED)[:, :, None] & same & (distance > 0)
    return jnp.where(used, jnp.maximum(window - distance + 1, 0).astype(jnp.float32) / window, 0.0)


def skip_gram_sums(
    params: Mapping[str, Any], batch: Mapping[str, Num[Array, "B ..."]], seed: Seed | None, settings: SkipGramConfig
) -> Sums:
    """The summed loss of all pairs of a word and its context, their weights ("skip_gram_targets"), and the weights of the pairs
    with a positive score ("skip_gram_correct"); float32 scalars.

    The loss of a pair is -log s(u.v) - k mean over N negatives of log s(-n.v), where v is the vector of the word, u that of the
    context, n that of a negative, and s the sigmoid. `seed` None is evaluation. Words that the corpus does not contain, such as
    [CLS], are in no pair.
    """
    words = params["embeddings"]["word_embeddings"]["embedding"]
    contexts = params["skip_gram_head"]["context_embeddings"]["embedding"]
    counts = jax.lax.stop_gradient(params["skip_gram_head"]["counts"])
    centre_ids = jnp.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
    shape = (len(centre_ids), settings.shared_negatives)
    negative_ids = draw_negatives(counts, shape, EVALUATION_SEED if seed is None else seed, batch.get("rows"))
    v, u, n = words[centre_ids], contexts[batch["input_ids"]], contexts[negative_ids]

    kept = keep_weights(counts, settings.subsampling)
    pairs = window_weights(batch, settings.window) * kept[centre_ids][:, :, None] * kept[batch["input_ids"]][:, None, :]
    scores = jnp.einsum("BMD,BLD->BML", v, u, precision=jax.lax.Precision.HIGHEST)
    noise = jnp.einsum("BMD,BND->BMN", v, n, precision=jax.lax.Precision.HIGHEST)
    of_noise = settings.negatives * jax.nn.softplus(noise).mean(-1)  # [B, M], for each unit of weight
    return {
        "skip_gram_loss": (pairs * jax.nn.softplus(-scores)).sum() + (pairs.sum(-1) * of_noise).sum(),
        "skip_gram_correct": (pairs * (scores > 0)).sum(),
        "skip_gram_targets": pairs.sum(),
    }


def keep_weights(counts: Float[Array, " V"], threshold: float) -> Float[Array, " V"]:
    """The probability that a word is kept in the text, by its count in the corpus; 0 for words that are not in the corpus."""
    frequency = counts / jnp.maximum(counts.sum(), 1.0)
    ratio = threshold / jnp.maximum(frequency, 1e-12)
    kept = jnp.minimum(jnp.sqrt(ratio) + ratio, 1.0) if threshold else jnp.ones_like(frequency)
    return jnp.where(counts > 0, kept, 0.0)


def draw_negatives(
    counts: Float[Array, " V"], shape: tuple[int, int], seed: Seed | np.uint32, rows: UInt32[Array, " B"] | None = None
) -> Int[Array, "B _"]:
    """Words drawn from the distribution of counts^0.75, a pure function of the seed and the index."""
    cumulative = jnp.cumsum(counts**NOISE_POWER)
    words = random_words(hash_word(jnp.asarray(seed, jnp.uint32) ^ EVALUATION_SEED), shape, rows=rows)
    uniform = (words >> 8).astype(jnp.float32) * np.float32(2.0**-24)  # below 1
    return jnp.searchsorted(cumulative, uniform * cumulative[-1], side="right").astype(jnp.int32)
