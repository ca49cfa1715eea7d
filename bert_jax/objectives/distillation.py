"""Distillation: any other objective with losses against a teacher, for pretraining and for labelled tasks.

The soft targets follow Hinton et al. (arXiv:1503.02531), over the masked tokens as in DistilBERT (arXiv:1910.01108), over the
words that another objective predicts, or over the labels. Hidden states are compared as in TinyBERT (arXiv:1909.10351, section
3), through a learned projection if the widths differ. Attention maps are compared as distributions, as in MiniLM
(arXiv:2002.10957, section 3.1).

The teacher runs inside the training step, whose argument its parameters are (`training/steps.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.outputs import kl_divergence
from bert_jax.model.layers import Seed, named, truncated_normal
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.flops import TRAINING, forward_flops, model_row_flops, task_row_flops
from bert_jax.objectives.labels import Labels
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.model import MAPS, STATES, Batch, Boxed, Model, Outputs, Params, unboxed
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.objectives.scores import EvalRows, Formula, Score
from bert_jax.objectives.translation import Translation
from bert_jax.objectives.word_prediction import WordPrediction

if TYPE_CHECKING:
    from bert_jax.data.corpus.store import Corpus
    from bert_jax.data.rows import RowShape

PROJECTION = "distillation"
"""The subtree of the parameters with the learned projection. It is trained and saved, but not exported."""
_PROJECTION_STREAM = 0x70726F6A  # an arbitrary number, which selects a separate stream of random numbers
READ = "read_tokens"
"""The name of the count of tokens that the encoder reads. "tokens" also counts the tokens of a translation."""
TERMS = {"hidden_difference": READ, "attention_divergence": READ}
"""Name of a distillation sum -> name of the count by which it is divided. "soft_loss" is divided by the count of `hard_loss`."""


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

    Adds the sum "soft_loss" over the predictions if `soft_weight` is not 0, and the sums "hidden_difference" and
    "attention_divergence" over all tokens of the encoder if their weights are not 0. The teacher computes the outputs of `plain`
    with its own model, without dropout, and gets no gradient. Without a teacher, as in an evaluation, this objective equals
    `plain`.

    Hidden states and attention maps come from the encoding that makes the predictions, if `plain` inherits the methods
    `outputs` and `sums`. Another objective may encode other tokens, so both models encode the batch once more, as it is.
    XLA merges the two forward passes of the student if both read the same tokens, but its backward pass runs twice."""

    plain: Objective
    distillation: PretrainingDistillation
    teacher: Teacher | None = dataclasses.field(default=None, compare=False)

    rows = property(lambda self: self.plain.rows)
    judges_pairs = property(lambda self: self.plain.judges_pairs)
    needs_random_pairs = property(lambda self: self.plain.needs_random_pairs)
    trains = property(lambda self: self.plain.trains)
    baselines = property(lambda self: self.plain.baselines)

    @property
    def exported(self) -> str | None:  # type: ignore[override]
        """The exported class of `plain`."""
        return self.plain.exported

    @property
    def temporary(self) -> tuple[str, ...]:  # type: ignore[override]
        """The projection and the temporary parts of `plain`."""
        return (*self.plain.temporary, PROJECTION)

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
        plain, terms = self.plain.named_scores(), dict(TERMS)
        loss = {"loss": plain.pop("loss")} if "loss" in plain else {}
        if self.plain.hard_loss and self.distillation.soft_weight:
            terms = {"soft_loss": self.plain.hard_loss[1], **terms}
        return plain | {name: Score(name, count, shown=False) for name, count in terms.items()} | loss

    def defined_scores(self) -> set[str]:
        """Returns the names of all scores of `plain`."""
        return self.plain.defined_scores()

    def summarise(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Adds the loss of `plain` if it is not one of its scores."""
        plain = self.plain.summarise(sums)
        return super().summarise(sums) | {name: value for name, value in plain.items() if name == "loss"}

    def check(self, key: str) -> None:
        """Raises UserError if `plain` breaks the contract of an objective, if it uses a name of this class, if its `hard_loss`
        names no sum and count, or if the loss does not use that sum."""
        self.plain.check(key)
        params, batch = unboxed(self.plain.abstract_parameters()), self.plain.abstract_batch(2)
        sums = jax.eval_shape(lambda p, b: self.plain.sums(p, b, jnp.uint32(0)), params, batch)
        counts = jax.eval_shape(self.plain.counts, batch)
        used = {*sums, *counts, *self.plain.named_scores()} & {READ, "soft_loss", *TERMS} | {*params} & {PROJECTION}
        if used:
            raise UserError(f"{key}: {min(used)!r} is a name that a run with a teacher uses; give it another name")
        match self.plain.hard_loss:
            case None:
                return
            case (str(hard), str(count)) if hard in sums and count in counts:
                ones = {name: jnp.float32(1) for name in (*sums, *counts)}
                if self.plain.loss(ones, ones) == self.plain.loss(ones | {hard: jnp.float32(0)}, ones):
                    raise UserError(
                        f"{key}: hard_loss names the sum {hard!r}, but loss does not use it, so soft targets would replace "
                        "nothing; name the sum of the loss of the predictions"
                    )
            case given:
                raise UserError(
                    f"{key}: hard_loss={given!r} must be a pair (sum, count), with one of the sums {', '.join(sums)} and one of "
                    f"the counts {', '.join(counts)}"
                )

    def initial_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the initial parameters of `plain`, which have the same values as without a teacher, and the projection."""
        own = jax.random.fold_in(key, _PROJECTION_STREAM)
        projection = projection_parameters(self.distillation, self.model.hidden_size, own)
        return self.plain.initial_parameters(key) | projection

    def corpus_parameters(self, corpus: Corpus) -> Mapping[tuple[str, ...], np.ndarray]:
        """Returns the parameters of `plain` that describe the corpus."""
        return self.plain.corpus_parameters(corpus)

    def counts(self, batch: Batch) -> Sums:
        """Returns the counts of `plain`, and the number of tokens that the encoder reads."""
        return self.plain.counts(batch) | {READ: (batch["sequence_ids"] != 0).sum().astype(jnp.float32)}

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the sums of `plain` and, with a teacher, the distillation sums."""
        own = {part: tree for part, tree in params.items() if part != PROJECTION}
        if self.teacher is None:
            return self.plain.sums(own, batch, seed)
        compared = self._compared()
        student, teacher = (_keeping(objective, compared) for objective in (self.plain, self.teacher.objective))
        ours, theirs = dict[str, Array](), dict[str, Array]()
        if self.distillation.soft_weight:
            theirs |= jax.lax.stop_gradient(teacher.outputs(self.teacher.params, batch, None))
        if type(student).sums is Objective.sums:
            ours |= student.outputs(own, batch, seed)
            said, taught = ({name: x for name, x in found.items() if name not in compared} for found in (ours, theirs))
            found = self.distilled_sums(said, taught, batch)
        else:
            found = self.plain.sums(own, batch, seed)
        if not compared:
            return found
        if STATES not in ours:
            ours = dataclasses.replace(student.model, keeps=compared).states(own, batch, seed)
        if STATES not in theirs:
            keeping = dataclasses.replace(teacher.model, keeps=compared)
            theirs = jax.lax.stop_gradient(keeping.states(self.teacher.params, batch))
        return {**found, **self._state_sums(self.teacher.config, ours, theirs, params, batch)}

    def distilled_sums(self, ours: Outputs, theirs: Outputs, batch: Batch) -> Sums:
        """Computes the sums of `plain` and the soft loss from the outputs of student and teacher."""
        found, settings = dict(self.plain.output_sums(ours, batch)), self.distillation
        if settings.soft_weight:
            with jax.named_scope("distillation"):
                found["soft_loss"] = self.plain.soft_loss(ours, theirs, batch, settings.temperature)
        return found

    def _compared(self) -> tuple[str, ...]:
        """Returns what is compared apart from predictions (`Model.keeps`)."""
        settings = self.distillation
        return (STATES, MAPS) if settings.attention_weight else (STATES,) if settings.hidden_weight else ()

    def _state_sums(self, teacher: ModelConfig, ours: Outputs, theirs: Outputs, params: Params, batch: Batch) -> Sums:
        """Returns the sums that compare the hidden states and attention maps of student and teacher."""
        settings, found = self.distillation, dict[str, Float[Array, ""]]()
        with jax.named_scope("distillation"):
            mapped = _compared_layers(settings, teacher.num_layers, self.model.config.num_layers)
            if settings.hidden_weight:
                students, teachers = (jnp.array(layers) for layers in zip(*mapped, strict=True))
                states = ours[STATES][students]
                if PROJECTION in params:
                    states = states.astype(jnp.float32) @ params[PROJECTION]["kernel"]
                found["hidden_difference"] = hidden_state_difference(states, theirs[STATES][teachers], batch["sequence_ids"])
            if settings.attention_weight:
                # The embeddings have no attention map.
                pairs = [(student - 1, of_teacher - 1) for student, of_teacher in mapped if of_teacher]
                students, teachers = (jnp.array(layers) for layers in zip(*pairs, strict=True))
                found["attention_divergence"] = attention_divergence(
                    ours[MAPS][students], theirs[MAPS][teachers], batch["sequence_ids"]
                )
        return found

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the loss of `plain`, in which the sum of `hard_loss` has the weight 1 - soft_weight, plus the weighted means of
        the distillation terms."""
        settings, tokens = self.distillation, jnp.maximum(counts[READ], 1.0)
        if "soft_loss" in sums and self.plain.hard_loss:
            hard, count = self.plain.hard_loss
            total = self.plain.loss(sums | {hard: (1.0 - settings.soft_weight) * sums[hard]}, counts)
            total += settings.soft_weight * sums["soft_loss"] / jnp.maximum(counts[count], 1.0)
        else:
            total = self.plain.loss(sums, counts)
        if "hidden_difference" in sums:
            total += settings.hidden_weight * sums["hidden_difference"] / tokens
        if "attention_divergence" in sums:
            total += settings.attention_weight * sums["attention_divergence"] / tokens
        return total

    def refusal(self, length: int) -> str:
        """Returns why `plain` cannot train on rows of this length, or ""."""
        return self.plain.refusal(length)

    def predicted(self, batch: Mapping[str, Int[np.ndarray, "B _"]]) -> Int[np.ndarray, "B _"]:
        """Returns the targets of `plain`."""
        return self.plain.predicted(batch)

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
        taught = self.teacher.objective.flops(length, predictions) if d.soft_weight else model_row_flops(theirs, length)
        total = own + forward_flops(taught)
        if not d.hidden_weight or theirs.hidden_size == width:
            return total
        states = self.model.config.num_layers + 1 if d.layers == "uniform" else 1  # the hidden states that the projection reads
        return total + TRAINING * states * length * width * theirs.hidden_size


@dataclasses.dataclass(frozen=True)
class TaskDistillation(Distillation):
    """The objective `plain` of a labelled task with the terms of `distillation` added, except for attention maps.

    Instead of "soft_loss", the loss against the teacher's softened predictions is a part of the sum of `hard_loss`, in which the
    loss on the labels has the weight 1 - soft_weight."""

    plain: Labels

    def named_scores(self) -> dict[str, Score | Formula]:
        """Returns the scores of `plain`, in its order."""
        return self.plain.named_scores()

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the sums of `plain` and, with a teacher, the difference from its hidden states."""
        return super().sums(self.plain.trained(params), batch, seed)

    def distilled_sums(self, ours: Outputs, theirs: Outputs, batch: Batch) -> Sums:
        """Computes the sums of `plain` from the logits of student and teacher."""
        found, weight = super().distilled_sums(ours, theirs, batch), self.distillation.soft_weight
        if not self.plain.hard_loss or "soft_loss" not in found:
            return found
        hard, soft_loss = self.plain.hard_loss[0], found.pop("soft_loss")
        return found | {hard: (1.0 - weight) * found[hard] + weight * soft_loss}

    def task_flops(self, shape: RowShape) -> float:
        """Counts the FLOPs of `plain` and of the teacher's forward pass."""
        own, taught = self.plain.task_flops(shape), self.teacher and self.teacher.objective
        if not isinstance(taught, Labels):
            return own
        return own + forward_flops(task_row_flops(taught.config, taught.head, shape))


def teacher_parameters(objective: Objective, settings: PretrainingDistillation) -> Boxed:
    """Returns the boxed shapes of the parameters from which a student learns. `objective` is the student's objective, for the
    teacher's model. If predictions are not compared, only the encoder is needed."""
    parts = objective.model_parameters()
    return parts if settings.soft_weight else {part: parts[part] for part in ("embeddings", "encoder")}


def _keeping(objective: Objective, compared: tuple[str, ...]) -> Objective:
    """Returns the objective for a model that keeps what is `compared`. Other methods `outputs` than those that encode the batch
    as it is get a model that keeps nothing."""
    of_the_batch = type(objective).outputs in (WordPrediction.outputs, Translation.outputs, Labels.outputs)
    return objective.for_model(dataclasses.replace(objective.model, keeps=compared if of_the_batch else ()))


def soft_loss_sum(
    outputs: Outputs, taught: Outputs, targets: Mapping[str, Int[Array, " ..."]], temperature: float
) -> Float[Array, ""]:
    """Computes KL(teacher || student) of the softened probabilities, float32. The result is multiplied by the square of the
    temperature and summed over the predictions. `targets` has the ids of the targets by name of the logits; no soft targets
    exist where an id is IGNORED."""
    total = jnp.float32(0)
    for name, ids in targets.items():
        divergence = kl_divergence(taught[name].astype(jnp.float32), outputs[name].astype(jnp.float32), temperature)
        total += jnp.where(ids != IGNORED, divergence, 0.0).sum()
    return total


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
