"""The configuration of a command: an experiment file with the keys that the command line overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_jax.configs.overrides import override
from bert_jax.corpus.files import JsonObject
from bert_jax.interface import python_files

Schema = type | Callable[[JsonObject], type] | None


def read_experiment(given: str, overrides: Sequence[tuple[str, str]], schema: Schema, flag: str = "config") -> JsonObject:
    """The configuration of an experiment file that `--config` (or another `flag`) names as FILE[:ARG], with overrides ("a", "1"),
    as plain dicts; `schema` as of `parse_flags`, or a function that gives it for what the file returned."""
    config = python_files.load(given, f"--{flag}")
    known = schema if schema is None or isinstance(schema, type) else schema(config)
    for key, text in overrides:
        override(config, known, key, text, flag)
    return config
