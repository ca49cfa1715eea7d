"""The options of `analyse dependencies`, and its flags."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS, Replicates, format_flag
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import add_option_flags, flag, nonempty
from bert_jax.interface.ranges import MAX_COUNT, CountOrZero, InRange, check_ranges


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """The options of the verb `dependencies`."""

    reach: Annotated[int, Interval(ge=1, le=128)] = flag(10, "of offsets (10)", "WORDS")
    """The farthest fixed offset of the baseline, in words."""
    replicates: Replicates = flag(1000, "of the bootstrap (1000)", "N")
    """Replicates of the bootstrap over sentences."""
    control: str = ""
    """One of CONTROLS; none if it is empty."""
    seed: CountOrZero = flag(0, "of bootstrap and controls (0)", "N")
    """Of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "dependencies")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"dependencies.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    format_flag(parser)
    parser.add_argument("--input", type=nonempty, required=True, metavar="FILE", help="a treebank in CoNLL-U; also .gz, .zst")
    choose_help = "a treebank to choose heads and offsets on (every other sentence of --input, from the first on)"
    parser.add_argument("--choose", type=nonempty, metavar="FILE", help=choose_help)
    control_help = "measure a control too; may be repeated. " + "; ".join(f"{name}: {what}" for name, what in CONTROLS.items())
    parser.add_argument("--control", choices=tuple(CONTROLS), action="append", default=[], help=control_help)
    add_option_flags(parser, Dependencies, "reach")
    least_help = "dependents that a relation needs to be printed and drawn (100)"
    least = InRange(int, Interval(ge=0, le=MAX_COUNT))
    parser.add_argument("--least", type=least, default=100, metavar="N", help=least_help)
    add_option_flags(parser, Dependencies, "replicates", "seed")
