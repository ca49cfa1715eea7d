"""The device mesh: three named axes on any number of devices."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Annotated

import jax
import numpy as np
from annotated_types import Interval
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.interface.ranges import OneOf, check_ranges
from bert_jax.interface.words import counted

AXES = ("data", "fsdp", "tensor")
ACROSS_SLICES = ("auto", "data", "fsdp")
REDUCE_DTYPES = ("float32", "bfloat16")
Along = Annotated[int, Interval(ge=-1, le=2**20)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices stand along each axis; -1 (for one of them) takes all that are left.

    data: rows are split; every device computes with whole parameters (and keeps a part of them: `zero_sharding`).  fsdp: rows are
    split, and parameters in the products too.  tensor: heads, feed-forward width and vocabulary are split.

    On several TPU slices, whose chips reach those of other slices over a network 30 to 100 times slower than their own links,
    the axis that talks least crosses it. `data` sends gradients, once a step; `fsdp` gathers the parameters twice for every
    microbatch and scatters their gradients, so it crosses only where `data` has too few devices; `tensor` talks in every layer,
    and never crosses.
    """

    data: Along = -1
    fsdp: Along = 1
    tensor: Along = 1
    zero_sharding: bool = True
    """Whether every device of `data` keeps and updates a part of parameters and optimizer (ZeRO, arXiv:1910.02054), which are
    gathered for each step, or all of them. Fine-tuning repeats them, and so does a mesh with both fsdp and tensor above 1."""
    reduce_dtype: Annotated[str, OneOf(REDUCE_DTYPES)] = "float32"
    """In which gradients of kernels and tables travel between the devices of `data` and add up: "float32" or "bfloat16", which
    is half the traffic. For pretraining."""
    across_slices: Annotated[str, OneOf(ACROSS_SLICES)] = "auto"
    """Which axis crosses the network between slices: "auto" gives `data` as many of them as it divides into, and the rest to
    `fsdp`; "data" or "fsdp" takes all. Means nothing on one slice."""

    def __post_init__(self) -> None:
        check_ranges(self, "mesh")
        for axis in AXES:
            size = getattr(self, axis)
            if size == 0:
                raise UserError(f"mesh.{axis}={size} must be at least 1, or -1 for all devices that are left")
        if sum(getattr(self, axis) == -1 for axis in AXES) > 1:
            raise UserError("only one of mesh.data, mesh.fsdp and mesh.tensor can be -1")


def mesh_shape(config: MeshConfig, devices: int) -> tuple[int, int, int]:
    """The sizes of (data, fsdp, tensor) on that many devices. Raises UserError where they do not multiply to it."""
    sizes = [getattr(config, axis) for axis in AXES]
    fixed = math.prod(size for size in sizes if size != -1)
    if devices % fixed or (-1 not in sizes and fixed != devices):
        raise UserError(
            f"mesh {_written(sizes)} needs {'a multiple of ' if -1 in sizes else ''}{counted(fixed, 'device')}, and "
            f"there are {devices}; "
            "set one axis to -1 to take what is there"
        )
    data, fsdp, tensor = (devices // fixed if size == -1 else size for size in sizes)
    return data, fsdp, tensor


def slices_along(config: MeshConfig, shape: Sequence[int], slices: int) -> tuple[int, int, int]:
    """How many slices stand along (data, fsdp, tensor) of a mesh of `shape`, by the rule that `MeshConfig` states. Raises
    UserError with the sizes that would do."""
    data, fsdp, tensor = shape
    asked = config.across_slices
    if asked != "auto":
        size = {"data": data, "fsdp": fsdp}[asked]
        if size % slices:
            raise UserError(
                f"mesh.across_slices={asked}, but mesh.{asked}={size} does not divide over the {slices} slices; set mesh.{asked} "
                f"to a multiple of {slices}, or mesh.across_slices=auto"
            )
        return (slices, 1, 1) if asked == "data" else (1, slices, 1)
    along_data = math.gcd(data, slices)
    along_fsdp = slices // along_data
    if fsdp % along_fsdp:
        own = data * fsdp * tensor // slices
        raise UserError(
            f"mesh {_written(shape)} does not divide over {slices} slices of {counted(own, 'device')}: mesh.tensor "
            f"never crosses slices; "
            f"choose one that divides {own}"
        )
    return along_data, along_fsdp, 1


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all of them), as `device_grid` lays it out."""
    return Mesh(device_grid(config, jax.devices() if devices is None else devices), AXES)


def device_grid(config: MeshConfig, devices: Sequence[jax.Device]) -> np.ndarray:
    """The devices as an array [data, fsdp, tensor].

    On TPU an axis takes whole sides of the torus where sizes allow, else parts of sides, and `tensor`, the most talkative, gets
    the nearest chips. Several slices stand one behind the other along the axes of `slices_along`. Raises UserError where the
    devices cannot be laid out so.
    """
    shape = mesh_shape(config, len(devices))
    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0) or 0, []).append(device)
    sizes = [len(slices[i]) for i in sorted(slices)]
    if len(set(sizes)) > 1:
        raise UserError(
            f"the slices differ in their devices ({', '.join(map(str, sizes))}), and a mesh needs as many of each; leave some out"
        )
    across = slices_along(config, shape, len(slices))
    within = [size // count for size, count in zip(shape, across, strict=True)]
    grids = np.stack([_slice_grid(within, slices[i]) for i in sorted(slices)])
    return grids.reshape(*across, *within).transpose(0, 3, 1, 4, 2, 5).reshape(shape)


def _slice_grid(shape: Sequence[int], devices: Sequence[jax.Device]) -> np.ndarray:
    """The devices of one slice as an array of `shape`."""
    if devices[0].platform != "tpu":
        return np.asarray(devices).reshape(shape)
    sides = _box(devices)
    if not sides:
        fits = max(n for n in range(1, len(devices)) if _box(devices[:n]))
        raise UserError(
            f"{len(devices)} TPU devices do not fill a box of chips, which a mesh needs; take a number that does, such as {fits}"
        )
    reason: Exception | None = None
    for split in (False, True):
        try:
            return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=split)
        except (NotImplementedError, TypeError, ValueError) as error:  # all three for a side such as 28, in JAX 0.10
            reason = error
    products = sorted({math.prod(sides[i] for i in range(len(sides)) if chosen >> i & 1) for chosen in range(1 << len(sides))})
    raise UserError(
        f"mesh {_written(shape)} cannot be laid out on {'x'.join(map(str, sides))} TPU devices; choose sizes of mesh.fsdp and "
        f"mesh.tensor among the products of those sides ({', '.join(map(str, products))})"
    ) from reason


def _box(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """How many TPU devices stand along each dimension, the cores of a chip among them; () where they do not fill the box."""
    places = {(*device.coords, device.core_on_chip) for device in devices}
    sides = tuple(max(along) - min(along) + 1 for along in zip(*places, strict=True))
    sides = sides if sides[-1] > 1 else sides[:-1]
    return sides if math.prod(sides) == len(places) == len(devices) else ()


def sides_along(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """The sides of the box of chips that `devices`, in their order, run through like the digits of a number, slowest first; where
    they do not, or are of several slices or no TPUs, the one number of them."""
    whole = (len(devices),)
    if devices[0].platform != "tpu" or len({getattr(device, "slice_index", 0) or 0 for device in devices}) > 1:
        return whole
    places = np.array([(*device.coords, device.core_on_chip) for device in devices])
    strides = sorted((int(np.argmax(along != along[0])) for along in places.T if np.ptp(along)), reverse=True)
    periods = [len(devices), *strides]
    if not strides or strides[-1] != 1 or any(outer % inner for outer, inner in itertools.pairwise(periods)):
        return whole
    sides = tuple(outer // inner for outer, inner in itertools.pairwise(periods))
    grid = places.reshape(*sides, -1)
    moves = [(grid != grid.take([0], axis=k)).reshape(-1, places.shape[1]).any(0) for k in range(len(sides))]
    return sides if (np.sum(moves, axis=0) <= 1).all() else whole


def _written(sizes: Iterable[int]) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
