"""Files that are written completely or not at all, JSON from any source, locks, and the removal of directories."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import pathlib
import runpy
import signal
import stat
import subprocess
import sys
import threading
import time

import filelock
import pytest

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.files import (
    HOST,
    PARTIAL_SUFFIX,
    is_locked,
    json_lines,
    locked,
    parse_json,
    read_json,
    read_object,
    remove_leftovers,
    remove_tree,
    replacing,
    restore,
    take_away_unfinished,
    write_json,
    write_text,
    writing_directory,
)
from bert_jax.tasks.readers.own_rows import read_own_rows

NESTED = "[" * 100_000


@pytest.fixture
def synchronised(tmp_path, monkeypatch) -> list[set[bytes]]:
    """Records the contents of all files each time that one is synchronised to the disk, in a list."""
    contents: list[set[bytes]] = []
    monkeypatch.setattr(os, "fsync", lambda _: contents.append({file.read_bytes() for file in tmp_path.iterdir()}))
    return contents


def test_a_text_is_replaced_only_after_synchronisation(tmp_path, synchronised, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1]}, indent=1)
    assert path.read_text() == '{\n "a": [\n  1\n ]\n}\n'
    write_text(path, "gs://bucket/x")
    assert path.read_text() == "gs://bucket/x"
    assert synchronised == [{b'{\n "a": [\n  1\n ]\n}\n'}, {b'{\n "a": [\n  1\n ]\n}\n', b"gs://bucket/x"}]

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.json", "gs://bucket/x")]


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")  # as /dev/stdout is
    write_text(tmp_path / "link", "a")
    assert os.read(reader, 9) == b"a"
    os.close(reader)
    assert (tmp_path / "link").is_fifo()


def test_removing_a_missing_directory_succeeds(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for _ in range(2):
        remove_tree(tmp_path / "a")
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("text", [NESTED, '{"a": ' * 100_000, NESTED.encode(), "", "{", b"\xff", "1" * 5000])
def test_unreadable_json_is_always_a_value_error(text):
    with pytest.raises(ValueError, match=r"nested too deep|Expecting|decode|digits"):
        parse_json(text)


def test_a_duplicate_key_is_named(tmp_path):
    for strict in (False, True):
        with pytest.raises(ValueError, match="the key 'seed' occurs twice in one object"):
            parse_json('[{"seed": 1, "a": {"seed": 2}}, {"a": 0, "seed": 1, "seed": 1}]', strict=strict)
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x", "label": "y"}\n')
    with pytest.raises(UserError, match=r"train\.jsonl.*the key 'label' occurs twice in one object"):
        list(read_own_rows(tmp_path / "train.jsonl", None, quotes=None, columns=(), separator=" "))


def test_lines_truncated_by_a_kill_are_skipped(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": 2\n\n[3]\n{"a": NaN}\n{"b": 4}\xff')
    assert [list(record) for record in json_lines(tmp_path / "a.jsonl")] == [["a"], ["a"]]
    assert json_lines(tmp_path / "a.jsonl", strict=True) == [{"a": 1}]


def test_a_leftover_of_a_killed_process_does_not_block_a_write(tmp_path):
    (tmp_path / f".a.{HOST}.{os.getpid()}{PARTIAL_SUFFIX}").write_text("left")
    write_text(tmp_path / "a", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "new")]


def test_a_file_name_may_have_223_bytes_and_a_directory_name_218(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 4_194_303)  # the longest of Linux
    write_text(tmp_path / ("a" * 223), "a")
    write_directory(tmp_path / ("b" * 218), "b")
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_write_one_file_one_after_another(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write_text(tmp_path / "a", f"{i}" * 10_000), range(40)))
    assert len(set((tmp_path / "a").read_text())) in (1, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_file_written_in_pieces_appears_completely_or_not_at_all(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as file:  # noqa: PT012
        file.write(b"half")
        raise ZeroDivisionError
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "old")]
    with replacing(tmp_path / "a") as file:
        file.write(b"new")
        assert (tmp_path / "a").read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "new")]


def contents(directory) -> dict[str, str]:
    """Returns the text of each file below a directory."""
    return {str(file.relative_to(directory)): file.read_text() for file in directory.rglob("*") if file.is_file()}


def write_directory(path, text: str, *, replace: bool = False) -> None:
    with writing_directory(path, replace=replace) as part:
        (part / "a").write_text(text)
        assert not path.exists() or (path / "a").read_text() == "old"


def test_a_directory_appears_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "d"
    write_directory(path, "old")
    with pytest.raises(FileExistsError):
        write_directory(path, "later")
    with pytest.raises(ZeroDivisionError), writing_directory(path, replace=True) as part:  # noqa: PT012
        (part / "a").write_text("half")
        raise ZeroDivisionError
    rename = pathlib.Path.rename

    def fails(old: pathlib.Path, new: pathlib.Path) -> pathlib.Path:
        if new == path and old.name != ".d.replaced":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", fails)
        with pytest.raises(OSError, match="Input/output"):
            write_directory(path, "new", replace=True)
    assert (contents(tmp_path), len(list(tmp_path.iterdir()))) == ({"d/a": "old"}, 1)
    write_directory(path, "new", replace=True)
    assert (contents(tmp_path), len(list(tmp_path.iterdir()))) == ({"d/a": "new"}, 1)


def test_of_two_processes_that_replace_a_directory_the_slower_one_fails(tmp_path, monkeypatch):
    path, rename = tmp_path / "d", pathlib.Path.rename
    write_directory(path, "old")

    def too_late(old: pathlib.Path, new: pathlib.Path) -> pathlib.Path:
        renamed = rename(old, new)
        if old == path:
            path.mkdir()
            (path / "a").write_text("new")
        return renamed

    monkeypatch.setattr(pathlib.Path, "rename", too_late)
    with pytest.raises(FileExistsError):
        write_directory(path, "late", replace=True)
    restore(path)
    assert contents(tmp_path) == {"d/a": "new"}


def test_a_directory_is_written_even_if_its_file_system_cannot_synchronise_directories(tmp_path, monkeypatch):
    def refuses(descriptor: int, of_files: bool = False) -> None:
        if of_files or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuses)
    write_directory(tmp_path / "d", "new")
    assert contents(tmp_path) == {"d/a": "new"}
    monkeypatch.setattr(os, "fsync", lambda descriptor: refuses(descriptor, of_files=True))
    with pytest.raises(OSError, match="Invalid argument"):
        write_directory(tmp_path / "e", "new")
    assert contents(tmp_path) == {"d/a": "new"}


def test_an_older_directory_is_never_lost_if_its_replacement_is_killed(tmp_path):
    path = tmp_path / "d"
    for new_is_in_place in (False, True):
        write_directory(tmp_path / ".d.replaced", "old")
        restore(path)
        assert contents(tmp_path) == {"d/a": "new" if new_is_in_place else "old"}
        write_directory(path, "new", replace=True) if not new_is_in_place else None


def test_only_directories_of_killed_processes_are_leftovers(tmp_path):
    path, left = tmp_path / "d", tmp_path / f".d.{HOST}.1.bert_jax.directory"
    (left / "b").mkdir(parents=True)
    (tmp_path / f".d.{HOST}.1.bert_jax.part").touch()
    with pytest.raises(FileNotFoundError), writing_directory(path) as part:  # noqa: PT012
        assert len(list(tmp_path.iterdir())) == 2, "its own directory and the lock"
        (part / "a").write_text("a")
        restore(path)
        remove_leftovers(tmp_path)
        assert contents(part) == {"a": "a"}
        take_away_unfinished(path)
    assert list(tmp_path.iterdir()) == []


def set_age(directory: pathlib.Path, name: str, days: float) -> None:
    """Sets the times of the temporary file and directory `name`."""
    for suffix in ("part", "directory"):
        os.utime(directory / f"{name}.{suffix}", (time.time() - days * 24 * 60 * 60,) * 2)


@pytest.mark.parametrize("has_locks", [True, False])
def test_files_of_another_machine_and_of_running_processes_are_no_leftovers(tmp_path, monkeypatch, has_locks):
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = [".d.another-machine.1.bert_jax", *([] if has_locks else [f".d.{HOST}.{os.getppid()}.bert_jax"])]
    for name in (*kept, f".d.{HOST}.{ended.pid}.bert_jax"):
        (tmp_path / f"{name}.part").touch()
        (tmp_path / f"{name}.directory").mkdir()
        if not has_locks:  # the age is then no sign of an end
            set_age(tmp_path, name, days=2)
    if not has_locks:
        monkeypatch.setattr("bert_jax.files.try_lock", lambda descriptor: None)
    write_directory(tmp_path / "d", "new")
    left = {f"{name}.{end}" for name in kept for end in ("part", "directory")}
    assert {path.name for path in tmp_path.iterdir()} == {"d", *left}


def test_leftovers_of_another_machine_are_removed_after_a_day_without_a_change(tmp_path):
    days = {".d.ended.1.bert_jax": 1.1, ".d.e.ended.1.bert_jax": 1.1, ".d.new.1.bert_jax": 0.9, ".d.busy.1.bert_jax": 1.1}
    for name, age in days.items():
        (tmp_path / f"{name}.part").touch()
        (tmp_path / f"{name}.directory" / "a").mkdir(parents=True)
        if age > 1 and "busy" not in name:
            os.utime(tmp_path / f"{name}.directory" / "a", (0, 0))
        set_age(tmp_path, name, age)
    write_directory(tmp_path / "d", "new")
    kept = {"d", ".d.new.1.bert_jax", ".d.busy.1.bert_jax"}
    assert {path.stem for path in tmp_path.iterdir()} == kept | {".d.e.ended.1.bert_jax"}
    assert len(list(tmp_path.iterdir())) == 7, "each has its file and its directory"
    remove_leftovers(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == kept


def test_the_temporary_files_of_containers_that_share_a_host_name_differ(monkeypatch):
    def host() -> str:
        return runpy.run_path(files.__file__)["HOST"]

    def fails(path: str) -> str:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    assert host() == HOST
    monkeypatch.setattr(os, "readlink", lambda path: f"{path}:[1]")
    in_container = host()
    monkeypatch.setattr(os, "readlink", fails)
    assert len({HOST, in_container, host()}) == 3


def test_removing_does_not_follow_links(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("tree", "link"):
        remove_tree(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mine"]
    assert (tmp_path / "mine" / "thesis").exists()


HOLDING = """
import pathlib, sys, time
from bert_jax.files import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_waited_for_or_refused_and_a_kill_releases_it(tmp_path):
    path = tmp_path / "a.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        assert is_locked(path)
        with pytest.raises(UserError, match="another one; wait"), locked(path, "another one; wait"):
            pass
        threading.Timer(0.3, other.kill).start()
        with locked(path):
            assert other.wait() == -signal.SIGKILL
            assert is_locked(path)
    assert not is_locked(path)


def test_a_lock_is_waited_for_without_a_limit_and_refused_at_once(tmp_path, monkeypatch):
    asked, made = [], filelock.FileLock

    def lock(path, **settings):
        asked.append({name: value for name, value in settings.items() if name != "on_acquired"})
        return made(path, **settings)

    monkeypatch.setattr(filelock, "FileLock", lock)
    for refusal in (None, "it is in use"):
        with locked(tmp_path / "a.lock", refusal):
            pass
    always = {"thread_local": False, "preserve_lock_file": True}  # a thread may release the lock of another
    assert asked == [{"timeout": -1, **always}, {"timeout": 0, **always}]


def test_nan_is_refused_in_strict_json():
    assert parse_json("[NaN, -Infinity]")[1] == float("-inf")
    for name in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(ValueError, match=f"{name} is not a JSON number"):
            parse_json(f'{{"a": {name}}}', strict=True)
    assert parse_json("[1e999]") == [float("inf")]
    with pytest.raises(ValueError, match="1e999 is too large for a float"):
        parse_json("[1e999]", strict=True)
    assert parse_json("[1e300, 2]", strict=True) == [1e300, 2]


def test_a_missing_or_damaged_json_file_is_named_with_a_remedy(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UserError, match=r"a\.json cannot be read as JSON \(.*No such file.*\); remove it"):
        read_json(path)
    with pytest.raises(UserError, match=r"a\.json cannot be read as JSON \(.*\); copy it again"):
        read_object(path, "copy it again")
    path.write_text("[1, 2]")
    assert read_json(path) == [1, 2]
    with pytest.raises(UserError, match=r"a\.json must hold a JSON object, but holds \[1, 2\]; copy it again"):
        read_object(path, "copy it again")
