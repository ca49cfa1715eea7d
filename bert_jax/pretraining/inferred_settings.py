"""Infers an experiment's model configuration from the corpus or from `init_from`. Also removes sentence pairs if the model does
not learn from them, and shortens warmups that are too long.

    values, notes = infer_settings(flags.config, flags.given, vocabulary_size=corpus.vocabulary.size)

A key that is set on the command line is never changed. If its value contradicts the corpus or `init_from`, a later check raises
a UserError with the right value. A key that would have no effect is refused. In the experiment file, such a key is only noted,
because other settings of the command line may be the reason.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment, read_objective, with_budgets
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.model import ENCODERS
from bert_jax.model.config import SIZES, Architecture
from bert_jax.runtime.workdir import CONFIG, METRICS, flatten, stored_config
from bert_jax.storage.objects import explained
from bert_jax.storage.paths import AnyPath

WARMUP = 0.1
"""If a warmup is longer than its phase, it is shortened to this fraction of the phase."""


def infer_settings(
    values: JsonObject,
    given: Collection[str],
    *,
    vocabulary_size: int | None = None,
    workdir: AnyPath | None = None,
    download: bool = True,
) -> tuple[JsonObject, list[str]]:
    """Returns (the `values` of a pretraining experiment with the inferred keys added, notes for the log about changed keys).

    The model configuration is read from the model in `init_from`. If `workdir` holds a run that has started from this model,
    the configuration is read from the run instead. With `init_tiled`, the experiment sets the sizes. Without `init_from`, only
    the vocabulary size is inferred, and it is read from the corpus. `given` are the dotted keys that are set on the command
    line. With `download`, a model may be downloaded from the hub to read its configuration. Without it, a note reports a model
    that is not on this machine. Raises UserError if `init_from` is
    not a model, or if a key has no effect (`_require_effect`).
    """
    settled = copy.deepcopy(dict(values))
    notes: list[str] = []
    model = settled.setdefault("model", {})
    if isinstance(model, dict):
        there, source = _shape(settled, workdir, download)
        if not there and not download and (start := settled.get("init_from")):
            notes.append(
                f"config.init_from={start} is not on this machine, so the sizes of the model are those of config.model; name a "
                "directory on this machine, or set the sizes"
            )
        if not there and vocabulary_size is not None:
            there, source = {"vocab_size": vocabulary_size}, "the corpus"
        kept = {name for name in model if f"model.{name}" in given}
        if settled.get("init_tiled") is True:  # the experiment sets the sizes
            of_other_depth = model.get("num_layers", there.get("num_layers")) != there.get("num_layers")
            kept |= {name for name in SIZES if name in model and (name != "layer_types" or of_other_depth)}
        for name, value in there.items():
            if name in kept:
                continue
            value = _as_list(value)
            if _as_list(model.get(name, value)) != value:
                notes.append(f"config.model.{name} is {value}, as in {source} (the experiment file has {model[name]})")
            model[name] = value
        examples = settled.get("examples", {})
        of_pairs = isinstance(examples, dict) and examples.get("pairs") != "none" and "examples.pairs" not in given
        encoder, objective = str(model.get("encoder", "transformer")), settled.get("objective")
        if of_pairs and encoder in ENCODERS and not ENCODERS[encoder].pools:
            settled["examples"] = examples | {"pairs": "none"}
            notes.append(f"config.examples.pairs is none: model.encoder={encoder} does not learn from pairs")
        elif of_pairs and there.get("type_vocab_size") == 0 == model.get("type_vocab_size"):
            settled["examples"] = examples | {"pairs": "none"}
            notes.append(f"config.examples.pairs is none: {source} has no token types for the texts of a pair")
        elif of_pairs and model.get("direction") == "left_to_right":
            settled["examples"] = examples | {"pairs": "none"}
            notes.append("config.examples.pairs is none: the [CLS] of a left-to-right model sees no text")
        elif of_pairs and isinstance(objective, str) and objective != "auto" and not read_objective(settled).judges_pairs:
            settled["examples"] = examples | {"pairs": "none"}
            notes.append(f"config.examples.pairs is none: config.objective={objective} does not learn from pairs")
    phases = settled.get("phases")
    phases = phases if isinstance(phases, list) else []
    each = _steps(settled, phases)
    for i, phase in enumerate(phases):
        steps, warmup = each[i], phase.get("warmup_steps") if isinstance(phase, dict) else None
        key = f"phases.{i}.warmup_steps"
        if not isinstance(steps, int) or not isinstance(warmup, int):  # `experiment_files.py` reports a wrong type
            continue
        if not steps or key in given or phase.get("continue_schedule"):
            continue
        later = itertools.takewhile(lambda one: isinstance(one, dict) and one.get("continue_schedule"), phases[i + 1 :])
        steps += sum(more for more, _ in zip(each[i + 1 :], later, strict=False) if isinstance(more, int))
        if not 0 < steps < warmup:
            continue
        phase["warmup_steps"] = int(WARMUP * steps)
        notes.append(
            f"config.{key} is {phase['warmup_steps']}, a tenth of the phase's {counted(steps, 'step')}, since {warmup:,} is "
            "longer than the phase"
        )
    try:
        experiment = PretrainingExperiment.from_dict(settled)
    except UserError:  # this error is reported when the experiment is made
        return settled, notes
    unused = _require_effect(experiment, values, given)
    return settled, notes + unused + _advice(experiment)


def _steps(values: JsonObject, phases: Sequence[Any]) -> list[Any]:
    """Returns the value of `steps` of each phase or None. A phase with a budget in tokens has the steps of its budget."""
    with contextlib.suppress(UserError):  # this error is reported when the experiment is made
        phases = with_budgets({**values, "phases": phases})["phases"]
    return [phase.get("steps") if isinstance(phase, dict) else None for phase in phases]


def _as_list(value: Any) -> Any:
    """Converts a tuple to a list, as in an experiment file."""
    return list(value) if isinstance(value, tuple) else value


def _require_effect(experiment: PretrainingExperiment, stated: JsonObject, given: Collection[str]) -> list[str]:
    """Raises UserError if one of the keys `given` has no effect. Returns a note for each key of the experiment file that has no
    effect and differs from its default. `stated` are the keys that the experiment file and the command line set."""
    found, phases = dict(flatten(stated)), stated.get("phases") or ()
    usual = dict(flatten(PretrainingExperiment(phases=(PhaseConfig(),) * len(phases)).to_dict()))
    notes: list[str] = []

    def refuse(key: str, reason: str, remedy: str = "leave it out") -> None:
        if key in given:
            raise UserError(f"config.{key} has no effect, because {reason}; {remedy}")
        if found.get(key, usual.get(key)) != usual.get(key):
            notes.append(f"config.{key}={found[key]} of the experiment file has no effect, because {reason}")

    spans = experiment.schedules()
    for name in ("decay_power", "end_learning_rate"):
        if not any(span.reads(name) for span in spans):
            used = ", ".join(dict.fromkeys(span.schedule for span in spans))
            refuse(f"optimizer.{name}", f"no phase's schedule reads it ({used})", "leave it out, or set schedule=original")
    _require_effect_on_model(experiment, refuse)
    policy = experiment.spikes.policy
    for name in ("deviations", "window", "in_a_row", "rollback_steps", "max_rollbacks"):
        policies = ("skip", "rollback") if name in ("deviations", "window") else ("rollback",)
        if policy not in policies:
            remedy = f"set config.spikes.policy={' or '.join(policies)}, or leave it out"
            refuse(f"spikes.{name}", f"config.spikes.policy is {policy}", remedy)
    kind, objective = experiment.examples.kind, f"config.objective={experiment.objective}"
    of_masks = [name for name in ("masked_fraction", "mask_probability", "random_probability") if name not in kind.reads]
    for group in ("examples", "evaluation", *(f"phases.{i}" for i in range(len(phases)))):
        for name in of_masks:
            refuse(f"{group}.{name}", f"{objective} masks nothing" if len(of_masks) == 3 else f"{objective} does not use it")
        if "max_predictions" not in kind.reads:
            what = "a translation" if kind.parallel else "the target"
            refuse(f"{group}.max_predictions", f"every token of {what} is predicted")
    for name in ("length", "max_predictions", "packed_examples", "masked_fraction"):  # the others count for held-out rows
        if all(name in phase for phase in phases):
            refuse(f"examples.{name}", "every phase sets its own", f"set those of the phases, such as config.phases.0.{name}")
    if all(span.key != "config.optimizer.schedule" for span in spans):
        refuse("optimizer.schedule", "every phase sets its own", f"set those of the phases, such as {spans[0].key}")
    for span in spans:
        key = f"{span.phase}.warmup_steps".removeprefix("config.")
        if (key in given or key in found) and not span.reads("warmup_steps"):
            refuse(key, f"{span.key}={span.schedule} does not use it")
    for i, phase in enumerate(experiment.phases):
        if phase.continue_schedule:
            first = max(j for j in range(i) if not experiment.phases[j].continue_schedule)
            for name in ("learning_rate", "warmup_steps"):
                remedy = f"set config.phases.{first}.{name}, or config.phases.{i}.continue_schedule=false"
                if (key := f"phases.{i}.{name}") in given or getattr(phase, name) != getattr(experiment.phases[first], name):
                    refuse(key, f"phase {i} continues the schedule of phase {first}", remedy)
    return notes


def _require_effect_on_model(experiment: PretrainingExperiment, refuse: Callable[[str, str, str], None]) -> None:
    """Calls `refuse` with (key, reason, remedy) for the keys of the model that have no effect. A model that the run starts from
    sets its own architecture, and a user's own encoder or positions may read all keys."""
    model = experiment.model
    if not model.scan_layers:
        remedy = "set config.model.scan_layers=true, or leave it out"
        refuse("model.layers_per_scan_step", "config.model.scan_layers is false", remedy)
    if experiment.init_from or is_in_file(model.encoder) or is_in_file(model.positions):
        return
    if "sliding" not in model.layer_types:
        for name in ("sliding_radius", "sliding_rotary_theta"):
            remedy = "list sliding layers in config.model.layer_types, or leave it out"
            refuse(f"model.{name}", "no layer is sliding", remedy)
    if not model.positions_kind.is_rotary:
        for name in ("rotary_theta", "sliding_rotary_theta", "rotary_pairing"):
            remedy = "set config.model.positions=rotary, or leave it out"
            refuse(f"model.{name}", f"config.model.positions is {model.positions}", remedy)


def _advice(experiment: PretrainingExperiment) -> list[str]:
    """Returns a note for each schedule in which the warmup takes more than half of the steps, and for each phase in which
    `max_predictions` is too small for `masked_fraction`."""
    notes = [
        f"the warmup takes {schedule.warmup_steps:,} of {counted(schedule.steps, 'step')}: the learning rate reaches its peak "
        "late; for a shorter run, --config.steps=N shortens the warmup too"
        for schedule in experiment.schedules()
        if 2 * schedule.warmup_steps > schedule.steps
    ]
    for i in range(len(experiment.phases)):
        rows = experiment.example_config(i)
        if "masked_fraction" in rows.kind.reads and rows.reached_fraction < rows.masked_fraction:
            key = f"config.phases.{i}.max_predictions"
            notes.append(
                f"{key}={rows.max_predictions} masks at most {100 * rows.reached_fraction:.3g} % of a row of "
                f"{counted(rows.length, 'token')}, although masked_fraction is {rows.masked_fraction:g}; for the whole fraction, "
                f"set it to at least {rows.wanted_predictions}"
            )
    return notes


def _started(workdir: AnyPath | None) -> JsonObject:
    """Returns the configuration of the run that has started in `workdir`, or {} if there is none."""
    if workdir is not None:
        with explained(workdir):
            if (workdir / CONFIG).exists() and (workdir / METRICS).exists():
                return stored_config(workdir)
    return {}


def _shape(values: JsonObject, workdir: AnyPath | None, download: bool) -> tuple[JsonObject, str]:
    """Returns (the architecture fields of the model `init_from`, the model's name for messages). Returns ({}, "") if
    `init_from` is not set, or if the model would have to be downloaded and `download` is False."""
    name = values.get("init_from")
    if not name or not isinstance(name, str):
        return {}, ""
    stored = _started(workdir)  # a resumed run does not need the model, which may be gone
    if stored.get("init_from") == name and isinstance(stored.get("model"), dict):
        fields = {field.name for field in dataclasses.fields(Architecture)}
        return {field: value for field, value in stored["model"].items() if field in fields}, name
    if not download and not pathlib.Path(name).exists():
        return {}, ""
    from bert_jax.interop.huggingface import read_model_config
    from bert_jax.interop.huggingface_config import config_from_json
    from bert_jax.interop.locate import find_model_directory

    directory = find_model_directory(name)
    return dataclasses.asdict(config_from_json(read_model_config(directory), str(directory)).architecture), name
