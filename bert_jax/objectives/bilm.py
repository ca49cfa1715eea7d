"""Predicts every token from the tokens before it and, separately, from the tokens after it (ELMo, arXiv:1802.05365, 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from bert_jax.model.bilm import backward_positions
from bert_jax.model.layers import Seed
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Params
from bert_jax.objectives.scores import Formula, Score, sum_formula
from bert_jax.objectives.word_prediction import WordPrediction, word_scores


class Bilm(WordPrediction):
    """Predicts the token after each position twice, by the forward and by the backward LSTM. Only the forward LSTM predicts the
    last token of a text. The loss is the mean over all predictions. ELMo's loss, the sum of the two means, is twice as
    large."""

    trains: ClassVar[Mapping[str, Sequence[str]] | None] = {"bilm": ("both",), "flair": ("both",)}
    title: ClassVar[str] = "biLM"
    last_predicted: ClassVar[float] = 0.5  # in one of two directions
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **word_scores("biLM", "bilm"),
        "loss": sum_formula("bilm_loss"),
    }
    exported: ClassVar[str | None] = "BertForMaskedLM"

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the softmax, one for both directions."""
        return {"softmax": model.softmax(key)}

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the summed cross-entropies and correct predictions of both directions."""
        batch = self.model.in_whole_tiles(batch)
        outputs = self.model.logits(params, batch, seed)
        found: Sums = {}
        for logits, targets in zip((outputs["mlm_logits"], outputs["backward_logits"]), bilm_targets(batch), strict=True):
            found = {name: found.get(name, 0.0) + value for name, value in self.word_sums(logits, targets).items()}
        return found

    def counts(self, batch: Batch) -> Sums:
        """Returns the numbers of predictions of both directions, tokens and rows."""
        ahead, back = ((x != IGNORED).sum().astype(jnp.float32) for x in bilm_targets(batch))
        return super().counts(batch) | {"bilm_targets": ahead + back}

    def predicted(self, batch: Mapping[str, Int[np.ndarray, "B _"]]) -> Int[np.ndarray, "B _"]:
        """Returns the predictions of both directions."""
        return np.concatenate(bilm_targets({name: jnp.asarray(array) for name, array in batch.items()}), axis=1)


def bilm_targets(batch: Batch) -> tuple[Int[Array, "B M"], Int[Array, "B M"]]:
    """Returns the targets of the forward and the backward LSTM, or IGNORED. The last token of a text, its [SEP], has no later
    token from which the backward LSTM could predict it."""
    targets = batch["masked_targets"]
    _, exists = backward_positions(batch["masked_positions"], batch["sequence_ids"])
    return targets, jnp.where(exists, targets, IGNORED)
