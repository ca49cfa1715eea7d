"""The options of `analyse neighbours`, and its flags."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import format_flag
from bert_jax.interface.flags import add_option_flags, flag, nonempty
from bert_jax.interface.ranges import CountOrZero, InRange, check_ranges

SENSES = Interval(ge=1, le=10)


@dataclasses.dataclass(frozen=True)
class Neighbouring:
    """The options of the verb `neighbours` for words in context."""

    layers: tuple[CountOrZero, ...] = flag((), "0: embeddings; repeatable (all)", "N", "--layer")
    """0 is the embeddings, N the last layer; all of them where none is named."""
    count: Annotated[int, Interval(ge=1, le=1_000)] = flag(10, "nearest ones that are kept (10)", "N")
    """The nearest words that are kept for each word in context and layer."""
    occurrences: Annotated[int, Interval(ge=2, le=5_000)] = flag(200, "most occurrences of a word that are drawn (200)", "N")
    """The occurrences of each word that are kept: of more, a random sample."""

    def __post_init__(self) -> None:
        check_ranges(self, "neighbours")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    format_flag(parser)
    parser.add_argument("words", nargs="+", metavar="WORD", help="a word, or a sentence with one in brackets: 'a [bank] of sand'")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="the text to look in: a line each, or .jsonl (.gz, .zst)")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")
    add_option_flags(parser, Neighbouring, "layers", "count")
    parser.add_argument("--senses", type=InRange(int, SENSES), default=2, metavar="N", help="clusters of occurrences (2)")
    add_option_flags(parser, Neighbouring, "occurrences")
