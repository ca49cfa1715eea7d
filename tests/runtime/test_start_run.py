"""The order in which a run is started, alone or as one of several processes, on a disk or in a bucket, with stand-in parts."""

from __future__ import annotations

import contextlib
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import launch
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.processes import RunShard
from tests.notes import Notes

BUCKET = "gs://bucket/run"


class Frame:
    """A start as process `index` of `count`; the notes are the calls of its parts, in order."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        index: int = 0,
        count: int = 1,
        *,
        workdir: str = "run",
        independent: bool = False,
        platform: str = "cpu",
        downloaded: float = 0.0,
    ):
        notes = self.notes = Notes()
        self.index, self.independent, self.workdir, self.opened = index, independent, workdir, list[Any]()
        hosts = Hosts("a:1", count, index, ("a", "b")[:count], "") if count > 1 else None
        for name in ("quiet_libraries", "enable_compilation_cache", "start_logging", "isolate_tpu_chips"):
            monkeypatch.setattr(launch, name, notes.of(name))
        monkeypatch.setattr(launch, "find_hosts", notes.of("find", hosts))
        monkeypatch.setattr(launch, "seconds_spent", lambda: downloaded)
        monkeypatch.setattr(launch, "meet", self.meet)
        monkeypatch.setattr(launch, "is_remote", lambda directory: str(directory).startswith("gs://"))
        monkeypatch.setattr(launch, "require_bucket", notes.of("require"))
        monkeypatch.setattr(launch, "locked", notes.block("lock"))
        monkeypatch.setattr(launch, "fetch_workdir", lambda mirror: notes.append("fetch checked"))
        monkeypatch.setattr(launch, "open_workdir", self.open_workdir)
        monkeypatch.setattr(launch, "require_shared_directory", lambda processes, directory: notes.append(f"shared {directory}"))
        monkeypatch.setattr("bert_jax.storage.mirror.Mirror", self.mirror)
        devices = [types.SimpleNamespace(platform=platform)]
        monkeypatch.setattr(jax, "local_devices", lambda: devices)
        monkeypatch.setattr(jax, "process_index", lambda: index if count > 1 and not independent else 0)
        compared: Callable[..., Any] = lambda model, gather: {"attention": f"{model} {gather('x')}"}  # noqa: E731
        monkeypatch.setattr("bert_jax.model.kernels.self_test.compare_kernels_once", compared)

    @contextlib.contextmanager
    def meet(self, hosts: Hosts | None, config: Any, *, timeout: float, patience: float) -> Iterator[Any]:
        self.notes.append(f"meet {timeout:g} {patience:g} {config}")
        one: Any = types.SimpleNamespace(
            join_jax=self.notes.of("join"), first=lambda action: None if self.index else action(), gather=lambda value: [value],
            watched_by=lambda watchdog: contextlib.nullcontext(watchdog), end_after=self.notes.of("end after"),
            shard_runs=self.notes.block("shard"),
        )  # fmt: skip
        yield one
        self.notes.append("end of meet")

    @contextlib.contextmanager
    def open_workdir(self, *given: Any) -> Iterator[Callable[[], None]]:
        self.notes.append("open")
        self.opened.append(given)
        yield self.notes.of("in place")
        self.notes.append("end of open")

    def mirror(self, remote: str, part: str) -> Any:
        notes = self.notes

        class Mirror(contextlib.AbstractContextManager["Mirror"]):
            directory = pathlib.Path(f"mirror{part}")
            push, fetch, start = (staticmethod(notes.of(name)) for name in ("push", "fetch", "start"))
            durable = staticmethod(lambda path: f"{remote}/{path.name}")

            def __enter__(self) -> Any:
                notes.append(f"mirror {remote}")
                return self

            def __exit__(self, *exception: object) -> None:
                notes.append("end of mirror")

        return Mirror()

    @contextlib.contextmanager
    def start(self) -> Iterator[launch.Run]:
        flags: Any = types.SimpleNamespace(
            coordinator="a:1", processes=2, process=1, workdir=self.workdir, start_timeout=30.0, hang_seconds=9_000.0,
            changed_files=True, compiled=pathlib.Path("compiled"), profile=range(3, 5), figure_formats=("svg",),
        )  # fmt: skip
        config, completed = {"model": "m"}, dict
        with launch.start_run("pretrain", flags, config, ("log.*",), completed, independent=self.independent) as run:
            begun = [*self.notes]
            self.notes.clear()
            yield run
        self.begun = begun


ALWAYS = ["quiet_libraries", "enable_compilation_cache", "find a:1 2 1", "meet 30 9000 {'model': 'm'}"]


def test_a_single_process_opens_its_workdir_with_the_flags(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, downloaded=7.0)
    with frame.start() as run:
        assert (run.workdir, run.is_first, run.compiled, run.figure_formats) == (
            pathlib.Path("run"), True, pathlib.Path("compiled"), ("svg",),
        )  # fmt: skip
        assert (run.profile.steps, run.profile.directory) == (range(3, 5), pathlib.Path("run/profile"))
        assert (run.watchdog.limit(), run.mirror, run.rejected_kernels) == (9_000, None, {})
        assert run.durable(run.workdir / "x") == pathlib.Path("run/x")
        assert run.goodput.totals()["seconds"]["downloading"] == 7
        run.require_in_place()
    assert frame.begun == [*ALWAYS, "start_logging 0", "open", "shared run", "shard run " + str(frame_stop(frame))]
    assert frame.opened == [(pathlib.Path("run"), "pretrain", {"model": "m"}, ("log.*",), dict, True)]
    assert frame.notes == ["in place", "end of shard", "end of open", "end of meet"]


def frame_stop(frame: Frame) -> str:
    """Returns the text of the function that a run gives to the other processes to stop it."""
    return frame.begun[-1].partition("shard run ")[2]


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_train_together_join_jax_before_the_first_opens_the_workdir(index: int, monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, index, 2)
    with frame.start() as run:
        assert (run.is_first, run.shard) == (index == 0, RunShard())
        run.require_in_place()
    opened = ["open"] if index == 0 else []
    assert frame.begun == [*ALWAYS, "join 30.0", f"start_logging {index}", *opened, "shared run"]
    assert frame.notes == (["in place", "end of open", "end of meet"] if index == 0 else ["end of meet"])


@pytest.mark.parametrize("index", [0, 1])
def test_independent_processes_of_a_run_in_a_bucket_have_own_copies_of_the_workdir(index: int, monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, index, 2, workdir=BUCKET, independent=True)
    with frame.start() as run:
        assert (run.is_first, run.workdir) == (True, pathlib.Path("mirror-1" if index else "mirror"))
        assert run.durable(run.workdir / "x") == f"{BUCKET}/x"
    first = [f"require {BUCKET}", f"lock {BUCKET} .lock", f"mirror {BUCKET}", "fetch checked", "open", "push"]
    begun = [*ALWAYS, f"start_logging {index}", *(first if index == 0 else []), f"shared {BUCKET}", "isolate_tpu_chips"]
    begun += [] if index == 0 else [f"mirror {BUCKET}", "fetch"]
    assert frame.begun[:-1] == [*begun, "start"]
    assert frame.begun[-1].startswith(f"shard {BUCKET} ")
    ends = ["end of open", "end of mirror", "end of lock"] if index == 0 else []
    assert frame.notes == ["end of shard", *ends, *(["end of mirror"] if index else []), "end of meet"]


def test_a_process_that_trains_with_others_in_a_bucket_does_not_fetch_the_workdir(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch, 1, 2, workdir=BUCKET)
    with frame.start():
        pass
    assert frame.begun == [*ALWAYS, "join 30.0", "start_logging 1", f"shared {BUCKET}", f"mirror {BUCKET}", "start"]


def test_kernels_are_compared_on_devices_other_than_cpus(monkeypatch: pytest.MonkeyPatch):
    with Frame(monkeypatch, platform="tpu").start() as run:
        assert run.rejected_kernels == {"attention": "m ['x']"}


def test_an_error_of_a_run_is_told_to_the_other_processes(monkeypatch: pytest.MonkeyPatch):
    frame = Frame(monkeypatch)
    with pytest.raises(UserError, match=r"^no$"), frame.start():
        raise UserError("no")
    assert frame.notes[0] == "end after no"


def test_a_compilation_is_noted_by_the_watchdog_and_the_goodput():
    notes = Notes()
    watchdog: Any = types.SimpleNamespace(compiling=notes.of("compiling"))
    goodput: Any = types.SimpleNamespace(during=notes.block("during"))
    preemption: Any = None
    run = launch.Run(pathlib.Path("run"), True, preemption, watchdog)
    with run.compiling(goodput):
        assert notes == ["compiling", f"during {TimeCategory.COMPILING}"]
    assert isinstance(run.goodput, GoodputRecorder)
