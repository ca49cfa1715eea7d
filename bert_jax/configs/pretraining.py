"""An experiment: what its file returns becomes frozen dataclasses here, and nothing behind this module sees a ConfigDict.

An experiment file names only what it changes; every other key has the default written here or in the `settings.py` of the folder
it belongs to. A key that no dataclass declares is an error naming the nearest one, never a silent default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from annotated_types import Interval

from bert_jax.configs.sections import section
from bert_jax.corpus.files import JsonObject
from bert_jax.errors import UserError
from bert_jax.examples.config import LONGEST, ExampleConfig
from bert_jax.interface.ranges import (
    MOST,
    BatchSize,
    Count,
    CountOrZero,
    Name,
    OneOf,
    Rate,
    Seed,
)
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.sharding.mesh import MeshConfig
from bert_jax.training.objectives import PRETRAINING
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import Warmup


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Where the tokenised corpus is; `python -m bert_jax.corpus` makes one."""

    directory: Name = "runs/embedded_corpus"


OF_ROWS = ("length", "max_predictions", "packed_examples")
"""The keys of `config.examples` that a phase may have of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training with its own row length, batch and learning rate. Optimizer moments carry over from phase to
    phase. `length`, `max_predictions` and `packed_examples` are those of `config.examples` where they are left out."""

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
class PretrainingExperiment:
    """A pretraining run, whole."""

    seed: Seed = 0
    init_from: str = ""
    """The model whose weights the run begins with: Hugging Face directory, workdir, or name on the hub; empty: random ones."""
    init_new: str = ""
    """Parts that `init_from` lacks and that begin with random weights, with commas between: "mlm_head,nsp_head"."""
    init_drop: str = ""
    """Parts of `init_from` that are left out."""
    objective: Annotated[str, OneOf(tuple(PRETRAINING))] = "bert"
    """"bert": masked language modelling, and next sentence prediction where rows hold pairs."""
    corpus: CorpusConfig = CorpusConfig()
    examples: ExampleConfig = dataclasses.field(default_factory=ExampleConfig)
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
    def from_dict(cls, values: JsonObject) -> PretrainingExperiment:
        """The experiment that nested plain values describe. Raises UserError for unknown keys, wrong types and impossible
        values."""
        if isinstance(values, Mapping):
            section(ExampleConfig, values.get("examples", {}), "config.examples", cls)  # its own faults, before phases take it up
        experiment = section(cls, _with_rows(values), "config")
        experiment.validate()
        return experiment

    def to_dict(self) -> JsonObject:
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
        return dataclasses.replace(self.examples, **{name: getattr(p, name) for name in OF_ROWS})

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


def _with_rows(values: JsonObject) -> JsonObject:
    """`values` of an experiment, in which phases that leave out how long their rows are have that of `config.examples`."""
    examples, phases = values.get("examples"), values.get("phases")
    if not isinstance(examples, Mapping) or not isinstance(phases, list | tuple):
        return values
    given = {name: examples[name] for name in OF_ROWS if name in examples}
    return {**values, "phases": [given | dict(phase) if isinstance(phase, Mapping) else phase for phase in phases]}
