"""The frozen dataclasses of a fine-tuning experiment: every key, its type, range and default."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from annotated_types import Interval

from bert_jax.configs.experiment_files import dataclass_from_dict
from bert_jax.configs.objectives import OBJECTIVE, objective_class, settings_class, with_objective
from bert_jax.configs.pretraining import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.ranges import BatchSize, Count, CountOrZero, Dropout, Fraction, NamedIn, OneOf, PathText, Seed
from bert_jax.model.config import (
    CLASSIFIER_POOLINGS,
    DTYPES,
    MOST_WIDE,
    Execution,
    ModelConfig,
)
from bert_jax.model.heads import CRFS, INPUTS, LAYERS, MIX_PLACES, POOLINGS
from bert_jax.objectives import TASK_OBJECTIVES
from bert_jax.sharding.config import MeshConfig
from bert_jax.tasks.config import TaskConfig
from bert_jax.training import SCHEDULES
from bert_jax.training.config import LogConfig, OptimizerConfig

if TYPE_CHECKING:  # these modules import JAX
    from bert_jax.model.heads.head import TaskHead
    from bert_jax.objectives.labels import Labels

SELECTIONS = ("best", "last")
Epochs = Annotated[int, Interval(ge=1, le=10_000)]
Positive = Annotated[float, Interval(gt=0, le=1e30)]
LossWeight = Annotated[float, Interval(ge=0, le=1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOverrides(Execution):
    """The model settings that may differ from `init_from`. They affect execution and training, but not the architecture. The
    other fields of `TrainingOnly` have the values of `init_from`."""

    hidden_dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    dtype: Annotated[str, OneOf(("auto", *DTYPES))] = "auto"
    """The type of matrix products and activations: "float32", "bfloat16", or "auto". "auto" is bfloat16 on TPUs and float32
    elsewhere. On a TPU, a float32 product takes six passes of the matrix unit, and a float32 program takes several times as
    long to compile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOverrides:
    """The settings of the task's head, i.e. its input, LSTM, CRF and dropout. The defaults are the values of the paper (see
    `TaskHead`)."""

    pooling: Annotated[str, OneOf(POOLINGS)] = "pooler"
    layers: Annotated[str, OneOf(LAYERS)] = "last"
    lstm: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    mix_at: Annotated[str, OneOf(MIX_PLACES)] = "input"
    crf: Annotated[str, OneOf(CRFS)] = "none"
    dropout: Dropout | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The hyperparameters of fine-tuning. The defaults are within the paper's grid (appendix A.3)."""

    epochs: Epochs = 3
    batch_size: BatchSize = 32
    """The number of examples per update, over all devices."""
    learning_rate: Positive = 2e-5
    warmup_fraction: Fraction = 0.1
    """The fraction of all steps used for warmup (run_classifier.py)."""
    schedule: Annotated[str, NamedIn(tuple(SCHEDULES))] = "original"
    """"original" (run_classifier.py), "linear" (transformers'), "slanted_triangular" (ULMFiT), "constant" (after the warmup), or
    FILE.py:NAME."""
    accumulation: BatchSize = 1
    """Microbatches per update (gradient accumulation)."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """The fraction of the target probability that is spread over all labels (arXiv:1512.00567, section 7)."""
    class_weights: tuple[LossWeight, ...] = ()
    """A factor for the loss of each label, in the order of the head's labels. A single 0 means "balanced", i.e. the weight of
    each label is the inverse of the label's frequency (King and Zeng 2001, "Logistic Regression in Rare Events Data")."""
    layer_decay: Fraction = 1.0
    """The ratio of a layer's learning rate to the rate of the layer above it (ULMFiT; ELECTRA uses 0.8 and 0.9)."""
    crf_multiplier: Annotated[float, Interval(gt=0, le=1e6)] = 100.0
    """The factor of `learning_rate` for the transition scores of `head.crf`. Adam moves a weight by about the learning rate per
    step, but transition scores differ by about one. At a rate of 5e-5, the scores would need 20,000 steps."""
    freeze_encoder: bool = False
    """Whether to train only the head. Embeddings and layers keep their weights and run without dropout (paper section 5.3)."""
    gradual_unfreezing: bool = False
    """Whether to train only the head in the first epoch and one more layer in each later epoch (ULMFiT, section 3.3)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """The evaluations on the dev set and the selection of the exported weights."""

    per_epoch: Annotated[int, Interval(ge=1, le=1_000)] = 1
    """Evaluations per epoch."""
    select: Annotated[str, OneOf(SELECTIONS)] = "best"
    """"best": the weights with the best score on dev (arXiv:2002.06305); "last": the weights after the last step."""
    patience: CountOrZero = 0
    """The number of evaluations without an improvement after which training ends (Prechelt 1998, "Early Stopping - But When?"). 0
    disables early stopping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Knowledge distillation from a larger fine-tuned model (Hinton et al., arXiv:1503.02531)."""

    teacher: PathText = ""
    """A model fine-tuned on the same task with the same vocabulary: directory, workdir or hub name. Empty: no distillation."""
    temperature: Annotated[float, Interval(ge=0.01, le=1_000)] = 2.0
    soft_weight: Fraction = 0.5
    """The weight of the loss against the teacher's softened predictions. The loss on the labels has the weight 1 -
    soft_weight."""
    hidden_weight: LossWeight = 0.0
    """The weight of the loss between the hidden states of both models, which must have the same hidden size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossViewConfig:
    """Cross-view training on unlabelled text (Clark et al., arXiv:1809.08370; `objectives/cross_view.py`), for token heads on
    LSTMs. Each step with labels is followed by a step without labels."""

    corpus: PathText = ""
    """The directory of a corpus with the model's vocabulary, made by `python -m bert_jax.corpus`. Its sentences are the
    unlabelled text. Empty: no cross-view training."""
    batch_size: BatchSize = 32
    """The number of unlabelled sentences per step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A sweep over the Cartesian product of these lists. If `seeds` is empty, all runs have the value of `seed`. If another
    list is empty, all runs have the value in `training`.

    The paper's grid (appendix A.3) is batch sizes 16, 32; learning rates 5e-5, 3e-5, 2e-5; epochs 2, 3, 4.
    """

    batch_sizes: tuple[BatchSize, ...] = ()
    learning_rates: tuple[Positive, ...] = ()
    epochs: tuple[Epochs, ...] = ()
    seeds: tuple[Seed, ...] = ()
    devices_per_run: Annotated[int, Interval(ge=0, le=2**20)] = 1
    """The number of devices per run. The runs of a sweep train in parallel, each on this many devices of one process. If there
    are several processes (the hosts of a TPU slice), the runs are divided among the processes. 0: the runs train one after
    another, each on all devices of all processes. Use 0 for models that need the memory of all devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningExperiment:
    """The configuration of a fine-tuning run or sweep."""

    seed: Seed = 0
    """The seed of the order of examples, the dropout masks, and the initial weights of a new head and of `init_new`."""
    init_from: PathText = ""
    """The pretrained model: Hugging Face directory, workdir of a run, or name on the hub. For RTE, MRPC and STS-B, starting from
    a model fine-tuned on MNLI scores higher (arXiv:1811.01088)."""
    init_new: str = ""
    """Comma-separated names of parts that `init_from` lacks, e.g. "pooler". They start from random weights, like the task's
    head."""
    init_random: bool = False
    """Whether to use only the architecture and vocabulary of `init_from`, with random weights. This is the baseline without
    pretraining."""
    keep_head: bool = False
    """Whether to keep the head of `init_from`, which must have the task's labels. False starts a new head from random weights."""
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    model: ModelOverrides = ModelOverrides()
    head: HeadOverrides = HeadOverrides()
    objective: Annotated[str, NamedIn(("auto", *TASK_OBJECTIVES))] = "auto"
    """"labels": the loss of the task's head. "cross_view": the same with cross-view training on the text of `config.cross_view`.
    "auto": "cross_view" if there is such text, otherwise "labels". FILE.py:NAME: your own class that inherits from `Labels`."""
    objective_options: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """The settings of the objective: the fields that its class adds to `Labels`."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = TrainingConfig()
    selection: SelectionConfig = SelectionConfig()
    distillation: DistillationConfig = DistillationConfig()
    cross_view: CrossViewConfig = CrossViewConfig()
    sweep: SweepConfig = SweepConfig()
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=lambda: CheckpointConfig(every=500))
    log_every: Count = 50
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    abort_after_skipped: Count = 10
    """The number of consecutive steps with a non-finite loss, gradient or learning rate after which the run ends."""

    @classmethod
    def from_dict(cls, values: JsonObject) -> FinetuningExperiment:
        """Builds the experiment from nested plain values. Raises UserError for unknown keys, wrong types and invalid values."""
        if isinstance(values, Mapping):
            values = with_objective(values, _objective_name(values), cls.read_objective(values))
        experiment = dataclass_from_dict(cls, values, "config")
        experiment.validate()
        return experiment

    @staticmethod
    def read_objective(values: JsonObject) -> type[Labels]:
        """Returns the class of the objective in the values of an experiment. Raises UserError like `objective_class`."""
        return cast("type[Labels]", objective_class(_objective_name(values), "finetune"))

    @classmethod
    def objective_settings(cls, values: JsonObject) -> type:
        """Returns the dataclass of `config.objective_options` for the values of an experiment."""
        return settings_class(cls.read_objective(values))

    def to_dict(self) -> JsonObject:
        """Returns the inverse of `from_dict`, with every default written out."""
        return dataclasses.asdict(self)

    def validate(self) -> None:
        """Checks the constraints between sections. Raises UserError."""
        if not self.init_from:
            raise UserError("config.init_from is empty; name the model to fine-tune (directory, workdir or hub name)")
        t, s, d = self.training, self.selection, self.distillation
        if self.checkpoints.keep_at:
            raise UserError("config.checkpoints.keep_at is for pretraining; leave it out, and see config.selection.per_epoch")
        if self.init_random and (self.keep_head or self.init_new):
            raise UserError(
                "config.init_random starts from random weights, so keep_head and init_new have no effect; leave the two out"
            )
        if s.patience and s.select == "last":
            raise UserError(f"config.selection.patience={s.patience} requires selection.select=best; set it to best")
        o = self.optimizer
        if (o.decay_power, o.end_learning_rate, o.schedule, o.layer_decay, o.decouple_rate) != (1.0, 0.0, "original", 1.0, False):
            raise UserError(
                "config.optimizer.decay_power, end_learning_rate, schedule, layer_decay and decouple_rate are only for "
                "pretraining; use training.schedule and training.layer_decay"
            )
        names = [run.name for run in self.runs()]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"config.sweep contains the run {name} twice; remove the repeated value")
        if d != DistillationConfig() and not d.teacher:
            raise UserError("config.distillation has settings but no teacher; name one in config.distillation.teacher")
        if self.cross_view != CrossViewConfig() and not self.cross_view.corpus:
            raise UserError("config.cross_view has settings but no text; name a corpus in config.cross_view.corpus")
        kind, corpus = self.read_objective({"objective": self.objective}), self.cross_view.corpus
        if kind.reads_unlabelled and not corpus:
            raise UserError(
                f"{OBJECTIVE}={self.objective} also learns from text without labels; name a corpus in config.cross_view.corpus"
            )
        if corpus and not kind.reads_unlabelled:
            raise UserError(
                f"config.cross_view.corpus={corpus} is text without labels, from which {OBJECTIVE}={self.objective} does not "
                "learn; leave one of them out"
            )
        if self.cross_view.corpus and d.teacher:
            raise UserError(
                "config.cross_view learns from the model itself, but config.distillation learns from another model; leave "
                "one of them out"
            )
        if d.teacher and not (d.soft_weight or d.hidden_weight):
            raise UserError(
                f"config.distillation.teacher={d.teacher} has no effect, because soft_weight and hidden_weight are 0; raise "
                "one of them, or leave the teacher out"
            )
        if d.teacher and d.soft_weight and (wrong := kind.no_soft_targets()):
            raise UserError(
                f"{OBJECTIVE}={self.objective} {wrong}, or learn only the teacher's hidden states, with soft_weight=0 and "
                "hidden_weight=1 in config.distillation"
            )
        if t.freeze_encoder and t.gradual_unfreezing:
            raise UserError("config.training.freeze_encoder and gradual_unfreezing contradict each other; choose one")

    def runs(self) -> list[FinetuningExperiment]:
        """Returns the runs of the sweep, each with an empty sweep. Seeds vary fastest, so that the first results cover all seeds
        of one setting."""
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
        """Whether the runs of the sweep train in parallel, each on some of the devices."""
        return bool(self.sweep.devices_per_run) and len(self.runs()) > 1

    @property
    def name(self) -> str:
        """The name of a run within its sweep: "batch-32_rate-2e-05_epochs-3_seed-0"."""
        t = self.training
        return f"batch-{t.batch_size}_rate-{t.learning_rate:g}_epochs-{t.epochs}_seed-{self.seed}"

    def head_config(self, own: TaskHead) -> TaskHead:
        """Returns the task's `own` head with the overrides of `config.head`. Raises UserError if the head does not support
        them."""
        c = self.head
        dropout = c.dropout
        if dropout is None and self.training.freeze_encoder and own.has_dropout:
            dropout = self.model.hidden_dropout  # needed because `model_config` sets the dropout of a frozen encoder to 0
        asked: JsonObject = {name: getattr(c, name) for name in INPUTS}
        if c.pooling in CLASSIFIER_POOLINGS[1:]:  # this pooling is a setting of the model, see `model_config`
            asked["pooling"] = "pooler"
        head = dataclasses.replace(own, **asked, dropout=dropout)
        if c.pooling != "pooler" and asked["pooling"] == "pooler" and not head.reads_pooler:
            if own.reads_pooler:
                raise UserError(
                    f"config.head.lstm={c.lstm} reads the final state of each direction, so head.pooling={c.pooling} has no "
                    "effect; leave one of them out"
                )
            raise UserError(
                f"config.head.pooling={c.pooling!r} chooses the vector of a whole text, which a {own.kind} head does not read; "
                "leave it out"
            )
        return head

    def model_config(self, loaded: ModelConfig, platform: str) -> ModelConfig:
        """Applies the overrides of `config.model` to the `loaded` configuration, for a `platform` ("cpu", "gpu" or "tpu"). A
        frozen encoder has no dropout."""
        asked = dataclasses.asdict(self.model)
        if self.model.dtype == "auto":
            asked["dtype"] = "bfloat16" if platform == "tpu" else "float32"
        if self.head.pooling in CLASSIFIER_POOLINGS[1:]:
            asked["classifier_pooling"] = self.head.pooling
        if self.training.freeze_encoder:
            asked |= dict.fromkeys(("hidden_dropout", "attention_dropout"), 0.0)
            asked |= dict.fromkeys(("embedding_dropout", "attention_output_dropout"))
        return dataclasses.replace(loaded, **asked)


def _objective_name(values: JsonObject) -> str:
    """Returns the objective in the values of an experiment. "auto" is replaced by its name."""
    name, views = values.get("objective", "auto"), values.get("cross_view", {})
    if not isinstance(name, str):
        raise UserError(f"{OBJECTIVE}={name!r} must be a name")
    has_text = isinstance(views, Mapping) and views.get("corpus")
    return name if name != "auto" else "cross_view" if has_text else "labels"
