"""What a start does, in its order, for one process and for several, with a workdir on a disk and in a bucket."""

from __future__ import annotations

import contextlib
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.errors import UserError
from bert_jax.runtime import launch
from bert_jax.runtime.goodput import Activity, Ledger
from bert_jax.runtime.processes import Hosts

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
    ):
        monkeypatch.setattr(launch, name, note(name))
    for name in ("connect", "require_shared_directory", "write_marker", "isolate_tpu_chips"):
        monkeypatch.setattr(launch.processes, name, note(name))
    monkeypatch.setattr(launch.processes, "meet", note("meet", "connections"))
    monkeypatch.setattr(launch.processes, "process_facts", lambda config: {"facts": config})
    monkeypatch.setattr(launch.processes, "finds_marker", lambda directory, token: did.append(("finds", token)) or True)
    monkeypatch.setattr(launch, "open_workdir", lambda *given: context("open", *given))
    monkeypatch.setattr(launch, "locked", lambda *given: context("lock", *given))
    for name in ("Heartbeats", "Mirror", "ProcessShare", "Profile", "Watchdog"):
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
        profile=range(3),
        compiled=None,
    )


def begun(
    monkeypatch: pytest.MonkeyPatch, did: list[Any], index: int | None, workdir: str = "here", independent: bool = False
) -> tuple[launch.Run, list[str], list[Any]]:
    """A run that has begun and ended: it, the names of what was done before and after, and all that was done."""
    hosts = None if index is None else HOSTS[index]
    monkeypatch.setattr(launch.processes, "find_hosts", lambda *given: hosts if given == ("a:1", 2, 1) else given)
    monkeypatch.setattr(launch.processes, "on_first_process", lambda action: None if index else action())

    def roll_call(found: Hosts, facts: Any, timeout: float, *, begin: Any) -> str:
        did.append(("roll call", found, facts, timeout))
        return "of the first" if index else begin()

    monkeypatch.setattr(launch.processes, "roll_call", roll_call)
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
    "ProcessShare",
    "enter ProcessShare",
    "Profile",
    "enter Profile",
    "compare_kernels_once",
    "the run",
]
LEFT = ["leave Profile", "leave ProcessShare", "leave Watchdog"]


def asked(did: list[Any], name: str) -> Any:
    """What the only call of that name was given."""
    (found,) = [one[1:] for one in did if isinstance(one, tuple) and one[0] == name and one[1] not in ASKED]
    return found


def test_one_process_opens_its_workdir_and_is_watched(monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    run, names, done = begun(monkeypatch, did, None)
    assert names == [*SET_UP, "start_logging", "open", "require_shared_directory", *WATCHED, *LEFT, "leave open"]
    assert asked(done, "start_logging") == (0,)
    here = pathlib.Path("here")
    assert asked(done, "open") == (here, "pretrain", CONFIG, ("log_every",), dict)
    assert asked(done, "Watchdog") == (here, ("floor", 22.0))
    workdir, part, *more = asked(done, "ProcessShare")
    assert (workdir, part, dict(more)["start"], dict(more)["patience"]) == ("here", (0, 1), "", 22.0)
    assert dict(more)["stop"] == run.preemption.request
    assert asked(done, "Profile") == (range(3), here / "profile")
    assert asked(done, "compare_kernels_once") == ({"attention": "auto"}, launch.gather_json)
    assert (run.workdir, run.is_first, run.mirror, run.compiled) == (here, True, None, None)
    assert run.durable(here / "model") == here / "model"
    assert run.ledger.totals()["seconds"][Activity.STAGING] >= 7.0
    assert run.watchdog.heartbeats is None


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_train_together_meet_before_the_first_one_opens_the_workdir(
    index: int, monkeypatch: pytest.MonkeyPatch, did: list[Any]
):
    run, names, done = begun(monkeypatch, did, index)
    opened, closed = ([], []) if index else (["open"], ["leave open"])
    together = ["meet", "Heartbeats", "enter Heartbeats", "connect", "start_logging"]
    assert names == [*SET_UP, *together, *opened, "require_shared_directory", *WATCHED, *LEFT, *closed, "leave Heartbeats"]
    assert asked(done, "meet") == (HOSTS[index], CONFIG, ("timeout", 11.0))
    assert asked(done, "Heartbeats") == (index, ("process 0", "process 1"), "connections", ("patience", 22.0))
    assert asked(done, "connect") == (HOSTS[index], ("timeout", 11.0), ("patience", 22.0))
    assert asked(done, "start_logging") == (index,)
    assert asked(done, "require_shared_directory") == ("here",)
    assert asked(done, "ProcessShare")[1] == (0, 1), "the runs of a sweep are not shared out"
    assert run.watchdog.heartbeats._name == "Heartbeats"  # type: ignore[union-attr]


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_train_apart_share_out_the_runs(index: int, monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    _, names, done = begun(monkeypatch, did, index, independent=True)
    opened, closed = ([], []) if index else (["open", "write_marker"], ["leave open"])
    assert names == [
        *SET_UP, "start_logging", "roll call", *opened, "finds", "isolate_tpu_chips", *WATCHED, *LEFT, *closed,
    ]  # fmt: skip
    assert asked(done, "start_logging") == (index,)
    assert asked(done, "roll call") == (HOSTS[index], {"facts": CONFIG}, 11.0)
    (token,) = asked(done, "finds")
    _, part, *more = asked(done, "ProcessShare")
    assert (part, dict(more)["start"]) == ((index, 2), token)
    if index == 0:
        assert (asked(done, "write_marker"), len(bytes.fromhex(token))) == (("here", token), 8)
    monkeypatch.setattr(launch.processes, "finds_marker", lambda directory, token: directory != "here")
    with pytest.raises(UserError, match=f"is not the directory that process {index} sees under that name"):
        begun(monkeypatch, did, index, independent=True)


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
    assert names[names.index("Mirror begin") + 1 :][: len(WATCHED)] == WATCHED
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


@pytest.mark.parametrize(
    ("error", "ended"), [(CorruptedCorpus("a bit is wrong"), True), (ValueError("a bug"), False), (OSError("Gloo failed"), False)]
)
def test_what_all_processes_would_wait_for_ends_them(
    error: Exception, ended: bool, monkeypatch: pytest.MonkeyPatch, did: list[Any]
):
    monkeypatch.setattr(launch.processes, "on_first_process", lambda action: action())
    for hosts in (HOSTS[0], None):
        monkeypatch.setattr(launch.processes, "find_hosts", lambda *given, hosts=hosts: hosts)
        did.clear()
        with pytest.raises(type(error)), launch.begin("pretrain", flags(), CONFIG):
            raise error
        calls = [one for one in did if isinstance(one, tuple) and one[0] == "Heartbeats" and one[1] == "end_after"]
        assert calls == ([("Heartbeats", "end_after", error)] if ended and hosts else [])


def test_a_compilation_is_told_to_the_watchdog_and_timed(monkeypatch: pytest.MonkeyPatch, did: list[Any]):
    run, _, _ = begun(monkeypatch, did, None)
    ledger = Ledger()
    with run.compiling(ledger):
        assert did[-1] == ("Watchdog", "compiling")
    assert Activity.COMPILING in ledger.totals()["seconds"]
