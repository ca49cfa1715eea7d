"""The flags of `aot`. This module imports nothing slow, so that help and flag errors appear immediately."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from annotated_types import Interval

from bert_jax.configs.command_line import suggested_key
from bert_jax.configs.experiment_files import split_overrides
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import FlagParser, nonempty, nonempty_path
from bert_jax.interface.ranges import COUNT, MAX_COUNT, InRange

STEPS = ("train", "eval", "finetune")
SLICES, ROWS, PHASE = (InRange(int, interval) for interval in (Interval(ge=1, le=2**16), COUNT, Interval(ge=0, le=MAX_COUNT)))
PRICE = InRange(float, Interval(ge=0, le=1e9))


def check_flags(command: str, description: str | None) -> None:
    """If help is requested, prints it and exits. Raises UserError for invalid flags, as `parse_flags` does."""
    parse_flags(description)


def parse_flags(
    description: str | None, argv: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns (options, overrides of --config, overrides of every --against). Raises UserError for invalid flags."""
    parser = flag_parser(description)
    overrides, rest = split_overrides(sys.argv[1:] if argv is None else argv)
    others, rest = split_overrides(rest, "against")
    options = parser.parse_args(rest)
    for flag, example in (("config", "experiments/pretrain/bert_base.py"), ("topology", "v5e:4x4")):
        if not getattr(options, flag):
            raise UserError(f"--{flag} is missing, for example --{flag}={example}; see {parser.prog} --help")
    if options.step and options.step not in STEPS:
        raise UserError(f"--step={options.step} is unknown: {nearest(options.step, STEPS)}")
    if others and not options.against:
        raise UserError(f"--against.{others[0][0]} sets a key of --against, which is not given; add --against=FILE")
    return options, overrides, others


def flag_parser(description: str | None) -> FlagParser:
    """Returns the parser of the command's flags, without the overrides `--config.key=value`."""
    parser = FlagParser(
        prog="python -m bert_jax.aot",
        usage="python -m bert_jax.aot --config=FILE[:ARG] --topology=[Nx]NAME [--config.KEY=VALUE ...] [--FLAG=VALUE ...]",
        description=description,
    )
    parser.hint_for_unknown = suggested_key
    step = parser.group("the step")
    step.add_argument("--config", metavar="FILE[:ARG]", help="the experiment file; ARG is the argument of its get_config")
    step.add_argument("--config.KEY", dest="_", metavar="VALUE", help="set one key of the experiment")
    of_step = "the step to estimate (default: train, or finetune for a fine-tuning file)"
    step.add_argument("--step", type=nonempty, metavar="|".join(STEPS), help=of_step)
    step.add_argument(
        "--phase", type=PHASE, metavar="N", help="estimate only this phase, counted from 0 (default: all phases and their sum)"
    )
    of_model = "the model to fine-tune: a size or a directory (default: init_from, else base)"
    step.add_argument("--model", type=nonempty, help=of_model)
    step.add_argument("--rows", type=ROWS, metavar="N", help="estimate N held-out rows, or fine-tuning on N examples")
    chips = parser.group("the slice")
    chips.add_argument("--topology", metavar="[Nx]NAME", help="v5e:4x4, v5p:4x4x4; 4xv5e:16x16 is four slices")
    chips.add_argument("--slices", type=SLICES, metavar="N", help="the number of slices, instead of the prefix Nx (default: 1)")
    chips.add_argument("--price", type=PRICE, metavar="P", help="the price of a chip-hour, in any currency")
    others = parser.group("comparison")
    of_against = "another experiment, reported next to the first one; may be repeated"
    others.add_argument("--against", type=nonempty, action="append", default=[], metavar="FILE[:ARG]", help=of_against)
    others.add_argument("--against.KEY", dest="_", metavar="VALUE", help="set one key of every --against")
    output = parser.group("output")
    output.add_argument("--save", type=nonempty_path, metavar="DIR", help="save the compiled steps for `pretrain --compiled=DIR`")
    output.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    remedies = "if a step does not fit, do not search for settings that fit"
    output.add_argument("--no-remedies", action="store_true", help=remedies)
    return parser
