"""The training loop: what happens after each step, in which order; phases, early stopping, rollbacks after spikes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.runtime.profile import Profile
from bert_jax.training import loop
from bert_jax.training.loop import LossSpike, Parts, Stage, Trained, train
from tests.notes import Notes


@dataclasses.dataclass(frozen=True)
class State:
    """A state that is identified by its step."""

    step: int
    skipped: int = 0
    skipped_batches: int = 0

    @property
    def params(self) -> str:
        return f"weights of {self.step}"


class Run:
    """A run with steps in stages that end at `ends`. It logs every 2 steps and before a save, evaluates every 3 and at the end of
    a stage, and saves every 4 and at the end of the run. Evaluations in `early` end it, it is asked to stop at `stops`, and
    the loss of each step in `spikes` is a spike the first time."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *ends: int,
        early: tuple[int, ...] = (),
        stops: tuple[float, ...] = (),
        spikes: tuple[int, ...] = (),
    ):
        notes = self.notes = Notes()
        self.ends, self.early, self.stops, self.spikes = ends, early, stops, list(spikes)
        self.saves_early = True
        self.unsaved: tuple[UserError | None, UserError | None] = (None, None)
        monkeypatch.setattr(loop, "StepSums", self.sums)
        monkeypatch.setattr(loop, "prefetch", self.prefetch)
        run: Any = types.SimpleNamespace(
            watchdog=types.SimpleNamespace(step_done=notes.of("alive at")),
            preemption=types.SimpleNamespace(requested=self.is_stopped, requested_here=self.is_stopped),
        )
        log: Any = types.SimpleNamespace(
            pause=notes.block("pause"), training=notes.of("log"), rolled_back=notes.of("back to"), note=notes.of("say"),
            write_with_next=notes.of("write"),
        )  # fmt: skip
        saver: Any = types.SimpleNamespace(
            save=lambda step, state: notes.of("save")(step, state.params), finish=lambda step: self.unsaved
        )
        self.parts = Parts(
            run=run,
            directory=pathlib.Path("runs"),
            goodput=GoodputRecorder(),
            profile=Profile(),
            last_step=ends[-1],
            stage=self.stage,
            log=log,
            saver=saver,
            abort_after_skipped=9,
            rollback=self.rollback if spikes else None,
            check=notes.of("check parts"),
        )

    def is_stopped(self) -> bool:
        """Returns whether the run has reached one of the steps `stops`. A fraction stands for the evaluation after the step."""
        done = [note for note in self.notes if note.startswith(("alive at", "first batch of"))]
        reached = [f"alive at {step}" if step == int(step) else f"first batch of {int(step)}" for step in self.stops]
        return any(note in done for note in reached)

    def sums(self, limit: int, directory: pathlib.Path, rows: Any, spikes: Any) -> Any:
        """A stand-in for StepSums."""
        assert (limit, directory) == (9, pathlib.Path("runs"))
        assert rows(3) == "rows 3"

        def add(step: int, sums: str) -> None:
            self.notes.append(f"add {step} {sums}")
            if step in self.spikes:
                self.spikes.remove(step)
                raise LossSpike(step, 2)

        return types.SimpleNamespace(add=add, check=self.notes.of("check"), take=lambda: "sums", is_computing=lambda: False)

    class prefetch(Iterator[str]):
        """Stands in for batches that are prefetched by threads."""

        def __init__(self, rows: Any, start: int, stop: int):
            self._rows = iter([rows(step) for step in range(start, stop)])

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __next__(self) -> str:
            return next(self._rows)

        def is_ready(self, within: float = 0.0) -> bool:
            return True

    @contextlib.contextmanager
    def stage(self, state: Any) -> Iterator[Stage]:
        end = next(end for end in self.ends if end > state.step)
        self.notes.append(f"stage to {end} from {state.step}")

        def evaluate(step: int, state: Any, before_batch: Any) -> bool:
            for number in ("first", "second") if self.saves_early else ():
                before_batch()
                if any(stop != int(stop) for stop in self.stops):
                    self.notes.append(f"{number} batch of {step}")
            self.notes.append(f"evaluate {step} {state.params}")
            return step in self.early

        yield Stage(
            end=end,
            rows=lambda step: f"rows {step}",  # type: ignore[arg-type, return-value]
            step=lambda state, rows: (State(state.step + 1), f"sums of {rows}"),  # type: ignore[arg-type, return-value]
            logs=lambda step: step % 2 == 0 or step == end,
            evaluates=lambda step: step % 3 == 0 or step == end,
            evaluate=evaluate,
            saves=lambda step: step % 4 == 0 or step == self.ends[-1],
            skipped_batches=5,
        )

    def rollback(self, stage: Stage, spike: LossSpike) -> Any:
        self.notes.append(f"spike at {spike.step}, {stage.skipped_batches} skipped")
        return State(1, skipped_batches=6)

    def __call__(self, begin: int = 0, **changed: Any) -> Trained:
        state: Any = State(begin)
        return train(dataclasses.replace(self.parts, **changed), state)


def one(step: int) -> list[str]:
    """Returns the records of a single step."""
    return [f"add {step} sums of rows {step - 1}", f"alive at {step}", "check parts"]


def evaluated(step: int) -> list[str]:
    return [f"pause {TimeCategory.EVALUATING}", f"evaluate {step} weights of {step}", "end of pause"]


def saved(step: int) -> list[str]:
    return [f"pause {TimeCategory.SAVING}", f"save {step} weights of {step}", "end of pause"]


def logged(step: int) -> list[str]:
    return [f"log {step} sums"]


def test_the_loop_logs_before_it_evaluates_and_evaluates_before_it_saves(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 6)
    trained = run()
    assert (trained.state, trained.is_whole, trained.unsaved) == (State(6), True, None)
    assert run.notes == [
        *("stage to 6 from 0", *evaluated(0), *one(1)),
        *(*one(2), *logged(2)),
        *(*one(3), *logged(3), *evaluated(3)),
        *(*one(4), *logged(4), *saved(4)),
        *one(5),
        *(*one(6), *logged(6), *evaluated(6), *saved(6), "check 6"),
    ]


def test_stages_run_in_order_and_a_resumed_stage_is_not_evaluated_at_its_start(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 2, 4)
    assert run(1).state == State(4)  # type: ignore[comparison-overlap]
    assert run.notes == [
        *("stage to 2 from 1", *one(2), *logged(2), *evaluated(2), "check 2"),
        *("stage to 4 from 2", *one(3), *logged(3), *evaluated(3), *one(4), *logged(4), *evaluated(4), *saved(4), "check 4"),
    ]


def test_a_stop_request_saves_after_the_current_step(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 6, stops=(1,))
    assert not run().is_whole
    said = "say stopped at step 1 of 6, saved; the same command resumes"
    assert run.notes == ["stage to 6 from 0", *evaluated(0), *one(1), *logged(1), *saved(1), "check 1", said]


def test_a_stop_request_saves_before_the_rest_of_an_evaluation(monkeypatch: pytest.MonkeyPatch):
    said = "say stopped at step 3 of 6, saved; the same command resumes"
    save, evaluate = "save 3 weights of 3", evaluated(3)
    run = Run(monkeypatch, 6, stops=(3,))
    monkeypatch.setattr(run.parts.run.preemption, "requested_here", lambda: False)  # as with several processes
    assert not run(2).is_whole
    assert run.notes[1:] == [*one(3), *logged(3), evaluate[0], save, *evaluate[1:], "check 3", said]
    run = Run(monkeypatch, 6, stops=(3.5,))
    assert not run(2).is_whole
    batches = ["first batch of 3", save, "second batch of 3"]
    assert run.notes[1:] == [*one(3), *logged(3), evaluate[0], *batches, *evaluate[1:], "check 3", said]


def test_a_stop_request_during_an_evaluation_that_decides_saves_right_after_it(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 6, stops=(3,))
    run.saves_early = False
    assert not run(2).is_whole
    assert run.notes[1:-2] == [*one(3), *logged(3), *evaluated(3), *saved(3)]
    run = Run(monkeypatch, 6, stops=(6,))
    assert run(5).is_whole
    assert run.notes[1:] == [*one(6), *logged(6), *evaluated(6), *saved(6), "check 6"], "the scores of the last step are results"
    run = Run(monkeypatch, 6, stops=(3,))
    assert not run(2, kept=(3,)).is_whole
    assert run.notes[1:-2] == [*one(3), *logged(3), *evaluated(3), *saved(3)], "a study reads the scores of a kept step"


@pytest.mark.parametrize("which", [0, 1])
def test_a_stopped_run_that_cannot_save_fails(which: int, monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 6, stops=(1,))
    full = UserError("disk full")
    run.unsaved = (full, None) if which == 0 else (None, full)
    with pytest.raises(UserError, match=r"^disk full$"):
        run()


def test_a_stop_request_after_the_last_step_completes_the_run(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 6, stops=(6,))
    run.unsaved = (UserError("the state"), UserError("the best weights"))
    trained = run(4)
    assert (trained.is_whole, str(trained.unsaved), str(trained.best_unsaved)) == (True, "the state", "the best weights")


def test_early_stopping_ends_the_run_after_an_evaluation_and_a_save(monkeypatch: pytest.MonkeyPatch):
    for stops in ((), (3,)):
        run = Run(monkeypatch, 6, early=(3,), stops=stops)
        run.saves_early = False
        trained = run()
        assert (trained.state, trained.is_whole) == (State(3), True)
        assert run.notes[-7:] == [*evaluated(3), *saved(3), "check 3"]
    run = Run(monkeypatch, 6)
    assert run(3, is_ended=True).is_whole, "a run that continues after its end trains no further"
    assert run.notes == []


def test_a_rollback_continues_in_the_stage_of_the_restored_state(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 2, 4, spikes=(3,))
    assert run().state == State(4)  # type: ignore[comparison-overlap]
    stages = [note for note in run.notes if note.startswith(("stage", "spike", "back"))]
    assert stages == [
        *("stage to 2 from 0", "stage to 4 from 2", "spike at 3, 5 skipped", "back to 1 6"),
        *("stage to 2 from 1", "stage to 4 from 2"),
    ]


def test_a_resumed_run_that_may_roll_back_records_its_skipped_batches(monkeypatch: pytest.MonkeyPatch):
    for begin, spikes in ((2, (9,)), (0, (9,)), (2, ())):
        run = Run(monkeypatch, 4, spikes=spikes)
        run(begin)
        assert ("write 2 {'train/skipped_batches': 0}" in run.notes) == (begin == 2 and spikes != ())


def test_spikes_without_rollback_fail_the_run(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 4, spikes=(2,))
    with pytest.raises(LossSpike):
        run(rollback=None)


def test_a_run_most_of_whose_steps_were_skipped_has_no_model(monkeypatch: pytest.MonkeyPatch):
    run = Run(monkeypatch, 4)
    with pytest.raises(UserError, match="only 1 of 4 steps changed the weights"):
        train(run.parts, State(4, skipped=3))  # type: ignore[arg-type]


def test_goodput_counts_steps_and_saving(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    run = Run(monkeypatch, 4)
    run()
    assert run.parts.goodput.record()["step"] == 4
