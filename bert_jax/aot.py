"""Compiles a step for a TPU slice without a TPU, and estimates its memory, time and price.

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_large.py --topology=v5e:8x8 --price=1.2
    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_large.py --topology=4xv5e:16x16 --phase=1 --config.mesh.fsdp=16
    tpu_scripts/run.sh aot --config=experiments/finetune/squad.py:v1.1 --model=large --topology=v5e:2x2 --rows=87599

The step is the same function that `pretrain` (or `finetune`) runs. Times are estimates: the sum of the compiler's cycle estimates
times the trip counts of loops, the cycles in the schedules of Pallas kernels, and a model of the network (`bert_jax/tpu/costs/`
explains the method; the report lists what it leaves out). `run.sh` installs the TPU compiler, which runs on any CPU, into an
environment of its own; elsewhere it is the extra `tpu` of requirements.txt.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.aot", flags="parse_flags")

import argparse
import json
import sys
from collections.abc import Sequence

from annotated_types import Interval

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.overrides import split_overrides, suggested_flag
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.command import require_stdout
from bert_jax.interface.flags import FlagParser, nonempty, nonempty_path
from bert_jax.interface.ranges import COUNT, MAX_COUNT, InRange
from bert_jax.runtime.environment import quiet_libraries
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.examination import examine
from bert_jax.tpu.costs.report import comparisons, refusal, text, totals, totals_text
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.programs import cases

STEPS = ("train", "eval", "finetune")

SLICES, ROWS, PHASE = (InRange(int, interval) for interval in (Interval(ge=1, le=2**16), COUNT, Interval(ge=0, le=MAX_COUNT)))
PRICE = InRange(float, Interval(ge=0, le=1e9))


def parse_flags(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[tuple[str, str]], list[tuple[str, str]]]:
    """(options, overrides of --config, overrides of every --against)."""
    parser = flag_parser()
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


def flag_parser() -> FlagParser:
    """The parser of the command's flags, without the overrides `--config.key=value`."""
    parser = FlagParser(prog="python -m bert_jax.aot", description=__doc__)
    schemas = (PretrainingExperiment, FinetuningExperiment)
    parser.hint_for_unknown = lambda argument: next(filter(None, (suggested_flag(argument, schema) for schema in schemas)), "")
    parser.add_argument("--config", metavar="FILE[:ARG]", help="experiment file")
    parser.add_argument("--config.KEY", dest="_", metavar="VALUE", help="sets one key, as in the other verbs")
    parser.add_argument("--topology", metavar="[Nx]NAME", help="v5e:4x4, v5p:4x4x4; 4xv5e:16x16 is four slices")
    parser.add_argument("--slices", type=SLICES, metavar="N", help="number of slices, as the prefix of --topology")
    of_step = "which step (default: train, or finetune for a fine-tuning file)"
    parser.add_argument("--step", type=nonempty, metavar="|".join(STEPS), help=of_step)
    parser.add_argument("--phase", type=PHASE, metavar="N", help="only this phase, from 0 (default: all, and their sum)")
    of_model = "the model to fine-tune: a size or a directory (default: init_from, else base)"
    parser.add_argument("--model", type=nonempty, help=of_model)
    of_against = "an experiment to compare with"
    parser.add_argument("--against", type=nonempty, action="append", default=[], metavar="FILE[:ARG]", help=of_against)
    parser.add_argument("--against.KEY", dest="_", metavar="VALUE", help="sets one key of --against")
    parser.add_argument("--rows", type=ROWS, metavar="N", help="estimates N held-out rows, or fine-tuning on N examples")
    parser.add_argument("--price", type=PRICE, metavar="P", help="price of a chip-hour, in any currency")
    parser.add_argument("--save", type=nonempty_path, metavar="DIR", help="saves compiled steps for `pretrain --compiled=DIR`")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--no-remedies", action="store_true", help="do not search for settings that would make the step fit")
    return parser


def main() -> int:
    """The verb."""
    options, overrides, others = parse_flags()
    require_stdout("open it, or send it to a file with >FILE")
    quiet_libraries()
    topology = parse_topology(options.topology, options.slices)
    wanted = [cases(options.config, overrides, options)] + [cases(given, others, options, "against") for given in options.against]
    compiler = Compiler(topology)
    found = [[examine(case, compiler, options) for case in one] for one in wanted]
    if options.json:
        print(json.dumps(as_json(found, options)))
    else:
        print("\n\n".join(as_text(found, options)))
    return 0 if all(one["fits"] for group in found for one in group) else 1


def as_json(found: list[list[JsonObject]], options: argparse.Namespace) -> JsonObject:
    """The JSON object of the report on all experiments."""
    experiments = []
    for group in found:
        fitting = [one for one in group if one["fits"]]
        whole = totals(fitting, options.price) if len(fitting) == len(group) else None
        experiments.append({"config": group[0]["config"], "steps": group, "total": whole})
    return {"topology": found[0][0]["topology"], "experiments": experiments}


def as_text(found: list[list[JsonObject]], options: argparse.Namespace) -> list[str]:
    """The paragraphs of the text report on all experiments."""
    paragraphs = []
    for group in found:
        paragraphs += [text(one) if one["fits"] else refusal(one) for one in group]
        fitting = [one for one in group if one["fits"]]
        if len(fitting) == len(group):
            paragraphs.append(totals_text(fitting, options.price))
    if len(found) > 1:
        paragraphs += comparisons(found)
    saved = [one["saved"] for group in found for one in group if one.get("saved")]
    return [*paragraphs, *([f"saved: {', '.join(saved)}"] if saved else [])]
