"""The command `study`, with stubs as its parts."""

from __future__ import annotations

import json
import logging
import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest

from bert_jax import study as command
from bert_jax.errors import HUNG
from bert_jax.runtime.processes import ProcessesLost
from bert_jax.studies import calibration
from bert_jax.studies.calibration import Measurement
from bert_jax.studies.children import POLL
from bert_jax.studies.running import Runner, Stopped
from tests.studies.conftest import study
from tests.studies.test_report import CONTENT, MARKDOWN


class RunShard:
    """The shard of process `index` of two; it gathers the values that the test gives it."""

    def __init__(self, index: int = 0, gathered: Any = ()):
        self.index, self.gathered, self.stopped, self.waited = index, gathered, 0, False

    def select(self, items: list[Any]) -> list[Any]:
        return items[self.index :: 2]

    def tell_stopped(self) -> None:
        self.stopped += 1

    def gather(self, value: Any, waiting: Any) -> Any:
        assert value == {}
        self.waited = waiting()
        if isinstance(self.gathered, Exception):
            raise self.gathered
        return self.gathered


class Fixture:
    """A study of two arms with two seeds, in process `shard.index`."""

    def __init__(self, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shard: RunShard):
        self.shard, self.told, self.ran, self.planned = shard, [], [], []
        self.asked = False
        preemption = types.SimpleNamespace(requested=lambda step: self.asked and step == 0, exit_status=99)
        watchdog = types.SimpleNamespace(alive=self.told.append)
        self.run: Any = types.SimpleNamespace(
            require_in_place=lambda: self.told.append("in place"),
            shard=shard,
            workdir=root,
            preemption=preemption,
            watchdog=watchdog,
            figure_formats=("png", "pdf"),
            durable=lambda path: f"lasting {path.name}",
        )
        self.flags: Any = types.SimpleNamespace(hang_seconds=7.0, workdir=root / "lasting")
        both = dict.fromkeys("ab", "an experiment")
        self.checked: Any = types.SimpleNamespace(study=study(seeds=[3, 8]), pretraining=both, tasks="tasks", teachers="teachers")
        self.stop: Stopped | None = None
        monkeypatch.setattr(command, "plan", self.plan)
        monkeypatch.setattr(command, "table", self.table)
        monkeypatch.setattr(Runner, "parts", self.parts)

        def draw(content: Any, made: Any, path: pathlib.Path, formats: Any) -> None:
            path.write_text(f"{made.title} {content is CONTENT} {formats}")

        monkeypatch.setattr(command, "draw", draw)

    def plan(self, made: Any, pretraining: Any, here: Measurement) -> dict[str, list[int]]:
        runs: Any = here.run
        assert (made, pretraining) == (self.checked.study, self.checked.pretraining)
        assert (here.root, here.local, here.index) == (self.flags.workdir, self.run.workdir, self.shard.index)
        assert (runs.__func__, runs.__self__._run, runs.__self__._hang_seconds) == (Runner.command, self.run, 7.0)
        return {"a": [1], "b": [2]}

    def table(self, whole: Any) -> Any:
        assert (whole.study, whole.steps) == (self.checked.study, {"a": [1], "b": [2]})
        assert (whole.pretraining, whole.tasks) == (self.checked.pretraining, "tasks")
        assert (whole.root, whole.teachers) == (self.flags.workdir, "teachers")
        return CONTENT

    def parts(self, whole: Any, parts: Any, done: Any) -> None:
        self.table(whole)
        self.ran.extend(parts)
        if self.stop:
            raise self.stop
        done(parts[0])
        self.written = {path.name for path in self.run.workdir.iterdir()}

    def status(self) -> int:
        return command.study(self.checked, self.flags, self.run)


FILES = {"table.json", "table.md", "figure.png"}


def test_a_study_writes_its_table_after_each_part_and_prints_it_at_the_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    there = Fixture(tmp_path, monkeypatch, RunShard())
    assert there.status() == 0
    assert there.written == FILES
    assert [str(part) for part in there.ran] == [
        f"a, seed {seed}, {name}" for seed in (3, 8) for name in ("pretraining", "stsb")
    ]  # the runs of b belong to another process
    assert json.loads((tmp_path / "table.json").read_text()) == CONTENT
    assert (tmp_path / "table.md").read_text() == MARKDOWN
    assert (tmp_path / "figure.png").read_text() == "t True ('png', 'pdf')"
    assert capsys.readouterr().out.startswith("Equal tokens: every arm reads 1 M tokens")
    assert caplog.messages == ["t: 4 parts, seeds (3, 8)", "table: lasting table.md\nfigure: lasting figure.png"]
    assert (there.shard.waited, there.shard.stopped, there.told) == (
        False, 0, ["in place", "waiting for the other processes", "in place"],
    )  # fmt: skip


def test_the_table_includes_parts_finished_by_other_processes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there = Fixture(tmp_path, monkeypatch, RunShard())
    monkeypatch.setattr(Runner, "parts", lambda *_: None)
    assert there.status() == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_only_the_first_process_writes_the_table(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    there = Fixture(tmp_path, monkeypatch, RunShard(1, gathered=None))
    asleep: list[float] = []

    def awaited(made: Any, pretraining: Any, here: Measurement, wait: Callable[[], None]) -> dict[str, list[int]]:
        wait()
        return there.plan(made, pretraining, here)

    monkeypatch.setattr(command, "awaited_plan", awaited)
    monkeypatch.setattr(command.time, "sleep", asleep.append)
    assert there.status() == 0
    assert asleep == [POLL]
    assert there.ran[0].arm == "b"
    assert (there.written, capsys.readouterr().out) == (set(), "")


def test_a_process_that_waits_for_the_plan_can_be_stopped(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there = Fixture(tmp_path, monkeypatch, RunShard(1))
    there.asked = True
    monkeypatch.setattr(calibration, "planned", lambda *_: {})
    assert there.status() == 99
    assert (there.shard.stopped, there.ran) == (1, [])


def test_a_stopping_study_stops_the_others_and_keeps_its_status(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there = Fixture(tmp_path, monkeypatch, RunShard())
    there.stop = Stopped(77)
    assert there.status() == 77
    assert there.shard.stopped == 1


def test_a_study_stopped_while_waiting_for_others_ends_as_stopped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    there = Fixture(tmp_path, monkeypatch, RunShard(gathered=None))
    there.asked = True
    assert (there.status(), there.shard.waited) == (99, True)
    lost = Fixture(tmp_path, monkeypatch, RunShard(gathered=ProcessesLost("process 1 of 2 failed")))
    assert lost.status() == HUNG
    assert caplog.messages[-1].startswith("process 1 of 2 failed; run the same command again in all processes")
