"""The options of `analyse probe`, and its flags."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import CONTROLS, format_flag
from bert_jax.interface.flags import add_option_flags, flag, nonempty
from bert_jax.interface.ranges import InRange, OneOf, Seed, check_ranges

CONTROL = "random-weights"
PROBES = ("labels", "structure", "parsers")


@dataclasses.dataclass(frozen=True)
class Probing:
    """The options of the verb `probe`."""

    probes: tuple[Annotated[str, OneOf(PROBES)], ...] = flag((), "labels, structure, parsers (all that the files have)", "P,P")
    """The probes to train; all that the files have annotation for if empty."""
    words: Annotated[int, Interval(ge=1, le=10_000_000)] = flag(50_000, "of each file at most (50000)", "N")
    """Words of each of the two files at most: whole sentences, evenly spread. Their vectors are held in float16."""
    rank: Annotated[int, Interval(ge=1, le=4_096)] = flag(64, "of structural probes (64)")
    """The rank of structural probes."""
    epochs: Annotated[int, Interval(ge=1, le=10_000)] = flag(10, "of structural probes and of mixes (10)")
    """Of structural probes and of the mixes of linear ones, which themselves are trained to convergence."""
    passes: Annotated[int, Interval(ge=1, le=10_000)] = flag(2, "of parsers (2)")
    """Of parsers over the training sentences, which the model reads anew in each."""
    seeds: Annotated[int, Interval(ge=1, le=100)] = flag(3, "probes are trained N times (3)", "N")
    """The number of times that linear and structural probes are trained, each with another seed."""
    seed: Seed = flag(0, "the first seed, and the control's seed (0)")
    """The first seed."""

    def __post_init__(self) -> None:
        check_ranges(self, "probe")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    format_flag(parser)
    add = parser.add_argument
    add("--input", type=nonempty, required=True, metavar="FILE", help="to train on: .conllu or a CoNLL file; also .gz, .zst")
    add("--eval", type=nonempty, required=True, metavar="FILE", help="to score on, of the same format")
    column = InRange(int, Interval(ge=-100, le=100))
    add("--column", type=column, default=-1, help="of the tags of a CoNLL file, from 0, or from the last (-1)")
    add_option_flags(parser, Probing)
    control_help = f"probe a control too, with files in DIR/{CONTROL}: {CONTROLS[CONTROL]}"
    add("--control", choices=(CONTROL,), default="", help=control_help)
