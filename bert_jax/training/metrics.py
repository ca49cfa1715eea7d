"""Writes the metrics of a run: `metrics.jsonl`, and log sinks such as TensorBoard.

`metrics.jsonl` is the primary record: one JSON object per line with its `step`, appended during the run. The sinks are filled
from it whenever a run starts, so they agree with it even after a kill.
"""

from __future__ import annotations

import json
import logging
import math
import pathlib
import time
from collections.abc import Mapping, Sequence

from bert_jax.files import JsonObject, write_text
from bert_jax.interface.words import counted
from bert_jax.runtime.workdir import METRICS, read_metrics
from bert_jax.training.config import LogConfig
from bert_jax.training.sinks import Sinks, load_sinks

log = logging.getLogger(__name__)


class MetricsWriter:
    """Appends to `WORKDIR/metrics.jsonl` and writes to the log sinks.

    A run that resumes from `resume_step` first removes an incomplete last line and the lines of later steps, which it is about to
    repeat, so every step appears once. For this to work, the training loop writes the lines of a step before its checkpoint.

    A full disk or an exceeded quota does not end the run: lines are kept in memory until they can be written.

    >>> with MetricsWriter(workdir, resume_step=0) as metrics:
    ...     metrics.write(10, {"train/loss": 9.1, "train/mlm_accuracy": 0.02})
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        resume_step: int,
        sinks: Sequence[str] = LogConfig.sinks,
        config: JsonObject | None = None,
    ):
        """`sinks` are names of sinks, which receive the `config` of the run. Raises UserError for an unknown sink."""
        self._path = workdir / METRICS
        kinds = load_sinks(sinks)
        self._lines = _drop_later_lines(self._path, resume_step)
        self._file = self._path.open("ab", buffering=0)  # unbuffered, so a kill of this process loses no line
        self._unwritten = b""
        self._failed = False
        self._sinks = Sinks(kinds, workdir, config or {})
        self._sinks.write(self._lines, self._records)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line. Names are `GROUP/NAME` (`train/loss`, `eval/mlm_accuracy`); NaN and infinities become null."""
        numbers = {name: float(value) for name, value in values.items()}
        record: JsonObject = {"step": int(step), "time": round(time.time(), 3)}
        record |= {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        self._unwritten += json.dumps(record).encode() + b"\n"
        if self._write_lines():
            self._sinks.write(self._lines, self._records, record)

    def rollback(self, step: int) -> None:
        """Removes the lines of steps after `step`, which are about to be repeated."""
        self._write_lines()
        self._file.close()
        self._lines = _drop_later_lines(self._path, step)
        self._file = self._path.open("ab", buffering=0)
        self._sinks.close()
        self._sinks.write(self._lines, self._records)

    def close(self) -> None:
        """Closes the files. `write` must not be called afterwards."""
        if not self._write_lines():
            log.warning("lost %s of %s", counted(self._unwritten.count(b"\n"), "line"), self._path)
        else:
            self._sinks.write(self._lines, self._records)
        try:
            self._file.close()
        except OSError as error:  # a network file system may report a failed write only on close
            log.warning("the last lines of %s may be lost (%s)", self._path, error.strerror)
        self._sinks.close()

    def _records(self) -> list[JsonObject]:
        return read_metrics(self._path)

    def _write_lines(self) -> bool:
        """Writes the pending lines. Returns whether all are in the file."""
        try:
            while self._unwritten:
                written = self._file.write(self._unwritten)
                self._lines += self._unwritten[:written].count(b"\n")
                self._unwritten = self._unwritten[written:]
        except OSError as error:
            if not self._failed:
                message = "lines cannot be written to %s (%s); they are kept in memory until they can be, and training continues"
                log.warning(message, self._path, error.strerror)
            self._failed = True
            return False
        self._failed = False
        return True


def _drop_later_lines(path: pathlib.Path, step: int) -> int:
    """Removes the lines of steps after `step` from a file, if it exists. Returns the number of remaining lines."""
    if not path.exists():
        return 0
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    wanted = "".join(json.dumps(record) + "\n" for record in kept)
    if wanted != text:
        write_text(path, wanted)
    return len(kept)
