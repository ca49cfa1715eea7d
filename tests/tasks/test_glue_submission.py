from __future__ import annotations

import dataclasses
import pathlib
import sys
import zipfile

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.glue_submission import collect_predictions, main
from bert_jax.tasks.readers.glue import SUBMISSION, TASKS, prediction_table


def put(directory: pathlib.Path, name: str, rows: int | None = None) -> pathlib.Path:
    """Writes a complete file of predictions, or only its first rows."""
    task = TASKS[SUBMISSION[name].task]
    answer: str | float = 1.25 if task.is_regression else task.labels[0]
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.tsv").write_text(prediction_table(name, [answer] * (rows or SUBMISSION[name].rows)))
    return directory


def run(monkeypatch: pytest.MonkeyPatch, *flags: object) -> None:
    monkeypatch.setattr(sys, "argv", ["glue_submission", *map(str, flags)])
    main()


def test_files_of_several_runs_are_packed_into_one_submission(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("QQP", "MNLI-m", "MNLI-mm", "QNLI", "AX"):  # have up to 390,965 rows
        monkeypatch.setitem(SUBMISSION, name, dataclasses.replace(SUBMISSION[name], rows=1000))
    runs = [put(tmp_path / ("mnli" if name in ("MNLI-m", "MNLI-mm", "AX") else name), name) for name in SUBMISSION]
    run(monkeypatch, *dict.fromkeys(runs), f"--output={tmp_path / 'out'}")
    path = pathlib.Path(capsys.readouterr().out.strip())
    with zipfile.ZipFile(path) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert packed == {f"{name}.tsv": (run / f"{name}.tsv").read_bytes() for name, run in zip(SUBMISSION, runs, strict=True)}


def test_an_incomplete_submission_needs_the_partial_flag(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    directory = put(tmp_path / "a", "WNLI")
    with pytest.raises(UserError, match="the submission lacks CoLA"):
        run(monkeypatch, directory, f"--output={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
    run(monkeypatch, directory, f"--output={tmp_path / 'out'}", "--partial")
    assert (tmp_path / "out" / "submission.zip").is_file()


def test_a_missing_directory_is_refused_with_the_searched_place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "predictions", "WNLI")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        collect_predictions([pathlib.Path("predictoins")])
    assert str(caught.value) == (
        f"there is no directory predictoins (looked for in {tmp_path}; did you mean predictions?); "
        "give the directories with predictions"
    )


def test_invalid_predictions_are_refused_with_file_and_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    first, second = put(tmp_path / "a", "WNLI"), put(tmp_path / "b", "WNLI")
    with pytest.raises(UserError, match=r"b/WNLI\.tsv and .*a/WNLI\.tsv both have the predictions of WNLI"):
        collect_predictions([first, second])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no directory has one of CoLA\.tsv"):
        collect_predictions([tmp_path / "empty"])
    assert collect_predictions([tmp_path / "empty", first]).keys() == {"WNLI"}  # a run on another task
    assert f"{tmp_path}/empty is left out: it has no predictions of a GLUE task" in capsys.readouterr().err
    put(tmp_path / "a", "WNLI", rows=3)
    with pytest.raises(UserError, match="WNLI has 3 predictions, but the official test set has 146 rows"):
        run(monkeypatch, first, f"--output={tmp_path / 'out'}", "--partial")
    (first / "WNLI.tsv").write_text("index\tprediction\n0\t1\n2\t1\n")
    with pytest.raises(UserError, match=r"a/WNLI\.tsv, line 3: index is '2', not 1"):
        collect_predictions([first])
    (first / "WNLI.tsv").write_text("index\tanswer\n0\t1\n")
    with pytest.raises(UserError, match=r"a/WNLI\.tsv, line 1: there is no column 'prediction'"):
        collect_predictions([first])
    (second / "WNLI.tsv").unlink()
    (second / "STS-B.tsv").write_text("index\tprediction\n0\thigh\n")
    with pytest.raises(UserError, match=r"STS-B\.tsv, line 2: prediction is 'high', not a number"):
        collect_predictions([second])
