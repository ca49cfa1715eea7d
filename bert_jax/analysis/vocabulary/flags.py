"""The flags of `analyse vocabulary`."""

from __future__ import annotations

import argparse

from annotated_types import Interval

from bert_jax.analysis.flags import format_flag
from bert_jax.interface.flags import nonempty
from bert_jax.interface.ranges import InRange


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    format_flag(parser)
    parser.add_argument("--corpus", type=nonempty, metavar="DIR", help="a corpus of the verb `corpus`, to count pieces in")
    many = InRange(int, Interval(ge=1, le=100_000))
    parser.add_argument("--new-words", type=many, metavar="N", help="the N most frequent words that it splits")
    parser.add_argument("--names", type=nonempty, metavar="FILE", help="names, one a line, to look for among the pieces")
