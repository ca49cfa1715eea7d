"""The log of a run: log lines, the record `metrics.jsonl`, and log sinks such as TensorBoard. The lines and the record contain
scores, throughput and model FLOPs utilisation (MFU). Curves are drawn from the record. `PretrainingLog` and `FinetuningLog` add
the lines at the start of a run and after an evaluation.

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

import abc
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
from types import TracebackType
from typing import Any, Protocol, Self

from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.files import JsonObject, parse_json, write_text
from bert_jax.hardware import peak_flops
from bert_jax.interface.named import load_named
from bert_jax.interface.words import counted, duration, prefixed
from bert_jax.runtime.goodput import GoodputFile, GoodputRecorder, TimeCategory
from bert_jax.runtime.launch import Run
from bert_jax.runtime.workdir import EVENTS, METRICS, read_metrics
from bert_jax.training import SINKS
from bert_jax.training.config import LogConfig

FIGURE = "curves.png"
SKIPPED_BATCHES = "train/skipped_batches"
"""The number of batches that rollbacks have skipped. Runs that may roll back record it for the steps from the record's step on,
at every rollback and whenever they resume."""


class Logged(Protocol):
    """The configuration of a run."""

    @property
    def log(self) -> LogConfig:
        """The section `config.log`."""

    def to_dict(self) -> JsonObject:
        """Returns the configuration as nested plain values, for log sinks."""


class RunLog(abc.ABC):
    """The log of a run. Its files are in `directory`, and all log lines start with `prefix`.

    A subclass defines the unit of the throughput. It also defines how scores and work are computed from sums, and how the
    curves are drawn.
    """

    unit = "rows"
    """The unit of the throughput, "rows" or "examples". Tokens are also reported."""

    def __init__(
        self,
        run: Run,
        directory: pathlib.Path,
        goodput: GoodputRecorder,
        mesh: Mesh,
        last_step: int,
        log: logging.Logger,
        prefix: str = "",
    ):
        self._run, self._directory, self._time, self._mesh, self._last_step = run, directory, goodput, mesh, last_step
        self._log, self.prefix = log, prefix
        self.throughput = Throughput(goodput, unit=self.unit)
        self.metrics: MetricsWriter | None = None
        """The writer of `metrics.jsonl`; None in processes that do not write files."""
        self._goodput: GoodputFile | None = None
        self._is_drawn = True
        self._first: tuple[int, Mapping[str, float]] | None = None
        self.skipped = 0
        """The number of steps that were skipped since the run was started or resumed."""

    def open(self, step: int, experiment: Logged) -> None:
        """Opens the files and log sinks of a run that starts or resumes at `step`. Records of later steps are dropped, since
        those steps will be repeated. With `step` -1, all records are dropped."""
        if self._run.is_first:
            self.metrics = MetricsWriter(self._directory, step, experiment.log.sinks, experiment.to_dict())
            self._goodput = GoodputFile(self._directory, self._time)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.metrics:
            self.metrics.close()
        if self._goodput:
            self._goodput.close()
        if not self._is_drawn:  # so that a run that is interrupted before its next evaluation also has curves
            self.draw()

    def note(self, text: str) -> None:
        """Logs one line."""
        self._log.info("%s%s", self.prefix, text)

    def warn(self, text: str) -> None:
        """Logs one line as a warning."""
        self._log.warning("%s%s", self.prefix, text)

    def pause(self, category: TimeCategory) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager. The time inside it counts as `category` and is excluded from the rates."""
        return self.throughput.pause(category)

    def rolled_back(self, step: int, skipped_batches: int) -> None:
        """Drops the records of the steps after `step`, which will be repeated with other batches (`SKIPPED_BATCHES`)."""
        self._write_first()
        if self.metrics:
            self.metrics.rollback(step or -1)
        self.write(step, {SKIPPED_BATCHES: skipped_batches})
        self._time.rolled_back()

    def training(self, step: int, window: Mapping[str, Any]) -> None:
        """Writes a log line and a record with the means over the steps since the last log line. `window` holds the sums of
        these steps."""
        self._run.require_in_place()
        scores = self.compute_scores(window)
        units, flops, flops_left = self.count_work(step, window)
        self.throughput.add(units, tokens=float(window["tokens"]), flops=flops)
        rates = self.throughput.report(flops_left)
        kind = self._mesh.devices.flat[0].device_kind
        self.note(training_line(step, self._last_step, self.shown(scores), rates, kind, self._mesh.size))
        self.skipped += int(window["skipped"])
        if skipped := int(window["skipped"]):
            self.warn(f"{skipped} of these steps had a non-finite loss, gradient or learning rate and were skipped")
        if spikes := int(window.get("spikes", 0)):
            self.warn(f"{spikes} of these steps had a loss far above the running mean and were skipped")
        values = scores | rates | {"grad_norm": float(window["grad_norm"]) / max(float(window["steps"]), 1.0)}
        values |= {name: float(window[name]) for name in ("learning_rate", "skipped", "spikes") if name in window}
        self._is_drawn = False
        self.write(step, {f"train/{name}": value for name, value in values.items()})
        if self._goodput:
            self._goodput.write()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a record to `metrics.jsonl`."""
        self._write_first()
        if self.metrics:
            self.metrics.write(step, values)

    def write_with_next(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a record just before the next one. A start that is rejected before its first step therefore leaves
        `metrics.jsonl` unchanged, so that the workdir can be restored (`open_workdir`)."""
        self._first = (step, values)

    def _write_first(self) -> None:
        if self.metrics and self._first:
            self.metrics.write(*self._first)
        self._first = None

    @abc.abstractmethod
    def compute_scores(self, window: Mapping[str, Any]) -> dict[str, float]:
        """Computes scores from the sums of some training steps."""

    @abc.abstractmethod
    def shown(self, scores: Mapping[str, float]) -> list[str]:
        """Returns the scores to show in a log line, as texts."""

    @abc.abstractmethod
    def count_work(self, step: int, window: Mapping[str, Any]) -> tuple[float, float, float]:
        """Returns (the number of units in the steps since the last call, the FLOPs of these steps, the FLOPs left after
        `step`). `window` holds the sums of these steps."""

    def draw(self) -> None:
        """Draws the curves from `metrics.jsonl`."""
        self._is_drawn = True
        if self._run.is_first:
            self.draw_to(self._directory / FIGURE)

    @abc.abstractmethod
    def draw_to(self, path: pathlib.Path) -> None:
        """Draws the curves in each of `Run.figure_formats`. `path` ends in .png. Files in other formats are written next to
        it."""


# ----------------------------------------------------------------------------------------------------------------------- rates
class Throughput:
    """Measures rows (or examples of labelled tasks), tokens and FLOPs per second since the last report, and the time left.

    The time left is computed from FLOPs instead of steps, since a step of the second phase (length 512) costs as much as several
    steps of the first.

    >>> throughput = Throughput(goodput)
    >>> throughput.add(64, tokens=7800, flops=64 * row_flops(...))       # after every step
    >>> with throughput.pause(TimeCategory.EVALUATING): evaluate()                # this time is not counted in the rates
    >>> rates = throughput.report(flops_left=...)                             # {'rows_per_second': ..., ...}; starts the next
    window
    """

    def __init__(self, goodput: GoodputRecorder, clock: Callable[[], float] = time.monotonic, unit: str = "rows"):
        self._goodput, self._clock, self._unit = goodput, clock, unit
        self._reset()

    def _reset(self) -> None:
        self._start = self._clock()
        self._units = self._tokens = self._flops = 0.0

    def add(self, units: float, *, tokens: float, flops: float) -> None:
        """Adds finished work to the current window. `units` are rows or examples."""
        self._units, self._tokens, self._flops = self._units + units, self._tokens + tokens, self._flops + flops

    @contextlib.contextmanager
    def pause(self, category: TimeCategory) -> Iterator[None]:
        """Excludes the time inside the `with` block from the rates. The time accounting counts this time as `category`."""
        before = self._clock()
        try:
            with self._goodput.during(category):
                yield
        finally:
            self._start += self._clock() - before

    def report(self, flops_left: float) -> dict[str, float]:
        """Returns the rates of the current window: rows_per_second or examples_per_second, tokens_per_second (without padding),
        flops_per_second and seconds_left. Starts the next window."""
        seconds = max(self._clock() - self._start, 1e-9)
        speed = self._flops / seconds
        rates = {
            f"{self._unit}_per_second": self._units / seconds,
            "tokens_per_second": self._tokens / seconds,
            "flops_per_second": speed,
            "seconds_left": flops_left / speed if speed else math.inf,
        }
        self._reset()
        return rates


def utilisation(flops_per_second: float, device_kind: str, devices: int) -> float | None:
    """Returns the model FLOPs utilisation, which is `flops_per_second` as a fraction of the bf16 peak of all devices. Returns
    None if the peak is unknown, as it is for every CPU."""
    peak = peak_flops(device_kind)
    return flops_per_second / (peak * devices) if peak else None


def training_line(
    step: int, last_step: int, scores: Sequence[str], rates: Mapping[str, float], device_kind: str, devices: int
) -> str:
    """Returns the log line of a step, which has the scores, the throughput, the utilisation and the time left.

    scores: the texts of the scores (`objectives.scores.Score.text`). rates: the output of `Throughput.report`.

    >>> training_line(1200, 10000, ["MLM loss 5.561", "MLM accuracy 18.4 %", "NSP accuracy 62.0 %"], rates, "TPU v4", 8)
    'step  1,200/10,000  MLM loss 5.561  MLM accuracy 18.4 %  NSP accuracy 62.0 %  4,310 rows/s  478 k tokens/s  41 % of peak
    ETA 1h02m'
    """
    width = len(f"{last_step:,}")
    parts = [f"step {step:>{width},}/{last_step:,}", *scores]
    units = [name for name in ("rows", "examples", "tokens") if f"{name}_per_second" in rates]
    parts += [f"{prefixed(rates[f'{name}_per_second'])} {name}/s" for name in units]
    share = utilisation(rates["flops_per_second"], device_kind, devices)
    parts.append(prefixed(rates["flops_per_second"], "FLOP/s") if share is None else f"{100 * share:.0f} % of peak")
    if step < last_step and math.isfinite(rates["seconds_left"]):
        parts.append(f"ETA {duration(rates['seconds_left'])}")
    return "  ".join(parts)


# --------------------------------------------------------------------------------------------------- metrics.jsonl and the sinks
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
            except (Exception, SystemExit) as error:  # a sink may be user code, use a network, or call sys.exit
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
        with contextlib.suppress(Exception, SystemExit):
            if close:
                close()


def _is_of_connection(error: BaseException) -> bool:
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
