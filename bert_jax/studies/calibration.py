"""The steps of every arm, fixed once in WORKDIR/plan.json; for equal seconds from the speed of a short run of every arm."""

from __future__ import annotations

import logging
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import ArmConfig, StudyExperiment
from bert_jax.corpus.files import JsonObject, parse_json
from bert_jax.errors import UserError
from bert_jax.metrics.writer import METRICS, read_metrics, write_json
from bert_jax.storage.objects import read_bytes, remove_tree
from bert_jax.storage.paths import Place
from bert_jax.studies.arms import pretraining_values
from bert_jax.studies.budget import planned_steps, with_steps
from bert_jax.studies.parts import digest, write_experiment

log = logging.getLogger(__name__)

PLAN = "plan.json"
CALIBRATION = "calibration"
WINDOWS = 6
"""Log lines of each phase, of which the first, with the compilation, does not count."""

Run = Callable[[Sequence[str], pathlib.Path, str], None]
"""(verb and flags, log file, title): runs a command to its end."""


def planned(study: StudyExperiment, experiments: Mapping[str, PretrainingExperiment], root: Place) -> dict[str, list[int]]:
    """The steps that plan.json fixes for the arms, by name; without those that are not planned yet.

    Raises UserError where an arm was planned with another budget or configuration.
    """
    found = _read(root)
    steps = {}
    for name in experiments:
        if (entry := found.get(name)) is None:
            continue
        if entry["of"] != _identity(study, study.arm(name)):
            raise UserError(
                f"{root / PLAN} has the steps of the arm {name!r} with another configuration or budget; name another --workdir"
            )
        steps[name] = list(entry["steps"])
    return steps


def plan(
    study: StudyExperiment, experiments: Mapping[str, PretrainingExperiment], root: Place, local: pathlib.Path, run: Run
) -> dict[str, list[int]]:
    """The steps of every arm that pretrains. Those that plan.json lacks are computed, or measured, and added to it.

    `local` is the directory for experiment files and logs of this process.
    """
    steps = planned(study, experiments, root)
    for name, experiment in experiments.items():
        if name in steps:
            continue
        arm, speed = study.arm(name), None
        if study.budget.equal == "seconds" and not arm.continues:
            speed = measured_speed(study, arm, experiment, root, local, run)
        steps[name] = planned_steps(study, arm, experiment, speed)
        entry = {"of": _identity(study, arm), "steps": steps[name], "seconds_per_step": speed}
        write_json(root / PLAN, {"arms": _read(root) | {name: entry}})
    return steps


def measured_speed(
    study: StudyExperiment, arm: ArmConfig, experiment: PretrainingExperiment, root: Place, local: pathlib.Path, run: Run
) -> list[float]:
    """Seconds of a training step of every phase of an arm: the median over the log lines of a short run, which is removed."""
    count = study.budget.calibration_steps
    every = max(1, count // WINDOWS)
    values = with_steps(pretraining_values(study, arm), [count] * len(experiment.phases)) | {
        "log_every": every,
        "evaluation": {"every": count, "rows": experiment.evaluation.batch_size, "batch_size": experiment.evaluation.batch_size},
        "checkpoints": {"every": count * len(experiment.phases)},
    }
    directory = local / arm.name
    workdir = root / arm.name / CALIBRATION
    file = directory / f"{CALIBRATION}.py"
    write_experiment(file, values, f"the speed of {arm.name}")
    run(["pretrain", f"--config={file}", f"--workdir={workdir}"], directory / f"{CALIBRATION}.log", f"{arm.name}, {CALIBRATION}")
    rates = [
        [
            record["train/rows_per_second"]
            for record in read_metrics(workdir / METRICS)
            if i * count + every < record["step"] <= (i + 1) * count and record.get("train/rows_per_second")
        ]
        for i in range(len(experiment.phases))
    ]
    remove_tree(workdir)
    if not all(rates):
        raise UserError(
            f"config.budget.calibration_steps={count} gave no measure of the speed of the arm {arm.name!r}; raise it, for "
            f"example to {10 * WINDOWS}"
        )
    speed = [phase.batch_size / statistics.median(rate) for phase, rate in zip(experiment.phases, rates, strict=True)]
    log.info("%s: %s a step", arm.name, ", ".join(f"{1000 * seconds:.3g} ms" for seconds in speed))
    return speed


def _read(root: Place) -> JsonObject:
    try:
        found = parse_json(read_bytes(root / PLAN))
    except (OSError, ValueError):
        return {}
    return found["arms"] if isinstance(found, dict) and isinstance(found.get("arms"), dict) else {}


def _identity(study: StudyExperiment, arm: ArmConfig) -> str:
    """A hash of all that the steps of an arm depend on, but for the paths of its experiment."""
    budget = {"equal": study.budget.equal, "amount": getattr(study.budget, study.budget.equal, 0)}
    return digest({"budget": budget, "arm": digest(pretraining_values(study, arm)), "continues": arm.continues})
