"""What a run of `finetune` asks of its parts, and in which order: the loop, and the frame around it.

The parts are stand-ins that take notes; the whole with real ones is in tests/end_to_end/.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from bert_jax import finetune as verb
from bert_jax.errors import UserError
from bert_jax.finetuning.sweep import UNSAVED
from bert_jax.runtime.goodput import Activity
from bert_jax.sharding.mesh import MeshConfig, make_mesh
from tests.notes import Notes

DIRECTORY = pathlib.Path("runs") / "seed-1"


@dataclasses.dataclass(frozen=True)
class State:
    """A state that is known by its step."""

    step: int
    skipped: int = 0

    @property
    def params(self) -> str:
        return f"weights of {self.step}"


# --------------------------------------------------------------------------------------------------------------------- the loop


class Loop:
    """Steps of a run: it logs every 4, saves every 5, evaluates after 3 and 6, and compiles for the rows of step 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stops: tuple[int, ...] = (), ends: tuple[int, ...] = ()):
        notes = self.notes = Notes()
        self.stops, self.ends = stops, ends
        monkeypatch.setattr(verb, "StepSums", self.sums)
        monkeypatch.setattr(verb, "prefetch", lambda rows, start, stop: [rows(step) for step in range(start, stop)])
        experiment = types.SimpleNamespace(abort_after_skipped=9, log_every=4, checkpoints=types.SimpleNamespace(every=5))
        run = types.SimpleNamespace(
            watchdog=types.SimpleNamespace(step_done=notes.of("alive at")),
            preemption=types.SimpleNamespace(requested=lambda step: step in stops),
        )
        ledger = types.SimpleNamespace(training=self.awaited, step_done=notes.of("ledger at"))
        self.job: Any = types.SimpleNamespace(
            experiment=experiment, run=run, ledger=ledger, directory=DIRECTORY, last_step=6, evaluations={3, 6},
            rows=lambda step: f"rows {step}",
            program=types.SimpleNamespace(train=self, is_new=lambda function, rows: (function, rows) == ("train", "rows 0")),
            arguments=lambda state, rows: (state, rows, "scalars"),
            evaluate=lambda weights: ({"dev": {"f1": f"f1 of {weights}"}, "dev_other": {"f1": "none"}}, f"logits of {weights}"),
            data=types.SimpleNamespace(dev=["dev", "dev_other"], task=types.SimpleNamespace(metric="f1")),
        )  # fmt: skip
        self.best: Any = types.SimpleNamespace(offer=notes.of("offer"), ends_run=lambda step: step in ends)
        self.log: Any = types.SimpleNamespace(
            compiling=notes.block("compile"),
            training=notes.of("log"),
            evaluation=lambda step, scores: notes.of("scores")(step, *scores),
            throughput=types.SimpleNamespace(pause=notes.block("pause")),
        )
        self.saver: Any = types.SimpleNamespace(save=lambda step, state: notes.of("save")(step, state.params))
        self.profile: Any = types.SimpleNamespace(of_steps=self.profiled)

    def sums(self, limit: int, directory: pathlib.Path, rows: Callable[[int], str]) -> Any:
        """Stands in for StepSums."""
        assert (limit, directory, rows) == (9, DIRECTORY, self.job.rows)
        add, check = self.notes.of("add"), self.notes.of("check")
        self.made: Any = types.SimpleNamespace(add=add, check=check, take=lambda: "sums", is_computing=lambda: False)
        return self.made

    @contextlib.contextmanager
    def awaited(self, batches: list[str], is_computing: Callable[[], bool]) -> Iterator[Iterator[str]]:
        assert is_computing is self.made.is_computing
        self.notes.append(f"await {len(batches)}")
        yield iter(batches)

    def profiled(self, batches: Iterator[str], step: int, wait: Callable[[int], object]) -> Iterator[str]:
        assert wait is self.made.check
        self.notes.append(f"profile from {step}")
        return batches

    def __call__(self, state: State, rows: str, scalars: str) -> tuple[State, str]:
        """The training step."""
        assert (rows, scalars) == (f"rows {state.step}", "scalars")
        return State(state.step + 1), f"sums of {rows}"

    def lower(self, state: State, rows: str, scalars: str) -> Any:
        assert (rows, scalars) == (f"rows {state.step}", "scalars")
        return types.SimpleNamespace(compile=self.notes.of("compiled for", rows))

    def trained(self, step: int = 0) -> tuple[int, bool]:
        """(the last step, whether the run is finished) of the loop from `step` on."""
        state: Any = State(step)
        state, is_whole = verb.train_task(self.job, state, self.best, self.log, self.saver, self.profile)
        return state.step, is_whole


def one(step: int) -> list[str]:
    """What every step notes."""
    return [f"add {step} sums of rows {step - 1}", f"alive at {step}", f"ledger at {step}"]


def evaluated(step: int) -> list[str]:
    paused, ended, weights = f"pause {Activity.EVALUATING}", "end of pause", f"weights of {step}"
    return [paused, f"scores {step} dev dev_other", f"offer {step} f1 of {weights} {weights} logits of {weights}", ended]


def saved(step: int) -> list[str]:
    return [f"pause {Activity.SAVING}", f"save {step} weights of {step}", "end of pause"]


def test_the_loop_logs_before_it_evaluates_and_evaluates_before_it_saves(monkeypatch: pytest.MonkeyPatch):
    loop = Loop(monkeypatch)
    assert loop.trained() == (6, True)
    compiled = ["compile training step rows 0", "compiled for", "end of compile"]
    assert loop.notes == [
        *("await 6", "profile from 0", *compiled, *one(1), *one(2)),
        *(*one(3), "log 3 sums", *evaluated(3)),
        *(*one(4), "log 4 sums"),
        *(*one(5), "log 5 sums", *saved(5)),
        *(*one(6), "log 6 sums", *evaluated(6), *saved(6), "check 6"),
    ]


def test_a_loop_that_is_asked_to_stop_saves_and_is_whole_only_at_the_last_step(monkeypatch: pytest.MonkeyPatch):
    for stop, is_whole in ((2, False), (6, True)):
        loop = Loop(monkeypatch, stops=(stop,))
        assert loop.trained(1) == (stop, is_whole)
        assert loop.notes[:2] == ["await 5", "profile from 1"]
        assert loop.notes[-4:] == [*saved(stop), f"check {stop}"]
        assert f"log {stop} sums" in loop.notes


def test_early_stopping_ends_the_loop_after_an_evaluation_and_a_save(monkeypatch: pytest.MonkeyPatch):
    for stops in ((), (3,)):
        loop = Loop(monkeypatch, ends=(3,), stops=stops)
        assert loop.trained() == (3, True)
        assert loop.notes[-8:] == [*evaluated(3), *saved(3), "check 3"]
    loop = Loop(monkeypatch, ends=(3,))
    assert loop.trained(3) == (3, True), "a run that continues after its end trains no further"
    assert loop.notes == ["await 0", "profile from 3", "check 3"]


# ---------------------------------------------------------------------------------------------------------- the frame of a run


class Frame:
    """A run around its loop; the loop gives `trained`, the last save fails with `unsaved`, that of the best `best_unsaved`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changed: Any):
        self.notes, self.prefix, self.is_first, self.restored = Notes(), "", True, None
        self.trained, self.degenerate = (State(6), True), False
        self.unsaved = self.best_unsaved = self.unwritten = None
        vars(self).update(changed)
        notes = self.notes
        for name in ("Checkpoints", "BestWeights", "FinetuningLog", "Saver", "train_task", "results", "write_results"):
            monkeypatch.setattr(verb, name, getattr(self, f"{name}_".lower()))
        monkeypatch.setattr(verb, "require_learned", notes.of("require learned"))
        monkeypatch.setattr(verb.time, "monotonic", iter([100.0, 130.0]).__next__)
        task = types.SimpleNamespace(degeneracy=lambda split, logits: f"{split} says {logits}")
        data = types.SimpleNamespace(dev=["dev", "dev_other"], scored_tests=["test"], task=task)
        run = types.SimpleNamespace(
            profile=types.SimpleNamespace(of_run=notes.of("profile of", "profile")), is_first=self.is_first,
            durable=lambda path: f"durable {path}", watchdog="watchdog", mirror="mirror", require_in_place="in place",
        )  # fmt: skip
        totals = {"goodput": 0.5, "starts": 1, "seconds": {}}
        ledger = types.SimpleNamespace(during=notes.block("during"), totals=lambda: totals)
        self.job: Any = types.SimpleNamespace(
            experiment=types.SimpleNamespace(checkpoints=types.SimpleNamespace(keep=4)), run=run, last_step=6, ledger=ledger,
            prefix=self.prefix, demand=None, directory=DIRECTORY, state="abstract state", begin=notes.of("begin", State(0)),
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
        self.saver: Any = types.SimpleNamespace(finish=self.notes.of("last save", self.unsaved))
        return self.saver

    def train_task_(self, job: Any, state: State, *given: object) -> tuple[State, bool]:
        assert (job, given) == (self.job, (self.best, self.log, self.saver, "profile"))
        self.notes.append(f"train from {state.step}")
        return self.trained

    def results_(self, job: Any, state: State, best: Any, logits: dict[str, str], seconds: float) -> dict[str, Any]:
        assert (job, best) == (self.job, self.best)
        found = {"step": state.step, "logits": logits, "seconds": seconds}
        return found | {"test_scores": "of tests", "degenerate": self.degenerate}

    def write_results_(self, directory: pathlib.Path, results: dict[str, Any]) -> UserError | None:
        self.written = dict(results)
        self.notes.append(f"write {directory}")
        return self.unwritten


def test_a_run_restores_trains_scores_its_best_weights_and_writes(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch)
    found = verb.finetune(frame.job)
    assert frame.notes == [
        "profile of 6 alone=True",
        f"checkpoints durable {DIRECTORY / 'checkpoints'}, 4",
        *(f"during {Activity.RESTORING}", "restore abstract state", "best until -1", "end of during", "begin", "log from 0"),
        *("train from 0", f"during {Activity.SAVING}", "last save 6", "end of during", "require learned 6 0"),
        *(f"during {Activity.EVALUATING}", "end of during", "tests of tests", "say goodput 50.0 % of 0s in 1 start"),
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
        "ledger": frame.job.ledger.totals(),
    }


def test_a_run_that_continues_begins_at_its_checkpoint_with_the_best_weights_up_to_it(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, restored=State(4), prefix="seed-1  ", trained=(State(6, skipped=2), True), is_first=False)
    assert verb.finetune(frame.job) is not None
    assert frame.notes[0] == "profile of 6 alone=False"
    assert {"best until 4", "log from 4", "train from 4", "require learned 6 2"} <= set(frame.notes)
    assert not {"begin", "draw", f"write {DIRECTORY}"} & set(frame.notes), "it is not the first process"


def test_a_run_that_is_asked_to_stop_says_that_it_is_saved_unless_it_is_not(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, trained=(State(3), False))
    assert verb.finetune(frame.job) is None
    assert "say stopped at step 3 of 6, saved; the same command continues" in frame.notes
    assert not any(note.startswith(("require", "write", "tests")) for note in frame.notes)
    for which in ("unsaved", "best_unsaved"):
        with pytest.raises(UserError, match=r"^disk full$"):
            verb.finetune(Frame(monkeypatch, trained=(State(3), False), **{which: UserError("disk full")}).job)


def test_best_weights_that_could_not_be_saved_are_exported_before_the_error(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, best_unsaved=UserError("disk full"))
    with pytest.raises(UserError, match=f"^disk full. The best weights so far are in {DIRECTORY}/model$"):
        verb.finetune(frame.job)
    assert f"export {DIRECTORY} start" in frame.notes


def test_what_could_not_be_saved_at_the_end_is_part_of_the_results(monkeypatch: pytest.MonkeyPatch):
    for state, results, says in (("state", None, "state"), (None, "results", "results"), ("state", "results", "results")):
        errors = {"unsaved": state and UserError(state), "unwritten": results and UserError(results)}
        frame = Frame(monkeypatch, **errors)
        assert (verb.finetune(frame.job) or {})[UNSAVED] == says
        assert UNSAVED not in frame.written


def test_degenerate_predictions_are_told_with_what_the_task_says_of_the_first_dev_split(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, degenerate=True)
    verb.finetune(frame.job)
    assert "degenerate dev dev says logits of dev by best weights" in frame.notes
