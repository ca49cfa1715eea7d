"""The keys of `config.optimizer`, `config.spikes` and `config.log`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.interface.ranges import Count, CountOrZero, Epsilon, Fraction, LearningRate, NamedIn, OneOf, check_ranges
from bert_jax.training import OPTIMIZERS, SCHEDULES, SINKS

POLICIES = ("none", "skip", "rollback")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The settings of the optimizer. The defaults are the values of the original code (google-research/bert `optimization.py`).
    The paper specifies only the betas and the weight decay."""

    name: Annotated[str, NamedIn(tuple(OPTIMIZERS))] = "bert_adam"
    """"bert_adam": the original's Adam, without bias correction. "adamw": Adam with bias correction, which stabilises
    fine-tuning on few examples (arXiv:2006.05987). "lamb": arXiv:1904.00962. "stable_adamw": ModernBERT's optimizer
    (arXiv:2304.13013). FILE.py:NAME: your own."""
    b1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    b2: Annotated[float, Interval(ge=0, lt=1)] = 0.999
    epsilon: Epsilon = 1e-6
    weight_decay: Annotated[float, Interval(ge=0, le=1_000)] = 0.01
    """Decoupled weight decay of every parameter except biases and LayerNorm parameters."""
    decouple_rate: bool = False
    """Whether `weight_decay` is divided by the peak learning rate of the phase. A step at the peak rate then removes the
    fraction `weight_decay` of every weight, whatever the rate is. This is decouple_lr in optimi and Composer, and ModernBERT
    uses a weight decay of 1e-5. For pretraining only."""
    clip_norm: Annotated[float, Interval(ge=0, le=1e30)] = 1.0
    """The maximum global norm of the gradient. 0 disables clipping."""
    decay_power: Annotated[float, Interval(ge=0, le=1_000)] = 1.0
    """The power of the polynomial decay of the learning rate: 1 is linear; LAMB's large-batch recipe uses 0.5."""
    end_learning_rate: LearningRate = 0.0
    schedule: Annotated[str, NamedIn(tuple(SCHEDULES))] = "original"
    """The schedule of pretraining. "original": a warmup, then the polynomial decay. "slanted_triangular" (ULMFiT,
    arXiv:1801.06146, section 3.2): rises over `warmup_steps` from 1/32 of the learning rate and falls back linearly.
    "inverse_sqrt" (arXiv:1706.03762, section 5.3): the paper's peak is (width * warmup_steps)^-0.5. All other schedules are
    meant for phases, which can combine them. "warmup" rises over the whole phase. "constant" keeps the peak rate after a
    warmup. "linear" (as in transformers), "cosine" and "1-sqrt" (arXiv:2405.18392, ModernBERT's decay) fall to the phase's
    `end_fraction` after a warmup. FILE.py:NAME is your own. A phase may set another schedule."""
    layer_decay: Fraction = 1.0
    """The ratio of a layer's learning rate to the rate of the layer above it. Use it to continue pretraining a model on other
    text. ULMFiT's discriminative rates have the ratio 1 / 2.6."""

    def __post_init__(self) -> None:
        check_ranges(self, "optimizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpikeConfig:
    """The policy for spikes of the training loss."""

    policy: Annotated[str, OneOf(POLICIES)] = "none"
    """"none": no action. "skip": a step whose loss is a spike does not change the weights. "rollback": like "skip", and after
    `in_a_row` consecutive spikes the run rolls back to an earlier checkpoint and skips the batches since then."""
    deviations: Annotated[float, Interval(gt=0, le=1_000)] = 6.0
    """A loss counts as a spike when it exceeds the running mean by this many standard deviations."""
    window: Annotated[int, Interval(ge=2, le=1_000_000)] = 100
    """The window of the running mean and standard deviation, in steps. In the moving averages, the newest loss has the weight
    1/window. They start anew in every phase, so the first `window` steps of a phase are never spikes."""
    in_a_row: Count = 3
    """"rollback": the number of consecutive spikes that triggers a rollback."""
    rollback_steps: CountOrZero = 100
    """"rollback": the run continues from the newest checkpoint at least this many steps before the first of these spikes, or
    from the earliest checkpoint if none is that old. `checkpoints.keep` should therefore span this many steps."""
    max_rollbacks: Count = 3
    """"rollback": maximum number of rollbacks before the run fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
    """The log of a run."""

    sinks: tuple[Annotated[str, NamedIn(tuple(SINKS))], ...] = ("tensorboard",)
    """Additional outputs for the metrics in `metrics.jsonl`: "tensorboard", "wandb", "mlflow", or FILE.py:NAME."""

    def __post_init__(self) -> None:
        check_ranges(self, "log")
