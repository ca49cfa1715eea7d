"""The options of `analyse compare`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS, text_flags
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag, nonempty
from bert_jax.interface.ranges import CountOrZero, check_ranges


@dataclasses.dataclass(frozen=True)
class Comparing:
    """The options of the command `compare`."""

    masked: Annotated[float, Interval(gt=0.0, le=1.0)] = flag(0.15, "the share of the words that are masked", "SHARE")
    """The fraction of words to mask, among the words that are one piece in both models."""
    seed: CountOrZero = flag(0, "the seed of the masks and of random weights", "N")
    """The seed of the masked words and of the random weights of the control."""
    divergence_words: CountOrZero = flag(10_000, "the number of words on which heads are compared", "N")
    """Number of words over which the divergences between heads are averaged. The cost grows with the number of pairs of
    heads."""
    sampled: Annotated[int, Interval(ge=1, le=512)] = 16
    """Number of evenly spaced words per row over which the divergences are averaged."""
    differences: CountOrZero = 20
    """The number of masked words to keep. The words with the largest difference between the models are kept."""

    def __post_init__(self) -> None:
        check_ranges(self, "compare")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    text_flags(parser)
    own = parser.group("the model to compare with (one of --with and --control is required)")
    other = own.add_mutually_exclusive_group(required=True)
    other.add_argument("--with", dest="other", type=nonempty, metavar="MODEL", help="the second model")
    other.add_argument("--control", choices=("random-weights",), help=f"instead of --with: {CONTROLS['random-weights']}")
    add_option_flags(own, Comparing)
