"""The pretraining losses as sums, which are added over microbatches, devices and batches before the division by the counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

Sums = dict[str, Float[Array, ""]]
"""Name -> sum over a batch, float32."""

IGNORED = -1
"""The target of a position that is not predicted, and the NSP label of a slot without an example."""


@jax.custom_vjp
def cross_entropy(logits: Float[Array, "*shape C"], targets: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    """-log softmax(logits)[targets] in float32; 0 for IGNORED targets.

    This derivative reads the logits once (BERT-Large, 1,280 predicted tokens: 157 MB); automatic differentiation reads them three
    times.
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
    """1.0 where the target has the largest logit, else 0.0, and 0.0 where the target is IGNORED; float32.

    The loss computes the same maximum, which XLA shares; an argmax over the vocabulary took 3 % of a small model's step on a CPU.
    """
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return ((chosen >= logits.max(axis=-1)) & (targets != IGNORED)).astype(jnp.float32)


def batch_counts(batch: dict[str, Num[Array, "B ..."]], measure: str = "mlm") -> Sums:
    """The counts of a batch, float32 scalars: "mlm_targets" and "nsp_examples", which the losses are divided by, and "tokens" and
    "rows" without padding. `measure`, here and below, is the prefix of the names of what predicts tokens, in
    `metrics.scores.TOKENS`: "next_token" for a left-to-right model."""
    return {
        f"{measure}_targets": (batch["masked_targets"] != IGNORED).sum().astype(jnp.float32),
        "nsp_examples": (batch["nsp_labels"] != IGNORED).sum().astype(jnp.float32),
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "rows": (batch["sequence_ids"] != 0).any(axis=1).sum().astype(jnp.float32),
    }


@jax.named_scope("loss")  # its name in a profile
def loss_sums(
    outputs: dict[str, Float[Array, "B ..."]], batch: dict[str, Num[Array, "B ..."]], measure: str = "mlm"
) -> Sums:
    """The summed losses and the correct predictions of both objectives, float32 scalars; those of next sentence prediction only
    if `outputs` has "nsp_logits". Columns of "mlm_logits" beyond the targets are ignored."""
    targets = batch["masked_targets"]
    beyond = outputs["mlm_logits"].shape[1] - targets.shape[1]
    targets = jnp.pad(targets, ((0, 0), (0, beyond)), constant_values=IGNORED)
    sums = {
        f"{measure}_loss": cross_entropy(outputs["mlm_logits"], targets).sum(),
        f"{measure}_correct": correct_predictions(outputs["mlm_logits"], targets).sum(),
    }
    if "nsp_logits" not in outputs:
        return sums
    return sums | {
        "nsp_loss": cross_entropy(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
        "nsp_correct": correct_predictions(outputs["nsp_logits"], batch["nsp_labels"]).sum(),
    }


def row_losses(
    outputs: dict[str, Float[Array, "B ..."]], batch: dict[str, Num[Array, "B ..."]], measure: str = "mlm"
) -> dict[str, Float[Array, " B"]]:
    """The mean losses of each row, float32: "mlm_loss" over its targets, and "nsp_loss" over its examples if `outputs` has
    "nsp_logits". The `outputs` are those of one prediction for each slot of "masked_targets"."""

    def mean(logits: Float[Array, "B S C"], targets: Int[Array, "B S"]) -> Float[Array, " B"]:
        return cross_entropy(logits, targets).sum(1) / jnp.maximum((targets != IGNORED).sum(1), 1)

    predicted = outputs["mlm_logits"][:, : batch["masked_targets"].shape[1]]
    losses = {f"{measure}_loss": mean(predicted, batch["masked_targets"])}
    if "nsp_logits" in outputs:
        losses["nsp_loss"] = mean(outputs["nsp_logits"], batch["nsp_labels"])
    return losses


def pretraining_loss(sums: Sums, counts: Sums, measure: str = "mlm") -> Float[Array, ""]:
    """The mean MLM loss plus the mean NSP loss (original `run_pretraining.py`, without its 1e-5 in the denominator); the mean MLM
    loss alone if there is no "nsp_loss".

    The means are over the global batch; the original averages the means of the cores.
    """
    loss = sums[f"{measure}_loss"] / jnp.maximum(counts[f"{measure}_targets"], 1.0)
    if "nsp_loss" in sums:
        loss += sums["nsp_loss"] / jnp.maximum(counts["nsp_examples"], 1.0)
    return loss
