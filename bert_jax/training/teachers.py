"""Checks the teacher of a distillation, and places its parameters on the devices. `pretraining/start.py` and
`finetuning/start.py` load teachers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interface.named import require_call
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import teacher_parameters
from bert_jax.objectives.model import unboxed
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.rules import parameter_shardings, with_shardings
from bert_jax.training.warm_start import same_vocabulary


def require_same_vocabulary(named: str, teacher: Model, vocabulary: VocabularyInfo, whose: str, remedy: str) -> None:
    """Raises UserError unless the teacher has the `vocabulary`, which is the vocabulary of `whose`."""
    if not same_vocabulary(teacher.tokenizer.vocabulary, vocabulary):
        raise UserError(f"{named} has a different vocabulary than {whose}; {remedy}")


def require_length(named: str, teacher: ModelConfig, longest: int, what: str, remedy: str) -> None:
    """Raises UserError unless the teacher reads texts of `longest` tokens. `what` says in the message what is that long."""
    if teacher.max_position < longest:
        raise UserError(f"{named} reads only {counted(teacher.max_position, 'token')}, but {what}; {remedy}")


def make_teacher(
    objective: Objective, settings: PretrainingDistillation, params: Mapping[str, PyTree], named: str, key: str
) -> Teacher:
    """Returns the teacher with only the parameters that the student learns from. `objective` is the student's objective, for the
    teacher's model. Messages call the teacher `named` and the objective `key`.

    Raises UserError if the teacher cannot compute the `outputs` of a user's objective, if the objective's `soft_loss` cannot
    compare them, or if the objective has other arrays under the name of a part of the teacher."""
    shapes = {part: tree for part, tree in unboxed(teacher_parameters(objective, settings)).items() if part in params}
    for part, wanted in shapes.items():
        if jax.tree.map(jnp.shape, dict(params[part])) != jax.tree.map(jnp.shape, dict(wanted)):
            raise UserError(f"{key}: its parameters {part} have other arrays than those of {named}; give them another name")
    if settings.soft_weight:
        calls = {"outputs": "params, batch, seed", "targets": "batch", "soft_loss": "outputs, taught, batch, temperature"}
        for method, arguments in calls.items():
            require_call(getattr(objective, method), arguments, f"{key}: {method}")
        alone = "learn only the teacher's hidden states, with soft_weight=0 and hidden_weight=1 in config.distillation"
        batch = objective.abstract_batch(2)
        try:
            outputs = jax.eval_shape(lambda p, b: objective.outputs(p, b, None), shapes, batch)
        except KeyError as error:
            raise UserError(
                f"{key}: outputs reads {error}, which is neither an array of the batch nor among the parameters of {named} "
                f"({', '.join(shapes)}); read further parameters only if `params` has them, or {alone}"
            ) from error
        if not isinstance(outputs, Mapping):
            raise UserError(f"{key}: outputs must return a dict, name -> array, to learn from a teacher, but returns {outputs}")
        if type(objective).soft_loss is Objective.soft_loss:
            targets = jax.eval_shape(objective.targets, batch)
            if not isinstance(targets, Mapping) or not targets or targets.keys() - outputs.keys():
                given = ", ".join(targets) if isinstance(targets, Mapping) else ""
                raise UserError(
                    f"{key}: the method targets returns ids for {given or 'no logits'}, but the outputs of {named} are "
                    f"{', '.join(outputs)}; return a dict, name of the logits -> ids of their targets, define soft_loss, or "
                    f"{alone}"
                )
            for name, ids in targets.items():
                if ids.shape != outputs[name].shape[:-1]:
                    raise UserError(
                        f"{key}: the method targets returns ids {list(ids.shape)} for {name}, which has the shape "
                        f"{list(outputs[name].shape)}; return one id for each prediction"
                    )
        try:
            loss = jax.eval_shape(lambda o, b: objective.soft_loss(o, o, b, 1.0), outputs, batch)
        except KeyError as error:
            raise UserError(
                f"{key}: soft_loss reads {error}, but the outputs of {named} are {', '.join(outputs)}; read only these, or "
                f"{alone}"
            ) from error
        if getattr(loss, "shape", None) != () or loss.dtype != jnp.float32:
            form = f"{getattr(loss, 'dtype', type(loss).__name__)} {list(getattr(loss, 'shape', ()))}"
            raise UserError(f"{key}: soft_loss must return a float32 scalar, but returns {form}; sum over all predictions")
    return Teacher(objective, {part: params[part] for part in shapes})


def on_mesh(teacher: Teacher, mesh: Mesh) -> Teacher:
    """Returns `teacher` with the kernels for the devices of `mesh`. The teacher's arrays (or their shapes) are sharded like the
    arrays of a student without ZeRO."""
    objective = teacher.objective
    boxed = objective.abstract_parameters()
    shardings = parameter_shardings({part: boxed[part] for part in teacher.params}, mesh)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(teacher.params)):
        params = with_shardings(teacher.params, shardings)
    else:
        params = jax.jit(lambda params: params, out_shardings=shardings)(teacher.params)
    model = dataclasses.replace(objective.model, config=resolve(teacher.config, mesh))
    return dataclasses.replace(teacher, objective=objective.for_model(model), params=params)
