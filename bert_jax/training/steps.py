"""Defines `Program`, the training step and the evaluation of a run. Both are pure functions, and are compiled for the devices
of a mesh.

`pretraining/program.py` and `finetuning/program.py` make a `Program` from an experiment.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Integer, Num, PyTree

from bert_jax.model.layers import Seed, hash_word
from bert_jax.model.pretraining import whole_tiles
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.model import Batch, Boxed, Params, unboxed
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.sharding.rules import (
    BATCH,
    parameter_shardings,
    state_shardings,
    supports_zero,
    with_shardings,
    zero_shardings,
)
from bert_jax.training.optimizers import stacked

AbstractOrArray = jax.Array | jax.ShapeDtypeStruct

OPTIMIZER = "optimizer"
"""The name of the optimizer update in a profile. Parts of the model have the names of their Flax modules."""


@struct.dataclass
class TrainState:
    """All arrays that training changes. A checkpoint contains these arrays."""

    step: Int[Array, ""]
    """int32: the number of finished steps, including skipped steps. Without rollbacks, it is also the index of the next
    batch."""
    params: Params
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    """int32: the number of steps with a non-finite loss, gradient norm or learning rate. Such a step changes only `step` and the
    counters of skipped steps."""
    skipped_in_a_row: Int[Array, ""]
    """int32: the number of consecutive skipped steps."""


def new_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the state before the first step."""
    # Each counter has its own buffer, since a shared buffer could not be donated.
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
    return TrainState(step=step, params=params, opt_state=optimizer.init(params), skipped=skipped, skipped_in_a_row=in_a_row)


def skipped_batches(state: TrainState) -> int:
    """Returns the number of batches that the run skipped in rollbacks (see `spikes.py`). Step n reads the batch with index n +
    this number."""
    return int(getattr(state, "skipped_batches", 0))


class StepSeed(NamedTuple):
    """The numbers that determine all dropout masks of a step, so that a resumed run draws the same masks."""

    seed: int | Integer[Array, ""]
    """The seed of the run."""
    step: Int[Array, ""]
    """The index of the step."""


def dropout_seed(seed: int | Integer[Array, ""], step: Int[Array, ""], microbatch: Int[Array, ""]) -> Seed:
    """Derives the seed of a microbatch's dropout masks from the run's seed, the step and the index of the microbatch."""
    of_step = hash_word(jnp.asarray(seed, jnp.uint32) + step.astype(jnp.uint32) * np.uint32(0x9E3779B9))
    return hash_word(of_step + microbatch.astype(jnp.uint32))


def split_rows(batch: Batch, parts: int) -> dict[str, Num[Array, "{parts} _ ..."]]:
    """Splits arrays [B, ...] into [parts, B / parts, ...]. Part i has the rows i, i + parts, ..., so that every row stays on
    its device."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


def in_whole_tiles(batch: Batch, mesh: Mesh) -> Batch:
    """Returns a batch for a program on `mesh`. On a TPU, unused slots are added to "masked_positions" and "masked_targets", so
    that the logits of any objective fill whole tiles (see `whole_tiles`)."""
    platform, fills = mesh.abstract_mesh.abstract_device.platform, {"masked_positions": 0, "masked_targets": IGNORED}
    return batch | {name: whole_tiles(batch[name], platform, fill) for name, fill in fills.items() if name in batch}


Gradients = Callable[[Objective, Params, Batch, Sums, StepSeed, int], tuple[Params, Sums]]
"""The function `gradients`, or its variant for sharded parameters in `data_parallel.py`."""


def gradients(
    objective: Objective, params: Params, batch: Batch, counts: Sums, step_seed: StepSeed, accumulation: int
) -> tuple[Params, Sums]:
    """Returns (gradient of the loss, the objective's sums) over the rows of `batch`.

    `counts` are the counts of the whole batch, while `batch` may hold only a part of its rows. With `accumulation` > 1, the
    rows are processed in that many microbatches. Each loss is divided by the counts of the *whole* batch. The gradients
    therefore add up to the gradient of the whole batch (except for dropout), even if the microbatches have different numbers of
    targets. Gradients are accumulated in float32 for any dtype of the parameters."""

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
"""The type of a spike filter: (state, loss of the batch, whether the loss, the gradient and the learning rate are finite) ->
(whether the step changes the weights, the state with the filter's own counts, further sums of the step). See
`training/spikes.py`."""


Scalars = Mapping[str, Num[Array, ""]]
"""The numbers that may differ between runs that share a program. They are "seed" (for dropout) and the inputs of
`Program.learning_rate`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """The functions of a training step and an evaluation, and the placement of the arrays on the devices of a mesh.

    Runs that differ only in their scalars and data share a program and its compiled functions. `train_step`, `gradient_norms`
    and `evaluate` are pure functions. The properties and methods below compile them.
    """

    objective: Objective
    """The objective. Its model has the fused kernels that run on the mesh (`sharding.kernels.resolve`)."""
    parameters: Boxed
    """The boxed shapes of the parameters."""
    mesh: Mesh
    optimizer: optax.GradientTransformation
    """Maps gradients to a direction. The step subtracts the learning rate times this direction from the parameters."""
    learning_rate: Callable[[Int[Array, ""], Scalars], Float[Array, ""]]
    """(step, scalars) -> learning rate."""
    clip_norm: float
    """The maximum global norm of the gradient of the whole batch (the original clips the gradient of each core). 0 disables
    clipping."""
    learning_rate_multipliers: Callable[[Int[Array, ""]], PyTree[Float[Array, " ..."]]] | None = None
    """Maps the step to a learning-rate factor for every parameter. The factors are arrays that broadcast against the
    parameters. Gradients with factor 0 are not included in the norm. None: all factors are 1."""
    new_state: Callable[[Params, optax.GradientTransformation], TrainState] = new_state
    spike_filter: SpikeFilter | None = None
    """Decides whether a step changes the weights. If None, every step with a finite loss, gradient and learning rate
    changes them."""
    teacher: Teacher | None = None
    """The teacher of a distillation, with its arrays on the mesh."""
    zero_sharding: bool = False
    """Whether the state is also sharded over the data axis (ZeRO)."""
    reduce_dtype: str = ""
    """The dtype in which `data_parallel.gradients_over_data` sums gradients over devices. If it is "", XLA sums the
    gradients."""
    logits: Callable[[Params, Batch], Float[Array, "B ..."]] | None = None
    """The function that an evaluation computes on a batch. If None, an evaluation computes the objective's sums and counts."""
    _compiled: set[tuple[Any, ...]] = dataclasses.field(default_factory=set, repr=False)

    # -------------------------------------------------------------------------------------------------------- pure functions
    def train_step(
        self, state: TrainState, batch: Batch, scalars: Scalars, teacher: Params | None = None, *, accumulation: int = 1
    ) -> tuple[TrainState, Sums]:
        """Performs one update. Returns (the new state, float32 scalars).

        `state` holds the parameters, the optimizer's state and the counters. `batch` holds the arrays [B, ...] that the
        objective reads. In pretraining, they are `input_ids`, `token_type_ids`, `position_ids` and `sequence_ids` [B, L],
        `masked_positions` and `masked_targets` [B, M], `cls_positions` and `nsp_labels` [B, P]. For a task, `data/rows.py`
        describes them. The gradients of `accumulation` microbatches are added. `teacher` holds the parameters of
        `self.teacher`.

        The scalars are the sums and counts of the objective, "steps" (1 or 0), "skipped" (0 or 1), "skipped_in_a_row",
        "grad_norm", and the "learning_rate" of this step. `add_sums` adds the scalars of several steps, and means are only
        computed from the totals.

        If the loss, the norm of the gradient or the learning rate is not finite, the parameters and the optimizer's state do not
        change. The sums are 0, and the step is counted as skipped, so a bad batch costs only one step. The `spike_filter` counts
        the steps that it skips.
        """
        objective, grads, sums = self._gradient(state, batch, scalars, teacher, accumulation)
        factors = self.learning_rate_multipliers(state.step) if self.learning_rate_multipliers else None
        if factors is not None:
            grads = jax.tree.map(lambda g, f: jnp.where(f > 0, g, 0.0), grads, factors)
        with jax.named_scope(OPTIMIZER):
            norm, rate = optax.tree.norm(grads), self.learning_rate(state.step, scalars)
            finite = changes = jnp.isfinite(norm) & jnp.isfinite(loss := objective.loss(sums, sums)) & jnp.isfinite(rate)
            judged: Sums = {}
            if self.spike_filter:
                changes, state, judged = self.spike_filter(state, loss, finite)
            if self.clip_norm:
                factor = self.clip_norm / jnp.maximum(norm, self.clip_norm)
                grads = jax.tree.map(lambda g: g * factor, grads)
            direction, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
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

    def gradient_norms(
        self, state: TrainState, batch: Batch, scalars: Scalars, teacher: Params | None = None, *, accumulation: int = 1
    ) -> tuple[PyTree[Float[Array, " ..."]], Sums]:
        """Returns (the L2 norm of every parameter's gradient before clipping, the objective's sums and counts), as in
        `train_step` with these arguments.

        For stacked layers, one norm per layer: [N].
        """
        _, grads, sums = self._gradient(state, batch, scalars, teacher, accumulation)

        def norm(gradient: Float[Array, " ..."], is_stacked: bool) -> Float[Array, " ..."]:
            return jnp.sqrt(jnp.square(gradient.astype(jnp.float32)).sum(tuple(range(int(is_stacked), gradient.ndim))))

        return jax.tree.map(norm, grads, stacked(state.params)), sums

    def _gradient(
        self, state: TrainState, batch: Batch, scalars: Scalars, teacher: Params | None, accumulation: int
    ) -> tuple[Objective, Params, Sums]:
        """Returns (the objective of the step, the gradient of its loss, its sums and counts)."""
        objective = self.objective
        if self.teacher is not None and teacher is not None:
            objective = objective.with_teacher(dataclasses.replace(self.teacher, params=teacher))
        batch = in_whole_tiles(batch, self.mesh)
        counts = objective.counts(batch)
        step_seed = StepSeed(scalars["seed"], state.step)
        grads, sums = self._gradients(objective, state.params, batch, counts, step_seed, accumulation)
        return objective, grads, sums | counts

    def evaluate(self, params: Params, batch: Batch) -> Sums | Float[Array, "B ..."]:
        """Evaluates a batch without dropout. Returns the batch's `logits`, or the objective's sums and counts if `self.logits`
        is None. Padding rows have no targets and add 0."""
        if self.logits is not None:
            return self.logits(params, batch)
        batch = in_whole_tiles(batch, self.mesh)
        return self.objective.sums(params, batch, None) | self.objective.counts(batch)

    # --------------------------------------------------------------------------------------------------------------- on the mesh
    @functools.cached_property
    def state(self) -> TrainState:
        """The abstract state, which has the shape and sharding of each array."""
        abstract = jax.eval_shape(lambda params: self.new_state(params, self.optimizer), unboxed(self.parameters))
        params = parameter_shardings(self.parameters, self.mesh)
        if self.zero_sharding:
            params = zero_shardings(params, abstract.params, self.mesh)
        return with_shardings(abstract, state_shardings(abstract, abstract.params, params, self.mesh))

    @functools.cached_property
    def shardings(self) -> TrainState:
        """The shardings of the state."""
        return jax.tree.map(lambda x: x.sharding, self.state)

    @functools.cached_property
    def _gradients(self) -> Gradients:
        if not self.reduce_dtype or not supports_zero(self.mesh):
            return gradients
        from bert_jax.training.data_parallel import gradients_over_data  # `data_parallel` imports this module

        return gradients_over_data(self.shardings.params, self.mesh, self.objective.model.config, self.reduce_dtype)

    @functools.cached_property
    def init_state(self) -> jax.stages.Wrapped:
        """The jitted function that returns the state before step 0. It is called with (make, *arguments), where
        `make(*arguments)` returns the parameters."""

        def init_state(make: Callable[..., Params], *arguments: Any) -> TrainState:
            return self.new_state(make(*arguments), self.optimizer)

        return jax.jit(init_state, static_argnums=0, out_shardings=self.shardings)

    def arguments(
        self, state: TrainState, batch: Mapping[str, AbstractOrArray], scalars: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Returns the arguments of the compiled steps. In a distillation, the teacher's parameters are added to the given
        arguments."""
        return (state, batch, scalars) if self.teacher is None else (state, batch, scalars, self.teacher.params)

    @property
    def _argument_shardings(self) -> tuple[PyTree[NamedSharding], ...]:
        shardings = self.shardings, NamedSharding(self.mesh, BATCH), NamedSharding(self.mesh, PartitionSpec())
        return shardings if self.teacher is None else (*shardings, jax.tree.map(lambda x: x.sharding, self.teacher.params))

    @functools.cached_property
    def training_step(self) -> Callable[[int], jax.stages.Wrapped]:
        """Maps the number of microbatches to the jitted `train_step`, which is cached. The memory of the old state is
        donated."""

        def jitted(accumulation: int) -> jax.stages.Wrapped:
            step = functools.partial(self.train_step, accumulation=accumulation)
            shardings = self._argument_shardings
            return jax.jit(step, in_shardings=shardings, out_shardings=(self.shardings, None), donate_argnums=0)

        return functools.cache(jitted)

    def norms_step(self, accumulation: int) -> jax.stages.Wrapped:
        """Returns the jitted `gradient_norms`. Its results are replicated on every device."""
        step = functools.partial(self.gradient_norms, accumulation=accumulation)
        whole = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(step, in_shardings=self._argument_shardings, out_shardings=whole)

    @functools.cached_property
    def evaluation_step(self) -> jax.stages.Wrapped:
        """The jitted `evaluate`, which takes `gathered` parameters and returns results that are replicated on every device."""
        shardings = parameter_shardings(self.parameters, self.mesh), NamedSharding(self.mesh, BATCH)
        return jax.jit(self.evaluate, in_shardings=shardings, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

    @functools.cached_property
    def gathered(self) -> jax.stages.Wrapped:
        """The jitted function that gathers parameters, so that they are not sharded over the data axis."""
        return jax.jit(lambda params: params, out_shardings=parameter_shardings(self.parameters, self.mesh))

    @functools.cached_property
    def copy(self) -> jax.stages.Wrapped:
        """The jitted function that copies parameters in one program. The copy stays valid after a step has donated the memory
        of the state."""
        return jax.jit(functools.partial(jax.tree.map, jnp.copy), out_shardings=self.shardings.params)

    def is_new(self, function: str, batch: Mapping[str, np.ndarray]) -> bool:
        """Returns whether `function` must be compiled, because it has not been called with the shapes of `batch` before."""
        key = (function, *((name, batch[name].shape) for name in sorted(batch)))
        seen = key in self._compiled
        self._compiled.add(key)
        return not seen


def add_sums(window: Sums, sums: Sums) -> Sums:
    """Adds a step's sums to `window`, the sums of earlier steps, on the device. The learning rates are not added, and the
    result holds the learning rate of the step."""
    return _added(window, sums) if window else sums


@jax.jit
def _added(window: Sums, sums: Sums) -> Sums:
    """Adds all sums in one program, instead of one program per sum."""
    return {name: value if name == "learning_rate" else window[name] + value for name, value in sums.items()}
