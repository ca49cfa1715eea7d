"""The options of `analyse neighbours`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag, nonempty
from bert_jax.interface.ranges import CountOrZero, InRange, check_ranges

SENSES = Interval(ge=1, le=10)
USUAL_SENSES = 2


@dataclasses.dataclass(frozen=True)
class Neighbouring:
    """The options of the command `neighbours` that concern words in context."""

    layers: tuple[CountOrZero, ...] = flag(
        (), "a layer to compare; 0 is the embeddings; may be repeated (default: all)", "N", "--layer"
    )
    """The layers to compare: 0 is the embeddings, N the last layer. () compares all of them."""
    count: Annotated[int, Interval(ge=1, le=1_000)] = flag(10, "the number of nearest words to keep", "N")
    """The number of nearest words to keep for each word in context and layer."""
    occurrences: Annotated[int, Interval(ge=2, le=5_000)] = flag(200, "the maximum number of occurrences of a word to draw", "N")
    """The maximum number of occurrences of each word to keep. If there are more, a random sample is kept."""

    def __post_init__(self) -> None:
        check_ranges(self, "neighbours")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    texts, own = parser.group("texts"), parser.group("neighbours")
    texts.add_argument("words", nargs="+", metavar="WORD", help="a word, or a sentence with one in brackets: 'a [bank] of sand'")
    of_input = "the texts to search for neighbours: one per line, or JSON lines (.jsonl); also .gz, .zst"
    texts.add_argument("--input", type=nonempty, metavar="FILE", help=of_input)
    texts.add_argument("--jsonl", action="store_true", help="the lines of the input are JSON objects")
    add_option_flags(own, Neighbouring, "layers", "count")
    senses = "the number of clusters per word"
    own.add_argument("--senses", type=InRange(int, SENSES), default=USUAL_SENSES, metavar="N", help=senses)
    add_option_flags(own, Neighbouring, "occurrences")
