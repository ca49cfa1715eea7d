"""The command `doctor` from its flags to its exit status, with given measurements, processes and checks."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax import doctor
from bert_jax.errors import UserError
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.processes import Processes
from bert_jax.storage.objects import as_path
from bert_jax.tpu.diagnosis.judgement import Check

BASE = "experiments/pretrain/bert_base.py"
HOSTS = [Hosts("a:1", 2, index, ("process 0", "process 1"), "start all") for index in range(2)]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the actions of the command in order; nothing is examined."""
    did: list[Any] = []
    monkeypatch.setattr(doctor, "require_stdout", lambda remedy: did.append("stdout"))
    monkeypatch.setattr(doctor, "quiet_libraries", lambda: did.append("quiet"))
    monkeypatch.setattr(doctor, "enable_compilation_cache", lambda: did.append("cache"))
    monkeypatch.setattr(doctor, "start_logging", lambda index: did.append(("log", index)))

    @contextlib.contextmanager
    def meet(*given: Any, **times: float) -> Iterator[Any]:
        did.append(("meet", *given, times))
        yield types.SimpleNamespace(join_jax=lambda timeout: did.append(("join", timeout)))
        did.append("the end")

    monkeypatch.setattr(doctor, "meet", meet)

    def examine(processes: Any, flags: Any, overrides: Any, values: Any, workdir: Any) -> Any:
        did.append(("examine", overrides, values.get("seed"), workdir))
        return [Check("disk", "50 GiB", ("set it.",) if flags.chips else ())], [{"host": "a"}]

    monkeypatch.setattr(doctor, "_examine", examine)
    return did


def run(monkeypatch: pytest.MonkeyPatch, hosts: Hosts | None, *flags: str) -> int:
    monkeypatch.setattr(doctor, "find_hosts", lambda *given: hosts if given == (None, None, None) else given)
    monkeypatch.setattr(sys, "argv", ["doctor", *flags])
    return doctor.main()


@pytest.mark.parametrize("index", [0, 1])
def test_processes_connect_and_the_first_one_reports(
    index: int, done: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
):
    hosts, figures = HOSTS[index], tmp_path / "figures.json"
    flags = ("--start-timeout=77", f"--json={figures}", f"--config={BASE}", "--config.seed=3", "--chips=1")
    assert run(monkeypatch, hosts, *flags) == 1
    names = [one[0] if isinstance(one, tuple) else one for one in done]
    assert names == ["stdout", "quiet", "cache", "log", "meet", "join", "examine", "the end"]
    assert done[3] == ("log", index)
    assert (done[4][1], done[4][2]["seed"], done[4][3]) == (hosts, 3, {"timeout": 77, "patience": 77})
    assert done[5] == ("join", 77)
    assert ("1 fault" in capsys.readouterr().out) is figures.exists() is (index == 0)


def test_a_machine_without_devices_may_have_no_reason(monkeypatch: pytest.MonkeyPatch):
    def none() -> int:
        raise RuntimeError

    monkeypatch.setattr(doctor.jax, "local_device_count", none)
    (check,), records = doctor._examine(Processes(), types.SimpleNamespace(), [], {}, None)  # type: ignore[arg-type]
    assert (check.faults[0].partition(";")[0], records) == ("JAX finds no device ()", [])


@pytest.mark.parametrize(("platform", "count"), [("tpu", 1), ("tpu", 2), ("cpu", 2)])
def test_kernels_and_links_are_tested_before_the_clocks_are_read(platform: str, count: int, monkeypatch: pytest.MonkeyPatch):
    device = types.SimpleNamespace(platform=platform)
    did: list[Any] = []
    monkeypatch.setattr(doctor.machine, "record", lambda: {"host": "a"})
    monkeypatch.setattr(doctor.machine, "clock", lambda: did.append("clock") or 5.0)
    monkeypatch.setattr(doctor.jax, "local_devices", lambda: [device])
    monkeypatch.setattr(doctor.jax, "devices", lambda: [device] * count)
    monkeypatch.setattr(doctor.jax, "process_count", lambda: count)
    monkeypatch.setattr(doctor, "verdicts", lambda devices, operations, anew: (len(devices), operations, anew))
    monkeypatch.setattr(doctor, "compare_kernels_once", lambda model, gather: did.append(("compare", model, gather)))
    monkeypatch.setattr(doctor.speed, "links", lambda devices: f"links of {len(devices)}")

    def gather(own: dict[str, Any]) -> list[dict[str, Any]]:
        did.append(own)
        return [own]

    processes: Any = types.SimpleNamespace(gather=gather)
    (found,) = doctor.gathered(processes, {"model": {"attention": "fused"}})
    kernels = {} if platform == "cpu" else {"kernels": (1, ("attention", "residual_norm"), True)}
    all_links = f"links of {count}" if count > 1 else None
    assert found == {"host": "a", "links": "links of 1", "links_of_all": all_links, "clock": 5.0} | kernels
    assert did == ([] if platform == "cpu" else [("compare", {"attention": "fused"}, gather)]) + [{}, "clock", found]


@pytest.mark.parametrize(("backend", "together"), [("cpu", 3.0), ("tpu", 3.0 * 8)])
def test_workdir_corpus_and_experiment_are_checked_if_given(backend: str, together: float, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def fit(
        processes: Any, config: str, overrides: Any, flops: float, workdir: Any, *, estimated: bool, rejected: set[str]
    ) -> list[str]:
        asked.append((config, overrides, flops, workdir, estimated, rejected))
        return ["fits"]

    monkeypatch.setattr(doctor, "workdir_check", lambda processes, workdir: f"workdir {workdir}")
    monkeypatch.setattr(doctor, "corpus_check", lambda processes, directory: f"corpus {directory}")
    monkeypatch.setattr(doctor, "fit_checks", fit)
    monkeypatch.setattr(doctor.jax, "default_backend", lambda: backend)

    def checks(
        config: str | None, values: dict[str, Any], workdir: Any, rates: tuple[float | None, ...], no_estimate: bool
    ) -> Any:
        flags: Any = types.SimpleNamespace(config=config, no_estimate=no_estimate)
        kernels = {"attention": {"reason": "it is wrong"}, "residual_norm": {"reason": ""}}
        records = [{"devices": [{"flops": rate} for rate in rates], "kernels": kernels}]
        return doctor._run_checks(Processes(), flags, [("seed", "3")], values, workdir, records)

    assert checks(None, {}, None, (4.0,), False) == []
    assert checks(None, {}, as_path("there"), (4.0,), False) == ["workdir there"]
    corpus = {"corpus": {"directory": "words"}}
    assert checks("a.py", corpus, as_path("there"), (4.0, None, 3.0), False) == ["workdir there", "corpus words", "fits"]
    assert jax.device_count() == 8
    assert asked == [("a.py", [("seed", "3")], together, as_path("there"), True, {"attention"})]
    for values in ({}, {"corpus": None}, {"corpus": {}}, {"corpus": "words"}):
        assert checks("a.py", values, None, (None,), True) == ["fits"]
    assert asked[-1] == ("a.py", [("seed", "3")], together / 3, None, False, {"attention"})

    def fails(*given: Any, **more: Any) -> None:
        raise UserError("no such phase")

    monkeypatch.setattr(doctor, "fit_checks", fails)
    assert checks("a.py", corpus, None, (), True) == ["corpus words", Check("experiment", "a.py", ("no such phase",))]
