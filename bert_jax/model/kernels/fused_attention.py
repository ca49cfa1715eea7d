"""Fused attention and its gradient, on one device or a mesh, without writing an array of length x length to memory."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num, Shaped, UInt32

from bert_jax.model.kernels import DTYPES, SAVED, Parts, Spread, attention_gpu, attention_tpu, on_one_device
from bert_jax.model.kernels.attention_gpu import GpuPlan
from bert_jax.model.kernels.attention_plan import Inputs, Placement, Results, TpuPlan, divides_lanes
from bert_jax.model.kernels.rotary_tpu import RotaryPlan, rotated
from bert_jax.model.layers import Dropout
from bert_jax.model.positions import Angles

AXES = ("batch", None, "heads")  # rows are not split, because a query reads every key
"""The logical axes of query, key, value and context [B, L, D]. D = H K is only split between heads, not within a head."""
QKV = tuple[Float[Array, "B Q D"], Float[Array, "B L D"], Float[Array, "B L D"]]
"""(query, key, value) of all heads in bfloat16 or float32, as the projections return them. D = H K."""
Plan = TpuPlan | GpuPlan


def fused_attention(
    qkv: QKV,
    sequence_ids: Int[Array, "B L"],
    *,
    num_heads: int,
    dropout: Dropout,
    platform: str = "tpu",
    spread: Spread = on_one_device,
    interpret: bool = False,
    radius: int | None = None,
    queried: Int[Array, "B Q"] | None = None,
    angles: Angles | None = None,
) -> Float[Array, "B Q D"]:
    """Computes softmax(Q K^T / sqrt(K)) V with dropout on the probabilities, on a TPU or GPU. `dot_product_attention` computes
    the same function.

    A query attends to the keys with the same sequence id. With a `radius`, it only attends to keys that are at most `radius`
    tokens away, and blocks of keys out of reach are skipped. By default every token is a query. On a TPU and without a
    `radius`, `queried` may select the positions of the queries instead. `platform` is "tpu" or "gpu". If `angles` are given
    (TPU only), queries and keys are rotated by these angles first.

    The softmax runs in float32. Products use the input dtype and accumulate in float32. The forward pass saves the context and
    one float32 per query and head. The backward pass draws the dropout mask again. Each device of `spread` runs the kernel on
    its own rows and heads. On a GPU the dropout mask equals the mask of plain attention, bit for bit, on any mesh. On a TPU,
    each element of the mask is drawn from 16 random bits of the chip's generator. `dropout.rate` is therefore rounded to a
    multiple of 2**-16 (0.1 becomes 0.100006), and the kept probabilities are scaled for the rounded rate. Every device draws
    its own mask. `interpret` is for tests. It runs the kernel on any platform, but slowly. An interpreted TPU kernel uses a
    counter hash instead of the generator.

    Raises ValueError if the kernel does not support the width or dtype of the heads. To choose an implementation first,
    call `dispatch.resolve`.
    """
    _, key, _ = qkv
    shape = key.shape
    rate = 0.0 if dropout.seed is None else dropout.rate
    reason = unsupported_heads(platform, shape[2] // num_heads, key.dtype)
    if reason:
        raise ValueError(reason)
    seed = jnp.uint32(0) if dropout.seed is None else dropout.seed.astype(jnp.uint32)
    first_row = jnp.uint32(0) if dropout.rows is None else dropout.rows[0]
    drawn = jnp.stack([seed, first_row])
    sequences: tuple[Int[Array, "B _"], ...] = (sequence_ids,)
    if queried is not None:
        assert platform == "tpu", "only the TPU kernel can compute a selection of the queries"
        assert radius is None, "a radius requires that all tokens are queries"
        sequences = (sequence_ids, jnp.take_along_axis(sequence_ids, queried, axis=1))
    turned: list[Array] = []
    if angles is not None:
        assert platform == "tpu", "only a TPU's kernel rotates"
        rotary = RotaryPlan(shape[2] // num_heads, angles.interleaved, interpret)
        turned = [x for each in (angles.of_queries, angles.of_keys) for x in rotary.factors(each)]
    parts: Parts = spread({"batch": shape[0], "heads": num_heads})

    def local(
        query: Array, key: Array, value: Array, drawn: UInt32[Array, " 2"], *others: Shaped[Array, "B ..."]
    ) -> tuple[Float[Array, "B Q D"]]:
        turned, ids = others[: -len(sequences)], others[-len(sequences) :]
        if turned:
            query, key = rotated(rotary, query, *turned[:2]), rotated(rotary, key, *turned[2:])
        first = drawn[1] + parts.index("batch") * np.uint32(len(key))
        shards = parts.count("heads")
        heads = num_heads // shards
        place = Placement(drawn[0], first, parts.index("heads"), shards)
        plan: Plan
        if platform == "gpu":
            plan = GpuPlan.of(key.shape, heads, rate, radius, interpret=interpret)
        else:
            plan = TpuPlan.of(key.shape, heads, rate, radius, *(x.shape[1] for x in ids[1:]), interpret=interpret)
        return (_attend_padded(plan, (query, key, value), ids, place),)

    of_tokens = [AXES[:2] + (None,) * (x.ndim - 2) for x in (*turned, *sequences)]
    on_all = parts.on_each_device(local, [AXES, AXES, AXES, (None,), *of_tokens], [AXES])
    context: Float[Array, "B Q D"] = on_all(*qkv, drawn, *turned, *sequences)[0]
    return context


def unsupported_heads(platform: str, head_width: int, dtype: DTypeLike) -> str | None:
    """Returns the reason, as a clause, if the attention kernel of the platform ("tpu" or "gpu") does not support heads of this
    width and dtype. Otherwise returns None."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"fused attention supports bfloat16 and float32, not {jnp.dtype(dtype).name}"
    if platform == "gpu" and head_width not in attention_gpu.HEAD_WIDTHS:
        return f"fused attention on a GPU needs a head width of 16, 32, 64 or 128, not {head_width}"
    if platform == "tpu" and not divides_lanes(head_width):
        return f"fused attention needs a head width of 16, 32, 64 or a multiple of 128, not {head_width}"
    return None


def _attend_padded(plan: Plan, qkv: QKV, ids: Sequence[Int[Array, "B _"]], place: Placement) -> Float[Array, "B Q D"]:
    """Computes the context of one device's rows and heads. The inputs are padded to the blocks of `plan`, and the padding is
    removed from the result. `ids` are the sequence ids of the keys. If only some tokens are queries, the sequence ids of the
    queries follow.

    Padding tokens get the sequence id -1, so they attend only to each other.
    """
    _, length, width = qkv[0].shape
    seeds = plan.seeds(place)

    def padded(x: Array, length: int) -> Array:
        return jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, plan.width - width)))

    query, key, value = (padded(x, to) for x, to in zip(qkv, (plan.query_length, plan.length, plan.length), strict=True))
    of_tokens = tuple(
        jnp.pad(x, ((0, 0), (0, shape[-1] - x.shape[1])), constant_values=-1).reshape(shape)
        for x, shape in zip(ids, plan.ids_shapes, strict=True)
    )
    return _attend(plan, (query, key, value, of_tokens, seeds))[:, :length, :width]


def _kernels(plan: Plan) -> types.ModuleType:
    """Returns the module whose `forward` and `backward` run the kernels of `plan`."""
    return attention_gpu if isinstance(plan, GpuPlan) else attention_tpu


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, inputs: Inputs) -> Float[Array, "B Q D"]:
    return _kernels(plan).forward(plan, inputs)[0]


def _attend_forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "B Q D"], tuple[Inputs, Results]]:
    context, sums = (checkpoint_name(x, SAVED) for x in _kernels(plan).forward(plan, inputs))
    return context, (inputs, (context, sums))


def _attend_backward(
    plan: Plan, residuals: tuple[Inputs, Results], gradient: Float[Array, "B Q D"]
) -> tuple[tuple[Num[Array, "B _ D"] | None, ...]]:
    """Returns the gradients of `Inputs`. Query, key and value have a gradient. The gradients of ids and seeds are None."""
    return ((*_kernels(plan).backward(plan, *residuals, gradient), None, None),)


_attend.defvjp(_attend_forward, _attend_backward)
