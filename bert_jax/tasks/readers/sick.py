"""Sentence pairs with entailment and relatedness in the format of SICK."""

from __future__ import annotations

import os
import pathlib

from bert_jax.errors import UserError, nearest
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.readers.tables import CORRECT_ROW, check_filled, not_empty, parse_number, read_table

_SICK_SETS = {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}
SICK_LABELS = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")


def read_sick(path: str | os.PathLike[str], split: str, *, label: str = "entailment") -> list[TextExample]:
    """Returns the rows of a split in SICK's file with 12 columns. The file calls the splits TRAIN, TRIAL (dev) and TEST.

    label: with "entailment", the labels are `SICK_LABELS`; with "relatedness", they are scores from 1 to 5. Raises UserError if
    the file is invalid.
    """
    sets = _SICK_SETS
    columns = {"entailment": "entailment_label", "relatedness": "relatedness_score"}
    for name, value, known in (("split", split, sets), ("label", label, columns)):
        if value not in known:
            raise UserError(f"SICK has no {name} {value!r}; {nearest(value, known)}")
    table = read_table(pathlib.Path(path))
    column = columns[label]
    table.require("pair_ID", "sentence_A", "sentence_B", column, "SemEval_set")
    examples = []
    for location, row in table:
        if row["SemEval_set"] not in sets.values():
            raise location.error(f"SemEval_set is {row['SemEval_set']!r}, not one of {', '.join(sets.values())}; {CORRECT_ROW}")
        if row["SemEval_set"] != sets[split]:
            continue
        check_filled(location, row, "sentence_A", "sentence_B")
        if label == "entailment" and row[column] not in SICK_LABELS:
            raise location.error(f"{column} is {row[column]!r}, not one of {', '.join(SICK_LABELS)}; {CORRECT_ROW}")
        named: str | float = row[column] if label == "entailment" else parse_number(location, column, row[column], 1, 5)
        examples.append(TextExample(row["pair_ID"], row["sentence_A"], row["sentence_B"], named))
    return not_empty(table.path, examples, f" whose SemEval_set is {sets[split]}")


def has_sick(path: str | os.PathLike[str], split: str) -> bool:
    """Returns whether the file has rows of this split. Some copies lack the test set."""
    table = read_table(pathlib.Path(path))
    table.require("SemEval_set")
    return any(row["SemEval_set"] == _SICK_SETS[split] for _, row in table)
