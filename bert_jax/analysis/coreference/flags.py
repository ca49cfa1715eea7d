"""The options of `analyse coreference`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS as OF_WORDS
from bert_jax.analysis.flags import Replicates
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag, nonempty
from bert_jax.interface.ranges import Seed, check_ranges

CONTROLS = {
    "random-weights": OF_WORDS["random-weights"],
    "shuffled-words": "the model reads the words of each window in a random order; candidates and answers stay the same",
}
"""Maps the name of each control to its description."""


@dataclasses.dataclass(frozen=True)
class Coreference:
    """The options of the command `coreference`."""

    tokens: Annotated[int, Interval(ge=8, le=2**20)] = flag(
        2**20, "tokens per window (default: the size of the position table)", "TOKENS", "--window"
    )
    """Maximum number of tokens in a window. Windows are never longer than the position table."""
    singletons: bool = flag(True, "leave out mentions of entities that are mentioned only once", name="--coreferent")
    """Whether mentions of entities that are mentioned only once are candidates. CoNLL-2012 does not annotate such entities."""
    control: str = ""
    """One of CONTROLS, or "" for none."""
    replicates: Replicates = flag(1000, "replicates of the bootstrap", "N")
    """The number of bootstrap replicates over documents."""
    seed: Seed = flag(0, "the seed of the bootstrap and of the control", "N")
    """The seed of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "coreference")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"coreference.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    own = parser.group("coreference")
    formats = "CoNLL-U with Entity=, CoNLL-2012 or GAP; also .gz, .zst"
    own.add_argument("--input", type=nonempty, required=True, metavar="FILE", help=formats)
    of_choose = "a file on which heads are chosen (default: every other document of --input, starting with the first)"
    own.add_argument("--choose", type=nonempty, metavar="FILE", help=of_choose)
    described = "; ".join(f"{name}: {what}" for name, what in CONTROLS.items())
    of_control = f"measure a control as well; may be repeated. {described}"
    own.add_argument("--control", choices=tuple(CONTROLS), action="append", default=[], help=of_control)
    add_option_flags(own, Coreference)
