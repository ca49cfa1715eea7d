"""Reads an experiment file and applies the overrides of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_jax.configs.overrides import override
from bert_jax.corpus.files import JsonObject
from bert_jax.interface import python_files

Schema = type | Callable[[JsonObject], type] | None


def read_experiment(given: str, overrides: Sequence[tuple[str, str]], schema: Schema, flag: str = "config") -> JsonObject:
    """Returns the configuration of an experiment file as nested plain dicts, with the overrides applied.

    `given` is the value of `--config` (or of another `flag`): FILE[:ARG]. `overrides` are pairs of dotted key and text, such as
    ("a.b", "1"). `schema` is the dataclass of the experiment, or a function from the file's values to it; with None, keys and
    types are those of the file's values.
    """
    config = python_files.load(given, f"--{flag}")
    known = schema if schema is None or isinstance(schema, type) else schema(config)
    for key, text in overrides:
        override(config, known, key, text, flag)
    return config
