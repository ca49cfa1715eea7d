"""A file with coreference -> its texts; the first line tells the format."""

from __future__ import annotations

import os

from bert_jax.analysis.coreference.conll2012 import Conll2012File
from bert_jax.analysis.coreference.corefud import CorefudFile
from bert_jax.analysis.coreference.mentions import TextFile
from bert_jax.analysis.coreference.pronouns import GapFile
from bert_jax.errors import UserError
from bert_jax.prediction.streams import Field, read_records
from bert_jax.tasks.readers.tables import Say, note


def open_texts(path: str | os.PathLike[str], report: Say = lambda problem: note(f"error: {problem}")) -> TextFile:
    """The reader of a file of CoNLL-U with `Entity=`, of CoNLL-2012 ("#begin document") or of GAP ("ID", TAB, "Text", ...).

    Raises UserError for standard input and where the file cannot be read.
    """
    if os.fspath(path) == "-":
        raise UserError("--input=- is standard input, and the format is told by a file's first line; give a file")
    for record in read_records((), os.fspath(path), (Field("columns", many=True, words=True),)):
        columns = record.values.get("columns", ())
        if columns[:1] == ["#begin"]:
            return Conll2012File(path, report)
        if columns[:2] == ["ID", "Text"]:
            return GapFile(path, report)
        break
    return CorefudFile(path, report)
