"""Makes a Jupyter notebook, such as `experiments/tutorial.ipynb`, from a Python file with cells:

    python tests/notebook.py experiments/tutorial.py

The cells run one after another in one process, in an empty directory, and their output and figures are kept. A notebook is a JSON
document, and output here is text and PNG, so this needs neither Jupyter nor jupytext.

A cell begins with `# %%`, a cell of text with `# %% [markdown]`. The text before the first cell describes the file and is left
out.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

os.environ["MPLBACKEND"] = "agg"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

DPI = 80


def read_cells(text: str) -> list[tuple[str, str]]:
    """Returns ("code" or "markdown", source) for each cell of a Python file."""
    cells = []
    for part in ("\n" + text).split("\n# %%")[1:]:
        heading, _, body = part.partition("\n")
        kind = "markdown" if heading.strip() == "[markdown]" else "code"
        lines = body.strip("\n").split("\n")
        if kind == "markdown":
            assert all(line == "#" or line.startswith("# ") for line in lines), f"a line of text without '# ': {lines}"
            lines = [line[2:] for line in lines]
        cells.append((kind, "\n".join(lines)))
    return cells


def read_notebook(text: str) -> list[tuple[str, str]]:
    """Returns ("code" or "markdown", source) for each cell of a notebook."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]


class _Output(io.TextIOBase):
    """A standard stream that appends to the outputs of the cell that runs."""

    def __init__(self, name: str, outputs: list[dict[str, Any]]):
        self._name, self._outputs = name, outputs

    def write(self, text: str) -> int:
        """Appends `text` to the last output if that belongs to the same stream, otherwise as a new output."""
        if not self._outputs or self._outputs[-1].get("name") != self._name:
            self._outputs.append({"output_type": "stream", "name": self._name, "text": ""})
        self._outputs[-1]["text"] += text
        return len(text)


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell with the variables `names` and returns its outputs: its printed text and, as in Jupyter, the figure that is the
    value of the last line and the figures that pyplot has drawn."""
    outputs: list[dict[str, Any]] = []
    tree = ast.parse(source)
    last = tree.body[-1] if isinstance(tree.body[-1], ast.Expr) else None
    tree.body = tree.body[: len(tree.body) - bool(last)]
    with contextlib.redirect_stdout(_Output("stdout", outputs)), contextlib.redirect_stderr(_Output("stderr", outputs)):
        exec(compile(tree, "<cell>", "exec", dont_inherit=True), names)
        value = last and eval(compile(ast.Expression(last.value), "<cell>", "eval", dont_inherit=True), names)
    for figure in [value, *map(plt.figure, plt.get_fignums())]:
        if isinstance(figure, Figure):
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=DPI, bbox_inches="tight")
            data = {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": str(figure)}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def with_text(notebook: dict[str, Any], cells: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns the notebook with the text of `cells`, whose code has to be the same, and with its old output."""
    ran = iter(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    made = []
    for i, (kind, source) in enumerate(cells):
        lines = source.splitlines(keepends=True)
        cell = next(ran, {}) if kind == "code" else {"cell_type": kind, "metadata": {}, "source": lines}
        if cell.get("source") != lines:
            sys.exit(f"the code of cell {i} has changed: run the cells, without --text-only")
        made.append(cell | {"id": f"cell-{i}"})
    return notebook | {"cells": made}


def run_cells(cells: list[tuple[str, str]]) -> dict[str, Any]:
    """Runs the cells of code in order. Returns the notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made, number = [], 0
    for i, (kind, source) in enumerate(cells):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            number += 1
            outputs = run_cell(source, names)
            for output in outputs:
                if "text" in output:
                    output["text"] = output["text"].splitlines(keepends=True)
            cell |= {"execution_count": number, "outputs": outputs}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="the Python file; the notebook is written next to it, as NAME.ipynb")
    parser.add_argument("--text-only", action="store_true", help="run no cells: only the text has changed")
    flags = parser.parse_args()
    file, notebook = flags.file.resolve(), flags.file.resolve().with_suffix(".ipynb")
    cells = read_cells(file.read_text())
    if flags.text_only:
        made = with_text(json.loads(notebook.read_text()), cells)
    else:
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            made = run_cells(cells)
    notebook.write_text(json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
