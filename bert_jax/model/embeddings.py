"""Token embeddings, which are the sum of word, position and token-type embeddings, with LayerNorm and dropout (paper section 3,
Figure 2)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Initializer, Norm, Seed, dropout, initializer, parameter, same_shape
from bert_jax.model.positions import acts_on, make_positions
from bert_jax.model.tokens import Tokens


class Embedding(nn.Module):
    """A learned embedding table: `rows` vectors of `width` numbers."""

    rows: int
    width: int
    embedding_init: Initializer
    axes: tuple[str | None, str | None]

    def setup(self) -> None:
        """Declares the table."""
        self.embedding = parameter(self, "embedding", self.embedding_init, self.axes, (self.rows, self.width))

    def __call__(self, ids: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        """Returns the rows of the table at `ids`."""
        return jnp.take(self.embedding, ids, axis=0)


class Embeddings(nn.Module):
    """The normalised sum of the embeddings of each token (three in BERT), in the dtype of the products."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the tables, the positions and the norm."""
        c = self.config
        self.word_embeddings = Embedding(c.padded_vocab_size, c.hidden_size, initializer(c), ("vocab", "embed"))
        self.position_embeddings = make_positions(c)
        if c.type_vocab_size:
            self.token_type_embeddings = Embedding(c.type_vocab_size, c.hidden_size, initializer(c), (None, "embed"))
        if c.embedding_norm:
            self.layer_norm = Norm(c)

    def __call__(
        self, tokens: Tokens, seed: Seed | None, *, untrained_start: bool = False
    ) -> Float[Array, "B L D"]:
        """Returns the normalised sum of the embeddings of each token, with dropout.

        If `untrained_start` is True, the word embedding of the first token of a sequence gets no gradient. In a decoder, this
        token only marks the start of the target. Its embedding is a zero vector in tensor2tensor and Marian. In transformers,
        it is the padding embedding, which is not trained by lookups."""
        c, tokens = self.config, tokens.reading(None)
        x = self.word_embeddings(tokens.ids)
        if untrained_start:
            x = jnp.where((tokens.positions == 0)[:, :, None], jax.lax.stop_gradient(x), x)
        if c.scale_embeddings:
            x = x * np.asarray(math.sqrt(c.hidden_size), x.dtype)
        if acts_on(c, "embeddings"):
            what = f"embeddings of config.model.positions={c.positions}"
            x = same_shape(what, x, self.position_embeddings.embeddings(x, tokens))
        if c.type_vocab_size:
            x += self.token_type_embeddings(tokens.types)
        x = self.layer_norm(x) if c.embedding_norm else x
        x = dropout(x, tokens.dropout(c.hidden_dropout if c.embedding_dropout is None else c.embedding_dropout, seed))
        return nn.with_logical_constraint(x.astype(c.dtype), ("batch", "length", "embed"))


class WordEmbeddings(nn.Module):
    """Word vectors without positions, token types or a LayerNorm. They are the input of an LSTM, or the whole static model."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the table, or the character CNN that replaces it."""
        c = self.config
        if c.character_cnn:
            from bert_jax.model.characters import CharacterCnn

            self.characters = CharacterCnn(c)
            return
        self.word_embeddings = Embedding(c.padded_vocab_size, c.word_width, initializer(c), ("vocab", "embed"))

    def __call__(self, tokens: Tokens, seed: Seed | None) -> Float[Array, "B L D"]:
        """Returns the vector of each token. If there are two directions of width D / 2, both read the same vector, as in
        ELMo."""
        c = self.config
        words = self.characters(tokens.ids) if c.character_cnn else self.word_embeddings(tokens.ids)
        x = jnp.tile(words, c.hidden_size // c.word_width)
        return nn.with_logical_constraint(x.astype(c.dtype), ("batch", "length", "embed"))


def check_ids(config: ModelConfig, **ids: Int[np.ndarray, " ..."] | Int[Array, " ..."]) -> None:
    """Raises UserError for ids outside their tables. The check runs on the host, because compiled code would return NaN without
    an error.

    `ids` are input_ids, token_type_ids and position_ids of any shape, as numpy arrays or concrete jax arrays. Traced arrays are
    not checked.
    """
    limits = {
        "input_ids": (config.vocab_size, "the text was tokenised with a different vocabulary than the model's"),
        "token_type_ids": (
            config.type_vocab_size,
            "the model has fewer token types; add them with python -m bert_jax.convert --token-types=2",
        ),
        "position_ids": (
            config.max_position,
            "the row is longer than the position table: shorten it, or raise model.max_position"
            + ("" if config.positions_kind.is_learned else " (python -m bert_jax.convert --max-position=N)"),
        ),
    }
    if not config.kind.has_positions:  # these models have no other tables
        limits = {"input_ids": limits["input_ids"]}
    if not config.type_vocab_size:
        del limits["token_type_ids"]
    for name, array in ids.items():
        if isinstance(array, jax.core.Tracer) or not array.size or name not in limits:
            continue
        limit, cause = limits[name]
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= limit:
            raise UserError(f"{name} holds {low if low < 0 else high}, outside [0, {limit}): {cause}")
