"""Starts a run of `pretrain` or `finetune`: logging, the compilation cache, the other processes, the workdir, the watchdog.

def main() -> None:
    flags = parse_flags("pretrain", __doc__, schema=PretrainingExperiment)
    experiment = PretrainingExperiment.from_dict(flags.config)
    with begin("pretrain", flags, experiment.to_dict(), may_change=("log_every",)) as run:
        ...  # run.workdir, run.is_first, run.preemption, run.watchdog
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import jax

from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.files import JsonObject
from bert_jax.model.kernels.first_contact import compare_kernels_once
from bert_jax.runtime import processes
from bert_jax.runtime.compilation_cache import enable_compilation_cache
from bert_jax.runtime.flags import StartFlags
from bert_jax.runtime.gathering import gather_json
from bert_jax.runtime.goodput import Activity, Ledger
from bert_jax.runtime.heartbeats import Heartbeats
from bert_jax.runtime.independent_processes import ProcessShare
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.log_setup import quiet_libraries, start_logging
from bert_jax.runtime.profile import PROFILE, Profile
from bert_jax.runtime.workdir import LOCK, fetch_workdir, locked, open_workdir
from bert_jax.sharding.device_errors import is_device_error
from bert_jax.sharding.out_of_memory import Demand, fits_in_memory
from bert_jax.storage.fetching import measured_by, seconds_spent
from bert_jax.storage.mirror import Mirror
from bert_jax.storage.objects import require_bucket
from bert_jax.storage.paths import Place, is_remote


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a started run that the training loop uses."""

    workdir: pathlib.Path
    """A local directory; `durable` says where its content stays."""
    is_first: bool
    """Whether this process writes the files of the run: process 0, or every one of independent processes."""
    preemption: Preemption
    watchdog: Watchdog
    compiled: pathlib.Path | None = None
    """The directory with compiled steps of `aot --save`, if any."""
    share: ProcessShare = dataclasses.field(default_factory=lambda: ProcessShare(pathlib.Path()))
    """This process's share of the runs of a sweep, where processes are independent."""
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    """The time of this start, by activity, and of those before it."""
    profile: Profile = dataclasses.field(default_factory=Profile)
    mirror: Mirror | None = None
    """The upload of the workdir, where it is one in a bucket."""
    require_in_place: Callable[[], None] = lambda: None
    """Raises UserError once the workdir was moved or removed. To be called before something is written to it."""

    def durable(self, path: pathlib.Path) -> Place:
        """The lasting place of a file or directory of the workdir: `path` itself, or its place in the bucket. Checkpoints are
        written there at once."""
        return self.mirror.durable(path) if self.mirror else path

    def compiling(self, ledger: Ledger) -> contextlib.AbstractContextManager[None]:
        """A context for a compilation: its time is that of compiling in `ledger`, and the watchdog is patient."""
        self.watchdog.compiling()
        return ledger.during(Activity.COMPILING)


@contextlib.contextmanager
def begin(
    verb: str,
    flags: StartFlags,
    config: JsonObject,
    may_change: Sequence[str] = (),
    completed: Callable[[JsonObject], JsonObject] = dict,
    independent: bool = False,
) -> Iterator[Run]:
    """Starts a run: sets up logging and the compilation cache, connects the processes, opens the workdir, starts the watchdog.

    A context manager: on exit the watchdog is stopped and the workdir unlocked. `config` is the resolved configuration as nested
    plain values. `may_change` and `completed` are as in `workdir.open_workdir`. Several processes form one `jax.distributed` run,
    or are `independent`: each uses its own devices for its share of the runs of a sweep.
    """
    ledger = Ledger()
    ledger.preceded_by(Activity.STAGING, seconds_spent())
    quiet_libraries()
    enable_compilation_cache()
    found = processes.find_hosts(flags.coordinator, flags.processes, flags.process)
    index, count = (found.index, found.count) if found else (0, 1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(measured_by(functools.partial(ledger.during, Activity.STAGING)))
        mirror = Mirror(str(flags.workdir), f"-{index}" if index else "") if is_remote(flags.workdir) else None
        workdir = mirror.directory if mirror else pathlib.Path(flags.workdir)

        in_place: list[Callable[[], None]] = []

        def open_first() -> None:
            if mirror:
                require_bucket(flags.workdir)
                stack.enter_context(locked(flags.workdir, LOCK))
                stack.enter_context(mirror)
                fetch_workdir(mirror)
            in_place.append(stack.enter_context(open_workdir(workdir, verb, config, may_change, completed)))
            if mirror:
                mirror.push()  # from now on the checkpoints in the bucket belong to this configuration

        start, heartbeats = "", None
        if found and independent:
            start_logging(index)
            start = _meet_independently(found, flags, config, open_first)
        else:
            if found:
                connections = processes.meet(found, config, timeout=flags.start_timeout)
                heartbeats = Heartbeats(index, found.names, connections, patience=flags.hang_seconds)
                stack.enter_context(heartbeats)
                processes.connect(found, timeout=flags.start_timeout, patience=flags.hang_seconds)
            start_logging(index)
            processes.on_first_process(open_first)
            processes.require_shared_directory(flags.workdir)
        if mirror:
            if index:
                stack.enter_context(mirror)
            if index and independent:
                mirror.fetch()
            mirror.begin()
        preemption = stack.enter_context(Preemption())
        watchdog = stack.enter_context(Watchdog(workdir, floor=flags.hang_seconds))
        watchdog.heartbeats = heartbeats
        part = (index, count) if independent else (0, 1)
        share = ProcessShare(flags.workdir, part, start=start, stop=preemption.request, patience=flags.hang_seconds)
        stack.enter_context(share)
        profile = stack.enter_context(Profile(flags.profile, workdir / PROFILE))
        try:
            with fits_in_memory(lambda: Demand("this run")):  # for arrays beside the steps, which have messages of their own
                compare_kernels_once(config.get("model"), gather_json)
                is_first = jax.process_index() == 0
                require = in_place[0] if in_place else lambda: None
                yield Run(workdir, is_first, preemption, watchdog, flags.compiled, share, ledger, profile, mirror, require)
        except Exception as error:
            if heartbeats and (is_device_error(error) or isinstance(error, CorruptedCorpus)):
                heartbeats.end_after(error)
            raise


def _meet_independently(found: processes.Hosts, flags: StartFlags, config: JsonObject, open_first: Callable[[], None]) -> str:
    """The roll call of processes that will be independent, during which process 0 opens the workdir. Returns a random identifier
    of this start, the same in every process."""

    def begin() -> str:
        open_first()
        start_id = os.urandom(8).hex()
        processes.write_marker(flags.workdir, start_id)
        return start_id

    start_id = processes.roll_call(found, processes.process_facts(config), flags.start_timeout, begin=begin)
    if not processes.finds_marker(flags.workdir, start_id):
        raise processes.not_shared(flags.workdir, str(found.index))
    processes.isolate_tpu_chips()
    return start_id
