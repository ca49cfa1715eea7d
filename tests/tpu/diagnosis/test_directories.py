"""A workdir in a bucket is tried like one on a disk, and nothing is left there."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

from bert_jax.runtime.processes import Processes
from bert_jax.storage.objects import as_path, listed, write
from bert_jax.tpu.diagnosis.experiment import corpus_check, workdir_check
from bert_jax.tpu.diagnosis.judgement import Check
from tests.runtime.connected import group
from tests.storage.emulator import Emulator

ALONE = Processes()


def test_a_bucket_is_probed_without_leaving_files(bucket: str):
    assert workdir_check(ALONE, as_path(bucket)).faults == ()
    assert listed(bucket) == {}
    assert corpus_check(ALONE, f"{bucket}/corpus").faults == ()


def test_a_missing_or_read_only_bucket_is_a_fault(bucket: str, emulator: Emulator):
    (fault,) = workdir_check(ALONE, as_path("gs://another-bucket/run")).faults
    assert "gs://another-bucket" in fault
    assert corpus_check(ALONE, "gs://another-bucket/corpus").faults[0].startswith(fault.partition("/run")[0])
    emulator.fail(403, match="GET .*/b/[^/]*$")
    (fault,) = workdir_check(ALONE, as_path(bucket)).faults
    assert bucket in fault, "like Orbax's request for the bucket itself"
    emulator.fail(403, match="POST .*upload.*")
    (fault,) = workdir_check(ALONE, as_path(bucket)).faults
    assert bucket in fault


def test_an_unsuitable_directory_is_a_fault(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there = tmp_path / "there"
    there.mkdir()
    assert workdir_check(ALONE, there).faults == ()
    assert there.is_dir()
    monkeypatch.setattr(pathlib.Path, "rename", lambda path, target: path)
    (fault,) = workdir_check(ALONE, there).faults
    assert "cannot rename a directory that holds files, but checkpoints are completed this way" in fault
    assert workdir_check(ALONE, there).text == str(there)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (NotADirectoryError(20, "Not a directory"), "a file is in the way"),
        (FileExistsError(17, "File exists"), "a file is in the way"),
    ],
)
def test_a_directory_that_cannot_be_created_is_a_fault_with_the_reason(
    error: OSError, reason: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(path: pathlib.Path, **_: Any) -> None:
        raise error

    monkeypatch.setattr(pathlib.Path, "mkdir", fails)
    (fault,) = workdir_check(ALONE, tmp_path / "new").faults
    assert fault == f"--workdir={tmp_path / 'new'} cannot be created ({reason}); give a directory that you may write to"


def test_a_bucket_must_return_the_written_data(bucket: str, emulator: Emulator):
    def change() -> None:
        (name,) = listed(bucket)
        write(f"{bucket}/{name}", b"2")

    found: list[Check] = []
    emulator.at("GET .*alt=media", change, lambda: found.append(workdir_check(ALONE, as_path(bucket))))
    emulator.fail(404, count=1, match="GET .*alt=media")
    found.append(workdir_check(ALONE, as_path(bucket)))
    fault = f"the bucket of --workdir={bucket} does not return what was written to it; give another bucket"
    assert [check.faults for check in found] == [(fault,)] * 2
    assert listed(bucket) == {}


def test_the_first_process_makes_the_workdir_for_all(tmp_path: pathlib.Path):
    run = tmp_path / "a" / "run"
    with group(count=2) as several:
        found = several.all(lambda processes: workdir_check(processes, run))
    assert found == [Check("workdir", f"{run}: files can be written, appended to, renamed and listed")] * 2
    assert not (tmp_path / "a").exists()


def test_a_fault_of_other_processes_is_reported_once_in_all(tmp_path: pathlib.Path):
    (tmp_path / "file").touch()
    with group() as several:
        found = several.all(lambda processes: workdir_check(processes, tmp_path / ("file" if processes.index else "run")))
    assert {check.faults for check in found} == {(f"--workdir={tmp_path / 'file'} cannot be written (a file is in the way); "
                                                  "name a directory that you may write to",)}  # fmt: skip
    assert found[0].text == str(tmp_path / "run")


def test_several_processes_must_see_the_same_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The clock runs a thousand times as fast, since a process waits a minute for a file of the first one to be seen."""
    for index in range(2):
        (tmp_path / f"host-{index}").mkdir()
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 1000 * clock())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with group(patience=60_000, count=2) as several:
        found = several.all(lambda processes: workdir_check(processes, tmp_path / f"host-{processes.index}"))
    assert ["is not the directory that process 1 sees" in " ".join(check.faults) for check in found] == [True, True]


def test_a_corpus_must_be_a_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    for given in (str(tmp_path), f"~/{tmp_path.name}"):
        assert corpus_check(ALONE, given).faults == ()
    assert "a path in a bucket starts with gs://" in corpus_check(ALONE, "gs:/bucket/corpus").faults[0]
    (tmp_path / "file").touch()
    (fault,) = corpus_check(ALONE, str(tmp_path / "file")).faults
    assert fault.startswith(f"config.corpus.directory={tmp_path / 'file'}")
