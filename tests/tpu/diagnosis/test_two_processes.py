"""The whole command in two processes on loopback; the second has a slow device and a wrong clock."""

from __future__ import annotations

import functools
import json
import pathlib

from bert_jax.tpu.diagnosis import machine, speed
from tests.end_to_end import forked
from tests.end_to_end.forked import Surroundings
from tests.end_to_end.runs import free_port


def measure(flops: float, clock: float) -> None:
    """Replaces, in the new process, measurements that depend on other programs of this machine."""
    speed.flops, speed.bandwidth = lambda device: flops, lambda device: 1e10
    machine.clock = lambda: clock
    speed.CPU_SENT = 2**10


def test_two_processes_are_examined_and_the_first_one_reports_on_both(tmp_path: pathlib.Path):
    workdir, figures, port = tmp_path / "run", tmp_path / "figures.json", free_port()
    started = [
        forked.start(
            tmp_path,
            (
                *("doctor", f"--workdir={workdir}", f"--json={figures}", "--chips=2"),
                *(f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={index}", "--start-timeout=200"),
            ),
            prepare=functools.partial(measure, flops, clock),
            around=Surroundings(environment={"BERT_JAX_CACHE": str(tmp_path / f"cache-{index}")}),
        )
        for index, (flops, clock) in enumerate([(1e12, 1e9), (1e11, 1e9 + 3600)])
    ]
    first, second = (run.end()[0] for run in started)
    assert (first.status, second.status) == (1, 1), f"{first.output}\n{second.output}"
    assert "equal in 2 processes" in first.output
    faults = first.output.partition("2 faults:\n")[2].splitlines()
    assert "of process 1 " in faults[0]
    assert "reaches 100 GFLOP/s (matmul), 10 % of the median" in faults[0]
    assert "the clock of process 1 " in faults[1]
    assert "is 3600.0 s ahead of the others" in faults[1]
    assert "fault" not in second.output
    records = json.loads(figures.read_text())["processes"]
    assert [record["links_of_all"] > 0 for record in records] == [True, True]
    assert not workdir.exists()
