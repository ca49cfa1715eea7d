"""The parts of a save and of a restore, as seen by one of several processes or with a bucket; nothing is written."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training import checkpoints as manager
from bert_jax.training.checkpoints import Checkpoints

Notes = list[Any]


class Orbax:
    """A checkpoint manager that records its calls."""

    def __init__(self, notes: Notes, error: Exception | None = None):
        self.notes, self.error = notes, error

    def wait_until_finished(self) -> None:
        self.notes.append("waits")
        if self.error:
            raise self.error

    def close(self) -> None:
        self.notes.append("closed")

    def all_steps(self) -> list[int]:
        return [3, 5]

    def save(self, step: int, *, args: Any, force: bool) -> None:
        self.notes.append(("saves", step))


def checkpoints_of(notes: Notes, directory: Any = "DIRECTORY", error: Exception | None = None, **fields: Any) -> Checkpoints:
    """Returns an instance without Orbax."""
    found = object.__new__(Checkpoints)
    own = {"_directory": directory, "_manager": Orbax(notes, error), "_saving": None, "_saved": None, "_failed": None}
    vars(found).update(own | {"failures": 0, "failed_in_a_row": 0} | fields)
    return found


@pytest.fixture
def notes() -> Notes:
    return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many processes there are, which of them this is, whether they all agree, and whether the directory is a bucket."""

    def make(processes: int = 1, index: int = 0, agreed: bool = True, bucket: bool = False) -> None:
        monkeypatch.setattr(jax, "process_count", lambda: processes)
        monkeypatch.setattr(jax, "process_index", lambda: index)
        monkeypatch.setattr(manager, "_on_all_processes", lambda here: here and agreed)
        monkeypatch.setattr(manager, "is_remote", lambda directory: bucket)

    return make


def noted(notes: Notes, name: str, result: Any = None) -> Callable[..., Any]:
    return lambda *about, **named: notes.append((name, *about, *named.values())) or result


# --------------------------------------------------------------------------------------------------------------- the end of a run


@pytest.mark.parametrize(
    ("error", "of_device", "processes", "done"),
    [
        (None, False, 1, [("wait", True), "closed"]),
        (None, False, 2, [("wait", True), "closed"]),
        (RuntimeError(), False, 2, [("wait", False), "closed"]),
        (RuntimeError(), True, 1, [("wait", False), "closed"]),
        (RuntimeError(), True, 2, []),  # the others may be dead
    ],
)
def test_closing_waits_for_the_save_unless_a_device_of_several_processes_failed(
    error, of_device, processes, done, notes, machine, monkeypatch
):
    machine(processes)
    monkeypatch.setattr(manager, "is_device_error", lambda found: of_device and found is error)
    monkeypatch.setattr(Checkpoints, "_wait_for_save", noted(notes, "wait"))
    of = checkpoints_of(notes)
    of.__exit__(type(error) if error else None, error, None)
    assert [note if note == "closed" else (note[0], note[2]) for note in notes] == done


# ------------------------------------------------------------------------------------------------------------------- a save's end


@pytest.mark.parametrize(
    ("own", "agreed", "together", "reason"),
    [
        (OSError(28, "No space left on device"), True, True, "No space left on device"),
        (OSError(28, "No space left on device"), False, True, "No space left on device"),
        (None, False, True, "another process could not write its part"),
        (None, False, False, None),  # after an error the others are not asked
        (None, True, True, None),
    ],
)
def test_a_save_fails_if_any_process_cannot_write(own, agreed, together, reason, notes, machine, caplog):
    machine(2, 1, agreed)
    of = checkpoints_of(notes, error=own, _saving=7)
    of._wait_for_save(*(() if together else (False,)))
    assert of._failed is None if reason is None else str(of._failed) == f"(7, {of._failed[1]!r})"
    says = f"the checkpoint of step 7 could not be saved ({reason}); training continues until the next save"
    assert caplog.messages == ([] if reason is None else [says])


@pytest.mark.parametrize(
    ("index", "bucket", "removed"), [(0, False, True), (1, False, False), (0, True, False), (1, True, False)]
)
def test_the_first_process_removes_leftovers_of_a_failed_save(index, bucket, removed, notes, machine, monkeypatch):
    machine(2, index, bucket=bucket)
    monkeypatch.setattr(manager, "_remove_partial", noted(notes, "removed"))
    checkpoints_of(notes)._note_failure(7, OSError(28, "full"))
    assert notes == ([("removed", "DIRECTORY", 7)] if removed else [])


# ------------------------------------------------------------------------------------------------------------ the start of a save


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "_writer", None)
    monkeypatch.setattr(manager, "digests", lambda state: ({"weights": 1}, []))
    monkeypatch.setattr(Checkpoints, "_refusal", lambda self, step: None)
    monkeypatch.setattr(manager.ocp.args, "StandardSave", lambda state: ("state", state))
    monkeypatch.setattr(manager.ocp.args, "JsonSave", lambda found: ("digests", found))
    monkeypatch.setattr(manager.ocp.args, "Composite", lambda **parts: parts)


def test_saves_of_several_processes_wait_for_other_instances(notes, machine, saving, monkeypatch):
    first, second = (checkpoints_of(notes) for _ in range(2))
    for processes, waited in ((1, ["first saves", "second saves"]), (2, ["first saves", "first waits", "second saves"])):
        machine(processes)
        notes.clear()
        for name, of in (("first", first), ("second", second)):
            of._saving = None
            monkeypatch.setattr(of, "_manager", type("Of", (Orbax,), {})(notes))
            monkeypatch.setattr(of._manager, "save", lambda step, name=name, **_: notes.append(f"{name} saves"))
            monkeypatch.setattr(of._manager, "wait_until_finished", lambda name=name: notes.append(f"{name} waits"))
            of.save(7, "state")
        assert notes == waited
        assert Checkpoints._writer is (second if processes == 2 else None)
    notes.clear()
    second.save(8, "state")  # waits for its own save once
    assert notes == ["second waits", "second saves"]


@pytest.mark.parametrize(("failed", "bucket", "reopened"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_bucket_is_reopened_after_a_failed_save(failed, bucket, reopened, notes, machine, saving, monkeypatch):
    machine(bucket=bucket)
    monkeypatch.setattr(Checkpoints, "_open", lambda self: Orbax([*notes, "anew"]))
    of = checkpoints_of(notes, _failed=(5, OSError()) if failed else None)
    of.save(7, "state")
    assert notes == (["closed"] if reopened else [("saves", 7)])
    assert of._saving == 7


def test_an_error_at_the_start_of_a_save_counts_as_its_failure(notes, machine, saving, caplog):
    machine(2, 1)
    of = checkpoints_of(notes)
    of._manager.save = lambda *_, **__: 1 / 0
    of.save(7, "state")
    assert (of._saving, of.failures, "step 7 could not be saved (division by zero)" in caplog.text) == (None, 1, True)


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_process_lists_a_bucket_directory_before_saving(index, notes, machine, monkeypatch):
    machine(2, index, bucket=True)
    monkeypatch.setattr(manager, "listed", noted(notes, "listed"))
    assert checkpoints_of(notes)._refusal(7) is None
    assert notes == ([("listed", "DIRECTORY/7", False)] if index == 0 else [])


def test_the_probe_file_is_removed_and_single_processes_make_none(notes, machine, tmp_path, monkeypatch):
    machine(2)
    assert checkpoints_of(notes, tmp_path)._refusal(7) is None
    assert list(tmp_path.iterdir()) == []
    machine(1)
    assert checkpoints_of(notes, tmp_path / "missing")._refusal(7) is None
    machine(2)
    assert isinstance(checkpoints_of(notes, tmp_path / "missing")._refusal(7), FileNotFoundError)
    monkeypatch.setattr(pathlib.Path, "write_bytes", lambda *_: _raise(OSError(30, "Read-only file system")))
    assert str(checkpoints_of(notes, tmp_path)._refusal(7)) == "[Errno 30] Read-only file system"


# ---------------------------------------------------------------------------------------------------------------------- a restore


def test_a_restore_needs_disk_space_for_one_more_state_and_waits_for_a_save(notes, machine, monkeypatch):
    machine()
    monkeypatch.setattr(manager, "require_room", noted(notes, "room"))
    monkeypatch.setattr(Checkpoints, "_try_restore", lambda self, step, layout: ((step, layout), None))
    of = checkpoints_of(notes, _saving=5)
    layout = {"w": jax.ShapeDtypeStruct((3, 5), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int16)}
    assert of.restore_latest(layout) == (5, layout)
    assert notes == [("room", "DIRECTORY", 3 * 5 * 4 + 2), "waits"]


@pytest.mark.parametrize(
    ("agreements", "error", "reason"),
    [
        ([False], None, "unreadable on another process"),
        ([True, False], None, "damaged on another process"),
        ([False], OSError(5, "Input/output error"), "Input/output error"),
        ([True, False], ValueError("changed on disk"), "changed on disk"),
    ],
)
def test_a_checkpoint_unusable_for_one_process_is_used_by_none(agreements, error, reason, notes, monkeypatch):
    answers = iter(agreements)
    asked: list[bool] = []
    monkeypatch.setattr(manager, "_on_all_processes", lambda here: asked.append(here) or next(answers))
    read = error if isinstance(error, OSError) else None
    monkeypatch.setattr(Checkpoints, "_read", lambda self, step, layout: _raise(read) if read else ("state", {}))
    monkeypatch.setattr(manager, "_restore_error", lambda state, written: None if read else error)
    with pytest.raises(
        UserError,
        match=rf"step 1,000 in DIRECTORY cannot be read \({reason}\); use a checkpoint of another ",
    ):
        checkpoints_of(notes).restore(1_000, {})
    assert asked == ([read is None] if len(agreements) == 1 else [True, error is None])


def _raise(error: Exception) -> Any:
    raise error


# ---------------------------------------------------------------------------------------------------------- deleted directories


@pytest.mark.parametrize(
    ("processes", "index", "done"),
    [
        (1, 0, ["closed", ("taken", "D/3"), ("taken", "D/1")]),
        (2, 0, ["closed", ("taken", "D/3"), ("taken", "D/1"), ("met", "states taken away")]),
        (2, 1, ["closed", ("met", "states taken away")]),
    ],
)
def test_one_process_removes_checkpoints_while_the_others_wait(processes, index, done, notes, machine, monkeypatch):
    machine(processes, index)
    monkeypatch.setattr(manager.multihost_utils, "sync_global_devices", noted(notes, "met"))
    monkeypatch.setattr(Checkpoints, "_open", lambda self: Orbax(notes))
    of = checkpoints_of(notes, pathlib.Path("D"))
    of._change_directories([], noted(notes, "taken"))
    assert notes == []
    of._change_directories([3, 1], lambda path: notes.append(("taken", str(path))))
    assert (notes, of._saved) == (done, 5)


def test_checkpoints_are_removed_earliest_first(notes, machine, monkeypatch):
    machine()
    monkeypatch.setattr(manager, "remove_tree", lambda path: notes.append(path.name))
    monkeypatch.setattr(Checkpoints, "_open", lambda self: Orbax(notes))
    checkpoints_of(notes, pathlib.Path("D"))._remove([9, 2, 5])
    assert notes == ["closed", "2", "5", "9"]


@pytest.mark.parametrize("bucket", [False, True])
def test_only_a_bucket_marks_the_folder_of_unreadable_checkpoints_as_complete(bucket, notes, machine, monkeypatch, tmp_path):
    """In a bucket, Orbax removes every directory without this marker."""
    machine(bucket=bucket)
    monkeypatch.setattr(Checkpoints, "_open", lambda self: Orbax(notes))
    monkeypatch.setattr(manager, "move_tree", lambda path, to: path.rename(to))
    (tmp_path / "3").mkdir()
    checkpoints_of(notes, tmp_path)._quarantine([3])
    names = ["3", "commit_success.txt"] if bucket else ["3"]
    assert sorted(path.name for path in (tmp_path / "unreadable").iterdir()) == names


# -------------------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(("others", "agreed"), [([True, True], True), ([True, False], False)])
def test_all_of_several_processes_must_agree(others, agreed, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(manager.multihost_utils, "process_allgather", lambda here: np.array([bool(here), *others[1:]]))
    assert manager._on_all_processes(True) is agreed
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    monkeypatch.setattr(manager.multihost_utils, "process_allgather", lambda here: pytest.fail("asked"))
    assert (manager._on_all_processes(True), manager._on_all_processes(False)) == (True, False)


def test_one_array_is_named_or_the_first_of_several_with_their_number():
    assert str(manager._not_finite(["a.b"])) == "NaN or infinity in a.b"
    assert str(manager._not_finite(["a.b", "c", "d"])) == "NaN or infinity in a.b and 2 more arrays"


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
def test_the_cause_of_a_failure_is_the_system_message_or_one_line(error, text):
    assert manager._cause(error) == text
