"""The options of `analyse dependencies`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS, Replicates
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag, nonempty
from bert_jax.interface.ranges import MAX_COUNT, CountOrZero, InRange, check_ranges


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """The options of the command `dependencies`."""

    reach: Annotated[int, Interval(ge=1, le=128)] = flag(10, "the largest fixed offset of the baseline", "WORDS")
    """The largest fixed offset of the baseline, in words."""
    replicates: Replicates = flag(1000, "replicates of the bootstrap", "N")
    """The number of bootstrap replicates over sentences."""
    control: str = ""
    """One of CONTROLS, or "" for none."""
    seed: CountOrZero = flag(0, "the seed of the bootstrap and of controls", "N")
    """The seed of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "dependencies")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"dependencies.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    own = parser.group("dependencies")
    own.add_argument("--input", type=nonempty, required=True, metavar="FILE", help="a treebank in CoNLL-U; also .gz, .zst")
    of_choose = "a treebank on which heads and offsets are chosen (default: every other sentence of --input)"
    own.add_argument("--choose", type=nonempty, metavar="FILE", help=of_choose)
    of_control = "measure a control as well; may be repeated. " + "; ".join(f"{name}: {what}" for name, what in CONTROLS.items())
    own.add_argument("--control", choices=tuple(CONTROLS), action="append", default=[], help=of_control)
    add_option_flags(own, Dependencies, "reach")
    of_least = "print and draw relations with at least N dependents"
    least = InRange(int, Interval(ge=0, le=MAX_COUNT))
    own.add_argument("--least", type=least, default=100, metavar="N", help=of_least)
    add_option_flags(own, Dependencies, "replicates", "seed")
