"""Records are read ahead in windows: full windows from a file, but each line at once from a pipe or a terminal."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from bert_jax.errors import UserError
from bert_jax.prediction.answers import in_groups
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import read_records

TEXT = (Field("text"),)
QUESTION = (Field("question"), Field("context"))


def records_of(sizes: list[int]) -> list[Record]:
    return [Record(number, "", {"text": ""}, size=size) for number, size in enumerate(sizes, 1)]


def test_windows_hold_every_record_in_order():
    records = records_of([1] * 10_000)
    held = list(in_groups(records, 64))
    assert list(itertools.chain(*held)) == records
    assert max(map(len, held)) <= 64
    assert list(in_groups([], 64)) == []


def test_a_file_fills_its_windows():
    assert [len(window) for window in in_groups(records_of([1] * 250), 100, wait=600)] == [100, 100, 50]


def test_a_window_of_long_lines_ends_with_the_line_that_reaches_32_mebibytes():
    most = 32 << 20
    for sizes, windows in (([13 << 20, 13 << 20, 13 << 20, most, 1, most - 1], [3, 1, 2]), ([most - 1, 1, most - 1, 2], [2, 2])):
        assert [len(window) for window in in_groups(records_of(sizes), 100, wait=600)] == windows


def test_the_first_record_may_take_any_time():
    arrived = threading.Event()

    def late() -> Iterator[Record]:
        arrived.wait()
        yield from records_of([1])

    threading.Timer(0.05, arrived.set).start()
    assert [len(window) for window in in_groups(late(), 10, wait=0)] == [1]


def test_endless_input_is_read_only_one_window_ahead():
    read_ones = itertools.count(1)
    endless = (Record(next(read_ones), "", {}) for _ in itertools.count())
    windows = in_groups(endless, 10, wait=600)
    first = next(windows)
    ahead = threading.Event()
    ahead.wait(0.1)  # by now the thread has all that it could read
    assert len(first) == 10
    assert next(read_ones) <= 10 + 10 + 2
    windows.close()


def test_a_slow_pipe_gets_each_answer_before_its_next_line(pipe):
    reader, writer = pipe
    writer.write(b"line 0\n")
    patience = threading.Timer(20, writer.close)  # so that a reader that waits for more cannot hang the test
    patience.start()
    answered = []
    for window in in_groups(read_records([], None, TEXT, stdin=reader), 1024):
        answered += [record.values["text"] for record in window]
        if len(answered) < 4:
            writer.write(f"line {len(answered)}\n".encode())
        else:
            writer.close()
    patience.cancel()
    assert answered == [f"line {n}" for n in range(4)]


def test_available_lines_of_a_pipe_are_answered_together(pipe):
    reader, writer = pipe
    writer.write(b"line\n" * 50)
    windows = in_groups(read_records([], None, TEXT, stdin=reader), 1024)
    assert len(next(windows)) == 50
    writer.close()
    assert list(windows) == []


@pytest.mark.parametrize(
    ("lines", "jsonl", "form"),
    [(b"one\n\nthree\n\x04", False, "question TAB context"), (b"{}\n\n{}\n\x04", True, "JSON object")],
)
def test_typed_lines_are_answered_one_by_one_with_a_hint_how_to_end(capsys, lines, jsonl, form):
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "r") as keyboard:
        os.write(controller, lines)
        records = read_records([], None, QUESTION, stdin=keyboard, jsonl=jsonl, blank_lines=True)
        windows = list(in_groups(records, 1024, wait=600))
        os.close(controller)
    assert [[(record.number, record.blank) for record in window] for window in windows] == [[(1, False)], [(3, False)]]
    assert capsys.readouterr().err == f"type one {form} per line; end with Ctrl-D\n"


def test_a_reader_error_comes_after_the_earlier_records():
    def broken() -> Iterator[Record]:
        yield from records_of([1, 1, 1])
        raise UserError("the disk is gone")

    windows = in_groups(broken(), 2, wait=600)
    assert [record.number for _ in range(2) for record in next(windows)] == [1, 2, 3]
    with pytest.raises(UserError, match="the disk is gone"):
        next(windows)


def test_leaving_the_windows_early_ends_their_thread(tmp_path):
    before = set(threading.enumerate())
    (tmp_path / "in.txt").write_text("line\n" * 1000)
    windows = in_groups(read_records([], str(tmp_path / "in.txt"), TEXT), 10)
    next(windows)
    (thread,) = set(threading.enumerate()) - before
    windows.close()
    thread.join(10)
    assert not thread.is_alive()
