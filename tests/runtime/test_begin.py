"""What a start does, in its order, for one process and for several, with a workdir on a disk and in a bucket."""

from __future__ import annotations

import contextlib
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.runtime import launch
from bert_jax.runtime.goodput import Activity, Ledger
from bert_jax.runtime.hosts import Hosts

CONFIG = {"seed": 3, "model": {"attention": "auto"}}
HOSTS = [Hosts("a:1", 2, index, ("process 0", "process 1"), "start all") for index in range(2)]


class Place(contextlib.AbstractContextManager["Place"]):
    """Something that notes in `did` when it is entered, left and asked."""

    def __init__(self, did: list[Any], name: str, directory: pathlib.Path | None = None):
        self._did, self._name, self.directory = did, name, directory

    def __enter__(self) -> Place:
        self._did.append(f"enter {self._name}")
        return self

    def __exit__(self, *exception: object) -> None:
        self._did.append(f"leave {self._name}")

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self._did.append((self._name, what, *given))


class Connected(Place):
    """The processes, once they have met."""

    def __init__(self, did: list[Any], index: int):
        super().__init__(did, "processes")
        self._index = index

    def first(self, action: Callable[[], None]) -> None:
        if self._index == 0:
            action()

    def watched_by(self, watchdog: Place) -> Place:
        return watchdog

    def sharing(self, workdir: Any, stop: Any) -> Any:
        self._did.append(("sharing", workdir, stop))
        return contextlib.nullcontext(launch.Share())

    def gather(self, value: Any) -> list[Any]:
        return [value]


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[Any]:
    """What is done, in order; a workdir that begins with gs:// is in a bucket."""
    did: list[Any] = []

    def note(name: str, result: Any = None) -> Any:
        def called(*given: Any, **more: Any) -> Any:
            did.append((name, *given, *more.items()))
            return result

        return called

    @contextlib.contextmanager
    def context(name: str, *given: Any) -> Iterator[None]:
        did.append((name, *given))
        yield
        did.append(f"leave {name}")

    def placed(name: str) -> Any:
        def made(*given: Any, **more: Any) -> Place:
            did.append((name, *given, *more.items()))
            return Place(did, name, tmp_path / "local")

        return made

    monkeypatch.setattr(launch, "seconds_spent", lambda: 7.0)
    for name in (
        "quiet_libraries",
        "enable_compilation_cache",
        "start_logging",
        "require_bucket",
        "fetch_workdir",
        "compare_kernels_once",
        "isolate_tpu_chips",
    ):
        monkeypatch.setattr(launch, name, note(name))
    monkeypatch.setattr(launch, "open_workdir", lambda *given: context("open", *given))
    monkeypatch.setattr(launch, "locked", lambda *given: context("lock", *given))
    monkeypatch.setattr(launch, "require_shared_directory", lambda processes, directory: did.append(("shared", directory)))
    for name in ("Mirror", "Profile", "Watchdog"):
        monkeypatch.setattr(launch, name, placed(name))
    monkeypatch.setattr(launch, "is_remote", lambda path: str(path).startswith("gs:"))
    return did


def flags(workdir: str = "here") -> Any:
    return types.SimpleNamespace(
        coordinator="a:1",
        processes=2,
        process=1,
        workdir=workdir,
        start_timeout=11.0,
        hang_seconds=22.0,
        changed_files=False,
        profile=range(3),
        compiled=None,
    )


def begun(
    monkeypatch: pytest.MonkeyPatch, did: list[Any], index: int | None, workdir: str = "here", independent: bool = False
) -> tuple[launch.Run, list[str], list[Any]]:
    """A run that has begun and ended: it, the names of what was done before and after, and all that was done."""
    hosts = None if index is None else HOSTS[index]
    monkeypatch.setattr(launch, "find_hosts", lambda *given: hosts if given == ("a:1", 2, 1) else given)
    monkeypatch.setattr(launch, "meet", lambda *given, **times: did.append(("meet", *given, times)) or Connected(did, index or 0))
    did.clear()
    with launch.begin("pretrain", flags(workdir), CONFIG, ("log_every",), dict, independent) as run:
        did.append("the run")
    names = [
        one if isinstance(one, str) else f"{one[0]} {one[1]}" if one[0] == "Mirror" and one[1] in ASKED else one[0] for one in did
    ]
    return run, names, list(did)


ASKED = ("push", "fetch", "begin")
SET_UP = ["quiet_libraries", "enable_compilation_cache"]
WATCHED = [
    "Watchdog",
    "enter Watchdog",
    "Profile",
    "enter Profile",
    "compare_kernels_once",
    "the run",
]
LEFT = ["leave Profile", "leave Watchdog"]
APART = [*WATCHED[:2], "sharing", *WATCHED[2:]]
MET = ["meet", "enter processes"]


def asked(did: list[Any], name: str) -> Any:
    """What the only call of that name was given."""
    (found,) = [one[1:] for one in did if isinstance(one, tuple) and one[0] == name and one[1] not in ASKED]
    return found


def test_one_process_opens_its_workdir_and_is_watched(monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    run, names, done = begun(monkeypatch, did, None)
    assert names == [*SET_UP, *MET, "start_logging", "open", "shared", *APART, *LEFT, "leave open", "leave processes"]
    assert asked(done, "start_logging") == (0,)
    here = pathlib.Path("here")
    assert asked(done, "open") == (here, "pretrain", CONFIG, ("log_every",), dict, False)
    assert asked(done, "Watchdog") == (here, ("floor", 22.0))
    assert asked(done, "sharing") == ("here", run.preemption.request)
    assert asked(done, "Profile") == (range(3), here / "profile")
    model, gather = asked(done, "compare_kernels_once")
    assert (model, gather({"a": 1})) == ({"attention": "auto"}, [{"a": 1}])
    assert (run.workdir, run.is_first, run.mirror, run.compiled) == (here, True, None, None)
    assert run.durable(here / "model") == here / "model"
    assert run.ledger.totals()["seconds"][Activity.STAGING] >= 7.0


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_train_together_meet_before_the_first_one_opens_the_workdir(
    index: int, monkeypatch: pytest.MonkeyPatch, did: list[Any]
):
    run, names, done = begun(monkeypatch, did, index)
    opened, closed = ([], []) if index else (["open"], ["leave open"])
    started = [*SET_UP, *MET, "processes", "start_logging"]
    assert names == [*started, *opened, "shared", *WATCHED, *LEFT, *closed, "leave processes"]
    assert asked(done, "meet") == (HOSTS[index], CONFIG, {"timeout": 11.0, "patience": 22.0})
    assert asked(done, "processes") == ("join_jax", 11.0)
    assert asked(done, "start_logging") == (index,)
    assert asked(done, "shared") == ("here",)
    assert run.share.count == 1, "the runs of a sweep are not shared out"


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_train_apart_share_out_the_runs(index: int, monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    run, names, done = begun(monkeypatch, did, index, independent=True)
    opened, closed = ([], []) if index else (["open"], ["leave open"])
    started = [*SET_UP, *MET, "start_logging", *opened, "shared", "isolate_tpu_chips"]
    assert names == [*started, *APART, *LEFT, *closed, "leave processes"]
    assert asked(done, "start_logging") == (index,)
    assert asked(done, "sharing") == ("here", run.preemption.request)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_a_workdir_in_a_bucket_is_locked_fetched_and_mirrored(
    index: int, independent: bool, monkeypatch: pytest.MonkeyPatch, did: list[Any], tmp_path: pathlib.Path
):
    run, names, done = begun(monkeypatch, did, index, "gs://bucket/run", independent)
    local = tmp_path / "local"
    first = ["require_bucket", "lock", "enter Mirror", "fetch_workdir", "open", "Mirror push"]
    own = ["enter Mirror", *(["Mirror fetch"] if independent else []), "Mirror begin"] if index else ["Mirror begin"]
    mirrored = [name for name in names if name in {*first, *own}]
    assert mirrored == ([] if index else first) + own
    watched = APART if independent else WATCHED
    assert names[names.index("Mirror begin") + 1 :][: len(watched)] == watched
    end = ["leave Mirror"] if index else ["leave open", "leave Mirror", "leave lock"]
    assert [name for name in names if name in end] == end
    assert asked(done, "Mirror") == ("gs://bucket/run", f"-{index}" if index else "")
    if index == 0:
        assert asked(done, "lock") == ("gs://bucket/run", launch.LOCK)
        assert asked(done, "open")[0] == local
    assert (run.workdir, asked(done, "Watchdog")[0]) == (local, local)
    assert run.mirror is not None
    run.durable(local / "model")
    assert did[-1] == ("Mirror", "durable", local / "model")


@pytest.mark.parametrize("error", [CorruptedCorpus("a bit is wrong"), ValueError("a bug")])
def test_an_error_is_shown_to_the_other_processes_before_anything_is_closed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, did: list[Any]
):
    monkeypatch.setattr(launch, "find_hosts", lambda *given: HOSTS[0])
    monkeypatch.setattr(launch, "meet", lambda *given, **times: Connected(did, 0))
    with pytest.raises(type(error)), launch.begin("pretrain", flags(), CONFIG):
        raise error
    told = ("processes", "end_after", error)
    assert did[did.index(told) :] == [told, *LEFT, "leave processes"]


def test_a_compilation_is_told_to_the_watchdog_and_timed(monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    run, _, _ = begun(monkeypatch, did, None)
    ledger = Ledger()
    with run.compiling(ledger):
        assert did[-1] == ("Watchdog", "compiling")
    assert Activity.COMPILING in ledger.totals()["seconds"]
