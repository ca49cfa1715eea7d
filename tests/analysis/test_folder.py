"""The directory of --output, and the files that appear in it together."""

from __future__ import annotations

import fcntl
import io
import os
import pathlib

import numpy as np
import pytest

from bert_jax.analysis.folder import Folder, appearing_together
from bert_jax.errors import UserError
from bert_jax.files import HOST, PARTIAL_SUFFIX


def test_an_output_that_cannot_be_a_directory_is_refused_before_measuring(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a")
    for output, says in (
        ("file", "--output=file is a file; name a directory"),
        ("file/out", "--output=file/out cannot be written: .*file is a file; choose another --output"),
        ("x" * 300, "cannot be written: File name too long; choose another --output"),
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=says):
            Folder(output)
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((pathlib.Path(path), mode)))
    with pytest.raises(UserError, match=rf"no permission to make files in {tmp_path}; choose another --output"):
        Folder(tmp_path / "new" / "out")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_outputs_never_replace_inputs(tmp_path):
    (tmp_path / "texts.tsv").write_text("old")
    with pytest.raises(UserError, match=r"texts\.tsv"):
        Folder(tmp_path, ("a.tsv", "texts.tsv"), (tmp_path / "texts.tsv").stat())
    folder = Folder(tmp_path, ("a.tsv", "texts.tsv"))
    folder.table("texts.tsv", ("a", "b"), [(1, 0.5), ("x\ty\nz\rw", np.float32("nan")), (np.float64(1) / 3, None)])
    assert (tmp_path / "texts.tsv").read_text() == "a\tb\n1\t0.5\nx y z w\t\n0.333333\tNone\n"
    folder.arrays("new.npz", a=np.arange(2))
    with np.load(io.BytesIO((tmp_path / "new.npz").read_bytes())) as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {"a": [0, 1]}
    assert folder.written == [tmp_path / "texts.tsv", tmp_path / "new.npz"]
    deep = Folder(tmp_path / "b" / "c")
    for content in (b"1", b"2"):
        assert pathlib.Path(deep.write("d", content)) == tmp_path / "b" / "c" / "d"
    assert (tmp_path / "b" / "c" / "d").read_bytes() == b"2"


def test_the_files_of_a_command_appear_together_at_its_end_or_not_at_all(tmp_path):
    out = tmp_path / "new" / "out"
    with appearing_together():
        Folder(out)
    assert not (tmp_path / "new").exists()
    for content, seen in ((b"old", set()), (b"new", {"a", "b"})):
        with appearing_together():
            folder = Folder(out)
            for name in ("a", "b"):
                Folder(out).write(name, b"first")
                folder.write(name, content)
            assert {path.name for path in out.glob("[!.]*")} == seen
        assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": content, "b": content}
    with pytest.raises(KeyboardInterrupt), appearing_together():  # noqa: PT012
        Folder(out).write("a", b"half")
        raise KeyboardInterrupt
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": b"new", "b": b"new"}


def test_files_of_an_earlier_run_without_a_successor_are_named(tmp_path, capsys):
    for name in ("a.tsv", "b.tsv", "b.pdf", "mine.tsv"):
        (tmp_path / name).write_text("old")
    with appearing_together():
        Folder(tmp_path, ("a.tsv", "b.tsv", "b.png", "c.png")).write("a.tsv", b"new")
    assert capsys.readouterr().err == "not of this run, but in the folder before it: b.pdf, b.tsv\n"


def test_every_file_is_on_the_disk_before_the_first_gets_its_name(tmp_path, monkeypatch):
    events: list[str] = []
    for name in ("fsync", "replace"):
        own = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, own=own: events.append(name) or own(*given))
    with appearing_together():
        for name in ("a", "b"):
            Folder(tmp_path).write(name, b"new")
            (part,) = tmp_path.glob(f".{name}.*")
            assert part.read_bytes() == b"new", "a full disk is noticed here"
    assert events == ["fsync"] * 2 + ["replace"] * 2


def test_two_commands_do_not_write_to_a_directory_at_once(tmp_path):
    others = tmp_path / f".analysis.{HOST}.1{PARTIAL_SUFFIX}"
    with others.open("w") as file, appearing_together():
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=rf"--output={tmp_path} is being written by another process \(in {others}\); wait"):
            Folder(tmp_path)
    with appearing_together():
        Folder(tmp_path).write("a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
