"""Log sinks: the arguments of each, and that none of them ever stops a run."""

from __future__ import annotations

import csv
import json
import pathlib
import sys
import types
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.training.config import LogConfig
from bert_jax.training.log import MetricsWriter, Mlflow, Sinks, Wandb
from tests.clock import Clock

CSV = str(pathlib.Path(__file__).parents[2] / "experiments" / "extensions" / "csv_log.py") + ":Csv"

OWN = """
import json
class Kept:
    made = []
    def __init__(self, workdir, config):
        self.made.append(self)
        self.config, self.rows, self.closed = config, [], False
    def write(self, step, numbers): self.rows.append((step, numbers["train/loss"]))
    def close(self): self.closed = True
class Fails(Kept):
    def write(self, step, numbers): raise ValueError(f"no {step}")
class Full(Kept):
    def write(self, step, numbers):
        if step == 2 and len(self.made) == 1: raise OSError(28, "No space left on device")
        super().write(step, numbers)
class Refused(Kept):
    def write(self, step, numbers):
        if step == 2 and len(self.made) == 1:
            self.made.append(None)
            raise FAILURE
        super().write(step, numbers)
class Exits(Kept):
    def write(self, step, numbers): raise SystemExit(3)
    def close(self): raise SystemExit(4)
class Never:
    def __init__(self, workdir, config): raise RuntimeError("not today")
"""


@pytest.fixture
def own(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return str(file)


def made(own: str) -> list:
    """Returns the sinks that the file has made."""
    (module,) = (m for m in sys.modules.values() if getattr(m, "__file__", None) == own)
    return module.Kept.made


def table(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
    with (workdir / "log.csv").open() as file:
        return [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file) if row["name"] != "time"]


def test_a_user_sink_has_every_step_once_after_interruptions(tmp_path: pathlib.Path):
    with MetricsWriter(tmp_path, 0, [CSV]) as metrics:
        for step in (10, 20, 30):
            metrics.write(step, {"train/loss": float(step)})
        metrics.rollback(20)
        metrics.write(30, {"train/loss": 30.5})
    with MetricsWriter(tmp_path, 20, [CSV]) as metrics:
        metrics.write(30, {"train/loss": float("nan")})
    assert str(table(tmp_path)) == "[(10, 'train/loss', 10.0), (20, 'train/loss', 20.0), (30, 'train/loss', nan)]"
    assert not (tmp_path / "tensorboard").exists()


def test_a_sink_gets_the_configuration_and_all_earlier_numbers_and_is_closed(tmp_path: pathlib.Path, own: str):
    with MetricsWriter(tmp_path, 0, []) as metrics:
        metrics.write(1, {"train/loss": 1.0})
    with MetricsWriter(tmp_path, 1, [f"{own}:Kept"], {"seed": 7}) as metrics:
        metrics.write(2, {"train/loss": 2.0})
    (sink,) = made(own)
    assert (sink.config, sink.rows, sink.closed) == ({"seed": 7}, [(1, 1.0), (2, 2.0)], True)


@pytest.mark.parametrize("name", ["Fails", "Never", "Exits"])
def test_an_error_of_a_sink_is_logged_once_and_others_continue(
    tmp_path: pathlib.Path, own: str, name: str, caplog: pytest.LogCaptureFixture
):
    with MetricsWriter(tmp_path, 0, [f"{own}:{name}", CSV]) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"train/loss": float(step)})
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the log sink ")
    assert f"mine.py:{name} failed" in caplog.messages[0]
    assert "it is disabled, and training continues" in caplog.messages[0]
    assert [step for step, _, _ in table(tmp_path)] == [1, 2, 3]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_sink_is_recreated_with_every_number_after_a_full_disk(
    tmp_path: pathlib.Path, own: str, caplog: pytest.LogCaptureFixture
):
    with MetricsWriter(tmp_path, 0, [f"{own}:Full"]) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"train/loss": float(step)})
    first, second = made(own)
    assert first.closed
    assert second.rows == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("failure", ["ConnectionResetError(104, 'reset')", "OSError('503: Service Unavailable')"])
def test_a_sink_continues_with_the_failed_line_after_an_error_of_a_connection(
    tmp_path: pathlib.Path, own: str, failure: str, caplog: pytest.LogCaptureFixture
):
    pathlib.Path(own).write_text(OWN.replace("FAILURE", failure))
    with MetricsWriter(tmp_path, 0, [f"{own}:Refused"]) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"train/loss": float(step)})
    sink, failed = made(own)
    assert (sink.rows, failed) == ([(1, 1.0), (2, 2.0), (3, 3.0)], None)
    (message,) = caplog.messages
    assert message.endswith("it will be retried with the next line, and training continues")


def test_a_slow_sink_gets_the_lines_of_a_long_run_over_several_lines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock, rows, records = Clock(monkeypatch), list[int](), [{"step": step} for step in range(7)]

    def write(step: int, numbers: Any) -> None:
        rows.append(step)
        clock.advance(4.0)

    sinks = Sinks({"own": lambda workdir, config: types.SimpleNamespace(write=write)}, tmp_path, {})
    sinks.write(6, lambda: records[:6])
    assert rows == [0, 1, 2]
    sinks.warn_of_missing(6)
    assert caplog.messages == ["the log sink own is slow, and lacks the last 3 lines of metrics.jsonl"]
    sinks.write(7, lambda: records, records[-1])
    sinks.write(7, lambda: records)
    sinks.warn_of_missing(7)
    assert (rows, len(caplog.messages)) == ([*range(7)], 1)


def test_a_new_line_is_written_without_reading_the_record(tmp_path: pathlib.Path, own: str):
    """Otherwise the time of a line would grow with the length of the run."""

    def read() -> Any:
        pytest.fail("the record is read")

    rows: list[int] = []
    kind = types.SimpleNamespace(write=lambda step, numbers: rows.append(step))
    sinks = Sinks({"own": lambda workdir, config: kind}, tmp_path, {})
    sinks.write(0, read)
    for line in (1, 2):
        sinks.write(line, read, {"step": 10 * line, "train/loss": 1.0})
    sinks.write(2, read)
    assert rows == [10, 20]


def test_a_resumed_run_continues_its_run_of_weights_and_biases(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    runs: list[Any] = []

    def init(**about: Any) -> Any:
        logged: list[Any] = []
        run = types.SimpleNamespace(about=about, logged=logged, step=len(runs), finish=lambda: logged.append("finished"))
        run.log = lambda numbers, step: logged.append((step, numbers))
        runs.append(run)
        return run

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))  # type: ignore[arg-type]
    for project in ("", "mine"):
        monkeypatch.setenv("WANDB_PROJECT", project) if project else monkeypatch.delenv("WANDB_PROJECT", raising=False)
        sink = Wandb(tmp_path, {"seed": 7})
        for step in range(2):
            sink.write(step, {"time": 1.5, "train/loss": step + 0.5})
        sink.close()
    first, second = runs
    number = first.about["id"]
    assert (len(number), (tmp_path / "wandb" / "run_id").read_text()) == (8, number)
    about = {"id": number, "resume": "allow", "name": tmp_path.name, "dir": str(tmp_path), "config": {"seed": 7}}
    assert [first.about, second.about] == [{"project": project, **about} for project in ("bert_jax", "mine")]
    lines = [(step, {"time": 1.5, "train/loss": step + 0.5}) for step in range(2)]
    assert first.logged == [*lines, "finished"]
    assert second.logged == [lines[1], "finished"], "Weights & Biases has the first step already"


class MlflowClient:
    """A client of MLflow that records its calls in `said`."""

    def __init__(self, said: list[Any], known: bool, failure: Exception | None = None):
        self._said, self._known, self._failure = said, known, failure

    def get_experiment_by_name(self, name: str) -> Any:
        self._said.append(("look for", name))
        return types.SimpleNamespace(experiment_id="3") if self._known else None

    def create_experiment(self, name: str) -> str:
        self._said.append(("make", name))
        return "4"

    def delete_run(self, run: str) -> None:
        self._said.append(("delete", run))
        if self._failure:
            raise self._failure

    def create_run(self, experiment: str, *, run_name: str) -> Any:
        self._said.append(("run", experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run of {experiment}"))

    def log_param(self, run: str, key: str, value: str) -> None:
        self._said.append((run, key, value))

    def log_batch(self, run: str, *, metrics: list[Any]) -> None:
        self._said.append((run, metrics))

    def set_terminated(self, run: str) -> None:
        self._said.append(("end", run))


def test_a_resumed_run_replaces_its_run_of_mlflow(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    said: list[Any] = []
    places: list[str] = []
    gone = type("MlflowException", (Exception,), {})
    clients = iter([MlflowClient(said, False), MlflowClient(said, True), MlflowClient(said, True, gone())])

    def connected(place: str) -> Any:
        places.append(place)
        return next(clients)

    mlflow: Any = types.SimpleNamespace(MlflowClient=connected, MlflowException=gone)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    metrics: Any = types.SimpleNamespace(Metric=lambda *given: given)
    monkeypatch.setitem(sys.modules, "mlflow.entities", metrics)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    first = Mlflow(tmp_path, {"seed": 7, "phases": [{"steps": 5}], "long": "x" * 600})
    first.write(3, {"time": 1.5, "train/loss": 0.5, "dev/f1": 0.25})
    first.write(4, {"train/loss": 0.5})
    first.close()
    assert said == [
        *(("look for", "bert_jax"), ("make", "bert_jax"), ("run", "4", tmp_path.name)),
        *(("run of 4", "seed", "7"), ("run of 4", "phases.0.steps", "5"), ("run of 4", "long", "x" * 500)),
        ("run of 4", [("train/loss", 0.5, 1500, 3), ("dev/f1", 0.25, 1500, 3)]),
        ("run of 4", [("train/loss", 0.5, 0, 4)]),
        ("end", "run of 4"),
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    for former in ("run of 4", "run of 3"):  # the last one has been deleted by somebody else
        said.clear()
        Mlflow(tmp_path, {})
        assert said == [("look for", "mine"), ("delete", former), ("run", "3", tmp_path.name)]
    assert places == [f"sqlite:///{tmp_path}/mlflow.db", "http://there", "http://there"]
    assert (tmp_path / "mlflow_run_id").read_text() == "run of 3"


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_sink_without_its_package_is_refused_with_a_remedy(
    tmp_path: pathlib.Path, package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        MetricsWriter(tmp_path, 0, [package])
    says = f"config.log.sinks names {package}, whose package is not installed; `pip install {package}`, or leave it out"
    assert str(error.value) == says


def test_an_unknown_sink_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"log\.sinks\.0='tensorbord' is not one of .*; did you mean 'tensorboard'"):
        LogConfig(sinks=("tensorbord",))
    values = {"phases": [{"steps": 1}], "log": {"sinks": ["tensorboard", "mine.py:Sink"]}}
    assert json.loads(json.dumps(PretrainingExperiment.from_dict(values).to_dict()))["log"] == values["log"]
