"""The layers of a language model of characters, read at the ends of words (Flair; Akbik et al. 2018, "Contextual String
Embeddings for Sequence Labeling", section 2).

The layers are those of `bilm.py`, over a vocabulary of characters. A hidden state concatenates, for every piece of a word, the
forward half at the last piece of the word, which has read the text up to the end of the word, and the backward half at its first
piece, which has read the text after the word and the word. So all pieces of a word have the same hidden state.

Words begin where a table of the vocabulary says so; it is stored with the parameters and never trained. In a vocabulary of
`--train-vocab=characters` the first piece of a word is the space before it, as in the code of the paper. Unlike the paper, both
directions have the same embeddings and softmax, as in ELMo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from bert_jax.model.bilm import BiLstm
from bert_jax.model.layers import Seed, gather_positions, parameter
from bert_jax.model.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bert_jax.data.tokenizers.tokenizer import Tokenizer


class Flair(BiLstm):
    """The stack of LSTM layers in two directions, read at the ends of words. `states` are those of the characters."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "bilm"}
    """`ModelConfig.direction` -> the default objective."""

    def setup(self) -> None:
        """Declares the layers, and the table of the pieces that begin a word."""
        super().setup()
        rows = (self.config.padded_vocab_size,)
        self.word_starts = parameter(self, "word_starts", nn.initializers.ones, (None,), rows)

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (states of the last layer, states of all layers) at the ends of the word of each token."""
        _, layers = self.states(x, tokens, seed)
        first, last = self.word_ends(tokens)
        forward, backward = jnp.split(layers, 2, axis=-1)
        layers = jax.vmap(lambda a, b: jnp.concatenate([gather_positions(a, last), gather_positions(b, first)], axis=-1))(
            forward, backward
        )
        return layers[-1], layers

    def word_ends(self, tokens: Tokens) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
        """Returns the columns of the first and of the last piece of the word of each token. A word does not go beyond its
        text."""
        ids = tokens.sequence_ids
        another = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], axis=1)
        begins = another | (jax.lax.stop_gradient(self.word_starts)[tokens.ids] > 0.5)
        ends = jnp.concatenate([begins[:, 1:], jnp.ones_like(begins[:, :1])], axis=1)
        columns = jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1)
        first = jax.lax.cummax(jnp.where(begins, columns, 0), axis=1)
        last = jax.lax.cummin(jnp.where(ends, columns, ids.shape[1] - 1), axis=1, reverse=True)
        return first, last


def word_starts(tokenizer: Tokenizer, rows: int) -> Float32[np.ndarray, " V"]:
    """Returns 1 for the pieces that begin a word, 0 for those that continue one; float32 [`rows`], 1 beyond the vocabulary. An
    unknown character continues a word where the space before a word is a piece of its own."""
    found = np.ones(rows, np.float32)
    found[: tokenizer.size] = ~tokenizer.continuation_table
    if tokenizer.vocabulary.kind == "sentencepiece":
        found[tokenizer.unk_id] = 0
    return found
