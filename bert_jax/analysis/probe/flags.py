"""The options of `analyse probe`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag, nonempty
from bert_jax.interface.ranges import InRange, OneOf, Seed, check_ranges

CONTROL = "random-weights"
PROBES = ("labels", "structure", "parsers")
_OF_PROBES = "any of labels, structure, parsers (default: all that the files support)"


@dataclasses.dataclass(frozen=True)
class Probing:
    """The options of the command `probe`."""

    probes: tuple[Annotated[str, OneOf(PROBES)], ...] = flag((), _OF_PROBES, "P,P")
    """The probes to train. () trains all probes for which the files have annotation."""
    words: Annotated[int, Interval(ge=1, le=10_000_000)] = flag(50_000, "the maximum number of words per file", "N")
    """The maximum number of words that are read from each of the two files. Whole sentences are chosen, evenly spread over the
    file. Their vectors are held in float16."""
    rank: Annotated[int, Interval(ge=1, le=4_096)] = flag(64, "the rank of structural probes", "N")
    """The rank of structural probes."""
    epochs: Annotated[int, Interval(ge=1, le=10_000)] = flag(10, "epochs of structural probes and of averages of layers", "N")
    """Epochs of structural probes and of the mixes that linear probes read. The linear probes themselves are trained to
    convergence."""
    passes: Annotated[int, Interval(ge=1, le=10_000)] = flag(2, "epochs of parsers", "N")
    """Epochs of parsers over the training sentences. The model reads the sentences again in each epoch."""
    seeds: Annotated[int, Interval(ge=1, le=100)] = flag(3, "the number of seeds that each probe is trained with", "N")
    """The number of times that linear and structural probes are trained, each time with a different seed."""
    seed: Seed = flag(0, "the first seed, and the seed of the control", "N")
    """The first seed."""

    def __post_init__(self) -> None:
        check_ranges(self, "probe")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    own = parser.group("probe")
    of_input = "the file to train on: .conllu, or columns in the CoNLL format; also .gz, .zst"
    own.add_argument("--input", type=nonempty, required=True, metavar="FILE", help=of_input)
    own.add_argument("--eval", type=nonempty, required=True, metavar="FILE", help="the file to score on, in the same format")
    column, of_column = InRange(int, Interval(ge=-100, le=100)), "the column of the tags of a CoNLL file, from 0; -1 is the last"
    own.add_argument("--column", type=column, default=-1, metavar="N", help=of_column)
    add_option_flags(own, Probing)
    of_control = f"probe a control as well, with files in DIR/{CONTROL}: {CONTROLS[CONTROL]}"
    own.add_argument("--control", choices=(CONTROL,), default="", help=of_control)
