"""The flags of `doctor`. This module imports nothing slow, so that help and flag errors appear immediately."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from annotated_types import Interval

from bert_jax.configs.command_line import suggested_key
from bert_jax.configs.experiment_files import split_overrides
from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.runtime.flags import add_process_flags

Overrides = Sequence[tuple[str, str]]


def check_flags(command: str, description: str | None) -> None:
    """If help is requested, prints it and exits. Raises UserError for invalid flags, as `parse_flags` does."""
    parse_flags(description)


def flag_parser(description: str | None) -> FlagParser:
    """Returns the parser of the command's flags, without the overrides `--config.key=value`."""
    parser = FlagParser(prog="python -m bert_jax.doctor", description=description)
    parser.hint_for_unknown = suggested_key
    parser.may_be_in_bucket = ("--workdir",)
    checks = parser.group("checks")
    of_config = "an experiment: compile its steps, and report whether they fit and how long one takes"
    checks.add_argument("--config", type=nonempty, metavar="FILE[:ARG]", help=of_config)
    checks.add_argument("--config.KEY", dest="_", metavar="VALUE", help="set one key of the experiment")
    of_workdir = "a directory, or gs://BUCKET/PATH: try all operations of a run there"
    checks.add_argument("--workdir", type=nonempty, metavar="DIR", help=of_workdir)
    chips = InRange(int, Interval(ge=1, le=MAX_COUNT))
    checks.add_argument("--chips", type=chips, metavar="N", help="the number of chips that all hosts together should have")
    checks.add_argument("--no-estimate", action="store_true", help="do not let aot estimate the time of a step (on TPUs)")
    output = parser.group("output")
    output.add_argument("--json", type=nonempty, metavar="FILE", help="write all numbers to FILE")
    add_process_flags(parser)
    return parser


def parse_flags(description: str | None, argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, Overrides]:
    """Returns (the flags, the overrides of the experiment). Raises UserError for invalid flags."""
    overrides, rest = split_overrides(sys.argv[1:] if argv is None else argv)
    return flag_parser(description).parse_args(rest), overrides
