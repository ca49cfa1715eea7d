"""How every benchmark takes its flags and gives its figures: a table for people, which is printed last, and --json=FILE."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def flag_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the module's docstring as it is, with the flag that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=_file_to_write, metavar="FILE", help="write all figures to FILE, one JSON object")
    return parser


def _file_to_write(text: str) -> pathlib.Path:
    """Refuses now what could not be written when the measurements are done."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a place for a file; name one in a directory that is there")
    return path


def give(
    columns: Sequence[str], rows: Sequence[Sequence[str]], figures: Mapping[str, Any], file: pathlib.Path | None = None
) -> None:
    """Prints the table, the last that a benchmark prints, and writes `figures` to `file`, where one is wanted."""
    print(table(columns, rows), flush=True)
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown has it, so that it can be pasted into experiments/results/; numbers are aligned to the right."""
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
