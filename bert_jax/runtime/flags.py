"""The flags for the workdir and the processes of a run. `configs/command_line.py` adds the flags of the experiment."""

from __future__ import annotations

import dataclasses
import pathlib

from annotated_types import Interval

from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.ranges import InRange
from bert_jax.storage.paths import AnyPath

PROCESSES = Interval(ge=1, le=2**16)

TIME = InRange(float, Interval(gt=0, le=1e9))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartFlags:
    """The parsed flags for the workdir and the processes of a run."""

    workdir: AnyPath
    coordinator: str | None
    processes: int | None
    process: int | None
    start_timeout: float
    hang_seconds: float
    profile: range | None
    """The steps to profile."""
    compiled: pathlib.Path | None
    """The directory in which `aot --save` has written compiled steps."""
    changed_files: bool = False
    """Whether to resume a run even if a user's file that its configuration names has changed."""
    figure_formats: tuple[str, ...] = ("png",)
    """The formats in which curves and figures are drawn."""


def add_process_flags(parser: FlagParser) -> None:
    """Adds the flags for a run with several processes."""
    several = parser.group("several processes (detected automatically on a Cloud TPU slice)")
    several.add_argument("--coordinator", type=nonempty, metavar="HOST:PORT", help="the address on which process 0 listens")
    several.add_argument("--processes", type=InRange(int, PROCESSES), metavar="N", help="the number of processes")
    number = InRange(int, Interval(ge=0, lt=2**16))
    several.add_argument("--process", type=number, metavar="I", help="the index of this process, from 0")
    waiting = "seconds to wait until all processes have started"
    several.add_argument("--start-timeout", type=TIME, metavar="SECONDS", default=300.0, help=waiting)
