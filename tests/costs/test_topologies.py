"""Names of slices, the data sheets behind them, and what a person is told who gets one wrong."""

from __future__ import annotations

import pytest

from bert_jax.costs import topologies
from bert_jax.costs.chips import CHIPS
from bert_jax.costs.compiling import DoesNotFit
from bert_jax.costs.topologies import known_shapes, parse_topology, require_compiler
from bert_jax.errors import UserError
from bert_jax.metrics.throughput import peak_flops


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [("v5e:4x4", "v5e:4x4", 16, 16), ("V5P:4x4x4", "v5p:4x4x4", 64, 64),
     ("v4:2x2", "v4:2x2x1", 4, 4),
     ("4xv5e:16x16", "4xv5e:16x16", 1024, 1024), ("tpu7x:2x2x1", "v7x:2x2x1", 4, 8),
     ("v5p:16x20x28", "v5p:16x20x28", 8960, 8960)],
)  # fmt: skip
def test_a_slice_is_named_by_generation_and_shape(text: str, name: str, chips: int, devices: int):
    found = parse_topology(text)
    assert (found.name, found.chips, found.devices) == (name, chips, devices)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e:4x3", "v5e has no slice 4x3; nearest: v5e:4x4 (16 chips); v5e has 1x1, 2x2, 2x4"),
        ("v5e-16", "gives a number, not a shape; nearest: v5e:4x4"),
        ("v5p-128", "nearest: v5p:4x4x4 (64 chips)"),
        ("v3:2x2", "there is no TPU 'v3'; there are v4, v5e, v5p, v6e, v7x, for example v4:2x2x4"),
        ("trilium:2x2", "there is no TPU 'trilium'; did you mean 'v6e'? there are v4, v5e"),
        ("0xv5e:2x2", "--topology=0xv5e:2x2 asks for 0 slices; there must be at least 1"),
        ("v5e", "is not GENERATION:SHAPE"),
        ("v5p:5x5x5", "nearest: v5p:4x4x8 (128 chips)"),
    ],
)
def test_an_unknown_topology_is_an_error_that_names_the_nearest_and_what_there_is(text: str, says: str):
    with pytest.raises(UserError) as error:
        parse_topology(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "slices", "says"),
    [
        ("v5e:2x2", 0, "--slices=0 asks for 0 slices; there must be at least 1"),
        ("v5e:2x2", -2, "--slices=-2 asks for -2 slices"),
        ("2xv5e:2x2", 0, "--topology=2xv5e:2x2 has 2 slices and --slices=0 says otherwise"),
    ],
)
def test_slices_given_apart_are_at_least_one_and_do_not_contradict_the_name(text: str, slices: int, says: str):
    with pytest.raises(UserError, match=says):
        parse_topology(text, slices)
    assert parse_topology("v5e:2x2", 2) == parse_topology("2xv5e:2x2", 2) == parse_topology("2xv5e:2x2")


def test_rings_close_where_the_pod_closes_them():
    assert parse_topology("v5e:8x16").rings == (False, True)
    assert parse_topology("v5p:4x4x8").rings == (True, True, True)
    assert parse_topology("v5p:2x4x4").rings == (False, False, False)


@pytest.mark.parametrize("name", CHIPS)
def test_peaks_are_those_of_the_training_log_and_follow_from_clocks_and_matrix_units(name: str):
    chip = CHIPS[name]
    assert chip.peak_flops == chip.devices * (peak_flops(chip.kind) or 0)
    assert chip.clock * chip.cores * chip.matrix_units * 2 * chip.matrix_width**2 == pytest.approx(chip.peak_flops, rel=0.01)
    assert max(known_shapes(chip), key=lambda shape: shape[0] * shape[-1] * shape[1])


@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_calls_the_devices_of_a_chip_what_the_table_calls_them(name: str):
    pytest.importorskip("libtpu")
    topology = parse_topology(f"{name}:2x2")
    topologies.prepare_compiler()
    assert [device.device_kind for device in topologies.devices_of(topology)] == [CHIPS[name].kind] * topology.devices


def test_a_missing_compiler_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"libtpu, is not installed.*pip install 'jax\[tpu\]=="):
        require_compiler()


def test_a_compiler_for_another_jax_is_an_error_with_both_versions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(topologies.importlib.metadata, "version", lambda name: "0.0.50")
    monkeypatch.setattr(topologies.importlib.metadata, "requires", lambda name: ['libtpu==0.0.42.*; extra == "tpu"'])
    with pytest.raises(UserError, match=r"libtpu 0\.0\.50 is not the one .* 0\.0\.42\.\*; .*pip install"):
        require_compiler()


@pytest.mark.parametrize(
    ("message", "needs", "has"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm.", 20.25, 15.75),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (44.89G) exceeds available "
         "HBM (15.75G).", 44.89, 15.75),
    ],
)  # fmt: skip
def test_what_the_compiler_says_of_memory_is_understood(message: str, needs: float, has: float):
    found = DoesNotFit.from_message(message)
    assert (found.needs, found.has, found.space) == (needs * 2**30, has * 2**30, "hbm")
