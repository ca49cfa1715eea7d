"""Reads the keys `objective` and `objective_options` of pretraining and fine-tuning."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from bert_jax.configs.experiment_files import OBJECTIVE_OPTIONS, dataclass_from_dict
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import load_named
from bert_jax.interface.ranges import hints
from bert_jax.objectives import OBJECTIVES, TASK_OBJECTIVES

if TYPE_CHECKING:  # this module imports JAX
    from bert_jax.objectives.objective import Objective

OBJECTIVE = "config.objective"
BASES = {"pretrain": "bert_jax.objectives.objective.Objective", "finetune": "bert_jax.objectives.labels.Labels"}
"""Command -> the class from which its objectives inherit."""


def objective_class(name: str, command: str) -> type[Objective]:
    """Returns the class of the objective `name` in the `config.objective` of a `command`, "pretrain" or "finetune". Raises
    UserError for an unknown name, for an object that is not a whole objective, and for an objective of the other command."""
    from bert_jax.objectives.objective import Objective

    known, others = (OBJECTIVES, TASK_OBJECTIVES) if command == "pretrain" else (TASK_OBJECTIVES, OBJECTIVES)
    found = load_named(name, others if name in others else known, OBJECTIVE)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise UserError(
            f"{OBJECTIVE}={name} is {found!r}, not an objective; make it a class that inherits from {BASES[command]}"
        )
    if found.command != command:
        remedy = "leave it out" if name in others else f"inherit from {BASES[command]}"
        raise UserError(
            f"{OBJECTIVE}={name} is an objective for python -m bert_jax.{found.command}, not for {command}; run that command, or "
            f"{remedy}"
        )
    if lacking := found.missing_methods():
        raise UserError(f"{OBJECTIVE}={name} has no {' and no '.join(lacking)}; see the class {BASES[command].split('.')[-1]}")
    return found


@functools.cache
def settings_class(kind: type[Objective]) -> type:
    """Returns the dataclass of the settings in `config.objective_options`. These are the fields of the objective's class, without
    those that a run fills in."""
    if not kind.filled_in:
        return kind
    own = [field for field in dataclasses.fields(kind) if field.init and field.name not in kind.filled_in]
    fields: list[Any] = [
        (one.name, hints(kind)[one.name], dataclasses.field(default=one.default, default_factory=one.default_factory))
        for one in own
    ]
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, kw_only=True)


def with_objective(values: JsonObject, name: str, kind: type[Objective]) -> JsonObject:
    """Returns the `values` of an experiment with the objective's `name` and with all settings of its class `kind`. A stored
    configuration is therefore complete. Raises UserError if a setting is unknown or has the wrong type."""
    settings = settings_class(kind)
    options: Any = dataclass_from_dict(settings, values.get(OBJECTIVE_OPTIONS, {}), f"config.{OBJECTIVE_OPTIONS}", settings)
    return {**values, "objective": name, OBJECTIVE_OPTIONS: dataclasses.asdict(options)}
