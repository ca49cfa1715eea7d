"""The path of the output and its temporary file, in one process; `test_answers.py` tests several processes."""

from __future__ import annotations

import fcntl
import os
import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.files import HOST, PARTIAL_SUFFIX, PartialFile, remove_leftovers
from bert_jax.interface.output import checked_target
from tests.open_files import open_below


def names(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_read_only_file_is_refused_even_for_root(tmp_path):
    path = tmp_path / "out.jsonl"
    path.touch()
    path.chmod(0o555)
    with pytest.raises(UserError, match=rf"--output={path} is write-protected; choose another --output, or .*chmod u\+w {path}"):
        checked_target(str(path))
    path.chmod(0o200)
    assert checked_target(str(path)) == path


def test_an_unwritable_directory_is_refused(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(UserError, match=f"no permission to create files in {tmp_path}; choose another --output"):
        checked_target(str(tmp_path / "out.jsonl"))
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_file_appears_after_synchronisation_with_the_usual_permissions(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((os.fstat(file).st_size, (tmp_path / "out").exists())))
    (tmp_path / "plain").touch()
    part = PartialFile(tmp_path / "out")
    part.file.write(b"abc")
    part.complete()
    part.close()
    assert seen == [(3, False)]
    assert (tmp_path / "out").read_bytes() == b"abc"
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert names(tmp_path) == ["out", "plain"]
    assert open_below(tmp_path) == 0


def test_an_incomplete_file_is_removed(tmp_path):
    part = PartialFile(tmp_path / "out")
    assert names(tmp_path) == [f".out.{HOST}.{os.getpid()}{PARTIAL_SUFFIX}"]
    part.close()
    assert names(tmp_path) == []
    assert open_below(tmp_path) == 0


def test_a_file_that_is_being_written_is_refused(tmp_path):
    part = PartialFile(tmp_path / "a")
    says = rf"=\S+/a is being written by another process \(in \S*/\.a\.{HOST}\.\d+{PARTIAL_SUFFIX}\)"
    with pytest.raises(UserError, match=says):
        checked_target(str(tmp_path / "a"))
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [f".a.{HOST}.{os.getpid()}{PARTIAL_SUFFIX}"]
    part.close()
    assert open_below(tmp_path) == 0
    assert checked_target(str(tmp_path / "a")) == tmp_path / "a"


def test_only_leftovers_of_killed_processes_are_removed(tmp_path, monkeypatch):
    (tmp_path / f".a.{HOST}.1{PARTIAL_SUFFIX}").touch()
    (tmp_path / "mine").touch()
    (tmp_path / f".a.{HOST}.2{PARTIAL_SUFFIX}").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / f".a.{HOST}.3{PARTIAL_SUFFIX}")
    assert checked_target(str(tmp_path / "a")) == tmp_path / "a"
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_leftovers(tmp_path)
    others = [f".a.{HOST}.2{PARTIAL_SUFFIX}", f".a.{HOST}.3{PARTIAL_SUFFIX}", "mine"]
    assert names(tmp_path) == [f".a.{HOST}.1{PARTIAL_SUFFIX}", *others]  # it belongs to another user
    monkeypatch.undo()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == others
    assert open_below(tmp_path) == 0


def test_a_temporary_file_removed_as_a_leftover_is_made_again(tmp_path, monkeypatch):
    flock, taken = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not taken:
            (tmp_path / f".out.{HOST}.{os.getpid()}{PARTIAL_SUFFIX}").unlink()
        taken.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    part = PartialFile(tmp_path / "out")
    assert (len(taken), open_below(tmp_path)) == (2, 1)
    part.complete()
    part.close()
    assert names(tmp_path) == ["out"]
