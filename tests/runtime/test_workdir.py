from __future__ import annotations

import fcntl
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.workdir import differences, flatten, open_workdir, stored_config

CONFIG = {"seed": 0, "log_every": 10, "phases": ({"steps": 10, "rate": 1e-4}, {"steps": 5, "rate": 1e-4}), "none": None}

HOLD = """
import pathlib, sys, time
from bert_jax.runtime.workdir import open_workdir
with open_workdir(pathlib.Path(sys.argv[1]), "pretrain", {"seed": 0}):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(directory: pathlib.Path) -> subprocess.Popen[str]:
    """Another process that has the workdir open."""
    repository = pathlib.Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True, cwd=repository)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_new_directory_is_made_and_holds_the_configuration(tmp_path: pathlib.Path):
    directory = tmp_path / "runs" / "a"
    with open_workdir(directory, "pretrain", CONFIG):
        stored = stored_config(directory)
    assert stored.pop("written_by").startswith("bert_jax ")
    assert stored == json.loads(json.dumps(CONFIG))


def test_the_same_configuration_continues(tmp_path: pathlib.Path):
    for _ in range(2):
        with open_workdir(tmp_path, "pretrain", CONFIG):
            (tmp_path / "metrics.jsonl").write_text("kept")
    assert (tmp_path / "metrics.jsonl").read_text() == "kept"


def test_a_run_goes_on_under_a_version_that_knows_more_keys(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    younger = CONFIG | {"init_from": ""}
    with open_workdir(tmp_path, "pretrain", younger, completed=lambda stored: {"init_from": "", **stored}):
        assert stored_config(tmp_path)["init_from"] == ""
    with (
        pytest.raises(UserError, match="init_from  stored , given models/base"),
        open_workdir(tmp_path, "pretrain", CONFIG | {"init_from": "models/base"}),
    ):
        pass


def test_another_configuration_is_refused_with_both_values(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        before = (tmp_path / "config.json").read_text()
        (tmp_path / "metrics.jsonl").touch()
    other = CONFIG | {"seed": 3, "phases": ({"steps": 10, "rate": 1e-4}, {"steps": 7, "rate": 1e-4})}
    with pytest.raises(UserError) as error, open_workdir(tmp_path, "pretrain", other):
        pass
    assert "  phases.1.steps  stored 5, given 7\n  seed            stored 0, given 3\n" in str(error.value)
    assert "name another --workdir" in str(error.value)
    assert str(error.value).endswith(f"to train its model further, name another --workdir and --config.init_from={tmp_path}")
    assert (tmp_path / "config.json").read_text() == before


def test_keys_that_may_change_do(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    other = CONFIG | {"log_every": 50, "phases": ({"steps": 20, "rate": 1e-4}, {"steps": 5, "rate": 1e-4})}
    with caplog.at_level(logging.INFO), open_workdir(tmp_path, "pretrain", other, may_change=("log_every", "phases.*.steps")):
        assert stored_config(tmp_path)["log_every"] == 50
    assert caplog.messages == ["log_every is now 50 (was 10)", "phases.0.steps is now 20 (was 10)"]


def test_a_start_refused_before_it_trained_binds_nobody_to_its_configuration(tmp_path: pathlib.Path):
    with pytest.raises(UserError), open_workdir(tmp_path, "pretrain", CONFIG | {"seed": 3}):
        raise UserError("the mesh does not fit")
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == 0


def test_a_run_killed_before_its_first_step_may_start_with_another_configuration(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG | {"seed": 3}):
        pass  # killed: the configuration stays, and there are no metrics
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == 0


def refused(directory: pathlib.Path, **files: str) -> None:
    """A start that is refused after it has written `files`, their names with _ for /."""

    def start() -> None:
        with open_workdir(directory, "pretrain", CONFIG):
            for name, text in files.items():
                path = directory / name.replace("_", "/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            (directory / "checkpoints").mkdir()
            raise UserError("the mesh does not fit")

    with pytest.raises(UserError):
        start()


def test_a_refused_start_leaves_nothing_of_a_new_workdir_and_its_parents(tmp_path: pathlib.Path):
    refused(tmp_path / "runs" / "mine", **{"metrics.jsonl": "", "ledger.jsonl": "{}\n", "tensorboard_events.1": "a version"})
    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_leaves_an_empty_directory_that_was_there(tmp_path: pathlib.Path):
    (tmp_path / "mine").mkdir()
    refused(tmp_path / "mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.parametrize(("file", "text"), [("metrics.jsonl", "{}\n"), ("0_metrics.jsonl", ""), ("notes.txt", "")])
def test_a_run_that_has_begun_keeps_everything(tmp_path: pathlib.Path, file: str, text: str):
    refused(tmp_path / "mine", **{file: text})
    kept = {path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert kept == {"config.json", ".lock", file.replace("_", "/")}


def test_a_refused_start_leaves_the_workdir_of_an_earlier_one(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "pretrain", CONFIG):
        pass  # killed before it trained
    refused(tmp_path)
    assert (tmp_path / "config.json").exists()


def test_a_lock_that_was_removed_after_it_was_opened_is_none(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    lock = fcntl.lockf

    def removed_meanwhile(file: object, how: int) -> None:
        (tmp_path / ".lock").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "lockf", removed_meanwhile)
    with pytest.raises(UserError, match="give the same command again"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass


@pytest.mark.parametrize("name", ["thesis.tex", "config.json", ".git"])
def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: pathlib.Path, name: str):
    (tmp_path / name).write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"not of a run.*name (a new|another)"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass
    assert (tmp_path / name).read_text() == '{"model_type": "bert"}'


def test_the_workdir_of_another_verb_is_refused(tmp_path: pathlib.Path):
    with open_workdir(tmp_path, "finetune", CONFIG):
        (tmp_path / "metrics.jsonl").touch()
    with (
        pytest.raises(UserError, match="holds a run of `finetune`, not of `pretrain`"),
        open_workdir(tmp_path, "pretrain", CONFIG),
    ):
        pass


def test_a_damaged_configuration_is_an_error(tmp_path: pathlib.Path):
    (tmp_path / "config.json").write_text('{"written_by": "bert')
    with pytest.raises(UserError, match=r"config\.json cannot be read"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass


@pytest.mark.parametrize(("name", "text"), [("thesis.txt", "years of work"), ("config.json", '{"model_type": "bert"}')])
def test_nothing_is_left_in_a_directory_that_is_refused(tmp_path: pathlib.Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="name "), open_workdir(tmp_path, "pretrain", CONFIG):
        pass
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_what_a_start_killed_early_left_is_no_obstacle(tmp_path: pathlib.Path):
    for name in (".lock", ".writable-17", ".config.json.17"):
        (tmp_path / name).write_text("")
    with open_workdir(tmp_path, "pretrain", CONFIG):
        assert stored_config(tmp_path)["seed"] == CONFIG["seed"]


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), open_workdir(tmp_path / "file" / "run", "pretrain", CONFIG):
        pass
    with pytest.raises(UserError, match="a file is in the way"), open_workdir(tmp_path / "file", "pretrain", CONFIG):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_an_error(tmp_path: pathlib.Path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"), open_workdir(tmp_path, "pretrain", CONFIG):
        pass


def test_a_second_process_is_refused_and_a_killed_one_leaves_the_workdir_free(tmp_path: pathlib.Path):
    first = hold(tmp_path)
    try:
        with (
            pytest.raises(UserError, match=f"in use by process {first.pid} on "),
            open_workdir(tmp_path, "pretrain", {"seed": 0}),
        ):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    with open_workdir(tmp_path, "pretrain", {"seed": 0}):
        pass


def test_differences_name_dotted_keys_and_treat_tuples_as_lists():
    assert list(flatten({"a": {"b": 1, "c": []}, "d": ({"e": 2},)})) == [("a.b", 1), ("a.c", []), ("d.0.e", 2)]
    assert differences({"a": (1, 2), "b": 1}, {"a": [1, 2], "c": 2}) == {"b": (1, "(absent)"), "c": ("(absent)", 2)}
    assert differences({"a": ()}, {"a": []}) == {}
