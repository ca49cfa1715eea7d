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
    """The settings of a warmup and decay over the steps [start, start + steps)."""

    start: int
    steps: int
    warmup_steps: int
    peak: float
    power: float = 1.0
    end: float = 0.0
    slanted: bool = False
    """Whether the schedule is `slanted_triangular`, without `power` and `end`."""


def warmup_then_decay(schedule: Warmup, step: Int[Array, ""]) -> Rate:
    """The learning rate at a `step`, as in the original (google-research/bert `optimization.py`).

    The decay is polynomial and counted from `start`, not from the end of the warmup, so at the end of the warmup the rate drops
    from `peak` to peak * (1 - warmup_steps / steps): by 1 % in the paper's run, by 10 % if the warmup is a tenth of the run. The
    rate of the first step is 0. With `slanted` it is `slanted_triangular` instead.
    """
    if schedule.slanted:
        numbers = (jnp.float32(x) for x in (schedule.steps, schedule.warmup_steps, schedule.peak))
        return slanted_triangular(step - schedule.start, *numbers)
    done = (step - schedule.start).astype(jnp.float32)
    warm = schedule.peak * done / jnp.maximum(schedule.warmup_steps, 1)
    left = 1.0 - jnp.clip(done / schedule.steps, 0.0, 1.0)
    decayed = (schedule.peak - schedule.end) * left**schedule.power + schedule.end
    return jnp.where(done < schedule.warmup_steps, warm, decayed)


def piecewise(schedules: Sequence[Warmup]) -> Callable[[Int[Array, ""]], Rate]:
    """A function from the step to the rate of a run with several phases; the `schedules` are consecutive."""

    def rate(step: Int[Array, ""]) -> Rate:
        value = warmup_then_decay(schedules[0], step)
        for schedule in schedules[1:]:
            value = jnp.where(step >= schedule.start, warmup_then_decay(schedule, step), value)
        return value

    return rate


def original(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """`warmup_then_decay` as a function of scalars that may be traced, so that runs with different values share one program."""
    scalars: Any = {"steps": steps, "warmup_steps": warmup_steps, "peak": peak}
    return warmup_then_decay(Warmup(start=0, **scalars), step)


def linear(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """A linear warmup from 0 to `peak`, then a linear decay to 0 at the last step: transformers' schedule, without the drop of
    the original's."""
    done = step.astype(jnp.float32)
    falling = (steps - done) / jnp.maximum(steps - warmup_steps, 1)
    return peak * jnp.clip(jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), falling), 0.0, 1.0)


def slanted_triangular(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """ULMFiT's schedule (arXiv:1801.06146, section 3.2): linearly from peak / 32 to `peak` over the warmup (cut_frac), then
    linearly back."""
    ratio = 32.0
    return peak * (1.0 / ratio + (1.0 - 1.0 / ratio) * linear(step, steps, warmup_steps, jnp.float32(1.0)))


def constant(step: Int[Array, ""], steps: Num[Array, ""], warmup_steps: Num[Array, ""], peak: Rate) -> Rate:
    """A linear warmup from 0 to `peak`, then `peak`."""
    del steps
    return peak * jnp.clip((step.astype(jnp.float32) + (warmup_steps == 0)) / jnp.maximum(warmup_steps, 1), 0.0, 1.0)


FINETUNING: dict[str, Callable[[Int[Array, ""], Num[Array, ""], Num[Array, ""], Rate], Rate]] = {
    "original": original,
    "linear": linear,
    "slanted_triangular": slanted_triangular,
    "constant": constant,
}
"""Name in `TrainingConfig.schedule` -> function (step int32, steps, warmup steps, peak) -> rate; float32 scalars."""
