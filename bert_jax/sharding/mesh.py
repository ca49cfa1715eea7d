"""Makes the device mesh, with named axes, on any number of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.sharding.config import ACROSS_SLICES, AXES, DATA, FSDP, MeshConfig, listed


def mesh_shape(config: MeshConfig, devices: int) -> dict[str, int]:
    """Returns the size of every axis on `devices` devices. Raises UserError if the product of the sizes cannot be `devices`."""
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if devices % fixed or (-1 not in sizes.values() and fixed != devices):
        raise UserError(
            f"mesh {_format_sizes(sizes)} needs {'a multiple of ' if -1 in sizes.values() else ''}{counted(fixed, 'device')}, "
            f"but there are {devices}; set one axis to -1 to use all remaining devices"
        )
    return {axis: devices // fixed if size == -1 else size for axis, size in sizes.items()}


def slices_along(config: MeshConfig, shape: Mapping[str, int], slices: int) -> dict[str, int]:
    """Returns the number of slices along every axis of a mesh with this `shape`, as `MeshConfig` describes. Raises UserError if
    the slices cannot be placed. The error names possible sizes."""
    asked, along = config.across_slices, dict.fromkeys(shape, 1)
    if asked != "auto":
        if shape[asked] % slices:
            raise UserError(
                f"mesh.across_slices={asked}, but mesh.{asked}={shape[asked]} is not divisible by the {slices} slices; set "
                f"mesh.{asked} to a multiple of {slices}, or mesh.across_slices=auto"
            )
        return along | {asked: slices}
    along |= {"data": math.gcd(shape["data"], slices)}
    along |= {"fsdp": slices // along["data"]}
    if shape["fsdp"] % along["fsdp"]:
        own, within = math.prod(shape.values()) // slices, [axis for axis in shape if axis not in ACROSS_SLICES]
        raise UserError(
            f"mesh {_format_sizes(shape)} does not fit {slices} slices of {counted(own, 'device')}: {listed(within)} never "
            f"{'spans' if len(within) == 1 else 'span'} slices; choose a size that divides {own}"
        )
    return along


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh over `devices` (default: all devices), in the order of `device_grid`."""
    return Mesh(device_grid(config, jax.devices() if devices is None else devices), AXES)


def shard_further(config: MeshConfig, mesh: Mesh, times: int) -> dict[str, int]:
    """Returns changes of the sizes in `config`, which made `mesh`. With them, parameters are split into `times` as many parts,
    and rows into as many parts as before. Returns {} if `data` is not divisible by `times`."""
    if mesh.shape[DATA] % times:
        return {}
    fixed = {} if config.data == -1 else {DATA: mesh.shape[DATA] // times}
    return fixed | {FSDP: mesh.shape[FSDP] * times}


def device_grid(config: MeshConfig, devices: Sequence[jax.Device]) -> np.ndarray:
    """Returns the devices as an array with a dimension for each of `AXES`.

    On TPUs, an axis spans whole dimensions of the torus if the sizes allow it. Otherwise, it spans parts of dimensions.
    `tensor` communicates most, so it gets neighbouring chips. Several slices are concatenated along the axes that
    `slices_along` returns. Raises UserError if the devices cannot be arranged this way."""
    shape = mesh_shape(config, len(devices))
    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        slices.setdefault(_slice_index(device), []).append(device)
    sizes = [len(slices[i]) for i in sorted(slices)]
    if len(set(sizes)) > 1:
        raise UserError(
            f"the slices have different numbers of devices ({', '.join(map(str, sizes))}), but a mesh needs the same number of "
            "each; use equal slices"
        )
    across = slices_along(config, shape, len(slices))
    within = {axis: size // across[axis] for axis, size in shape.items()}
    grids = np.stack([_slice_grid(within, slices[i]) for i in sorted(slices)])
    both = [dimension for axis in range(len(shape)) for dimension in (axis, len(shape) + axis)]  # per axis: slices, then chips
    return grids.reshape(*across.values(), *within.values()).transpose(both).reshape(tuple(shape.values()))


def devices_along(mesh: Mesh, axis: str) -> list[jax.Device]:
    """Returns the devices along an axis of the mesh, at index 0 of all other axes."""
    place = mesh.axis_names.index(axis)
    return list(np.moveaxis(mesh.devices, place, 0).reshape(mesh.shape[axis], -1)[:, 0])


def _slice_index(device: jax.Device) -> int:
    """Returns the index of the TPU slice of `device`, or 0 if the device has no slice."""
    return getattr(device, "slice_index", None) or 0


def _slice_grid(shape: Mapping[str, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """Returns the devices of one slice as an array of this `shape`. Raises UserError if they cannot be arranged in this
    shape."""
    sizes = tuple(shape.values())
    if devices[0].platform != "tpu":
        return np.asarray(devices).reshape(sizes)
    sides = _box(devices)
    if not sides:
        fits = max(n for n in range(1, len(devices)) if _box(devices[:n]))
        raise UserError(
            f"{len(devices)} TPU devices do not fill a box of chips, as a mesh requires; use a number that does, such as {fits}"
        )
    reason: Exception | None = None
    for split in (False, True):
        try:
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=split)
        except (NotImplementedError, TypeError, ValueError) as error:  # JAX 0.10 raises such an error e.g. if a side is 28
            reason = error
    products = {1}
    for side in sides:
        products |= {side * product for product in products}
    raise UserError(
        f"mesh {_format_sizes(shape)} cannot be arranged on {'x'.join(map(str, sides))} TPU devices; choose {listed(AXES[1:])} "
        f"among the products of these dimensions ({', '.join(map(str, sorted(products)))})"
    ) from reason


def _box(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Returns the dimensions of the box that TPU devices fill, or () if they do not fill a box. If a chip has several cores,
    the cores are the last dimension."""
    places = {(*device.coords, device.core_on_chip) for device in devices}
    sides = tuple(max(along) - min(along) + 1 for along in zip(*places, strict=True))
    sides = sides if sides[-1] > 1 else sides[:-1]
    return sides if math.prod(sides) == len(places) == len(devices) else ()


def torus_dimensions(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Returns the dimensions of the box of TPU chips, slowest first, if `devices` enumerate a box in row-major order. Returns
    (len(devices),) if the devices are in another order, are on several slices, or are not TPUs."""
    whole = (len(devices),)
    if devices[0].platform != "tpu" or len({_slice_index(device) for device in devices}) > 1:
        return whole
    places = np.array([(*device.coords, device.core_on_chip) for device in devices])
    strides = sorted((int(np.argmax(along != along[0])) for along in places.T if np.ptp(along)), reverse=True)
    periods = [len(devices), *strides]
    if not strides or strides[-1] != 1 or any(outer % inner for outer, inner in itertools.pairwise(periods)):
        return whole
    sides = tuple(outer // inner for outer, inner in itertools.pairwise(periods))
    grid = places.reshape(*sides, -1)
    moved = [np.ptp(grid, axis=k).reshape(-1, places.shape[1]).any(0).sum() for k in range(len(sides))]
    return sides if sum(moved) == len(sides) else whole  # a step along a side changes only one coordinate


def _format_sizes(shape: Mapping[str, int]) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in shape.items())
