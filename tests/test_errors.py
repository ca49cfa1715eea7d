"""Missing paths in the messages for users."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.errors import missing_path


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current directory, which holds the directory `runs`."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_relative_path_is_told_with_the_directory_in_which_it_was_looked_for(here: pathlib.Path):
    assert missing_path("models/bert") == f"models/bert (looked for in {here})"
    assert missing_path("rums/a") == f"rums/a (looked for in {here}; did you mean runs?)"


def test_an_absolute_path_says_itself_where_it_was_looked_for(here: pathlib.Path):
    assert missing_path(here / "models") == f"{here}/models"
    assert missing_path(here / "rums") == f"{here}/rums (did you mean {here}/runs?)"


@pytest.mark.parametrize("path", ["gs://bucket/runs/a", "s3://bucket/rums"])
def test_a_path_in_a_bucket_is_not_said_to_be_looked_for_here(path: str):
    assert missing_path(path) == path
