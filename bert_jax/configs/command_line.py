"""Parses the command line of `pretrain`, `finetune` and `study`: the experiment file, the workdir, the processes of a run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from annotated_types import Interval

from bert_jax.configs.experiment_files import UNSET, read_experiment, split_overrides, suggested_flag
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.flags import FlagParser, format_flag, nonempty_path, steps_to_profile
from bert_jax.interface.named import load_built_in
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.runtime.flags import TIME, StartFlags, add_process_flags
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import checked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(StartFlags):
    """A parsed command line."""

    config: JsonObject
    """The values of the experiment file as plain dicts, with the overrides applied. Empty if a step is replayed."""
    given: frozenset[str]
    """The dotted keys set on the command line."""
    experiment: str
    """FILE[:ARG] of --config. Empty if a step is replayed."""
    verify: bool
    """Whether the checksums of the whole corpus are verified before training."""
    replay: int | None
    """The step to recompute instead of training."""
    overrides: tuple[tuple[str, str], ...]
    """(key, text) of every key that is set on the command line."""


SCHEMAS = {
    "pretrain": "bert_jax.configs.pretraining:PretrainingExperiment",
    "finetune": "bert_jax.configs.finetuning:FinetuningExperiment",
    "study": "bert_jax.configs.study:StudyExperiment",
}
EXAMPLES = {"pretrain": "phases.0.learning_rate=1e-4", "finetune": "training.learning_rate=5e-5", "study": "budget.tokens=20e6"}
"""The key of an experiment that the help of --config.KEY shows."""


def check_flags(command: str, description: str | None) -> None:
    """Parses the command line only to check it. Prints the help and exits if requested. Raises UserError for a wrong command
    line, as `parse_flags` does."""
    parse_flags(command, description, schema=SCHEMAS[command])


def parse_flags(
    command: str, description: str | None, argv: Sequence[str] | None = None, schema: type | str | None = None
) -> Flags:
    """Parses `--config=FILE[:ARG] --workdir=DIR [--config.key=value ...]` and the flags of a multi-process start.

    `command` is the name of the command, and `description` is the text of its --help. `schema` is the dataclass of the
    experiment, or its location "MODULE:NAME". It defines the known keys and their types. If `schema` is None, the keys of the
    file are used. Raises UserError for a missing flag or an unknown key, with a suggestion.
    """
    parser = flag_parser(command, description, schema)
    overrides, rest = split_overrides(sys.argv[1:] if argv is None else argv)
    values = parser.parse_args(rest)
    replayed = getattr(values, "replay", None)
    if replayed is not None and values.config:
        raise UserError(f"--replay={replayed} uses the experiment of the workdir; leave --config={values.config} out")
    for flag, example in (("config", "experiments/pretrain/quickstart.py"), ("workdir", "runs/mine")):
        if not getattr(values, flag) and (flag == "workdir" or replayed is None):
            raise UserError(f"--{flag} is missing, for example --{flag}={example}; see {parser.prog} --help")
    workdir = as_path(checked(values.workdir, "--workdir"))
    from bert_jax.runtime.workdir import recorded_files_named  # imported here, since --help does not need it

    with recorded_files_named(workdir):
        config = read_experiment(values.config, overrides, _found(schema)) if replayed is None else {}
    return Flags(
        workdir=workdir,
        coordinator=values.coordinator,
        processes=values.processes,
        process=values.process,
        start_timeout=values.start_timeout,
        hang_seconds=values.hang_seconds,
        profile=getattr(values, "profile", None),
        compiled=getattr(values, "compiled", None),
        changed_files=values.changed_files,
        figure_formats=values.format,
        config=config,
        given=frozenset(key for key, text in overrides if text != UNSET),
        experiment=values.config or "",
        verify=getattr(values, "verify", False),
        replay=replayed,
        overrides=tuple(overrides),
    )


def _found(schema: type | str | None) -> type | None:
    if not isinstance(schema, str):
        return schema
    found: type = load_built_in(schema)
    return found


def suggested_key(argument: str) -> str:
    """Returns the end of an error message if an unknown flag resembles a key of pretraining or fine-tuning, otherwise ""."""
    return next(filter(None, (suggested_flag(argument, _found(SCHEMAS[command])) for command in ("pretrain", "finetune"))), "")


def flag_parser(command: str, description: str | None, schema: type | str | None = None) -> FlagParser:
    """Returns the parser of the flags of `pretrain`, `finetune` or `study`, without the overrides `--config.key=value`."""
    prog = f"python -m bert_jax.{command}"
    usage = f"{prog} --config=FILE[:ARG] --workdir=DIR [--config.KEY=VALUE ...] [--FLAG=VALUE ...]"
    parser = FlagParser(prog=prog, usage=usage, description=description)
    parser.hint_for_unknown = lambda argument: suggested_flag(argument, _found(schema))
    parser.may_be_in_bucket = ("--workdir",)
    run = parser.group("the run")
    run.add_argument("--config", metavar="FILE[:ARG]", help="the experiment file; ARG is the argument of its get_config")
    of_workdir = "the directory of this run, or gs://BUCKET/PATH; an existing run is resumed"
    run.add_argument("--workdir", metavar="DIR", help=of_workdir)
    example = EXAMPLES.get(command, EXAMPLES["pretrain"])
    one = f"set a key of the experiment, e.g. --config.{example}"
    whole = "; --config.steps=N scales the whole run (phases, warmups, evaluations, checkpoints and log lines)"
    run.add_argument("--config.KEY", dest="_", metavar="VALUE", help=one + whole if command == "pretrain" else one)
    start = parser.group("this start of the run")
    hang = "seconds without a finished step after which the run is considered hung"
    start.add_argument("--hang-seconds", type=TIME, metavar="SECONDS", default=600.0, help=hang)
    changed = "resume even if a FILE.py used by the run has changed"
    start.add_argument("--changed-files", action="store_true", help=changed)
    format_flag(start)
    if command == "pretrain":
        compiled = "use the compiled steps that `aot --save=DIR` has saved"
        start.add_argument("--compiled", type=nonempty_path, metavar="DIR", help=compiled)
        verify = "verify the checksums of the whole corpus first, even if this machine has verified it before"
        start.add_argument("--verify", action="store_true", help=verify)
    if command != "study":
        steps = parser.group("inspecting single steps")
        profile = "profile these steps, into DIR/profile"
        steps.add_argument("--profile", type=steps_to_profile, metavar="FIRST:LAST", help=profile)
    if command == "pretrain":
        step = InRange(int, Interval(ge=1, le=MAX_COUNT))
        replay = "recompute this step of DIR, and print its texts, losses and gradient norms"
        steps.add_argument("--replay", type=step, metavar="STEP", help=replay)
    add_process_flags(parser)
    return parser
