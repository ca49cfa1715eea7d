"""The layers of a character language model, read at the ends of words (Flair; Akbik et al. 2018, "Contextual String Embeddings
for Sequence Labeling", section 2).

The layers are the same as in `bilm.py`, over a vocabulary of characters. All pieces of a word have the same hidden state, which
concatenates two halves. The forward half is taken at the last piece of the word, after reading the text up to the end of the
word. The backward half is taken at the first piece, after reading the rest of the text back to the start of the word.

A table marks the pieces of the vocabulary that start a word. The table is stored with the parameters and never trained. In a
vocabulary made by `--train-vocab=characters`, the first piece of a word is the space before it, as in the paper's code. Unlike
in the paper, both directions share their embeddings and softmax, as in ELMo."""

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
    """The stack of LSTM layers in two directions, read at the ends of words. `states` returns the states at the characters."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "bilm"}

    def setup(self) -> None:
        """Declares the layers, and the table of the pieces that start a word."""
        super().setup()
        rows = (self.config.padded_vocab_size,)
        self.word_starts = parameter(self, "word_starts", nn.initializers.ones, (None,), rows)

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (states of the last layer, states of all layers). All tokens of a word have the same state. It is the forward
        half at the last piece of the word, and the backward half at the first piece."""
        _, layers = self.states(x, tokens, seed)
        first, last = self.word_ends(tokens)
        forward, backward = jnp.split(layers, 2, axis=-1)
        layers = jax.vmap(lambda a, b: jnp.concatenate([gather_positions(a, last), gather_positions(b, first)], axis=-1))(
            forward, backward
        )
        return layers[-1], layers

    @classmethod
    def vocabulary_tables(cls, tokenizer: Tokenizer | None, rows: int) -> Mapping[str, np.ndarray]:
        """Returns the table of the pieces that start a word."""
        assert tokenizer is not None, "a corpus opened from a directory has a tokenizer"
        return {"word_starts": word_starts(tokenizer, rows)}

    def word_ends(self, tokens: Tokens) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
        """Returns, for each token, the columns of the first and the last piece of its word. Words do not extend across texts."""
        ids = tokens.sequence_ids
        another = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], axis=1)
        begins = another | (jax.lax.stop_gradient(self.word_starts)[tokens.ids] > 0.5)
        ends = jnp.concatenate([begins[:, 1:], jnp.ones_like(begins[:, :1])], axis=1)
        columns = jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1)
        first = jax.lax.cummax(jnp.where(begins, columns, 0), axis=1)
        last = jax.lax.cummin(jnp.where(ends, columns, ids.shape[1] - 1), axis=1, reverse=True)
        return first, last


def word_starts(tokenizer: Tokenizer, rows: int) -> Float32[np.ndarray, " V"]:
    """Returns the table of word starts, float32 [`rows`]. It is 1 for the pieces that start a word, 0 for the pieces that
    continue a word, and 1 for rows beyond the vocabulary. In a vocabulary where the space before a word is a separate piece, an
    unknown character continues a word."""
    found = np.ones(rows, np.float32)
    found[: tokenizer.size] = ~tokenizer.continuation_table
    if tokenizer.vocabulary.kind == "sentencepiece":
        found[tokenizer.unk_id] = 0
    return found
