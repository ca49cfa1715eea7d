"""Names of slices, the data sheets behind them, and the errors about wrong names."""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import pytest
from jax.experimental import topologies as jax_topologies

from bert_jax.errors import UserError
from bert_jax.hardware import CHIPS, peak_flops
from bert_jax.tpu.costs import topologies
from bert_jax.tpu.costs.compiler import DoesNotFit
from bert_jax.tpu.costs.topologies import check_topology, known_shapes, parse_topology, require_compiler
from tests.tpu.costs.devices import Description


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [("v5e:4x4", "v5e:4x4", 16, 16), ("V5P:4x4x4", "v5p:4x4x4", 64, 64),
     ("v4:2x2", "v4:2x2x1", 4, 4),
     ("4xv5e:16x16", "4xv5e:16x16", 1024, 1024), ("tpu7x:2x2x1", "v7x:2x2x1", 4, 8),
     ("v5p:16x20x28", "v5p:16x20x28", 8960, 8960), ("v6e:4x2", "v6e:4x2", 8, 8), ("v7x:8x4x4", "v7x:8x4x4", 128, 256)],
)  # fmt: skip
def test_a_slice_is_named_by_generation_and_shape(text: str, name: str, chips: int, devices: int):
    found = parse_topology(text)
    assert (found.name, found.chips, found.devices) == (name, chips, devices)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e:4x3", "v5e has no slice 4x3; nearest: v5e:4x4 (16 chips); v5e has 1x1, 2x2, 2x4"),
        ("v5e-16", "has a number where a shape is needed; nearest: v5e:4x4"),
        ("v5e-0", "nearest: v5e:1x1 (1 chip); v5e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v3-8", "is not written as GENERATION:SHAPE"),
        ("v5p-128", "nearest: v5p:4x4x4 (64 chips)"),
        ("v3:2x2", "there is no TPU 'v3'; there are v4, v5e, v5p, v6e, v7x, for example v4:2x2x4"),
        ("trilium:2x2", "there is no TPU 'trilium'; did you mean 'v6e'? there are v4, v5e"),
        ("0xv5e:2x2", "--topology=0xv5e:2x2 is 0 slices; give at least 1"),
        ("v5e", "is not written as GENERATION:SHAPE"),
        (
            "v5p:5x5x5",
            "v5p:4x4x8 (128 chips); v5p has 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, 4x4x8, 4x4x12, 4x4x16 ... 16x20x28",
        ),
    ],
)
def test_an_unknown_topology_is_refused_with_the_nearest_and_all_names(text: str, says: str):
    with pytest.raises(UserError) as error:
        parse_topology(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "slices", "says"),
    [
        ("v5e:2x2", 0, "--slices=0 is 0 slices; give at least 1"),
        ("v5e:2x2", -2, "--slices=-2 is -2 slices"),
        ("2xv5e:2x2", 0, "--topology=2xv5e:2x2 says 2 slices, but --slices=0"),
    ],
)
def test_a_separate_number_of_slices_must_be_positive_and_match_the_name(text: str, slices: int, says: str):
    with pytest.raises(UserError, match=says):
        parse_topology(text, slices)
    assert parse_topology("v5e:2x2", 2) == parse_topology("2xv5e:2x2", 2) == parse_topology("2xv5e:2x2")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--config=x.py", "--topology", "v5e:4x4"], ""),
        (["--topology=v5e:4x4", "--slices=2"], ""),
        (["--topology=2xv5e:4x4", "--slices", "2"], ""),
        (["--topology=2xv5e:4x4", "--slices=3"], "says 2 slices, but --slices=3; give only one of them"),
        (["--slices=0", "--topology=v5e:4x4"], "--slices=0 is 0 slices; give at least 1"),
        (["--topology", "v5e:3x5"], "v5e has no slice 3x5"),
        (["--topology=v5e:4x4", "--slices=many"], ""),  # the parser of `aot` refuses it
        (["--slices=0"], ""),
    ],
)
def test_flags_are_checked_before_the_compiler_is_installed(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert check_topology(flags) == (2 if says else 0)
    error = capsys.readouterr().err
    assert says in error if says else not error


def test_rings_are_closed_as_in_the_pod():
    assert parse_topology("v5e:8x16").rings == (False, True)
    assert parse_topology("v5p:4x4x8").rings == (True, True, True)
    assert parse_topology("v5p:2x4x4").rings == (False, False, False)


@pytest.mark.parametrize("name", CHIPS)
def test_peaks_equal_the_training_log_and_follow_from_clocks_and_matrix_units(name: str):
    chip = CHIPS[name]
    assert chip.peak_flops == chip.devices * (peak_flops(chip.kind) or 0)
    assert chip.clock * chip.cores * chip.matrix_units * 2 * chip.matrix_width**2 == pytest.approx(chip.peak_flops, rel=0.003)


@pytest.mark.parametrize(("name", "pod"), [("v4", (16, 16, 16)), ("v5p", (16, 20, 28)), ("v7x", (16, 24, 24))])
def test_larger_slices_are_boxes_of_cubes_that_fit_the_pod(name: str, pod: tuple[int, int, int]):
    known = known_shapes(CHIPS[name])
    sides = range(4, 32, 4)
    boxes = {
        (a, b, c) for a in sides for b in sides for c in sides if a <= b <= c and a <= pod[0] and b <= pod[1] and c <= pod[2]
    }
    assert known[:5] == [(1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)]
    assert set(known[5:]) == boxes
    assert len(known) == 5 + len(boxes)
    chips = [a * b * c for a, b, c in known]  # type: ignore[misc]
    assert chips == sorted(chips)


@pytest.mark.parametrize("name", ["v5e", "v6e"])
def test_flat_slices_double_alternate_sides(name: str):
    doubled = [(2**n, 2 ** (n + more)) for n in range(5) for more in (0, 1) if 0 < n + more < 5 and (n or not more)]
    assert known_shapes(CHIPS[name]) == [(1, 1), *doubled]


def test_the_cores_of_a_chip_share_its_memory():
    assert parse_topology("v7x:2x2x1").device_memory == 96 * 2**30
    assert parse_topology("v5p:2x2x1").device_memory == 95 * 2**30


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "link", "network", "dimensions", "devices"),
    [
        ("v4", 32, 1228, 400, 25, 3, 1),
        ("v5e", 16, 819, 400, 25, 2, 1),
        ("v5p", 95, 2765, 800, 50, 3, 1),
        ("v6e", 32, 1638, 800, 100, 2, 1),
        ("v7x", 192, 7380, 800, 100, 3, 2),
    ],
)
def test_a_chip_has_the_figures_of_its_data_sheet(
    name: str, memory: int, bandwidth: int, link: int, network: int, dimensions: int, devices: int
):
    """The units are the same as in the data sheets: GiB, GB/s, and Gbit/s of a link and of the network."""
    chip = CHIPS[name]
    assert (chip.memory_bytes, chip.bandwidth) == (memory * 1024**3, bandwidth * 1e9)
    assert (chip.link_bandwidth, chip.network_bandwidth) == (link / 8 * 1e9, network / 8 * 1e9)
    assert (chip.links, chip.dimensions, chip.devices) == (2 * dimensions, dimensions, devices)
    assert chip.whole_ring == {2: 16, 3: 4}[dimensions]
    assert (chip.cores, chip.matrix_units) == (1 if dimensions == 2 else 2, 4)


@pytest.mark.parametrize("name", CHIPS)
def test_device_names_of_the_compiler_equal_the_table(name: str):
    pytest.importorskip("libtpu")
    topology = parse_topology(f"{name}:2x2")
    topologies.prepare_compiler()
    assert [device.device_kind for device in topologies.topology_devices(topology)] == [CHIPS[name].kind] * topology.devices


def test_a_missing_compiler_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"libtpu\) is not installed.*pip install 'jax\[tpu\]=="):
        require_compiler()


def test_a_compiler_for_another_jax_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(topologies.importlib.metadata, "version", lambda name: "0.0.50")
    needs = ["numpy>=2.0", 'libtpu==0.0.42.*; extra == "tpu"']
    monkeypatch.setattr(topologies.importlib.metadata, "requires", lambda name: needs)
    with pytest.raises(UserError, match=r"libtpu has version 0\.0\.50, but jax .* needs 0\.0\.42\.\*; .*pip install"):
        require_compiler()
    monkeypatch.setattr(topologies.importlib.metadata, "version", lambda name: "0.0.42.1")
    assert require_compiler() == "0.0.42.1"


def test_the_environment_of_the_compiler_hides_tpus_and_sets_its_dumps(monkeypatch: pytest.MonkeyPatch):
    environment = {"TF_CPP_MIN_LOG_LEVEL": "0", "LIBTPU_INIT_ARGS": "--given"}
    monkeypatch.setattr(topologies.os, "environ", environment)
    topologies.prepare_compiler()
    assert environment["TPU_SKIP_MDS_QUERY"] == environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert (environment["TF_CPP_MIN_LOG_LEVEL"], environment["LIBTPU_INIT_ARGS"]) == ("0", "--given"), "as its user set them"
    topologies.prepare_compiler("/dumps")
    assert environment["LIBTPU_INIT_ARGS"].startswith("--given --xla_jf_dump_to=/dumps ")


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("v5e:2x4", "v5e:2x4", {}),
        ("2xv5e:2x4", "v5e:2x4", {"num_slices": 2}),
        ("v6e:1x1", "v6e:1x1", {"chips_per_host_bounds": [1, 1, 1]}),
        ("v4:2x2", "v4:2x2x1", {"chip_config_name": "megacore"}),
        ("v7x:2x2", "tpu7x:2x2x1", {}),
    ],
)
def test_devices_are_requested_by_the_names_of_the_compiler(
    text: str, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def described(*given: str, **more: Any) -> Any:
        assert (given, more) == ((name, "tpu"), options)
        return Description(jax.devices()[:2])

    monkeypatch.setattr(jax_topologies, "get_topology_desc", described)
    assert topologies.topology_devices(parse_topology(text)) == jax.devices()[:2]

    def refuses(*given: str, **more: Any) -> None:
        raise jax.errors.JaxRuntimeError("UNKNOWN: no such topology\nmore")

    monkeypatch.setattr(jax_topologies, "get_topology_desc", refuses)
    monkeypatch.setattr(topologies.importlib.metadata, "version", lambda name: "1.0")
    with pytest.raises(
        UserError, match=rf"\(libtpu 1\.0\) refuses the topology {parse_topology(text).name}: UNKNOWN: no such topo"
    ):
        topologies.topology_devices(parse_topology(text))


def test_only_stderr_output_of_libraries_is_dropped(capfd: pytest.CaptureFixture[str], monkeypatch):
    with open(2, "w", closefd=False, encoding="utf8") as buffered:
        monkeypatch.setattr(sys, "stderr", buffered)
        buffered.write("before, ")
        free = os.dup(2)
        os.close(free)
        with topologies.silence():
            buffered.flush()
            os.write(2, b"a library's, ")
        os.write(2, b"after")
    assert capfd.readouterr().err == "before, after"
    again = os.dup(2)
    os.close(again)
    assert again == free, "a descriptor stays open"


@pytest.mark.parametrize(
    ("message", "needs", "has"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm.", 20.25, 15.75),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (44.89G) exceeds available "
         "HBM (15.75G).", 44.89, 15.75),
    ],
)  # fmt: skip
def test_memory_messages_of_the_compiler_are_parsed(message: str, needs: float, has: float):
    found = DoesNotFit.from_message(message)
    assert (found.needs, found.has, found.space) == (needs * 2**30, has * 2**30, "hbm")
