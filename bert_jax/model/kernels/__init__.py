"""Pallas kernels for fused attention, and for the residual with its LayerNorm.

In: the inputs of `model/attention.py` and `model/layers.py`. Out: the same results, computed without writing an array of length
x length to memory.

    dispatch.py            chooses the implementation for a device, and returns the reason
    attention_plan.py      the blocks, tiles and on-chip memory of a TPU call, and the arguments of all kernels
    fused_attention.py     fused attention with its gradient, over a mesh
    attention_tpu.py       the TPU kernels of fused attention
    attention_gpu.py       the GPU kernels of fused attention
    rotary_tpu.py          the TPU kernel that rotates queries and keys
    residual_norm.py       the fused residual norm with its gradient, over a mesh
    residual_norm_tpu.py   the TPU kernels of the residual norm
    agreement.py           compares each kernel with the plain path on the current device
    self_test.py           compares the kernels once for each kind of chip and version of JAX, and caches the verdict
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, UInt32

DTYPES = ("bfloat16", "float32")
"""The dtypes of the kernels' inputs."""
MASKED_SCORE = -1e9
"""The score of a masked key, set with `where`. In float32, a masked key gets no attention at all. The original adds -10,000 to
the score, so padding gets a little attention."""
SAVED = "fused_attention"
"""`jax.checkpoint` knows the attention kernel's results by this name. If a policy saves the name, the backward pass does not
rerun the kernel."""

Axes: TypeAlias = tuple[str | None, ...]
"""The logical axes of an array. Each axis is a name or None. A named axis is sharded if its size is divisible by the number of
devices along its mesh axes."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The distribution of a kernel call over devices. This class implements it for a single device.
    `sharding.kernels.over_mesh` returns the distribution over a mesh."""

    def index(self, axis: str) -> UInt32[Array, ""]:
        """Returns this device's shard index along a logical axis. Call this method in code that runs on a device."""
        return jnp.uint32(0)

    def count(self, axis: str) -> int:
        """Returns the number of shards of a logical axis."""
        return 1

    def on_each_device(
        self, function: Callable[..., Any], inputs: Sequence[Axes], outputs: Sequence[Axes], sums: int = 0
    ) -> Callable[..., Any]:
        """Returns a function that runs `function` (arrays -> tuple of arrays) on each device, on the device's shards of the
        arrays. `inputs` and `outputs` are the axes of these arrays. The last `sums` outputs are summed over the devices that
        have different shards."""
        return function


def on_one_device(sizes: Mapping[str, int]) -> Parts:
    """Returns the distribution of a call on a single device."""
    return Parts()


Spread: TypeAlias = Callable[[Mapping[str, int]], Parts]
"""(sizes of the logical axes of a call) -> the distribution of the call."""
