"""Distillation losses for pretraining: soft targets, hidden states and attention maps of a teacher.

The soft targets follow Hinton et al. (arXiv:1503.02531) over the masked tokens, as in DistilBERT (arXiv:1910.01108). Hidden
states are compared as in TinyBERT (arXiv:1909.10351, section 3), through a learned projection if the widths differ. Attention
maps are compared as distributions, as in MiniLM (arXiv:2002.10957, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bert_jax.errors import UserError
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.bert import without_attention
from bert_jax.model.heads.outputs import kl_divergence
from bert_jax.model.layers import Seed, named, truncated_normal
from bert_jax.model.pretraining import BertForPreTraining
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.flops import TRAINING, forward_flops, model_row_flops
from bert_jax.objectives.labels import hidden_state_difference, teacher_layers
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Batch, Boxed, Model, Params
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.objectives.scores import EvalRows, Formula, Score

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
        for name in ("rows", "judges_pairs", "trains", "baselines"):
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
        projection = params.get(PROJECTION)
        own = {part: tree for part, tree in params.items() if part != PROJECTION}
        if self.teacher is None:
            return self.plain.sums(own, batch, seed)
        batch = self.model.in_whole_tiles(batch)
        settings, teacher = self.distillation, self.teacher
        outputs = _outputs(self.model, own, batch, seed, settings)
        theirs = jax.lax.stop_gradient(_outputs(Model(teacher.config), teacher.params, batch, None, settings))
        found = self.plain.output_sums(outputs, batch)
        with jax.named_scope("distillation"):
            found["soft_loss"] = soft_loss_sum(
                outputs["mlm_logits"], theirs["mlm_logits"], batch["masked_targets"], settings.temperature
            )
            mapped = _compared_layers(settings, teacher.config.num_layers, self.model.config.num_layers)
            if settings.hidden_weight:
                students, teachers = (jnp.array(layers) for layers in zip(*mapped, strict=True))
                states = outputs["hidden_states"][students]
                if projection is not None:
                    states = states.astype(jnp.float32) @ projection["kernel"]
                compared = batch | {"teacher_hidden_states": theirs["hidden_states"][teachers].swapaxes(0, 1)}
                found["hidden_difference"] = hidden_state_difference(states, compared)
            if settings.attention_weight:
                # The embeddings have no attention map.
                pairs = [(student - 1, of_teacher - 1) for student, of_teacher in mapped if of_teacher]
                students, teachers = (jnp.array(layers) for layers in zip(*pairs, strict=True))
                found["attention_divergence"] = attention_divergence(
                    outputs["attention"][students], theirs["attention"][teachers], batch["sequence_ids"]
                )
        return found

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the loss of `plain`, in which the MLM loss has the weight 1 - soft_weight, plus the weighted means of the
        distillation terms."""
        if "soft_loss" not in sums:
            return self.plain.loss(sums, counts)
        settings = self.distillation
        targets, tokens = jnp.maximum(counts["mlm_targets"], 1.0), jnp.maximum(counts["tokens"], 1.0)
        total = self.plain.loss(sums | {"mlm_loss": (1.0 - settings.soft_weight) * sums["mlm_loss"]}, counts)
        total += settings.soft_weight * sums["soft_loss"] / targets
        if settings.hidden_weight:
            total += settings.hidden_weight * sums["hidden_difference"] / tokens
        if settings.attention_weight:
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


def soft_loss_sum(
    logits: Float[Array, "B M V"], teacher_logits: Float[Array, "B M V"], targets: Int[Array, "B M"], temperature: float
) -> Float[Array, ""]:
    """Computes KL(teacher || student) of the softened probabilities, float32. The result is multiplied by the square of the
    temperature and summed over the predicted tokens."""
    divergence = kl_divergence(teacher_logits.astype(jnp.float32), logits.astype(jnp.float32), temperature)
    return jnp.where(targets != IGNORED, divergence, 0.0).sum()


def attention_divergence(
    weights: Float[Array, "S B H L L"], teacher_weights: Float[Array, "S B H L L"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, ""]:
    """Computes KL(teacher || student) of each token's attention, float32. The result is averaged over layers and heads, and
    summed over tokens."""
    student, teacher = (jnp.log(jnp.maximum(x.astype(jnp.float32), 1e-30)) for x in (weights, teacher_weights))
    divergence = (teacher_weights.astype(jnp.float32) * (teacher - student)).sum(-1).mean((0, 2))  # [B, L]
    return jnp.where(sequence_ids != 0, divergence, 0.0).sum()


def _compared_layers(settings: PretrainingDistillation, teacher: int, student: int) -> list[tuple[int, int]]:
    """Returns pairs (index of the student's hidden state, index of the teacher's hidden state) to compare. Index 0 is the
    embeddings."""
    pairs = list(enumerate(teacher_layers(teacher, student)))
    return pairs if settings.layers == "uniform" else pairs[-1:]


def _outputs(
    model: Model, params: Params, batch: Batch, seed: Seed | None, settings: PretrainingDistillation
) -> dict[str, Float[Array, " ..."]]:
    """Returns a model's logits and, if the loss compares them, its "hidden_states" [S, B, L, D] and "attention" [N, B, H, L,
    L]."""
    variables = {"params": params}
    if settings.attention_weight:
        plain = dataclasses.replace(model.config, attention="plain", remat="none", scan_layers=False)
        module = BertForPreTraining(plain, model.pairs)
        outputs, stored = cast(tuple[Any, Any], module.apply(variables, batch, seed, mutable=[INTERMEDIATES]))
        # A user's own layers may store no attention maps.
        if "attention_weights" not in stored.get(INTERMEDIATES, {}).get("encoder", {}):
            raise UserError(f"{without_attention(model.config)}, or set config.distillation.attention_weight=0")
        return {**outputs, "attention": jnp.stack(stored[INTERMEDIATES]["encoder"]["attention_weights"])}
    method = None if settings.hidden_weight else "logits"
    outputs = BertForPreTraining(model.config, model.pairs).apply(variables, batch, seed, method=method)
    return dict(cast(Mapping[str, Array], outputs))
