"""Detects loss spikes, keeps moving averages of the loss in the state, and rolls back to an earlier state.

PaLM (arXiv:2204.02311, section 5.1) was retrained from a checkpoint about 100 steps before a spike, without the 200 to 500
batches around it. The same batches caused no spike when training continued from another checkpoint. Skipping a single bad batch
is cheaper."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Params
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.config import SpikeConfig
from bert_jax.training.loop import LossSpike, Stage
from bert_jax.training.steps import SpikeFilter, TrainState, new_state

log = logging.getLogger(__name__)

LEAST_DEVIATION = 0.01
"""The minimum standard deviation of the loss, as a fraction of the mean loss. It prevents rounding errors from counting as
spikes when the loss is flat."""


@struct.dataclass
class WatchedTrainState(TrainState):
    """The train state of a run with a spike policy. The additional fields are float32 and int32 scalars."""

    loss_mean: Float[Array, ""]
    """The moving average of the losses, excluding spikes."""
    loss_variance: Float[Array, ""]
    """The moving average of the squared differences from the mean."""
    losses: Int[Array, ""]
    """The number of losses in the averages since the start of the phase."""
    spikes: Int[Array, ""]
    """The number of steps skipped because their loss was a spike."""
    spikes_in_a_row: Int[Array, ""]
    skipped_batches: Int[Array, ""]
    """The number of skipped batches. Step n reads the batch with index n + `skipped_batches`."""
    rollbacks: Int[Array, ""]
    """The number of rollbacks."""


def new_watched_state(params: Params, optimizer: optax.GradientTransformation) -> WatchedTrainState:
    """Returns the state before the first step."""
    zeros: dict[str, Any] = {name: jnp.zeros((), dtype) for name, dtype in _own_dtypes().items()}
    return WatchedTrainState(**vars(new_state(params, optimizer)), **zeros)


def _own_dtypes() -> dict[str, Any]:
    """Returns the dtypes of the fields that only a watched state has."""
    names = [field.name for field in dataclasses.fields(WatchedTrainState) if field.name not in TrainState.__dataclass_fields__]
    return {name: jnp.float32 if name.startswith("loss_") else jnp.int32 for name in names}


def watched_layout(layout: TrainState) -> WatchedTrainState:
    """Returns the layout of the watched states of a run whose states without a spike policy have `layout`."""
    scalars: dict[str, Any] = {
        name: jax.ShapeDtypeStruct((), dtype, sharding=layout.step.sharding) for name, dtype in _own_dtypes().items()
    }
    return WatchedTrainState(**vars(layout), **scalars)


def without_watch(state: WatchedTrainState) -> TrainState:
    """Returns the state without the fields of a spike policy."""
    return TrainState(**{name: getattr(state, name) for name in TrainState.__dataclass_fields__})


def with_new_averages(state: WatchedTrainState) -> WatchedTrainState:
    """Returns the state with averages of no losses. The next loss replaces the old averages."""
    return dataclasses.replace(state, losses=_like(state.losses, 0))


def _like(old: jax.Array, value: int) -> jax.Array:
    return jax.device_put(jnp.int32(value), old.sharding)


def is_spike(state: WatchedTrainState, loss: Float[Array, ""], config: SpikeConfig) -> Bool[Array, ""]:
    """Returns whether the loss of the next step is a spike."""
    deviation = jnp.maximum(jnp.sqrt(state.loss_variance), LEAST_DEVIATION * state.loss_mean)
    return (state.losses >= config.window) & (loss > state.loss_mean + config.deviations * deviation)


def spike_filter(config: SpikeConfig, starts: Sequence[int] = ()) -> SpikeFilter:
    """Returns the spike filter, which skips steps whose loss is a spike. The state must be a `WatchedTrainState`.

    The averages start anew at the steps `starts`, the starts of the phases, since a phase with other rows has another loss. The
    filter adds the sums "spikes" (0 or 1) and "spikes_in_a_row".
    """

    def judged(
        state: WatchedTrainState, loss: Float[Array, ""], finite: Bool[Array, ""]
    ) -> tuple[Bool[Array, ""], WatchedTrainState, Sums]:
        if starts:
            is_start = (state.step == jnp.asarray(starts)).any()
            state = dataclasses.replace(state, losses=jnp.where(is_start, 0, state.losses))
        spike = finite & is_spike(state, loss, config)
        state = _with_loss(state, loss, finite & ~spike, spike.astype(jnp.int32), 1.0 / config.window)
        sums = {"spikes": spike.astype(jnp.float32), "spikes_in_a_row": state.spikes_in_a_row.astype(jnp.float32)}
        return finite & ~spike, state, sums

    return judged


def _with_loss(
    state: WatchedTrainState, loss: Float[Array, ""], counts: Bool[Array, ""], spike: Int[Array, ""], share: float
) -> WatchedTrainState:
    """Returns the state with `spike` (0 or 1) added to the number of spikes. If `counts` is True, the loss is also added to the
    averages."""
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


class Rollback:
    """Rolls a run back after a loss spike. The run starts or resumes with `state`, and `begin` returns the state before step
    0."""

    def __init__(
        self,
        config: SpikeConfig,
        state: TrainState,
        checkpoints: Checkpoints,
        layout: TrainState,
        begin: Callable[[], TrainState],
    ):
        self._config, self._checkpoints, self._layout, self._begin = config, checkpoints, layout, begin
        self._times = int(state.rollbacks) if isinstance(state, WatchedTrainState) else 0

    def __call__(self, stage: Stage, spike: LossSpike) -> TrainState:
        """Returns the state to continue from after a spike in `stage`. This is the newest checkpoint at least
        `config.spikes.rollback_steps` steps before the spike. If no kept checkpoint is that old, it is the earliest one, or the
        initial state if there is no checkpoint. Removes later checkpoints, and skips the batches between this state and the
        spike.

        If the run is killed before its next checkpoint, the resumed run reaches the spike again and rolls back again. Raises
        UserError after `config.spikes.max_rollbacks` rollbacks.
        """
        config, times = self._config, self._times
        if times >= config.max_rollbacks:
            raise UserError(
                f"the loss spiked in {counted(spike.in_a_row, 'step')} in a row up to step {spike.step:,}, after the run "
                f"had rolled back {counted(times, 'time')} (config.spikes.max_rollbacks); the checkpoints are from before the "
                f"spike; lower the learning rate, or look at the batch with --replay={spike.step}"
            )
        until = max(0, spike.step - spike.in_a_row - config.rollback_steps)
        state = self._checkpoints.restore_latest(self._layout, until=until, or_earliest=True)
        if state is None:
            state = self._begin()
        elif int(state.step) > until:
            log.warning(
                "there is no checkpoint up to step %s (config.spikes.rollback_steps=%d), so the earliest one is used; to keep "
                "older ones, raise config.checkpoints.keep",
                f"{until:,}",
                config.rollback_steps,
            )
        step = int(state.step)
        skipped = stage.skipped_batches + spike.step - step
        log.warning(
            "the loss spiked in %s in a row up to step %s: "
            "rolling back to step %s and skipping %s (rollback %d of at most %d)",
            counted(spike.in_a_row, "step"),
            f"{spike.step:,}",
            f"{step:,}",
            counted(spike.step - step, "batch"),
            times + 1,
            config.max_rollbacks,
        )
        assert isinstance(state, WatchedTrainState)
        self._times += 1
        return dataclasses.replace(
            state,
            spikes_in_a_row=_like(state.spikes_in_a_row, 0),  # the state may be from between the spikes
            skipped_batches=_like(state.skipped_batches, skipped),
            rollbacks=_like(state.rollbacks, self._times),
        )
