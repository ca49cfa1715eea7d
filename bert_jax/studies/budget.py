"""Computes the steps of every arm, so that all arms read equally many tokens, or train for equally many seconds at a measured
speed. Arms may also keep the steps of their experiments.

The phases of an experiment and their warmups keep their proportions. If an arm continues another arm, as in ULMFiT's second
stage, it keeps its own steps, because the budget only applies to the first pretraining."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment, scaled_steps, with_steps
from bert_jax.configs.study import ArmConfig, StudyExperiment
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.ranges import MAX_COUNT

Speed = Sequence[float]
"""The time of a training step in each phase (seconds)."""


def count_tokens(phases: Sequence[PhaseConfig]) -> int:
    """Returns the number of tokens in the rows of all steps, including padding."""
    return sum(phase.steps * phase.batch_size * phase.length for phase in phases)


def planned_steps(study: StudyExperiment, arm: ArmConfig, experiment: PretrainingExperiment, speed: Speed | None) -> list[int]:
    """Returns the number of steps in each phase of an arm, according to the budget of the study. `speed` is only needed for
    equal seconds.

    Raises UserError if there are more than `MAX_COUNT` steps."""
    phases, budget = experiment.phases, study.budget
    steps = [phase.steps for phase in phases]
    if arm.continues or budget.equal == "steps":
        return steps
    if budget.equal == "tokens":
        factor = budget.tokens / count_tokens(phases)
    else:
        assert speed is not None, "equal seconds need a measured speed"
        factor = budget.seconds / sum(count * seconds for count, seconds in zip(steps, speed, strict=True))
    if sum(steps) * factor > MAX_COUNT:
        given = getattr(budget, budget.equal)
        raise UserError(
            f"config.budget.{budget.equal}={given:g} is {sum(steps) * factor:,.0f} steps of the arm {arm.name!r}, above the "
            f"maximum of {MAX_COUNT:,}; lower it"
        )
    return scaled_steps(steps, factor)


def evaluation_interval(study: StudyExperiment, steps: Sequence[int]) -> int:
    """Returns the number of steps between two held-out evaluations of a pretraining run. Checkpoints have the same interval."""
    return max(1, math.ceil(sum(steps) / study.evaluations))


def exported_steps(study: StudyExperiment, arm: ArmConfig, steps: Sequence[int]) -> Mapping[str, int]:
    """Returns {name: step} for each arm that uses an earlier state from the run of `arm`. The state is saved at the evaluation
    nearest to the fraction `ArmConfig.at` of the run."""
    last, every = sum(steps), evaluation_interval(study, steps)
    early = [other for other in study.arms if other.shares == arm.name and other.at < 1]
    return {other.name: min(last, every * max(1, round(other.at * last / every))) for other in early}


def run_values(study: StudyExperiment, arm: ArmConfig, values: JsonObject, steps: Sequence[int], seed: int) -> JsonObject:
    """Returns the values of one pretraining run of an arm. They set the steps, the seed, the checkpoints and the interval of
    evaluations."""
    last, every = sum(steps), evaluation_interval(study, steps)
    kept = sorted({*exported_steps(study, arm, steps).values()})
    return with_steps(values, steps) | {
        "seed": seed,
        "log_every": max(1, last // 100),
        "evaluation": {**values.get("evaluation", {}), "every": every},
        "checkpoints": {**values.get("checkpoints", {}), "every": every, "keep_at": kept},
    }
