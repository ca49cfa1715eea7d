"""The files of a run that others read: `metrics.jsonl`, TensorBoard event files, `results.json`.

`metrics.jsonl` is the truth: one JSON object a line with its `step`, appended as the run goes. The event files are made from it
whenever a run starts, so the two agree after any kill.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.writer import FileWriter

METRICS = "metrics.jsonl"
RESULTS = "results.json"
EVENTS = "tensorboard"


class MetricsWriter:
    """Appends to `WORKDIR/metrics.jsonl` and to the event files under `WORKDIR/tensorboard/`.

    A run that continues from `resume_step` first drops the lines of later steps, which it is about to repeat, and a last line
    that a kill cut short; then every step appears once. So the loop writes a step's lines before it saves that step's checkpoint.

    >>> with MetricsWriter(workdir, resume_step=0) as metrics:
    ...     metrics.write(10, {"train/loss": 9.1, "train/mlm_accuracy": 0.02})
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        path = workdir / METRICS
        records = _forget_after(path, resume_step)
        self._file = path.open("a", encoding="utf-8")
        events = workdir / EVENTS
        for old in events.glob("events.out.tfevents.*"):
            old.unlink()
        self._events = FileWriter(str(events))
        for record in records:
            self._add_event(record)
        self._events.flush()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line. Names are `GROUP/NAME` (`train/loss`, `heldout/mlm_accuracy`); a value that is not finite becomes null."""
        numbers = {name: float(value) for name, value in values.items()}
        record: dict[str, Any] = {"step": int(step), "time": round(time.time(), 3)}
        record |= {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()  # into the kernel: a kill of this process loses nothing
        self._add_event(record)
        self._events.flush()

    def close(self) -> None:
        """Ends the event file; a line written afterwards is an error."""
        self._file.close()
        self._events.close()

    def _add_event(self, record: Mapping[str, Any]) -> None:
        values = [
            Summary.Value(tag=name, simple_value=math.nan if value is None else value)
            for name, value in record.items()
            if name not in ("step", "time")
        ]
        self._events.add_summary(Summary(value=values), global_step=record["step"], walltime=record.get("time"))


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl` in order; lines that are not whole (a kill in mid-write) are left out."""
    if not path.exists():
        return []
    return [record for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if (record := _parse(line))]


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes `value` so that a reader sees the old file or the new one, whole, whenever the machine stops."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"
    _replace(path, text)


def _forget_after(path: pathlib.Path, step: int) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    wanted = "".join(json.dumps(record) + "\n" for record in kept)
    if wanted != text:
        _replace(path, wanted)
    return kept


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _finite(value: Any) -> Any:
    """`value` with null for every float that JSON cannot say (NaN, infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _replace(path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
