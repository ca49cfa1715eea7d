"""Skip-gram with negative sampling (word2vec; Mikolov et al., arXiv:1310.4546, sections 2.2 and 2.3), as sums over a batch.

Where word2vec draws at random, this objective uses the expected value. A context at distance d has the weight (W - d + 1) / W,
instead of a random window size. Pairs of frequent words have smaller weights, instead of being dropped. Each pair uses the N
negatives of its row with the weight k / N, instead of k negatives of its own. Shared negatives allow matrix products (Ji et
al., arXiv:1604.04661). Two differences remain. First, dropping a frequent word in word2vec brings its neighbours closer
together, while the distances here do not change. Second, a negative that equals the context counts here, while word2vec.c skips
such a negative. With the 8,192 subwords of `experiments/pretrain/static.py` this affects 0.13 % of the negatives and less than
0.01 of the loss. Skipping such negatives would change the reference curve and the study `lineage.py`, which were measured this
way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Float, Int, Key, Num, UInt32

from bert_jax.data.corpus.store import Corpus
from bert_jax.interface.ranges import check_ranges
from bert_jax.model.layers import Seed, hash_word, random_words
from bert_jax.objectives.flops import model_row_flops
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Params
from bert_jax.objectives.objective import Objective, row_counts
from bert_jax.objectives.scores import Formula, Score, sum_formula

NOISE_POWER = 0.75
"""Negatives are drawn from the unigram distribution to this power (section 2.2)."""
EVALUATION_SEED = np.uint32(0x736B6970)
""""skip" in ASCII: the seed of the negatives in evaluation. Every evaluation uses the same negatives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGram(Objective):
    """Skip-gram with negative sampling. The defaults are the same as in the released word2vec, except that negatives are
    shared."""

    window: Annotated[int, Interval(ge=1, le=1_000)] = 5
    """The largest distance between a word and its context."""
    negatives: Annotated[int, Interval(ge=1, le=1_000)] = 5
    """k, the weight of the mean loss of the negatives, relative to the pair's own loss."""
    shared_negatives: Annotated[int, Interval(ge=1, le=100_000)] = 64
    """N, the number of negatives that are drawn per row. All pairs of the row share them."""
    subsampling: Annotated[float, Interval(ge=0, le=1)] = 1e-3
    """t: a word of frequency f is dropped with probability 1 - sqrt(t / f) - t / f, as in the released code. 0 drops none."""

    rows: ClassVar[str | type] = "centres"
    trains: ClassVar[Sequence[str] | None] = ("skip_gram",)
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        "skip-gram loss": Score("skip_gram_loss", "skip_gram_targets", unit="(nats per predicted token)"),
        "skip-gram accuracy": Score("skip_gram_correct", "skip_gram_targets", from_zero=True),
        "loss": sum_formula("skip_gram_loss"),
    }
    exported: ClassVar[str | None] = "BertModel"

    def __post_init__(self) -> None:
        check_ranges(self, "objective_options")

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the context vectors and the counts of the words."""
        return {"skip_gram_head": model.skip_gram_head(key)}

    def corpus_parameters(self, corpus: Corpus) -> Mapping[tuple[str, ...], np.ndarray]:
        """Returns the number of times that each word occurs in the corpus."""
        counts = np.pad(corpus.token_counts, (0, self.model.config.padded_vocab_size - corpus.vocabulary.size))
        return {("skip_gram_head", "counts"): counts.astype(np.float32)}

    def refusal(self, length: int) -> str:
        """Rejects rows without room for two words."""
        room = "leaves room for one token between [CLS] and [SEP], but skip-gram needs neighbours; set it to at least 4"
        return room if length < 4 else ""

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns sums over pairs of a word and a context. These are the loss, the weights of all pairs ("skip_gram_targets"),
        and the weights of the pairs with a positive score ("skip_gram_correct").

        The loss of a pair is -log s(u.v) - k mean over N negatives of log s(-n.v), where v, u and n are the vectors of the word,
        the context and a negative, and s is the sigmoid. Words that the corpus does not contain, such as [CLS], are not in any
        pair."""
        words = params["embeddings"]["word_embeddings"]["embedding"]
        contexts = params["skip_gram_head"]["context_embeddings"]["embedding"]
        counts = jax.lax.stop_gradient(params["skip_gram_head"]["counts"])
        centre_ids = jnp.take_along_axis(batch["input_ids"], jnp.maximum(batch["centres"], 0), axis=1)
        drawn = (len(centre_ids), self.shared_negatives)
        negative_ids = draw_negatives(counts, drawn, EVALUATION_SEED if seed is None else seed, batch.get("rows"))
        v, u, n = words[centre_ids], contexts[batch["input_ids"]], contexts[negative_ids]

        kept = keep_weights(counts, self.subsampling)
        pairs = window_weights(batch, self.window) * kept[centre_ids][:, :, None] * kept[batch["input_ids"]][:, None, :]
        scores = jnp.einsum("BMD,BLD->BML", v, u, precision=jax.lax.Precision.HIGHEST)
        noise = jnp.einsum("BMD,BND->BMN", v, n, precision=jax.lax.Precision.HIGHEST)
        of_noise = self.negatives * jax.nn.softplus(noise).mean(-1)  # [B, M], per unit of weight
        return {
            "skip_gram_loss": (pairs * jax.nn.softplus(-scores)).sum() + (pairs.sum(-1) * of_noise).sum(),
            "skip_gram_correct": (pairs * (scores > 0)).sum(),
            "skip_gram_targets": pairs.sum(),
        }

    def counts(self, batch: Batch) -> Sums:
        """Returns "windows", "tokens" and "rows". The loss is divided by "windows", the summed weights of the pairs before
        words are dropped."""
        return row_counts(batch) | {"windows": window_weights(batch, self.window).sum()}

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the summed loss of all pairs, divided by "windows"."""
        return sums["skip_gram_loss"] / jnp.maximum(counts["windows"], 1.0)

    def row_flops(self, length: int, predictions: int) -> float:
        """Counts the scores with all tokens of a row and with the negatives of the row. Only the scores with tokens in the
        window are used."""
        return model_row_flops(self.model.config, length, predictions, self.shared_negatives)

    def eval_line(self, scores: Mapping[str, float]) -> str:
        """Formats accuracy and loss. There is no baseline, since word frequencies alone cannot predict a pair."""
        return (
            f"skip-gram accuracy {100 * scores['skip_gram_accuracy']:.1f} %, "
            f"skip-gram loss {scores['skip_gram_loss']:.3f} per pair"
        )


def window_weights(batch: Mapping[str, Num[Array, "B ..."]], window: int) -> Float[Array, "B M L"]:
    """Returns the weight of every token as a context of each centre. The weight is (W - d + 1) / W if the token is in the same
    text at a distance d from 1 to W, otherwise 0. A centre of -1 is unused."""
    centres, ids = jnp.maximum(batch["centres"], 0), batch["sequence_ids"]
    distance = jnp.abs(centres[:, :, None] - jnp.arange(ids.shape[1], dtype=jnp.int32)[None, None])
    same = jnp.take_along_axis(ids, centres, axis=1)[:, :, None] == ids[:, None, :]
    used = (batch["centres"] >= 0)[:, :, None] & same & (distance > 0)
    return jnp.where(used, jnp.maximum(window - distance + 1, 0).astype(jnp.float32) / window, 0.0)


def keep_weights(counts: Float[Array, " V"], threshold: float) -> Float[Array, " V"]:
    """Returns the probability of keeping each word, given the counts of the words in the corpus. The probability is 0 for words
    that are not in the corpus."""
    frequency = counts / jnp.maximum(counts.sum(), 1.0)
    ratio = threshold / jnp.maximum(frequency, 1e-12)
    kept = jnp.minimum(jnp.sqrt(ratio) + ratio, 1.0) if threshold else jnp.ones_like(frequency)
    return jnp.where(counts > 0, kept, 0.0)


def draw_negatives(
    counts: Float[Array, " V"], shape: tuple[int, int], seed: Seed | np.uint32, rows: UInt32[Array, " B"] | None = None
) -> Int[Array, "B _"]:
    """Draws words from the distribution of counts^0.75, as a pure function of the seed and the index."""
    cumulative = jnp.cumsum(counts**NOISE_POWER)
    words = random_words(hash_word(jnp.asarray(seed, jnp.uint32) ^ EVALUATION_SEED), shape, rows=rows)
    uniform = (words >> 8).astype(jnp.float32) * np.float32(2.0**-24)  # below 1
    return jnp.searchsorted(cumulative, uniform * cumulative[-1], side="right").astype(jnp.int32)
