"""The objectives of training: the sum of the pretraining losses (paper section 3.1), the prediction of the next token, of
both neighbours or of a window, or the loss of a task (section 4)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from bert_jax.model.bilm import backward_positions
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.layers import Seed
from bert_jax.model.pretraining import pretraining_model
from bert_jax.objectives.label_losses import LabelLoss, hidden_state_difference, label_counts, label_loss_sums
from bert_jax.objectives.losses import IGNORED, Sums, batch_counts, loss_sums, pretraining_loss
from bert_jax.objectives.skip_gram import SkipGramConfig, skip_gram_sums, window_weights

Batch = dict[str, Num[Array, "B ..."]]
"""Name -> array of a batch."""
Params = Mapping[str, Any]
"""The parameters of a model: nested dictionaries of arrays."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss as sums over microbatches and devices, and the counts that the totals are divided by."""

    counts: Callable[[Batch], Sums]
    """batch -> the counts, which do not depend on the parameters; float32 scalars."""
    sums: Callable[[Params, Batch, Seed | None], Sums]
    """(parameters, batch, dropout seed or None for evaluation) -> the sums, float32 scalars."""
    loss: Callable[[Sums, Sums], Float[Array, ""]]
    """(total sums, total counts) -> the loss to differentiate."""


def forward(
    config: ModelConfig, params: Params, batch: Batch, seed: Seed | None, next_sentence: bool = True
) -> dict[str, Float[Array, "B ..."]]:
    """The logits of the pretraining model for a batch; `seed` None is evaluation."""
    model = pretraining_model(config, next_sentence=next_sentence)
    outputs = model.apply({"params": params}, batch, seed, method="logits")
    return cast(dict[str, Float[Array, "B ..."]], outputs)


def pretraining_objective(config: ModelConfig, *, next_sentence: bool = True) -> Objective:
    """Masked language modelling and, with `next_sentence`, next sentence prediction."""
    return _prediction_of_tokens(config, "mlm", next_sentence)


def next_token_objective(config: ModelConfig, *, next_sentence: bool = False) -> Objective:
    """The prediction of every token from those before it, by a left-to-right model on rows of targets="next"."""
    return _prediction_of_tokens(config, "next_token", next_sentence)


def _prediction_of_tokens(config: ModelConfig, measure: str, next_sentence: bool) -> Objective:
    """The cross-entropy of the rows' targets under the name `measure` and, with `next_sentence`, next sentence prediction."""

    def sums(params: Params, batch: Batch, seed: Seed | None) -> Sums:
        return loss_sums(forward(config, params, batch, seed, next_sentence), batch, measure)

    counts = functools.partial(batch_counts, measure=measure)
    return Objective(counts, sums, functools.partial(pretraining_loss, measure=measure))


def bilm_objective(config: ModelConfig, *, next_sentence: bool = False) -> Objective:
    """The prediction of every token from those before it and, apart from that, from those after it (ELMo, section 3.1).

    The rows are those of targets="next": the token after each of "masked_positions" is predicted twice, once if no token of its
    text follows it. The loss is the mean over all predictions, half of ELMo's sum of two means.
    """

    def sums(params: Params, batch: Batch, seed: Seed | None) -> Sums:
        outputs = forward(config, params, batch, seed, next_sentence)
        found: Sums = {}
        for logits, targets in zip((outputs["mlm_logits"], outputs["backward_logits"]), bilm_targets(batch), strict=True):
            of_direction = loss_sums({"mlm_logits": logits}, batch | {"masked_targets": targets}, "bilm")
            found = {name: found.get(name, 0.0) + value for name, value in of_direction.items()}
        return found

    def counts(batch: Batch) -> Sums:
        forward_targets, backward_targets = ((x != IGNORED).sum().astype(jnp.float32) for x in bilm_targets(batch))
        return batch_counts(batch, "bilm") | {"bilm_targets": forward_targets + backward_targets}

    return Objective(counts, sums, functools.partial(pretraining_loss, measure="bilm"))


def bilm_targets(batch: Batch) -> tuple[Int[Array, "B M"], Int[Array, "B M"]]:
    """The targets of the forward and of the backward LSTM, IGNORED where there is none: the last token of a text, its [SEP], has
    no token after it from which the backward LSTM could predict it."""
    targets = batch["masked_targets"]
    _, exists = backward_positions(batch["masked_positions"], batch["sequence_ids"])
    return targets, jnp.where(exists, targets, IGNORED)


def skip_gram_objective(
    config: ModelConfig, *, next_sentence: bool = False, skip_gram: SkipGramConfig | None = None
) -> Objective:
    """Skip-gram with negative sampling on the rows of targets="next", whose "masked_positions" are the centres of windows."""
    settings = skip_gram or SkipGramConfig()

    def counts(batch: Batch) -> Sums:
        return batch_counts(batch, "skip_gram") | {"windows": window_weights(batch, settings.window).sum()}

    def loss(sums: Sums, counts: Sums) -> Float[Array, ""]:
        return sums["skip_gram_loss"] / jnp.maximum(counts["windows"], 1.0)

    return Objective(
        lambda batch: {name: value for name, value in counts(batch).items() if name != "skip_gram_targets"},
        functools.partial(skip_gram_sums, settings=settings),
        loss,
    )


PRETRAINING: dict[str, Callable[..., Objective]] = {
    "bert": pretraining_objective,
    "next_token": next_token_objective,
    "bilm": bilm_objective,
    "skip_gram": skip_gram_objective,
}
"""Name in `config.objective` -> function from a ModelConfig and `next_sentence` (True if rows hold pairs) to the objective. To
add an objective, add its function and its name here, and its model in `configs.pretraining.natural_objective`."""


def label_objective(config: ModelConfig, head: TaskHead, settings: LabelLoss, frozen: tuple[str, ...] = ()) -> Objective:
    """The loss of a labelled task on packed rows (`data/rows.py`).

    The gradients of the `frozen` parts of the parameters are zero and are not computed. If the batch holds "teacher_logits" (in
    the shape of the logits) or "teacher_hidden_states" [B, S, L, D], the loss includes the distillation terms of `LabelLoss`.
    """

    def sums(params: Params, batch: Batch, seed: Seed | None) -> Sums:
        stopped = {part: jax.lax.stop_gradient(tree) if part in frozen else tree for part, tree in params.items()}
        model, variables = BertWithHead(config, head), {"params": stopped}
        if "teacher_hidden_states" not in batch:
            return label_loss_sums(cast(Array, model.apply(variables, batch, seed, method="logits")), batch, head, settings)
        outputs = cast(dict[str, Array], model.apply(variables, batch, seed))
        total = label_loss_sums(outputs["logits"], batch, head, settings)
        return total | {"hidden_difference": hidden_state_difference(outputs["hidden_states"], batch)}

    def counts(batch: Batch) -> Sums:
        return label_counts(batch, head, settings)

    def loss(sums: Sums, counts: Sums) -> Float[Array, ""]:
        loss = sums["loss"] / jnp.maximum(counts["weight"], 1e-6)
        if "hidden_difference" in sums:
            loss += settings.hidden_weight * sums["hidden_difference"] / jnp.maximum(counts["tokens"], 1.0)
        return loss

    return Objective(counts, sums, loss)
