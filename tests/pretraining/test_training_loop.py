"""The steps of a phase of pretraining: what happens after each, in which order."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from bert_jax import pretrain as module
from bert_jax.pretrain import train_phase
from bert_jax.runtime.goodput import Ledger
from bert_jax.runtime.profile import Profile
from tests.pretraining.notebook import EXPERIMENT, Notebook, Notes, state_of


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


class Sums:
    """The sums of steps: the list of what was added."""

    def __init__(self, notebook: Notebook):
        self.add, self.check, self.taken = notebook.says("added"), notebook.says("checked"), notebook.says("taken")

    def take(self) -> str:
        return "sums"

    def is_computing(self) -> bool:
        return False


def trained(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, begin: int, stop_at: int = 99, index: int = 0
) -> tuple[Any, bool]:
    """`train_phase` from the step `begin` on, asked to stop at another; a step makes the state of the next step."""
    starts = EXPERIMENT.phase_starts()

    def sums(limit: int, directory: pathlib.Path, rows: Any, spikes: Any) -> Sums:
        notebook.notes.append(("sums", limit, directory, rows is phase.rows, spikes))
        return Sums(notebook)

    def step(state: Any, batch: Any) -> tuple[Any, str]:
        notebook.notes.append(("trained", batch))
        return state_of(state.step + 1), f"sums of {state.step + 1}"

    monkeypatch.setattr(module, "StepSums", sums)
    phase: Any = types.SimpleNamespace(
        experiment=EXPERIMENT,
        end=starts[index + 1],
        rows=lambda step: f"batch {step}",
        arguments=lambda state, batch: (state, batch),
        evaluate=lambda params: f"scores of {params}",
        verification=types.SimpleNamespace(check=notebook.says("verified")),
    )
    run: Any = types.SimpleNamespace(
        workdir=pathlib.Path("workdir"),
        ledger=Ledger(),
        profile=Profile(),
        watchdog=types.SimpleNamespace(step_done=notebook.says("watched")),
        preemption=types.SimpleNamespace(requested=lambda step: step >= stop_at),
    )
    run.ledger.step_done = notebook.says("counted", run.ledger.step_done)
    log: Any = types.SimpleNamespace(
        phase=notebook.says("phase"),
        training=lambda step, of, window: notebook.notes.append(("logged", step, of is phase, window)),
        evaluation=notebook.says("evaluated"),
        throughput=types.SimpleNamespace(pause=notebook.during),
    )
    saver: Any = types.SimpleNamespace(save=lambda step, state: notebook.notes.append(("saved", step, state.params)))
    found = train_phase(phase, step, state_of(begin), run, log, saver)  # type: ignore[arg-type]
    assert notebook.notes.pop(1) == ("phase", phase)
    assert notebook.notes.pop(0) == ("sums", EXPERIMENT.abort_after_skipped, run.workdir, True, EXPERIMENT.spikes)
    return found


def step_notes(step: int) -> Notes:
    done = ("added", step, f"sums of {step}")
    return [("trained", f"batch {step - 1}"), done, ("watched", step), ("counted", step), ("verified",)]


def logged(step: int) -> Notes:
    return [("logged", step, True, "sums")]


def evaluated(step: int) -> Notes:
    return ["evaluating", ("evaluated", step, f"scores of weights {step}"), "end of evaluating"]


def saved(step: int) -> Notes:
    return ["saving", ("saved", step, f"weights {step}"), "end of saving"]


def test_every_step_is_counted_and_logs_evaluations_and_saves_come_when_they_are_due(notebook, monkeypatch):
    """A log line every 2 steps, before every save and at the end; scores every 3; a state every 4 and after step 5."""
    state, stopped = trained(notebook, monkeypatch, 0)
    assert (state.step, stopped) == (6, False)
    assert notebook.notes == [
        *evaluated(0),
        *step_notes(1),
        *(*step_notes(2), *logged(2)),
        *(*step_notes(3), *evaluated(3)),
        *(*step_notes(4), *logged(4), *saved(4)),
        *(*step_notes(5), *logged(5), *saved(5)),
        *(*step_notes(6), *logged(6), *evaluated(6)),
        ("checked", 6),
    ]


def test_the_last_step_of_a_run_is_saved_and_a_phase_that_goes_on_is_not_evaluated_at_its_beginning(notebook, monkeypatch):
    state, stopped = trained(notebook, monkeypatch, 7, index=1)
    assert (state.step, stopped) == (9, False)
    assert notebook.notes == [
        *(*step_notes(8), *logged(8), *saved(8)),
        *(*step_notes(9), *logged(9), *evaluated(9), *saved(9)),
        ("checked", 9),
    ]


def test_a_run_that_is_asked_to_stop_saves_after_the_step_under_way_and_trains_no_more(notebook, monkeypatch):
    state, stopped = trained(notebook, monkeypatch, 0, stop_at=1)
    assert (state.step, stopped) == (1, True)
    assert notebook.notes == [*evaluated(0), *step_notes(1), *logged(1), *saved(1), ("checked", 1)]
