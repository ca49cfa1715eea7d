"""The order of a save, and the record of saves that failed."""

from __future__ import annotations

import types
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.training.loop import Saver, due


class Steps:
    """Checkpoints after this many failed saves in a row; their calls are recorded in `calls`."""

    def __init__(self, calls: list[Any], failed: int = 0):
        self.failed_in_a_row, self._calls = failed, calls

    def save(self, step: int, state: Any) -> None:
        self._calls.append(("save", step, state))

    def failure(self) -> UserError | None:
        self._calls.append("wait")
        return UserError("disk full") if self.failed_in_a_row else None


class Notes:
    """A writer of metrics and a watchdog that record their calls."""

    def __init__(self, calls: list[Any]):
        self._calls = calls

    def write(self, step: int, values: dict[str, float]) -> None:
        self._calls.append(("record", step, values))

    def alive(self, doing: str) -> None:
        self._calls.append(doing)


def saver(calls: list[Any], failed: int = 0, best: int | None = None, *, writes: bool = True) -> Saver:
    notes: Any = Notes(calls)
    checkpoints: Any = Steps(calls, failed)
    of_best: Any = None if best is None else Steps([], best)
    return Saver(checkpoints, notes if writes else None, notes, lambda: calls.append("before"), of_best)


@pytest.mark.parametrize(
    ("step", "every", "last", "wanted"), [(10, 5, 12, True), (11, 5, 12, False), (12, 5, 12, True), (4, 5, 12, False)]
)
def test_saves_are_due_at_intervals_and_after_the_last_step(step: int, every: int, last: int, wanted: bool):
    assert due(step, every, last=last) is wanted


@pytest.mark.parametrize(("failed", "best", "writes"), [(0, 0, True), (2, None, False)])
def test_a_save_comes_after_its_prerequisites_and_is_not_a_hang(failed: int, best: int | None, writes: bool):
    """Processes that write no metrics save too, and record no failures."""
    calls: list[Any] = []
    saver(calls, failed, best, writes=writes).save(7, "state")  # type: ignore[arg-type]
    assert calls == ["before", ("save", 7, "state"), "saving"]


def test_failed_saves_are_recorded_by_kind():
    calls: list[Any] = []
    of_both = saver(calls, 2, 3)
    of_both.save(7, "state")  # type: ignore[arg-type]
    both = {"checkpoints/failed_saves_in_a_row": 2, "best/failed_saves_in_a_row": 3}
    assert calls[2:] == [("record", 7, both), "saving"]
    calls.clear()
    of_state, of_best = saver(calls, 1, 0).finish(9)
    assert (str(of_state), of_best) == ("disk full", None)
    assert calls == ["wait", ("record", 9, {"checkpoints/failed_saves_in_a_row": 1})]
    calls.clear()
    of_state, of_best = saver(calls, 0, 1).finish(9)
    assert (of_state, str(of_best)) == (None, "disk full")
    assert calls == ["wait", ("record", 9, {"best/failed_saves_in_a_row": 1})]


def test_metrics_are_uploaded_with_the_checkpoint():
    calls: list[Any] = []
    notes: Any = Notes(calls)
    mirror: Any = types.SimpleNamespace(soon=lambda: calls.append("mirror"))
    steps: Any = Steps(calls)
    Saver(steps, notes, notes, lambda: calls.append("before"), mirror=mirror).save(7, "state")  # type: ignore[arg-type]
    assert calls == ["before", "mirror", ("save", 7, "state"), "saving"]


def test_the_workdir_is_in_place_before_a_save_and_before_the_results():
    calls: list[Any] = []
    notes: Any = Notes(calls)
    steps: Any = Steps(calls)
    of = Saver(steps, notes, notes, lambda: calls.append("before"), in_place=lambda: calls.append("in place"))
    of.save(7, "state")  # type: ignore[arg-type]
    of.finish(9)
    assert calls == ["in place", "before", ("save", 7, "state"), "saving", "wait", "in place"]
