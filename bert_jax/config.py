"""An experiment: what its file returns becomes frozen dataclasses here, and nothing behind this module sees a ConfigDict.

An experiment file names only what it changes; every other key has the default written here or in the `settings.py` of the folder
it belongs to. A key that no dataclass declares is an error naming the nearest one, never a silent default.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from bert_jax.examples.settings import ExampleConfig
from bert_jax.model.settings import ModelConfig
from bert_jax.sharding.mesh import MeshConfig
from bert_jax.terminal import UserError, nearest
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import Warmup

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Where the tokenised corpus is; `python -m bert_jax.corpus` makes one."""

    directory: str = "runs/embedded_corpus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairConfig:
    """What examples are in every phase; `ExampleConfig` says what each key does."""

    masked_fraction: float = 0.15
    mask_probability: float = 0.8
    random_probability: float = 0.1
    whole_word: bool = False
    pairs: str = "original"
    short_probability: float = 0.1
    duplicates: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training with its own row length, batch and learning rate. Optimizer moments carry over from phase to
    phase."""

    steps: int
    length: int = 128
    batch_size: int = 256
    """Rows of one update, over all devices."""
    max_predictions: int = 20
    packed_examples: int = 1
    accumulation: int = 1
    """Microbatches that one update's rows pass in; the result is the same, the memory that much smaller."""
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    continue_schedule: bool = False
    """True: no new warmup; this phase lies on the decay that the phase before began (the paper's 128-then-512 run is one
    schedule)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How often the held-out split is scored, and on how much of it."""

    every: int = 1_000
    rows: int = 10_000
    """At most this many rows, the same ones every time; a smaller split is used whole."""
    batch_size: int = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often the state is saved, and how many states are kept."""

    every: int = 1_000
    keep: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A pretraining run, whole."""

    seed: int = 0
    init_from: str = ""
    """The model whose weights the run begins with: Hugging Face directory, workdir, or name on the hub; empty: random ones."""
    init_new: str = ""
    """Parts that `init_from` lacks and that begin with random weights, with commas between: "mlm_head,nsp_head"."""
    init_drop: str = ""
    """Parts of `init_from` that are left out."""
    corpus: CorpusConfig = CorpusConfig()
    examples: PairConfig = PairConfig()
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    phases: tuple[PhaseConfig, ...] = ()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    log_every: int = 100
    abort_after_skipped: int = 10
    """So many steps in a row without a finite loss and gradient end the run."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """The experiment that nested plain values describe. Raises UserError for unknown keys, wrong types and impossible
        values."""
        experiment = section(cls, values, "config")
        experiment.validate()
        return experiment

    @staticmethod
    def defaults() -> dict[str, Any]:
        """Every key there is with its default, as nested plain values; one phase stands for all."""
        phase = {field.name: field.default for field in dataclasses.fields(PhaseConfig)} | {"steps": 1}
        return dataclasses.asdict(Experiment()) | {"phases": [phase]}

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Checks what no single section can see."""
        if not self.phases:
            raise UserError("the experiment has no phases, so nothing to train; give config.phases at least one with its steps")
        if (self.init_new or self.init_drop) and not self.init_from:
            raise UserError("config.init_new and config.init_drop are about the model config.init_from, which is empty; name one")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"config.seed={self.seed} must be in [0, 2**32)")
        require_at_least(
            1,
            {
                "log_every": self.log_every,
                "abort_after_skipped": self.abort_after_skipped,
                "evaluation.every": self.evaluation.every,
                "evaluation.rows": self.evaluation.rows,
                "evaluation.batch_size": self.evaluation.batch_size,
                "checkpoints.every": self.checkpoints.every,
                "checkpoints.keep": self.checkpoints.keep,
            },
        )
        for i, phase in enumerate(self.phases):
            key = f"config.phases.{i}"
            require_at_least(1, {f"phases.{i}.{name}": getattr(phase, name) for name in ("steps", "batch_size", "accumulation")})
            if phase.length > self.model.max_position:
                raise UserError(
                    f"{key}.length={phase.length} is longer than the position table, "
                    f"model.max_position={self.model.max_position}; shorten the rows, or raise model.max_position"
                )
            if phase.batch_size % phase.accumulation:
                raise UserError(
                    f"{key}.batch_size={phase.batch_size} does not divide into {phase.accumulation} microbatches (accumulation)"
                )
            if phase.continue_schedule and i == 0:
                raise UserError(f"{key}.continue_schedule: the first phase has no schedule before it to continue")
            if not phase.continue_schedule and not 0 <= phase.warmup_steps <= phase.steps:
                raise UserError(f"{key}.warmup_steps={phase.warmup_steps} must be between 0 and the phase's steps={phase.steps}")
            self.example_config(i)

    def example_config(self, phase: int) -> ExampleConfig:
        """What the rows of one phase look like."""
        p = self.phases[phase]
        return ExampleConfig(
            length=p.length,
            max_predictions=p.max_predictions,
            packed_examples=p.packed_examples,
            **dataclasses.asdict(self.examples),
        )

    def phase_starts(self) -> list[int]:
        """The first step of every phase, and last the number of steps of the whole run."""
        starts = [0]
        for phase in self.phases:
            starts.append(starts[-1] + phase.steps)
        return starts

    def phase_seed(self, phase: int) -> int:
        """The seed of a phase's rows: every phase walks the corpus in an order of its own."""
        return self.seed + phase * 2**32

    def schedules(self) -> list[Warmup]:
        """One warmup-and-decay per phase that begins one, lengthened by the phases that continue it."""
        result: list[Warmup] = []
        for start, phase in zip(self.phase_starts(), self.phases, strict=False):
            if phase.continue_schedule:
                result[-1] = dataclasses.replace(result[-1], steps=result[-1].steps + phase.steps)
            else:
                result.append(
                    Warmup(
                        start=start,
                        steps=phase.steps,
                        warmup_steps=phase.warmup_steps,
                        peak=phase.learning_rate,
                        power=self.optimizer.decay_power,
                        end=self.optimizer.end_learning_rate,
                    )
                )
        return result


def require_at_least(least: int, values: Mapping[str, int]) -> None:
    """Raises UserError for the first of these configuration keys whose value is less."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"config.{name}={value} must be at least {least}")


def section(kind: type[Section], values: Any, where: str) -> Section:
    """A dataclass from nested plain values; sections and lists of sections are built in turn.

    Raises UserError for a key that it does not have, a value of another type than the default's, and one that is missing.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be a group of keys, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise UserError(f"there is no {where}.{name}; {nearest(name, fields)}")
        factory = fields[name].default_factory
        default = fields[name].default if factory is dataclasses.MISSING else factory()
        if name == "phases":
            if not isinstance(value, Sequence) or isinstance(value, str):
                raise UserError(f"{where}.phases must be a list of phases, not {value!r}")
            arguments[name] = tuple(section(PhaseConfig, item, f"{where}.phases.{i}") for i, item in enumerate(value))
        elif dataclasses.is_dataclass(default) and not isinstance(default, type):
            arguments[name] = section(type(default), value, f"{where}.{name}")
        else:
            kinds = _kinds(hints[name], default)
            arguments[name] = _typed(f"{where}.{name}", value, kinds, default)
    missing = [
        name
        for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING and name not in arguments
    ]
    if missing:
        raise UserError(f"{where} needs {' and '.join(missing)}")
    return kind(**arguments)


def _kinds(hint: Any, default: Any) -> tuple[Any, ...]:
    """The types that a key takes: those its annotation names, `tuple[float, ...]` for a list."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint if default is not None else type(None),)


def _typed(key: str, value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """`value` as one of `kinds`; whole numbers pass for floats, lists for tuples, and nothing else is converted."""
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                return tuple(_typed(f"{key}.{i}", item, typing.get_args(kind)[:1], default) for i, item in enumerate(value))
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        elif type(value) is kind:
            return value
    names = {bool: "true or false", float: "a float", int: "an int", str: "a str", type(None): "none"}
    wanted = " or ".join(names.get(kind, "a list") for kind in kinds)
    raise UserError(f"{key}={value!r} must be {wanted}, like the default {default!r}")
