"""The pretraining losses as sums, which add over microbatches, devices and batches; the division comes last."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

Sums = dict[str, Float[Array, ""]]
"""Sums over a batch by their names, float32."""

IGNORED = -1
"""The target of a position that is not predicted, and the NSP label where there is no example."""


@jax.custom_vjp
def cross_entropy(logits: Float[Array, "*shape C"], targets: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    """-log softmax(logits)[targets] in float32; IGNORED targets give 0.

    Its derivative is one pass over the logits, which for BERT-Large and 1,280 predicted words are 157 MB; that of its parts makes
    three.
    """
    return _cross_entropy_forward(logits, targets)[0]


def _cross_entropy_forward(
    logits: Float[Array, "*shape C"], targets: Int[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], tuple[Float[Array, "*shape C"], Int[Array, "*shape"], Float[Array, "*shape"]]]:
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    total = jax.nn.logsumexp(logits, axis=-1)
    return jnp.where(targets == IGNORED, 0.0, total - chosen), (logits, targets, total)


def _cross_entropy_backward(
    residual: tuple[Float[Array, "*shape C"], Int[Array, "*shape"], Float[Array, "*shape"]], g: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape C"], None]:
    logits, targets, total = residual
    g = jnp.where(targets == IGNORED, 0.0, g)
    classes = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    one_hot = (classes == targets[..., None]).astype(jnp.float32)
    return g[..., None] * (jnp.exp(logits - total[..., None]) - one_hot), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def correct_predictions(logits: Float[Array, "*shape C"], targets: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1.0 where no logit is larger than the target's, 0.0 elsewhere and where the target is IGNORED; float32.

    The loss computes this maximum anyway; an argmax over a vocabulary cost 3 % of a small model's step on a CPU.
    """
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return ((chosen >= logits.max(axis=-1)) & (targets != IGNORED)).astype(jnp.float32)


def batch_counts(batch: dict[str, Num[Array, "B ..."]]) -> Sums:
    """The counts that the losses are divided by, and those of real tokens and rows, from the batch alone (float32 scalars)."""
    return {
        "mlm_targets": (batch["masked_targets"] != IGNORED).sum().astype(jnp.float32),
        "nsp_examples": (batch["nsp_labels"] != IGNORED).sum().astype(jnp.float32),
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "rows": (batch["sequence_ids"] != 0).any(axis=1).sum().astype(jnp.float32),
    }


def loss_sums(outputs: dict[str, Float[Array, "B ..."]], batch: dict[str, Num[Array, "B ..."]]) -> Sums:
    """The summed losses and correct predictions of both objectives (float32 scalars); those of next sentence prediction only
    where there are "nsp_logits". Columns of "mlm_logits" beyond the targets do not count."""
    targets = batch["masked_targets"]
    beyond = outputs["mlm_logits"].shape[1] - targets.shape[1]
    targets = jnp.pad(targets, ((0, 0), (0, beyond)), constant_values=IGNORED)
    sums = {
        "mlm_loss": cross_entropy(outputs["mlm_logits"], targets).sum(),
        "mlm_correct": correct_predictions(outputs["mlm_logits"], targets).sum(),
    }
    if "nsp_logits" not in outputs:
        return sums
    return sums | {
        "nsp_loss": cross_entropy(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
        "nsp_correct": correct_predictions(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
    }


def pretraining_loss(sums: Sums, counts: Sums) -> Float[Array, ""]:
    """Mean MLM loss + mean NSP loss, weight one each (original `run_pretraining.py`; its 1e-5 in the denominator left out);
    without "nsp_loss" the first alone.

    The means are over the whole global batch, where the original averaged each core's own mean.
    """
    loss = sums["mlm_loss"] / jnp.maximum(counts["mlm_targets"], 1.0)
    if "nsp_loss" in sums:
        loss += sums["nsp_loss"] / jnp.maximum(counts["nsp_examples"], 1.0)
    return loss
