"""Reads an experiment file with command-line overrides, and adds new defaults to stored configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bert_jax.configs.overrides import override, read_value
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface import python_files
from bert_jax.interface.ranges import Count

if TYPE_CHECKING:  # these modules import jax, which --help does not need
    from bert_jax.configs.finetuning import FinetuningExperiment
    from bert_jax.configs.pretraining import PretrainingExperiment

Schema = type | Callable[[JsonObject], type] | None

TOTAL_STEPS = "steps"
OBJECTIVE_OPTIONS = "objective_options"


def read_experiment(given: str, overrides: Sequence[tuple[str, str]], schema: Schema, flag: str = "config") -> JsonObject:
    """Returns the configuration of an experiment file as nested plain dicts, with the overrides applied.

    `given` is the value of `--config` (or of another `flag`): FILE[:ARG]. `overrides` are pairs of dotted key and text, such as
    ("a.b", "1"). `schema` is the dataclass of the experiment, or a function from the file's values to it. If None, keys and types
    come from the file's values. In a pretraining experiment, the pseudo-key "steps" scales the whole run before the other
    overrides (see `with_total_steps`).
    """
    config = python_files.load(given, f"--{flag}")
    known = schema if schema is None or isinstance(schema, type) else schema(config)
    if (total := dict(overrides).get(TOTAL_STEPS)) is not None:
        from bert_jax.configs.pretraining import PretrainingExperiment, with_total_steps

        if known is PretrainingExperiment:
            config = with_total_steps(config, int(read_value(f"--{flag}.{TOTAL_STEPS}={total}", total, Count)))
            overrides = [(key, text) for key, text in overrides if key != TOTAL_STEPS]
    has_objective = OBJECTIVE_OPTIONS in getattr(known, "__dataclass_fields__", ())  # pretraining only
    for key, text in overrides:
        group, _, option = key.partition(".")
        if group != OBJECTIVE_OPTIONS or not option or not has_objective:
            override(config, known, key, text, flag)
    for key, text in overrides:  # last, since the other keys determine the objective
        if key.startswith(f"{OBJECTIVE_OPTIONS}.") and has_objective:
            from bert_jax.configs.pretraining import read_objective

            options = config.setdefault(OBJECTIVE_OPTIONS, {})
            kind = read_objective(config)
            if not dataclasses.fields(kind):
                raise UserError(f"--{flag}.{key}={text}: the objective {kind.__name__} has no settings; leave it out")
            override(options, kind, key.partition(".")[2], text, f"{flag}.{OBJECTIVE_OPTIONS}")
    return config


def with_defaults(
    kind: type[PretrainingExperiment] | type[FinetuningExperiment], stored: JsonObject, *, extra_key: str
) -> JsonObject:
    """Adds the defaults of newer keys to a configuration stored in a workdir or a reference curve.

    `extra_key` is a key of the file that is not part of the experiment; it is kept. Values that are not a configuration of this
    kind are returned unchanged."""
    values = {key: value for key, value in stored.items() if key != extra_key}
    try:
        experiment = kind.from_dict(values)
    except UserError:
        return stored
    return experiment.to_dict() | {extra_key: stored.get(extra_key)}
