"""Writes the metrics of a run: `metrics.jsonl` and TensorBoard event files.

`metrics.jsonl` is the primary record: one JSON object per line with its `step`, appended during the run. The event files are
rewritten from it whenever a run starts, so the two agree after any kill.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import pathlib
import time
from collections.abc import Mapping

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from bert_jax.data.corpus.files import JsonObject, write_text
from bert_jax.interface.words import counted
from bert_jax.runtime.workdir import EVENTS, METRICS, read_metrics

log = logging.getLogger(__name__)


class MetricsWriter:
    """Appends to `WORKDIR/metrics.jsonl` and to the event files under `WORKDIR/tensorboard/`.

    A run that continues from `resume_step` first removes the lines of later steps, which it is about to repeat, and an incomplete
    last line, so every step appears once. Therefore the training loop writes the lines of a step before its checkpoint.

    A full disk or an exceeded quota does not end the run: lines are kept in memory until they can be written.

    >>> with MetricsWriter(workdir, resume_step=0) as metrics:
    ...     metrics.write(10, {"train/loss": 9.1, "train/mlm_accuracy": 0.02})
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        self._path = workdir / METRICS
        _drop_later_lines(self._path, resume_step)
        self._file = self._path.open("ab", buffering=0)  # unbuffered, so a kill of this process loses no line
        self._unwritten = b""
        self._failed = False
        # Not tensorboardX's FileWriter: its thread ends at the first error, and the run would block after ten more records.
        self._events: EventsWriter | None = None
        self._directory = workdir / EVENTS
        self._write_events(None)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line. Names are `GROUP/NAME` (`train/loss`, `heldout/mlm_accuracy`); NaN and infinities become null."""
        numbers = {name: float(value) for name, value in values.items()}
        record: JsonObject = {"step": int(step), "time": round(time.time(), 3)}
        record |= {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        self._unwritten += json.dumps(record).encode() + b"\n"
        if self._write_lines():
            self._write_events(record)
        else:
            self._close_events()  # rewritten from the lines once those are written

    def go_back(self, step: int) -> None:
        """Removes the lines of steps after `step`, which are about to be repeated."""
        self._write_lines()
        self._file.close()
        _drop_later_lines(self._path, step)
        self._file = self._path.open("ab", buffering=0)
        self._close_events()
        self._write_events(None)

    def close(self) -> None:
        """Closes the files; `write` must not be called afterwards."""
        if not self._write_lines():
            log.warning("lost %s of %s", counted(self._unwritten.count(b"\n"), "line"), self._path)
        elif self._events is None:
            self._write_events(None)
        try:
            self._file.close()
        except OSError as error:  # a network file system may report a failed write only on close
            log.warning("the last lines of %s may be lost (%s)", self._path, error.strerror)
        self._close_events()

    def _write_lines(self) -> bool:
        """Writes the pending lines. Returns whether all are in the file."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if not self._failed:
                message = "lines cannot be written to %s (%s); they are kept in memory until they can, and training continues"
                log.warning(message, self._path, error.strerror)
            self._failed = True
            return False
        self._failed = False
        return True

    def _write_events(self, record: JsonObject | None) -> None:
        """Appends one record to the event file; without an open file (at the start, after a failure) writes all records to a new
        one."""
        try:
            if self._events is None:
                self._directory.mkdir(exist_ok=True)
                if not self._directory.is_symlink():  # where a link leads to, other runs may have theirs
                    for old in self._directory.glob("events.out.tfevents.*"):
                        old.unlink()
                self._events = EventsWriter(str(self._directory / "events"))
                for earlier in read_metrics(self._path):
                    self._events.write_event(_event(earlier))
            elif record is not None:
                self._events.write_event(_event(record))
            self._events.flush()
        except OSError:  # an incomplete event file is unusable
            self._close_events()

    def _close_events(self) -> None:
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
        self._events = None


def _event(record: JsonObject) -> Event:
    values = [
        Summary.Value(tag=name, simple_value=math.nan if value is None else value)
        for name, value in record.items()
        if name not in ("step", "time")
    ]
    return Event(step=record["step"], wall_time=record.get("time"), summary=Summary(value=values))


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    wanted = "".join(json.dumps(record) + "\n" for record in kept)
    if wanted != text:
        write_text(path, wanted)
