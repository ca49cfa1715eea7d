"""Features that task heads can read instead of the last layer and the pooler. They are other layers, weighted averages of
layers, and means over tokens."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.layers import gather_positions, parameter


def chosen_layers(
    last: Float[Array, "B L D"], hidden_states: Float[Array, "S B L D"], layers: str
) -> Float[Array, "B L I"]:
    """Returns the features of every token for a value of `TaskHead.layers` that has no trained weights. The values are from
    Table 7 of the paper and from CoVe.

    "all_sum" is the sum of the N layers, without the embeddings. Sums are float32.
    """
    match layers:
        case "last":
            return last
        case "second_to_last":
            return hidden_states[-2]
        case "embeddings":
            return hidden_states[0]
        case "last_four_sum":
            return hidden_states[-4:].astype(jnp.float32).sum(0)
        case "all_sum":
            return hidden_states[1:].astype(jnp.float32).sum(0)
        case "last_four_concat":
            return jnp.concatenate(list(hidden_states[-4:]), axis=-1)
        case "embeddings_and_last":
            return jnp.concatenate([hidden_states[0], last], axis=-1)
    raise ValueError(f"layers={layers!r} is unknown, or has trained weights (see LayerMix)")


class LayerMix(nn.Module):
    """The scalar mix of ELMo: gamma * sum of softmax(weights)_j h_j over `count` hidden states, float32 (arXiv:1802.05365,
    equation 1). Its initial value is the mean of the hidden states."""

    count: int

    @nn.compact
    def __call__(self, states: Float[Array, "S B L D"]) -> Float[Array, "B L D"]:
        """Returns the weighted sum of `states`."""
        weights = parameter(self, "weights", nn.initializers.zeros, (None,), (self.count,))
        gamma = parameter(self, "gamma", nn.initializers.ones, (), ())
        shares = gamma * jax.nn.softmax(weights)
        return jnp.einsum("S,SBLD->BLD", shares, states.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def over_words(
    layer: Callable[[Float[Array, "B L I"], Int[Array, "B L"]], Float[Array, "B L O"]],
    x: Float[Array, "B L I"],
    sequence_ids: Int[Array, "B L"],
    first: Int[Array, "B L"],
) -> Float[Array, "B L O"]:
    """Applies `layer` (a function of features and sequence ids) to words instead of pieces. `layer` reads the features at the
    first piece of each word, and all pieces of a word get the word's output. `first` holds, for each token, the column of the
    first piece of its word."""
    begins = first == jax.lax.broadcasted_iota(jnp.int32, first.shape, 1)
    columns = jnp.argsort(~begins, axis=1, stable=True).astype(jnp.int32)
    is_word = jnp.take_along_axis(begins, columns, axis=1)
    ids = jnp.where(is_word, jnp.take_along_axis(sequence_ids, columns, axis=1), 0)
    words = layer(gather_positions(x, columns), ids)
    return gather_positions(words, jnp.cumsum(begins, axis=1, dtype=jnp.int32) - 1)


def mean_pooling(x: Float[Array, "B L I"], sequence_ids: Int[Array, "B L"], texts: int) -> Float[Array, "B {texts} I"]:
    """Returns the mean over the tokens of each text, float32. The tokens of text p have sequence id p + 1. The means of empty
    slots are zero."""

    def mean(x: Float[Array, "L I"], ids: Int[Array, " L"]) -> Float[Array, "P I"]:
        sums, counts = (jax.ops.segment_sum(y, ids, texts + 1)[1:] for y in (x, jnp.ones_like(x[:, :1])))  # padding is segment 0
        return sums / jnp.maximum(counts, 1.0)

    return jax.vmap(mean)(x.astype(jnp.float32), sequence_ids)
