"""States of a run in several processes: what a process saves, reads and removes if another one fails."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import jax
import pytest

from bert_jax.errors import UserError, WorkdirError
from bert_jax.training.checkpoints import UNFINISHED, Checkpoints
from tests.small_disk import files_of_at_most
from tests.training.test_checkpoints_on_meshes import abstract, assert_equal, damage, save_all, state_at, steps_in

STATE = state_at(7)
SAVE, WAIT = "orbax.checkpoint.CheckpointManager.save", "orbax.checkpoint.CheckpointManager.wait_until_finished"


class Two:
    """This process as one of two. The other one gives the answers `others`, then True. `ours` has the answers of this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._monkeypatch, self._others, self.ours = monkeypatch, iter(list[bool]()), list[bool]()

    def begin(self, index: int, *others: bool) -> None:
        self._others, self.ours = iter(others), []
        self._monkeypatch.setattr(jax, "process_count", lambda: 2)
        self._monkeypatch.setattr(jax, "process_index", lambda: index)

    def gather(self, here: bool) -> list[bool]:
        self.ours.append(here)
        return [here, next(self._others, True)]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    return Two(monkeypatch)


@pytest.fixture
def orbax(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records when Orbax starts to save and waits for it, by the name of the directory; Orbax itself would wait for the other
    process."""
    calls: list[str] = []
    monkeypatch.setattr(SAVE, lambda self, step, **_: calls.append(f"{self.directory.name} saves {step}"))
    monkeypatch.setattr(WAIT, lambda self: calls.append(f"{self.directory.name} waits"))
    return calls


@pytest.mark.parametrize("index", [0, 1])
def test_several_processes_save_only_if_process_0_can_write(
    index: int, tmp_path: pathlib.Path, two: Two, orbax: list[str], caplog: pytest.LogCaptureFixture
):
    """If process 0 cannot write, no process starts to save: the others would wait for process 0 in Orbax."""
    with Checkpoints(tmp_path / "run", gather=two.gather) as checkpoints:
        two.begin(index, index == 0)
        with files_of_at_most(20_000) if index == 0 else contextlib.nullcontext():
            checkpoints.save(1, STATE)
        assert (orbax, checkpoints.failures) == ([], 1)
        checkpoints.save(2, STATE)
        assert orbax == ["run saves 2"]
        checkpoints.finish()
    reason = "File too large" if index == 0 else "process 0 cannot write"
    assert f"the checkpoint of step 1 could not be saved ({reason})" in caplog.text
    assert not list((tmp_path / "run").iterdir()), "the file that tries the disk is removed"


@pytest.mark.parametrize(
    ("own", "other", "reason"),
    [
        (OSError(28, "No space left on device"), True, "No space left on device"),
        (OSError(28, "No space left on device"), False, "No space left on device"),
        (None, False, "another process could not write its part"),
    ],
)
def test_a_save_fails_if_any_process_cannot_write(
    own: OSError | None, other: bool, reason: str, tmp_path: pathlib.Path, two: Two, monkeypatch: pytest.MonkeyPatch, orbax: Any
):
    errors = [own] if own else []

    def wait(_: object) -> None:
        if errors:
            raise errors.pop()

    with Checkpoints(tmp_path, gather=two.gather) as checkpoints:
        two.begin(1, True, other)
        monkeypatch.setattr(WAIT, wait)
        checkpoints.save(7, STATE)
        with pytest.raises(UserError, match=rf"^the checkpoint of step 7 could not be saved in {tmp_path} \({reason}\); free"):
            checkpoints.finish()


@pytest.mark.parametrize("index", [0, 1])
def test_an_error_at_the_start_of_a_save_counts_as_its_failure_and_process_0_removes_its_files(
    index: int, tmp_path: pathlib.Path, two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def save(*_: object, **__: object) -> None:
        (tmp_path / f"7{UNFINISHED}").mkdir()
        raise ZeroDivisionError("division by zero")

    with Checkpoints(tmp_path, gather=two.gather) as checkpoints:
        two.begin(index)
        monkeypatch.setattr(SAVE, save)
        checkpoints.save(7, STATE)
        assert checkpoints.failures == 1
    assert "the checkpoint of step 7 could not be saved (division by zero)" in caplog.text
    assert len(list(tmp_path.iterdir())) == index


def test_saves_of_several_processes_wait_for_other_instances(tmp_path: pathlib.Path, two: Two, orbax: list[str]):
    """One process may save two states at the same time. Two processes might start them in another order."""
    with Checkpoints(tmp_path / "steps", gather=two.gather) as steps, Checkpoints(tmp_path / "best", gather=two.gather) as best:
        for of in (steps, best):
            of.save(7, STATE)
        assert orbax == ["steps saves 7", "best saves 7"]
        for of in (steps, best):
            of.finish()
        orbax.clear()
        two.begin(0)
        for of in (steps, best):
            of.save(8, STATE)
        assert orbax == ["steps saves 8", "steps waits", "best saves 8"]
        orbax.clear()
        best.save(9, STATE)
        assert orbax == ["best waits", "best saves 9"], "its own save ends once"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_device_error_of_several_processes_ends_a_run_without_waiting_for_its_save(
    processes: int, tmp_path: pathlib.Path, two: Two, orbax: list[str]
):
    """The save may wait for a process that is dead."""
    with pytest.raises(jax.errors.JaxRuntimeError), Checkpoints(tmp_path / "run", gather=two.gather) as checkpoints:  # noqa: PT012
        checkpoints.save(7, STATE)
        if processes == 2:
            two.begin(0)
        orbax.clear()
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
    assert ("run waits" in orbax) == (processes == 1)


def test_after_another_error_a_process_waits_for_its_own_save_and_asks_no_other(
    tmp_path: pathlib.Path, two: Two, orbax: list[str]
):
    with pytest.raises(RuntimeError, match="of this process"), Checkpoints(tmp_path / "run", gather=two.gather) as checkpoints:  # noqa: PT012
        two.begin(0)
        checkpoints.save(7, STATE)
        two.ours.clear()
        raise RuntimeError("of this process")
    assert (orbax[1], two.ours) == ("run waits", [])


@pytest.mark.parametrize(
    ("others", "damaged", "reason"),
    [
        ([False], False, "unreadable on another process"),
        ([True, False], False, "damaged on another process"),
        ([], True, "(?!.*another process).*"),
    ],
)
def test_a_checkpoint_unusable_for_one_process_is_used_by_none(
    others: list[bool], damaged: bool, reason: str, tmp_path: pathlib.Path, two: Two
):
    save_all(tmp_path, 1_000)
    if damaged:
        damage(tmp_path / "1000")
    with Checkpoints(tmp_path, read_only=True, gather=two.gather) as checkpoints:
        two.begin(1, *others)
        with pytest.raises(UserError, match=rf"step 1,000 in {tmp_path} cannot be read \({reason}\); use a checkpoint of ano"):
            checkpoints.restore(1_000, abstract(STATE))
        assert two.ours == ([False, True] if damaged else [True] * 2), "both processes give the same number of answers"
        two.begin(1, False, False)
        with pytest.raises(WorkdirError, match=r"1000 cannot be read at the moment \((an error in another process)\)"):
            checkpoints.restore(1_000, abstract(STATE))


@pytest.mark.parametrize("index", [0, 1])
def test_process_0_removes_checkpoints_while_the_others_wait(
    index: int, tmp_path: pathlib.Path, two: Two, monkeypatch: pytest.MonkeyPatch
):
    save_all(tmp_path, 1, 2)
    met: list[list[int]] = []

    def meet(here: bool) -> list[bool]:
        met.append(steps_in(tmp_path))
        if len(met) == 3:  # Orbax, which opens the directory again, would wait for the other process
            monkeypatch.undo()
        return [here, True]

    with Checkpoints(tmp_path, keep=9, gather=meet) as checkpoints:
        two.begin(index)
        assert_equal(checkpoints.restore_latest(abstract(STATE), until=1), state_at(1))
    assert met == [[1, 2], [1, 2], [1] if index == 0 else [1, 2]], "it is read, intact, and taken away"
