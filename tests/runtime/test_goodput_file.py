from __future__ import annotations

import io
import json
import pathlib
import time
from typing import Any

import pytest

from bert_jax.runtime import goodput
from bert_jax.runtime.goodput import GOODPUT_FILE, GoodputFile, GoodputRecorder, read_goodput


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_start(workdir: pathlib.Path, clock: Clock) -> tuple[GoodputRecorder, GoodputFile]:
    recorder = GoodputRecorder(clock, clock)
    return recorder, GoodputFile(workdir, recorder)


def test_the_last_line_of_a_start_counts_and_a_new_start_continues(tmp_path: pathlib.Path):
    clock = Clock()
    for _ in range(2):
        recorder, file = a_start(tmp_path, clock)
        for _ in range(3):
            clock.now += 5
            file.write()
        file.close()
        clock.now += 100
    records = read_goodput(tmp_path / GOODPUT_FILE)
    assert [(record["start"], record["seconds"]["other"]) for record in records] == [
        *((1, 5.0), (1, 10.0), (1, 15.0), (1, 15.0)),
        *((2, 5.0), (2, 10.0), (2, 15.0), (2, 15.0)),
    ]
    lines = (tmp_path / GOODPUT_FILE).read_bytes().splitlines()
    assert [bool(line) for line in lines] == [True] * 4 + [False] + [True] * 4  # an earlier start may have ended within a line
    totals = recorder.totals()["seconds"]
    assert (totals["other"], totals["between_starts"]) == (130, 100)  # of this start, including the time since its last line


def test_a_line_truncated_by_a_kill_loses_only_that_line(tmp_path: pathlib.Path):
    clock = Clock()
    _, file = a_start(tmp_path, clock)
    clock.now += 5
    file.write()
    path = tmp_path / GOODPUT_FILE
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole + whole[:length])  # a second line, only the beginning of which was written
        recorder, again = a_start(tmp_path, clock)
        again.write()
        assert [record["start"] for record in read_goodput(path)] in ([1, 2], [1, 1, 2])  # a line may lack only its newline
        assert recorder.totals()["starts"] == 2
        again.close()
    file.close()


def test_lines_are_written_periodically(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(goodput, "EVERY", 0.01)
    recorder = GoodputRecorder()
    file = GoodputFile(tmp_path, recorder)
    deadline = time.monotonic() + 20
    while len(read_goodput(tmp_path / GOODPUT_FILE)) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(read_goodput(tmp_path / GOODPUT_FILE)) >= 3
    file.close()


def test_at_most_half_a_minute_is_lost():
    assert goodput.EVERY <= 30


def test_the_writer_thread_does_not_keep_its_process_alive(tmp_path: pathlib.Path):
    _, file = a_start(tmp_path, Clock())
    assert (file._thread.daemon, file._thread.is_alive()) == (True, True)
    file.close()
    assert not file._thread.is_alive()


class TornAtTheFirstError(io.RawIOBase):
    """A file on a network disk: the first write leaves a part and fails."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.failed = path, False

    def open(self, mode: str, buffering: int) -> Any:
        return self

    def tell(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, data: Any) -> int:
        first, self.failed = not self.failed, True
        with self.path.open("ab") as file:
            file.write(data[: len(data) // 2] if first else data)
        if first:
            raise OSError(5, "Input/output error")
        return len(data)

    def close(self) -> None:
        pass


def test_a_partly_written_line_loses_only_that_line(tmp_path: pathlib.Path):
    clock = Clock()
    _, file = a_start(tmp_path, clock)
    clock.now += 5
    file.write()
    file._path = TornAtTheFirstError(tmp_path / GOODPUT_FILE)  # type: ignore[assignment]
    for _ in range(2):
        clock.now += 5
        file.write()
    file._path = tmp_path / GOODPUT_FILE
    file.close()
    assert [record["seconds"]["other"] for record in read_goodput(tmp_path / GOODPUT_FILE)] == [5, 15, 15]


def test_the_next_line_has_everything_after_a_failed_write(tmp_path: pathlib.Path):
    clock, workdir = Clock(), tmp_path / "unmounted"
    _, file = a_start(workdir, clock)
    clock.now += 5
    file.write()
    workdir.mkdir()
    clock.now += 5
    file.close()
    assert [record["seconds"] for record in read_goodput(workdir / GOODPUT_FILE)] == [{"other": 10.0}]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"start": "1", "began": 0, "step": 1, "seconds": {}}',
        '{"start": 1, "began": NaN, "step": 1, "seconds": {}}',
        '{"start": 1, "began": 0, "step": 1, "seconds": {"saving": "1"}}',
        '{"start": 1, "began": 0, "step": 1}',
        "[" * 20_000,
        "\xff",
    ],
)
def test_invalid_lines_are_skipped(tmp_path: pathlib.Path, line: str):
    record = {"start": 1, "began": 0.5, "step": 3, "seconds": {"training": 2.5}}
    (tmp_path / GOODPUT_FILE).write_bytes(line.encode("latin-1") + b"\n" + json.dumps(record).encode() + b"\n")
    assert read_goodput(tmp_path / GOODPUT_FILE) == [record]
