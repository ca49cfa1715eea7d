"""What an experiment leaves open: the model's shape, by the corpus and the model it starts from, and a warmup that fits.

    values, notes = settled(flags.config, flags.given, vocabulary_size=corpus.vocabulary.size)

A key that is given on the command line is never changed: where it contradicts, the run is refused later, with the value to give.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from collections.abc import Collection

from bert_jax.corpus.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import read_model_config
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.locate import find_model_directory
from bert_jax.metrics.writer import METRICS
from bert_jax.model.config import ModelConfig
from bert_jax.pretraining.warm_start import FREE
from bert_jax.runtime.workdir import CONFIG, stored_config

WARMUP = 0.1
"""The part of a phase that is warmup where the one that is asked for would be longer than the phase."""


def settled(
    values: JsonObject,
    given: Collection[str],
    *,
    vocabulary_size: int | None = None,
    workdir: pathlib.Path | None = None,
    download: bool = True,
) -> tuple[JsonObject, list[str]]:
    """(`values` of a pretraining experiment with what they leave open, what is to be said about it).

    The shape is that of the model named in `init_from`, or of the run in `workdir` that already began with it; without one the
    vocabulary is of the corpus's size. `given` are the dotted keys of the command line. `download`: whether a model on the hub
    may be fetched to see its shape. Raises UserError where `init_from` is no model.
    """
    settled = copy.deepcopy(dict(values))
    notes: list[str] = []
    model = settled.setdefault("model", {})
    if isinstance(model, dict):
        there, source = _shape(settled, workdir, download)
        if not there and vocabulary_size is not None:
            there, source = {"vocab_size": vocabulary_size}, "the corpus"
        for name, value in there.items():
            if f"model.{name}" in given:
                continue
            if model.get(name, value) != value:
                notes.append(f"config.model.{name} is {value}, as {source} has it (the experiment file says {model[name]})")
            model[name] = value
    phases = settled.get("phases")
    for i, phase in enumerate(phases if isinstance(phases, list) else ()):
        steps, warmup = (phase.get(name) for name in ("steps", "warmup_steps")) if isinstance(phase, dict) else (None, None)
        key = f"phases.{i}.warmup_steps"
        if not isinstance(steps, int) or not isinstance(warmup, int):  # for `section` to refuse, where it is the wrong type
            continue
        if not 0 < steps < warmup or key in given or phase.get("continue_schedule"):
            continue
        phase["warmup_steps"] = int(WARMUP * steps)
        notes.append(
            f"config.{key} is {phase['warmup_steps']}, a tenth of the phase's {counted(steps, 'step')}: {warmup:,} are too many"
        )
    return settled, notes


def _shape(values: JsonObject, workdir: pathlib.Path | None, download: bool) -> tuple[JsonObject, str]:
    """(the fields that make a model what it is, whose they are) of `init_from`; ({}, "") without one."""
    name = values.get("init_from")
    if not name or not isinstance(name, str):
        return {}, ""
    if workdir is not None and (workdir / CONFIG).exists() and (workdir / METRICS).exists():
        stored = stored_config(workdir)  # a run that goes on needs its `init_from` no more
        if stored.get("init_from") == name and isinstance(stored.get("model"), dict):
            return {field: value for field, value in stored["model"].items() if field not in FREE}, name
    if not download and not pathlib.Path(name).exists():
        return {}, ""
    directory = find_model_directory(name)
    config: ModelConfig = config_from_json(read_model_config(directory), str(directory))
    return {field: value for field, value in dataclasses.asdict(config).items() if field not in FREE}, name
