"""Sentence order prediction (ALBERT, arXiv:1909.11942): every pair holds two successive texts, and half of the pairs are swapped.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/sentence_order \
        --config.objective=experiments/extensions/sentence_order.py:SentenceOrder --config.examples.pairs=successive

It replaces next sentence prediction and uses its head: class 1 means that the texts are swapped. With any other setting of
`config.examples.pairs`, random pairs are ignored.
"""

import jax
import jax.numpy as jnp

from bert_jax.objectives.losses import IGNORED
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import another_seed, sampled
from bert_jax.objectives.scores import Score, majority_baseline, sum_formula
from bert_jax.objectives.word_prediction import word_scores


class SentenceOrder(MlmNsp):
    """The mean MLM loss plus the mean loss of the order of the pairs."""

    scores = {
        **word_scores("MLM", "mlm"),
        "SOP loss": Score("nsp_loss", "nsp_examples"),
        "SOP accuracy": Score("nsp_correct", "nsp_examples"),
        "loss": sum_formula("mlm_loss", "sop_loss"),
    }
    baselines = {"SOP accuracy": majority_baseline("swapped", "nsp_examples")}

    def sums(self, params, batch, seed):
        batch = with_orders(batch, seed)
        return super().sums(params, batch, seed) | {"swapped": (batch["nsp_labels"] == 1).sum().astype(jnp.float32)}

    def counts(self, batch):
        return super().counts(batch | {"nsp_labels": jnp.where(batch["nsp_labels"] == 0, 0, IGNORED)})


def with_orders(batch, seed):
    """Swaps the texts of half of the pairs, drawn with the seed, and returns the batch with the labels: 1 = swapped."""
    types, number = batch["token_type_ids"], batch["sequence_ids"]
    in_order = batch["nsp_labels"] == 0
    swapped = in_order & (sampled(jnp.zeros((*in_order.shape, 2)), batch, another_seed(seed, 1)) == 1)  # [B, P]
    in_pair = jax.nn.one_hot(number - 1, in_order.shape[1], dtype=jnp.int32)  # [B, L, P]; all 0 at padding
    second = (in_pair * types[..., None]).sum(1)  # [B, P], the tokens of the second text with its [SEP]
    first = in_pair.sum(1) - second - 1  # [B, P], the tokens of the first text with its [SEP], without [CLS]

    def of_tokens(values):
        return (in_pair * values[:, None]).sum(-1)  # [B, L]

    moves = (of_tokens(swapped) == 1) & (batch["position_ids"] > 0)
    shift = jnp.where(types == 1, -of_tokens(first), of_tokens(second))
    place = jnp.arange(types.shape[1])[None] + jnp.where(moves, shift, 0)
    rows = jnp.arange(len(types))[:, None]
    return batch | {
        "input_ids": batch["input_ids"].at[rows, place].set(batch["input_ids"]),
        "token_type_ids": types.at[rows, place].set(jnp.where(moves, 1 - types, types)),
        "masked_positions": jnp.take_along_axis(place, batch["masked_positions"], axis=1),
        "nsp_labels": jnp.where(in_order, swapped.astype(jnp.int32), IGNORED),
    }
