"""The small parts every block shares: named initialisers, Dense, LayerNorm, GELU and dropout.

Axis letters, here and in every einsum of this folder:

    B row   L length   T length (of the keys)   D model width   H heads   K head width   F feed-forward width
    V vocabulary   P packed examples of a row   M predicted positions of a row   N layers

The model names its axes (`"embed"`, `"heads"`, ...) and never sees a mesh: `bert_jax/sharding/rules.py` says where each
name goes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.products import affine, platform
from bert_jax.sharding.rules import first_row

Array = jax.Array


def truncated_normal(stddev: float) -> Callable:
    """TensorFlow 1's `truncated_normal_initializer(stddev)`: cut at two deviations, and not rescaled to make up for the cut."""

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return init


def named(init: Callable, *axes: str | None) -> Callable:
    """An initialiser whose parameter carries one logical axis name per dimension."""
    return nn.with_logical_partitioning(init, axes)


class Dense(nn.Module):
    """y = x W + b over the last axes of `x`, with any number of output axes.

    kernel [*in_shape, *out_shape] and bias [*out_shape] are float32; the product runs in `dtype`. With `activation`, that
    function of `x` is multiplied. On a TPU it is computed again in the backward pass and not kept: XLA then computes it on the
    way into both products that read it, and derives it on the way out of the third, where writing it down takes more than either
    (BERT-Large, 8,192 tokens on a v5e: 0.41 and 0.51 ms beside 0.37 of a product).
    """

    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    stddev: float
    dtype: jnp.dtype
    activation: str = ""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """x [..., *in_shape] -> [..., *out_shape]."""
        kernel = self.param("kernel", named(truncated_normal(self.stddev), *self.axes), (*self.in_shape, *self.out_shape))
        bias = self.param("bias", named(nn.initializers.zeros, *self.axes[len(self.in_shape) :]), self.out_shape)
        width_in, width_out = math.prod(self.in_shape), math.prod(self.out_shape)
        batch_shape = x.shape[: x.ndim - len(self.in_shape)]
        product: Callable[[Array, Array, Array], Array] = affine
        if self.activation:
            product = functools.partial(activated_affine, activation(self.activation))
            product = jax.checkpoint(product) if platform() == "tpu" else product
        y = product(
            x.reshape(-1, width_in).astype(self.dtype),
            kernel.reshape(width_in, width_out).astype(self.dtype),
            bias.reshape(width_out).astype(self.dtype),
        )
        return y.reshape(*batch_shape, *self.out_shape)


def activated_affine(function: Callable[[Array], Array], x: Array, kernel: Array, bias: Array) -> Array:
    """`affine` of a function of x."""
    return affine(function(x), kernel, bias)


def gather_positions(x: Array, positions: Array) -> Array:
    """x [B, L, D] at `positions` int32 [B, M] -> [B, M, D]."""
    return jnp.take_along_axis(x, positions[:, :, None], axis=1)


def spread(x: Array, leading: int) -> Array:
    """`x` with `leading` axes of size one in front: the broadcast that rank promotion would do unasked."""
    return x.reshape((1,) * leading + x.shape)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis: float32 statistics in two passes (epsilon is 1e-12: a one-pass variance would not
    survive it)."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """x [..., D] -> [..., D], of x's dtype."""
        return normalise(x, *norm_parameters(self, x.shape[-1]), self.epsilon)


def norm_parameters(module: nn.Module, width: int) -> tuple[Array, Array]:
    """The scale and bias float32 [width] of a LayerNorm, as parameters of `module`."""
    scale = module.param("scale", named(nn.initializers.ones, "norm"), (width,))
    return scale, module.param("bias", named(nn.initializers.zeros, "norm"), (width,))


def normalise(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    """x [..., D], scale and bias [D] -> [..., D] in the dtype of x."""
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    deviation = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    leading = x.ndim - 1
    return (centred * deviation * spread(scale, leading) + spread(bias, leading)).astype(x.dtype)


def activation(name: str) -> Callable[[Array], Array]:
    """The feed-forward non-linearity by its name in `ModelConfig.activation`."""
    functions: dict[str, Callable[[Array], Array]] = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": jax.nn.relu}
    return functions[name]


@jax.custom_vjp
def gelu(x: Array) -> Array:
    """x Phi(x), exact, in the dtype of x. Keeps x alone for the backward pass, which computes erf again: arithmetic is cheaper
    than the traffic.

    The arithmetic is in float32 whatever x is: in bfloat16 0.5 + 0.5 erf cancels to 0 from -3.4 on. Inside a fusion that takes no
    time, since TPUs (v5e's estimated cycles are the same) and CPUs widen bfloat16 for arithmetic anyway.
    """
    wide = x.astype(jnp.float32)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


def _normal_cdf(x: Array) -> Array:
    return 0.5 + 0.5 * jax.lax.erf(x * np.asarray(1 / math.sqrt(2), x.dtype))


def _gelu_backward(x: Array, g: Array) -> tuple[Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) * np.asarray(1 / math.sqrt(2 * math.pi), np.float32)
    return ((g.astype(jnp.float32) * (_normal_cdf(wide) + wide * density)).astype(x.dtype),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of GELU in the dtype of x, computed in float32 as `gelu` is, and for the same reason."""
    return jax.nn.gelu(x, approximate=True) if x.dtype == jnp.float32 else _narrow_gelu_tanh(x)


@jax.custom_vjp
def _narrow_gelu_tanh(x: Array) -> Array:
    return jax.nn.gelu(x.astype(jnp.float32), approximate=True).astype(x.dtype)


def _narrow_gelu_tanh_backward(x: Array, g: Array) -> tuple[Array]:
    _, pull = jax.vjp(lambda x: jax.nn.gelu(x, approximate=True), x.astype(jnp.float32))
    return (pull(g.astype(jnp.float32))[0].astype(x.dtype),)


_narrow_gelu_tanh.defvjp(lambda x: (_narrow_gelu_tanh(x), x), _narrow_gelu_tanh_backward)


def random_words(seed: Array, shape: tuple[int, ...], positions: Array | None = None) -> Array:
    """Random uint32 [*shape] as a pure function of (`seed` uint32 scalar, index): counter-based, so nothing is stored.

    Each row of the last axis gets a base word, mixed from the seed and the row's index; each element mixes its base and its
    column once more, with two rounds of multiply and xor-shift (constants of Wellons' `lowbias32`). JAX's generators cost
    several times as much per word and cannot be fused into the code that uses the bits, so a mask the size of the attention
    matrix would travel through memory; this one is about eight instructions that the compiler fuses, in the backward pass
    as well. Dropout needs bits that look independent, not unpredictable ones: the tests check rate, neighbours and layers.

    `positions` int32 [B, Q] says which rows of a whole [B, ..., L, C] these [B, ..., Q, C] are: they get the words they have
    there.
    """
    base = row_words(seed, shape[:-1], positions)
    return mix(base[..., None] + jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1) * COLUMN)


COLUMN = np.uint32(0x9E3779B9)
"""What each further column adds to the base word of its row, before they are mixed."""


def row_words(
    seed: Array, shape: tuple[int, ...], positions: Array | None = None, first: tuple[Array, ...] | None = None
) -> Array:
    """The base words of `random_words`, uint32 [*shape].

    One axis of the index is folded in at a time, so an index beyond 2**32 (a pod's batch) does not wrap. `first` is the index of
    the first element at hand along the leading axes, if it is not that of the rows that a device holds.
    """
    first = (jnp.uint32(first_row(shape[0])),) if first is None else first
    word = jnp.broadcast_to(seed, shape)
    for axis in range(len(shape)):
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index + first[axis] if axis < len(first) else index
        if positions is not None and axis == len(shape) - 1:
            index = positions.astype(jnp.uint32).reshape(len(positions), *(1,) * (len(shape) - 2), -1)
        word = mix(word + index * np.uint32(0x85EBCA6B) + np.uint32(axis + 1))
    return mix(jnp.broadcast_to(seed, shape) ^ word)


def mix(word: Array) -> Array:
    """A bijection of uint32 whose output bits each depend on every input bit."""
    word = (word ^ (word >> 16)) * np.uint32(0x21F0AAAD)
    word = (word ^ (word >> 15)) * np.uint32(0xD35A2D97)
    return word ^ (word >> 15)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _dropout(x: Array, rate: float, seed: Array, positions: Array | None) -> Array:
    kept = random_words(seed, x.shape, positions) >= np.uint32(round(rate * 2**32))
    return jnp.where(kept, x * np.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


# The backward pass is the same function of the gradient: the mask is drawn again from the seed instead of being kept.
_dropout.defvjp(
    lambda x, rate, seed, positions: (_dropout(x, rate, seed, positions), (seed, positions)),
    lambda rate, drawn, g: (_dropout(g, rate, *drawn), None, None),
)


def dropout(x: Array, rate: float, seed: Array | None, positions: Array | None = None) -> Array:
    """Sets each element to zero with probability `rate` and scales the rest by 1 / (1 - rate); `seed` None is evaluation.

    Where x [B, ..., Q, C] are the tokens at `positions` int32 [B, Q] only, they are treated as they would be among all.
    """
    return x if seed is None or rate == 0.0 else _dropout(x, rate, seed, positions)
