"""The options of `analyse heads`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import text_flags
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag
from bert_jax.interface.ranges import CountOrZero, check_ranges


@dataclasses.dataclass(frozen=True)
class Heads:
    """The options of the command `heads`."""

    in_words: bool = flag(True, "measure between pieces instead of words", name="--pieces")
    """Whether attention is measured between words instead of pieces."""
    reach: Annotated[int, Interval(ge=1, le=128)] = flag(16, "the largest distance in the distance profile", "WORDS")
    """The largest distance in the distance profile, in words. A batch needs memory for twice this many numbers per pair of
    words. For rows of 512 tokens, this is at most 540 MB on a CPU."""
    divergence_words: CountOrZero = flag(10_000, "words over which divergences between heads are averaged", "N")
    """Number of words over which the divergences between heads are averaged. The cost grows with the square of the number of
    heads."""
    sampled: Annotated[int, Interval(ge=1, le=512)] = 16
    """Number of evenly spaced words per row over which the divergences are averaged."""

    def __post_init__(self) -> None:
        check_ranges(self, "heads")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    text_flags(parser)
    add_option_flags(parser.group("heads"), Heads)
