"""Traces the steps of the end-to-end runs when it is imported, in the process from which the others are forked.

JAX traces each of its own functions, for example an addition of arrays, once per shape and keeps the result. The steps belong to
their process and are traced again in each, but two thirds of their parts are then already traced: this saves a tenth of a run's
CPU time. No backend is started, since forked processes would not have its threads.
"""

from __future__ import annotations

import functools
import gc
import pathlib
import tempfile
import unittest.mock

import flax.linen as nn
import jax
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import evaluation_rows
from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.finetuning import program as finetuning
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.objectives.labels import LabelLoss
from bert_jax.objectives.objective import abstract_rows
from bert_jax.pretraining.program import pretraining_program, step_scalars
from bert_jax.pretraining.start import initial_parameters
from bert_jax.sharding.config import AXES
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.training.checkpoints import _sum_and_nonfinite
from tests.end_to_end.runs import EXPERIMENT, VOCABULARY
from tests.end_to_end.toy_tasks import write_model

MESH = AbstractMesh((1,) * len(AXES), AXES, abstract_device=AbstractDevice("cpu", None, "cpu"))
"""JAX's description of a single CPU device, which is part of its cache keys."""


def tiny_experiment() -> PretrainingExperiment:
    """Returns the experiment of `write_experiment`."""
    names: dict[str, object] = {}
    exec(EXPERIMENT.format(corpus="corpus", vocabulary_size=len(VOCABULARY.read_text().splitlines())), names)
    return PretrainingExperiment.from_dict(names["get_config"]())  # type: ignore[operator]


def trace_steps(experiment: PretrainingExperiment) -> None:
    """Traces the first state, each phase's step and its evaluation, and the digests of a save, as `pretrain` does."""
    with unittest.mock.patch("jax.default_backend", return_value="cpu"):
        program = pretraining_program(experiment, MESH)
        program.init_state.trace(functools.partial(initial_parameters, experiment))
        with nn.logical_axis_rules(ACTIVATION_RULES), jax.sharding.use_abstract_mesh(MESH):
            jax.eval_shape(functools.partial(jax.tree.map, _sum_and_nonfinite), program.state)
            for phase in experiment.phases:
                shape = (phase.length, phase.max_predictions, phase.packed_examples)
                step = program.training_step(phase.accumulation)
                for rows, function, state, *scalars in (
                    (phase.batch_size, step, program.state, step_scalars(experiment)),
                    (experiment.evaluation.batch_size, program.evaluation_step, program.state.params),
                ):
                    sharding = NamedSharding(MESH, BATCH)
                    batch = {name: x.update(sharding=sharding) for name, x in abstract_rows(rows, *shape).items()}
                    function.trace(state, batch, *scalars)


def trace_task() -> None:
    """Traces the step, the evaluation and the digests of a run on the fixture `toys`, as `finetune` does."""
    values = {"init_from": "model", "task": {"name": "own/sequence", "length": 32}, "model": {"scan_layers": True}}
    experiment = FinetuningExperiment.from_dict(values | {"training": {"gradual_unfreezing": True}})
    with tempfile.TemporaryDirectory() as directory:
        config = experiment.model_config(write_model(pathlib.Path(directory) / "model").config, "cpu")
    head = SequenceHead(labels=("good", "poor"))
    shape = RowShape(head.layout, 32, 2, 1)

    def batch(rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        sharding, arrays = NamedSharding(MESH, BATCH), assemble_features([], [], rows, shape, 0)
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for name, x in arrays.items()}

    with (
        unittest.mock.patch("jax.default_backend", return_value="cpu"),
        nn.logical_axis_rules(ACTIVATION_RULES),
        jax.sharding.use_abstract_mesh(MESH),
    ):
        program = finetuning.finetuning_program(experiment, config, head, LabelLoss(), 6, MESH)
        jax.eval_shape(functools.partial(jax.tree.map, _sum_and_nonfinite), program.state)
        scalars = finetuning.step_scalars(experiment, 1)
        program.training_step(1).trace(*program.arguments(program.state, batch(16), scalars))
        program.evaluation_step.trace(program.state.params, batch(evaluation_rows(shape, "cpu", 1)))


trace_steps(tiny_experiment())
trace_task()
gc.freeze()  # forked processes do not visit, and so do not copy, what is in memory now
