"""Starts a run from the state of another run, with its optimizer state and step (`config.init_state`)."""

from __future__ import annotations

import dataclasses
import logging

from bert_jax.configs.files import with_defaults
from bert_jax.configs.pretraining import ROTARY_KEYS, PretrainingExperiment
from bert_jax.data.corpus.store import TOKENIZER, Corpus, open_splits
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.pretraining.splits import FINGERPRINT
from bert_jax.runtime.workdir import differences, from_start, run_config
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import AnyPath, checked, is_remote
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.steps import TrainState

log = logging.getLogger(__name__)

KEY = "config.init_state"


def load_branch_state(experiment: PretrainingExperiment, corpus: Corpus, layout: TrainState) -> TrainState:
    """Loads the state named by `config.init_state`, with the shardings of `layout`, for a run on `corpus`.

    Raises UserError if the state does not exist, if it belongs to a different model, objective, optimizer or vocabulary, or if
    the experiment's phases up to its step differ from those of its run.
    """
    workdir, step = _named(experiment.init_state)
    stored = with_defaults(PretrainingExperiment, run_config(workdir, "pretrain", KEY), beside=FINGERPRINT)
    stored.pop(FINGERPRINT, None)
    trunk = PretrainingExperiment.from_dict(stored)
    directory, there = workdir / "checkpoints", list[int]()
    if directory.is_dir():
        with Checkpoints(directory, read_only=True) as checkpoints:
            there = checkpoints.steps
            if step in there:
                _require_same_model(experiment, trunk)
                _require_same_vocabulary(experiment, trunk, workdir, corpus)
                _require_same_past(experiment, trunk, step)
                log.info("continuing from step %s of %s, with its optimizer state", f"{step:,}", workdir)
                return checkpoints.restore(step, layout)
    has = f"has the states of steps {', '.join(f'{saved:,}' for saved in there)}" if there else "has no states"
    raise UserError(
        f"{KEY}={experiment.init_state}: {workdir} {has}, not that of step {step:,}; name an existing step, or train that "
        f"run with --config.checkpoints.keep_at='[{step}]'"
    )


def _named(text: str) -> tuple[AnyPath, int]:
    """Returns the workdir and the step of WORKDIR@STEP."""
    workdir, _, step = text.rpartition("@")
    if not workdir or not step.isdecimal():
        raise UserError(f"{KEY}={text} is not WORKDIR@STEP, e.g. {text.partition('@')[0] or 'runs/mine'}@5000; name a step")
    return as_path(checked(workdir, KEY)), int(step)


def _decisive(experiment: PretrainingExperiment) -> JsonObject:
    """Returns the settings that determine the arrays of a state and their meaning."""
    model = {f"model.{name}": value for name, value in dataclasses.asdict(experiment.model.architecture).items()}
    return {name: value for name, value in model.items() if name.partition(".")[2] not in ROTARY_KEYS} | {
        "model.vocab_multiple": experiment.model.vocab_multiple,
        "objective": "" if is_in_file(experiment.objective) else experiment.objective,
        "objective_options": experiment.objective_options,
        "optimizer.name": "" if is_in_file(experiment.optimizer.name) else experiment.optimizer.name,
        "spikes.policy": experiment.spikes.policy if experiment.spikes.policy == "none" else "watched",
        "examples.pairs": experiment.examples.pairs if experiment.examples.pairs == "none" else "pairs",
        "teacher": bool(experiment.teacher),
    }


def _require_same_model(experiment: PretrainingExperiment, trunk: PretrainingExperiment) -> None:
    changed = differences(_decisive(trunk), _decisive(experiment))
    if changed:
        listed = ", ".join(f"config.{key} is {then} there and {now} here" for key, (then, now) in changed.items())
        raise UserError(f"{KEY}={experiment.init_state} is a state of a different model or optimizer: {listed}; use the same")


def _require_same_vocabulary(
    experiment: PretrainingExperiment, trunk: PretrainingExperiment, workdir: AnyPath, corpus: Corpus
) -> None:
    """Raises UserError if the corpus of that run still exists and has a different vocabulary."""
    directory = from_start(workdir, trunk.corpus.directory)
    if is_remote(directory):
        return
    try:
        vocabulary = open_splits(directory, ["train"])[0].vocabulary
    except (UserError, OSError):
        return
    if vocabulary != corpus.vocabulary:
        raise UserError(
            f"{KEY}={experiment.init_state} is a state of a run with a different vocabulary than the corpus "
            f"{experiment.corpus.directory}; build the corpus with --vocab={directory}/{TOKENIZER}"
        )


def _require_same_past(experiment: PretrainingExperiment, trunk: PretrainingExperiment, step: int) -> None:
    """Raises UserError unless the phases of both are the same up to `step` and those of `experiment` continue after it."""
    if experiment.phase_starts()[-1] <= step:
        raise UserError(
            f"{KEY}={experiment.init_state} is after step {step:,}, and config.phases have "
            f"{counted(experiment.phase_starts()[-1], 'step')} together; give the phases of the whole run, from its step 0"
        )

    def past(one: PretrainingExperiment) -> list[JsonObject]:
        found = []
        for start, phase in zip(one.phase_starts(), one.phases, strict=False):
            if start < step:
                values = dataclasses.asdict(phase)
                end = min(start + values.pop("steps"), step)
                for name in ("tokens", "accumulation", "corpus"):
                    del values[name]
                found.append({"ends at step": end, **values})
        return found

    changed = differences({"phases": past(trunk)}, {"phases": past(experiment)})
    if changed:
        key, (then, now) = next(iter(changed.items()))
        raise UserError(
            f"{KEY}={experiment.init_state}: up to step {step:,} the phases are those of that run, and config.{key} is {then} "
            f"there and {now} here; repeat its phases up to that step, then give others"
        )
