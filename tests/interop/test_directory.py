"""A directory that appears whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import fcntl
import os
import pathlib

import pytest

from bert_jax.interop.directory import Unwritable, recover, replaced_when_complete
from tests.open_files import open_below


def write(directory: pathlib.Path, content: str) -> None:
    """Replaces an older directory of ours, one with a `mark`, by one whose mark is `content`."""
    ours = {"is_ours": lambda path: (path / "mark").is_file(), "format_files": ("mark",)}
    with replaced_when_complete(directory, **ours) as incomplete:
        (incomplete / "mark").write_text(content)


def everything(directory: pathlib.Path) -> dict[str, str]:
    """Each file below `directory` with its text."""
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_directories_above_are_made_and_an_empty_one_is_taken(tmp_path):
    write(tmp_path / "a" / "b" / "m", "1")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "2")
    assert everything(tmp_path) == {"a/b/m/mark": "1", "empty/mark": "2"}
    assert open_below(tmp_path) == 0


def test_a_file_of_that_name_is_never_replaced(tmp_path):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(Unwritable, match="holds files that bert_jax did not export, so it is not overwritten; name another"):
        write(tmp_path / "m", "1")
    assert everything(tmp_path) == {"m": "mine"}


def test_the_files_are_on_the_disk_before_the_directory_has_its_name(tmp_path, monkeypatch):
    seen = []

    def noted(descriptor: int) -> None:
        seen.append((pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name, (tmp_path / "m").exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write(tmp_path / "m", "1")
    assert seen == [("mark", False), (".m.incomplete", False)]


def test_a_failed_rename_brings_the_older_directory_back(tmp_path, monkeypatch):
    write(tmp_path / "m", "old")
    rename = pathlib.Path.rename

    def fails(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if path.name == ".m.incomplete":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(Unwritable, match=r"cannot write a model to .*/m: Input/output error; choose a writable directory"):
        write(tmp_path / "m", "new")
    assert everything(tmp_path) == {"m/mark": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_a_killed_process_left_is_removed_without_following_its_links(tmp_path):
    left = tmp_path / ".m.incomplete"
    (left / "folder").mkdir(parents=True)
    (left / "folder" / "part").write_text("half")
    (left / "part").write_text("half")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (left / "link").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "m", "1")
    assert everything(tmp_path) == {"m/mark": "1", "elsewhere/file": "mine"}


def test_a_directory_that_another_process_removes_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    flock, taken = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not taken:
            (tmp_path / ".m.incomplete").rmdir()
        taken.append(descriptor)

    monkeypatch.setattr(fcntl, "flock", late)
    write(tmp_path / "m", "1")
    assert everything(tmp_path) == {"m/mark": "1"}
    assert (len(taken), open_below(tmp_path)) == (2, 0)


def test_a_second_writer_is_refused_and_leaves_the_first_ones_files(tmp_path):
    ours = {"is_ours": lambda path: True, "format_files": ()}
    with replaced_when_complete(tmp_path / "m", **ours) as incomplete:
        (incomplete / "mark").write_text("first")
        inside = open_below(tmp_path)
        with pytest.raises(Unwritable, match=r"another process is writing a model to .*/m; wait for its end, or name another"):
            write(tmp_path / "m", "second")
        assert open_below(tmp_path) == inside
    assert everything(tmp_path) == {"m/mark": "first"}
    assert open_below(tmp_path) == 0


def test_an_interrupted_swap_is_undone_or_finished(tmp_path):
    for new_in_place in (False, True):
        (tmp_path / ".m.replaced").mkdir()
        (tmp_path / ".m.replaced" / "mark").write_text("old")
        recover(tmp_path / "m")
        assert everything(tmp_path) == {"m/mark": "new" if new_in_place else "old"}
        write(tmp_path / "m", "new")


def fail_while_writing(directory: pathlib.Path) -> None:
    with replaced_when_complete(directory, is_ours=lambda path: True, format_files=()) as incomplete:
        (incomplete / "part").touch()
        raise OSError(28, "No space left on device")


def test_what_cannot_be_removed_hides_no_error_and_is_none(tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    write(tmp_path / "m", "new")
    (tmp_path / ".m.replaced").mkdir()
    (tmp_path / ".m.replaced" / "mark").write_text("old")
    monkeypatch.setattr(os, "unlink", refused)
    recover(tmp_path / "m")
    assert everything(tmp_path / "m") == {"mark": "new"}
    with pytest.raises(Unwritable, match="No space left on device"):
        fail_while_writing(tmp_path / "other")
