from __future__ import annotations

import errno
import logging
import os
import pathlib
import shutil
import time
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.workdir import open_workdir
from bert_jax.storage import checks
from bert_jax.storage.checks import require_capable, require_room

REMEDY = (
    r"for a bucket, give --workdir=gs://BUCKET/PATH, mount it with `gcsfuse --rename-dir-limit=100000`, or use a bucket "
    r"with hierarchical namespace; otherwise name a directory on another file system$"
)


def flat_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes renaming of directories with files fail, as in a flat bucket mounted by gcsfuse."""
    rename = os.rename

    def refusing(source: Any, target: Any, **named: Any) -> None:
        if pathlib.Path(source).is_dir() and os.listdir(source):  # noqa: PTH208
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        rename(source, target, **named)

    monkeypatch.setattr(os, "rename", refusing)


def test_a_directory_on_a_disk_passes_and_is_not_changed(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "there").write_text("as it was")
    require_capable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lr[1e-4]", r"--workdir=lr\[1e-4\] contains '\[', but Orbax treats this as a wildcard and could read no checkpoint"),
        ("a*/run", r"--workdir=a\*/run contains '\*', but Orbax"),
        ("a?", r"--workdir=a\? contains '\?', but Orbax"),
        ("run\udcff", r"--workdir=run\\udcff: the path is not UTF-8, which checkpoints need; name another directory"),
    ],
)
def test_a_path_with_which_no_checkpoint_could_be_read_is_refused_at_the_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says), open_workdir(pathlib.Path(name), "pretrain", {}):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a[b]").mkdir()
    monkeypatch.chdir(tmp_path / "a[b]")
    with pytest.raises(UserError, match=r"--workdir=run \(.*/a\[b\]/run\) contains '\[', but Orbax"):
        require_capable(pathlib.Path("run"))


def test_a_mounted_bucket_that_renames_no_directory_is_refused_at_the_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    flat_bucket(monkeypatch)
    says = rf"--workdir={tmp_path}/run cannot rename a directory that holds files, .* \(Too many open files\); {REMEDY}"
    with pytest.raises(UserError, match=says), open_workdir(tmp_path / "run", "pretrain", {}):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_rename_that_loses_files_is_detected(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pathlib.Path, "rename", lambda self, target: target)
    with pytest.raises(UserError, match=rf"cannot rename a directory that holds files.*; {REMEDY}"):
        require_capable(tmp_path)


def test_a_directory_that_is_copied_instead_of_renamed_is_detected(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pathlib.Path, "rename", lambda self, target: shutil.copytree(self, target) and target)
    with pytest.raises(UserError, match=rf"cannot rename a directory that holds files.*; {REMEDY}"):
        require_capable(tmp_path)


def test_an_unwritable_directory_is_refused_with_the_reason(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=rf"--workdir={tmp_path}/file cannot be written \(a file is in the way\); name a directory"
    ):
        require_capable(tmp_path / "file")

    def refusing(self: pathlib.Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(pathlib.Path, "mkdir", refusing)
    with pytest.raises(UserError, match=rf"--workdir={tmp_path} cannot be written \(Read-only file system\); name a directory"):
        require_capable(tmp_path)
    says = rf"^{tmp_path}, the local copy of --workdir=gs://b/run, cannot be written \(Read-only .*\); set BERT_JAX_CACHE"
    with pytest.raises(UserError, match=says):
        require_capable(tmp_path, "gs://b/run")


@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_replacement_is_detected(lost: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def replace(self: pathlib.Path, target: pathlib.Path) -> None:
        if lost:
            self.unlink()
            target.write_bytes(b"1")

    monkeypatch.setattr(pathlib.Path, "replace", replace)
    with pytest.raises(UserError, match=rf"cannot rename a file over another file, but results are written this way; {REMEDY}"):
        require_capable(tmp_path)


def test_a_file_system_that_does_not_append_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    opened = pathlib.Path.open

    def refusing(self: pathlib.Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if "a" in mode:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return opened(self, mode, *arguments, **named)

    monkeypatch.setattr(pathlib.Path, "open", refusing)
    with pytest.raises(UserError, match=rf"cannot append to files.* \(Operation not supported\); {REMEDY}"):
        require_capable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_overwrites_instead_of_appending_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    opened = pathlib.Path.open
    monkeypatch.setattr(
        pathlib.Path, "open", lambda self, mode="r", *rest, **named: opened(self, mode.replace("a", "w"), *rest, **named)
    )
    with pytest.raises(UserError, match="cannot append to files"):
        require_capable(tmp_path)


def test_a_delayed_listing_is_detected(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks.os, "listdir", lambda path: [])
    with pytest.raises(UserError, match="does not list a file that was just written"):
        require_capable(tmp_path)


def test_a_file_system_that_does_not_replace_files_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def refusing(self: pathlib.Path, target: pathlib.Path) -> None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(pathlib.Path, "replace", refusing)
    with pytest.raises(
        UserError,
        match=r"cannot rename a file over another file, but results are written this way \(File "
        r"exists\)",
    ):
        require_capable(tmp_path)


@pytest.mark.parametrize(("hours", "says"), [(1, "3600 s behind"), (-1, "3600 s ahead of")])
def test_a_different_clock_is_reported(
    hours: int, says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    now = time.time
    monkeypatch.setattr(checks.time, "time", lambda: now() + 3600 * hours)
    with caplog.at_level(logging.WARNING):
        require_capable(tmp_path)
    assert f"the clock of the file system of {tmp_path} is {says} this machine's clock; synchronise both by NTP" in caplog.text


@pytest.mark.parametrize(("seconds", "says"), [(0, ""), (60, ""), (-60, ""), (61, "61 s ahead of"), (-61, "61 s behind")])
def test_clock_differences_are_reported_from_a_minute(
    seconds: int, says: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (0, 1_000_000 + seconds))
    checks._tell_of_clock(tmp_path, tmp_path / "file", 1_000_000.0)
    assert bool(caplog.text) is bool(says)
    assert says in caplog.text


def test_a_bucket_has_unlimited_space(monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    monkeypatch.setattr(checks.shutil, "disk_usage", asked.append)
    require_room("gs://bucket/checkpoints", 10**18)  # type: ignore[arg-type]
    assert asked == [], "no disk is asked for its free space"


def test_a_disk_without_space_for_a_checkpoint_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 3_000_000_000}))
    require_room(tmp_path / "checkpoints", 3_000_000_000)
    says = rf"a checkpoint of this run has 4\.00 GB, but {tmp_path} has only 3\.00 GB free; free space, or name a --workdir"
    with pytest.raises(UserError, match=says):
        require_room(tmp_path / "checkpoints", 4_000_000_000)
