"""How a verb that trains begins: flags, the experiment file, logging, the compilation cache, the other processes, the workdir.

def main() -> None:
    flags = launch.parse_flags("pretrain", __doc__, schema=Experiment)
    experiment = Experiment.from_dict(flags.config)
    with launch.begin("pretrain", flags, experiment.to_dict(), may_change=("log_every",)) as run:
        ...  # run.workdir, run.is_first, run.preemption, run.watchdog
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import platform
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
from annotated_types import Interval

from bert_jax.configs.overrides import UNSET, flag_for, override, split_overrides
from bert_jax.corpus.files import cache_directory
from bert_jax.corpus.integrity import CorruptedCorpus
from bert_jax.errors import REFUSED, UserError
from bert_jax.finetuning.shares import Share
from bert_jax.interface import python_files as experiment_files
from bert_jax.interface.flags import FlagParser
from bert_jax.interface.ranges import InRange
from bert_jax.runtime import processes
from bert_jax.runtime.interruptions import HUNG, Preemption, Watchdog
from bert_jax.runtime.workdir import open_workdir
from bert_jax.sharding.out_of_memory import Demand, OutOfMemory, fits_in_memory

PROCESSES = Interval(ge=1, le=2**16)
TIME = InRange(float, Interval(gt=0, le=1e9))


@dataclasses.dataclass(frozen=True)
class Flags:
    """A command line; `config` is what the experiment file returned, as plain dicts, with the overrides applied."""

    config: dict[str, Any]
    given: frozenset[str]
    """The dotted keys that the command line itself sets."""
    workdir: pathlib.Path
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    start_timeout: float = 300.0
    hang_seconds: float = 600.0
    compiled: pathlib.Path | None = None
    """Where `aot --save` has put compiled steps."""
    verify: bool = False
    """Whether the whole corpus is read before training."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What `begin` has made ready for the loop."""

    workdir: pathlib.Path
    is_first: bool  # the one that writes files: process 0, or each one of those that compute apart
    preemption: Preemption
    watchdog: Watchdog
    compiled: pathlib.Path | None = None
    """Where compiled steps may be found."""
    share: Share = dataclasses.field(default_factory=lambda: Share(pathlib.Path()))
    """This process's part of what processes that compute apart do together."""


def parse_flags(
    verb: str, description: str | None, argv: Sequence[str] | None = None, schema: type | None = None
) -> Flags:
    """Reads `--config=FILE[:ARG] --workdir=DIR [--config.key=value ...]` and the flags of a multi-process start.

    `schema`, the dataclass of the experiment, says which keys there are and what type each has; without it the keys are those of
    the file. Raises UserError for an unknown key, naming the one that was meant.
    """
    parser = flag_parser(verb, description, schema)
    overrides, rest = split_overrides(sys.argv[1:] if argv is None else argv)
    values = parser.parse_args(rest)
    for flag, example in (("config", "experiments/pretrain/quickstart.py"), ("workdir", "runs/mine")):
        if not getattr(values, flag):
            raise UserError(f"--{flag} is missing, for example --{flag}={example}; see {parser.prog} --help")
    if "://" in values.workdir:
        raise UserError(f"--workdir={values.workdir} is a URL; mount the bucket (gcsfuse) and give the path of the mount")
    return Flags(
        read_config(values.config, overrides, schema),
        frozenset(key for key, text in overrides if text != UNSET),
        pathlib.Path(values.workdir),
        values.coordinator,
        values.processes,
        values.process,
        values.start_timeout,
        values.hang_seconds,
        getattr(values, "compiled", None),
        getattr(values, "verify", False),
    )


def flag_parser(verb: str, description: str | None, schema: type | None = None) -> FlagParser:
    """The flags of a verb that trains, but for those that set a key of its configuration."""
    parser = FlagParser(prog=f"python -m bert_jax.{verb}", description=description)
    parser.elsewhere = lambda argument: flag_for(argument, schema)
    parser.add_argument("--config", metavar="FILE[:ARG]", help="experiment file; ARG goes to its get_config")
    parser.add_argument("--workdir", metavar="DIR", help="directory of this run; the same one again continues it")
    parser.add_argument("--config.KEY", dest="_", metavar="VALUE", help="sets one key: --config.phases.0.learning_rate=1e-4")
    several = parser.add_argument_group("several processes (found by itself on a Cloud TPU slice)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    several.add_argument("--processes", type=InRange(int, PROCESSES), metavar="N", help="how many there are")
    several.add_argument("--process", type=InRange(int, Interval(ge=0, lt=2**16)), metavar="I", help="which one this is, from 0")
    several.add_argument("--start-timeout", type=TIME, metavar="SECONDS", default=300.0, help="how long to wait for all (300)")
    parser.add_argument("--hang-seconds", type=TIME, metavar="SECONDS", default=600.0, help="no step so long is a hang (600)")
    if verb == "pretrain":
        parser.add_argument("--compiled", type=pathlib.Path, metavar="DIR", help="compiled steps that `aot --save=DIR` made")
        parser.add_argument("--verify", action="store_true", help="read the whole corpus first, though this machine has before")
    return parser


Schema = type | Callable[[Mapping[str, Any]], type] | None


def read_config(given: str, overrides: Sequence[tuple[str, str]], schema: Schema, flag: str = "config") -> dict[str, Any]:
    """The configuration of an experiment file that `--config` (or another `flag`) names as FILE[:ARG], with overrides ("a", "1"),
    as plain dicts; `schema` as of `parse_flags`, or a function that gives it for what the file returned."""
    config = experiment_files.load(given, f"--{flag}")
    known = schema if schema is None or isinstance(schema, type) else schema(config)
    for key, text in overrides:
        override(config, known, key, text, flag)
    return config


@contextlib.contextmanager
def begin(
    verb: str,
    flags: Flags,
    config: Mapping[str, Any],
    may_change: Sequence[str] = (),
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    apart: bool = False,
) -> Iterator[Run]:
    """Everything between the command line and the loop, in the order in which it can fail; undone in reverse when the loop ends.

    `config` is the resolved configuration as plain nested values; `may_change` names the keys a continued run may give new
    values, `completed` fills in what an older configuration lacks (see `workdir.open_workdir`). Several processes compute as one,
    or `apart`: each with its own devices, and a share of the work.
    """
    quiet_libraries()
    keep_compiled_programs()
    found = processes.find_hosts(flags.coordinator, flags.processes, flags.process)
    index, count = (found.index, found.count) if found else (0, 1)
    with contextlib.ExitStack() as stack:

        def open_first() -> None:
            stack.enter_context(open_workdir(flags.workdir, verb, config, may_change, completed))

        start = ""
        if found and apart:
            start_logging(index)
            start = _meet_apart(found, flags, config, open_first)
        else:
            processes.connect(found, config, timeout=flags.start_timeout)
            start_logging(index)
            processes.on_first_process(open_first)
            processes.require_shared(flags.workdir)
        preemption = stack.enter_context(Preemption())
        watchdog = stack.enter_context(Watchdog(flags.workdir, floor=flags.hang_seconds))
        part = (index, count) if apart else (0, 1)
        share = Share(flags.workdir, *part, start=start, stop=preemption.request, patience=flags.hang_seconds)
        stack.enter_context(share)
        try:
            with fits_in_memory(lambda: Demand("this run")):  # what the steps of the run have not explained themselves
                yield Run(flags.workdir, jax.process_index() == 0, preemption, watchdog, flags.compiled, share)
        except (jax.errors.JaxRuntimeError, CorruptedCorpus) as error:
            if jax.process_count() > 1:
                _leave_the_others(error)
            raise


def _meet_apart(found: processes.Hosts, flags: Flags, config: Mapping[str, Any], open_first: Callable[[], None]) -> str:
    """The roll call of processes that will compute apart, in which the first one opens the workdir; returns the start's name."""

    def begin() -> str:
        open_first()
        word = os.urandom(8).hex()
        processes.mark(flags.workdir, word)
        return word

    word = processes.roll_call(found, processes.identity(config), flags.start_timeout, begin=begin)
    if not processes.sees(flags.workdir, word):
        raise processes.not_shared(flags.workdir, str(found.index))
    processes.stay_apart()
    return word


def _leave_the_others(error: Exception) -> NoReturn:
    """Ends this process of several at once after a failed collective, most often the death of a peer.

    An orderly exit would wait minutes for the dead one in JAX's shutdown barrier while the rest wait for this one.
    """
    if isinstance(error, OutOfMemory | CorruptedCorpus):
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        os._exit(REFUSED)  # no supervisor is to start it again as it is
    sys.stderr.write(
        f"process {jax.process_index()} of {jax.process_count()} cannot go on without the others: {str(error).splitlines()[0]}\n"
        "look for the process that ended first and why; the same command on all of them continues from the last checkpoint\n"
    )
    sys.stderr.flush()
    os._exit(HUNG)  # for a supervisor it is one case: start all of them again


def start_logging(index: int) -> None:
    """Our own messages on stderr, from process 0; warnings and worse from all."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if index == 0 else f"[process {index}] %(message)s"))
    ours = logging.getLogger("bert_jax")
    ours.handlers = [handler]
    ours.setLevel(logging.INFO if index == 0 else logging.WARNING)
    ours.propagate = False


def quiet_libraries() -> None:
    """Libraries speak up for errors only: their running commentary buries the loss."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log, read when the first backend starts
    for name in ("jax", "orbax", "etils", "tensorflow_datasets", "grain", "matplotlib"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("absl", "asyncio"):  # where Orbax's failed saves, which we report, leave a traceback for each file not written
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)
    warnings.filterwarnings("ignore", module=r"(orbax|tensorflow_datasets|etils)\b")


@dataclasses.dataclass(frozen=True)
class _WithoutClosedLoops:
    """`sys.unraisablehook` without one kind: at the first write of a save that fails, Orbax closes the event loop to which
    TensorStore's threads report all others. Each of them would print a traceback; the failed save itself is reported once."""

    otherwise: Callable[[Any], object]

    def __call__(self, unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            self.otherwise(unraisable)


def keep_compiled_programs() -> None:
    """XLA programs are kept on disk, so that a second start skips most of the compilation.

    Where: JAX_COMPILATION_CACHE_DIR, empty for nowhere; by default bert_jax/ in the user's cache directory, a directory for each
    kind of CPU, since XLA's CPU programs use the instructions of the one they were compiled on and home directories are shared.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # jax has read it itself
        return
    try:
        features = next(
            line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):  # not Linux
        features = platform.processor()
    kind = f"xla-{platform.machine()}-{zlib.crc32(features.encode()):08x}"
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / kind))
