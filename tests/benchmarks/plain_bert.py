"""BERT pretraining in plain Flax Linen, as one would write it: the reference for `benchmark_tpu_programs.py`.

It uses the library's Dense, LayerNorm, Dropout and softmax attention, bfloat16 activations, a Python loop with one module per
layer, JAX's random keys, and `optax.adamw` with clipping. Every chip has the whole state; rows are spread over all chips. The MLM
head computes only the chosen positions, and its decoder is the embedding table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Size:
    """The dimensions of BERT-Large."""

    vocabulary: int = 30_522
    width: int = 1_024
    layers: int = 24
    heads: int = 16
    feed_forward: int = 4_096
    positions: int = 512
    dropout: float = 0.1
    dtype: Any = jnp.bfloat16
    """The type of activations and matrix products; parameters are float32."""


class Layer(nn.Module):
    size: Size

    @nn.compact
    def __call__(self, x: Array, mask: Array) -> Array:
        s, dtype = self.size, self.size.dtype
        rows, length, width = x.shape

        def project(name: str) -> Array:
            return nn.Dense(width, dtype=dtype, name=name)(x).reshape(rows, length, s.heads, width // s.heads)

        q, k, v = project("query"), project("key"), project("value")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // s.heads) ** 0.5
        weights = nn.softmax(jnp.where(mask, scores.astype(jnp.float32), -1e9)).astype(dtype)
        weights = nn.Dropout(s.dropout, deterministic=False)(weights)
        context = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, length, width)
        y = nn.Dropout(s.dropout, deterministic=False)(nn.Dense(width, dtype=dtype, name="output")(context))
        x = nn.LayerNorm(1e-12, dtype=dtype)(x + y)
        y = nn.gelu(nn.Dense(s.feed_forward, dtype=dtype, name="wide")(x), approximate=False)
        y = nn.Dropout(s.dropout, deterministic=False)(nn.Dense(width, dtype=dtype, name="narrow")(y))
        return nn.LayerNorm(1e-12, dtype=dtype)(x + y)


class PlainBert(nn.Module):
    size: Size

    @nn.compact
    def __call__(self, batch: dict[str, Array]) -> tuple[Array, Array]:
        s, dtype = self.size, self.size.dtype
        ids = batch["input_ids"]
        words = nn.Embed(s.vocabulary, s.width, dtype=dtype, name="words")
        x = words(ids) + nn.Embed(s.positions, s.width, dtype=dtype, name="positions")(jnp.arange(ids.shape[1])[None])
        x = x + nn.Embed(2, s.width, dtype=dtype, name="types")(batch["token_type_ids"])
        x = nn.Dropout(s.dropout, deterministic=False)(nn.LayerNorm(1e-12, dtype=dtype)(x))
        mask = batch["attention_mask"][:, None, None, :] > 0
        for _ in range(s.layers):
            x = Layer(s)(x, mask)
        chosen = jnp.take_along_axis(x, batch["masked_positions"][..., None], axis=1)
        chosen = nn.gelu(nn.Dense(s.width, dtype=dtype, name="transform")(chosen), approximate=False)
        chosen = nn.LayerNorm(1e-12, dtype=dtype)(chosen)
        logits = words.attend(chosen).astype(jnp.float32) + self.param("bias", nn.initializers.zeros, (s.vocabulary,))
        pooled = nn.tanh(nn.Dense(s.width, dtype=dtype, name="pooler")(x[:, 0]))
        return logits, nn.Dense(2, dtype=jnp.float32, name="next_sentence")(pooled)


def train_step(state: TrainState, batch: dict[str, Array], key: Array) -> tuple[TrainState, Array]:
    """Updates the whole model once."""

    def loss(params: Any) -> Array:
        keys = {"dropout": jax.random.fold_in(key, state.step)}
        logits, pairs = state.apply_fn({"params": params}, batch, rngs=keys)
        weights = batch["masked_weights"]
        words = optax.softmax_cross_entropy_with_integer_labels(logits, batch["masked_targets"])
        next_sentence = optax.softmax_cross_entropy_with_integer_labels(pairs, batch["nsp_labels"])
        return (words * weights).sum() / weights.sum() + next_sentence.mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def lower(devices: list[Any], rows: int, length: int, predictions: int, size: Size = Size()) -> Any:
    """Lowers the step on `rows` rows over all `devices`, data parallel."""
    mesh = Mesh(devices, ("data",))
    whole, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=spread)

    batch = {name: array(rows, length) for name in ("input_ids", "token_type_ids", "attention_mask")}
    batch |= {name: array(rows, predictions) for name in ("masked_positions", "masked_targets")}
    batch |= {"masked_weights": array(rows, predictions, dtype=jnp.float32), "nsp_labels": array(rows)}
    model = PlainBert(size)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))

    def create(key: Array, batch: dict[str, Array]) -> TrainState:
        params = model.init({"params": key, "dropout": key}, batch)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(create, key, batch)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), state)
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
    return jax.jit(train_step, donate_argnums=0).lower(state, batch, key)
