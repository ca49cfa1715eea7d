"""The copies that a run keeps of the user's files named in its configuration, and files that have changed since."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import shutil

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.named import read_files_again
from bert_jax.interface.python_files import find_module
from bert_jax.runtime.workdir import from_start, open_workdir, own_files, recorded_files_named, run_config

MAY_CHANGE = ("log.*",)


def start(workdir: pathlib.Path, file: pathlib.Path, **how: bool) -> None:
    """Starts a run whose optimizer and log sink are in `file`, with a line of metrics."""
    read_files_again()
    config = {"seed": 0, "optimizer": {"name": f"{file}:mine"}, "log": {"sinks": ["tensorboard", f"{file.parent}/sink.py:Sink"]}}
    with open_workdir(workdir, "pretrain", config, MAY_CHANGE, **how):
        (workdir / "metrics.jsonl").write_text("{}\n")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "sink.py").write_text("class Sink: pass\n")
    file = tmp_path / "mine.py"
    file.write_text("def mine(config, parameters): ...\n")
    start(tmp_path / "run", file)
    return file


def test_config_json_stores_path_hash_and_source_of_user_files(file: pathlib.Path):
    workdir = file.parent / "run"
    kept = json.loads((workdir / "config.json").read_text())["files"]
    text = file.read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert kept["optimizer.name"] == {"path": str(file), "sha256": digest, "source": text}
    assert kept.keys() == {"optimizer.name", "log.sinks.1"}
    assert run_config(workdir, "pretrain").keys() == {"seed", "optimizer", "log"}


def test_a_changed_file_is_refused_with_the_flag_that_accepts_it(file: pathlib.Path):
    workdir, before = file.parent / "run", (file.parent / "run" / "config.json").read_text()
    start(workdir, file)
    file.write_text("def mine(config, parameters): return 1\n")
    with pytest.raises(UserError) as error:
        start(workdir, file)
    says = str(error.value)
    assert says.startswith(f"--workdir={workdir} is a run with a different {file}: the file that config.optimizer.name names has")
    assert says.endswith("or resume with the new file: --changed-files")
    assert (workdir / "config.json").read_text() == before
    start(workdir, file, changed_files=True)
    assert "return 1" in (workdir / "config.json").read_text()
    start(workdir, file)


def test_a_changed_file_that_the_file_imports_is_refused_and_named(file: pathlib.Path):
    (other := file.parent / "other.py").write_text("X = 1\n")
    file.write_text(f"from other import X\n{file.read_text()}")
    start(file.parent / "run2", file)
    start(file.parent / "run2", file)
    assert json.loads((file.parent / "run2" / "config.json").read_text())["files"]["optimizer.name"]["imports"] == {
        str(other): "X = 1\n"
    }
    other.write_text("X = 2\n")
    with pytest.raises(UserError, match=rf"{other}, which the file that config\.optimizer\.name names imports, has changed \("):
        start(file.parent / "run2", file)


def test_files_of_changeable_keys_may_change(file: pathlib.Path):
    (file.parent / "sink.py").write_text(text := "class Sink: changed = True\n")
    start(file.parent / "run", file)
    assert json.loads((file.parent / "run" / "config.json").read_text())["files"]["log.sinks.1"]["source"] == text


def test_moved_files_may_be_named_at_their_new_place(file: pathlib.Path):
    workdir, moved = file.parent / "run", file.parent / "moved" / "mine.py"
    moved.parent.mkdir()
    for name in ("mine.py", "sink.py"):
        shutil.move(file.parent / name, moved.parent / name)
    start(workdir, moved)
    assert own_files(workdir)["optimizer.name"]["path"] == str(moved)
    assert json.loads((workdir / "config.json").read_text())["optimizer"]["name"] == f"{moved}:mine"
    assert own_files(file.parent) == {}


def test_a_run_is_read_with_the_absolute_paths_of_its_files(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    workdir, other = file.parent / "run", file.parent / "other"
    monkeypatch.chdir(file.parent)
    start(other, pathlib.Path("mine.py"))
    monkeypatch.chdir("/")
    assert run_config(other, "pretrain")["optimizer"] == {"name": f"{file}:mine"}
    assert run_config(other, "pretrain")["log"] == {"sinks": ["tensorboard", f"{file.parent}/sink.py:Sink"]}
    (file.parent / "sink.py").write_text("class Sink: changed = True\n")
    read_files_again()
    assert run_config(workdir, "pretrain")["seed"] == 0, "a sink does not affect the model"
    text = file.read_text()
    file.write_text("def mine(config, parameters): return 1\n")
    read_files_again()
    with pytest.raises(UserError, match=rf"^--from={workdir} is a run with a different {file}: .*; restore that file$"):
        run_config(workdir, "pretrain", "--from")
    file.unlink()
    assert run_config(workdir, "pretrain")["seed"] == 0, "the file is reported when it is loaded"
    file.write_text(text)


def test_a_missing_file_is_named_with_the_place_that_the_run_recorded(file: pathlib.Path, tmp_path: pathlib.Path):
    workdir = file.parent / "run"

    def refusal(directory: pathlib.Path, key: str = "config.optimizer.name") -> str:
        with pytest.raises(UserError) as error, recorded_files_named(directory):
            find_module("gone.py", key, "give one")
        return str(error.value)

    says = re.escape(f"the run in --workdir={workdir} uses {file}")
    here = re.escape(f"; give --config.optimizer.name={file}:mine, or run the command in {pathlib.Path.cwd()}")
    assert re.fullmatch(rf"config\.optimizer\.name=gone\.py .*is not a file; {says}{here}", refusal(workdir))
    for other in (refusal(workdir, "config.objective"), refusal(tmp_path / "none")):
        assert other.endswith("is not a file; give one")
    file.unlink()
    gone = f'; the run in --workdir={workdir} uses {file}, which is gone too; restore it from "files" in {workdir}/config.json'
    assert refusal(workdir).endswith(gone)


def test_a_relative_path_starts_where_the_run_was_started_if_it_is_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "corpus").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        with open_workdir(tmp_path / "run", "pretrain", {"seed": 0}):
            pass
    paths = ("corpus", "bert-base", "", "gs://bucket/corpus")
    assert [from_start(tmp_path / "run", path) for path in paths] == [f"{tmp_path}/corpus", *paths[1:]]
