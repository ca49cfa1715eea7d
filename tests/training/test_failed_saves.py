"""Saves that fail: what is logged and removed, and that the run goes on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.errors import WorkdirError
from bert_jax.training.checkpoints import UNFINISHED, Checkpoints, _cause, _remove_partial
from tests.small_disk import files_of_at_most
from tests.training.test_checkpoints_on_meshes import abstract, assert_equal, restored, save_all, state_at, steps_in

SMALL_FILES = 20_000
"""A file size in bytes, smaller than any of these states."""

# TensorStore's threads may report to an event loop that Orbax closed at the first failure; Python can only print that
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_files_still_being_written_by_a_failed_save_are_removed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    partial = tmp_path / f"3{UNFINISHED}"
    (partial / "state").mkdir(parents=True)
    remove, written = shutil.rmtree, iter(range(3))

    def remove_while_another_thread_writes(path: pathlib.Path, **named: Any) -> None:
        remove(path, **named)
        for number in itertools.islice(written, 1):
            path.mkdir()
            (path / f"{number}").write_bytes(b"late")

    monkeypatch.setattr(shutil, "rmtree", remove_while_another_thread_writes)
    _remove_partial(tmp_path, 3)
    assert not list(tmp_path.iterdir())
    assert next(written, None) is None, "all delayed files were written"


def test_files_that_appear_again_are_removed_for_at_most_two_seconds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / f"3{UNFINISHED}").mkdir()
    slept: list[float] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None)
    monkeypatch.setattr("time.sleep", slept.append)
    _remove_partial(tmp_path, 3)
    assert slept == [0.05] * 40


def test_files_of_a_failed_save_are_removed_when_the_disk_answers_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / f"3{UNFINISHED}").mkdir()
    listed, errors = pathlib.Path.glob, iter([OSError(errno.EIO, "Input/output error")] * 3)

    def listed_later(path: pathlib.Path, pattern: str) -> list[pathlib.Path]:
        if error := next(errors, None):
            raise error
        return list(listed(path, pattern))

    monkeypatch.setattr(pathlib.Path, "glob", listed_later)
    _remove_partial(tmp_path, 3)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_costs_one_checkpoint_and_not_the_run(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with Checkpoints(tmp_path, keep=2) as checkpoints, caplog.at_level(logging.WARNING):
        checkpoints.save(1, state_at(1))
        checkpoints.save(2, state_at(2))  # waits for the previous one
        checkpoints._wait_for_save()
        with files_of_at_most(SMALL_FILES):
            for step in (3, 4):
                checkpoints.save(step, state_at(step))
            checkpoints._wait_for_save()
        assert [record.getMessage() for record in caplog.records if record.name.startswith("bert_jax")] == [
            f"the checkpoint of step {step} could not be saved (File too large); training continues until the next save"
            for step in (3, 4)
        ]
        assert (checkpoints.failures, checkpoints.failed_in_a_row) == (2, 2)
        assert steps_in(tmp_path) == [1, 2]
        assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}, "failed files have to be removed from a full disk"
        checkpoints.save(5, state_at(5))
        checkpoints.finish()
        assert (checkpoints.failures, checkpoints.failed_in_a_row) == (2, 0)
    assert_equal(restored(tmp_path), state_at(5))


@pytest.mark.parametrize(("saved", "since"), [((), "its beginning"), ((1,), "step 1")])
def test_three_failed_saves_in_a_row_are_an_error_in_the_log(
    saved: tuple[int, ...], since: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    save_all(tmp_path, *saved)

    def errors() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("bert_jax")]
        return [record.getMessage() for record in ours if record.levelno >= logging.ERROR]

    with Checkpoints(tmp_path, keep=2) as checkpoints, files_of_at_most(SMALL_FILES):
        for step in (2, 3, 4):
            assert not errors()
            checkpoints.save(step, state_at(step))
            checkpoints._wait_for_save()
    assert len(errors()) == 1
    assert errors()[0].startswith(f"3 CHECKPOINTS IN A ROW COULD NOT BE SAVED in {tmp_path}: ")
    assert errors()[0].endswith(f"all progress since {since} is lost")


def test_a_failed_last_save_is_an_error_with_a_remedy(tmp_path: pathlib.Path):
    """The watchdog knows of each wait for a save."""
    waits: list[str] = []

    @contextlib.contextmanager
    def transferring(doing: str) -> Iterator[None]:
        waits.append(doing)
        yield
        waits.append("done")

    with Checkpoints(tmp_path, keep=2, transferring=transferring) as checkpoints:
        checkpoints.save(1, state_at(1))
        assert waits == []
        checkpoints._wait_for_save()
        with files_of_at_most(SMALL_FILES):
            checkpoints.save(2, state_at(2))
            with pytest.raises(WorkdirError) as error:
                checkpoints.finish()
        assert waits == ["saving a checkpoint", "done"] * 2
        checkpoints.restore(1, abstract(state_at(1)))
        assert waits[4:] == ["restoring a checkpoint", "done"]
    assert str(error.value).startswith(f"the checkpoint of step 2 could not be saved in {tmp_path} (File too large); free")
    assert_equal(restored(tmp_path), state_at(1))


LONG = "Error writing: No space left on device [os_error_code='28'] more of the same " + "x" * 300


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("without a number"), "without a number"),
        (ValueError(LONG), "No space left on device"),
        (ValueError("Failed to write: File too large [spec='{\"recheck\":true}'] [os_error_code='27']"), "File too large"),
        (ValueError("y" * 300 + "\nand more"), "y" * 200),
        (ValueError("the first line\nthe second"), "the first line"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_cause_of_a_failure_is_the_system_message_or_one_line(error: BaseException, text: str):
    assert _cause(error) == text
