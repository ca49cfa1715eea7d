"""The calls of a `finetune` run to its parts, and their order, around the loop (`tests/training/test_loop.py`).

The parts are stand-ins that record their calls; tests/end_to_end/ tests the whole with real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax import finetune as command
from bert_jax.errors import UserError
from bert_jax.finetuning.sweep import UNSAVED
from bert_jax.runtime.goodput import TimeCategory
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.loop import Trained
from tests.notes import Notes

DIRECTORY = pathlib.Path("runs") / "seed-1"
OF_CHECKPOINTS, TRAINING = types.SimpleNamespace(every=5, keep=4), types.SimpleNamespace(accumulation=1)
EXPERIMENT = types.SimpleNamespace(abort_after_skipped=9, log_every=4, checkpoints=OF_CHECKPOINTS, training=TRAINING)


@dataclasses.dataclass(frozen=True)
class State:
    """A state that is identified by its step."""

    step: int
    skipped: int = 0

    @property
    def params(self) -> str:
        return f"weights of {self.step}"


# ---------------------------------------------------------------------------------------------------------- the frame of a run


class Frame:
    """A run around its loop: the loop returns `trained`, the last save fails with `unsaved`, and the save of the best weights
    with `best_unsaved`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changed: Any):
        self.notes, self.prefix, self.is_first, self.restored = Notes(), "", True, None
        self.trained, self.degenerate = (State(6), True), False
        self.unsaved = self.best_unsaved = self.unwritten = None
        vars(self).update(changed)
        notes = self.notes
        for name in ("Checkpoints", "BestWeights", "FinetuningLog", "Saver", "train", "results", "write_results"):
            monkeypatch.setattr(command, name, getattr(self, f"{name}_".lower()))
        monkeypatch.setattr(command.time, "monotonic", iter([100.0, 130.0]).__next__)
        task = types.SimpleNamespace(metric="f1", degeneracy=lambda split, logits: f"{split} says {logits}")
        data = types.SimpleNamespace(dev=["dev", "dev_other"], scored_tests=["test"], task=task)
        run = types.SimpleNamespace(
            profile=types.SimpleNamespace(for_run=notes.of("profile of", "profile")), is_first=self.is_first,
            durable=lambda path: f"durable {path}", watchdog="watchdog", mirror="mirror", require_in_place="in place",
        )  # fmt: skip
        totals = {"goodput": 0.5, "starts": 1, "seconds": {}}
        goodput = types.SimpleNamespace(during=notes.block("during"), totals=lambda: totals)
        self.job: Any = types.SimpleNamespace(
            experiment=EXPERIMENT, run=run, last_step=6, goodput=goodput, evaluations={3, 6}, rows="rows {}".format,
            prefix=self.prefix, memory_advice=None, directory=DIRECTORY, init_state=notes.of("init_state", State(0)),
            program=types.SimpleNamespace(state="abstract state"),
            mesh=make_mesh(MeshConfig(), jax.devices()[:1]), start="start", data=data,
        )  # fmt: skip

    @contextlib.contextmanager
    def checkpoints_(self, place: str, *, keep: int) -> Iterator[Any]:
        self.notes.append(f"checkpoints {place}, {keep}")
        self.states: Any = types.SimpleNamespace(restore_latest=self.notes.of("restore", self.restored), failures=2)
        yield self.states
        self.notes.append("checkpoints closed")

    @contextlib.contextmanager
    def bestweights_(self, job: Any, until: int | None = None) -> Iterator[Any]:
        assert job is self.job
        self.notes.append(f"best until {until}")
        kept = types.SimpleNamespace(failure=lambda: self.best_unsaved, failures=3)
        self.best: Any = types.SimpleNamespace(checkpoints=kept, ensure_saved=None, export=self.notes.of("export"))
        self.best.logits = "logits of {} by best weights".format
        self.best.ends_run = lambda step: step == 5
        yield self.best
        self.notes.append("best closed")

    @contextlib.contextmanager
    def finetuninglog_(self, job: Any, step: int) -> Iterator[Any]:
        assert job is self.job
        self.notes.append(f"log from {step}")
        note = self.notes.of
        self.log: Any = types.SimpleNamespace(
            metrics="metrics", note=note("say"), tests=note("tests"), warn_degenerate=note("degenerate"), draw=note("draw")
        )
        yield self.log

    def saver_(self, *given: object) -> Any:
        best = self.best
        assert given == (self.states, "metrics", "watchdog", best.ensure_saved, best.checkpoints, "mirror", "in place")
        return "saver"

    def train_(self, parts: Any, state: Any) -> Trained:
        assert (parts.log, parts.saver, parts.profile, parts.goodput) == (self.log, "saver", "profile", self.job.goodput)
        assert (parts.last_step, parts.abort_after_skipped, parts.directory) == (6, 9, DIRECTORY)
        assert parts.is_ended == (state.step == 5)
        with parts.stage(state) as stage:
            self.stage = stage
        self.notes.append(f"train from {state.step}")
        state, is_whole = self.trained
        return Trained(state, is_whole, self.unsaved, self.best_unsaved)

    def results_(self, job: Any, state: State, best: Any, logits: dict[str, str], seconds: float) -> dict[str, Any]:
        assert (job, best) == (self.job, self.best)
        found = {"step": state.step, "logits": logits, "seconds": seconds}
        return found | {"test_scores": "of tests", "degenerate": self.degenerate}

    def write_results_(self, directory: pathlib.Path, results: dict[str, Any]) -> UserError | None:
        self.written = dict(results)
        self.notes.append(f"write {directory}")
        return self.unwritten


def test_a_run_restores_trains_scores_its_best_weights_and_exports(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch)
    found = command.finetune(frame.job)
    assert frame.notes == [
        "profile of 6 alone=True",
        f"checkpoints durable {DIRECTORY / 'checkpoints'}, 4",
        *(
            f"during {TimeCategory.RESTORING}",
            "restore abstract state",
            "best until -1",
            "end of during",
            "init_state",
            "log from 0",
        ),
        "train from 0",
        *(f"during {TimeCategory.EVALUATING}", "end of during", "tests of tests", "say goodput 50.0 % of 0s in 1 start"),
        *(f"write {DIRECTORY}", "draw", "best closed", "checkpoints closed"),
    ]
    assert found == frame.written
    assert found == {
        "step": 6,
        "logits": {split: f"logits of {split} by best weights" for split in ("dev", "dev_other", "test")},
        "seconds": 30.0,
        "test_scores": "of tests",
        "degenerate": False,
        "failed_saves_since_last_start": 5,
        "ledger": frame.job.goodput.totals(),
    }


def test_a_resumed_run_starts_at_its_checkpoint_with_its_best_weights(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, restored=State(4), prefix="seed-1  ", trained=(State(6, skipped=2), True), is_first=False)
    assert command.finetune(frame.job) is not None
    assert frame.notes[0] == "profile of 6 alone=False"
    assert {"best until 4", "log from 4", "train from 4"} <= set(frame.notes)
    assert not {"init_state", "draw", f"write {DIRECTORY}"} & set(frame.notes), "it is not the first process"


def test_a_stopped_run_has_no_results(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, trained=(State(3), False))
    assert command.finetune(frame.job) is None
    assert not any(note.startswith(("write", "tests")) for note in frame.notes)


def test_the_loop_logs_at_intervals_and_saves_at_the_end(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch)
    command.finetune(frame.job)
    due = {name: [step for step in range(7) if getattr(frame.stage, name)(step)] for name in ("logs", "evaluates", "saves")}
    assert due == {"logs": [0, 3, 4, 6], "evaluates": [3, 6], "saves": [0, 5, 6]}
    assert (frame.stage.end, frame.stage.rows(3), frame.stage.skipped_batches) == (6, "rows 3", 0)


class Step:
    """A jitted step that is compiled for the rows of step 0."""

    def __init__(self, notes: Notes):
        self.notes = notes

    def __call__(self, *arguments: object) -> str:
        self.notes.append(f"run {arguments}")
        return "state and sums"

    def lower(self, *arguments: object) -> Any:
        return types.SimpleNamespace(compile=self.notes.of(f"compile {arguments}"))


def test_a_step_is_compiled_before_new_shapes_and_evaluations_update_the_best_weights(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch)
    job, notes = frame.job, frame.notes
    trains = {"training_step": lambda accumulation: Step(notes), "is_new": lambda function, rows: rows == "new rows"}
    job.program = types.SimpleNamespace(state="abstract state", **trains)
    job.arguments = lambda state, rows: (state, rows)
    job.evaluate = lambda weights: ({"dev": {"f1": f"f1 of {weights}"}, "dev_other": {"f1": "none"}}, f"logits of {weights}")
    command.finetune(job)
    frame.log.compiling, frame.log.evaluation, frame.best.offer = notes.block("compiling"), notes.of("told"), notes.of("offer")
    notes.clear()
    state: Any = State(3)
    for rows in ("new rows", "rows"):
        assert frame.stage.step(state, rows) == "state and sums"  # type: ignore[arg-type, comparison-overlap]
    about = [f"{(state, rows)}" for rows in ("new rows", "rows")]
    assert notes == [
        *("compiling training step new rows", f"compile {about[0]}", "end of compiling", f"run {about[0]}", f"run {about[1]}")
    ]
    notes.clear()
    assert [frame.stage.evaluate(step, state) for step in (3, 5)] == [False, True]
    assert notes[1] == "offer 3 f1 of weights of 3 weights of 3 logits of weights of 3"
    assert notes[0].startswith("told 3 {'dev': {'f1': 'f1 of weights of 3'}")


def test_unsaved_best_weights_are_exported_before_the_error(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, best_unsaved=UserError("disk full"))
    with pytest.raises(UserError, match=f"^disk full. The best weights so far are in {DIRECTORY}/model$"):
        command.finetune(frame.job)
    assert f"export {DIRECTORY} start" in frame.notes


def test_a_failed_last_save_is_reported_with_the_results(monkeypatch: pytest.MonkeyPatch):
    for state, results, says in (("state", None, "state"), (None, "results", "results"), ("state", "results", "results")):
        errors = {"unsaved": state and UserError(state), "unwritten": results and UserError(results)}
        frame = Frame(monkeypatch, **errors)
        assert (command.finetune(frame.job) or {})[UNSAVED] == says
        assert UNSAVED not in frame.written


def test_degenerate_predictions_of_the_first_dev_split_give_a_warning(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, degenerate=True)
    command.finetune(frame.job)
    assert "degenerate dev dev says logits of dev by best weights" in frame.notes
