"""The calibration of a chip: two programs of known speed, and their estimates on disk."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import jax
import pytest

from bert_jax.tpu.costs.compiler import Calibration, calibrate
from bert_jax.tpu.costs.topologies import parse_topology


class Compiler:
    """A compiler that estimates a millisecond for a product and two for an addition, and records its inputs."""

    def __init__(self, chip: str, version: str):
        self.topology, self.version, self.devices = parse_topology(f"{chip}:2x2"), version, jax.devices()
        self.compiled: list[str] = []

    def compile(self, lowered: jax.stages.Lowered) -> float:
        self.compiled.append(lowered.as_text())
        return 1e-3 if "dot_general" in self.compiled[-1] else 2e-3

    @staticmethod
    def estimate(seconds: float) -> Any:
        return types.SimpleNamespace(seconds=seconds)


def calibrated(compiler: Compiler, cache: pathlib.Path | None) -> Calibration:
    return calibrate(compiler, cache)  # type: ignore[arg-type]


def test_a_calibration_is_cached_by_chip_and_compiler_version(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bert_jax.tpu.costs.compiler.cache_directory", lambda: tmp_path / "cache")
    compiler = Compiler("v5e", "1")
    first = calibrated(compiler, None)
    assert len(compiler.compiled) == 2, "a matrix product and an addition"
    assert calibrated(compiler, None) == first
    assert len(compiler.compiled) == 2, "read from the cache"
    for other in (Compiler("v5e", "2"), Compiler("v6e", "1")):
        calibrated(other, None)
        assert len(other.compiled) == 2
    elsewhere = Compiler("v5e", "1")
    assert calibrated(elsewhere, tmp_path / "another" / "cache") == first
    assert len(elsewhere.compiled) == 2
    kept = [len(list((tmp_path / path).iterdir())) for path in ("cache/calibration", "another/cache")]
    assert kept == [3, 1]


def test_rates_are_fractions_of_the_peak_of_one_device(tmp_path: pathlib.Path):
    compiler = Compiler("v7x", "1")
    found = calibrated(compiler, tmp_path)
    assert found.matmul == pytest.approx(2 * 8192**3 / 1e-3 / (2307e12 / 2))
    assert found.stream == pytest.approx(3 * 2**30 / 2e-3 / (7380e9 / 2)), "two arrays of a GiB are read, one is written"
    product, addition = compiler.compiled
    assert product.count("tensor<8192x8192xbf16>") >= 3
    assert "stablehlo.add" in addition
    assert f"tensor<{2**28}xf32>" in addition
    assert all("mhlo.num_partitions = 1 " in text for text in compiler.compiled), "on one device"
