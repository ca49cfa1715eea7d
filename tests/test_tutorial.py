"""The tutorial runs, and its notebook is the same."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.notebook import read_cells, read_notebook, run_cell, with_text

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
TUTORIAL = REPOSITORY / "experiments" / "tutorial.py"
NOTEBOOK = TUTORIAL.with_suffix(".ipynb")


def test_the_notebook_has_the_cells_of_the_file_in_their_order():
    """If this fails, make the notebook again: python tests/notebook.py experiments/tutorial.py"""
    assert read_notebook(NOTEBOOK.read_text()) == read_cells(TUTORIAL.read_text())


def test_the_notebook_is_small_and_shows_output_and_figures():
    assert NOTEBOOK.stat().st_size < 1_000_000
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    silent = [cell for cell in cells if cell["cell_type"] == "code" and not cell["outputs"]]
    assert len(silent) <= 1  # the constants
    images = [o["data"]["image/png"] for cell in cells for o in cell.get("outputs", ()) if o["output_type"] == "display_data"]
    assert len(images) >= 2
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def test_a_cell_keeps_what_it_prints_and_the_figure_of_its_last_line():
    names: dict[str, object] = {}
    source = (
        "import sys\nfrom matplotlib.figure import Figure\nprint(1)\nprint(2, file=sys.stderr)\nprint(3)\nFigure(figsize=(1, 1))"
    )
    printed = run_cell(source, names)
    assert [output.get("text") for output in printed[:3]] == ["1\n", "2\n", "3\n"]
    assert list(printed[3]["data"]) == ["image/png", "text/plain"]
    assert run_cell("x = 1", names) == []
    assert names["x"] == 1


def test_cells_of_text_change_without_a_run_and_cells_of_code_do_not():
    made = {"cells": [{"cell_type": "code", "source": ["1"], "outputs": ["kept"]}, {"cell_type": "markdown", "source": ["a"]}]}
    changed = with_text(made, [("markdown", "b"), ("code", "1")])
    assert [(cell["cell_type"], cell.get("outputs")) for cell in changed["cells"]] == [("markdown", None), ("code", ["kept"])]
    with pytest.raises(SystemExit):
        with_text(made, [("code", "2")])


def test_the_tutorial_runs_from_top_to_bottom(tmp_path: pathlib.Path):
    """As a script, with a few steps of training."""
    text, replaced = re.subn(
        r"^(STEPS|LEFT_TO_RIGHT_STEPS|EPOCHS) = \d[\d_]*", r"\1 = 5", TUTORIAL.read_text(), flags=re.MULTILINE
    )
    assert replaced == 3
    (tmp_path / "tutorial.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(REPOSITORY), "MPLBACKEND": "agg", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "tutorial.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1_200, check=False
    )
    assert done.returncode == 0, done.stderr
    differences = [float(number) for number in re.findall(r"largest difference .*: (\S+)$", done.stdout, re.MULTILINE)]
    assert len(differences) == 3
    assert max(differences) < 1e-5
    shares = re.search(r"\[MASK\] ([\d.]+)%   random ([\d.]+)%   kept ([\d.]+)%", done.stdout)
    assert shares
    assert [round(float(share) / 10) for share in shares.groups()] == [8, 1, 1]
    assert {path.name for path in (tmp_path / "runs" / "tutorial").iterdir()} == {
        "corpus", "pretrain", "pretraining.png", "train.csv", "dev.csv", "classifier", "head.png", "left_to_right",
    }  # fmt: skip
