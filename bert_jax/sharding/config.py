"""The keys of `config.mesh`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from annotated_types import Interval

from bert_jax.errors import UserError
from bert_jax.interface.ranges import OneOf, check_ranges

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
AXES = (DATA, FSDP, TENSOR)
"""The axes, from the least to the most communication. To add an axis, add its name here, its size to `MeshConfig`, and the
dimensions that it splits to the tables in `rules.py`."""
ACROSS_SLICES = ("auto", DATA, FSDP)
REDUCE_DTYPES = ("float32", "bfloat16")
AxisSize = Annotated[int, Interval(ge=-1, le=2**20)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The number of devices along each mesh axis. At most one axis can be -1, which means all remaining devices.

    data: splits the rows. Every device computes with all parameters, but with `zero_sharding` it stores only a part of them.
    fsdp: splits the rows and the parameters. tensor: splits heads, feed-forward width and vocabulary.

    The network between TPU slices is 30 to 100 times slower than within a slice, so the axis with the least communication spans
    the slices. `data` reduces gradients once per step. `fsdp` gathers the parameters twice per microbatch and scatters their
    gradients, so it spans slices only if `data` has too few devices. `tensor` communicates in every layer and never spans
    slices.
    """

    data: AxisSize = -1
    fsdp: AxisSize = 1
    tensor: AxisSize = 1
    zero_sharding: bool = True
    """Whether parameters and optimizer state are sharded over `data` and gathered for each step (ZeRO, arXiv:1910.02054)
    instead of replicated. In fine-tuning, and if fsdp and tensor are both above 1, they are always replicated over `data`."""
    reduce_dtype: Annotated[str, OneOf(REDUCE_DTYPES)] = "float32"
    """The dtype in which gradients of kernels and embedding tables are reduced over `data`: "float32", or "bfloat16" for half
    the network traffic. Pretraining only."""
    across_slices: Annotated[str, OneOf(ACROSS_SLICES)] = "auto"
    """The axis that spans the slices. "auto" places gcd(data, slices) slices along `data`, and the remaining factor along
    `fsdp`. "data" and "fsdp" place all slices along that axis. No effect on a single slice."""

    def __post_init__(self) -> None:
        check_ranges(self, "mesh")
        for axis in AXES:
            size = getattr(self, axis)
            if size == 0:
                raise UserError(f"mesh.{axis}={size} must be at least 1, or -1 for all remaining devices")
        if sum(getattr(self, axis) == -1 for axis in AXES) > 1:
            raise UserError(f"only one of {listed(AXES)} can be -1")


def listed(axes: Sequence[str]) -> str:
    """Returns the keys of `axes` as text, e.g. "mesh.data, mesh.fsdp and mesh.tensor"."""
    *first, last = (f"mesh.{axis}" for axis in axes)
    return f"{', '.join(first)} and {last}" if first else last
