"""The device mesh: three named axes on any number of devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from bert_jax.terminal import UserError

AXES = ("data", "fsdp", "tensor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices stand along each axis; -1 (for one of them) takes all that are left.

    data: rows are split, parameters repeated.  fsdp: rows are split and so are parameters.  tensor: heads, feed-forward width
    and vocabulary are split.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            if size < 1 and size != -1:
                raise UserError(f"mesh.{axis}={size} must be at least 1, or -1 for all devices that are left")
        if sum(getattr(self, axis) == -1 for axis in AXES) > 1:
            raise UserError("only one of mesh.data, mesh.fsdp and mesh.tensor can be -1")


def mesh_shape(config: MeshConfig, devices: int) -> tuple[int, int, int]:
    """The sizes of (data, fsdp, tensor) on that many devices. Raises UserError where they do not multiply to it."""
    sizes = [getattr(config, axis) for axis in AXES]
    fixed = math.prod(size for size in sizes if size != -1)
    if devices % fixed or (-1 not in sizes and fixed != devices):
        asked = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        raise UserError(
            f"mesh {asked} needs {'a multiple of ' if -1 in sizes else ''}{fixed} devices, and there are {devices}; "
            "set one axis to -1 to take what is there"
        )
    data, fsdp, tensor = (devices // fixed if size == -1 else size for size in sizes)
    return data, fsdp, tensor


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all of them), laid out so that `tensor`, the most talkative axis, gets the nearest chips.

    On several TPU slices the data axis crosses the slow network between them, and nothing else does.
    """
    devices = list(devices if devices is not None else jax.devices())
    shape = mesh_shape(config, len(devices))
    slices = len({getattr(device, "slice_index", 0) or 0 for device in devices})
    if slices > 1:
        if shape[0] % slices:
            raise UserError(f"mesh.data={shape[0]} does not divide over {slices} slices; only the data axis crosses slices")
        grid = mesh_utils.create_hybrid_device_mesh((shape[0] // slices, *shape[1:]), (slices, 1, 1), devices)
    elif devices[0].platform == "tpu":
        grid = mesh_utils.create_device_mesh(shape, devices)
    else:
        grid = np.asarray(devices).reshape(shape)
    return Mesh(grid, AXES)
