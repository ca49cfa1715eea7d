"""The tutorial runs, and its notebook has the same cells."""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import jax
import pytest

from bert_jax import corpus
from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.embedded import embedded_dataset_builder
from tests.end_to_end.runs import xla_flags
from tests.notebook import read_cells, read_notebook, run_cell, with_text

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
TUTORIAL = REPOSITORY / "experiments" / "tutorial.py"
NOTEBOOK = TUTORIAL.with_suffix(".ipynb")


def test_the_notebook_has_the_cells_of_the_file_in_order():
    """If this fails, make the notebook again: python tests/notebook.py experiments/tutorial.py"""
    assert read_notebook(NOTEBOOK.read_text()) == read_cells(TUTORIAL.read_text())


def test_the_notebook_is_small_and_shows_output_and_figures():
    assert NOTEBOOK.stat().st_size < 1_000_000
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    silent = [cell for cell in cells if cell["cell_type"] == "code" and not cell["outputs"]]
    assert len(silent) <= 1  # the cell of constants
    images = [o["data"]["image/png"] for cell in cells for o in cell.get("outputs", ()) if o["output_type"] == "display_data"]
    assert len(images) >= 2
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def test_a_cell_keeps_its_output_and_the_figure_of_its_last_line():
    names: dict[str, object] = {}
    source = (
        "import sys\nfrom matplotlib.figure import Figure\nprint(1)\nprint(2, file=sys.stderr)\nprint(3)\nFigure(figsize=(1, 1))"
    )
    printed = run_cell(source, names)
    assert [output.get("text") for output in printed[:3]] == ["1\n", "2\n", "3\n"]
    assert list(printed[3]["data"]) == ["image/png", "text/plain"]
    assert run_cell("x = 1", names) == []
    assert names["x"] == 1


def test_text_cells_change_without_a_run_and_code_cells_do_not():
    made = {"cells": [{"cell_type": "code", "source": ["1"], "outputs": ["kept"]}, {"cell_type": "markdown", "source": ["a"]}]}
    changed = with_text(made, [("markdown", "b"), ("code", "1")])
    assert [(cell["cell_type"], cell.get("outputs")) for cell in changed["cells"]] == [("markdown", None), ("code", ["kept"])]
    with pytest.raises(SystemExit):
        with_text(made, [("code", "2")])


def run_script(text: str, directory: pathlib.Path) -> str:
    """Runs the text of a script in a process of its own. Returns its output."""
    (directory / "tutorial.py").write_text(text)
    environment = os.environ | {"XLA_FLAGS": xla_flags(1), "PYTHONPATH": str(REPOSITORY), "MPLBACKEND": "agg"}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "BERT_JAX_CACHE": str(directory / "cache")}
    command = [sys.executable, "tutorial.py"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=1_200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_claims(printed: str) -> None:
    """Checks that the values computed by hand equal the model's, and that the masks have the shares of the paper."""
    differences = [float(number) for number in re.findall(r"largest difference .*: (\S+)$", printed, re.MULTILINE)]
    assert len(differences) == 3
    assert max(differences) < 1e-5
    shares = re.search(r"\[MASK\] ([\d.]+)%   random ([\d.]+)%   kept ([\d.]+)%", printed)
    assert shares
    assert [round(float(share) / 10) for share in shares.groups()] == [8, 1, 1]


def test_the_tutorial_runs_up_to_the_training_and_its_later_imports_exist(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The embedded corpus has fewer files."""
    before, heading, after = TUTORIAL.read_text().partition("# ## 5. Pretraining")
    assert heading
    imports = [line for line in after.splitlines() if line.startswith(("from ", "import "))]
    files = embedded_dataset_builder._source_files()[::60]
    monkeypatch.setattr(embedded_dataset_builder, "_source_files", lambda: files)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    with contextlib.chdir(tmp_path), jax.numpy_rank_promotion("allow"):
        exec(compile("\n".join([before, *imports]), "<tutorial>", "exec", dont_inherit=True), {"__name__": "__main__"})
    check_claims(capsys.readouterr().out)


def test_the_commands_of_the_tutorial_have_existing_flags_and_keys():
    tree = ast.parse(TUTORIAL.read_text())
    constants = {"WORK": "runs/tutorial", "STEPS": 1_000, "LEFT_TO_RIGHT_STEPS": 400, "EPOCHS": 6}
    read: dict[str, list[object]] = {"corpus": [], "pretrain": [], "finetune": []}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=command), attr="main"), args=[ast.List() as listed]):
                arguments = eval(compile(ast.Expression(listed), "<tutorial>", "eval"), constants)
                if command == "corpus":
                    read[command].append(corpus._parser().parse_args(arguments))
                else:
                    schema: Any = {"pretrain": PretrainingExperiment, "finetune": FinetuningExperiment}[command]
                    read[command].append(schema.from_dict(parse_flags(command, "", arguments, schema).config))
    assert {command: len(found) for command, found in read.items()} == {"corpus": 1, "pretrain": 2, "finetune": 1}


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: pathlib.Path):
    """The tutorial runs with only a few steps of training."""
    constant = re.compile(r"^(STEPS|LEFT_TO_RIGHT_STEPS|EPOCHS) = \d[\d_]*", re.MULTILINE)
    text, replaced = constant.subn(r"\1 = 10", TUTORIAL.read_text())
    assert replaced == 3
    check_claims(run_script(text, tmp_path))
    assert {path.name for path in (tmp_path / "runs" / "tutorial").iterdir()} == {
        "corpus", "pretrain", "pretraining.png", "train.csv", "dev.csv", "classifier", "head.png", "left_to_right",
    }  # fmt: skip
