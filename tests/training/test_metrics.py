from __future__ import annotations

import json
import math
import pathlib
import time

import pytest
from tensorboardX.proto.event_pb2 import Event

from bert_jax.files import write_json
from bert_jax.runtime.workdir import read_metrics
from bert_jax.training.log import MetricsWriter
from tests.small_disk import files_of_at_most


def events(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
    """Yields (step, tag, value) of every scalar in the event files. TFRecord framing: length u64, crc u32, data, crc u32."""
    found = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            at += 16 + size
    return found


def test_lines_and_tensorboard_events_agree_immediately(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: 1234.5678901)
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        metrics.write(10, {"train/loss": 9.5, "train/rows": 3})
        metrics.write(20, {"train/loss": 8.5})
        assert read_metrics(tmp_path / "metrics.jsonl") == [  # immediately, so that a kill loses nothing
            {"step": 10, "time": 1234.568, "train/loss": 9.5, "train/rows": 3.0},
            {"step": 20, "time": 1234.568, "train/loss": 8.5},
        ]
        assert events(tmp_path) == [(10, "train/loss", 9.5), (10, "train/rows", 3.0), (20, "train/loss", 8.5)]
    assert metrics._file.closed


def test_a_resumed_run_has_every_step_once(tmp_path: pathlib.Path):
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        for step in (10, 20, 30, 40):
            metrics.write(step, {"train/loss": float(step)})
    (written,) = (tmp_path / "tensorboard").iterdir()
    written.rename(written.with_name("events.out.tfevents.1.earlier"))  # its name has the second and the host of the start
    with MetricsWriter(tmp_path, resume_step=20) as metrics:  # the checkpoint of step 20 is the newest
        assert [step for step, _, _ in events(tmp_path)] == [10, 20]
        for step in (30, 40, 50):
            metrics.write(step, {"train/loss": step + 0.5})
    wanted = [(10, 10.0), (20, 20.0), (30, 30.5), (40, 40.5), (50, 50.5)]
    assert [(r["step"], r["train/loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == wanted
    assert [(step, value) for step, _, value in events(tmp_path)] == wanted


def test_event_files_of_other_runs_behind_a_link_are_kept(tmp_path: pathlib.Path):
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "events.out.tfevents.1.other").write_bytes(b"another run's")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "board")
    with MetricsWriter(tmp_path / "run", resume_step=0) as metrics:
        metrics.write(10, {"train/loss": 9.5})
    assert (tmp_path / "board" / "events.out.tfevents.1.other").read_bytes() == b"another run's"
    assert len(list((tmp_path / "board").iterdir())) == 2


def test_a_rolled_back_run_has_every_step_once(tmp_path: pathlib.Path):
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        for step in (10, 20, 30):
            metrics.write(step, {"train/loss": float(step)})
        with files_of_at_most(100):
            metrics.write(40, {"train/loss": 40.0})  # is kept in memory
        before = metrics._file
        metrics.rollback(20)
        assert before.closed
        wanted = [(10, 10.0), (20, 20.0)]
        assert [(step, value) for step, _, value in events(tmp_path)] == wanted
        metrics.write(30, {"train/loss": 30.5})
        wanted.append((30, 30.5))
        assert [(r["step"], r["train/loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == wanted
        assert [(step, value) for step, _, value in events(tmp_path)] == wanted


def test_a_full_disk_does_not_end_a_run_that_rolls_back(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    """The later lines are removed when the disk permits it. One of them is partly in the file, and two are in memory."""
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        for step in (10, 20, 30):
            metrics.write(step, {"train/loss": float(step)})
        with files_of_at_most((tmp_path / "metrics.jsonl").stat().st_size + 20):
            for step in (30, 40):
                metrics.write(step, {"eval/loss": float(step)})
            with files_of_at_most(20):
                metrics.rollback(20)
                metrics.write(20, {"train/skipped_batches": 20.0})
                metrics.rollback(30)
                assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [10, 20, 30]
        metrics.write(30, {"train/loss": 30.5})
    wanted = [(10, "train/loss", 10.0), (20, "train/loss", 20.0), (20, "train/skipped_batches", 20.0), (30, "train/loss", 30.5)]
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert [(r["step"], *(name for name in r if "/" in name), [*r.values()][2]) for r in found] == wanted
    assert events(tmp_path) == wanted
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "debris",
    ['{"step": 20, "train/lo', "\x00\x00\x00", '{"step": 20}', "[1]\n", "\n", '{"time": 1.0}\n', '{"step": "20"}\n'],
)
def test_a_last_line_truncated_by_a_kill_is_removed(tmp_path: pathlib.Path, debris: str):
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 10, "time": 1.0, "train/loss": 9.5}\n'
    path.write_text(whole + debris)
    with MetricsWriter(tmp_path, resume_step=10) as metrics:
        metrics.write(20, {"train/loss": 1.0})
    lines = path.read_text().splitlines()
    assert lines[0] + "\n" == whole
    assert [json.loads(line)["step"] for line in lines] == [10, 20]


def test_numbers_that_are_not_finite_stay_valid_json(tmp_path: pathlib.Path):
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        metrics.write(1, {"train/loss": math.nan, "eval/perplexity": math.inf})
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert record["train/loss"] is None
    assert record["eval/perplexity"] is None
    assert [tag for _, tag, value in events(tmp_path) if math.isnan(value)] == ["train/loss", "eval/perplexity"]
    write_json(tmp_path / "results.json", {"loss": math.nan, "curve": [1.0, math.inf], "dev": {"f1": (0.5, -math.inf)}})
    assert (tmp_path / "results.json").read_text() == (
        '{\n  "loss": null,\n  "curve": [\n    1.0,\n    null\n  ],\n'
        '  "dev": {\n    "f1": [\n      0.5,\n      null\n    ]\n  }\n}\n'
    )


def test_lines_refused_by_a_full_disk_are_written_later(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    """The disk refuses forty lines, more than a queue or a buffer in between would hold."""
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        metrics.write(1, {"train/loss": 1.0})
        with files_of_at_most((tmp_path / "metrics.jsonl").stat().st_size + 100):
            for step in range(2, 42):
                metrics.write(step, {"train/loss": float(step)})
        assert len(read_metrics(tmp_path / "metrics.jsonl")) < 41
        metrics.write(42, {"train/loss": 42.0})
    wanted = [(step, float(step)) for step in range(1, 43)]
    assert [(r["step"], r["train/loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == wanted
    assert [(step, value) for step, _, value in events(tmp_path)] == wanted
    assert [r.getMessage().partition(" (")[2] for r in caplog.records] == [
        "File too large); training continues, and keeps them in memory until a write works"
    ]


def test_each_disk_outage_is_reported_once_and_pending_lines_written_at_the_end(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    with MetricsWriter(tmp_path, resume_step=0) as metrics:
        for step in (1, 3, 5):
            metrics.write(step, {"train/loss": float(step)})
            with files_of_at_most(10):
                metrics.write(step + 1, {"train/loss": step + 1.0})
    wanted = [(step, float(step)) for step in range(1, 7)]
    assert [(r["step"], r["train/loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == wanted
    assert [(step, value) for step, _, value in events(tmp_path)] == wanted
    assert len(caplog.records) == 3


def test_lines_that_were_never_written_are_counted(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    metrics = MetricsWriter(tmp_path, resume_step=0)
    with files_of_at_most(10):
        for step in (1, 2):
            metrics.write(step, {"train/loss": 1.0})
        metrics.close()
    assert caplog.messages[-1] == f"lost 2 lines of {tmp_path / 'metrics.jsonl'}"


def test_a_failed_write_leaves_only_the_old_file(tmp_path: pathlib.Path):
    path = tmp_path / "results.json"
    write_json(path, {"loss": 1.0})
    with pytest.raises(TypeError):
        write_json(path, {"loss": object()})
    assert json.loads(path.read_text()) == {"loss": 1.0}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_missing_file_has_no_records(tmp_path: pathlib.Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
