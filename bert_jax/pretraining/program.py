"""Makes the program of a pretraining run from its experiment. The program has the steps, the objective and the teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file
from bert_jax.interop.families.electra import CLASS, DISCRIMINATOR, discriminator_shapes
from bert_jax.interop.huggingface_config import ARCHITECTURES
from bert_jax.interop.names import REQUIRED_PARTS, our_shapes
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import word_head
from bert_jax.objectives.model import Boxed, Model, unboxed
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.rules import check_batch_size
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import piecewise
from bert_jax.training.steps import Program, new_state


def pretraining_program(experiment: PretrainingExperiment, mesh: Mesh, teacher: Teacher | None = None) -> Program:
    """Returns the program of `experiment` on `mesh`. Only the arrays of the `teacher` are allocated, and only a distillation
    has a teacher."""
    check_objective(experiment)
    objective, settings = experiment.trained_objective, experiment.optimizer
    parameters = objective.abstract_parameters()
    multipliers = None
    if settings.layer_decay != 1.0:
        from bert_jax.training.layerwise_rates import learning_rate_multipliers

        multipliers = learning_rate_multipliers(unboxed(parameters), decay=settings.layer_decay)
    rate = piecewise(experiment.schedules())  # outside of the step, so that an unusable schedule fails before a compilation
    if teacher is not None:
        from bert_jax.training.teachers import on_mesh  # only runs with a teacher need this module

        teacher = on_mesh(teacher, mesh)
    make_state, filter_spikes = new_state, None
    if experiment.spikes.policy != "none":
        from bert_jax.training.spikes import new_watched_state, spike_filter

        make_state, filter_spikes = new_watched_state, spike_filter(experiment.spikes, experiment.phase_starts()[1:-1])
    return Program(
        objective=objective.for_model(dataclasses.replace(objective.model, config=resolve(experiment.model, mesh))),
        parameters=parameters,
        mesh=mesh,
        optimizer=make_optimizer(settings, parameters),
        learning_rate=lambda step, scalars: rate(step),
        clip_norm=settings.clip_norm,
        learning_rate_multipliers=multipliers,
        new_state=make_state,
        spike_filter=filter_spikes,
        teacher=teacher,
        zero_sharding=experiment.mesh.zero_sharding,
        reduce_dtype=experiment.mesh.reduce_dtype,
    )


def phase_program(experiment: PretrainingExperiment, program: Program, phase: int) -> Program:
    """Returns the run's `program` with the settings of a phase. The state has the same structure in all phases."""
    own = experiment.for_phase(phase)
    if own is experiment:
        return program
    of_phase = pretraining_program(own, program.mesh)
    return of_phase if program.teacher is None else dataclasses.replace(of_phase, teacher=program.teacher)


def phase_step(experiment: PretrainingExperiment, program: Program, phase: int) -> jax.stages.Wrapped:
    """Returns the jitted training step of a phase."""
    return phase_program(experiment, program, phase).training_step(experiment.phases[phase].accumulation)


def step_scalars(experiment: PretrainingExperiment) -> dict[str, np.uint32]:
    """Returns the scalars that every step of a run receives."""
    return {"seed": np.uint32(experiment.seed)}


_OF_BERT = ("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel", "BertForNextSentencePrediction")
EXPORTED: Mapping[str, Sequence[str]] = {
    **{name: ARCHITECTURES[name] for name in _OF_BERT},
    "MarianMTModel": ("decoder", "lm_head"),
    CLASS: (DISCRIMINATOR,),
}
"""Name of a transformers class that a pretrained model can be exported as (`Objective.exported`) -> the parts that the files of
this class must have."""


def check_objective(experiment: PretrainingExperiment) -> None:
    """Raises UserError if an objective from a user's file breaks the contract of an objective. The message names the
    violation."""
    if not is_in_file(experiment.objective):
        return
    key, objective = f"config.objective={experiment.objective}", experiment.trained_objective
    objective.check(key)
    exported, parts = objective.exported, objective.model_parameters()
    if exported is None:
        _check_shapes(key, {part: parts[part] for part in REQUIRED_PARTS}, experiment.model)
        return
    if exported not in EXPORTED:
        raise UserError(
            f"{key}: exported={exported!r} is not a class that this project writes: {nearest(exported, EXPORTED)}; None exports "
            "only the encoder"
        )
    needed = [word_head(experiment.model) if part == "mlm_head" else part for part in EXPORTED[exported]]
    if lacking := [part for part in needed if part not in parts]:
        raise UserError(
            f"{key}: exported={exported!r} needs the parameters {lacking[0]}, which the objective does not have; add them, or "
            "set exported=None for only the encoder"
        )
    _check_shapes(key, {part: parts[part] for part in {*REQUIRED_PARTS, *needed}}, experiment.model)


def _check_shapes(key: str, parts: Boxed, model: ModelConfig) -> None:
    """Raises UserError unless the exported `parts` have the arrays of the model."""
    found = {path: x.shape for path, x in flatten_dict(unboxed(parts), sep="/").items()}
    known = our_shapes(model) | discriminator_shapes(model)
    wanted = {path: shape for path, shape in known.items() if path.partition("/")[0] in parts}
    for path in sorted(found.keys() | wanted.keys()):
        if (there := found.get(path)) != (here := wanted.get(path)):
            part = path.partition("/")[0]
            what = "lacks" if there is None else "adds" if here is None else "changes the shape of"
            raise UserError(
                f"{key}: the method parameters {what} {path}, so {part} cannot be exported; keep the {part} of the model, and "
                "give the objective's own arrays a part of another name"
            )


def teacher_config(config: ModelConfig, experiment: PretrainingExperiment) -> ModelConfig:
    """Returns the teacher's configuration. It has the teacher's architecture and the student's execution settings, but the
    dtype is `distillation.dtype` (if set) and there is no remat."""
    student = dataclasses.replace(experiment.model, remat="none")
    return dataclasses.replace(
        student.with_architecture(config.architecture), dtype=experiment.distillation.dtype or student.dtype
    )


def taught_objective(experiment: PretrainingExperiment, teacher: ModelConfig) -> Objective:
    """Returns the objective of a run with a teacher, without the distillation terms, for the `teacher` instead of the
    student."""
    objective: Any = experiment.trained_objective
    plain: Objective = objective.plain
    return plain.for_model(Model(teacher))


def check_batch_sizes(experiment: PretrainingExperiment, mesh: Mesh) -> None:
    """Raises UserError if the rows of a batch, in a phase or in the evaluation, cannot be divided equally among the devices of
    `mesh`."""
    for i, phase in enumerate(experiment.phases):
        check_batch_size(f"config.phases.{i}.batch_size", phase.batch_size, phase.accumulation, mesh)
    check_batch_size("config.evaluation.batch_size", experiment.evaluation.batch_size, 1, mesh)


def phase_row_flops(experiment: PretrainingExperiment, i: int, teacher: ModelConfig | None = None) -> float:
    """Returns the model FLOPs for one row of a phase. They include the forward and backward pass and, if there is a `teacher`,
    its forward pass."""
    phase, objective = experiment.phases[i], experiment.trained_objective
    if teacher is not None:
        objective = objective.with_teacher(Teacher(taught_objective(experiment, teacher), {}))
    return objective.flops(phase.length, phase.max_predictions)


def flops_left(experiment: PretrainingExperiment, step: int, teacher: ModelConfig | None = None) -> float:
    """Returns the model FLOPs of all steps after `step`. They include the FLOPs of the `teacher`, if there is one."""
    starts = experiment.phase_starts()
    return sum(
        max(0, end - max(start, step)) * phase.batch_size * phase_row_flops(experiment, i, teacher)
        for i, (phase, start, end) in enumerate(zip(experiment.phases, starts, starts[1:], strict=False))
    )
