"""A directory appears completely or not at all, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import shutil

import pytest

from bert_jax.files import HOST, restore
from bert_jax.interop.directory import FORMATS, OURS, Unwritable, exported_formats, replaced_when_complete
from tests.open_files import open_below


def write(directory: pathlib.Path, content: str, form: str = "stablehlo") -> None:
    """Replaces an older export with one in the format `form`, whose first file contains `content`."""
    with replaced_when_complete(directory, form) as incomplete:
        fill(incomplete, content, form)


def fill(directory: pathlib.Path, content: str, form: str = "stablehlo") -> None:
    """Writes the files that identify an export of this package."""
    (directory / FORMATS[form][0]).write_text(json.dumps({OURS: {}}))
    (directory / first_file(form)).write_text(content)


def first_file(form: str) -> str:
    mark, files = FORMATS[form]
    return next(file for file in files if file != mark)


def texts(directory: pathlib.Path) -> dict[str, str]:
    """Returns the text of each file below `directory`, except the marks of exports."""
    return {name: text for name, text in everything(directory).items() if not name.endswith("signature.json")}


def everything(directory: pathlib.Path) -> dict[str, str]:
    """Returns the text of each file below `directory`."""
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_parent_directories_are_made_and_an_empty_directory_is_used(tmp_path):
    write(tmp_path / "a" / "b" / "m", "1")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "2")
    assert texts(tmp_path) == {"a/b/m/forward.stablehlo": "1", "empty/forward.stablehlo": "2"}
    assert open_below(tmp_path) == 0


def test_a_file_of_that_name_is_never_replaced(tmp_path):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(Unwritable, match="holds files that bert_jax did not export, so it is not overwritten; name another"):
        write(tmp_path / "m", "1")
    assert everything(tmp_path) == {"m": "mine"}


def test_files_are_synchronised_before_the_directory_gets_its_name(tmp_path, monkeypatch):
    seen = []

    def noted(descriptor: int) -> None:
        seen.append((pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name, (tmp_path / "m").exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write(tmp_path / "m", "1")
    assert set(seen[:-1]) == {("forward.stablehlo", False), ("signature.json", False)}
    assert seen[-1] == (f".m.{HOST}.{os.getpid()}.bert_jax.directory", False)


def test_a_failed_rename_restores_the_older_directory(tmp_path, monkeypatch):
    write(tmp_path / "m", "old")
    rename = pathlib.Path.rename

    def fails(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if path.name.endswith(".bert_jax.directory"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(Unwritable, match=r"cannot write a model to .*/m: Input/output error; choose a writable directory"):
        write(tmp_path / "m", "new")
    assert texts(tmp_path) == {"m/forward.stablehlo": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def kill_while_writing(directory: pathlib.Path, link: pathlib.Path | None = None) -> None:
    """Leaves what a process leaves that was killed while writing to `directory`: its temporary directory."""

    def write_half() -> None:
        with replaced_when_complete(directory, "stablehlo") as incomplete:
            (incomplete / "folder").mkdir()
            (incomplete / "folder" / "part").write_text("half")
            (incomplete / "part").write_text("half")
            if link:
                (incomplete / "link").symlink_to(link)
            shutil.copytree(incomplete, directory.with_name("left"), symlinks=True)
            raise OSError

    with pytest.raises(Unwritable):
        write_half()
    directory.with_name("left").rename(directory.with_name(f".{directory.name}.{HOST}.1.bert_jax.directory"))


def test_leftovers_of_a_killed_process_are_removed_without_following_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    kill_while_writing(tmp_path / "m", link=tmp_path / "elsewhere")
    write(tmp_path / "m", "1")
    assert texts(tmp_path) == {"m/forward.stablehlo": "1", "elsewhere/file": "mine"}


@pytest.mark.parametrize("there", [False, True])
def test_foreign_files_next_to_the_directory_are_refused_before_removing_anything(tmp_path, there):
    if there:
        write(tmp_path / "m", "old")
    (tmp_path / ".m.replaced").mkdir()
    (tmp_path / ".m.replaced" / "thesis.txt").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(
        Unwritable,
        match=r"/\.m\.replaced is needed as a temporary directory, but it holds files that bert_jax did not write; move it, "
        r"or choose",
    ):
        write(tmp_path / "m", "new")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("suffix", ["part", "directory"])
@pytest.mark.parametrize("target", ["precious", "nothing", "file"])
def test_a_link_with_the_name_of_a_temporary_file_or_directory_is_not_followed(tmp_path, target, suffix):
    (tmp_path / "precious" / "deep").mkdir(parents=True)
    (tmp_path / "precious" / "deep" / "data").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = everything(tmp_path / "precious")
    (tmp_path / f".m.{HOST}.{os.getpid()}.bert_jax.{suffix}").symlink_to(tmp_path / target)
    with contextlib.suppress(Unwritable):
        write(tmp_path / "m", "new")
    assert everything(tmp_path / "precious") == before
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_a_link_instead_of_the_older_directory_is_removed_without_following_it(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("mine")
    for content in ("1", "2"):  # without and with an older export
        (tmp_path / ".m.replaced").symlink_to(tmp_path / "precious")
        write(tmp_path / "m", content)
        assert texts(tmp_path) == {"precious/data": "mine", "m/forward.stablehlo": content}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "precious"]


def test_exporting_to_a_link_replaces_its_target_and_keeps_the_link(tmp_path):
    big, small = tmp_path / "big", tmp_path / "small"
    big.mkdir()
    small.mkdir()
    (small / "m").symlink_to(big / "model")  # at first it points nowhere
    for content in ("1", "2"):
        write(small / "m", content)
        assert (small / "m").is_symlink()
        assert texts(big) == {"model/forward.stablehlo": content}
        assert [path.name for path in small.iterdir()] == ["m"]
    (small / "loop").symlink_to(small / "loop")
    with pytest.raises(Unwritable, match=r"loop is a circular symbolic link; name another directory"):
        write(small / "loop", "1")


def test_a_removal_that_was_interrupted_is_finished(tmp_path, monkeypatch):
    write(tmp_path / "m", "old")
    (tmp_path / "m" / "notes").write_text("mine")
    unlink, seen = os.unlink, []

    def stops(name: object, **options: object) -> None:
        if name in ("forward.stablehlo", "signature.json", "notes"):
            seen.append(name)
            if len(seen) > 2:
                raise PermissionError(1, "killed")
        unlink(name, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", stops)
        write(tmp_path / "m", "new")
    assert len(list(tmp_path.iterdir())) == 2  # a part of the old export is still there
    write(tmp_path / "m", "newest")
    assert len(list(tmp_path.iterdir())) == 1
    assert texts(tmp_path) == {"m/forward.stablehlo": "newest", "m/notes": "mine"}


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_is_replaced_only_in_its_own_format_and_other_files_stay(tmp_path, form):
    write(tmp_path / "m", "old", form)
    (tmp_path / "m" / "more").mkdir()
    (tmp_path / "m" / "more" / "notes").write_text("mine")
    (tmp_path / "m" / "link").symlink_to("nowhere")
    write(tmp_path / "m", "new", form)
    mark, _ = FORMATS[form]
    assert everything(tmp_path / "m") == {mark: json.dumps({OURS: {}}), first_file(form): "new", "more/notes": "mine"}
    assert (tmp_path / "m" / "link").readlink() == pathlib.Path("nowhere")
    assert exported_formats(tmp_path / "m") == [form]
    before = everything(tmp_path)
    for other in FORMATS.keys() - {form}:
        says = f"holds a model that bert_jax exported in the format {form}, so it is not overwritten in {other}; name another"
        with pytest.raises(Unwritable, match=says):
            write(tmp_path / "m", "other", other)
        assert everything(tmp_path) == before


def test_a_second_writer_is_refused_and_leaves_the_first_ones_files(tmp_path):
    with replaced_when_complete(tmp_path / "m", "stablehlo") as incomplete:
        fill(incomplete, "first")
        inside = open_below(tmp_path)
        with pytest.raises(Unwritable, match=r"another process is writing a model to .*/m; wait until it ends, or choose"):
            write(tmp_path / "m", "second")
        assert open_below(tmp_path) == inside
    assert texts(tmp_path) == {"m/forward.stablehlo": "first"}
    assert open_below(tmp_path) == 0


@pytest.mark.parametrize("is_of_another_user", [False, True])
def test_a_second_writer_that_started_at_the_same_time_is_refused(tmp_path, monkeypatch, is_of_another_user):
    part, opened = tmp_path / ".m.another-machine.1.bert_jax.part", os.open
    write(tmp_path / "m", "old")

    def protected(path: object, flags: int, *mode: int, **options: int) -> int:
        if is_of_another_user and path == part and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", protected)
    with contextlib.ExitStack() as writer:

        def starts(*_: object) -> None:
            fcntl.flock(writer.enter_context(part.open("x")), fcntl.LOCK_EX)

        monkeypatch.setattr("bert_jax.interop.directory.check_replaceable", starts)
        with pytest.raises(Unwritable, match=r"another process is writing a model to .*/m; wait until it ends, or choose"):
            write(tmp_path / "m", "second")
    assert texts(tmp_path) == {"m/forward.stablehlo": "old", part.name: ""}


def fail_while_writing(directory: pathlib.Path) -> None:
    with replaced_when_complete(directory, "stablehlo") as incomplete:
        (incomplete / "part").touch()
        raise OSError(28, "No space left on device")


def test_a_failed_removal_neither_raises_nor_hides_an_error(tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    write(tmp_path / "m", "new")
    (tmp_path / ".m.replaced").mkdir()
    fill(tmp_path / ".m.replaced", "old")
    monkeypatch.setattr(os, "unlink", refused)
    restore(tmp_path / "m")
    assert texts(tmp_path / "m") == {"forward.stablehlo": "new"}
    with pytest.raises(Unwritable, match="No space left on device"):
        fail_while_writing(tmp_path / "other")
