"""Predicts a translation token by token, from the source text and the tokens of the translation so far (arXiv:1706.03762)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Float, Int, Key

from bert_jax.interface.ranges import check_ranges
from bert_jax.model.layers import Seed
from bert_jax.objectives.flops import model_row_flops
from bert_jax.objectives.losses import IGNORED, Sums, correct_predictions, cross_entropy, smoothed_cross_entropy
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params
from bert_jax.objectives.objective import Objective, row_counts
from bert_jax.objectives.scores import EvalRows, Formula, Score, unigram_baseline
from bert_jax.objectives.word_prediction import mean_losses, word_scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Objective):
    """The mean cross-entropy of the tokens of the translations, with label smoothing in training."""

    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """The weight of the smoothing term, which is the mean of -log p over the vocabulary. The paper uses 0.1 (section 5.4). The
    reported held-out loss and perplexity do not include it."""

    rows: ClassVar[str | type] = "translated"
    trains: ClassVar[Sequence[str] | None] = ("translation",)
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **word_scores("translation", "translation"),
        "smoothed loss": Score("smoothed_loss", "translation_targets", shown=False),
        "loss": lambda scores: scores.get("smoothed_loss"),
    }
    exported: ClassVar[str | None] = "MarianMTModel"
    hard_loss: ClassVar[tuple[str, str] | None] = ("smoothed_loss", "translation_targets")

    def __post_init__(self) -> None:
        check_ranges(self, "objective_options")

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Initialises the decoder and its softmax."""
        return model.decoder(key)

    def outputs(self, params: Params, batch: Batch, seed: Seed | None) -> Outputs:
        """Returns the "logits" of the token after each token of the translations, float32."""
        return self.model.logits(params, batch, seed)

    def targets(self, batch: Batch) -> Mapping[str, Int[Array, "B L"]]:
        """Returns the tokens of the translations."""
        return {"logits": batch["targets"]}

    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Returns the summed cross-entropies, with and without smoothing, and the number of correct predictions."""
        logits, targets, config = outputs["logits"], batch["targets"], self.model.config
        with jax.named_scope("loss"):
            words = config.decoder_vocab_size or config.vocab_size
            smoothed = smoothed_cross_entropy(logits, targets, self.label_smoothing, words)
            plain = jax.lax.stop_gradient(logits)
            return {
                "smoothed_loss": smoothed.sum(),
                "translation_loss": cross_entropy(plain, targets).sum(),
                "translation_correct": correct_predictions(plain, targets).sum(),
            }

    def counts(self, batch: Batch) -> Sums:
        """Returns the numbers of predicted tokens, of tokens on both sides, and of rows."""
        found = row_counts(batch)
        found["tokens"] += (batch["decoder_sequence_ids"] != 0).sum().astype(jnp.float32)
        return {"translation_targets": (batch["targets"] != IGNORED).sum().astype(jnp.float32), **found}

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the mean smoothed loss over the predicted tokens of the global batch."""
        return sums["smoothed_loss"] / jnp.maximum(counts["translation_targets"], 1.0)

    def row_losses(self, params: Params, batch: Batch) -> dict[str, Float[Array, " B"]]:
        """Returns the mean loss of each row, without smoothing."""
        return {"translation_loss": mean_losses(self.model.logits(params, batch)["logits"], batch["targets"])}

    def row_flops(self, length: int, predictions: int) -> float:
        """Counts encoder and decoder, and the softmax at every token of the translations."""
        return model_row_flops(self.model.config, length, length)

    def eval_scores(self, rows: EvalRows) -> Mapping[str, float | Formula]:
        """Returns the scores of a baseline that ignores the source texts. It predicts with the unigram distribution of the
        training translations."""
        return unigram_baseline(_target_counts(rows), rows.predicted)

    def eval_line(self, scores: Mapping[str, float]) -> str:
        """Formats accuracy, loss and perplexity, each with the word-frequency baseline."""
        line = f"translation accuracy {100 * scores['translation_accuracy']:.1f} %"
        line += f" (word frequency alone {100 * scores['unigram_accuracy']:.1f} %), translation loss "
        line += f"{scores['translation_loss']:.3f} ({scores['unigram_loss']:.3f}), perplexity {scores['perplexity']:.1f}"
        return line


def _target_counts(rows: EvalRows) -> Float[np.ndarray, " V"]:
    """Returns how often each token is a target in the planned epoch. The targets are the tokens of the translations and one
    [SEP] per translation."""
    pairs, corpus = rows.plan.pairs, rows.train
    counts = np.zeros(corpus.vocabulary.size)
    for start in range(0, len(pairs.b_start), _COUNTED):
        starts, lengths = pairs.b_start[start : start + _COUNTED], pairs.b_length[start : start + _COUNTED]
        for shard in range(len(corpus.tokens.shards)):
            bound = corpus.tokens.bounds[shard : shard + 2]
            here = (starts >= bound[0]) & (starts < bound[1])
            first, length = starts[here] - bound[0], lengths[here].astype(np.int64)
            ends = np.cumsum(length)
            places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - length), length)
            counts += np.bincount(corpus.tokens.shard(shard)[places], minlength=len(counts))
    counts[corpus.vocabulary.sep_id] += len(pairs.b_start)
    return counts


_COUNTED = 1 << 17  # the number of pairs per slice
