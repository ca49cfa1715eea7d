"""The training step and the evaluation step as pure functions, without mesh or I/O; `pretraining/program.py` and
`finetuning/program.py` jit them with shardings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Integer, Num, PyTree

from bert_jax.model.layers import Seed, hash_word
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Params
from bert_jax.objectives.objective import Objective
from bert_jax.training.optimizers import stacked

OPTIMIZER = "optimizer"
"""The name of the update in a profile; parts of the model are named by their Flax modules."""


@struct.dataclass
class TrainState:
    """All arrays that training changes: the content of a checkpoint."""

    step: Int[Array, ""]
    """int32: steps done, the skipped ones included; the number of the next batch."""
    params: Params
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    """int32: steps whose loss or gradient norm was not finite; they change `step` and the two counters only."""
    skipped_in_a_row: Int[Array, ""]
    """int32: the number of skipped steps since the last step that was not skipped."""


def new_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # three buffers: a shared one could not be donated
    return TrainState(step=step, params=params, opt_state=optimizer.init(params), skipped=skipped, skipped_in_a_row=in_a_row)


class StepSeed(NamedTuple):
    """The numbers from which all dropout masks of a step follow, so that a resumed run draws the same masks."""

    seed: int | Integer[Array, ""]
    """The seed of the run."""
    step: Int[Array, ""]
    """The number of the step."""


def dropout_seed(seed: int | Integer[Array, ""], step: Int[Array, ""], microbatch: Int[Array, ""]) -> Seed:
    """The seed of all dropout masks of one microbatch, from the seed of the run, the step and the number of the microbatch."""
    of_step = hash_word(jnp.asarray(seed, jnp.uint32) + step.astype(jnp.uint32) * np.uint32(0x9E3779B9))
    return hash_word(of_step + microbatch.astype(jnp.uint32))


def split_rows(batch: Batch, parts: int) -> dict[str, Num[Array, "{parts} _ ..."]]:
    """Arrays [B, ...] as [parts, B / parts, ...]. A part takes every parts-th row, so that each device's rows stay on it."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


Gradients = Callable[[Objective, Params, Batch, Sums, StepSeed, int], tuple[Params, Sums]]
"""The function `gradients`, or its counterpart for sharded parameters in `data_parallel.py`."""


def gradients(
    objective: Objective, params: Params, batch: Batch, counts: Sums, step_seed: StepSeed, accumulation: int
) -> tuple[Params, Sums]:
    """(the gradient of the loss, the objective's sums) over the rows of `batch`.

    `counts` belong to the whole batch, of which these rows may be a part. With `accumulation` > 1 the rows are processed in
    that many microbatches. The loss of each is divided by the counts of the *whole* batch, so that the gradients add up to
    the gradient of the whole batch (except for dropout) even if the microbatches have different numbers of targets. Gradients are
    accumulated in float32, in any dtype of the parameters.
    """

    def loss(params: Params, rows: Batch, microbatch: Int[Array, ""]) -> tuple[Float[Array, ""], Sums]:
        seed, step = step_seed
        sums = objective.sums(params, rows, dropout_seed(seed, step, microbatch))
        return objective.loss(sums, counts), sums

    differentiate = jax.grad(loss, has_aux=True)
    if accumulation == 1:
        return differentiate(params, batch, jnp.zeros((), jnp.int32))

    def add_one(
        carry: tuple[Params, Sums], rows_and_index: tuple[Batch, Int[Array, ""]]
    ) -> tuple[tuple[Params, Sums], None]:
        found = differentiate(params, *rows_and_index)
        return jax.tree.map(lambda total, one: total + one.astype(jnp.float32), carry, found), None

    rows = split_rows(batch, accumulation)
    indices = jnp.arange(accumulation, dtype=jnp.int32)
    first = differentiate(params, jax.tree.map(lambda x: x[0], rows), indices[0])
    first = jax.tree.map(lambda x: x.astype(jnp.float32), first)
    total, _ = jax.lax.scan(add_one, first, jax.tree.map(lambda x: x[1:], (rows, indices)))
    return total


SpikeFilter = Callable[[Any, Float[Array, ""], Bool[Array, ""]], tuple[Bool[Array, ""], Any, Sums]]
"""(state, loss of the batch, whether loss and gradient are finite) -> (whether the step changes the weights, the state with the
judge's own counts, further sums of the step). See `training/spikes.py`."""


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """The functions and numbers by which a step turns a batch into an update; the same in all steps of a phase."""

    objective: Objective
    optimizer: optax.GradientTransformation
    """Maps gradients to the direction of the update, which is subtracted from the parameters times the learning rate."""
    learning_rate: Callable[[Int[Array, ""]], Float[Array, ""]]
    """Step -> learning rate."""
    clip_norm: float
    """The largest global norm of the gradient over the whole batch (the original clips the gradient of each core); 0 clips
    none."""
    seed: int | Integer[Array, ""]
    """The seed of the run, from which the dropout masks follow."""
    accumulation: int = 1
    """The number of microbatches whose gradients are accumulated."""
    learning_rate_multipliers: Callable[[Int[Array, ""]], PyTree[Float[Array, " ..."]]] | None = None
    """Step -> a factor of the learning rate for every parameter, in arrays that broadcast against the parameters; gradients with
    the factor 0 are left out of the norm too. None is 1 for all."""
    gradients: Gradients = gradients
    spike_filter: SpikeFilter | None = None
    """Decides whether a step changes the weights; None where every finite one does."""


def train_step(state: TrainState, batch: Batch, *, rule: UpdateRule) -> tuple[TrainState, Sums]:
    """(the state after one update, float32 scalars).

    `state` holds the parameters, the optimizer's state and the counters. `batch` holds the arrays [B, ...] that the objective
    reads: in pretraining `input_ids`, `token_type_ids`, `position_ids` and `sequence_ids` [B, L], `masked_positions` and
    `masked_targets` [B, M], `cls_positions` and `nsp_labels` [B, P]; for a task the arrays of `data/rows.py`. `rule` is
    described at `UpdateRule`.

    The scalars are the sums and counts of the objective, "steps" (1 or 0), "skipped" (0 or 1), "skipped_in_a_row", "grad_norm",
    and the "learning_rate" of this step. `add_sums` adds several steps; the means are computed last.

    If the loss or the norm of the gradient is not finite, the parameters and the optimizer's state stay as they are, the sums are
    0, and the step is counted as skipped: a bad batch costs one step. `rule.spike_filter` counts the steps that it leaves out.
    """
    objective = rule.objective
    counts = objective.counts(batch)
    step_seed = StepSeed(rule.seed, state.step)
    grads, sums = rule.gradients(objective, state.params, batch, counts, step_seed, rule.accumulation)
    sums |= counts
    factors = rule.learning_rate_multipliers(state.step) if rule.learning_rate_multipliers else None
    if factors is not None:
        grads = jax.tree.map(lambda g, f: jnp.where(f > 0, g, 0.0), grads, factors)
    with jax.named_scope(OPTIMIZER):
        norm = optax.tree.norm(grads)
        finite = changes = jnp.isfinite(norm) & jnp.isfinite(loss := objective.loss(sums, sums))
        judged: Sums = {}
        if rule.spike_filter:
            changes, state, judged = rule.spike_filter(state, loss, finite)
        if rule.clip_norm:
            factor = rule.clip_norm / jnp.maximum(norm, rule.clip_norm)
            grads = jax.tree.map(lambda g: g * factor, grads)
        rate = rule.learning_rate(state.step)
        direction, opt_state = rule.optimizer.update(grads, state.opt_state, state.params)
        if factors is not None:
            direction = jax.tree.map(jnp.multiply, direction, factors)
        params = jax.tree.map(lambda p, d: p - rate * d, state.params, direction)

    @jax.named_scope(OPTIMIZER)
    def if_changed(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(changes, n, o), new, old)

    bad = 1 - finite.astype(jnp.int32)
    state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=if_changed(params, state.params),
        opt_state=if_changed(opt_state, state.opt_state),
        skipped=state.skipped + bad,
        skipped_in_a_row=(state.skipped_in_a_row + 1) * bad,
    )
    sums = {name: jnp.where(changes, total, 0.0) for name, total in sums.items()}
    return state, sums | judged | {
        "steps": changes.astype(jnp.float32),
        "skipped": bad.astype(jnp.float32),
        "skipped_in_a_row": state.skipped_in_a_row.astype(jnp.float32),
        "grad_norm": jnp.where(changes, norm, 0.0),
        "learning_rate": jnp.float32(rate),
    }


def gradient_norms(state: TrainState, batch: Batch, *, rule: UpdateRule) -> tuple[PyTree[Float[Array, " ..."]], Sums]:
    """(the L2 norm of the gradient of every parameter, before clipping; the sums and counts of the objective), as in `train_step`
    with this state and batch.

    For stacked layers, one norm per layer: [N].
    """
    counts = rule.objective.counts(batch)
    grads, sums = rule.gradients(
        rule.objective, state.params, batch, counts, StepSeed(rule.seed, state.step), rule.accumulation
    )

    def norm(gradient: Float[Array, " ..."], is_stacked: bool) -> Float[Array, " ..."]:
        return jnp.sqrt(jnp.square(gradient.astype(jnp.float32)).sum(tuple(range(int(is_stacked), gradient.ndim))))

    return jax.tree.map(norm, grads, stacked(state.params)), sums | counts


def eval_step(params: Params, batch: Batch, *, objective: Objective) -> Sums:
    """The objective's sums and counts of one batch, without dropout. Rows of padding have no targets and add 0."""
    return objective.sums(params, batch, None) | objective.counts(batch)


def add_sums(window: Sums, sums: Sums) -> Sums:
    """`window`, the sums of earlier steps, plus a step's, still on the device. The learning rate is replaced by the step's."""
    return {name: window[name] + value if window and name != "learning_rate" else value for name, value in sums.items()}
