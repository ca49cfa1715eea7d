"""`WordPrediction`, the base class of objectives that predict words with a softmax over the vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.layers import Seed
from bert_jax.objectives.flops import model_row_flops
from bert_jax.objectives.losses import IGNORED, Sums, correct_predictions, cross_entropy
from bert_jax.objectives.model import Batch, Outputs, Params
from bert_jax.objectives.objective import Objective, row_counts
from bert_jax.objectives.scores import (
    EvalRows,
    Formula,
    Score,
    perplexity,
    perplexity_formula,
    score_name,
    target_counts,
    unigram_baseline,
)

FREQUENCY = "word frequency alone"


def word_scores(title: str, measure: str) -> dict[str, Score | Formula]:
    """Returns the scores of predicted words. `title` is the name of the scores in log lines, and `measure` is the prefix of the
    names of the sums."""
    return {
        f"{title} loss": Score(
            f"{measure}_loss",
            f"{measure}_targets",
            unit="(nats per predicted token)",
            baseline="unigram_loss",
            baseline_title=FREQUENCY,
        ),
        "perplexity": perplexity_formula(f"{measure}_loss"),
        f"{title} accuracy": Score(
            f"{measure}_correct",
            f"{measure}_targets",
            baseline="unigram_accuracy",
            baseline_title=FREQUENCY,
            from_zero=True,
        ),
    }


class WordPrediction(Objective):
    """The cross-entropy of the rows' targets under a softmax over the vocabulary."""

    rows: ClassVar[str | type] = "next"
    title: ClassVar[str]
    """The name of the prediction in log lines, e.g. "MLM". The names of the sums and scores start with `measure`."""
    last_predicted: ClassVar[float] = 1.0
    """How often the last [SEP] of a text is predicted, relative to other tokens."""

    @property
    def measure(self) -> str:
        """The prefix of the names of the sums and scores, e.g. "mlm"."""
        return score_name(self.title)

    @property
    def hard_loss(self) -> tuple[str, str]:  # type: ignore[override]
        """The loss of the predicted words."""
        return f"{self.measure}_loss", f"{self.measure}_targets"

    def outputs(self, params: Params, batch: Batch, seed: Seed | None) -> Outputs:
        """Returns the logits of the predicted words."""
        return self.model.logits(params, batch, seed)

    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Returns the summed cross-entropies and correct predictions."""
        each = [self.word_sums(outputs[name], targets) for name, targets in self.targets(batch).items()]
        return functools.reduce(lambda total, one: {name: total[name] + one[name] for name in total}, each)

    def targets(self, batch: Batch) -> Mapping[str, Int[Array, "B M"]]:
        """Returns name of logits in `outputs` -> the ids of their targets."""
        return {"mlm_logits": batch["masked_targets"]}

    def counts(self, batch: Batch) -> Sums:
        """Returns the numbers of predicted words, tokens and rows."""
        return {f"{self.measure}_targets": (batch["masked_targets"] != IGNORED).sum().astype(jnp.float32), **row_counts(batch)}

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the mean over the predicted words of the global batch."""
        return sums[f"{self.measure}_loss"] / jnp.maximum(counts[f"{self.measure}_targets"], 1.0)

    @jax.named_scope("loss")  # "loss" is its name in a profile
    def word_sums(self, logits: Float[Array, "B M V"], targets: Int[Array, "B M"]) -> Sums:
        """Returns the summed cross-entropies and the correct predictions."""
        return {
            f"{self.measure}_loss": cross_entropy(logits, targets).sum(),
            f"{self.measure}_correct": correct_predictions(logits, targets).sum(),
        }

    def row_losses(self, params: Params, batch: Batch) -> dict[str, Float[Array, " B"]]:
        """Returns the mean loss of each row over its targets. For a biLM, this is the loss of the forward direction only."""
        logits = self.model.logits(params, batch, None)["mlm_logits"]
        return {f"{self.measure}_loss": mean_losses(logits, batch["masked_targets"])}

    def row_flops(self, length: int, predictions: int) -> float:
        """Counts the encoder and the softmax at the predicted tokens."""
        return model_row_flops(self.model.config, length, predictions)

    def eval_scores(self, rows: EvalRows) -> Mapping[str, float | Formula]:
        """Returns the scores of the unigram distribution and, if whole words are predicted, the perplexity per word.

        The pieces of a word are masked together, so the loss of a word is the sum of the losses of its pieces. Perplexity per
        word can therefore be compared between vocabularies, but perplexity per piece cannot.
        """
        found: dict[str, float | Formula] = {}
        if rows.words is not None:
            found["word_perplexity"] = self._word_perplexity(int((rows.predicted >= 0).sum()) / max(rows.words, 1))
        counts = target_counts(rows.train, rows.plan, self.last_predicted)
        return found | self.compared(unigram_baseline(counts, rows.predicted))

    def _word_perplexity(self, pieces: float) -> Formula:
        return lambda scores: perplexity(loss * pieces) if (loss := scores.get(f"{self.measure}_loss")) is not None else None

    def eval_line(self, scores: Mapping[str, float]) -> str:
        """Formats accuracy, loss and perplexity with the word-frequency baselines, then all other scores."""
        accuracy, loss = f"{self.measure}_accuracy", f"{self.measure}_loss"
        # A subclass omits some scores.
        if not {accuracy, loss, "perplexity", "unigram_accuracy", "unigram_loss"} <= scores.keys():
            return super().eval_line(scores)
        line = f"{self.title} accuracy {100 * scores[accuracy]:.1f} %"
        line += f" ({FREQUENCY} {100 * scores['unigram_accuracy']:.1f} %), {self.title} loss {scores[loss]:.3f}"
        line += f" ({scores['unigram_loss']:.3f}), perplexity {scores['perplexity']:.1f}"
        line += f" ({scores['word_perplexity']:.1f} per word)" if "word_perplexity" in scores else ""
        others = super().eval_line({name: score for name, score in scores.items() if name not in (accuracy, loss)})
        return f"{line}, {others}" if others else line


def mean_losses(logits: Float[Array, "B S C"], targets: Int[Array, "B S"]) -> Float[Array, " B"]:
    """Returns the mean cross-entropy of each row."""
    return cross_entropy(logits, targets).sum(1) / jnp.maximum((targets != IGNORED).sum(1), 1)
