"""The learning rate as a pure function of the step.

A schedule is a function `name(step, steps, ...)` that returns a factor of the peak rate. `step` (int32) is the index of the
step in the phase, and `steps` is the number of steps of the phase. If the function has further parameters, each of them
receives the value of the experiment's key with the same name (see `SETTINGS`), or keeps its own default:

    def linear(step, steps, warmup_steps, end_fraction=0.0): ...
    def warmup_stable_decay(step, steps, warmup=0.1, decay=0.2): ...        # fractions that only this function knows

A schedule with a parameter `peak` returns the rate itself. `SCHEDULES` in `training/__init__.py` lists the built-in schedules
for pretraining and fine-tuning. Users can define other schedules in their own files (FILE.py:NAME, e.g.
experiments/extensions/wsd.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file, load_named, require_call
from bert_jax.interface.words import counted
from bert_jax.training import SCHEDULES

Rate = Float[Array, ""]
"""A learning rate or a factor of it, float32."""
Schedule = Callable[[Int[Array, ""]], Rate]
"""A function from the step to the learning rate."""
SETTINGS = ("warmup_steps", "decay_power", "end_learning_rate", "end_fraction")
"""The keys of an experiment that a schedule may have as parameters, in addition to `peak`. Fine-tuning only has
`warmup_steps`."""
Steps = int | Num[Array, ""]
"""A number of steps, constant or traced."""


def original(
    step: Int[Array, ""],
    steps: Steps,
    warmup_steps: Steps,
    peak: float | Rate,
    decay_power: float = 1.0,
    end_learning_rate: float = 0.0,
) -> Rate:
    """Returns the rate of the original (google-research/bert `optimization.py`), which has a linear warmup and then a
    polynomial decay.

    The decay starts at the first step, not at the end of the warmup. At the end of the warmup, the rate therefore drops from
    `peak` to peak * (1 - warmup_steps / steps). This is a drop of 1 % in the paper's run, and of 10 % if the warmup is a tenth
    of the run. The rate of the first step is 0.
    """
    done = step.astype(jnp.float32)
    warm = peak * done / jnp.maximum(warmup_steps, 1)
    left = 1.0 - jnp.clip(done / steps, 0.0, 1.0)
    decayed = (peak - end_learning_rate) * left**decay_power + end_learning_rate
    return jnp.where(done < warmup_steps, warm, decayed)


def linear(step: Int[Array, ""], steps: Steps, warmup_steps: Steps, end_fraction: float = 0.0) -> Rate:
    """Returns a linear warmup from 0, then a linear decay to `end_fraction` at the last step. This is the schedule of
    transformers. Its rate does not drop at the end of the warmup, unlike the original's rate."""
    done = step.astype(jnp.float32)
    falling = end_fraction + (1.0 - end_fraction) * ((steps - done) / jnp.maximum(steps - warmup_steps, 1))
    return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), jnp.maximum(falling, end_fraction))


def cosine(step: Int[Array, ""], steps: Steps, warmup_steps: Steps, end_fraction: float = 0.0) -> Rate:
    """Returns a linear warmup from 0, then half a wave of a cosine (arXiv:1608.03983) to `end_fraction` at the last step."""
    return _warmup_then(lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress)), step, steps, warmup_steps, end_fraction)


def one_minus_sqrt(step: Int[Array, ""], steps: Steps, warmup_steps: Steps, end_fraction: float = 0.0) -> Rate:
    """Returns a linear warmup from 0, then a decay by 1 - sqrt(progress) to `end_fraction` at the last step (arXiv:2405.18392).
    This is ModernBERT's decay, which follows a phase with a constant rate."""
    return _warmup_then(lambda progress: 1.0 - jnp.sqrt(progress), step, steps, warmup_steps, end_fraction)


def _warmup_then(
    shape: Callable[[Rate], Rate], step: Int[Array, ""], steps: Steps, warmup_steps: Steps, end_fraction: float
) -> Rate:
    done = step.astype(jnp.float32)
    progress = jnp.clip((done - warmup_steps) / jnp.maximum(steps - warmup_steps, 1), 0.0, 1.0)
    falling = end_fraction + (1.0 - end_fraction) * shape(progress)
    return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), falling)


def warmup(step: Int[Array, ""], steps: Steps, end_fraction: float = 1.0) -> Rate:
    """Returns a linear warmup over all steps, from 0 to `end_fraction` after the last step."""
    return end_fraction * jnp.clip(step.astype(jnp.float32) / steps, 0.0, 1.0)


def slanted_triangular(step: Int[Array, ""], steps: Steps, warmup_steps: Steps) -> Rate:
    """Returns ULMFiT's schedule (arXiv:1801.06146, section 3.2). The rate rises linearly from 1/32 to 1 over the warmup
    (cut_frac), and then falls linearly back to 1/32."""
    ratio = 32.0
    return 1.0 / ratio + (1.0 - 1.0 / ratio) * linear(step, steps, warmup_steps)


def constant(step: Int[Array, ""], steps: Steps, warmup_steps: Steps) -> Rate:
    """Returns a linear warmup from 0, then the peak rate."""
    del steps
    warming = jnp.asarray(warmup_steps) == 0
    return jnp.clip((step.astype(jnp.float32) + warming) / jnp.maximum(warmup_steps, 1), 0.0, 1.0)


def inverse_sqrt(step: Int[Array, ""], steps: Steps, warmup_steps: Steps) -> Rate:
    """Returns the Transformer's schedule (arXiv:1706.03762, section 5.3), width^-0.5 * min(n^-0.5, n * warmup^-1.5) for step n,
    counted from 1. The result is divided by the peak of this formula, (width * warmup)^-0.5, since the `learning_rate` of the
    phase sets the peak."""
    del steps
    number, warmup = step.astype(jnp.float32) + 1.0, jnp.maximum(jnp.asarray(warmup_steps, jnp.float32), 1.0)
    return jnp.minimum(jnp.sqrt(warmup / number), number / warmup)


def rate_by(name: str, key: str, available: Collection[str]) -> Callable[..., Rate]:
    """Returns the schedule `name` as a function (step, steps, peak, settings) -> rate. `key` is the key that holds this name.
    `settings` holds the values of the `available` keys, which are some of `SETTINGS`. All numbers may be traced.

    Raises UserError if the schedule does not exist or needs a parameter that is not available.
    """
    schedule = load_named(name, SCHEDULES, key)
    if is_in_file(name):
        require_call(schedule, "step, steps", f"{key}={name}", more=True)
    parameters = list(inspect.signature(schedule).parameters.values())[2:]
    given = {parameter.name for parameter in parameters}
    for parameter in parameters:
        is_needed = parameter.default is parameter.empty and parameter.kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD")
        if is_needed and parameter.name not in ("peak", *available):
            unknown = "which the experiment does not set" if parameter.name in SETTINGS else "which no schedule gets"
            raise UserError(
                f"{key}={name} needs {parameter.name}, {unknown}; give it a default, or use one of {', '.join(available)} or peak"
            )

    def rate(
        step: Int[Array, ""], steps: Steps, peak: float | Rate, settings: Mapping[str, float | Num[Array, ""]]
    ) -> Rate:
        named: dict[str, Any] = {setting: value for setting, value in settings.items() if setting in given}
        found = schedule(step, steps, peak=peak, **named) if "peak" in given else schedule(step, steps, **named)
        is_number = isinstance(found, jax.Array | np.ndarray | np.number | int | float)
        if not is_number or jnp.shape(found) != ():
            what = f"an array of shape {jnp.shape(found)}" if isinstance(found, jax.Array) else repr(found)
            raise UserError(f"{key}={name} must return a number for a step, but returns {what}")
        return found if "peak" in given else peak * found

    return rate


def require_finite(rate: Schedule, steps: int, schedule: str, start: int = 0) -> None:
    """Raises UserError if the `rate` of the first or the last of the `steps` is not finite. `schedule` names its key and
    value."""
    for step in (0, max(steps - 1, 0)):
        if not math.isfinite(value := float(rate(jnp.int32(start + step)))):
            raise UserError(
                f"{schedule} returns {value} for step {step} of {counted(steps, 'step')}, so the learning rate is not finite; "
                "correct the schedule (it may divide by 0)"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A schedule over the steps [start, start + steps) of a pretraining run. These are the steps of a phase and of the phases
    that continue the schedule of this phase."""

    schedule: str
    """A name in SCHEDULES, or FILE.py:NAME."""
    key: str = "config.optimizer.schedule"
    """The key that sets the schedule."""
    phase: str = "a phase"
    """The key of the phase, for messages."""
    start: int
    steps: int
    warmup_steps: int
    peak: float
    decay_power: float = 1.0
    end_learning_rate: float = 0.0
    end_fraction: float | None = None
    """The learning rate at the end of the decay, as a fraction of the peak. If None, the schedule's default is used."""

    def reads(self, setting: str) -> bool:
        """Returns whether the schedule has the parameter `setting`. Raises UserError if the schedule cannot be used."""
        rate_by(self.schedule, self.key, SETTINGS)
        return setting in inspect.signature(load_named(self.schedule, SCHEDULES, self.key)).parameters

    def rate(self) -> Schedule:
        """Returns the function from the run's step to the rate. Raises UserError if the schedule cannot be used."""
        settings = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        found = rate_by(self.schedule, self.key, settings)
        if self.end_fraction is not None and not self.reads("end_fraction"):
            raise UserError(
                f"end_fraction={self.end_fraction} of {self.phase} does not apply to {self.key}={self.schedule}, which does not "
                "decay to a fraction of its rate; leave it out, or use warmup, linear, cosine or 1-sqrt"
            )

        def rate(step: Int[Array, ""]) -> Rate:
            return found(step - self.start, self.steps, self.peak, settings)

        if is_in_file(self.schedule):
            jax.eval_shape(rate, jax.ShapeDtypeStruct((), jnp.int32))  # raises UserError for a wrong result
            require_finite(rate, self.steps, f"{self.key}={self.schedule}", self.start)
        return rate


def piecewise(spans: Sequence[Span]) -> Schedule:
    """Returns a function from the step to the rate of a run with several phases. The `spans` are consecutive."""
    first, *later = [span.rate() for span in spans]

    def rate(step: Int[Array, ""]) -> Rate:
        value = first(step)
        for span, own in zip(spans[1:], later, strict=True):
            value = jnp.where(step >= span.start, own(step), value)
        return value

    return rate
