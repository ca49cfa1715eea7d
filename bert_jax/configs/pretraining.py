"""The frozen dataclasses of a pretraining experiment: every key, its type, range and default.

An experiment file contains only the keys that it changes. The defaults of all other keys are here, or in the dataclass of the
group's folder (`ModelConfig`, `ExampleConfig`, ...). An unknown key is an error that suggests the most similar one.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from bert_jax.configs.experiment_files import dataclass_from_dict
from bert_jax.configs.objectives import OBJECTIVE, objective_class, settings_class, with_objective
from bert_jax.data import ROWS
from bert_jax.data.config import LONGEST, MOST_PACKED, ExampleConfig, rows_kind
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import file_module, source_file
from bert_jax.interface.ranges import (
    MAX_COUNT,
    BatchSize,
    Count,
    CountOrZero,
    Fraction,
    GivenPath,
    LearningRate,
    NamedIn,
    PathText,
    Seed,
    hints,
)
from bert_jax.interface.words import counted
from bert_jax.model import natural_objective
from bert_jax.model.config import ModelConfig, Theta
from bert_jax.objectives import OBJECTIVES
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.sharding.config import MeshConfig
from bert_jax.training import SCHEDULES
from bert_jax.training.config import LogConfig, OptimizerConfig, SpikeConfig

if TYPE_CHECKING:  # these modules import JAX
    from bert_jax.objectives.objective import Objective
    from bert_jax.training.schedules import Span


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The directory of the tokenised corpus, written by `python -m bert_jax.corpus`."""

    directory: GivenPath = "runs/embedded_corpus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of training with its own rows, masks, batch size, learning rate and rotary base. The optimizer's moments carry
    over to the next phase. The defaults of `ROW_KEYS` are the values in `config.examples`. The defaults of `ROTARY_KEYS` are
    the values in `config.model`."""

    steps: CountOrZero = 0
    """The number of updates in the phase. Either `steps` or `tokens` is required."""
    tokens: Annotated[int, Interval(ge=0, le=2**53)] = 0
    """A token budget, which replaces `steps`. The number of steps is tokens / (batch_size x length), rounded up. Padding counts
    too."""
    length: Annotated[int, Interval(ge=3, le=LONGEST)] = 128
    batch_size: BatchSize = 256
    """The number of rows per update, over all devices."""
    max_predictions: Annotated[int, Interval(ge=1, le=LONGEST)] = 20
    packed_examples: Annotated[int, Interval(ge=1, le=MOST_PACKED)] = 1
    masked_fraction: Annotated[float, Interval(gt=0, le=1)] = 0.15
    mask_probability: Fraction = 0.8
    random_probability: Fraction = 0.1
    corpus: PathText = ""
    """The directory of another corpus with the same vocabulary. The phase trains on the training split of this corpus. All phases
    are evaluated on the held-out split of `config.corpus`."""
    rotary_theta: Theta | None = None
    """The base of rotary positions in full-attention layers, e.g. 160,000 for rows of 8,192 tokens (ModernBERT). Sliding layers
    keep the base of `config.model`. The exported model has the value of the last phase."""
    sliding_rotary_theta: Theta | None = None
    """The base of rotary positions in sliding layers."""
    accumulation: BatchSize = 1
    """The number of microbatches per update (gradient accumulation). The result is the same except for the random bits of
    dropout, but only the activations of batch_size / accumulation rows are in memory."""
    learning_rate: LearningRate = 1e-4
    """The peak of the schedule. If the phase starts with a decay, this is its initial rate."""
    warmup_steps: CountOrZero = 0
    schedule: Annotated[str, NamedIn(("", *SCHEDULES))] = ""
    """The learning-rate schedule of this phase. Default: `config.optimizer.schedule`."""
    end_fraction: Fraction | None = None
    """The learning rate at the end of the schedule, as a fraction of `learning_rate`. Default: 0 for "linear", "cosine" and
    "1-sqrt", 1 for "warmup"."""
    continue_schedule: bool = False
    """Whether the phase continues the previous phase's schedule without a new warmup. The paper's 128-then-512 run is one
    schedule."""


_IN_PHASES = tuple(field.name for field in dataclasses.fields(PhaseConfig))
ROW_KEYS = tuple(name for name in _IN_PHASES if name in hints(ExampleConfig))
"""The keys of `config.examples` that a phase may override: those that it has too."""
ROTARY_KEYS = tuple(name for name in _IN_PHASES if name in hints(ModelConfig))
"""The keys of `config.model` that a phase may override. They do not affect parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The evaluation on the held-out split."""

    every: Count = 1_000
    """The number of steps between evaluations."""
    rows: Count = 10_000
    """The maximum number of rows. The same rows are used at every evaluation."""
    batch_size: BatchSize = 256
    masked_fraction: Annotated[float, Interval(gt=0, le=1)] = 0.15
    """The fraction of tokens to predict in every phase's evaluation, so that scores of all phases are comparable. Tokens are
    replaced as in `config.examples`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The checkpoints of the training state."""

    every: Count = 1_000
    """The number of steps between checkpoints."""
    keep: Count = 2
    """The number of newest checkpoints to keep. Older checkpoints are deleted."""
    keep_at: tuple[Count, ...] = ()
    """Steps whose checkpoints are kept in addition to the newest, so that `convert --step` can export the model at several
    steps of one run. Each of these checkpoints takes the disk space of a whole state, which is three times the size of the
    float32 weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingExperiment:
    """The configuration of a pretraining run."""

    seed: Seed = 0
    init_from: PathText = ""
    """The model whose weights the run starts from: Hugging Face directory, workdir, or name on the hub. Empty: random weights."""
    init_tiled: bool = False
    """Whether `config.model` is initialised by tiling the weights of `init_from`, as in ModernBERT-large (`interop/tiling.py`).
    `init_from` must be a smaller Transformer of the same kind. The sizes come from `config.model`, and everything else comes
    from the smaller model."""
    init_state: PathText = ""
    """WORKDIR@STEP: a kept checkpoint of another run. This run continues from the weights, optimizer state and step of the
    checkpoint. The phases describe the whole run, so they must equal the phases of WORKDIR up to STEP. Empty: start at step
    0."""
    init_new: str = ""
    """Comma-separated names of parts that `init_from` lacks, e.g. "mlm_head,nsp_head". They start from random weights."""
    init_drop: str = ""
    """Comma-separated names of the parts of `init_from` to drop."""
    teacher: PathText = ""
    """The teacher, from which the model learns in addition to the text: a pretrained model with the same vocabulary, given as a
    directory, workdir, or name on the hub. It must predict the same words as the objective, unless `distillation.soft_weight` is
    0. Empty: no distillation."""
    distillation: PretrainingDistillation = dataclasses.field(default_factory=PretrainingDistillation)
    objective: Annotated[str, NamedIn(("auto", *OBJECTIVES))] = "auto"
    """"bert": masked language modelling, and next sentence prediction if rows hold pairs. "next_token": predicts every token from
    the tokens before it. "bilm": predicts every token from the tokens before it and, separately, from the tokens after it.
    "skip_gram": predicts the neighbours of a word. "translation": predicts a translation from the source text and the
    translation so far. "auto": the default of the model's encoder (`natural_objective`). FILE.py:NAME: your own `Objective`."""
    objective_options: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """The settings of the objective: the fields of its class."""
    corpus: CorpusConfig = CorpusConfig()
    examples: ExampleConfig = dataclasses.field(default_factory=ExampleConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    phases: tuple[PhaseConfig, ...] = ()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    spikes: SpikeConfig = dataclasses.field(default_factory=SpikeConfig)
    log_every: Count = 100
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    abort_after_skipped: Count = 10
    """The number of consecutive steps with a non-finite loss, gradient or learning rate after which the run ends. With
    `spikes.policy=skip`, it also ends after this many consecutive spikes."""

    @functools.cached_property  # cached, so that editing a user's file during a run has no effect
    def trained_objective(self) -> Objective:
        """The run's objective, with distillation terms if there is a teacher."""
        from bert_jax.objectives.model import Model  # this import also imports JAX, which takes a second

        kind = objective_class(natural_objective(self.model) if self.objective == "auto" else self.objective, "pretrain")
        plain = kind(**self.objective_options)
        if self.teacher:
            from bert_jax.objectives.distillation import Distillation  # only runs with a teacher need this module

            plain = Distillation(plain, self.distillation)
        return plain.for_model(Model(self.model, self.next_sentence))

    @property
    def next_sentence(self) -> bool:
        """Whether examples are sentence pairs, so that next sentence prediction and the pooler are trained."""
        return self.examples.pairs != "none"

    @classmethod
    def from_dict(cls, values: JsonObject) -> PretrainingExperiment:
        """Builds the experiment from nested plain values. Raises UserError for unknown keys, wrong types and invalid values."""
        if isinstance(values, Mapping):
            values = with_budgets(_with_objective(values))
            # `config.examples` is checked first. Otherwise, an error in it would be reported for a phase that inherits the
            # value.
            dataclass_from_dict(ExampleConfig, values.get("examples", {}), "config.examples", cls)
            values = _with_row_defaults(values)
        experiment = dataclass_from_dict(cls, values, "config")
        experiment.validate()
        return experiment

    @staticmethod
    def objective_settings(values: JsonObject) -> type:
        """Returns the dataclass of `config.objective_options` for the values of an experiment."""
        return settings_class(read_objective(values))

    def to_dict(self) -> JsonObject:
        """Returns the inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Checks the constraints between sections. Raises UserError."""
        from bert_jax.objectives.objective import trains_sentence

        if not self.phases:
            raise UserError("the experiment has no phases, so there is nothing to train; add one to config.phases")
        if (self.init_new or self.init_drop) and not self.init_from:
            raise UserError("config.init_new and config.init_drop name parts of config.init_from, which is empty; name a model")
        if self.init_tiled and not self.init_from:
            raise UserError("config.init_tiled makes a larger model from config.init_from, which is empty; name a model")
        if empty := [i for i, phase in enumerate(self.phases) if not phase.steps]:
            raise UserError(f"config.phases.{empty[0]} needs steps, at least 1, or a budget in tokens")
        if self.init_state and self.init_from:
            raise UserError(
                f"config.init_state={self.init_state} and config.init_from={self.init_from} both set the start of the run; leave "
                "one of them out"
            )
        if (steps := self.phase_starts()[-1]) > MAX_COUNT:
            raise UserError(
                f"config.phases have {counted(steps, 'step')} in total, above the limit {MAX_COUNT:,}; shorten the phases"
            )
        if beyond := [step for step in self.checkpoints.keep_at if step > steps]:
            raise UserError(
                f"config.checkpoints.keep_at has step {beyond[0]:,}, but the run ends at step {steps:,}; name steps of the run"
            )
        objective, natural = self.trained_objective, natural_objective(self.model)
        if wrong := trains_sentence(objective, f"config.objective={self.objective}", self.model, natural):
            raise UserError(wrong)
        if self.next_sentence and not self.model.kind.pools:
            raise UserError(
                f"config.examples.pairs={self.examples.pairs} needs [CLS] to represent a pair, but the [CLS] of model.encoder="
                f"{self.model.encoder} learns no such representation; set config.examples.pairs=none"
            )
        if self.next_sentence and self.model.direction == "left_to_right":
            raise UserError(
                f"config.examples.pairs={self.examples.pairs} needs [CLS] to represent a pair, but the [CLS] of a left-to-right "
                "model sees no other token; set config.examples.pairs=none"
            )
        if self.examples.pairs == "successive" and objective.needs_random_pairs:
            raise UserError(
                "config.examples.pairs=successive has no random second texts, so next sentence prediction would learn nothing; "
                "set original or paper, or name an objective of your own (config.objective=FILE.py:NAME)"
            )
        self._validate_distillation()
        if self.next_sentence and self.model.type_vocab_size < 2:
            raise UserError(
                f"config.model.type_vocab_size={self.model.type_vocab_size} has no embedding for the second text of a pair; "
                "set it to 2, or config.examples.pairs=none"
            )
        for i, phase in enumerate(self.phases):
            key = f"config.phases.{i}"
            if phase.length > self.model.max_position:
                raise UserError(
                    f"{key}.length={phase.length} is longer than the position table "
                    f"(model.max_position={self.model.max_position}); shorten the rows, or {self._longer_rows(phase.length)}"
                )
            if wrong := objective.refusal(phase.length):
                raise UserError(f"{key}.length={phase.length} {wrong}")
            if phase.batch_size % phase.accumulation:
                raise UserError(
                    f"{key}.batch_size={phase.batch_size} is not divisible by {phase.accumulation} microbatches (accumulation)"
                )
            given = [name for name in ROTARY_KEYS if getattr(phase, name) is not None]
            if given and not self.model.positions_kind.is_rotary:
                raise UserError(
                    f"{key}.{given[0]}={getattr(phase, given[0])} is for rotary positions, but config.model.positions is "
                    f"{self.model.positions}; leave it out, or set config.model.positions=rotary"
                )
            if self.optimizer.decouple_rate and not phase.continue_schedule and not phase.learning_rate:
                raise UserError(
                    f"{key}.learning_rate=0 cannot be combined with config.optimizer.decouple_rate; raise the rate, or leave "
                    "decouple_rate out"
                )
            if phase.continue_schedule and i == 0:
                raise UserError(
                    f"{key}.continue_schedule has no schedule to continue, because this is the first phase; leave it out"
                )
            for name in ("schedule", "end_fraction"):
                if phase.continue_schedule and (value := getattr(phase, name)) not in ("", None):
                    raise UserError(f"{key}.{name}={value} contradicts {key}.continue_schedule; leave one of them out")
            if not phase.continue_schedule and phase.warmup_steps > (steps := self.span_steps(i)):
                raise UserError(f"{key}.warmup_steps={phase.warmup_steps} must be between 0 and the phase's steps={steps}")
            try:
                self.example_config(i)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None

    def _longer_rows(self, length: int) -> str:
        """Returns the remedy if `model.max_position` is less than the `length` of rows."""
        if (self.init_from or self.init_state) and self.model.has_position_table:
            whose = "this model" if self.init_from else "the model of that run"
            extended = f"extend {whose} with python -m bert_jax.convert --max-position={length}"
            return f"{extended} and set config.init_from to the result"
        return f"set --config.model.max_position={length}" if self.init_from else "raise model.max_position"

    def _validate_distillation(self) -> None:
        d, model = self.distillation, self.model
        if not self.teacher:
            if d != PretrainingDistillation():
                raise UserError("config.distillation has settings but there is no teacher; name one in config.teacher")
            return
        if not (d.soft_weight or d.compares_layers):
            raise UserError(
                f"config.teacher={self.teacher} has no effect, because soft_weight, hidden_weight and attention_weight of "
                "config.distillation are 0; raise one of them, or leave config.teacher out"
            )
        plain: Objective = self.trained_objective.plain  # type: ignore[attr-defined]
        if not model.num_layers and (d.compares_layers or not plain.hard_loss):
            remedy = "set hidden_weight and attention_weight of config.distillation to 0"
            raise UserError(
                f"config.teacher={self.teacher}: a model with encoder={model.encoder} has no layers to compare with a teacher's; "
                f"{remedy if plain.hard_loss else 'leave config.teacher out'}"
            )
        if d.soft_weight and (wrong := plain.no_soft_targets()):
            raise UserError(
                f"config.objective={self.objective} {wrong}, or learn only the teacher's hidden states, with soft_weight=0 and "
                "hidden_weight=1 in config.distillation"
            )
        if d.attention_weight and not model.has_attention:
            raise UserError(
                f"config.distillation.attention_weight={d.attention_weight} compares attention maps, but a model with encoder="
                f"{model.encoder} has none; set attention_weight=0"
            )
        if d.attention_weight and (model.attention == "fused" or model.remat != "none" or model.scan_layers):
            raise UserError(
                f"config.distillation.attention_weight={d.attention_weight} compares attention maps, which are only "
                "available with model.attention=plain, model.remat=none and model.scan_layers=false; set these, or set "
                "attention_weight=0"
            )

    def example_config(self, phase: int) -> ExampleConfig:
        """Returns the configuration of a phase's examples and rows."""
        p = self.phases[phase]
        row: JsonObject = {name: getattr(p, name) for name in ROW_KEYS}
        return dataclasses.replace(self.examples, **row, targets=rows_name(self.objective, self.trained_objective.rows))

    def eval_config(self, phase: int) -> ExampleConfig:
        """Returns the configuration of the held-out rows in a phase. They have the phase's length, and the same masks in all
        phases."""
        mix = {name: getattr(self.examples, name) for name in ("mask_probability", "random_probability")}
        rows = self.example_config(phase).with_masked_fraction(self.evaluation.masked_fraction)
        return dataclasses.replace(rows, **mix)

    def phase_starts(self) -> list[int]:
        """Returns the first step of every phase, followed by the number of steps of the whole run."""
        starts = [0]
        for phase in self.phases:
            starts.append(starts[-1] + phase.steps)
        return starts

    def phase_after(self, step: int) -> int:
        """Returns the index of the phase to which the next step belongs, after `step` finished steps."""
        return bisect.bisect(self.phase_starts(), step) - 1

    def span_steps(self, phase: int) -> int:
        """Returns the total number of steps of a phase and the following phases that continue its schedule."""
        later = itertools.takewhile(lambda other: other.continue_schedule, self.phases[phase + 1 :])
        return self.phases[phase].steps + sum(other.steps for other in later)

    def phase_seed(self, phase: int) -> int:
        """Returns the seed of a phase's rows. Every phase reads the corpus in a different order."""
        return self.seed + phase * 2**32

    def schedules(self) -> list[Span]:
        """Returns one schedule per phase without `continue_schedule`. Each also covers the following phases with
        `continue_schedule`."""
        from bert_jax.training.schedules import Span

        return [
            Span(
                schedule=phase.schedule or self.optimizer.schedule,
                key=f"config.phases.{i}.schedule" if phase.schedule else "config.optimizer.schedule",
                phase=f"config.phases.{i}",
                start=start,
                steps=self.span_steps(i),
                warmup_steps=phase.warmup_steps,
                peak=phase.learning_rate,
                decay_power=self.optimizer.decay_power,
                end_learning_rate=self.optimizer.end_learning_rate,
                end_fraction=phase.end_fraction,
            )
            for i, (start, phase) in enumerate(zip(self.phase_starts(), self.phases, strict=False))
            if not phase.continue_schedule
        ]

    def for_phase(self, phase: int) -> PretrainingExperiment:
        """Returns the experiment with the model and optimizer settings of a phase. These are the rotary bases of the phase and,
        with `decouple_rate`, the weight decay divided by the peak learning rate."""
        from bert_jax.objectives.model import Model

        bases = {name: base for name in ROTARY_KEYS if (base := getattr(self.phases[phase], name)) is not None}
        model = self.model.with_sliding_theta() if "rotary_theta" in bases else self.model
        model, optimizer = dataclasses.replace(model, **bases), self.optimizer
        if optimizer.decouple_rate:
            first = max(i for i in range(phase + 1) if not self.phases[i].continue_schedule)
            decay = optimizer.weight_decay / self.phases[first].learning_rate
            optimizer = dataclasses.replace(optimizer, weight_decay=decay, decouple_rate=False)
        if (model, optimizer) == (self.model, self.optimizer):
            return self
        found = dataclasses.replace(self, model=model, optimizer=optimizer)
        # The objective is copied, so that a user's file is not loaded again.
        vars(found)["trained_objective"] = self.trained_objective.for_model(Model(model, self.next_sentence))
        return found


def scaled_steps(steps: Sequence[int], factor: float) -> list[int]:
    """Scales the steps of all phases by `factor`, to at least 1 each.

    >>> scaled_steps([7_000, 2_000], 0.01)
    [70, 20]
    """
    return [max(1, round(count * factor)) for count in steps]


def with_steps(values: JsonObject, steps: Sequence[int]) -> JsonObject:
    """Replaces the number of steps of every phase in a pretraining experiment. Warmups are scaled in proportion."""
    values, phases = with_budgets(values), []
    for phase, count in zip(values["phases"], steps, strict=True):
        warmup = phase.get("warmup_steps", 0)
        scaled = {"warmup_steps": math.floor(warmup * count / phase["steps"])} if warmup else {}
        budget = {"tokens": 0} if phase.get("tokens") else {}
        phases.append({**phase, **budget, "steps": count, **scaled})
    return {**values, "phases": phases}


def batch_ramp(phase: JsonObject, sizes: Sequence[int], tokens: int) -> list[JsonObject]:
    """Splits a phase with a token budget into several phases with a growing batch size. Each batch size in `sizes` gets the
    same number of steps. The steps of all sizes together read `tokens` tokens. The rest of the phase uses its own `batch_size`.
    All these phases share the schedule of the original phase. None of them has more rows per microbatch than the original
    phase.

    A separate program is compiled for each batch size. Raises UserError if the ramp is longer than its phase.

    >>> batch_ramp({"tokens": 100_000, "length": 10, "batch_size": 40}, sizes=[10, 20, 30], tokens=60_000)[1]
    {'tokens': 0, 'length': 10, 'batch_size': 20, 'continue_schedule': True, 'steps': 100}
    """
    steps = max(1, round(tokens / (sum(sizes) * phase["length"])))
    left = phase["tokens"] - steps * sum(sizes) * phase["length"]
    if left <= 0:
        raise UserError(f"a ramp of {counted(tokens, 'token')} is longer than its phase of {phase['tokens']:,}; shorten the ramp")
    once = ("warmup_steps", "schedule", "end_fraction")
    later = {name: value for name, value in phase.items() if name not in once} | {"continue_schedule": True}
    stages = [{**(later if i else phase), "tokens": 0, "batch_size": size, "steps": steps} for i, size in enumerate(sizes)]
    if "accumulation" in phase:
        most = phase["batch_size"] // phase["accumulation"]
        for stage in stages:
            size = stage["batch_size"]
            stage["accumulation"] = next(n for n in range(-(-size // most), size + 1) if size % n == 0)
    return [*stages, {**later, "tokens": left}]


def with_total_steps(values: JsonObject, total: int) -> JsonObject:
    """Scales a pretraining experiment to `total` steps. Phases, warmups, and the steps between evaluations, checkpoints and log
    lines keep their proportions. Raises UserError if there are fewer steps than phases."""
    values = with_budgets(values)
    phases = values.get("phases")
    given = phases if isinstance(phases, list | tuple) else []
    each = [phase["steps"] for phase in given if isinstance(phase, Mapping) and isinstance(phase.get("steps"), int)]
    if not given or len(each) != len(given) or min(each) < 1:
        return values  # `from_dict` reports the problem
    before = sum(each)
    if total < len(each):
        raise UserError(f"config.steps={total} is fewer than the {counted(len(each), 'phase')}; each needs at least one step")
    ends = [round(end * total / before) for end in itertools.accumulate(each[:-1])]
    for i in range(len(ends)):  # every phase, including the later ones, gets at least one step
        ends[i] = min(max(ends[i], (ends[i - 1] if i else 0) + 1), total - (len(ends) - i))
    counts = [end - begin for begin, end in itertools.pairwise([0, *ends, total])]

    def scaled(count: Any) -> Any:
        return max(1, round(count * total / before)) if isinstance(count, int) else count  # `from_dict` reports wrong types

    changed: JsonObject = {"log_every": scaled(values.get("log_every", PretrainingExperiment.log_every))}
    for group, default in (("evaluation", EvaluationConfig.every), ("checkpoints", CheckpointConfig.every)):
        own = values.get(group, {})
        if isinstance(own, Mapping):
            changed[group] = {**own, "every": scaled(own.get("every", default))}
    if isinstance(kept := changed.get("checkpoints", {}).get("keep_at"), list | tuple):
        changed["checkpoints"]["keep_at"] = [scaled(step) for step in kept]
    return with_steps(values, counts) | changed


def with_budgets(values: JsonObject) -> JsonObject:
    """Sets `steps` in every phase that has a budget in `tokens`. Raises UserError if `steps` and `tokens` contradict each
    other."""
    examples, phases = values.get("examples", {}), values.get("phases")
    if not isinstance(phases, list | tuple):
        return values
    length = examples.get("length", PhaseConfig.length) if isinstance(examples, Mapping) else PhaseConfig.length
    found = []
    for i, phase in enumerate(phases):
        found.append(phase)
        if not isinstance(phase, Mapping):
            continue  # `dataclass_from_dict` reports this and all wrong types
        tokens, steps = phase.get("tokens", 0), phase.get("steps", 0)
        size = [phase.get("batch_size", PhaseConfig.batch_size), phase.get("length", length)]
        if not all(isinstance(number, int) for number in (tokens, steps, *size)) or min(size) < 1 or tokens < 0:
            continue
        needed = -(-tokens // math.prod(size))
        if tokens and steps not in (0, needed):
            raise UserError(
                f"config.phases.{i} has steps={steps:,} and tokens={tokens:,}, but {counted(tokens, 'token')} take "
                f"{counted(needed, 'step')} of {size[0]} x {counted(size[1], 'token')}; set steps or tokens to 0"
            )
        found[i] = {**phase, "steps": needed} if tokens else phase
    return {**values, "phases": found}


def read_objective(values: JsonObject) -> type[Objective]:
    """Returns the class of the objective in the values of an experiment."""
    model = dataclass_from_dict(ModelConfig, values.get("model", {}), "config.model", PretrainingExperiment)
    name = values.get("objective", "auto")
    if not isinstance(name, str):
        raise UserError(f"{OBJECTIVE}={name!r} must be a name")
    return objective_class(natural_objective(model) if name == "auto" else name, "pretrain")


def _with_objective(values: JsonObject) -> JsonObject:
    """Replaces the objective "auto" by its name. Fills in all settings of the objective, and the targets of the examples. Raises
    UserError if the targets do not fit the objective, or if a setting is unknown."""
    objective, examples = values.get("objective", "auto"), values.get("examples", {})
    if not isinstance(objective, str) or not isinstance(examples, Mapping):
        return values  # `dataclass_from_dict` reports the wrong type
    model = dataclass_from_dict(ModelConfig, values.get("model", {}), "config.model", PretrainingExperiment)
    objective = natural_objective(model) if objective == "auto" else objective
    kind = objective_class(objective, "pretrain")
    rows = rows_name(objective, kind.rows)
    if examples.get("targets", rows) != rows:
        raise UserError(f"config.examples.targets={examples['targets']} does not fit {OBJECTIVE}={objective}; leave targets out")
    return with_objective(values, objective, kind) | {"examples": {**examples, "targets": rows}}


def rows_name(objective: str, rows: str | type) -> str:
    """Returns the name of the kind `rows` of an objective in `config.examples.targets`. `objective` is the name in
    `config.objective`. A user's class is named FILE.py:NAME. Raises UserError if `rows` is neither a name nor a
    class of rows in a file."""
    from bert_jax.data.kinds_of_rows import Rows  # a command that reads no pretraining experiment does not need it

    if isinstance(rows, str):
        return rows
    if not (isinstance(rows, type) and issubclass(rows, Rows) and rows.__qualname__.isidentifier()):
        raise UserError(
            f"{OBJECTIVE}={objective} has rows={rows!r}; name one of {', '.join(ROWS)}, or a class at the top of your file that "
            "inherits from bert_jax.data.kinds_of_rows.Rows"
        )
    place = f"{rows.__module__}:{rows.__qualname__}"
    file = source_file(objective)
    if file and rows.__module__ != file_module(objective, OBJECTIVE).__name__:  # a file that the objective's file imports
        file = str(getattr(sys.modules.get(rows.__module__), "__file__", ""))
    return next((name for name, known in ROWS.items() if known == place), f"{file}:{rows.__qualname__}")


def _with_row_defaults(values: JsonObject) -> JsonObject:
    """Fills in the missing `ROW_KEYS` of phases from `config.examples`."""
    examples, phases = values.get("examples", {}), values.get("phases")
    if not isinstance(phases, list | tuple):
        return values
    given = {name: examples[name] for name in ROW_KEYS if name in examples}
    found = [given | dict(phase) if isinstance(phase, Mapping) else phase for phase in phases]
    if "max_predictions" not in rows_kind(examples.get("targets", ExampleConfig.targets)).reads:
        for phase in found:
            if isinstance(phase, dict):
                phase["max_predictions"] = phase.get("length", PhaseConfig.length)
    return {**values, "phases": found}
