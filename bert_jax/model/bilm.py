"""The layers of a bidirectional LSTM language model (ELMo; Peters et al., arXiv:1802.05365, section 3.1, and TagLM before it).

Two independent LSTMs read every text, one from left to right and one from right to left. The hidden state of a token
concatenates two halves. The forward half has read the text from the start to this token, and the backward half has read the
text from the end to this token. Token t is predicted from the forward half at t - 1 and from the backward half at t + 1, with a
shared softmax over words.

As in ELMo, both halves of hidden state 0 are the word vector, and outputs are projected to the width of the word vectors. There
is a residual connection from the second layer on. Dropout is applied before every layer and before the softmax. Unlike in ELMo,
cell and projection are not clipped at 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import WholeRows, unstack
from bert_jax.model.layers import Dropout, Seed, dense, dropout, hash_word, layer_parameters, named, truncated_normal
from bert_jax.model.lstm import Direction, batch_major, carried, recurrence, time_major
from bert_jax.model.tokens import Tokens


class BiLstm(WholeRows):
    """The stack of LSTM layers. Left-to-right models have one direction, and other models have two.

    Parameters are stacked along a leading axis N, as in `Encoder`. A list of layers (`unstacked_layers`) is also accepted.
    """

    objectives: ClassVar[Mapping[str, str]] = {"both": "bilm", "left_to_right": "next_token"}
    is_residual: ClassVar[bool] = True
    """Whether each layer's input is added to its output, from the second layer on."""

    @classmethod
    def products(cls, config: ModelConfig, length: int) -> int | None:
        """Returns L N R ((I + W) 4 F + F W) for gates and projection, for L tokens and R directions of width W. There is no
        projection if the width F of a cell equals W. I is the width of the input of a direction: W, and D in CoVe. Characters
        add L times `character_products`."""
        width, half, cell = config.word_width, config.direction_width, config.intermediate_size
        projection = 0 if cell == half else cell * half
        directions = config.hidden_size // half
        layers = directions * length * config.num_layers * ((width + half) * 4 * cell + projection)
        if not config.character_cnn:
            return layers
        from bert_jax.model.characters import character_products

        return length * character_products(width) + layers

    def setup(self) -> None:
        """Declares the stacked parameters of all layers, or uses the given list of layers."""
        layers = layer_parameters(self, initial_lstm_layers, self.config)
        self.is_unstacked = isinstance(layers, list)  # `unstacked_layers` returns a list; flax stores it as a tuple
        self.layers = layers

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (output of the last layer, outputs of all layers)."""
        return self.states(x, tokens, seed)

    def states(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (output of the last layer, outputs of all layers) at every token. The neighbouring tokens are predicted from
        these outputs."""
        outputs: list[Array] = []
        for n, one in enumerate(self.layers if self.is_unstacked else unstack(self.layers)):
            with jax.named_scope("layers"):
                y = lstm_layer(one, self._dropped(x, tokens, seed, n), tokens.sequence_ids, self.config)
                x = x + y if n and self.is_residual else y
            outputs.append(x)
        return x, jnp.stack(outputs)

    def _dropped(self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, layer: int) -> Float[Array, "B L D"]:
        seed = None if seed is None else hash_word(seed + np.uint32(layer + 1))
        return dropout(x, Dropout(self.config.hidden_dropout, seed, rows=tokens.rows))


def initial_lstm_layers(key: Key[Array, ""], config: ModelConfig) -> Mapping[str, Any]:
    """Initialises the parameters of every layer, boxed with their axis names and stacked along a leading axis "layers".

    Kernels have a standard deviation of 1 / sqrt(number of inputs). If the cell is as wide as the output, there is no
    projection. Each direction reads a whole word vector as its input."""
    inputs, w, cell = config.word_width, config.direction_width, config.intermediate_size
    directions = config.hidden_size // w

    def initial(key: Key[Array, ""]) -> Mapping[str, Any]:
        of_input, of_recurrence, of_projection = jax.random.split(key, 3)
        first, kernel = (named(truncated_normal(n**-0.5), None, "embed", None, None, product=(1, 2)) for n in (inputs, w))
        bias = named(nn.initializers.zeros, None, None, None)
        found: dict[str, Any] = {
            "input": {"kernel": first(of_input, (directions, inputs, 4, cell)), "bias": bias(key, (directions, 4, cell))},
            "recurrence": {"kernel": kernel(of_recurrence, (directions, w, 4, cell))},
        }
        if cell != w:
            project = named(truncated_normal(cell**-0.5), None, None, "embed", product=(1, 1))
            found["projection"] = {"kernel": project(of_projection, (directions, cell, w))}
        return found

    boxed = jax.vmap(initial)(jax.random.split(key, config.num_layers))
    return nn.meta.add_axis(boxed, 0, {nn.PARTITION_NAME: "layers"})


def lstm_layer(
    params: Mapping[str, Any], x: Float[Array, "B L D"], sequence_ids: Int[Array, "B L"], config: ModelConfig
) -> Float[Array, "B L D"]:
    """Computes the outputs of one layer. Each direction reads its own part of `x`, or all of `x` if word vectors are as wide as
    `x`. States are reset where `sequence_ids` change."""
    w, half, dtype = config.word_width, config.direction_width, jnp.dtype(config.dtype)
    parts = jnp.split(x, config.hidden_size // w, axis=-1)
    directions = []
    for n, part in enumerate(parts * (config.hidden_size // half // len(parts))):
        inputs = time_major(part, n)  # transposed before the product, since the result is wider
        kernel, bias = params["input"]["kernel"][n].reshape(w, -1), params["input"]["bias"][n].reshape(-1)
        products = dense(inputs.reshape(-1, w).astype(dtype), kernel.astype(dtype), bias.astype(dtype), config.target.one_cpu)
        directions.append(
            Direction(
                products.astype(jnp.float32).reshape(*inputs.shape[:2], -1),
                carried(time_major(sequence_ids, n)),
                params["recurrence"]["kernel"][n].reshape(half, -1).astype(dtype),
                params["projection"]["kernel"][n].astype(dtype) if "projection" in params else None,
            )
        )
    outputs = [batch_major(h, n) for n, h in enumerate(recurrence(tuple(directions)))]
    return nn.with_logical_constraint(jnp.concatenate(outputs, axis=-1).astype(x.dtype), ("batch", "length", "embed"))


def backward_positions(
    positions: Int[Array, "B M"], sequence_ids: Int[Array, "B L"]
) -> tuple[Int[Array, "B M"], Bool[Array, "B M"]]:
    """Returns (backward positions, whether they are valid) for the tokens that the forward LSTM predicts from `positions`. The
    forward LSTM predicts token p + 1 from position p, and the backward LSTM predicts the same token from position p + 2. A
    position is valid if it holds a token of the same text."""
    length = sequence_ids.shape[1]
    after = jnp.minimum(positions + 2, length - 1)
    ids = [jnp.take_along_axis(sequence_ids, at, axis=1) for at in (positions, after)]
    return after, (positions + 2 < length) & (ids[0] == ids[1])
