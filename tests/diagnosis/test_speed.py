from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from bert_jax.diagnosis import speed


def test_a_program_is_repeated_for_long_enough_to_be_timed_or_as_often_as_was_asked(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    clock = [0.0]

    def run(times: int) -> jax.Array:
        asked.append(times)
        clock[0] += 0.002 + 0.01 * times  # a start, which does not count, and the repetitions
        return jnp.zeros(1)

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    assert speed._seconds(run) == pytest.approx(0.01)
    times = int(speed.SECONDS / 0.012)
    assert asked == [1, 1, 1, *[times] * speed.TRIES]  # it compiles, is timed twice, and is repeated
    asked.clear()
    assert speed._seconds(run, times=4) == pytest.approx(0.042 / 4)
    assert asked == [1, 1, 1, *[4] * speed.TRIES]
