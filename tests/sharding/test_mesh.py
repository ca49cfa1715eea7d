"""Where each chip of a TPU topology is in the mesh; the devices are only positions, without a TPU or a compiler."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from jax.experimental import mesh_utils

from bert_jax.errors import UserError
from bert_jax.sharding.config import AXES, MeshConfig
from bert_jax.sharding.mesh import device_grid, devices_along, make_mesh, slices_along, torus_dimensions

THREE = ("data", "fsdp", "tensor")
KINDS = {"v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "v7x": "TPU7x"}


@dataclasses.dataclass(frozen=True)
class Chip:
    """The attributes of a device that the layout of a mesh uses."""

    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int = 0
    platform: str = "tpu"

    def __str__(self) -> str:
        return f"{self.slice_index}:{''.join(map(str, self.coords))}"


def chips(name: str, slices: int = 1) -> list[Chip]:
    """Returns the devices of `v5p:4x4x4` and so on, x fastest, as JAX lists them within a host."""
    generation, _, shape = name.partition(":")
    x, y, z = (*map(int, shape.split("x")), 1)[:3]
    cores = 2 if generation == "v7x" else 1
    return [
        Chip(KINDS[generation], (c, b, a), core, s)
        for s in range(slices) for a in range(z) for b in range(y) for c in range(x) for core in range(cores)
    ]  # fmt: skip


def written(grid: np.ndarray) -> list[str]:
    """Returns a line for each row of the data axis: slice:xyz, with `|` between the rows of the fsdp axis."""
    return [" | ".join(" ".join(map(str, tensor)) for tensor in fsdp) for fsdp in grid]


def grid_of(config: MeshConfig, devices: list[Chip]) -> np.ndarray:
    """Returns the devices as an array [data, fsdp, tensor]; other axes have one device."""
    return device_grid(config, devices)[tuple(slice(None) if axis in THREE else 0 for axis in AXES)]


def named(shape: tuple[int, int, int]) -> dict[str, int]:
    """Returns (data, fsdp, tensor) by their names, with 1 for all other axes."""
    return dict.fromkeys(AXES, 1) | dict(zip(THREE, shape, strict=True))


def shapes(devices: int) -> list[tuple[int, int, int]]:
    """Returns every (data, fsdp, tensor) of powers of two."""
    powers = [2**i for i in range(devices.bit_length())]
    return [(d, f, t) for d, f, t in itertools.product(powers, repeat=3) if d * f * t == devices]


def config(shape: tuple[int, int, int], across_slices: str = "auto") -> MeshConfig:
    return MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2], across_slices=across_slices)


def sides(devices: list[Chip]) -> list[int]:
    """Returns the sides of the smallest box around the devices."""
    places = [(*chip.coords, chip.core_on_chip) for chip in devices]
    return [max(along) - min(along) + 1 for along in zip(*places, strict=True)]


GOLDEN = {
    ("v5e:4x4", 1, (4, 2, 2), "auto"): [
        "0:000 0:100 | 0:200 0:300",
        "0:010 0:110 | 0:210 0:310",
        "0:020 0:120 | 0:220 0:320",
        "0:030 0:130 | 0:230 0:330",
    ],
    ("v5e:2x2", 2, (2, 2, 2), "auto"): [
        "0:000 0:100 | 0:110 0:010",
        "1:000 1:100 | 1:110 1:010",
    ],
    ("v5e:2x2", 2, (2, 2, 2), "fsdp"): [
        "0:000 0:100 | 1:000 1:100",
        "0:110 0:010 | 1:110 1:010",
    ],
    ("v5e:2x2", 2, (1, 4, 2), "auto"): ["0:000 0:100 | 0:110 0:010 | 1:000 1:100 | 1:110 1:010"],
    ("v5e:2x2", 4, (2, 4, 2), "auto"): [
        "0:000 0:100 | 0:110 0:010 | 1:000 1:100 | 1:110 1:010",
        "2:000 2:100 | 2:110 2:010 | 3:000 3:100 | 3:110 3:010",
    ],
}
"""By topology, slices, (data, fsdp, tensor) and the axis that crosses slices."""


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_chips_are_placed_as_in_the_golden_grids(case: tuple[str, int, tuple[int, int, int], str]):
    name, slices, shape, across = case
    assert written(grid_of(config(shape, across), chips(name, slices))) == GOLDEN[case]


def test_axes_take_whole_sides_of_the_torus_if_their_sizes_fit_and_parts_otherwise():
    whole = grid_of(config((4, 4, 4)), chips("v5p:4x4x4"))
    assert [sorted(sides(list(whole[:, 0, 0]))), sorted(sides(list(whole[0, 0])))] == [[1, 1, 1, 4]] * 2
    parts = grid_of(config((16, 2, 2)), chips("v5p:4x4x4"))
    assert sides(list(parts[0, 0])) == [2, 1, 1, 1]  # neighbours
    assert sides(list(parts[0].flat)) == [4, 1, 1, 1]
    assert sides(list(parts[:, 0, 0])) == [1, 4, 4, 1]  # two complete rings for the gradients


@pytest.mark.parametrize(
    ("name", "slices"),
    [("v5e:2x2", 1), ("v5e:2x4", 1), ("v5e:4x4", 1), ("v6e:8x8", 1), ("v5p:2x2x1", 1), ("v5p:2x2x2", 1), ("v5p:4x4x4", 1),
     ("v5p:4x4x8", 1), ("v7x:2x2x1", 1), ("v7x:2x2x4", 1), ("v5e:2x4", 2), ("v5e:4x4", 4), ("v5p:4x4x4", 2), ("v7x:2x2x2", 2)],
)  # fmt: skip
def test_every_power_of_two_shape_fits_and_tensor_groups_are_boxes_of_chips(name: str, slices: int):
    devices = chips(name, slices)
    for shape in shapes(len(devices)):
        if shape[2] > len(devices) // slices:
            continue
        grid = grid_of(config(shape), devices)
        assert grid.shape == shape
        assert set(grid.flat) == set(devices)
        for group in grid.reshape(-1, shape[2]):
            assert len({chip.slice_index for chip in group}) == 1
            assert math.prod(sides(list(group))) == shape[2]


@pytest.mark.parametrize(
    ("shape", "slices", "across_slices", "along"),
    [
        ((8, 4, 2), 1, "auto", (1, 1, 1)),
        ((8, 4, 2), 4, "auto", (4, 1, 1)),
        ((8, 4, 2), 16, "auto", (8, 2, 1)),
        ((1, 32, 2), 4, "auto", (1, 4, 1)),
        ((3, 4, 1), 6, "auto", (3, 2, 1)),
        ((8, 4, 2), 4, "data", (4, 1, 1)),
        ((8, 4, 2), 4, "fsdp", (1, 4, 1)),
        ((8, 4, 2), 1, "fsdp", (1, 1, 1)),
    ],
)
def test_data_spans_slices_before_fsdp_by_default(
    shape: tuple[int, int, int], slices: int, across_slices: str, along: tuple[int, int, int]
):
    assert slices_along(config(shape, across_slices), named(shape), slices) == named(along)


@pytest.mark.parametrize(
    ("shape", "across_slices", "says"),
    [
        ((1, 1, 16), "auto", "mesh data=1 x fsdp=1 x tensor=16 does not fit 2 slices of 8 devices: mesh.tensor never "
         "spans slices; choose a size that divides 8"),
        ((1, 8, 2), "data", "mesh.across_slices=data, but mesh.data=1 is not divisible by the 2 slices; set mesh.data to a "
         "multiple of 2, or mesh.across_slices=auto"),
        ((16, 1, 1), "fsdp", "mesh.across_slices=fsdp, but mesh.fsdp=1 is not divisible by the 2 slices; set mesh.fsdp to"),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_divide_over_slices_is_refused_with_what_does(
    shape: tuple[int, int, int], across_slices: str, says: str
):
    with pytest.raises(UserError) as error:
        grid_of(config(shape, across_slices), chips("v5e:2x4", 2))
    assert says in str(error.value)


def test_an_unknown_axis_for_slices_is_an_error():
    with pytest.raises(UserError, match=r"mesh\.across_slices='tensor' is not one of auto, data, fsdp"):
        MeshConfig(across_slices="tensor")


def test_slices_of_different_sizes_are_an_error():
    with pytest.raises(
        UserError,
        match=r"the slices have different numbers of devices \(8, 7\), but a mesh needs the same "
        r"number",
    ):
        grid_of(MeshConfig(), chips("v5e:2x4", 2)[:-1])


def test_devices_that_fill_no_box_are_refused_with_a_number_that_does():
    with pytest.raises(UserError, match=r"7 TPU devices do not fill a box of chips, .* such as 4"):
        grid_of(MeshConfig(), chips("v5p:2x2x2")[:7])
    with pytest.raises(UserError, match=r"2 TPU devices do not fill a box of chips, .* such as 1"):
        grid_of(MeshConfig(), chips("v5e:2x2")[::3])


@pytest.mark.parametrize("refusal", [NotImplementedError, TypeError, ValueError])
def test_a_shape_that_jax_cannot_place_is_refused_with_sizes_that_fit(monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]):
    tried = []

    def refuse(shape: list[int], devices: list[Chip], *, allow_split_physical_axes: bool) -> None:
        tried.append(allow_split_physical_axes)
        raise refusal

    monkeypatch.setattr(mesh_utils, "create_device_mesh", refuse)
    part = [dataclasses.replace(chip, coords=(8 + x, 4 + y, z)) for chip in chips("v5p:4x4x28") for x, y, z in [chip.coords]]
    with pytest.raises(UserError) as error:
        grid_of(MeshConfig(fsdp=2), part)
    assert tried == [False, True]
    assert str(error.value) == (
        "mesh data=224 x fsdp=2 x tensor=1 cannot be arranged on 4x4x28 TPU devices; choose mesh.fsdp and mesh.tensor "
        "among the products of these dimensions (1, 4, 16, 28, 112, 448)"
    )


def test_a_single_chip_is_a_mesh():
    (chip,) = chips("v5e:1x1")
    assert grid_of(MeshConfig(), [chip]).ravel().tolist() == [chip]


def test_devices_other_than_tpus_keep_their_order():
    cpus = [dataclasses.replace(chip, platform="cpu") for chip in chips("v5e:2x4")]
    assert grid_of(MeshConfig(fsdp=2, tensor=2), cpus).ravel().tolist() == cpus


@pytest.mark.parametrize(
    ("name", "slices", "sides"),
    [
        ("v5e:8x8", 1, (8, 8)),
        ("v5e:16x16", 1, (16, 16)),
        ("v5p:4x4x4", 1, (4, 4, 4)),
        ("v5p:4x4x8", 1, (4, 4, 8)),
        ("v5e:2x4", 1, (8,)),  # laid out as one ring that turns around at its end
        ("v5e:8x8", 2, (128,)),
    ],
)
def test_the_data_axis_runs_along_one_whole_side_of_the_box_after_another(name: str, slices: int, sides: tuple[int, ...]):
    column = list(grid_of(MeshConfig(), chips(name, slices))[:, 0, 0])
    assert torus_dimensions(column) == sides
    if len(sides) > 1:
        grid = np.array([chip.coords for chip in column]).reshape(*sides, 3)
        for k in range(len(sides)):
            lines = np.moveaxis(grid, k, -2).reshape(-1, sides[k], 3)
            assert (np.sum(np.ptp(lines, axis=1) > 0, axis=1) == 1).all()  # each group a line of chips


def test_devices_along_an_axis_are_found_by_its_name():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    for axis, at in (("data", np.s_[:, 0, 0]), ("fsdp", np.s_[0, :, 0]), ("tensor", np.s_[0, 0, :])):
        assert devices_along(mesh, axis) == list(mesh.devices.reshape(2, 2, 2)[at])


def test_devices_in_another_order_are_one_group():
    column = chips("v5p:4x4x4")
    assert torus_dimensions(column) == (4, 4, 4)
    assert torus_dimensions([column[1], column[0], *column[2:]]) == (64,)
    assert torus_dimensions(column[:1]) == (1,)
    assert torus_dimensions([dataclasses.replace(chip, platform="cpu") for chip in column]) == (64,)
