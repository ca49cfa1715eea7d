"""Predicts every token from the tokens before it and, separately, from the tokens after it (ELMo, arXiv:1802.05365, 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from bert_jax.model.bilm import backward_positions
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.model import Batch, Boxed, Model
from bert_jax.objectives.scores import Formula, Score, sum_formula
from bert_jax.objectives.word_prediction import WordPrediction, word_scores


class Bilm(WordPrediction):
    """Predicts the token after each position twice, with the forward LSTM and with the backward LSTM. The last token of a text
    is predicted only by the forward LSTM. The loss is the mean over all predictions. ELMo's loss is about twice as large, since
    it is the sum of the means of both directions."""

    trains: ClassVar[Sequence[str] | None] = ("bilm",)
    title: ClassVar[str] = "biLM"
    last_predicted: ClassVar[float] = 0.5  # predicted in one of two directions
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **word_scores("biLM", "bilm"),
        "loss": sum_formula("bilm_loss"),
    }
    exported: ClassVar[str | None] = "BertForMaskedLM"

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the softmax layer, which both directions share."""
        return {"softmax": model.softmax(key)}

    def targets(self, batch: Batch) -> Mapping[str, Int[Array, "B M"]]:
        """Returns the targets of both directions."""
        return dict(zip(("mlm_logits", "backward_logits"), bilm_targets(batch), strict=True))

    def counts(self, batch: Batch) -> Sums:
        """Returns the number of predictions (both directions together), the number of tokens and the number of rows."""
        ahead, back = ((x != IGNORED).sum().astype(jnp.float32) for x in bilm_targets(batch))
        return super().counts(batch) | {"bilm_targets": ahead + back}

    def predicted(self, batch: Mapping[str, Int[np.ndarray, "B _"]]) -> Int[np.ndarray, "B _"]:
        """Returns the target ids of both directions."""
        return np.concatenate(bilm_targets({name: jnp.asarray(array) for name, array in batch.items()}), axis=1)


def bilm_targets(batch: Batch) -> tuple[Int[Array, "B M"], Int[Array, "B M"]]:
    """Returns (targets of the forward LSTM, targets of the backward LSTM). A position without a target holds IGNORED. The
    backward LSTM does not predict the last token of a text, which is [SEP], because no later token exists."""
    targets = batch["masked_targets"]
    _, exists = backward_positions(batch["masked_positions"], batch["sequence_ids"])
    return targets, jnp.where(exists, targets, IGNORED)
