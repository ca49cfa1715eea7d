"""The calibration of a chip is estimated once for each version of the compiler."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import jax
import pytest

from bert_jax.costs.calibration import SIDE, STREAMED, calibrate
from bert_jax.costs.topologies import parse_topology


def test_a_calibration_is_estimated_once_for_each_version_of_the_compiler(tmp_path: pathlib.Path):
    chip = parse_topology("v5e:2x2").chip
    estimated: list[Any] = []

    def estimate(program: Any) -> Any:
        estimated.append(program)
        return types.SimpleNamespace(seconds=1e-3)

    def compiler(version: str) -> Any:
        return types.SimpleNamespace(
            topology=types.SimpleNamespace(chip=chip), version=version, devices=jax.devices(), compile=str, estimate=estimate
        )

    first = calibrate(compiler("1"), tmp_path)
    assert first.matmul == pytest.approx(2 * SIDE**3 / 1e-3 / (chip.peak_flops / chip.devices))
    assert first.stream == pytest.approx(3 * 4 * STREAMED / 1e-3 / (chip.bandwidth / chip.devices))
    assert len(estimated) == 2, "a matrix product and an addition"
    assert calibrate(compiler("1"), tmp_path) == first
    assert len(estimated) == 2, "read from the cache"
    calibrate(compiler("2"), tmp_path)
    assert len(estimated) == 4
