"""Missing paths and misspelt names in the messages for users."""

from __future__ import annotations

import argparse
import pathlib

import pytest

from bert_jax.errors import USER_ERROR_STATUS, missing_path, nearest, nearest_path


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the current directory, which contains runs/bert_base and the file runs/notes.txt."""
    (tmp_path / "runs" / "bert_base").mkdir(parents=True)
    (tmp_path / "runs" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_relative_path_is_shown_with_the_searched_directory(here: pathlib.Path):
    assert missing_path("models/bert") == f"models/bert (looked for in {here})"
    assert missing_path("rums/a") == f"rums/a (looked for in {here}; did you mean runs?)"


def test_an_absolute_path_is_shown_without_a_directory(here: pathlib.Path):
    assert missing_path(here / "models") == f"{here}/models"
    assert missing_path(here / "rums") == f"{here}/rums (did you mean {here}/runs?)"


def test_a_link_that_leads_nowhere_is_named_with_its_target(here: pathlib.Path):
    (here / "link").symlink_to("gone")
    (here / "loop").symlink_to("loop")
    assert missing_path("link") == "link (a link to gone, which does not exist)"
    assert missing_path("link/a/b") == "link/a/b (link is a link to gone, which does not exist)"
    assert missing_path(here / "link") == f"{here}/link (a link to gone, which does not exist)"
    assert missing_path("loop") == "loop (a link to loop, which does not exist)"
    assert missing_path("a" * 5_000).startswith("a" * 5_000)


@pytest.mark.parametrize("path", ["gs://bucket/runs/a", "s3://bucket/rums"])
def test_a_bucket_path_is_shown_without_a_directory(path: str):
    assert missing_path(path) == path


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("rums/bert_bse", "runs/bert_base"),
        ("runs/bert_bse", "runs/bert_base"),
        ("rums/bert_base", "runs/bert_base"),
        ("rums/zzzz/bert_base", "runs"),  # not beyond names that resemble each other
        ("rums/notes.txt/a", "runs/notes.txt"),
        ("runs/notes.txt/a", None),
        ("runs/bert_base", None),
        ("zzzz/bert_bse", None),
    ],
)
def test_a_misspelt_path_is_corrected_part_by_part(path: str, near: str | None):
    assert nearest_path(path) == near


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("mprc", ("rte", "mrpc"), "did you mean 'mrpc'?"),
        ("layer_2", ("layer_45", "layer_2x2", "layer_23"), "did you mean 'layer_23'?"),  # the nearest of several
        ("--max_step", ("--max-steps", "--seed"), "did you mean '--max-steps'?"),
        ("nsp", ("nsp_head", "mlm_head"), "did you mean 'nsp_head'?"),
        ("nsp", ("nsp_head_new", "nsp_head_old"), "known: nsp_head_new, nsp_head_old"),
        ("zzz", ("b", "c", "a"), "known: a, b, c"),
        ("", ("b", "a"), "known: a, b"),
    ],
)
def test_a_misspelt_name_gets_the_most_similar_or_all_names(name, known, hint):
    assert nearest(name, known) == hint


def test_user_errors_have_the_exit_status_of_a_wrong_flag():
    with pytest.raises(SystemExit) as exit:
        argparse.ArgumentParser().error("a wrong flag")
    assert exit.value.code == USER_ERROR_STATUS
