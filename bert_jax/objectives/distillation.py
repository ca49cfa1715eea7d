"""Distillation: another objective with losses against a teacher, for pretraining and for labelled tasks.

The soft targets follow Hinton et al. (arXiv:1503.02531), over the masked tokens as in DistilBERT (arXiv:1910.01108), or over
the labels. Hidden states are compared as in TinyBERT (arXiv:1909.10351, section 3), through a learned projection if the widths
differ. Attention maps are compared as distributions, as in MiniLM (arXiv:2002.10957, section 3.1).

The teacher runs inside the training step, whose argument its parameters are (`training/steps.py`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bert_jax.errors import UserError
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.bert import Bert, without_attention
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import kl_divergence
from bert_jax.model.layers import Seed, named, truncated_normal
from bert_jax.model.pretraining import BertForPreTraining
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.flops import TRAINING, forward_flops, model_row_flops, task_row_flops
from bert_jax.objectives.labels import Labels
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.objectives.scores import EvalRows, Formula, Score

if TYPE_CHECKING:
    from bert_jax.data.rows import RowShape

PROJECTION = "distillation"
"""The subtree of the parameters with the learned projection. It is trained and saved, but not exported."""
_PROJECTION_STREAM = 0x70726F6A  # an arbitrary number, which selects a separate stream of random numbers
TERMS = {"soft_loss": "mlm_targets", "hidden_difference": "tokens", "attention_divergence": "tokens"}
"""Name of a distillation sum -> name of the count by which it is divided."""


def projection_parameters(settings: PretrainingDistillation, hidden_size: int, key: Key[Array, ""]) -> dict[str, Any]:
    """Returns the initial projection of the student's hidden states: a float32 kernel [D, teacher's D], boxed with its axis
    names. Returns {} if the widths are equal or if hidden states are not compared. The kernel's standard deviation, 1/sqrt(D),
    preserves the norm of the hidden states."""
    if not settings.projects(hidden_size):
        return {}
    init = named(truncated_normal(hidden_size**-0.5), "embed", "embed_out", product=(1, 1))
    kernel = init(key, (hidden_size, settings.teacher_width))
    return {PROJECTION: {"kernel": kernel}}


@dataclasses.dataclass(frozen=True)
class Distillation(Objective):
    """A student's objective `plain` with the terms of `PretrainingDistillation` added.

    Adds the sum "soft_loss" over the predicted tokens. Adds the sum "hidden_difference" over all tokens if `hidden_weight` is
    not 0, and the sum "attention_divergence" over all tokens if `attention_weight` is not 0. The teacher runs without dropout
    and gets no gradient. Without a teacher, as in an evaluation, this objective equals `plain`."""

    plain: MlmNsp
    distillation: PretrainingDistillation
    teacher: Teacher | None = dataclasses.field(default=None, compare=False)

    temporary: ClassVar[tuple[str, ...]] = (PROJECTION,)

    def __post_init__(self) -> None:
        for name in ("rows", "judges_pairs", "needs_random_pairs", "trains", "baselines"):
            object.__setattr__(self, name, getattr(self.plain, name))

    @property
    def exported(self) -> str | None:  # type: ignore[override]
        """The exported class of `plain`."""
        return self.plain.exported

    def for_model(self, model: Model) -> Self:
        """Returns a copy with this model. The objective `plain` of the copy gets the same model."""
        bound = super().for_model(model)
        object.__setattr__(bound, "plain", self.plain.for_model(model))
        return bound

    def with_teacher(self, teacher: Teacher) -> Distillation:
        """Returns a copy with the teacher's parameters, for a training step."""
        return dataclasses.replace(self, teacher=teacher).for_model(self.model)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of `plain`. The distillation settings are in `config.distillation`."""
        return self.plain.settings()

    def named_scores(self) -> dict[str, Score | Formula]:
        """Returns the scores of `plain`, the mean distillation terms, and the loss without these terms."""
        plain = self.plain.named_scores()
        loss = {"loss": plain.pop("loss")} if "loss" in plain else {}
        return plain | {name: Score(name, count, shown=False) for name, count in TERMS.items()} | loss

    def defined_scores(self) -> set[str]:
        """Returns the names of all scores of `plain`."""
        return self.plain.defined_scores()

    def summarise(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Adds the loss of `plain` if it is not one of its scores."""
        plain = self.plain.summarise(sums)
        return super().summarise(sums) | {name: value for name, value in plain.items() if name == "loss"}

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the projection and the parameters of `plain`. The parameters of `plain` have the same values as without a
        teacher."""
        own = jax.random.fold_in(key, _PROJECTION_STREAM)
        return self.plain.parameters(model, key) | projection_parameters(self.distillation, model.hidden_size, own)

    def counts(self, batch: Batch) -> Sums:
        """Returns the counts of `plain`."""
        return self.plain.counts(batch)

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the sums of `plain` and, with a teacher, the distillation sums."""
        if self.teacher is None:
            own = {part: tree for part, tree in params.items() if part != PROJECTION}
            return self.plain.sums(own, batch, seed)
        ours, theirs = self._outputs(self.teacher, params, batch, seed)
        found = self.plain.output_sums(ours, batch)
        with jax.named_scope("distillation"):
            targets, temperature = batch["masked_targets"], self.distillation.temperature
            found["soft_loss"] = soft_loss_sum(ours["mlm_logits"], theirs["mlm_logits"], targets, temperature)
        return {**found, **self._compared(self.teacher, ours, theirs, params, batch)}

    def _outputs(
        self, teacher: Teacher, params: Params, batch: Batch, seed: Seed | None, head: TaskHead | None = None
    ) -> tuple[Outputs, Outputs]:
        """Returns the outputs of the student, which has the task head `head` or none, and of the teacher."""
        own = {part: tree for part, tree in params.items() if part != PROJECTION}
        settings = self.distillation
        ours = _outputs(self.model, head, own, batch, seed, settings)
        theirs = _outputs(Model(teacher.config), teacher.head, teacher.params, batch, None, settings)
        return ours, jax.lax.stop_gradient(theirs)

    def _compared(self, teacher: Teacher, ours: Outputs, theirs: Outputs, params: Params, batch: Batch) -> Sums:
        """Returns the sums that compare the hidden states and attention maps of student and teacher."""
        settings, found = self.distillation, dict[str, Float[Array, ""]]()
        if not settings.hidden_weight and not settings.attention_weight:  # e.g. of a student without layers
            return found
        with jax.named_scope("distillation"):
            mapped = _compared_layers(settings, teacher.config.num_layers, self.model.config.num_layers)
            if settings.hidden_weight:
                students, teachers = (jnp.array(layers) for layers in zip(*mapped, strict=True))
                states = ours["hidden_states"][students]
                if PROJECTION in params:
                    states = states.astype(jnp.float32) @ params[PROJECTION]["kernel"]
                found["hidden_difference"] = hidden_state_difference(
                    states, theirs["hidden_states"][teachers], batch["sequence_ids"]
                )
            if settings.attention_weight:
                # The embeddings have no attention map.
                pairs = [(student - 1, of_teacher - 1) for student, of_teacher in mapped if of_teacher]
                students, teachers = (jnp.array(layers) for layers in zip(*pairs, strict=True))
                found["attention_divergence"] = attention_divergence(
                    ours["attention"][students], theirs["attention"][teachers], batch["sequence_ids"]
                )
        return found

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the loss of `plain`, in which the MLM loss has the weight 1 - soft_weight, plus the weighted means of the
        distillation terms."""
        settings, tokens = self.distillation, jnp.maximum(counts["tokens"], 1.0)
        if "soft_loss" in sums:
            total = self.plain.loss(sums | {"mlm_loss": (1.0 - settings.soft_weight) * sums["mlm_loss"]}, counts)
            total += settings.soft_weight * sums["soft_loss"] / jnp.maximum(counts["mlm_targets"], 1.0)
        else:
            total = self.plain.loss(sums, counts)
        if "hidden_difference" in sums:
            total += settings.hidden_weight * sums["hidden_difference"] / tokens
        if "attention_divergence" in sums:
            total += settings.attention_weight * sums["attention_divergence"] / tokens
        return total

    def eval_scores(self, rows: EvalRows) -> Mapping[str, float | Formula]:
        """Returns the evaluation scores of `plain`."""
        return self.plain.eval_scores(rows)

    def eval_line(self, scores: Mapping[str, float]) -> str:
        """Formats the held-out scores as `plain` does."""
        return self.plain.eval_line(scores)

    def row_losses(self, params: Params, batch: Batch) -> dict[str, Float[Array, " B"]]:
        """Returns the row losses of `plain`."""
        return self.plain.row_losses(params, batch)

    def row_flops(self, length: int, predictions: int) -> float | None:
        """Counts the FLOPs of `plain`, of the teacher's forward pass and of the projection."""
        own, d, width = self.plain.flops(length, predictions), self.distillation, self.model.hidden_size
        if self.teacher is None:
            return own
        theirs = self.teacher.config
        total = own + forward_flops(model_row_flops(theirs, length, predictions))
        if not d.hidden_weight or theirs.hidden_size == width:
            return total
        states = self.model.config.num_layers + 1 if d.layers == "uniform" else 1  # the hidden states that the projection reads
        return total + TRAINING * states * length * width * theirs.hidden_size


@dataclasses.dataclass(frozen=True)
class TaskDistillation(Distillation):
    """The objective `plain` of a labelled task with the terms of `distillation` added, except for attention maps.

    Instead of "soft_loss", the loss against the teacher's softened predictions is a part of the sum "loss", in which the loss
    on the labels has the weight 1 - soft_weight."""

    plain: Labels  # type: ignore[assignment]

    def named_scores(self) -> dict[str, Score | Formula]:
        """Returns the scores of `plain`, in its order."""
        return self.plain.named_scores()

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the sums of `plain` and, with a teacher, the difference from its hidden states."""
        if self.teacher is None:
            return self.plain.sums(params, batch, seed)
        ours, theirs = self._outputs(self.teacher, self.plain.trained(params), batch, seed, self.plain.head)
        found = self.distilled_sums(ours, theirs, batch)
        return {**found, **self._compared(self.teacher, ours, theirs, params, batch)}

    def distilled_sums(self, ours: Outputs, theirs: Outputs, batch: Batch) -> Sums:
        """Computes the sums of `plain` from the logits of student and teacher."""
        sums, settings, head = self.plain.output_sums(ours, batch), self.distillation, self.plain.head
        with jax.named_scope("distillation"):
            scores, teacher_scores = (head.answer_scores(x["logits"].astype(jnp.float32), batch) for x in (ours, theirs))
            soft_loss = self.plain.loss_weights(batch) * head.soft_loss(scores, teacher_scores, settings.temperature)
            loss = (1.0 - settings.soft_weight) * sums["loss"] + settings.soft_weight * soft_loss.sum()
        return {**sums, "loss": loss}

    def task_flops(self, shape: RowShape) -> float:
        """Counts the FLOPs of `plain` and of the teacher's forward pass."""
        own, teacher = self.plain.task_flops(shape), self.teacher
        if teacher is None or teacher.head is None:
            return own
        return own + forward_flops(task_row_flops(teacher.config, teacher.head, shape))


def soft_loss_sum(
    logits: Float[Array, "B M V"], teacher_logits: Float[Array, "B M V"], targets: Int[Array, "B M"], temperature: float
) -> Float[Array, ""]:
    """Computes KL(teacher || student) of the softened probabilities, float32. The result is multiplied by the square of the
    temperature and summed over the predicted tokens."""
    divergence = kl_divergence(teacher_logits.astype(jnp.float32), logits.astype(jnp.float32), temperature)
    return jnp.where(targets != IGNORED, divergence, 0.0).sum()


def hidden_state_difference(
    states: Float[Array, "S B L D"], teacher_states: Float[Array, "S B L D"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, ""]:
    """Computes the mean squared difference between the hidden states of student and teacher, float32. The result is averaged
    over the hidden states and dimensions of each token, and summed over tokens."""
    difference = jnp.square(states.astype(jnp.float32) - teacher_states.astype(jnp.float32)).mean((0, 3))  # [B, L]
    return jnp.where(sequence_ids != 0, difference, 0.0).sum()


def attention_divergence(
    weights: Float[Array, "S B H L L"], teacher_weights: Float[Array, "S B H L L"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, ""]:
    """Computes KL(teacher || student) of each token's attention, float32. The result is averaged over layers and heads, and
    summed over tokens."""
    student, teacher = (jnp.log(jnp.maximum(x.astype(jnp.float32), 1e-30)) for x in (weights, teacher_weights))
    divergence = (teacher_weights.astype(jnp.float32) * (teacher - student)).sum(-1).mean((0, 2))  # [B, L]
    return jnp.where(sequence_ids != 0, divergence, 0.0).sum()


def teacher_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Returns the indices of the teacher's hidden states to compare with, one index for each hidden state of the student. The
    indices are evenly spaced, from the embeddings to the last layer."""
    return tuple(round(layer * teacher / student) for layer in range(student + 1))


def _compared_layers(settings: PretrainingDistillation, teacher: int, student: int) -> list[tuple[int, int]]:
    """Returns pairs (index of the student's hidden state, index of the teacher's hidden state) to compare. Index 0 is the
    embeddings."""
    pairs = list(enumerate(teacher_layers(teacher, student)))
    return pairs if settings.layers == "uniform" else pairs[-1:]


def _outputs(
    model: Model, head: TaskHead | None, params: Params, batch: Batch, seed: Seed | None, settings: PretrainingDistillation
) -> Outputs:
    """Returns the logits of a model with a task `head` (None: the pretraining heads). If the loss compares them, also returns
    "hidden_states" [S, B, L, D] and "attention" [N, B, H, L, L]."""
    network: Callable[[ModelConfig], Bert]
    if head is None:
        network = functools.partial(BertForPreTraining, next_sentence=model.pairs)
    else:
        network = functools.partial(BertWithHead, head=head)
    variables = {"params": params}
    if settings.attention_weight:
        plain = dataclasses.replace(model.config, attention="plain", remat="none", scan_layers=False)
        outputs, stored = cast(tuple[Any, Any], network(plain).apply(variables, batch, seed, mutable=[INTERMEDIATES]))
        # A user's own layers may store no attention maps.
        if "attention_weights" not in stored.get(INTERMEDIATES, {}).get("encoder", {}):
            raise UserError(f"{without_attention(model.config)}, or set config.distillation.attention_weight=0")
        return {**outputs, "attention": jnp.stack(stored[INTERMEDIATES]["encoder"]["attention_weights"])}
    outputs = network(model.config).apply(variables, batch, seed, method=None if settings.hidden_weight else "logits")
    return dict(outputs) if isinstance(outputs, Mapping) else {"logits": cast(Array, outputs)}
