"""An experiment: what its file returns becomes frozen dataclasses here, and nothing behind this module sees a ConfigDict.

An experiment file names only what it changes; every other key has the default written here or in the `settings.py` of the folder
it belongs to. A key that no dataclass declares is an error naming the nearest one, never a silent default.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from annotated_types import Interval

from bert_jax.configs.keys import did_you_mean
from bert_jax.errors import UserError
from bert_jax.examples.config import LONGEST, ExampleConfig, PairConfig
from bert_jax.interface.ranges import (
    MOST,
    BatchSize,
    Count,
    CountOrZero,
    Name,
    Rate,
    Seed,
    check_value,
    hints,
    is_group,
    kinds_of,
)
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.sharding.mesh import MeshConfig
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import Warmup

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Where the tokenised corpus is; `python -m bert_jax.corpus` makes one."""

    directory: Name = "runs/embedded_corpus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training with its own row length, batch and learning rate. Optimizer moments carry over from phase to
    phase."""

    steps: Count
    length: Annotated[int, Interval(ge=3, le=LONGEST)] = 128
    batch_size: BatchSize = 256
    """Rows of one update, over all devices."""
    max_predictions: Annotated[int, Interval(ge=1, le=LONGEST)] = 20
    packed_examples: Annotated[int, Interval(ge=1, le=64)] = 1
    accumulation: BatchSize = 1
    """Microbatches that one update's rows pass in; the result is the same, the memory that much smaller."""
    learning_rate: Rate = 1e-4
    warmup_steps: CountOrZero = 0
    continue_schedule: bool = False
    """True: no new warmup; this phase lies on the decay that the phase before began (the paper's 128-then-512 run is one
    schedule)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How often the held-out split is scored, and on how much of it."""

    every: Count = 1_000
    rows: Count = 10_000
    """At most this many rows, the same ones every time; a smaller split is used whole."""
    batch_size: BatchSize = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often the state is saved, and how many states are kept."""

    every: Count = 1_000
    keep: Count = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A pretraining run, whole."""

    seed: Seed = 0
    init_from: str = ""
    """The model whose weights the run begins with: Hugging Face directory, workdir, or name on the hub; empty: random ones."""
    init_new: str = ""
    """Parts that `init_from` lacks and that begin with random weights, with commas between: "mlm_head,nsp_head"."""
    init_drop: str = ""
    """Parts of `init_from` that are left out."""
    corpus: CorpusConfig = CorpusConfig()
    examples: PairConfig = dataclasses.field(default_factory=PairConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    phases: tuple[PhaseConfig, ...] = ()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    log_every: Count = 100
    abort_after_skipped: Count = 10
    """So many steps in a row without a finite loss and gradient end the run."""

    @property
    def next_sentence(self) -> bool:
        """Whether next sentence prediction is trained, and with it the pooler: where rows hold pairs."""
        return self.examples.pairs != "none"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """The experiment that nested plain values describe. Raises UserError for unknown keys, wrong types and impossible
        values."""
        experiment = section(cls, values, "config")
        experiment.validate()
        return experiment

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Checks what no single section can see."""
        if not self.phases:
            raise UserError("the experiment has no phases, so nothing to train; give config.phases at least one with its steps")
        if (self.init_new or self.init_drop) and not self.init_from:
            raise UserError("config.init_new and config.init_drop are about the model config.init_from, which is empty; name one")
        if (steps := self.phase_starts()[-1]) > MOST:
            raise UserError(f"config.phases have {counted(steps, 'step')} together, which must be at most {MOST:,}; shorten them")
        if self.next_sentence and self.model.type_vocab_size < 2:
            raise UserError(
                f"config.model.type_vocab_size={self.model.type_vocab_size} has no type for the second text of a pair; "
                "set it to 2, or config.examples.pairs=none"
            )
        for i, phase in enumerate(self.phases):
            key = f"config.phases.{i}"
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
            try:
                self.example_config(i)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None

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


def section(kind: type[Section], values: Any, where: str, root: Any = None) -> Section:
    """A dataclass from nested plain values; sections and lists of sections are built in turn.

    Raises UserError for a key that it does not have, a value of another type or outside the range that its annotation says, and
    a key that is missing. `root` is the dataclass of the whole experiment, in which an unknown key is looked for.
    """
    root = root or kind
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be a group of keys, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            full = f"{where}.{name}"
            raise UserError(f"there is no {full}; {did_you_mean(full.partition('.')[2], root, fields)}")
        arguments[name] = _value(f"{where}.{name}", value, hints(kind)[name], fields[name].default, root)
    missing = [
        name
        for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING and name not in arguments
    ]
    if missing:
        raise UserError(f"{where} needs {' and '.join(missing)}")
    return kind(**arguments)


def _value(key: str, value: Any, hint: Any, default: Any, root: Any) -> Any:
    """`value` as what the annotation `hint` of its field describes."""
    items = typing.get_args(hint)[:1]
    if is_group(hint):
        return section(hint, value, key, root)
    if items and is_group(items[0]):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UserError(f"{key} must be a list of {key.rpartition('.')[2]}, not {value!r}")
        return tuple(section(items[0], item, f"{key}.{i}", root) for i, item in enumerate(value))
    made = _typed(key, value, kinds_of(hint), default)
    check_value(key, made, hint)
    return made


def _typed(key: str, value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """`value` as one of `kinds`; whole numbers pass for floats, lists for tuples, and nothing else is converted."""
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                inside = kinds_of(typing.get_args(kind)[0])
                return tuple(_typed(f"{key}.{i}", item, inside, dataclasses.MISSING) for i, item in enumerate(value))
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value) if abs(value) < 10**300 else value  # which no range holds
        elif type(value) is kind:
            return value
    names = {bool: "true or false", float: "a float", int: "an int", str: "a str", type(None): "none"}
    wanted = " or ".join(names.get(kind, "a list") for kind in kinds)
    like = "" if default is dataclasses.MISSING else f", like the default {default!r}"
    raise UserError(f"{key}={value!r} must be {wanted}{like}")
