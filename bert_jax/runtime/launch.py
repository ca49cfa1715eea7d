"""Starts a run of `pretrain` or `finetune` with its logging, compilation cache, processes, workdir and watchdog.

    def main() -> None:
        flags = parse_flags("pretrain", __doc__, schema=PretrainingExperiment)
        experiment = PretrainingExperiment.from_dict(flags.config)
        with start_run("pretrain", flags, experiment.to_dict(), may_change=("log_every",)) as run:
            ...  # run.workdir, run.is_first, run.preemption, run.watchdog
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax

from bert_jax.files import JsonObject
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.runtime.environment import enable_compilation_cache, quiet_libraries, start_logging
from bert_jax.runtime.flags import StartFlags
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.runtime.hosts import find_hosts, isolate_tpu_chips
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.processes import RunShard, meet, require_shared_directory
from bert_jax.runtime.profile import PROFILE, Profile
from bert_jax.runtime.workdir import CONFIG, LOCK, fetch_workdir, locked, open_workdir
from bert_jax.sharding.device_errors import MemoryAdvice, fits_in_memory
from bert_jax.storage.fetching import measured_by, seconds_spent
from bert_jax.storage.objects import require_bucket
from bert_jax.storage.paths import AnyPath, is_remote

if TYPE_CHECKING:  # loaded only by runs in buckets
    from bert_jax.storage.mirror import Mirror


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a started run that the training loop uses."""

    workdir: pathlib.Path
    """The local directory of the run. `durable` returns the permanent location."""
    is_first: bool
    """Whether this process writes the files of the run. This is True in process 0, and in every process if processes are
    independent."""
    preemption: Preemption
    watchdog: Watchdog
    compiled: pathlib.Path | None = None
    """The directory with compiled steps of `aot --save`, if any."""
    shard: RunShard = dataclasses.field(default_factory=RunShard)
    """The runs of a sweep that this process trains, if processes are independent."""
    goodput: GoodputRecorder = dataclasses.field(default_factory=GoodputRecorder)
    """The time of this start and of earlier starts, by category."""
    profile: Profile = dataclasses.field(default_factory=Profile)
    mirror: Mirror | None = None
    """The upload of the workdir, if the workdir is in a bucket."""
    require_in_place: Callable[[], None] = lambda: None
    """Raises UserError if the workdir was moved or removed. Call it before writing to the workdir."""
    rejected_kernels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Kernel -> why it was rejected, for each kernel that disagrees with the plain path on these devices. See
    `Execution.without_kernels`."""
    figure_formats: Sequence[str] = ("png",)
    """The formats in which curves and figures are drawn."""
    gather: Callable[[bool], list[bool]] = lambda value: [value]
    """Returns the values of all processes that train this run together, see `Processes.gather`."""

    def durable(self, path: pathlib.Path) -> AnyPath:
        """Returns the permanent location of a file or directory of the workdir, which is `path` itself or, if the workdir is in
        a bucket, a path in the bucket. Checkpoints are written to this location directly."""
        return self.mirror.durable(path) if self.mirror else path

    def compiling(self, goodput: GoodputRecorder) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager for a compilation. The time of the block counts as compiling in `goodput`, and the watchdog
        uses its longer limit."""
        self.watchdog.compiling()
        return goodput.during(TimeCategory.COMPILING)


@contextlib.contextmanager
def start_run(
    command: str,
    flags: StartFlags,
    config: JsonObject,
    may_change: Sequence[str] = (),
    completed: Callable[[JsonObject], JsonObject] = dict,
    independent: bool = False,
) -> Iterator[Run]:
    """Starts a run. This sets up logging and the compilation cache, connects the processes, opens the workdir, and starts the
    watchdog.

    This is a context manager. On exit, it stops the watchdog and unlocks the workdir. `config` is the resolved configuration as
    nested plain values. `may_change` and `completed` are explained in `workdir.open_workdir`. Several processes form one
    `jax.distributed` run unless they are `independent`. An independent process trains its share of the runs of a sweep on its
    own devices."""
    goodput = GoodputRecorder()
    goodput.preceded_by(TimeCategory.DOWNLOADING, seconds_spent())
    quiet_libraries()
    enable_compilation_cache()
    hosts = find_hosts(flags.coordinator, flags.processes, flags.process)
    index = hosts.index if hosts else 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(measured_by(functools.partial(goodput.during, TimeCategory.DOWNLOADING)))
        mirror = None
        if is_remote(flags.workdir):
            from bert_jax.storage.mirror import Mirror

            mirror = Mirror(str(flags.workdir), f"-{index}" if index else "", mark=CONFIG)
        workdir = mirror.directory if mirror else pathlib.Path(flags.workdir)

        in_place: list[Callable[[], None]] = []

        def open_first() -> None:
            if mirror:
                require_bucket(flags.workdir)
                stack.enter_context(locked(flags.workdir, LOCK))
                stack.enter_context(mirror)
                fetch_workdir(mirror)
            opened = open_workdir(workdir, command, config, may_change, completed, flags.changed_files, mirror)
            in_place.append(stack.enter_context(opened))
            if mirror:
                mirror.push()  # from now on, the checkpoints in the bucket belong to this configuration

        processes = stack.enter_context(meet(hosts, config, timeout=flags.start_timeout, patience=flags.hang_seconds))
        together = hosts is not None and not independent
        if together:
            processes.join_jax(flags.start_timeout)
        start_logging(index)
        processes.first(open_first)
        require_shared_directory(processes, flags.workdir)
        if hosts and independent:
            isolate_tpu_chips()
        if mirror:
            if index:
                stack.enter_context(mirror)
            if index and independent:
                mirror.fetch()
            mirror.start()
        preemption = stack.enter_context(Preemption(processes.stop_together if together else None))
        watchdog = stack.enter_context(processes.watched_by(Watchdog(workdir, floor=flags.hang_seconds)))
        shard = RunShard() if together else stack.enter_context(processes.shard_runs(flags.workdir, preemption.request))
        profile = stack.enter_context(Profile(flags.profile, workdir / PROFILE))
        try:
            # This reports a lack of memory outside of training steps. During a step, the code of the step reports it.
            with file_errors_explained(), fits_in_memory(lambda: MemoryAdvice("this run")):
                rejected: dict[str, str] = {}
                if jax.local_devices()[0].platform != "cpu":
                    from bert_jax.model.kernels.self_test import compare_kernels_once  # not needed on a CPU

                    rejected = compare_kernels_once(config.get("model"), processes.gather)
                is_first = jax.process_index() == 0
                require = in_place[0] if in_place else lambda: None
                yield Run(
                    workdir, is_first, preemption, watchdog, flags.compiled, shard, goodput, profile, mirror, require, rejected,
                    flags.figure_formats, processes.gather,
                )  # fmt: skip
        except Exception as error:
            processes.end_after(error)
            raise
