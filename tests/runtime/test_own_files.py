"""The copies that a run keeps of the user's files named in its configuration, and files that have changed since."""

from __future__ import annotations

import hashlib
import json
import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.workdir import open_workdir, run_config

MAY_CHANGE = ("log.*",)


def start(workdir: pathlib.Path, file: pathlib.Path, **how: bool) -> None:
    """Starts a run whose optimizer and log sink are in `file`, with a line of metrics."""
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


def test_files_of_changeable_keys_may_change(file: pathlib.Path):
    (file.parent / "sink.py").write_text(text := "class Sink: changed = True\n")
    start(file.parent / "run", file)
    assert json.loads((file.parent / "run" / "config.json").read_text())["files"]["log.sinks.1"]["source"] == text
