"""The calibration of a chip: two programs of known speed, and their estimates on disk."""

from __future__ import annotations

import pathlib

import jax
import pytest

from bert_jax.tpu.costs.compiler import Calibration, Compiler, calibrate
from bert_jax.tpu.costs.topologies import parse_topology
from tests.tpu.costs.devices import Executable, install_compiler
from tests.tpu.costs.test_estimate import A, program, work


@pytest.fixture
def compiled() -> list[str]:
    """Returns the programs that were compiled."""
    return []


def calibrated(
    name: str, version: int, cache: pathlib.Path | None, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> Calibration:
    """Calibrates a chip with a compiler that estimates 2.2e6 cycles for a matrix product and twice as many for an addition."""

    def compile(lowered: jax.stages.Lowered) -> Executable:
        compiled.append(lowered.as_text())
        cycles = 2_200_000 * (1 if "dot_general" in compiled[-1] else 2)
        return Executable(program(A, f"ROOT {work('w', cycles)}"))

    with monkeypatch.context() as patch:
        install_compiler(patch, compile, version)
        return calibrate(Compiler(parse_topology(name)), cache)


def test_a_calibration_is_cached_by_chip_and_compiler_version(
    compiled: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    first = calibrated("v5e:2x2", 1, None, compiled, monkeypatch)
    assert len(compiled) == 2, "a matrix product and an addition"
    assert calibrated("v5e:2x4", 1, None, compiled, monkeypatch) == first
    assert len(compiled) == 2, "read from the cache"
    calibrated("v5e:2x2", 2, None, compiled, monkeypatch)
    calibrated("v6e:2x2", 1, None, compiled, monkeypatch)
    assert len(compiled) == 6
    assert calibrated("v5e:2x2", 1, tmp_path / "another" / "cache", compiled, monkeypatch) == first
    assert len(compiled) == 8
    kept = [len(list((tmp_path / path).iterdir())) for path in ("cache/calibration", "another/cache")]
    assert kept == [3, 1]
    for damaged in (tmp_path / "another" / "cache").iterdir():
        damaged.write_text("{")
    assert calibrated("v5e:2x2", 1, tmp_path / "another" / "cache", compiled, monkeypatch) == first
    assert len(compiled) == 10


def test_rates_are_fractions_of_the_peak_of_one_device(
    compiled: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    found = calibrated("v7x:2x2x1", 1, tmp_path, compiled, monkeypatch)
    assert found.matmul == pytest.approx(2 * 8192**3 / 1e-3 / (2307e12 / 2), rel=0.001)
    assert found.stream == pytest.approx(3 * 2**30 / 2e-3 / (7380e9 / 2)), "two arrays of a GiB are read, one is written"
    product, addition = compiled
    assert product.count("tensor<8192x8192xbf16>") >= 3
    assert "stablehlo.add" in addition
    assert f"tensor<{2**28}xf32>" in addition
    assert all("mhlo.num_partitions = 1 " in text for text in compiled), "on one device"
