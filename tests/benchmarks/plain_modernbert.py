"""ModernBERT pretraining in plain JAX with the library's kernel: the reference for `benchmark_tpu_programs.py` on long rows.

The block is transformers' ModernBERT (pre-norm without biases, GeGLU, rotary positions, every third layer full). Attention is
`jax.experimental.pallas.ops.tpu.splash_attention` with a `LocalMask` of 64 tokens on each side and segment ids. Activations are
bfloat16, layers run in a Python loop, dropout after attention comes from the hardware's generator, and the optimizer is
`optax.adamw` without clipping. Every chip has the whole state; rows are spread over all chips. The head computes only the chosen
positions, and its decoder is the embedding table.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Array = jax.Array
Params = dict[str, Any]
BLOCKS = {"full": {1_024: 1_024, 8_192: 1_024}, "sliding": {1_024: 512, 8_192: 256}}
"""The block size of queries and of keys, by the type of the layer and the length of a row: the fastest for v5e according to
`benchmark_long_attention.py`."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The dimensions of ModernBERT-base."""

    vocabulary: int = 50_368
    width: int = 768
    layers: int = 22
    heads: int = 12
    feed_forward: int = 1_152
    every: int = 3
    """Every third layer is full, starting with the first."""
    radius: int = 64
    theta: float = 160_000.0
    sliding_theta: float = 10_000.0
    dropout: float = 0.1
    """The dropout rate after the output of attention."""
    dtype: Any = jnp.bfloat16
    """The type of activations and matrix products; parameters are float32."""

    def kind(self, layer: int) -> str:
        """Returns the type of a layer."""
        return "sliding" if layer % self.every else "full"


def make_params(size: Size, key: Array) -> Params:
    """Returns freshly initialised parameters."""
    d, f = size.width, size.feed_forward
    shapes = {"attention_norm": (d,), "qkv": (d, 3 * d), "out": (d, d), "norm": (d,), "wide": (d, 2 * f), "narrow": (f, d)}
    ends = {"words": (size.vocabulary, d), "words_norm": (d,), "last_norm": (d,), "dense": (d, d), "head_norm": (d,)}
    ends["bias"] = (size.vocabulary,)

    def fresh(name: str, shape: tuple[int, ...], key: Array) -> Array:
        if "norm" in name:
            return jnp.ones(shape)
        return jnp.zeros(shape) if name == "bias" else 0.02 * jax.random.normal(key, shape)

    keys = [jax.random.fold_in(key, n) for n in range(size.layers)]
    layers = [{name: fresh(name, shape, key) for name, shape in shapes.items()} for key in keys]
    return {"layers": layers} | {name: fresh(name, shape, key) for name, shape in ends.items()}


def norm(x: Array, scale: Array) -> Array:
    """Computes LayerNorm without bias, in float32."""
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def turns(positions: Array, theta: float, width: int) -> tuple[Array, Array]:
    """Returns the cosines and sines [B, 1, L, K] of rotary positions, once for all layers of a type."""
    angles = positions[:, None, :, None] / theta ** (jnp.arange(0, width, 2) / width)
    return tuple(jnp.concatenate([f(angles)] * 2, -1) for f in (jnp.cos, jnp.sin))  # type: ignore[return-value]


def rotated(x: Array, turn: tuple[Array, Array]) -> Array:
    """Returns `x` [B, H, L, K] rotated by its positions."""
    first, second = jnp.split(x, 2, -1)
    cos, sin = turn
    return (x * cos + jnp.concatenate([-second, first], -1) * sin).astype(x.dtype)


def kernel(size: Size, kind: str, length: int, block: int | None = None) -> splash.SplashAttentionKernel:
    """Returns the library's kernel for the layers of a type."""
    shape, n = (length, length), block or BLOCKS[kind].get(length, 256)
    mask = splash.FullMask(shape) if kind == "full" else splash.LocalMask(shape, (size.radius, size.radius), 0)
    fields = [field.name for field in dataclasses.fields(splash.BlockSizes) if field.name.startswith("block")]
    sizes = splash.BlockSizes(**dict.fromkeys(fields, n))
    return splash.make_splash_mha_single_device(splash.MultiHeadMask([mask] * size.heads), block_sizes=sizes)


def attention(size: Size, kind: str, mesh: Mesh, q: Array, k: Array, v: Array, ids: Array, block: int | None = None) -> Array:
    """Returns the context [B, H, L, K] of each chip's rows."""

    def local(q: Array, k: Array, v: Array, ids: Array) -> Array:
        return jax.vmap(kernel(size, kind, q.shape[2], block))(q * q.shape[-1] ** -0.5, k, v, splash.SegmentIds(ids, ids))

    rows = PartitionSpec("data")
    return jax.shard_map(local, mesh=mesh, in_specs=(rows,) * 4, out_specs=rows, check_vma=False)(q, k, v, ids)


def logits(size: Size, mesh: Mesh, params: Params, batch: dict[str, Array], key: Array) -> Array:
    """Returns the scores of all words at the chosen positions."""
    dtype, ids = size.dtype, batch["sequence_ids"]
    rows, length = ids.shape
    head_width = size.width // size.heads
    of = {
        kind: turns(batch["positions"], theta, head_width)
        for kind, theta in (("full", size.theta), ("sliding", size.sliding_theta))
    }
    x = norm(params["words"].astype(dtype)[batch["input_ids"]], params["words_norm"])
    for n, layer in enumerate(params["layers"]):
        kind = size.kind(n)
        y = norm(x, layer["attention_norm"]) if n else x
        qkv = (y @ layer["qkv"].astype(dtype)).reshape(rows, length, 3, size.heads, head_width)
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        context = attention(size, kind, mesh, rotated(q, of[kind]), rotated(k, of[kind]), v, ids)
        y = context.swapaxes(1, 2).reshape(x.shape) @ layer["out"].astype(dtype)
        if size.dropout:
            kept = jax.random.bernoulli(jax.random.fold_in(key, n), 1 - size.dropout, y.shape)
            y = jnp.where(kept, y / (1 - size.dropout), 0).astype(dtype)
        x = x + y
        y, gate = jnp.split(norm(x, layer["norm"]) @ layer["wide"].astype(dtype), 2, -1)
        x = x + (jax.nn.gelu(y, approximate=False) * gate) @ layer["narrow"].astype(dtype)
    chosen = jnp.take_along_axis(norm(x, params["last_norm"]), batch["masked_positions"][..., None], axis=1)
    chosen = norm(jax.nn.gelu(chosen @ params["dense"].astype(dtype), approximate=False), params["head_norm"])
    return (chosen @ params["words"].astype(dtype).T).astype(jnp.float32) + params["bias"]


def train_step(size: Size, mesh: Mesh, state: tuple[Params, Any, Array], batch: dict[str, Array], key: Array) -> Any:
    """Updates the whole model once."""
    params, optimizer, step = state

    def loss(params: Params) -> Array:
        scores = logits(size, mesh, params, batch, jax.random.fold_in(key, step))
        words = optax.softmax_cross_entropy_with_integer_labels(scores, batch["masked_targets"])
        return (words * batch["masked_weights"]).sum() / batch["masked_weights"].sum()

    value, grads = jax.value_and_grad(loss)(params)
    updates, optimizer = OPTIMIZER.update(grads, optimizer, params)
    return (optax.apply_updates(params, updates), optimizer, step + 1), value


OPTIMIZER = optax.adamw(8e-4, b1=0.9, b2=0.98, eps=1e-6, weight_decay=1e-5)


def lower(devices: list[Any], rows: int, length: int, predictions: int, size: Size = Size()) -> Any:
    """Lowers the step on `rows` rows over all `devices`, data parallel."""
    mesh = Mesh(np.asarray(devices), ("data",))
    whole, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=spread)

    batch = {name: array(rows, length) for name in ("input_ids", "positions", "sequence_ids")}
    batch |= {name: array(rows, predictions) for name in ("masked_positions", "masked_targets")}
    batch |= {"masked_weights": array(rows, predictions, dtype=jnp.float32)}

    def create(key: Array) -> Any:
        params = make_params(size, key)
        return params, OPTIMIZER.init(params), jnp.zeros((), jnp.int32)

    key = jax.eval_shape(lambda: jax.random.key(0, impl="unsafe_rbg"))
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), jax.eval_shape(create, key))
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
    return jax.jit(functools.partial(train_step, size, mesh), donate_argnums=0).lower(state, batch, key)
