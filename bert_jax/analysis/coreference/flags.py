"""The options of `analyse coreference`, and its flags."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS as OF_WORDS
from bert_jax.analysis.flags import Replicates, format_flag
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import add_option_flags, flag, nonempty
from bert_jax.interface.ranges import Seed, check_ranges

CONTROLS = {
    "random-weights": OF_WORDS["random-weights"],
    "shuffled-words": "the words of each window in a random order, which the model reads; candidates and answers stay",
}
"""Control -> its description."""


@dataclasses.dataclass(frozen=True)
class Coreference:
    """The options of the verb `coreference`."""

    tokens: Annotated[int, Interval(ge=8, le=2**20)] = flag(2**20, "read together (the position table)", "TOKENS", "--window")
    """Most tokens of a window; the position table is the limit."""
    singletons: bool = flag(True, "candidates are of entities mentioned twice or more, as in CoNLL-2012", name="--coreferent")
    """Whether mentions of entities that are mentioned once are candidates; CoNLL-2012 does not annotate them."""
    control: str = ""
    """One of CONTROLS; none if it is empty."""
    replicates: Replicates = flag(1000, "of the bootstrap (1000)", "N")
    """Replicates of the bootstrap over documents."""
    seed: Seed = flag(0, "of both (0)", "N")
    """Of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "coreference")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"coreference.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    format_flag(parser)
    formats = "CoNLL-U with Entity=, CoNLL-2012 or GAP; also .gz, .zst"
    parser.add_argument("--input", type=nonempty, required=True, metavar="FILE", help=formats)
    choose_help = "a file to choose heads on (every other document of --input, from the first on)"
    parser.add_argument("--choose", type=nonempty, metavar="FILE", help=choose_help)
    described = "; ".join(f"{name}: {what}" for name, what in CONTROLS.items())
    control_help = f"measure a control as well; may be repeated. {described}"
    parser.add_argument("--control", choices=tuple(CONTROLS), action="append", default=[], help=control_help)
    add_option_flags(parser, Coreference)
