"""The objectives of training: both pretraining losses together (paper section 3.1), or that of a labelled task (section 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bert_jax.heads.bert_with_head import BertWithHead
from bert_jax.heads.head import TaskHead
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Seed
from bert_jax.model.pretraining import INPUTS, BertForPreTraining
from bert_jax.training.label_losses import LabelLoss, hidden_state_difference, label_counts, label_loss_sums
from bert_jax.training.losses import Sums, batch_counts, loss_sums, pretraining_loss

Batch = dict[str, Num[Array, "B ..."]]
"""The arrays of a batch by their names."""
Params = Mapping[str, Any]
"""The parameters of a model: nested dictionaries of arrays."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss as sums that add over microbatches and devices, and are divided at last."""

    counts: Callable[[Batch], Sums]
    """What the sums will be divided by, from the batch alone."""
    sums: Callable[[Params, Batch, Seed | None], Sums]
    """(parameters, batch, dropout seed; None is evaluation) -> float32 scalars."""
    loss: Callable[[Sums, Sums], Float[Array, ""]]
    """(sums, counts) -> the scalar to differentiate."""


def forward(
    config: ModelConfig, params: Params, batch: Batch, seed: Seed | None, next_sentence: bool = True
) -> dict[str, Float[Array, "B ..."]]:
    """The pretraining model's logits on a batch; `seed` None is evaluation."""
    inputs = (batch[name] for name in INPUTS)
    outputs = BertForPreTraining(config, next_sentence).apply({"params": params}, *inputs, seed, method="logits")
    return cast(dict[str, Float[Array, "B ..."]], outputs)


def pretraining_objective(config: ModelConfig, *, next_sentence: bool = True) -> Objective:
    """Masked language modelling and, with `next_sentence`, next sentence prediction."""

    def sums(params: Params, batch: Batch, seed: Seed | None) -> Sums:
        return loss_sums(forward(config, params, batch, seed, next_sentence), batch)

    return Objective(batch_counts, sums, pretraining_loss)


PRETRAINING: dict[str, Callable[..., Objective]] = {"bert": pretraining_objective}
"""The objectives of pretraining by their names in `config.objective`: functions of a ModelConfig and `next_sentence`, whether
rows hold pairs. To add one: its function here, and its name."""


def label_objective(config: ModelConfig, head: TaskHead, settings: LabelLoss, frozen: tuple[str, ...] = ()) -> Objective:
    """A labelled task's loss on packed rows (`examples/labelled.py`).

    The `frozen` parts of the parameters get no gradient, and none is computed for them. With "teacher_logits" in the batch
    (shaped as the model's own), and "teacher_hidden_states" [B, S, L, D], the loss compares with the teacher too.
    """

    def sums(params: Params, batch: Batch, seed: Seed | None) -> Sums:
        held = {part: jax.lax.stop_gradient(tree) if part in frozen else tree for part, tree in params.items()}
        model, variables = BertWithHead(config, head), {"params": held}
        if "teacher_hidden_states" not in batch:
            return label_loss_sums(cast(Array, model.apply(variables, batch, seed, method="logits")), batch, head, settings)
        outputs = cast(dict[str, Array], model.apply(variables, batch, seed))
        total = label_loss_sums(outputs["logits"], batch, head, settings)
        return total | {"hidden_difference": hidden_state_difference(outputs["hidden_states"], batch)}

    def counts(batch: Batch) -> Sums:
        return label_counts(batch, head, settings)

    def loss(sums: Sums, counts: Sums) -> Float[Array, ""]:
        loss = sums["loss"] / jnp.maximum(counts["weight"], 1e-6)
        if "hidden_difference" in sums:
            loss += settings.hidden_weight * sums["hidden_difference"] / jnp.maximum(counts["tokens"], 1.0)
        return loss

    return Objective(counts, sums, loss)
