"""A whole study: its table, and the same table after kills."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
from typing import Any

import pytest

from tests.end_to_end import forked, tiny_study
from tests.end_to_end.forked import Done, Signal
from tests.end_to_end.runs import free_port

ASKED = "bert_jax.runtime.interruptions:Watchdog.step_done"


def command(directory: pathlib.Path, workdir: pathlib.Path, *flags: str) -> tuple[str, ...]:
    return ("study", f"--config={directory / 'study.py'}", f"--workdir={workdir}", *flags)


def run(directory: pathlib.Path, workdir: pathlib.Path, *flags: str) -> Done:
    (done,) = forked.run(directory, command(directory, workdir, *flags), prepare=tiny_study.in_one_process)
    return done


def in_two_processes(directory: pathlib.Path, workdir: pathlib.Path) -> list[Done]:
    """Runs a study in two processes, each of which takes one seed. Returns how both ended."""
    meeting = (f"--coordinator=localhost:{free_port()}", "--processes=2")
    commands = [command(directory, workdir, *meeting, f"--process={i}") for i in range(2)]
    started = [forked.start(directory, one, prepare=tiny_study.in_one_process) for one in commands]
    return [done for process in started for done in process.end()]


def table(workdir: pathlib.Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((workdir / "table.json").read_text())
    return content["table"]


@pytest.fixture(scope="module")
def directory(experiment: pathlib.Path, toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the directory with a study file, and the workdir `whole` of a complete study."""
    place = tmp_path_factory.mktemp("study")
    tiny_study.write(place / "study.py", tiny_study.values(experiment, toys))
    done = run(place, place / "whole", "--format=pdf,png")
    assert done.status == 0, done.output
    (place / "said.txt").write_text(done.output)
    return place


def test_a_study_writes_a_table_a_figure_and_a_report(directory: pathlib.Path):
    whole = directory / "whole"
    found = table(whole)
    bert, half = found["arms"]
    assert (bert["name"], bert["steps"], bert["tokens"]) == ("bert", 6, 6 * 8 * 32)
    assert (half["name"], half["steps"], half["tokens"]) == ("half", 3, 3 * 8 * 32)
    assert bert["eval"]["mlm_loss"] < half["eval"]["mlm_loss"]  # by 0.15 at the worst of five seeds
    assert bert["flops"] == 2 * half["flops"] > 0
    assert bert["scores"]["own"]["seeds"].keys() == {"0", "1"}
    assert half["minus_reference"]["own"]["n"] == 2
    assert (whole / "figure.png").stat().st_size > 1_000
    assert (whole / "figure.pdf").read_bytes().startswith(b"%PDF")
    text, said = (whole / "table.md").read_text(), (directory / "said.txt").read_text()
    for part in ("| bert | 1,536 |", "| after half of the steps | 768 |", "84.4", "bert > half"):
        assert part in text
    assert "8 parts done" in said


def test_files_that_a_finished_part_no_longer_needs_are_removed(directory: pathlib.Path):
    names = {path.name for path in (directory / "whole").rglob("*") if path.is_dir()}
    assert not names & {"checkpoints", "best"}
    assert (directory / "whole" / "bert" / "seed-0" / "pretraining" / "model" / "model.safetensors").exists()
    assert not (directory / "whole" / "bert" / "seed-0" / "own" / "model").exists()


def test_restarting_a_finished_study_trains_nothing(directory: pathlib.Path):
    before = {path: path.stat().st_mtime_ns for path in (directory / "whole").rglob("results.json")}
    left = directory / "whole" / "bert" / "seed-0" / "pretraining" / "checkpoints"
    left.mkdir()  # as after a kill between the record of a part and the end of its cleanup
    assert run(directory, directory / "whole").status == 0
    assert not left.exists()
    assert {path: path.stat().st_mtime_ns for path in (directory / "whole").rglob("results.json")} == before


def test_the_directory_of_a_study_is_refused_for_a_run(directory: pathlib.Path, experiment: pathlib.Path):
    (done,) = forked.run(directory, ("pretrain", f"--config={experiment}", f"--workdir={directory / 'whole'}"))
    assert done.status == 2
    assert "whole holds a run of `study`, not of `pretrain`; name another --workdir" in done.output


def test_a_study_stopped_killed_and_resumed_in_two_processes_gives_the_same_table(directory: pathlib.Path):
    workdir = shutil.copytree(directory / "whole", directory / "killed")
    for path in workdir.rglob("seed-1"):
        shutil.rmtree(path)
    (workdir / "table.json").unlink()
    ends = [Signal(ASKED, argument=4, number=signal.SIGTERM), Signal(ASKED, argument=5)]
    stop, kill = forked.run(directory, *[command(directory, workdir)] * 2, at=ends, prepare=tiny_study.in_one_process)
    assert [stop.status, kill.status] == [128 + signal.SIGTERM, -signal.SIGKILL], (stop.output, kill.output)
    for done in in_two_processes(directory, workdir):
        assert done.status == 0, done.output
    assert table(workdir) == table(directory / "whole")
