"""Layouts of plain text: which line breaks end a sentence, a paragraph or a document, and their detection from a sample."""

from __future__ import annotations

import itertools
import re
import statistics

from bert_jax.data.corpus.sentences import split_sentences

#: layout -> description, for `--help`
LAYOUTS = {
    "sentences": "one sentence a line, a blank line between documents (the original BERT's)",
    "paragraphs": "running prose, one paragraph a line, a blank line between documents",
    "book": "running prose, wrapped or not, a blank line between paragraphs; a file is one document, cut about every MiB",
    "lines": "running prose, one document a line",
}
SAMPLE_BYTES = 1 << 18
_ENDS = re.compile(r"""[.!?…:;।؟。！？]["'”’»)\]]*\Z""")
_WRAP_COLUMNS = (45, 120)  # least median and greatest length of wrapped lines


def is_wrapped(lines: list[str]) -> bool:
    """Whether line breaks inside paragraphs come from wrapping: wrapped lines are similar in length and mostly end without
    punctuation.
    """
    inner = [line.strip() for line, following in itertools.pairwise(lines) if line.strip() and following.strip()]
    if len(inner) < 4 or max(map(len, inner)) > _WRAP_COLUMNS[1] or statistics.median(map(len, inner)) < _WRAP_COLUMNS[0]:
        return False
    return sum(bool(_ENDS.search(line)) for line in inner) < len(inner) / 2


def detect_layout(sample: str) -> str:
    """The layout of a file from its first `SAMPLE_BYTES`. Never "lines": the text does not show
    whether a line is a document or a paragraph."""
    lines = sample.split("\n")[:2000]
    if is_wrapped(lines):
        return "book"
    full = [line for line in lines if line.strip()]
    if sum(len(split_sentences(line)) for line in full) <= 1.2 * len(full):
        return "sentences"
    blocks = [block for block in re.split(r"\n[ \t\r]*\n\s*", sample) if block.strip()]
    return "book" if len(full) < 1.5 * len(blocks) and len(blocks) > 1 else "paragraphs"


def unwrap(text: str) -> list[str]:
    """The paragraphs of a wrapped text, each on one line."""
    return [" ".join(block.split()) for block in re.split(r"\n[ \t\r]*\n", text) if block.strip()]
