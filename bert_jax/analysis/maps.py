"""Computes the attention between words, and word vectors, in compiled functions.

Batches come from `prediction/packing.py` and have the columns of `Window.item`. A word is stored at the column of its first
token. Attention between words therefore is [Z, Z], where Z is the number of tokens in a row. Columns without a word are
empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from bert_jax.analysis.windows import Kind
from bert_jax.data import DECODER
from bert_jax.model.bert import Bert, attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder_decoder import attention_maps
from bert_jax.model.tokens import Batch, Tokens
from bert_jax.prediction.engine import compiled

Params = Mapping[str, PyTree[jax.Array]]
PREDICTED = "predicted_"
"""The prefix of the arrays that describe the tokens predicted by a decoder."""


@flax.struct.dataclass
class Slots:
    """The words of each row at the columns of their first tokens."""

    members: Float[Array, "B L Z"]
    """1 if token l is a piece of word z, otherwise 0."""
    sequence: Int[Array, "B Z"]
    """The index of the word's text in the batch, from 1; 0 for an empty column."""
    number: Int[Array, "B Z"]
    """The index of the word in its text; [CLS] has index 0."""
    kind: Int[Array, "B Z"]
    """The word's `Kind`; PADDING for an empty column."""

    @property
    def is_word(self) -> Bool[Array, "B Z"]:
        """Whether a column has a word or a punctuation mark, and not [CLS] or [SEP]."""
        return (self.kind == Kind.WORD.value) | (self.kind == Kind.PUNCTUATION.value)

    @property
    def together(self) -> Bool[Array, "B Z Z"]:
        """Whether two words are in the same text."""
        return (self.sequence[:, :, None] == self.sequence[:, None, :]) & (self.sequence > 0)[:, :, None]


def word_slots(batch: Batch, in_words: bool = True) -> Slots:
    """Returns the words of a batch. If `in_words` is False, each piece counts as a word."""
    sequences, positions = batch["sequence_ids"], batch["position_ids"]
    numbers = batch["words"] if in_words else positions
    columns = jnp.broadcast_to(jnp.arange(sequences.shape[1], dtype=jnp.int32)[None], sequences.shape)
    follows = (numbers[:, 1:] == numbers[:, :-1]) & (sequences[:, 1:] == sequences[:, :-1])
    first = jnp.concatenate([jnp.ones_like(follows[:, :1]), ~follows], axis=1)
    own = jax.lax.cummax(columns * first, axis=1)
    members = (own[:, :, None] == columns[:, None, :]) & (sequences > 0)[:, :, None]
    return Slots(
        members=members.astype(jnp.float32),
        sequence=jnp.where(first, sequences, 0),
        number=numbers,
        kind=jnp.where(first, batch["kinds"], Kind.PADDING.value),
    )


def between_words(weights: Float[Array, "B H Q L"], slots: Slots, to: Slots | None = None) -> Float[Array, "B H _ Z"]:
    """Returns the attention [from, to] between words. The weights are summed over the pieces of the attended word and averaged
    over the pieces of the attending word, so the weights of an attending word sum to 1. Empty columns are 0. If `to` is None,
    the attended words are also the words of `slots`."""
    exact = jax.lax.Precision.HIGHEST
    shares = slots.members / jnp.maximum(slots.members.sum(1, keepdims=True), 1.0)
    to_words = jnp.einsum("BHQL,BLZ->BHQZ", weights, (to or slots).members, precision=exact)
    return jnp.einsum("BLQ,BHLZ->BHQZ", shares, to_words, precision=exact)


def from_chosen_words(
    weights: Float[Array, "B H Q L"], slots: Slots, rows: Int[Array, " X"], columns: Int[Array, " X"]
) -> Float[Array, "X H Z"]:
    """Returns the result of `between_words` for some attending words only, [query, head, to]. Query x is the word at row
    `rows[x]` and column `columns[x]`."""
    exact = jax.lax.Precision.HIGHEST
    shares = slots.members[rows, :, columns]
    of_row = jax.nn.one_hot(rows, weights.shape[0])
    shares = of_row[:, :, None] * (shares / jnp.maximum(shares.sum(1, keepdims=True), 1.0))[:, None]
    attention = jnp.einsum("XBQ,BHQL->XHL", shares, weights, precision=exact)
    return jnp.einsum("XBHL,BLZ->XHZ", of_row[:, :, None, None] * attention[:, None], slots.members, precision=exact)


def layer_maps(params: Params, batch: Batch, slots: Slots, config: ModelConfig, in_words: bool) -> list[Float[Array, "B H Z Z"]]:
    """Returns the attention of each layer between words, or between pieces if `in_words` is False, float32. Between pieces,
    padding attends to padding."""
    weights = attention_weights(params, config, Tokens.of(batch))
    return [between_words(layer, slots) for layer in weights] if in_words else list(weights)


def word_vectors(
    params: Params, batch: Batch, slots: Slots, config: ModelConfig, layers: Sequence[int]
) -> Float[Array, "S B Z D"]:
    """Returns the word vectors of each of `layers`, float32. The vector of a word is the mean over its pieces. Empty columns
    are 0.

    Layer 0 is the embeddings, including position and LayerNorm. Layer N is the output of the last layer.
    """
    hidden: Any
    _, hidden = Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")
    chosen = jnp.stack([hidden[layer].astype(jnp.float32) for layer in layers])
    shares = slots.members / jnp.maximum(slots.members.sum(1, keepdims=True), 1.0)
    return jnp.einsum("SBLD,BLZ->SBZD", chosen, shares, precision=jax.lax.Precision.HIGHEST)


@compiled
def first_row(params: Params, batch: Batch, *, config: ModelConfig) -> tuple[Float[Array, "N H L L"], Float[Array, "N H Z Z"]]:
    """Returns (attention weights between the tokens, attention weights between the words) of the first row of the batch,
    float32."""
    weights = attention_weights(params, config, Tokens.of(batch))
    slots = word_slots(batch)
    pieces = jnp.stack([layer[0] for layer in weights])
    return pieces, jnp.stack([between_words(layer, slots)[0] for layer in weights])


@compiled
def first_pair(
    params: Params, batch: Batch, *, config: ModelConfig
) -> tuple[tuple[Float[Array, "N H _ _"], Float[Array, "N H _ _"]], ...]:
    """Returns the attention weights of the first pair of the batch, as `first_row` does. There are three results: the attention
    in the encoder, in the decoder, and from the decoder to the encoder.

    In `batch`, the arrays of the target have the prefix DECODER. The arrays of the tokens that the decoder predicts have the
    prefix PREDICTED."""
    source, read, predicted = (
        word_slots({name: batch[f"{prefix}{name}"] for name in ("sequence_ids", "position_ids", "words", "kinds")})
        for prefix in ("", DECODER, PREDICTED)
    )
    sides = ((source, source), (read, read), (predicted, source))
    return tuple(
        (jnp.stack([layer[0] for layer in part]), jnp.stack([between_words(layer, *words)[0] for layer in part]))
        for part, words in zip(attention_maps(params, config, batch), sides, strict=True)
    )
