from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from bert_jax import files
from bert_jax.errors import UserError, WorkdirError
from bert_jax.runtime.workdir import differences, flatten, locked, open_workdir, run_config, stored_config

CONFIG = {"seed": 0, "log_every": 10, "phases": ({"steps": 10, "rate": 1e-4}, {"steps": 5, "rate": 1e-4}), "none": None}

OTHER = """
import fcntl, os, sys
with open(sys.argv[1], "a+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        sys.exit(file.read())
    file.write(f"process {os.getpid()} on another machine")
    file.flush()
    print("held", flush=True)
    sys.stdin.read()
"""
"""A process that locks a file as `locked` does. It does not import this package, which takes long."""


FORKING = """
import os, pathlib, sys, time
from bert_jax.runtime.workdir import locked
held = locked(pathlib.Path(sys.argv[1]), ".lock")
held.__enter__()
if not os.fork():
    print(os.getpid(), flush=True)  # the child has let go of the lock: it does so inside os.fork
time.sleep(600)
"""


def other_process(lock: pathlib.Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-S", "-c", OTHER, str(lock)], **pipes, text=True)  # type: ignore[call-overload]


def test_a_new_directory_is_made_and_holds_the_configuration(tmp_path: pathlib.Path):
    directory = tmp_path / "runs" / "a"
    with open_workdir(directory, "pretrain", CONFIG):
        stored = stored_config(directory)
    assert stored.pop("written_by").startswith("bert_jax ")
    assert stored.pop("started_in") == str(pathlib.Path.cwd())
    assert stored == json.loads(json.dumps(CONFIG))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_moved_or_replaced_workdir_is_detected(tmp_path: pathlib.Path, replaced: bool):
    directory, moved = tmp_path / "a", tmp_path / "b"

    def move() -> None:
        directory.rename(moved)
        if replaced:
            directory.mkdir()
            (directory / ".lock").write_text("process 1 on another machine")
        else:
            (directory / "checkpoints").mkdir(parents=True)  # by a save in the background
            (directory / "ledger.jsonl").touch()

    with pytest.raises(WorkdirError) as error, open_workdir(directory, "pretrain", CONFIG) as require_in_place:  # noqa: PT012
        require_in_place()
        move()
        require_in_place()
    assert str(error.value).startswith(f"--workdir={directory} was moved or removed while the run was using it; put it back")
    assert (moved / "config.json").exists()
    assert [path.name for path in directory.rglob("*")] == ([".lock"] if replaced else [])
    assert directory.exists() == replaced  # the files of others stay


def test_an_unresponsive_file_system_does_not_end_a_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def stale(self: pathlib.Path, *arguments: Any, **named: Any) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with open_workdir(tmp_path, "pretrain", CONFIG) as require_in_place:
        monkeypatch.setattr(pathlib.Path, "read_text", stale)
        require_in_place()
        (tmp_path / "metrics.jsonl").write_text("goes on")
    assert {path.name for path in tmp_path.iterdir()} >= {"config.json", "metrics.jsonl"}, "nothing was removed"


def test_the_same_configuration_continues(tmp_path: pathlib.Path):
    for _ in range(2):
        with open_workdir(tmp_path, "pretrain", CONFIG):
            (tmp_path / "metrics.jsonl").write_text("kept")
    assert (tmp_path / "metrics.jsonl").read_text() == "kept"


def test_a_run_resumes_with_a_version_that_has_more_keys(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    younger = CONFIG | {"init_from": ""}
    with open_workdir(tmp_path, "pretrain", younger, completed=lambda stored: {"init_from": "", **stored}):
        assert stored_config(tmp_path)["init_from"] == ""
    with (
        pytest.raises(UserError, match="init_from  stored nothing, given models/base"),
        open_workdir(tmp_path, "pretrain", CONFIG | {"init_from": "models/base"}),
    ):
        pass


def test_another_configuration_is_refused_with_both_values(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        before = (tmp_path / "config.json").read_text()
        (tmp_path / "metrics.jsonl").touch()
    other = CONFIG | {"seed": 3, "phases": ({"steps": 10, "rate": 1e-4}, {"steps": 7, "rate": 1e-4})}
    with pytest.raises(UserError) as error, open_workdir(tmp_path, "pretrain", other):
        pass
    assert "  phases.1.steps  stored 5, given 7\n  seed            stored 0, given 3\n" in str(error.value)
    assert "name another --workdir" in str(error.value)
    assert f"to train its model further, name another --workdir and --config.init_from={tmp_path}, or" in str(error.value)
    assert str(error.value).endswith("to continue from a kept step with its optimizer")
    assert (tmp_path / "config.json").read_text() == before


def test_changeable_keys_may_change(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    other = CONFIG | {"log_every": 50, "phases": ({"steps": 20, "rate": 1e-4}, {"steps": 5, "rate": 1e-4})}
    with caplog.at_level(logging.INFO), open_workdir(tmp_path, "pretrain", other, may_change=("log_every", "phases.*.steps")):
        assert stored_config(tmp_path)["log_every"] == 50
    assert caplog.messages == ["log_every is now 50 (was 10)", "phases.0.steps is now 20 (was 10)"]


def test_changed_keys_of_a_refused_start_are_neither_reported_nor_stored(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").write_text("a line")
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(UserError, match="seed  stored 0, given 3"),
        open_workdir(tmp_path, "pretrain", CONFIG | {"log_every": 50, "seed": 3}, may_change=("log_every",)),
    ):
        pass
    assert caplog.messages == []
    with pytest.raises(UserError), open_workdir(tmp_path, "pretrain", CONFIG | {"log_every": 50}, may_change=("log_every",)):
        raise UserError("the mesh does not fit")
    assert stored_config(tmp_path)["log_every"] == 10
    with pytest.raises(UserError), open_workdir(tmp_path, "pretrain", CONFIG | {"log_every": 50}, may_change=("log_every",)):  # noqa: PT012
        (tmp_path / "metrics.jsonl").write_text("a line and another")
        raise UserError("the disk is full")
    assert stored_config(tmp_path)["log_every"] == 50


@pytest.mark.parametrize("key", ["phases", "training", "optimizer"])
def test_a_refused_change_suggests_starting_from_the_weights(key: str, tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", {key: {"batch_size": 16}}):
        (tmp_path / "metrics.jsonl").touch()
    hint = f"to train its model further, name another --workdir and --config.init_from={tmp_path}"
    with pytest.raises(UserError, match=hint), open_workdir(tmp_path, "pretrain", {key: {"batch_size": 32}}):
        pass


def test_a_start_refused_before_training_does_not_fix_the_configuration(tmp_path: pathlib.Path):
    with pytest.raises(UserError), open_workdir(tmp_path, "pretrain", CONFIG | {"seed": 3}):
        raise UserError("the mesh does not fit")
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == 0


@pytest.mark.parametrize(
    ("before", "after", "is_restored"),
    [
        ("{1}\n{2}\n", "{1}\n{2}\n", True),
        ("{1}\n{2}\n{3", "{1}\n", True),  # the later steps, which would have been repeated, are dropped
        ("{1}\n{2}\n", "{1}\n{3}\n", False),
        (None, "", True),
        (None, "{1}\n", False),
    ],
)
def test_a_resumed_run_that_is_refused_before_its_first_step_keeps_its_configuration(
    tmp_path: pathlib.Path, before: str | None, after: str, is_restored: bool
):
    metrics = tmp_path / "metrics.jsonl"
    with open_workdir(tmp_path, "pretrain", CONFIG):
        if before is not None:
            metrics.write_text(before)
    refused(tmp_path, CONFIG | {"seed": 3}, **{"metrics.jsonl": after})
    assert stored_config(tmp_path)["seed"] == (0 if is_restored else 3)
    assert metrics.exists() == (before is not None or not is_restored), "without it, another configuration may start"


def test_a_disk_that_becomes_read_only_does_not_replace_the_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    read_only, lock = OSError(errno.EROFS, "Read-only file system"), files.locked

    @contextlib.contextmanager
    def lock_read_only(*arguments: Any) -> Iterator[mock.Mock]:
        with lock(*arguments) as file:
            yield mock.Mock(wraps=file, truncate=mock.Mock(side_effect=[None, read_only]))

    def fail() -> None:
        with open_workdir(tmp_path, "pretrain", CONFIG):
            monkeypatch.setattr("bert_jax.runtime.workdir.write_json", mock.Mock(side_effect=read_only))
            raise UserError("The trained model is in /dev/shm")

    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    monkeypatch.setattr(files, "locked", lock_read_only)
    with pytest.raises(UserError, match="The trained model is in"):
        fail()


def test_a_run_killed_before_its_first_step_may_start_with_another_configuration(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG | {"seed": 3}):
        pass  # killed: the configuration stays, and there are no metrics
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == 0


def refused(directory: pathlib.Path, config: dict[str, Any] = CONFIG, **files: str) -> None:
    """Starts a run that is refused after writing `files`; in their names, _ stands for /."""

    def start() -> None:
        with open_workdir(directory, "pretrain", config, may_change=["seed"]):
            for name, text in files.items():
                path = directory / name.replace("_", "/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            (directory / "checkpoints").mkdir()
            raise UserError("the mesh does not fit")

    with pytest.raises(UserError):
        start()


def test_a_refused_start_removes_the_new_workdir_and_its_parents(tmp_path: pathlib.Path):
    files = {"metrics.jsonl": "", "ledger.jsonl": "{}\n", "tensorboard_events.1": "a version", ".processes_0.lock": ""}
    refused(tmp_path / "runs" / "mine", **files)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_keeps_an_existing_empty_directory(tmp_path: pathlib.Path):
    (tmp_path / "mine").mkdir()
    refused(tmp_path / "mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.parametrize(("file", "text"), [("metrics.jsonl", "{}\n"), ("0_metrics.jsonl", ""), ("notes.txt", "")])
def test_a_run_that_has_trained_keeps_everything(tmp_path: pathlib.Path, file: str, text: str):
    refused(tmp_path / "mine", **{file: text})
    kept = {path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert kept == {"config.json", ".lock", file.replace("_", "/")}


def test_a_refused_start_keeps_an_existing_workdir(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        pass  # killed before it trained
    refused(tmp_path)
    assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize("name", ["thesis.tex", "config.json", ".git"])
def test_a_foreign_directory_is_refused_and_not_changed(tmp_path: pathlib.Path, name: str):
    (tmp_path / name).write_text('{"model_type": "bert"}')
    says = r"not (from|written by) a run.*name (a new|another)"
    with pytest.raises(UserError, match=says), open_workdir(tmp_path, "pretrain", CONFIG):
        pass
    assert (tmp_path / name).read_text() == '{"model_type": "bert"}'


def test_a_workdir_of_another_command_is_refused(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "finetune", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    with (
        pytest.raises(UserError, match="holds a run of `finetune`, not of `pretrain`"),
        open_workdir(tmp_path, "pretrain", CONFIG),
    ):
        pass


def test_a_damaged_configuration_is_an_error(tmp_path: pathlib.Path):
    (tmp_path / "config.json").write_text('{"written_by": "bert')
    with pytest.raises(UserError, match=r"config\.json cannot be read"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass


@pytest.mark.parametrize(("name", "text"), [("thesis.txt", "years of work"), ("config.json", '{"model_type": "bert"}')])
def test_a_refused_directory_is_not_changed(tmp_path: pathlib.Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="name "), open_workdir(tmp_path, "pretrain", CONFIG):
        pass
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_files_that_appear_before_the_lock_is_taken_are_noticed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        (tmp_path / "thesis.tex").touch()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        pytest.raises(UserError, match=r"holds files that are not from a run \(thesis\.tex\)"),
        open_workdir(tmp_path, "pretrain", CONFIG),
    ):
        pass
    assert not (tmp_path / "config.json").exists()


def test_leftovers_of_an_early_kill_do_not_block_a_start(tmp_path: pathlib.Path):
    for name in (".lock", ".writable-17", ".config.json.17", ".processes"):
        (tmp_path / name).write_text("")
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == CONFIG["seed"]


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), open_workdir(tmp_path / "file" / "run", "pretrain", CONFIG):
        pass
    with pytest.raises(UserError, match="a file is in the way"), open_workdir(tmp_path / "file", "pretrain", CONFIG):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_an_error(tmp_path: pathlib.Path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass


def test_a_second_process_is_refused_and_a_killed_one_releases_the_workdir(tmp_path: pathlib.Path):
    with other_process(tmp_path / ".lock") as first:
        assert first.stdout.readline() == "held\n"
        in_use = pytest.raises(UserError, match=f"in use by process {first.pid} on ")
        with in_use, open_workdir(tmp_path, "pretrain", {"seed": 0}):
            pass
        first.send_signal(signal.SIGKILL)
    with open_workdir(tmp_path, "pretrain", {"seed": 0}), other_process(tmp_path / ".lock") as second:
        assert second.communicate(timeout=60)[1].startswith(f"process {os.getpid()} on ")
        assert second.returncode == 1
    with other_process(tmp_path / ".lock") as third:
        assert third.communicate(timeout=60)[0] == "held\n"


def test_differences_name_dotted_keys_and_treat_tuples_as_lists():
    assert list(flatten({"a": {"b": 1, "c": []}, "d": ({"e": 2},)})) == [("a.b", 1), ("a.c", []), ("d.0.e", 2)]
    assert differences({"a": (1, 2), "b": 1}, {"a": [1, 2], "c": 2}) == {"b": (1, "(absent)"), "c": ("(absent)", 2)}
    assert differences({"a": ()}, {"a": []}) == {}


def test_the_lock_file_names_its_holder(tmp_path: pathlib.Path):
    lock = tmp_path / ".lock"
    lock.write_text("process 1 on another machine, killed\nand a second line\n")
    with locked(tmp_path, ".lock"):
        (line,) = lock.read_text().splitlines()
        assert line.startswith(f"process {os.getpid()} on {socket.gethostname()}, since 20")
    assert lock.read_text() == ""


@pytest.mark.parametrize("how", ["removed", "replaced", "directory removed"])
def test_a_lock_removed_at_the_same_moment_does_not_count(how: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    directory, calls, flock = tmp_path / "a", [], fcntl.flock
    directory.mkdir()

    def late(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        calls.append(operation)
        if len(calls) == 1:
            (directory / ".lock").rename(tmp_path / "other") if how == "replaced" else (directory / ".lock").unlink()
            (directory / ".lock").touch() if how == "replaced" else None
            directory.rmdir() if how == "directory removed" else None

    monkeypatch.setattr(fcntl, "flock", late)
    if how != "replaced":
        with pytest.raises(UserError, match="was in use until just now; rerun the same command"):
            locked(directory, ".lock").__enter__()
        return
    with locked(directory, ".lock") as holder, other_process(directory / ".lock") as second:
        assert (directory / ".lock").read_text() == holder
        assert second.communicate(timeout=60)[1].startswith(f"process {os.getpid()} on ")


def test_a_forked_process_does_not_hold_the_lock_of_a_killed_run(tmp_path: pathlib.Path):
    with subprocess.Popen([sys.executable, "-c", FORKING, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        with pytest.raises(UserError, match=f"in use by process {first.pid} on "), locked(tmp_path, ".lock"):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
        try:
            with locked(tmp_path, ".lock"):
                os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("error", [BlockingIOError(11, "busy"), PermissionError(13, "denied")])
def test_an_empty_lock_belongs_to_another_process(error: OSError, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def busy(file: Any, how: int) -> None:
        raise error

    monkeypatch.setattr(fcntl, "flock", busy)
    for text, who in (("", "another process"), ("process 7 on a\n", "process 7 on a")):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(UserError, match=f"is in use by {who}; wait"), locked(tmp_path, ".lock"):
            pass


def test_a_file_system_without_locks_gives_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def unsupported(file: Any, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path, ".lock"):
        assert caplog.messages == [f"{tmp_path} cannot be locked (Operation not supported); make sure that no other run uses it"]


@pytest.mark.parametrize(("count", "shown"), [(3, "a, b, c"), (4, "a, b, c and 1 more")])
def test_three_foreign_files_are_named(count: int, shown: str, tmp_path: pathlib.Path):
    for name in "abcd"[:count]:
        (tmp_path / name).touch()
    with (
        pytest.raises(UserError, match=rf"holds files that are not from a run \({shown}\); "),
        open_workdir(tmp_path, "pretrain", CONFIG),
    ):
        pass


def test_the_configuration_of_a_run_is_read_by_its_command(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=f"^--from={tmp_path} holds no run; name the workdir of a run of pretrain"):
        run_config(tmp_path, "pretrain", "--from")
    with open_workdir(tmp_path, "finetune", CONFIG):
        assert run_config(tmp_path, "finetune") == json.loads(json.dumps(CONFIG))
        with pytest.raises(
            UserError, match=r"^--workdir=.* holds a run of bert_jax .* finetune; name the workdir of a run of pretrain"
        ):
            run_config(tmp_path, "pretrain")


def test_a_model_directory_named_for_a_run_is_refused_with_the_way_to_name_one(tmp_path: pathlib.Path):
    (tmp_path / "config.json").write_text('{"model_type": "modernbert"}')
    says = r"was not written by a run \(a model directory\?\); name the workdir of a run of pretrain$"
    with pytest.raises(UserError, match=says):
        run_config(tmp_path, "pretrain", "config.init_state")


def test_more_steps_are_refused_with_the_way_to_train_further(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", {"seed": 0, "epochs": 2}):
        (tmp_path / "metrics.jsonl").touch()
    for changed, further in (({"seed": 1}, False), ({"epochs": 3}, True)):
        with pytest.raises(UserError) as error, open_workdir(tmp_path, "pretrain", {"seed": 0, "epochs": 2} | changed):
            pass
        assert ("to train its model further" in str(error.value)) is further


@pytest.mark.parametrize(("command", "keys"), [("finetune", ["init_from"]), ("study", [])])
def test_the_way_to_train_further_has_only_keys_of_the_command(command: str, keys: list[str], tmp_path: pathlib.Path):
    with open_workdir(tmp_path, command, {"training": {"epochs": 2}}):
        (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UserError) as error, open_workdir(tmp_path, command, {"training": {"epochs": 3}}):
        pass
    assert [key for key in ("init_from", "init_state") if key in str(error.value)] == keys


def test_an_unusable_directory_is_not_left_behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def rename(*paths: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")  # as a bucket mounted with gcsfuse answers

    monkeypatch.setattr(os, "rename", rename)
    with (
        pytest.raises(UserError, match="cannot rename a directory that holds files"),
        open_workdir(tmp_path / "runs" / "mine", "pretrain", CONFIG),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
