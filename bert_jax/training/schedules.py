"""The learning rate as a pure function of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

Array = jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmup:
    """One warmup-and-decay over steps [start, start + steps)."""

    start: int
    steps: int
    warmup_steps: int
    peak: float
    power: float = 1.0
    end: float = 0.0


def warmup_then_decay(schedule: Warmup, step: Array) -> Array:
    """The original's learning rate (google-research/bert `optimization.py`) at an int32 `step`; float32 scalar.

    Decay is polynomial and counted from the *start*, not from the end of the warmup, so the rate jumps from peak (the last
    warmup value would be peak) down to peak * (1 - warmup/steps) when warmup ends: 1 % in the paper's run, about 10 % with
    a warmup of a tenth. The very first step has rate 0, as there.
    """
    done = (step - schedule.start).astype(jnp.float32)
    warm = schedule.peak * done / max(schedule.warmup_steps, 1)
    left = 1.0 - jnp.clip(done / schedule.steps, 0.0, 1.0)
    decayed = (schedule.peak - schedule.end) * left**schedule.power + schedule.end
    return jnp.where(done < schedule.warmup_steps, warm, decayed)


def piecewise(schedules: Sequence[Warmup]) -> Callable[[Array], Array]:
    """The rate of a whole experiment: each of the consecutive `schedules` over its own steps."""

    def rate(step: Array) -> Array:
        value = warmup_then_decay(schedules[0], step)
        for schedule in schedules[1:]:
            value = jnp.where(step >= schedule.start, warmup_then_decay(schedule, step), value)
        return value

    return rate
