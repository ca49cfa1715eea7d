"""Log sinks: the arguments of each, and that none of them ever stops a run."""

from __future__ import annotations

import csv
import json
import pathlib
import sys

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.training.config import LogConfig
from bert_jax.training.metrics import MetricsWriter

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


@pytest.mark.parametrize("name", ["Fails", "Never"])
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
