from __future__ import annotations

import subprocess
import sys
import threading

import grain
import numpy as np
import pytest

from bert_jax.data.prefetch import prefetch
from bert_jax.errors import UserError


def test_batches_come_in_order_from_start_to_stop():
    batches = prefetch(lambda step: {"step": np.int64(step)}, 3, 50, threads=4, ahead=8)
    assert [batch["step"] for batch in batches] == list(range(3, 50))


def test_an_empty_range_gives_no_batches():
    assert list(prefetch(lambda step: step, 5, 5)) == []
    assert list(prefetch(lambda step: step, 7, 5)) == []


def test_the_prefetched_function_may_return_none():
    assert list(prefetch(lambda step: None, 0, 3)) == [None] * 3


def test_two_threads_prefetch_four_batches_by_default(monkeypatch):
    options, asked = grain.ReadOptions, []
    monkeypatch.setattr(grain, "ReadOptions", lambda **named: asked.append(named) or options(**named))
    assert list(prefetch(lambda step: step, 0, 1)) == [0]
    assert list(prefetch(lambda step: step, 0, 1, threads=3, ahead=5)) == [0]
    assert asked == [{"num_threads": 2, "prefetch_buffer_size": 4}, {"num_threads": 3, "prefetch_buffer_size": 5}]


def test_batches_are_made_ahead_up_to_a_limit():
    made = []
    fifth = threading.Event()

    def make(step):
        made.append(step)
        if len(made) == 5:
            fifth.set()
        return step

    iterator = prefetch(make, 0, 1000, threads=1, ahead=4)
    assert next(iterator) == 0
    assert fifth.wait(30)  # step 0 is taken, 1 to 4 wait
    iterator.close()
    assert len(made) == 5


def test_prefetching_starts_immediately():
    begun = threading.Event()
    iterator = prefetch(lambda step: begun.set(), 0, 10)
    assert begun.wait(30)
    iterator.close()


@pytest.mark.parametrize("error", [UserError("mend this"), KeyError("x")])
def test_an_exception_is_raised_unchanged_at_its_step(error):
    def make(step):
        if step == 3:
            raise error
        return step

    iterator = prefetch(make, 0, 10)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error


@pytest.mark.parametrize("way", ["close", "exhaust", "fail", "with"])
def test_threads_end_when_prefetching_is_closed(way):
    def make(step):
        if way == "fail" and step == 5:
            raise KeyError(step)
        return step

    before = set(threading.enumerate())
    iterator = prefetch(make, 0, 6, threads=3)
    next(iterator)
    started = set(threading.enumerate()) - before
    assert started
    if way == "close":
        iterator.close()
    elif way == "exhaust":
        assert list(iterator) == [1, 2, 3, 4, 5]
    elif way == "fail":
        with pytest.raises(KeyError):
            list(iterator)
    else:
        with iterator:
            next(iterator)
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()
    assert list(iterator) == []


def test_a_program_can_end_while_prefetching():
    program = "from bert_jax.data.prefetch import prefetch; it = prefetch(lambda step: step, 0, 10**6); print(next(it))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_ready_refers_to_the_next_batch():
    first, second = threading.Event(), threading.Event()
    gates = [first, second]

    def make(step):
        assert gates[step].wait(30)
        return step

    with prefetch(make, 0, 2) as batches:
        assert not batches.is_ready()
        assert not batches.is_ready(within=0.01)
        first.set()
        assert batches.is_ready(within=1e6)  # notified at once, not after the timeout
        assert next(batches) == 0
        assert not batches.is_ready(within=0.01)
        second.set()
        assert batches.is_ready(within=30)
        assert next(batches) == 1
        assert batches.is_ready()  # the end is immediate
        assert batches._made._steps == set()  # taken items are released
    assert list(batches) == []


def test_an_error_counts_as_ready():
    def make(step):
        raise UserError("no such row")

    batches = prefetch(make, 0, 3)
    assert batches.is_ready(within=30)
    with pytest.raises(UserError, match="no such row"):
        next(batches)
    assert batches.is_ready()  # closed
