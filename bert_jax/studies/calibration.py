"""Determines the steps of every arm once, and stores them in WORKDIR/plan.json. For equal seconds, the steps are computed from
the speed of the arm, which a short run measures."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from bert_jax.configs.pretraining import PretrainingExperiment, with_steps
from bert_jax.configs.study import ArmConfig, StudyExperiment
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, read_record, remove_tree, write_json
from bert_jax.runtime.workdir import METRICS, read_metrics
from bert_jax.storage.paths import AnyPath
from bert_jax.studies.arms import pretraining_values
from bert_jax.studies.budget import planned_steps
from bert_jax.studies.parts import digest, write_experiment

log = logging.getLogger(__name__)

PLAN = "plan.json"
CALIBRATION = "calibration"
WINDOWS = 6
"""The number of log lines per phase. The first line does not count, because it includes the compilation."""
LONG_ENOUGH = 30.0
"""The speed of a phase is measured over steps that take this many seconds. Shorter measurements are not exact enough, because
the speed of a shared machine changes by 10 % from one period of 20 seconds to the next."""

Run = Callable[[Sequence[str], pathlib.Path, str], None]
"""A function that runs a command to its end. The arguments are the command with its flags, the log file and a title."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The settings for measuring the speed of arms. They are the directories, the function that runs commands, and the index of
    this process."""

    root: AnyPath
    """The workdir of the study."""
    local: pathlib.Path
    """The directory for this process's experiment files and logs."""
    run: Run
    index: int = 0
    """The index of this process in the study."""


def planned(study: StudyExperiment, experiments: Mapping[str, PretrainingExperiment], root: AnyPath) -> dict[str, list[int]]:
    """Returns {name: steps} for the arms that are already in plan.json.

    Raises UserError if an arm was planned with a different budget or configuration."""
    found = _read(root)
    steps = {}
    for name in experiments:
        if (entry := found.get(name)) is None:
            continue
        if entry["of"] != _identity(study, study.arm(name)):
            raise UserError(
                f"{root / PLAN} has the steps of the arm {name!r} for a different configuration or budget; name another --workdir"
            )
        steps[name] = list(entry["steps"])
    return steps


def plan(
    study: StudyExperiment, experiments: Mapping[str, PretrainingExperiment], measurement: Measurement
) -> dict[str, list[int]]:
    """Returns the steps of every arm that pretrains. If an arm is missing in plan.json, its steps are computed (for equal
    seconds, from a measured speed) and added to the file."""
    root = measurement.root
    steps = planned(study, experiments, root)
    for name, experiment in experiments.items():
        if name in steps:
            continue
        arm, speed = study.arm(name), None
        if _is_measured(study, arm):
            speed = measured_speed(study, arm, experiment, measurement)
            log.info("%s: %s a step", name, ", ".join(f"{1000 * seconds:.3g} ms" for seconds in speed))
        steps[name] = planned_steps(study, arm, experiment, speed)
        entry = {"of": _identity(study, arm), "steps": steps[name], "seconds_per_step": speed}
        write_json(root / PLAN, {"arms": _read(root) | {name: entry}})
    return steps


def awaited_plan(
    study: StudyExperiment,
    experiments: Mapping[str, PretrainingExperiment],
    measurement: Measurement,
    wait: Callable[[], None],
) -> dict[str, list[int]]:
    """Waits until process 0 has planned the steps of every arm that pretrains, and returns these steps. Every process except
    process 0 calls this function.

    While process 0 measures, this process trains the same arms in a different order, so that the machine is as busy as during
    the study. If a core of the machine were idle, the measured speed would be too high: 10 % higher than in training for a
    biLM, and 35 % higher for static vectors. If no arm is measured, this function only calls `wait` until the plan exists.
    Raises the exceptions of `measurement.run` and `wait`."""
    arms = [name for name in experiments if _is_measured(study, study.arm(name))]
    turn = measurement.index
    while len(steps := planned(study, experiments, measurement.root)) < len(experiments):
        if arms:
            name = arms[turn % len(arms)]
            measured_speed(study, study.arm(name), experiments[name], measurement)
            turn += 1
        else:
            wait()
    return steps


def _is_measured(study: StudyExperiment, arm: ArmConfig) -> bool:
    return study.budget.equal == "seconds" and not arm.continues


def measured_speed(
    study: StudyExperiment, arm: ArmConfig, experiment: PretrainingExperiment, measurement: Measurement
) -> list[float]:
    """Measures the time of a training step in each phase of an arm (seconds) with a short run. If the steps of a phase take
    less than `LONG_ENOUGH` and less than a sixtieth of the budget, a longer run follows. Raises UserError if
    `calibration_steps` is too small to measure the speed."""
    least, phases = study.budget.calibration_steps, len(experiment.phases)
    try:
        speed = _measure_speed(study, arm, experiment, [least] * phases, measurement)
        seconds = min(LONG_ENOUGH, study.budget.seconds / 60)
        longer = [max(least, math.ceil(seconds / step)) for step in speed]
        if max(longer) > least:
            speed = _measure_speed(study, arm, experiment, longer, measurement)
    finally:
        remove_tree(_workdir(arm, measurement))
    return speed


def _measure_speed(
    study: StudyExperiment,
    arm: ArmConfig,
    experiment: PretrainingExperiment,
    counts: Sequence[int],
    measurement: Measurement,
) -> list[float]:
    """Returns the median time of a training step in each phase (seconds), from the log lines of a run. `counts` has the number
    of steps in each phase of this run."""
    every = max(1, min(counts) // WINDOWS)
    values = with_steps(pretraining_values(study, arm), counts) | {
        "log_every": every,
        "evaluation": {
            "every": sum(counts),
            "rows": experiment.evaluation.batch_size,
            "batch_size": experiment.evaluation.batch_size,
        },
        "checkpoints": {"every": sum(counts)},
    }
    # The name contains the steps, so that a killed run is only resumed if its steps are the same.
    workdir = _workdir(arm, measurement) / "-".join(map(str, counts))
    file, log_file = (measurement.local / arm.name / f"{workdir.parent.name}.{kind}" for kind in ("py", "log"))
    write_experiment(file, values, f"the speed of {arm.name}")
    measurement.run(["pretrain", f"--config={file}", f"--workdir={workdir}"], log_file, f"{arm.name}, {CALIBRATION}")
    records = [record for record in read_metrics(workdir / METRICS) if record.get("train/rows_per_second")]
    speed = []
    for phase, end, count in zip(experiment.phases, itertools.accumulate(counts), counts, strict=True):
        # The first log line of a phase includes the compilation, and possibly steps of the previous phase.
        rates = [record["train/rows_per_second"] for record in records if end - count + every < record["step"] <= end]
        if not rates:
            raise UserError(
                f"config.budget.calibration_steps={study.budget.calibration_steps} is too small to measure the speed of the arm "
                f"{arm.name!r}; raise it, for example to {10 * WINDOWS}"
            )
        speed.append(phase.batch_size / statistics.median(rates))
    return speed


def _workdir(arm: ArmConfig, measurement: Measurement) -> AnyPath:
    return measurement.root / arm.name / f"{CALIBRATION}-{measurement.index}"


def _read(root: AnyPath) -> JsonObject:
    arms = (read_record(root / PLAN) or {}).get("arms")
    return arms if isinstance(arms, dict) else {}


def _identity(study: StudyExperiment, arm: ArmConfig) -> str:
    """Returns a hash of everything that determines the steps of an arm. The paths in the arm's experiment are left out."""
    budget = {"equal": study.budget.equal, "amount": getattr(study.budget, study.budget.equal, 0)}
    return digest({"budget": budget, "arm": digest(pretraining_values(study, arm)), "continues": arm.continues})
