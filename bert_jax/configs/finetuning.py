"""A fine-tuning experiment: what its file returns becomes frozen dataclasses here, by the rules of `config.py`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Annotated

from annotated_types import Interval

from bert_jax.configs.pretraining import CheckpointConfig
from bert_jax.configs.sections import section
from bert_jax.corpus.files import JsonObject
from bert_jax.errors import UserError
from bert_jax.heads.head import LAYERS, POOLINGS, TaskHead
from bert_jax.interface.ranges import BatchSize, Count, CountOrZero, Dropout, OneOf, Seed, Share
from bert_jax.model.config import (
    DTYPES,
    KERNELS,
    MOST_WIDE,
    REMATERIALISATIONS,
    ModelConfig,
)
from bert_jax.sharding.mesh import MeshConfig
from bert_jax.tasks.task import TaskConfig
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import FINETUNING

SELECTIONS = ("best", "last")
Epochs = Annotated[int, Interval(ge=1, le=10_000)]
AboveZero = Annotated[float, Interval(gt=0, le=1e30)]
Weight = Annotated[float, Interval(ge=0, le=1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelChanges:
    """Fields of the model that may differ from those of `init_from`: they change how it trains, not what it is."""

    hidden_dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    dtype: Annotated[str, OneOf(("auto", *DTYPES))] = "auto"
    """Matrix products and activations: "float32", "bfloat16", or "auto", which is bfloat16 on TPUs (a product in float32 takes
    six passes of their matrix units, and such a program several times as long to compile) and float32 elsewhere."""
    rematerialisation: Annotated[str, OneOf(REMATERIALISATIONS)] = "none"
    scan_unroll: Annotated[int, Interval(ge=0, le=10_000)] = 0
    attention: Annotated[str, OneOf(KERNELS)] = "auto"
    residual_norm: Annotated[str, OneOf(KERNELS)] = "auto"
    vocab_multiple: Annotated[int, Interval(ge=1, le=2**20)] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadChanges:
    """What the task's head reads, and how; the defaults are the paper's. See `TaskHead`."""

    pooling: Annotated[str, OneOf(POOLINGS)] = "pooler"
    layers: Annotated[str, OneOf(LAYERS)] = "last"
    lstm: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    dropout: Dropout | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the task is learned; the defaults are within the paper's grid (appendix A.3)."""

    epochs: Epochs = 3
    batch_size: BatchSize = 32
    """Examples of one update, over all devices."""
    learning_rate: AboveZero = 2e-5
    warmup_fraction: Share = 0.1
    """Of all steps (run_classifier.py)."""
    schedule: Annotated[str, OneOf(tuple(FINETUNING))] = "original"
    """"original" (run_classifier.py), "linear" (transformers'), "slanted_triangular" (ULMFiT) or "constant", after the warmup."""
    accumulation: BatchSize = 1
    """Microbatches that one update's rows pass in."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """arXiv:1512.00567, section 7."""
    class_weights: tuple[Weight, ...] = ()
    """A factor for the loss of each label, in the order of the head's labels; one 0 stands for "balanced": each label counts by
    the inverse of its frequency (King and Zeng 2001, "Logistic Regression in Rare Events Data")."""
    layer_decay: Share = 1.0
    """The learning rate of a layer is this times that of the layer above (ULMFiT; ELECTRA's 0.8 and 0.9)."""
    freeze_encoder: bool = False
    """Trains the head alone; embeddings and layers keep their weights and run without dropout (paper section 5.3)."""
    gradual_unfreezing: bool = False
    """The head alone in the first epoch, and one layer more in each that follows (ULMFiT, section 3.3)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """How often the dev set is scored, and which weights are the result."""

    per_epoch: Annotated[int, Interval(ge=1, le=1_000)] = 1
    select: Annotated[str, OneOf(SELECTIONS)] = "best"
    """"best": the weights of the best evaluation on dev (arXiv:2002.06305); "last": the last ones."""
    patience: CountOrZero = 0
    """Training ends after so many evaluations without a better one (Prechelt 1998, "Early Stopping - But When?"); 0 never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Learning from a larger fine-tuned model as well (Hinton et al., arXiv:1503.02531)."""

    teacher: str = ""
    """A model fine-tuned on the same task with the same vocabulary: directory, workdir or hub name; empty: none."""
    temperature: Annotated[float, Interval(ge=0.01, le=1_000)] = 2.0
    soft_weight: Share = 0.5
    """The share of the loss that compares with the teacher's answers."""
    hidden_weight: Weight = 0.0
    """The weight of the difference between hidden states; both models must be equally wide."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Several runs in one command: every combination of the values given; an empty list stands for the value in `training`.

    The paper's grid (appendix A.3) is batch sizes 16, 32; learning rates 5e-5, 3e-5, 2e-5; epochs 2, 3, 4.
    """

    batch_sizes: tuple[BatchSize, ...] = ()
    learning_rates: tuple[AboveZero, ...] = ()
    epochs: tuple[Epochs, ...] = ()
    seeds: tuple[Seed, ...] = ()
    devices_per_run: Annotated[int, Interval(ge=0, le=2**20)] = 1
    """The runs of a sweep go side by side, each on so many devices of one process; several processes (the hosts of a TPU slice)
    share the runs out. 0 for one run after another, each on all devices of all processes: for models that fill them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningExperiment:
    """A labelled task, whole."""

    seed: Seed = 0
    """Decides the order of the examples, dropout, and the new head's weights."""
    init_from: str = ""
    """The model to begin with: Hugging Face directory, workdir of a run, or name on the hub. For RTE, MRPC and STS-B one that has
    learned MNLI does better (arXiv:1811.01088)."""
    init_new: str = ""
    """Parts that it lacks and that begin with random weights, with commas between ("pooler"); the task's head always does."""
    init_random: bool = False
    """Takes shape and vocabulary from `init_from`, and random weights: what pretraining is compared with."""
    keep_head: bool = False
    """Goes on with the head of `init_from`, which must be the task's own; else a new one takes its place."""
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    model: ModelChanges = ModelChanges()
    head: HeadChanges = HeadChanges()
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = TrainingConfig()
    selection: SelectionConfig = SelectionConfig()
    distillation: DistillationConfig = DistillationConfig()
    sweep: SweepConfig = SweepConfig()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=lambda: CheckpointConfig(every=500))
    log_every: Count = 50
    abort_after_skipped: Count = 10
    """So many steps in a row without a finite loss and gradient end the run."""

    @classmethod
    def from_dict(cls, values: JsonObject) -> FinetuningExperiment:
        """The experiment that nested plain values describe. Raises UserError for unknown keys, wrong types and impossible
        values."""
        experiment = section(cls, values, "config")
        experiment.validate()
        return experiment

    def to_dict(self) -> JsonObject:
        """The inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Checks what no single section can see."""
        if not self.init_from:
            raise UserError("config.init_from is empty; name the model to fine-tune (directory, workdir or hub name)")
        t, s, d = self.training, self.selection, self.distillation
        if self.init_random and (self.keep_head or self.init_new):
            raise UserError("config.init_random begins with random weights: keep_head and init_new have no use; leave them out")
        if s.patience and s.select == "last":
            raise UserError(f"config.selection.patience={s.patience} waits for a better evaluation; set selection.select=best")
        if (self.optimizer.decay_power, self.optimizer.end_learning_rate) != (1.0, 0.0):
            raise UserError("config.optimizer.decay_power and end_learning_rate are for pretraining; set training.schedule")
        names = [run.name for run in self.runs()]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"config.sweep asks twice for the run {name}; leave one out")
        if d != DistillationConfig() and not d.teacher:
            raise UserError("config.distillation has settings but no teacher; name one in config.distillation.teacher")
        if t.freeze_encoder and t.gradual_unfreezing:
            raise UserError("config.training.freeze_encoder and gradual_unfreezing contradict each other; choose one")

    def runs(self) -> list[FinetuningExperiment]:
        """The runs of the sweep, each without one: seeds run fastest, so that the first results are a whole set of seeds."""
        t, s = self.training, self.sweep
        rates, seeds = s.learning_rates or (t.learning_rate,), s.seeds or (self.seed,)
        axes = (s.batch_sizes or (t.batch_size,), rates, s.epochs or (t.epochs,), seeds)
        return [
            dataclasses.replace(
                self,
                seed=seed,
                training=dataclasses.replace(t, batch_size=batch_size, learning_rate=rate, epochs=epochs),
                sweep=SweepConfig(devices_per_run=s.devices_per_run),
            )
            for batch_size, rate, epochs, seed in itertools.product(*axes)
        ]

    @property
    def side_by_side(self) -> bool:
        """Whether the runs of a sweep share the devices out among themselves."""
        return bool(self.sweep.devices_per_run) and len(self.runs()) > 1

    @property
    def name(self) -> str:
        """What distinguishes the runs of a sweep: "batch-32_rate-2e-05_epochs-3_seed-0"."""
        t = self.training
        return f"batch-{t.batch_size}_rate-{t.learning_rate:g}_epochs-{t.epochs}_seed-{self.seed}"

    def head_config(self, own: TaskHead) -> TaskHead:
        """The task's `own` head with what `config.head` asks for."""
        c = self.head
        dropout = c.dropout
        if dropout is None and self.training.freeze_encoder and own.has_dropout:
            dropout = self.model.hidden_dropout  # which `model_config` takes from the encoder
        return dataclasses.replace(own, pooling=c.pooling, layers=c.layers, lstm=c.lstm, dropout=dropout)

    def model_config(self, loaded: ModelConfig, platform: str) -> ModelConfig:
        """The shape that was loaded with what `config.model` asks for on "cpu", "gpu" or "tpu"; no dropout in an encoder that is
        not trained."""
        asked = dataclasses.asdict(self.model)
        if self.model.dtype == "auto":
            asked["dtype"] = "bfloat16" if platform == "tpu" else "float32"
        config = dataclasses.replace(loaded, **asked)
        return dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0) if self.training.freeze_encoder else config
