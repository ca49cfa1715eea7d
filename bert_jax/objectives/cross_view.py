"""Cross-view training of taggers (Clark et al. 2018, arXiv:1809.08370). Auxiliary modules that see only a part of an unlabelled
sentence learn to predict what the whole model predicts.

Steps alternate between batches with labels and batches without labels. On a batch with labels, the loss is the task's loss. On
a batch without labels, the model tags the sentences, and these predictions are the targets of four auxiliary modules. Each
module sees only a part of the sentence, which is called its view. Learning to match the predictions improves the layers that
the modules read (section 3.2). The views are:

    forward     sees the words up to this one             future      sees the words before this one
    backward    sees this word and the words after it     past        sees the words after this one

The views use the two directions of the lowest LSTM layer. This is a layer of the encoder, or of the head if the encoder has
static vectors. Words are predicted at their first piece, and the views start and end between words. The predictions that serve as
targets are made without dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bert_jax.errors import UserError
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.layers import Seed, gather_positions
from bert_jax.objectives.labels import Labels
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Boxed, Params, apply_dense, dense
from bert_jax.objectives.scores import Formula, Score

VIEWS = ("forward", "backward", "future", "past")
PART = "cross_view"
"""The key of the auxiliary modules in the parameters of a run. They are not exported."""
WEIGHTS = "view_weights"
"""The array of a batch without labels: float32 [B, L], 1 at the first piece of each word."""


@dataclasses.dataclass(frozen=True)
class CrossView(Labels):
    """The loss of a token head with auxiliary modules. On a batch with WEIGHTS, the loss is the mean over words of KL(prediction
    || view), summed over the views. An auxiliary module is softmax(U ReLU(W h + a) + b), with a hidden layer as wide as the
    view."""

    reads_unlabelled: ClassVar[bool] = True
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **Labels.scores,
        "view loss": ("view_loss", "view_words"),
    }

    def training_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the auxiliary modules."""
        width, outputs = view_width(self.config, self.head), self.head.num_outputs
        keys = iter(jax.random.split(key, 2 * len(VIEWS)))
        stddev = width**-0.5
        return {
            PART: {
                view: {"hidden": dense(width, width, next(keys), stddev), "output": dense(width, outputs, next(keys), stddev)}
                for view in VIEWS
            }
        }

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the sums of `Labels`, and the summed loss of the views on unlabelled words. One of the two is always 0."""
        if WEIGHTS not in batch:
            return super().sums(params, batch, seed) | {"view_loss": jnp.float32(0)}
        target = self.head.answer_scores(jax.lax.stop_gradient(self.logits(params, batch)).astype(jnp.float32), batch)
        loss = jnp.float32(0)
        for view, states in self.views(params, batch, seed).items():
            module = params[PART][view]
            scores = apply_dense(module["output"], jax.nn.relu(apply_dense(module["hidden"], states)))
            loss += (batch[WEIGHTS] * self.head.soft_loss(scores, target, 1.0)).sum()
        return {"loss": jnp.float32(0), "correct": jnp.float32(0), "view_loss": loss}

    def views(self, params: Params, batch: Batch, seed: Seed | None) -> dict[str, Float[Array, "B L W"]]:
        """Returns the states that each auxiliary module reads to predict the word that starts at each column."""
        model = BertWithHead(self.config, self.head)
        outputs, stored = model.apply({"params": self.trained(params)}, batch, seed, mutable=[INTERMEDIATES])
        if self.config.kind.is_static:
            (lowest,) = stored[INTERMEDIATES][self.head.subtree]["lstm"]["lower"]
        else:
            lowest = cast(dict[str, Array], outputs)["hidden_states"][1]
        forward, backward = jnp.split(lowest, 2, axis=-1)
        following = next_words(batch["word_starts"], batch["sequence_ids"])
        before = jnp.maximum(jax.lax.broadcasted_iota(jnp.int32, following.shape, 1) - 1, 0)
        return {
            "forward": gather_positions(forward, following - 1),
            "backward": backward,
            "future": gather_positions(forward, before),
            "past": gather_positions(backward, following),
        }

    def counts(self, batch: Batch) -> Sums:
        """Returns the counts of `Labels`, and the number of unlabelled words."""
        return super().counts(batch) | {"view_words": batch[WEIGHTS].sum() if WEIGHTS in batch else jnp.float32(0)}

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the mean loss of the labels plus the mean loss of the views. In each batch, one of the two is 0."""
        return super().loss(sums, counts) + sums["view_loss"] / jnp.maximum(counts["view_words"], 1.0)


def next_words(word_starts: Int[Array, "B L"], sequence_ids: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns, for each column, the next column that starts a word or holds the [SEP] of the text."""
    last = jnp.concatenate([sequence_ids[:, 1:] != sequence_ids[:, :-1], jnp.ones_like(sequence_ids[:, :1], bool)], axis=1)
    columns = jax.lax.broadcasted_iota(jnp.int32, sequence_ids.shape, 1)
    end = sequence_ids.shape[1] - 1
    found = jax.lax.cummin(jnp.where((word_starts > 0) | last, columns, end), axis=1, reverse=True)
    return jnp.concatenate([found[:, 1:], found[:, -1:]], axis=1)


def view_width(config: ModelConfig, head: TaskHead) -> int:
    """Returns the width of the states that an auxiliary module reads."""
    return head.lstm if config.kind.is_static else config.hidden_size // 2


def check_views(config: ModelConfig, head: TaskHead, *, frozen: bool) -> None:
    """Raises UserError if the head does not tag words or has a CRF, if the lowest layer (of the model or of the head) does not
    have two independent directions, or if that layer is not trained. `frozen` is `training.freeze_encoder`."""
    if head.kind != "token":
        raise UserError(f"config.cross_view is for tagging, not for a {head.kind} head; leave it out")
    if head.has_crf:
        raise UserError(
            f"config.cross_view does not support a CRF (head.crf={head.crf}), because its modules predict each word on its "
            "own; set head.crf=none"
        )
    if config.kind.is_static:
        if not head.lstm:
            raise UserError(
                "config.cross_view needs an LSTM that reads the static vectors in two directions; set config.head.lstm to its "
                "width"
            )
        return
    if not config.kind.is_lstm or config.direction != "both":
        kind = "a Transformer" if config.has_attention else "an LSTM of one direction"
        raise UserError(
            f"config.cross_view needs two independent LSTM directions, which {kind} does not have; start from a biLM, or from "
            "static vectors with config.head.lstm"
        )
    if frozen:
        raise UserError(
            "config.cross_view trains the lowest layer of the encoder, but config.training.freeze_encoder keeps the encoder "
            "unchanged; leave one of them out"
        )
