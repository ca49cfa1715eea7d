"""The embeddings of tokens: word + position + token-type embeddings, LayerNorm, dropout (paper section 3, Figure 2); the table of
sinusoidal positions."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from bert_jax.errors import UserError
from bert_jax.model.characters import CharacterCnn
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Dropout, LayerNorm, Seed, dropout, parameter, truncated_normal


class Table(nn.Module):
    """A learned embedding table: `rows` vectors of `width` numbers."""

    rows: int
    width: int
    stddev: float
    axes: tuple[str | None, str | None]

    def setup(self) -> None:
        """Declares the table."""
        self.embedding = parameter(self, "embedding", truncated_normal(self.stddev), self.axes, (self.rows, self.width))

    def __call__(self, ids: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        """The rows of the table at `ids`."""
        return jnp.take(self.embedding, ids, axis=0)


class Embeddings(nn.Module):
    """The sum of three embeddings of every token, normalised, in the dtype of the products."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the three tables and their LayerNorm."""
        c = self.config
        self.word_embeddings = Table(c.padded_vocab_size, c.hidden_size, c.initializer_range, ("vocab", "embed"))
        if c.positions == "learned":
            self.position_embeddings = Table(c.max_position, c.hidden_size, c.initializer_range, (None, "embed"))
        self.token_type_embeddings = Table(c.type_vocab_size, c.hidden_size, c.initializer_range, (None, "embed"))
        self.layer_norm = LayerNorm(c.layer_norm_epsilon)

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"],
        position_ids: Int[Array, "B L"],
        seed: Seed | None,
    ) -> Float[Array, "B L D"]:
        """The sum of the three embeddings of each token, normalised and dropped out."""
        c = self.config
        x = self.word_embeddings(input_ids)
        if c.positions == "learned":
            x += self.position_embeddings(position_ids)
        elif c.positions == "sinusoidal":
            x += jnp.take(jnp.asarray(sinusoids(c.max_position, c.hidden_size)), position_ids, axis=0)
        x += self.token_type_embeddings(token_type_ids)
        x = dropout(self.layer_norm(x), Dropout(c.hidden_dropout, seed))
        return nn.with_logical_constraint(x.astype(c.dtype), ("batch", "length", "embed"))


class WordEmbeddings(nn.Module):
    """A vector for each token, without position, token type or LayerNorm: the input of a bidirectional LSTM, and all there is of
    a static model."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the table, or the convolutions over characters in its place."""
        c = self.config
        if c.character_cnn:
            self.characters = CharacterCnn(c)
            return
        self.word_embeddings = Table(c.padded_vocab_size, c.word_width, c.initializer_range, ("vocab", "embed"))

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"],
        position_ids: Int[Array, "B L"],
        seed: Seed | None,
    ) -> Float[Array, "B L D"]:
        """The vector of each token, once for each direction: twice where two directions have half of D, as in ELMo."""
        c = self.config
        words = self.characters(input_ids) if c.character_cnn else self.word_embeddings(input_ids)
        x = jnp.tile(words, c.hidden_size // c.word_width)
        return nn.with_logical_constraint(x.astype(c.dtype), ("batch", "length", "embed"))


def sinusoids(positions: int, width: int) -> Float32[np.ndarray, "{positions} {width}"]:
    """The sinusoidal position embeddings of "Attention Is All You Need" (section 3.5), divided by sqrt(`width`).

    Row p holds sin(p / 10000^(2 i / width)) in column 2 i and the cosine of it in column 2 i + 1. That paper multiplies the word
    embeddings by sqrt(width) instead (section 3.4), which is the same after the LayerNorm of the sum and leaves the tied decoder
    as BERT has it; undivided, the sinusoids would be 35 times as large as word embeddings of deviation 0.02. Computed in float64
    and a constant of the compiled program: 1.5 MB for 512 x 768.
    """
    even = np.arange(0, width, 2)
    angles = np.arange(positions)[:, None] / 10_000.0 ** (even / width)
    table = np.empty((positions, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : width // 2]
    return (table / np.sqrt(width)).astype(np.float32)


def fixed_positions(config: ModelConfig) -> Float32[np.ndarray, "S D"]:
    """The position table of a model that does not learn one: `sinusoids` or zeros."""
    if config.positions == "sinusoidal":
        return sinusoids(config.max_position, config.hidden_size)
    return np.zeros((config.max_position, config.hidden_size), np.float32)


def check_ids(config: ModelConfig, **ids: Int[np.ndarray, " ..."] | Int[Array, " ..."]) -> None:
    """Raises UserError for ids outside their tables. The check runs on the host: in compiled code such ids give NaN, no error.

    `ids` are input_ids, token_type_ids and position_ids of any shape, as numpy or concrete jax arrays; traced arrays are not
    checked. The error names the id, the size of the table and the likely cause.
    """
    limits = {
        "input_ids": (config.vocab_size, "the text was tokenised with another vocabulary than the model's"),
        "token_type_ids": (
            config.type_vocab_size,
            "the model was made with fewer token types; python -m bert_jax.convert --token-types=2 adds them",
        ),
        "position_ids": (
            config.max_position,
            "the row is longer than the position table: shorten it, or raise model.max_position"
            + ("" if config.positions == "learned" else " (python -m bert_jax.convert --max-position=N)"),
        ),
    }
    if config.encoder != "transformer":  # no other tables
        limits = {"input_ids": limits["input_ids"]}
    for name, array in ids.items():
        if isinstance(array, jax.core.Tracer) or not array.size or name not in limits:
            continue
        limit, cause = limits[name]
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= limit:
            raise UserError(f"{name} holds {low if low < 0 else high}, outside [0, {limit}): {cause}")
