"""Collects the numbers of a study from the records of its parts, and arranges them by arm for `table.json`.

"table" has the reproducible numbers. They are the same whenever the study runs on the same kind of machine, even if the study
was killed and resumed. "measured" has seconds and devices, which differ between runs of the study."""

from __future__ import annotations

import statistics as plain
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import AVERAGE, ArmConfig
from bert_jax.files import JsonObject
from bert_jax.model.config import ModelConfig
from bert_jax.pretraining.program import phase_row_flops
from bert_jax.studies.arms import chain
from bert_jax.studies.budget import exported_steps
from bert_jax.studies.parts import PRETRAINING, Part, Planned
from bert_jax.studies.statistics import BySeed, Difference, Outcome, deviation, mean, outcome, paired

TRAINING = ("training", "waiting_for_data")
"""The time categories that count as the training time of a run. The time of repeated steps does not count."""


def table(planned: Planned) -> JsonObject:
    """Returns the content of `table.json`, {"table": ..., "measured": ...}. The docstring of this module describes both."""
    study = planned.study
    scores = all_scores(planned)
    columns = [task.name for task in study.tasks] + ([AVERAGE] if len(study.tasks) > 1 else [])
    reference = study.reference_arm.name
    arms = []
    for arm in study.arms:
        own = scores[arm.name]
        arms.append(
            {
                "name": arm.name,
                "title": arm.title,
                **pretraining_numbers(planned, arm),
                "scores": {column: _statistics(own[column]) for column in columns},
                "minus_reference": {
                    column: _interval(paired(own[column], scores[reference][column]))
                    for column in columns
                    if arm.name != reference
                },
                "one_answer": {task.name: _count(planned, arm, task.name, "degenerate") for task in study.tasks},
                "failed": {task.name: _count(planned, arm, task.name, "failed") for task in study.tasks},
                "paper": dict(arm.paper),
            }
        )
    expected = [
        _as_json(outcome(one, task, {name: by_task[task] for name, by_task in scores.items()}))
        for one in study.expected
        for task in (one.tasks or columns)
    ]
    return {
        "table": {
            "title": study.title,
            "setting": study.setting,
            "equal": study.budget.equal,
            "amount": getattr(study.budget, study.budget.equal, None),
            "seeds": list(study.seeds),
            "restarts": study.restarts,
            "reference": reference,
            "tasks": {task.name: task_metric(planned, task.name) for task in study.tasks},
            "baselines": {task.name: task_baseline(planned, task.name) for task in study.tasks},
            "arms": arms,
            "expected": expected,
            "paper": study.paper,
        },
        "measured": {arm.name: measured(planned, arm) for arm in study.arms},
    }


# ---------------------------------------------------------------------------------------------------------------------- scores
def all_scores(planned: Planned) -> dict[str, dict[str, BySeed]]:
    """Returns arm -> column -> seed -> score, as a fraction, for every part that is done. If a seed has restarts, the score is
    the mean over the restarts."""
    study = planned.study
    found: dict[str, dict[str, BySeed]] = {}
    for arm in study.arms:
        own: dict[str, BySeed] = {task.name: {} for task in study.tasks}
        for task in study.tasks:
            by_seed = {seed: _score(planned, Part(arm.name, seed, task.name), task.metric) for seed in study.seeds}
            own[task.name] = {seed: score for seed, score in by_seed.items() if score is not None}
        whole = [seed for seed in study.seeds if all(seed in own[task.name] for task in study.tasks)]
        own[AVERAGE] = {seed: plain.fmean(own[task.name][seed] for task in study.tasks) for seed in whole}
        found[arm.name] = own
    return found


def _score(planned: Planned, part: Part, metric: str) -> float | None:
    record = planned.record(part)
    if record is None or not record["scores"]:
        return None
    split, _, name = (metric or record["metric"]).partition("/")
    return plain.fmean(run[split][name] for run in record["scores"]) / _whole(planned, part.name)


def _whole(planned: Planned, task: str) -> float:
    """Returns the score that corresponds to the fraction 1. It is 100 if the task has scores in percent, and otherwise 1.
    Scores are converted to fractions because a mean over tasks needs equal units."""
    return 100.0 if getattr(planned.tasks[task], "in_percent", False) else 1.0  # a user's task may not have this attribute


def _count(planned: Planned, arm: ArmConfig, task: str, kind: str) -> int:
    """Returns how many runs of an arm on a task are of this `kind`, "failed" or "degenerate". A degenerate run gives the same
    answer, or nearly the same, to every example."""
    found = (planned.record(Part(arm.name, seed, task)) for seed in planned.study.seeds)
    return sum(record[kind] for record in found if record is not None)


def task_metric(planned: Planned, task: str) -> str:
    """Returns the metric of a task as SPLIT/METRIC. It is the metric that the study names or, if there is none, the task's own
    metric on the dev split."""
    own = next(one for one in planned.study.tasks if one.name == task)
    loaded = planned.tasks[task]
    return own.metric or f"{next(split for split in loaded.splits if split.startswith('dev'))}/{loaded.metric}"


def task_baseline(planned: Planned, task: str) -> float | None:
    """Returns the score of the best constant answer for a task, as a fraction. Returns None until a part of this task is done,
    and for a metric that the baseline does not have."""
    split, _, name = task_metric(planned, task).partition("/")
    for arm in planned.study.arms:
        for seed in planned.study.seeds:
            if record := planned.record(Part(arm.name, seed, task)):
                found = record["baseline"].get(split, {}).get(name)
                return None if found is None else float(found) / _whole(planned, task)
    return None


def _statistics(by_seed: BySeed) -> JsonObject:
    values = [by_seed[seed] for seed in sorted(by_seed)]
    return {"mean": mean(values), "deviation": deviation(values), "seeds": {str(seed): by_seed[seed] for seed in sorted(by_seed)}}


def _interval(found: Difference) -> JsonObject:
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def _as_json(found: Outcome) -> JsonObject:
    return {
        "order": found.order,
        "task": found.task,
        "holds": found.holds,
        "came_out": list(found.came_out),
        "pairs": [
            {"higher": pair.higher, "lower": pair.lower, "verdict": pair.verdict, **_interval(pair.difference)}
            for pair in found.pairs
        ],
    }


# ----------------------------------------------------------------------------------------------------------------- pretraining
def pretraining_numbers(planned: Planned, arm: ArmConfig) -> JsonObject:
    """Returns the costs and held-out scores of an arm's model. They are the steps, tokens, FLOPs and parameters, and the
    held-out scores as means over seeds.

    Tokens and FLOPs include all pretraining that led to the model, but steps are only those of the last pretraining. The
    held-out loss is the loss of the arm's own objective. For example, a loss on masked words cannot be compared with a loss on
    next tokens."""
    if is_untrained(arm):
        return {"steps": 0, "tokens": 0, "flops": 0.0, "parameters": _parameters(planned, arm), "eval": {}}
    steps = trained_steps(planned, arm)
    tokens = flops = 0.0
    for name, counts in steps.items():
        experiment = planned.pretraining[name]
        tokens += sum(n * p.batch_size * p.length for n, p in zip(counts, experiment.phases, strict=True))
        flops += _flops(experiment, counts, planned.teachers.get(name))
    trainer = planned.study.trainer(arm).name
    return {
        "steps": sum(steps[trainer]),
        "tokens": int(tokens),
        "flops": flops,
        "parameters": _parameters(planned, arm),
        "eval": _eval(planned, arm, sum(steps[trainer])),
    }


def is_untrained(arm: ArmConfig) -> bool:
    """Returns whether the arm starts its tasks from random weights."""
    return bool(arm.finetune.get("init_random"))


def trained_steps(planned: Planned, arm: ArmConfig) -> dict[str, list[int]]:
    """Returns {name of an arm: steps of each phase} for each pretraining that led to the model of `arm`. If `arm` uses an
    earlier state of a run, the steps after this state are not counted."""
    found = {one.name: list(planned.steps[one.name]) for one in chain(planned.study, arm)}
    if arm.at < 1:
        trainer = planned.study.trainer(arm)
        left = exported_steps(planned.study, trainer, planned.steps[trainer.name])[arm.name]
        counts = found[trainer.name]
        for i, count in enumerate(counts):
            counts[i] = min(count, left)
            left -= counts[i]
    return found


def _flops(experiment: PretrainingExperiment, counts: Sequence[int], teacher: ModelConfig | None) -> float:
    phases = enumerate(zip(counts, experiment.phases, strict=True))
    return sum(count * phase.batch_size * phase_row_flops(experiment, i, teacher) for i, (count, phase) in phases)


def _parameters(planned: Planned, arm: ArmConfig) -> int | None:
    return next((record["parameters"] for record in _records(planned, arm)), None)


def _records(planned: Planned, arm: ArmConfig) -> list[JsonObject]:
    """Returns the pretraining records of the arm's model, one for each seed that is done."""
    trainer = planned.study.trainer(arm).name
    found = [planned.record(Part(trainer, seed, PRETRAINING)) for seed in planned.study.seeds]
    return [record for record in found if record is not None]


def _eval(planned: Planned, arm: ArmConfig, step: int) -> JsonObject:
    """Returns the held-out scores at a step as means over seeds."""
    found = []
    for record in _records(planned, arm):
        at_step: Mapping[str, Any] | None = record["eval"]
        if arm.at < 1:
            at_step = next((one for one in record["curve"] if one["step"] == step), None)
        if at_step is not None:
            found.append(at_step)
    names = [name for name in (found[0] if found else {}) if name != "step" and all(one.get(name) is not None for one in found)]
    return {name: plain.fmean(one[name] for one in found) for name in names}


def measured(planned: Planned, arm: ArmConfig) -> JsonObject:
    """Returns the seconds of pretraining (for the training steps alone, and for everything) as means over seeds, and the
    devices. Returns {} for an earlier state and for random weights, because they have no pretraining run of their own. Also
    returns {} until the pretraining of a seed is done."""
    if is_untrained(arm) or arm.at < 1:
        return {}
    training, whole, devices = [], [], set()
    for seed in planned.study.seeds:
        found = [planned.record(Part(one.name, seed, PRETRAINING)) for one in chain(planned.study, arm)]
        records = [record["measured"] for record in found if record is not None]
        if records and len(records) == len(found):
            training.append(sum(one["seconds"].get(name, 0.0) for one in records for name in TRAINING))
            whole.append(sum(sum(one["seconds"].values()) for one in records))
            devices |= {one["devices"] for one in records}
    if not training:
        return {}
    return {"training_seconds": plain.fmean(training), "all_seconds": plain.fmean(whole), "devices": sorted(devices)}
