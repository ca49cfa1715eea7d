"""One fine-tuning run of a sweep, with its data, batches, compiled functions and evaluation."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.memory_advice import finetuning_advice, kept_layers, least_bytes, scoring_advice
from bert_jax.data.batches import (
    AlternatingBatches,
    EvaluationBatches,
    LabelledBatches,
    UnlabelledBatches,
    evaluation_rows,
    process_rows,
    process_shard,
    to_device,
)
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.finetuning.data import Data
from bert_jax.finetuning.program import finetuning_program, label_loss, row_flops, step_scalars, task_objective
from bert_jax.finetuning.start import with_own_head
from bert_jax.interface.progress import evaluation_progress
from bert_jax.interface.ranges import MAX_COUNT
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.embeddings import check_ids
from bert_jax.objectives.cross_view import WEIGHTS as VIEW_WEIGHTS
from bert_jax.objectives.model import unboxed
from bert_jax.objectives.objective import Teacher
from bert_jax.runtime.goodput import GoodputRecorder
from bert_jax.runtime.launch import Run
from bert_jax.sharding.device_errors import MemoryAdvice, fits_in_memory, require_memory
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, row_multiple
from bert_jax.training.compilation import compiling
from bert_jax.training.steps import TrainState


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs shared by all runs of a sweep."""

    data: Data
    start: Model
    """The model that is fine-tuned, without the head of the task."""
    teacher_on: Callable[[Mesh], Teacher | None] = lambda mesh: None
    """Takes a mesh, and returns the teacher with its arrays on it; see `training.teachers.on_mesh`."""
    unlabelled: Corpus | None = None
    """The text for cross-view training."""


class Job:
    """One run of `experiment` on `devices`, with its data, batches and compiled functions. The files of the run are in
    `directory`.

    In a sweep, the log lines of the run start with `prefix`. Raises UserError if the run has more than 2^31 - 1 steps.
    """

    def __init__(
        self,
        experiment: FinetuningExperiment,
        run: Run,
        directory: pathlib.Path,
        devices: Sequence[jax.Device],
        inputs: Inputs,
    ):
        self.experiment, self.run, self.directory = experiment, run, directory
        self.data, self.start, self._inputs = inputs.data, inputs.start, inputs
        of_sweep = directory != run.workdir
        self.prefix = f"{directory.name}  " if of_sweep else ""
        self.goodput = GoodputRecorder() if of_sweep else run.goodput
        self.mesh = make_mesh(experiment.mesh, devices)
        training, train = experiment.training, self.data.features["train"]
        multiple = row_multiple(self.mesh) * training.accumulation
        labelled = LabelledBatches(
            train,
            self.data.shape,
            training.batch_size,
            experiment.seed,
            epochs=training.epochs,
            row_multiple=multiple,
            pad_id=self.data.pad_id,
        )
        self.batches: LabelledBatches | AlternatingBatches = labelled
        if inputs.unlabelled is not None:
            sentences = experiment.cross_view.batch_size, experiment.seed
            unlabelled = UnlabelledBatches(
                inputs.unlabelled, self.data.shape, *sentences, row_multiple=multiple, weights=VIEW_WEIGHTS
            )
            self.batches = AlternatingBatches(labelled, unlabelled)
        self.last_step = training.epochs * self.batches.steps_per_epoch
        if self.last_step > MAX_COUNT:
            raise UserError(
                f"config.training.epochs={training.epochs} gives {counted(self.last_step, 'step')}, but at most {MAX_COUNT:,} "
                "are possible; lower it"
            )
        self.config = experiment.model_config(self.start.config, self.mesh.devices.flat[0].platform)
        self.head = experiment.head_config(self.data.task.head)
        loss = label_loss(experiment, self.data.task, train)
        self.objective = task_objective(experiment, self.config, self.head, loss)
        steps, teacher = self.batches.steps_per_epoch, inputs.teacher_on(self.mesh)
        self.program = finetuning_program(experiment, self.config, self.head, loss, steps, self.mesh, teacher)
        self.scalars = step_scalars(experiment, self.last_step)
        self.memory_advice: Callable[[], MemoryAdvice] = functools.partial(
            finetuning_advice, experiment, self.batches, self.data.shape.length, self.mesh
        )
        layers = 1 if training.freeze_encoder else kept_layers(self.config)
        rows = self.batches.row_counts[-1] // training.accumulation
        needs = least_bytes(self.config, rows, self.data.shape.length, 0, self.mesh, layers)
        require_memory(needs, self.mesh, self.memory_advice)
        self._shard = process_shard(self.mesh, BATCH)
        self.predicted: dict[str, list[np.ndarray]] = {}
        """The logits of the best weights so far, by split. Splits whose logits have not been computed are missing."""

    @functools.cached_property
    def evaluations(self) -> frozenset[int]:
        """The steps after which the dev splits are scored; see `evaluation_steps`."""
        return evaluation_steps(
            self.experiment.training.epochs, self.batches.steps_per_epoch, self.experiment.selection.per_epoch
        )

    @functools.cached_property
    def row_flops(self) -> float:
        """The model FLOPs per row in a training step, including the teacher's forward pass."""
        return row_flops(self.program, self.data.shape)

    def init_state(self) -> TrainState:
        """Returns the state before step 0. It has the weights of `init_from`, and a head with random weights drawn from the
        seed."""
        params = with_own_head(self.start, self.config, self.head, self.experiment).params
        further = self.objective.training_parameters(jax.random.key(self.experiment.seed))
        state: TrainState = self.program.init_state(dict, {**params, **unboxed(further)})
        return state

    def rows(self, step: int) -> Batch:
        """Returns the rows of this process in the batch of `step`. Checks on the host that all ids in these rows are within the
        model's embedding tables."""
        batch = self.batches.at(step, self._shard)
        ids = {name: batch[name] for name in ("input_ids", "token_type_ids", "position_ids")}
        check_ids(self.start.config, **ids)
        return batch

    def arguments(self, state: TrainState, batch: Batch) -> tuple[PyTree[jax.Array], ...]:
        """Returns the arguments of the training step: the state, the global batch, the scalars and the teacher's parameters."""
        return self.program.arguments(state, to_device(batch, self.mesh, BATCH), self.scalars)

    @functools.cached_property
    def logits(self) -> Callable[[PyTree[jax.Array], str], list[np.ndarray]]:
        """A function that takes parameters and a split, and returns the logits of the split's features in order."""
        return evaluation(self)

    def evaluate(self, params: PyTree[jax.Array]) -> tuple[dict[str, Mapping[str, float]], dict[str, list[np.ndarray]]]:
        """Returns the scores and the logits of `params` on every dev split."""
        logits = {split: self.logits(params, split) for split in self.data.dev}
        return {split: self.data.task.scores(split, found) for split, found in logits.items()}, logits


def evaluation_steps(epochs: int, steps_per_epoch: int, per_epoch: int) -> frozenset[int]:
    """Returns the steps after which the dev splits are scored. There are `per_epoch` evenly spaced steps in every epoch, and
    the last step of the epoch is one of them."""
    each = {max(1, round(steps_per_epoch * i / per_epoch)) for i in range(1, per_epoch + 1)}
    return frozenset(epoch * steps_per_epoch + step for epoch in range(epochs) for step in each)


def evaluation(job: Job) -> Callable[[PyTree[jax.Array], str], list[np.ndarray]]:
    """Returns a function that takes parameters and a split, and returns the logits of the split's features in order. The
    function logs compilations and the progress of long evaluations."""
    data, program, mesh = job.data, job.program, job.mesh
    rows = evaluation_rows(data.shape, mesh.devices.flat[0].platform, row_multiple(mesh))
    mine = process_rows(mesh, BATCH, rows)
    advice = functools.partial(scoring_advice, job.experiment, rows, data.shape.length, mesh)

    def evaluate(params: PyTree[jax.Array], split: str) -> list[np.ndarray]:
        def forward(batch: Batch) -> np.ndarray:
            arguments = (params, to_device(batch, mesh, BATCH))
            if program.is_new("evaluation", batch):
                with job.run.compiling(job.goodput), compiling("the evaluation", job.prefix):
                    program.evaluation_step.lower(*arguments).compile()
            found = program.evaluation_step(*arguments)
            job.run.watchdog.alive("evaluation")
            return np.asarray(found)  # the logits are replicated on every device

        batches = EvaluationBatches(data.features[split], data.shape, rows, data.pad_id)
        shown = evaluation_progress(job.prefix + split, "examples", job.run.is_first)
        with fits_in_memory(advice), nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh), shown as progress:
            return batches.logits(forward, mine.tolist(), progress)

    return evaluate
