"""A workdir in a bucket is tried like one on a disk, and nothing is left there."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.processes import Processes
from bert_jax.storage.objects import as_path, listed
from bert_jax.tpu.diagnosis import experiment
from bert_jax.tpu.diagnosis.experiment import corpus_check, workdir_check
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
    monkeypatch.setattr("bert_jax.storage.checks._renames", lambda file: False)
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


def test_a_bucket_must_return_the_written_data(bucket: str, monkeypatch: pytest.MonkeyPatch):
    for content in (None, types.SimpleNamespace(data=b"2")):
        monkeypatch.setattr(experiment, "read", lambda path, content=content: content)
        (fault,) = workdir_check(ALONE, as_path(bucket)).faults
        assert fault == f"the bucket of --workdir={bucket} does not return what was written to it; give another bucket"


@pytest.mark.parametrize(("count", "faults", "asked"), [(1, (), 0), (2, (), 1), (2, ("no room",), 0), (1, ("no room",), 0)])
def test_several_processes_must_see_the_same_directory(
    count: int, faults: tuple[str, ...], asked: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def capable(path: pathlib.Path) -> None:
        for fault in faults:
            raise UserError(fault)

    shared: list[Any] = []
    monkeypatch.setattr(experiment, "require_capable", capable)
    monkeypatch.setattr(experiment, "require_shared_directory", lambda processes, directory: shared.append(directory))
    processes: Any = types.SimpleNamespace(index=0, count=count, gather=lambda own: [own])
    found = workdir_check(processes, tmp_path / "run")
    assert (found.faults, shared) == (faults, [tmp_path / "run"] * asked)
    works = f"{tmp_path / 'run'}: files can be written, appended to, renamed and listed"
    assert found.text == (str(tmp_path / "run") if faults else works)


def test_the_first_process_makes_the_workdir_for_all(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there: list[bool] = []
    monkeypatch.setattr(experiment, "require_capable", lambda path: there.append(path.exists()))
    workdir_check(ALONE, tmp_path / "a" / "run")
    second: Any = types.SimpleNamespace(index=1, count=1, gather=lambda own: [own])
    workdir_check(second, tmp_path / "a" / "run")
    assert there == [True, False]
    assert not (tmp_path / "a").exists()


def test_a_corpus_must_be_a_directory(tmp_path: pathlib.Path):
    assert corpus_check(ALONE, str(tmp_path)).faults == ()
    (tmp_path / "file").touch()
    (fault,) = corpus_check(ALONE, str(tmp_path / "file")).faults
    assert fault.startswith(f"config.corpus.directory={tmp_path / 'file'}")
