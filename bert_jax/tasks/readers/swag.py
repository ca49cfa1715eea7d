"""Multiple-choice examples in the formats of SWAG and CODAH."""

from __future__ import annotations

import os
import pathlib

from bert_jax.tasks.examples import ChoiceExample
from bert_jax.tasks.readers.tables import check_filled, not_empty, parse_integer, read_table


def read_swag(path: str | os.PathLike[str]) -> list[ChoiceExample]:
    """Returns the examples of a SWAG file (CSV). The prompt is `sent1`. A choice is `sent2`, the start of the next sentence,
    followed by one of the endings. If the file has no column `label`, or if every label is -1, labels are None. Raises
    UserError for an invalid file."""
    table = read_table(pathlib.Path(path), ",", quotes=True)
    endings = [f"ending{i}" for i in range(4)]
    table.require("sent1", "sent2", *endings)
    rows = list(table)
    has_label = "label" in table.columns and any(row["label"] != "-1" for _, row in rows)
    examples = []
    for n, (place, row) in enumerate(rows):
        check_filled(place, row, "sent1", *endings)
        choices = tuple(f"{row['sent2']} {row[ending]}".strip() for ending in endings)
        label = parse_integer(place, "label", row["label"], below=len(endings)) if has_label else None
        examples.append(ChoiceExample(str(n), row["sent1"], choices, label))
    return not_empty(table.path, examples)


def read_codah(path: str | os.PathLike[str]) -> list[ChoiceExample]:
    """Returns the examples of a CODAH file. It is TSV without a header, and has the columns category, prompt, four endings and
    label. Raises UserError for an invalid file."""
    columns = ("category", "prompt", "0", "1", "2", "3", "label")
    table = read_table(pathlib.Path(path), columns=columns)
    examples = []
    for n, (place, row) in enumerate(table):
        check_filled(place, row, "prompt", *"0123")
        label = parse_integer(place, "label", row["label"], below=4)
        examples.append(ChoiceExample(str(n), row["prompt"], tuple(row[i] for i in "0123"), label))
    return examples
