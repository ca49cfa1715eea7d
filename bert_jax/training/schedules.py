"""The learning rate as a pure function of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

Rate = Float[Array, ""]
"""A learning rate, float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmup:
    """One warmup-and-decay over steps [start, start + steps)."""

    start: int
    steps: int
    warmup_steps: int
    peak: float
    power: float = 1.0
    end: float = 0.0


def warmup_then_decay(schedule: Warmup, step: Int[Array, ""]) -> Rate:
    """The original's learning rate (google-research/bert `optimization.py`) at a `step`.

    Decay is polynomial and counted from the *start*, not from the end of the warmup, so the rate jumps from peak (the last
    warmup value would be peak) down to peak * (1 - warmup/steps) when warmup ends: 1 % in the paper's run, about 10 % with
    a warmup of a tenth. The very first step has rate 0, as there.
    """
    done = (step - schedule.start).astype(jnp.float32)
    warm = schedule.peak * done / jnp.maximum(schedule.warmup_steps, 1)
    left = 1.0 - jnp.clip(done / schedule.steps, 0.0, 1.0)
    decayed = (schedule.peak - schedule.end) * left**schedule.power + schedule.end
    return jnp.where(done < schedule.warmup_steps, warm, decayed)


def piecewise(schedules: Sequence[Warmup]) -> Callable[[Int[Array, ""]], Rate]:
    """The rate of a whole experiment: each of the consecutive `schedules` over its own steps."""

    def rate(step: Int[Array, ""]) -> Rate:
        value = warmup_then_decay(schedules[0], step)
        for schedule in schedules[1:]:
            value = jnp.where(step >= schedule.start, warmup_then_decay(schedule, step), value)
        return value

    return rate


def original(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """`warmup_then_decay` as a function of scalars that may be traced, so that runs which differ in them share one program."""
    scalars: Any = {"steps": steps, "warmup_steps": warmup_steps, "peak": peak}
    return warmup_then_decay(Warmup(start=0, **scalars), step)


def linear(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """Up over the warmup, then from the peak down to 0 at the last step: transformers' schedule, without the original's jump."""
    done = step.astype(jnp.float32)
    falling = (steps - done) / jnp.maximum(steps - warmup_steps, 1)
    return peak * jnp.clip(jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), falling), 0.0, 1.0)


def slanted_triangular(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """ULMFiT's schedule (arXiv:1801.06146, section 3.2): straight up over the warmup (cut_frac), then straight down, between
    peak / 32 and the peak."""
    ratio = 32.0
    return peak * (1.0 / ratio + (1.0 - 1.0 / ratio) * linear(step, steps, warmup_steps, jnp.float32(1.0)))


def constant(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """Up over the warmup, then the peak."""
    del steps
    return peak * jnp.clip((step.astype(jnp.float32) + (warmup_steps == 0)) / jnp.maximum(warmup_steps, 1), 0.0, 1.0)


FINETUNING: dict[str, Callable[[Int[Array, ""], Num[Array, ""], Num[Array, ""], Rate], Rate]] = {
    "original": original,
    "linear": linear,
    "slanted_triangular": slanted_triangular,
    "constant": constant,
}
"""(step int32, steps, warmup steps, peak) -> rate, float32 scalars, by the name in `TrainingConfig.schedule`."""
