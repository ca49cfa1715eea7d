"""Writes the metrics of a run: `metrics.jsonl`, and log sinks such as TensorBoard.

`metrics.jsonl` is the primary record. Each line is a JSON object with a `step`, and lines are appended during the run. Whenever
a run starts, the sinks are filled from this file. They therefore agree with the file even after the run was killed.

A sink is a class whose constructor takes the workdir and the run's configuration as nested dicts. `write(step, numbers)` is
called only in process 0. It is called for every line of the record in order, including the lines from earlier starts of the
run. A sink therefore starts empty and shows each step once, however often the run was killed or rolled back. `numbers` maps
names such as `train/loss` to floats. "time" is in seconds since 1970, and a null in the record becomes NaN. `close()` is
optional. An error is logged once and never stops the run. After an error of a connection (an OSError without the errno of a
file), the sink continues at the next line with the record that failed. After any other OSError, it is recreated at the next
line, since its file may end in the middle of a record. After any other error, the sink is disabled. At each line, a sink gets
records for `SECONDS` at most, so that the run does not wait for a slow sink; it gets the rest at the next lines.

`SINKS` in `training/__init__.py` lists the built-in sinks. Users can define other sinks in their own files (FILE.py:NAME, e.g.
experiments/extensions/csv_log.py).
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import logging
import math
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import JsonObject, parse_json, write_text
from bert_jax.interface.named import load_named
from bert_jax.interface.words import counted
from bert_jax.runtime.workdir import EVENTS, METRICS, read_metrics
from bert_jax.training import SINKS
from bert_jax.training.config import LogConfig

log = logging.getLogger(__name__)

KEY = "config.log.sinks"
SECONDS, LAST_SECONDS = 10.0, 60.0
"""The time after which a sink gets no more records at a line of the record, and at the end of the run."""


class MetricsWriter:
    """Appends to `WORKDIR/metrics.jsonl` and writes to the log sinks.

    A run that resumes from `resume_step` first removes an incomplete last line and the lines of later steps. These steps are
    about to be repeated, so every step appears only once. For this to work, the training loop writes the lines of a step before
    it saves the checkpoint of the step.

    A full disk or an exceeded quota does not end the run, because lines are kept in memory until they can be written. Likewise,
    the lines to remove after a rollback are removed when the disk permits this.

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
        self._file = self._path.open("ab", buffering=0)  # unbuffered, so that no line is lost if this process is killed
        self._unwritten = collections.deque[bytes]()
        self._written_bytes = 0
        """The number of bytes of the first unwritten line that are in the file already."""
        self._last_kept: int | None = None
        """The step to which the run has rolled back, if the lines of later steps are still in the file."""
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
        self._unwritten.append(json.dumps(record).encode() + b"\n")
        if self._write_lines():
            self._sinks.write(self._lines, self._records, record)

    def rollback(self, step: int) -> None:
        """Removes the lines of steps after `step`, which are about to be repeated."""
        self._write_lines()
        self._unwritten = collections.deque(line for line in self._unwritten if parse_json(line)["step"] <= step)
        self._last_kept = step if self._last_kept is None else min(step, self._last_kept)
        self._sinks.close()
        if self._write_lines():
            self._sinks.write(self._lines, self._records)

    def close(self) -> None:
        """Closes the files. `write` must not be called afterwards."""
        if not self._write_lines():
            log.warning("lost %s of %s", counted(len(self._unwritten), "line"), self._path)
        else:
            self._sinks.write(self._lines, self._records, seconds=LAST_SECONDS)
            self._sinks.warn_of_missing(self._lines)
        try:
            self._file.close()
        except OSError as error:  # a network file system may report a failed write only when the file is closed
            log.warning("the last lines of %s may be lost (%s)", self._path, error.strerror)
        self._sinks.close()

    def _records(self) -> list[JsonObject]:
        return read_metrics(self._path)

    def _write_lines(self) -> bool:
        """Removes the lines that a rollback has left in the file, and writes the pending lines. Returns whether both are
        done."""
        try:
            if self._last_kept is not None:
                self._file.close()
                self._lines = _drop_later_lines(self._path, self._last_kept)  # also removes an incomplete line
                self._file = self._path.open("ab", buffering=0)
                self._last_kept, self._written_bytes = None, 0
            while self._unwritten:
                self._written_bytes += self._file.write(self._unwritten[0][self._written_bytes :])
                if self._written_bytes == len(self._unwritten[0]):
                    self._unwritten.popleft()
                    self._lines, self._written_bytes = self._lines + 1, 0
        except OSError as error:
            if not self._failed:
                message = "lines cannot be written to %s (%s); training continues, and keeps them in memory until a write works"
                log.warning(message, self._path, error.strerror)
            self._failed = True
            return False
        self._failed = False
        return True


def _drop_later_lines(path: pathlib.Path, step: int) -> int:
    """Removes the lines of steps after `step` from a file, if the file exists. Returns the number of remaining lines."""
    if not path.exists():
        return 0
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    wanted = "".join(json.dumps(record) + "\n" for record in kept)
    if wanted != text:
        write_text(path, wanted)
    return len(kept)


def load_sinks(names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Returns the classes of the sinks by name. Raises UserError if a sink is unknown or its package is not installed."""
    found = {}
    for name in names:
        found[name] = load_named(name, SINKS, KEY)
        package = getattr(found[name], "package", None)
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"{KEY} names {name}, whose package is not installed; `pip install {package}`, or leave it out")
    return found


class Sinks:
    """The sinks of a run, by name in `config.log.sinks`."""

    def __init__(self, kinds: Mapping[str, Callable[..., Any]], workdir: pathlib.Path, config: JsonObject):
        self._kinds, self._workdir, self._config = dict(kinds), workdir, config
        self._open: dict[str, Any] = {}
        self._written: dict[str, int] = {}
        self._failed: set[str] = set()

    def write(
        self,
        lines: int,
        records: Callable[[], Sequence[JsonObject]],
        newest: JsonObject | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """Brings every sink up to date with the record, as far as it gets in these `seconds`. `records()` returns the `lines`
        lines of the record, and `newest` is the last of them."""
        for name, kind in list(self._kinds.items()):
            end = time.monotonic() + seconds
            try:
                if name not in self._open:
                    self._written[name] = 0
                    self._open[name] = kind(self._workdir, self._config)
                done = self._written[name]
                missing = [newest] if newest and done == lines - 1 else records()[done:lines] if done < lines else []
                for record in missing:
                    self._open[name].write(record["step"], _numbers(record))
                    self._written[name] += 1
                    if time.monotonic() >= end:
                        break
            except Exception as error:  # any exception may occur, since a sink may be user code or use a network
                again = isinstance(error, OSError)
                if not _is_of_connection(error):
                    self._close(name)
                if name not in self._failed:
                    then = "it will be retried with the next line" if again else "it is disabled"
                    message = "the log sink %s failed (%s: %s); %s, and training continues"
                    log.warning(message, name, type(error).__name__, error, then, exc_info=None if again else error)
                self._failed.add(name)
                if not again:
                    del self._kinds[name]

    def warn_of_missing(self, lines: int) -> None:
        """Logs which sinks have not got all `lines` of the record."""
        for name in self._open:
            if missing := lines - self._written[name]:
                log.warning("the log sink %s is slow, and lacks the last %s of %s", name, counted(missing, "line"), METRICS)

    def close(self) -> None:
        """Closes every sink. `write` recreates them."""
        for name in list(self._open):
            self._close(name)

    def _close(self, name: str) -> None:
        close = getattr(self._open.pop(name, None), "close", None)
        with contextlib.suppress(Exception):
            if close:
                close()


def _is_of_connection(error: Exception) -> bool:
    """Returns whether an exception is an OSError of a connection. Those of requests and urllib have no errno."""
    return isinstance(error, OSError) and (error.errno is None or isinstance(error, ConnectionError | TimeoutError))


def _numbers(record: JsonObject) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in record.items() if name != "step"}


class Tensorboard:
    """TensorBoard event files in WORKDIR/tensorboard/, written without TensorFlow."""

    def __init__(self, workdir: pathlib.Path, config: JsonObject):
        # tensorboardX's FileWriter is not used, since its thread ends at the first error. The run would then block after ten
        # more records.
        from tensorboardX.event_file_writer import EventsWriter

        directory = workdir / EVENTS
        directory.mkdir(exist_ok=True)
        if not directory.is_symlink():  # a link may lead to files of other runs
            for old in directory.glob("events.out.tfevents.*"):
                old.unlink()
        self._events = EventsWriter(str(directory / "events"))
        self._events.flush()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Appends the numbers of a step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items() if name != "time"]
        self._events.write_event(Event(step=step, wall_time=numbers.get("time"), summary=Summary(value=values)))
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        self._events.close()


class Wandb:
    """A run of Weights & Biases, in WORKDIR/wandb/. The environment variables of W&B apply, e.g. WANDB_PROJECT and
    WANDB_MODE=offline."""

    package = "wandb"

    def __init__(self, workdir: pathlib.Path, config: JsonObject):
        import wandb

        name = workdir / "wandb" / "run_id"  # a resumed run continues the same W&B run
        name.parent.mkdir(exist_ok=True)
        if not name.exists():
            name.write_text(secrets.token_hex(4))
        project = os.environ.get("WANDB_PROJECT", "bert_jax")
        self._run = wandb.init(
            project=project, id=name.read_text(), resume="allow", name=workdir.name, dir=str(workdir), config=config
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs the numbers of a step, unless they were logged at an earlier start."""
        if step >= self._run.step:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Mlflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, or in WORKDIR/mlflow.db. A resumed run replaces the MLflow run of its earlier
    start."""

    package = "mlflow"

    def __init__(self, workdir: pathlib.Path, config: JsonObject):
        import mlflow

        here = f"sqlite:///{(workdir / 'mlflow.db').absolute()}"
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", here))
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bert_jax")
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        name = workdir / "mlflow_run_id"
        if name.exists():
            with contextlib.suppress(mlflow.MlflowException):
                self._client.delete_run(name.read_text())
        self._run: str = self._client.create_run(number, run_name=workdir.name).info.run_id
        name.write_text(self._run)
        for key, value in _leaves(config):
            self._client.log_param(self._run, key, str(value)[:500])

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs the numbers of a step."""
        from mlflow.entities import Metric

        milliseconds = int(1000 * numbers.get("time", 0.0))
        metrics = [Metric(name, value, milliseconds, step) for name, value in numbers.items() if name != "time"]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Ends the run."""
        self._client.set_terminated(self._run)


def _leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of nested dicts and lists."""
    inner = config.items() if isinstance(config, Mapping) else enumerate(config) if isinstance(config, list | tuple) else None
    if inner is None:
        yield above, config
        return
    for key, value in inner:
        yield from _leaves(value, f"{above}.{key}" if above else str(key))
