"""The record of the generations of copies."""

from __future__ import annotations

import errno
import os
import pathlib
import threading

import pytest

from bert_jax.errors import UserError
from bert_jax.storage.fetching import RECORDED, Copy, Record, copy_record, is_unchanged
from tests.clock import Clock


def test_copies_of_any_name_are_read_back_and_invalid_lines_skipped(tmp_path: pathlib.Path):
    record = Record(tmp_path / "new" / "copies")
    assert record.read() == {}
    copies = {"a/b c": Copy("17", 5, 12), "with\ttab": Copy("", 0, 0)}
    for _ in range(2):
        record.write(copies)
        assert record.read() == copies
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == ".copies.copies"
    odd = [f"g\t5\t6\t{name}" for name in ("", ".", "..", "../a", "/a", "a//b", "a/./b", "a/")]
    other = ["", "one", "g\tx\t5\tname", "g\t5\tx\tname", "g\t5\t6", *odd, "g\t5\t6\tname"]
    file.write_text("\n".join(other))
    assert record.read() == {"name": Copy("g", 5, 6)}


def test_a_record_is_written_every_few_seconds_of_a_transfer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    clock, copies = Clock(monkeypatch), {"a": Copy("1", 2, 3)}
    record = Record(tmp_path / "copies")
    for pause, recorded in ((RECORDED - 1, {}), (1.0, copies), (RECORDED - 1, {}), (1.0, copies)):
        clock.advance(pause)
        record.write_regularly(copies)
        assert record.read() == recorded
        if recorded:
            record.write({})


def test_a_record_that_cannot_be_replaced_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    record = Record(tmp_path / "copies")
    record.write({"a": Copy("1", 2, 3)})

    def full(self: pathlib.Path, target: pathlib.Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        record.write({})
    assert record.read() == {"a": Copy("1", 2, 3)}
    assert [path.name for path in tmp_path.iterdir()] == [".copies.copies"]


def test_a_file_is_unchanged_while_it_has_its_size_and_its_time(tmp_path: pathlib.Path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 7_000_000_123))
    copy = copy_record(file, "g")
    assert copy == Copy("g", 3, 7_000_000_123)
    assert is_unchanged(file, copy)
    assert not is_unchanged(file, None)
    assert not is_unchanged(file, Copy("g", 4, 7_000_000_123))
    assert not is_unchanged(file, Copy("g", 3, 7_000_000_124))
    file.unlink()
    assert not is_unchanged(file, copy)


def test_a_record_is_locked_by_one_process(tmp_path: pathlib.Path):
    record = Record(tmp_path / "new" / "copies")
    with record.held(wait=False), record.held(wait=False, name="in-use"):  # two locks
        with (
            pytest.raises(UserError, match=r"another process on this machine is using .*/\.copies\.copies; wait"),
            record.held(wait=False),
        ):
            pass
        waiting = threading.Thread(target=lambda: record.held(wait=True).__enter__(), daemon=True)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()
