"""The flags and the output that all benchmarks share: a table for people, printed last, and --json=FILE."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def flag_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser that shows the module's docstring unchanged, with the flag that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=_file_to_write, metavar="FILE", help="write all figures to FILE, one JSON object")
    return parser


def _file_to_write(text: str) -> pathlib.Path:
    """Checks that the file can be written before anything is measured."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a path for a file; name a file in an existing directory")
    return path


def give(
    columns: Sequence[str], rows: Sequence[Sequence[str]], figures: Mapping[str, Any], file: pathlib.Path | None = None
) -> None:
    """Prints the table, the last output of a benchmark, and writes `figures` to `file` if it is given."""
    print(table(columns, rows), flush=True)
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table that can be pasted into experiments/results/; numbers are right-aligned."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    number = re.compile(r"([-+]?\d[\d,]*(\.\d+)?(e[-+]\d+)?( ?%)?( \([\d.]+\))?)?")
    numbers = [all(number.fullmatch(row[i]) for row in rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        placed = (
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(cells, widths, numbers, strict=True)
        )
        return f"| {' | '.join(placed)} |"

    rule = [("-" * (width - 1) + ":") if right else "-" * width for width, right in zip(widths, numbers, strict=True)]
    return "\n".join([line(columns), line(rule), *map(line, rows)])
