"""Masked language modelling and next sentence prediction (BERT, arXiv:1810.04805, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bert_jax.objectives.losses import IGNORED, Sums, correct_predictions, cross_entropy
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import EvalRows, Formula, Score, next_sentence_baseline, sum_formula
from bert_jax.objectives.word_prediction import WordPrediction, mean_losses, word_scores


class MlmNsp(WordPrediction):
    """The mean MLM loss plus, if rows hold pairs, the mean loss of next sentence prediction."""

    rows: ClassVar[str | type] = "masked"
    judges_pairs: ClassVar[bool] = True
    trains: ClassVar[Sequence[str] | None] = ("bert",)
    title: ClassVar[str] = "MLM"
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **word_scores("MLM", "mlm"),
        "NSP loss": Score("nsp_loss", "nsp_examples", shown=False),
        "NSP accuracy": Score(
            "nsp_correct", "nsp_examples", baseline="nsp_majority_accuracy", baseline_title="one answer for all pairs"
        ),
        "loss": sum_formula("mlm_loss", "nsp_loss"),
    }

    @property
    def needs_random_pairs(self) -> bool:  # type: ignore[override]
        """Whether this is not a subclass, which may make its own labels, such as the order of the texts."""
        return type(self) is MlmNsp

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the MLM head and, with pairs, the pooler and the NSP head."""
        parts = {"mlm_head": model.mlm_head(key)}
        return parts | ({"pooler": model.pooler(key), "nsp_head": model.nsp_head(key)} if model.pairs else {})

    @property
    def exported(self) -> str:  # type: ignore[override]
        """The class with both heads, or with only the MLM head."""
        return "BertForPreTraining" if self.model.pairs else "BertForMaskedLM"

    def named_scores(self) -> dict[str, Score | Formula]:
        """Omits the NSP scores if rows hold no pairs."""
        found = super().named_scores()
        return found if self.model.pairs else {name: score for name, score in found.items() if not name.startswith("nsp_")}

    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Computes the summed losses and correct predictions of both tasks from "mlm_logits" and, if present, "nsp_logits"."""
        sums = super().output_sums(outputs, batch)
        if "nsp_logits" not in outputs:
            return sums
        with jax.named_scope("loss"):
            return sums | {
                "nsp_loss": cross_entropy(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
                "nsp_correct": correct_predictions(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
            }

    def counts(self, batch: Batch) -> Sums:
        """Returns the number of predicted words and the number of pairs, by which the losses are divided, and the numbers of
        tokens and rows."""
        return super().counts(batch) | {"nsp_examples": (batch["nsp_labels"] != IGNORED).sum().astype(jnp.float32)}

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the mean MLM loss plus the mean NSP loss (original `run_pretraining.py`, without its 1e-5 in the denominator).

        The means are over the global batch. In the original, each core computes the means of its own rows, and these means are
        then averaged.
        """
        loss = super().loss(sums, counts)
        if "nsp_loss" in sums:
            loss += sums["nsp_loss"] / jnp.maximum(counts["nsp_examples"], 1.0)
        return loss

    def row_losses(self, params: Params, batch: Batch) -> dict[str, Float[Array, " B"]]:
        """Returns the mean losses of each row over its masked words and over its pairs. If a subclass overrides `sums`, the
        losses are computed with that method."""
        if type(self).sums is not Objective.sums:
            return Objective.row_losses(self, params, batch)
        outputs = self.model.logits(params, batch, None)
        losses = {"mlm_loss": mean_losses(outputs["mlm_logits"], batch["masked_targets"])}
        if "nsp_logits" in outputs:
            losses["nsp_loss"] = mean_losses(outputs["nsp_logits"], batch["nsp_labels"])
        return losses

    def eval_scores(self, rows: EvalRows) -> Mapping[str, float | Formula]:
        """Adds the accuracy of giving all pairs the same answer, if a score has this baseline."""
        return {**self.compared(next_sentence_baseline(rows.labels)), **super().eval_scores(rows)}
