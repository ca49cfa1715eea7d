"""The flags of `analyse vocabulary`."""

from __future__ import annotations

from annotated_types import Interval

from bert_jax.interface.flags import FlagParser, format_flag, nonempty
from bert_jax.interface.ranges import InRange


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    own = parser.group("vocabulary")
    of_corpus = "a corpus built by the command `corpus`, to count the pieces in"
    own.add_argument("--corpus", type=nonempty, metavar="DIR", help=of_corpus)
    many = InRange(int, Interval(ge=1, le=100_000))
    of_words = "list the N most frequent words of the corpus that the vocabulary splits"
    own.add_argument("--new-words", type=many, metavar="N", help=of_words)
    own.add_argument("--names", type=nonempty, metavar="FILE", help="names to look for among the pieces, one per line")
