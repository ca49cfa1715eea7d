"""A workdir in a bucket is tried as one on a disk is, and nothing is left there."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.diagnosis.directories import corpus_check, workdir_check
from bert_jax.storage.objects import listed, place
from tests.storage.emulator import Emulator


def test_a_bucket_takes_what_a_run_writes_and_keeps_none_of_the_probe(bucket: str):
    assert workdir_check(place(bucket)).faults == ()
    assert listed(bucket) == {}
    assert corpus_check(f"{bucket}/corpus").faults == ()


def test_a_bucket_that_is_not_there_or_refuses_writing_is_a_fault(bucket: str, emulator: Emulator):
    (fault,) = workdir_check(place("gs://another-bucket/run")).faults
    assert "gs://another-bucket" in fault
    emulator.fail(403, match="POST .*upload.*")
    (fault,) = workdir_check(place(bucket)).faults
    assert bucket in fault


def test_a_directory_that_cannot_do_what_a_run_needs_is_a_fault(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    there = tmp_path / "there"
    there.mkdir()
    assert workdir_check(there).faults == ()
    assert there.is_dir()
    monkeypatch.setattr("bert_jax.storage.checks._renames", lambda file: False)
    (fault,) = workdir_check(there).faults
    assert "does not rename a directory that holds files, as every checkpoint is completed" in fault
