"""Rates computed from the time of a program: what is timed, how often it is repeated, and what is counted."""

from __future__ import annotations

import itertools
import time
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.tpu.diagnosis import speed


class Pending:
    """A result whose computation takes `seconds` of the clock when it is waited for."""

    def __init__(self, clock: list[float], seconds: float):
        self._clock, self._seconds = clock, seconds

    def block_until_ready(self) -> Pending:
        self._clock[0] += self._seconds
        return self


def timed(monkeypatch: pytest.MonkeyPatch, start: float, each: float, times: int = 0) -> tuple[float, list[int]]:
    """Returns the measured seconds of a repetition if a start takes `start` and a repetition `each`, and the number of
    repetitions."""
    asked: list[int] = []
    clock = [100.0]

    def run(times: int) -> Any:
        asked.append(times)
        return Pending(clock, start + each * times)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return speed._seconds(run, times) if times else speed._seconds(run), asked


def test_a_program_is_repeated_until_it_can_be_timed_or_as_often_as_requested(monkeypatch: pytest.MonkeyPatch):
    seconds, asked = timed(monkeypatch, start=0.002, each=0.01)
    assert seconds == pytest.approx(0.01), "the start does not count"
    assert asked == [1, 1, 1, *[12] * 3]  # compiled, timed twice, then repeated for 0.15 s
    seconds, asked = timed(monkeypatch, start=0.002, each=0.01, times=4)
    assert seconds == pytest.approx(0.042 / 4)
    assert asked == [1, 1, 1, *[4] * 3]
    assert timed(monkeypatch, start=0.002, each=0.01, times=5)[0] == pytest.approx(0.01)


def test_a_slow_program_runs_twice_and_a_fast_one_a_thousand_times(monkeypatch: pytest.MonkeyPatch):
    assert timed(monkeypatch, start=0.0, each=1.0) == (1.0, [1, 1, 1, 2, 2, 2])
    assert timed(monkeypatch, start=0.0, each=1e-5) == (pytest.approx(1e-5, rel=1e-3), [1, 1, 1, 1000, 1000, 1000])
    assert timed(monkeypatch, start=0.0, each=0.0) == (1e-9 / 999, [1, 1, 1, 1000, 1000, 1000])


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[jax.Array]:
    """Returns the results that are waited for: of one repetition three times, then of two or more. By the clock, each takes a
    second. Arrays are small."""
    waited: list[jax.Array] = []
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    for name, value in {"CPU_SIDE": 16, "CPU_STREAMED": 32, "CPU_SENT": 64, "SIDE": 8, "STREAMED": 8, "SENT": 8}.items():
        monkeypatch.setattr(speed, name, value)
    return waited


def test_the_timed_product_keeps_the_scale_of_its_elements(results: list[jax.Array]):
    device = jax.devices()[1]
    assert speed.flops(device) == 2 * 16**3 / 0.5, "two products in a second"
    x = np.asarray(jax.random.normal(jax.random.key(0), (16, 16)))
    once, twice = x @ x / 4, x @ x @ x / 4**2
    assert results[0] == pytest.approx(once[0, 0], rel=1e-4)
    assert results[-1] == pytest.approx(twice[0, 0], rel=1e-4)
    assert results[-1].devices() == {device}


def test_an_addition_reads_two_arrays_and_writes_one(results: list[jax.Array]):
    device = jax.devices()[1]
    assert speed.bandwidth(device) == 3 * 4 * 32 / 0.5
    assert [float(result) for result in results] == [1, 1, 1, 2, 2, 2]
    assert results[-1].devices() == {device}


def test_an_all_reduce_sends_nearly_twice_the_data_of_a_device(results: list[jax.Array]):
    devices = jax.devices()[:4]
    assert speed.links(devices) == 4 * 64 * 2 * 3 / 4 / 0.25, "four sums in every process, since they wait for each other"
    assert [(result.shape, float(result[0]), result.devices()) for result in results] == [((1,), 1.0, {devices[0]})] * 6
    assert speed.links(devices[:1]) is None


def test_measured_programs_exceed_caches_and_launch_time():
    assert [float(f"{2 * side**3:.2g}") for side in (speed.CPU_SIDE, speed.SIDE)] == [2.1e9, 1.1e12]  # operations
    assert (speed.CPU_SIDE % 128, speed.SIDE % 128) == (0, 0), "rows fill the matrix units"
    assert [4 * count / 2**20 for count in (speed.CPU_STREAMED, speed.STREAMED)] == [128, 512]  # MiB of an array
    assert [4 * count / 2**20 for count in (speed.CPU_SENT, speed.SENT)] == [4, 64]
