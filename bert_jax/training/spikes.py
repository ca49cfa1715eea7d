"""Spikes of the loss: which steps count as one, and the state that remembers the losses before.

PaLM (arXiv:2204.02311, section 5.1) was trained again from a checkpoint some 100 steps before a spike, without the 200 to 500
batches around it; the same batches did no harm to other weights. A single bad batch is left out more cheaply.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Params
from bert_jax.training.config import SpikeConfig
from bert_jax.training.steps import SpikeFilter, TrainState, new_state

LEAST_DEVIATION = 0.01
"""The standard deviation of the loss counts as at least this part of its mean, so that a quiet loss has no spikes of rounding."""


class LossSpike(Exception):
    """Raised after enough spikes of the loss in a row that the run must roll back."""

    def __init__(self, step: int, in_a_row: int):
        super().__init__(f"{in_a_row} spikes in a row up to step {step}")
        self.step, self.in_a_row = step, in_a_row


@struct.dataclass
class WatchedTrainState(TrainState):
    """The state of a run with a policy for spikes; all float32 and int32 scalars."""

    loss_mean: Float[Array, ""]
    """The moving average of the losses, spikes left out."""
    loss_variance: Float[Array, ""]
    """That of the squared differences from it."""
    losses: Int[Array, ""]
    """The number of losses in them."""
    spikes: Int[Array, ""]
    """Steps left out because their loss was a spike."""
    spikes_in_a_row: Int[Array, ""]
    skipped_batches: Int[Array, ""]
    """The number of skipped batches: each step reads the batch of this many steps later."""
    rollbacks: Int[Array, ""]
    """The number of times that the run has gone back."""


def new_watched_state(params: Params, optimizer: optax.GradientTransformation) -> WatchedTrainState:
    """The state before the first step."""
    names = [field.name for field in dataclasses.fields(WatchedTrainState) if field.name not in TrainState.__dataclass_fields__]
    zeros: dict[str, Any] = {name: jnp.zeros((), jnp.float32 if name.startswith("loss_") else jnp.int32) for name in names}
    return WatchedTrainState(**vars(new_state(params, optimizer)), **zeros)


def is_spike(state: WatchedTrainState, loss: Float[Array, ""], config: SpikeConfig) -> Bool[Array, ""]:
    """Whether the loss of the next step is a spike."""
    deviation = jnp.maximum(jnp.sqrt(state.loss_variance), LEAST_DEVIATION * state.loss_mean)
    return (state.losses >= config.window) & (loss > state.loss_mean + config.deviations * deviation)


def spike_filter(config: SpikeConfig) -> SpikeFilter:
    """The judge that leaves out the steps whose loss is a spike, for the state of `new_watched_state`.

    Its sums are "spikes" (0 or 1) and "spikes_in_a_row".
    """

    def judged(
        state: WatchedTrainState, loss: Float[Array, ""], finite: Bool[Array, ""]
    ) -> tuple[Bool[Array, ""], WatchedTrainState, Sums]:
        spike = finite & is_spike(state, loss, config)
        state = _with_loss(state, loss, finite & ~spike, spike.astype(jnp.int32), 1.0 / config.window)
        sums = {"spikes": spike.astype(jnp.float32), "spikes_in_a_row": state.spikes_in_a_row.astype(jnp.float32)}
        return finite & ~spike, state, sums

    return judged


def _with_loss(
    state: WatchedTrainState, loss: Float[Array, ""], counts: Bool[Array, ""], spike: Int[Array, ""], share: float
) -> WatchedTrainState:
    """The state with the loss in its averages, if it `counts`, and with the `spike` (0 or 1) counted."""
    is_first = state.losses == 0
    away = loss - state.loss_mean
    mean = jnp.where(is_first, loss, state.loss_mean + share * away)
    variance = jnp.where(is_first, 0.0, (1.0 - share) * (state.loss_variance + share * jnp.square(away)))
    return dataclasses.replace(
        state,
        loss_mean=jnp.where(counts, mean, state.loss_mean),
        loss_variance=jnp.where(counts, variance, state.loss_variance),
        losses=state.losses + counts.astype(jnp.int32),
        spikes=state.spikes + spike,
        spikes_in_a_row=(state.spikes_in_a_row + 1) * spike,
    )
