"""Ambiguous pronouns in the format of GAP."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError
from bert_jax.interface.words import counted, cut
from bert_jax.storage.records import Location
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.readers.tables import CORRECT_ROW, Table, not_empty, parse_integer, read_table

GENDERS = {
    **dict.fromkeys(("he", "him", "his", "himself"), "masculine"),
    **dict.fromkeys(("she", "her", "hers", "herself"), "feminine"),
}


def read_gap(path: str | os.PathLike[str], leave_out: Callable[[str], object] | None = None) -> list[PronounExample]:
    """Returns the examples of a GAP file (TSV). Offsets count characters. Labels are None if the coref columns are missing.

    Raises UserError if the file is invalid, if two rows have the same ID, or if the text at an offset differs from the mention.
    If `leave_out` is given, rows that cannot be read are skipped, and `leave_out` is called with each problem."""

    def skipped(location: Location, cells: list[str]) -> None:
        if leave_out is not None:
            problem = f"the row has {counted(len(cells), 'column')}, but the first line has more or fewer"
            leave_out(str(location.error(f"{problem}; {CORRECT_ROW}")))

    table = read_table(pathlib.Path(path), skipped=None if leave_out is None else skipped)
    table.require("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
    has_label = "A-coref" in table.columns or "B-coref" in table.columns
    if has_label:
        table.require("A-coref", "B-coref")
    return not_empty(table.path, list(_pronouns(table, has_label, leave_out)))


def _pronouns(table: Table, has_label: bool, leave_out: Callable[[str], object] | None) -> Iterator[PronounExample]:
    lines: dict[str, int] = {}
    for location, row in table:
        try:
            if row["ID"] in lines:
                first = f"the ID {cut(row['ID'])!r} is also in line {lines[row['ID']]}"
                raise location.error(f"{first}, but predictions are named by ID; give each row its own ID")
            example = _pronoun(location, row, has_label)
            lines[example.id] = location.line
            yield example
        except UserError as error:
            if leave_out is None:
                raise
            leave_out(str(error))


def _pronoun(location: Location, row: dict[str, str], has_label: bool) -> PronounExample:
    starts = {}
    for name in ("Pronoun", "A", "B"):
        start = starts[name] = parse_integer(location, f"{name}-offset", row[f"{name}-offset"])
        found = row["Text"][start : start + len(row[name])]
        if not row[name].strip() or found != row[name]:
            raise location.error(
                f"{name} is {row[name]!r}, but the text at {name}-offset={start} is {found!r}; count the characters of Text "
                "from 0"
            )
    return PronounExample(
        id=row["ID"],
        text=row["Text"],
        pronoun=row["Pronoun"],
        pronoun_start=starts["Pronoun"],
        a=row["A"],
        a_start=starts["A"],
        b=row["B"],
        b_start=starts["B"],
        label=_pronoun_label(location, row) if has_label else None,
        gender=GENDERS.get(row["Pronoun"].lower()),
    )


def _pronoun_label(location: Location, row: dict[str, str]) -> str:
    corefers = {}
    for name in ("A", "B"):
        value = row[f"{name}-coref"].upper()
        if value not in ("TRUE", "FALSE"):
            raise location.error(f"{name}-coref is {row[f'{name}-coref']!r}, not TRUE or FALSE; {CORRECT_ROW}")
        corefers[name] = value == "TRUE"
    if all(corefers.values()):
        raise location.error("A-coref and B-coref are both TRUE, but A and B are different people; set one to FALSE")
    return next((name for name, does in corefers.items() if does), "neither")
