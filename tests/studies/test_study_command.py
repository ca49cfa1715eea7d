"""The command `study`, alone and in two processes; a shell script plays its parts."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Iterator

import pytest

from bert_jax import study as command
from bert_jax.configs.command_line import Flags
from bert_jax.errors import HUNG, UserError
from bert_jax.files import read_json
from bert_jax.runtime.launch import Run
from bert_jax.runtime.processes import Processes
from bert_jax.studies import report
from bert_jax.studies.arms import Checked
from tests.runtime.connected import Group, group
from tests.studies.conftest import run_in

Play = Callable[[str], pathlib.Path]
FILES = {"table.json", "table.md", "figure.png"}


def names(directory: pathlib.Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_file()}


def test_a_study_writes_its_table_after_each_part_and_prints_it_at_the_end(
    checked: Checked, flags: Flags, played: Play,
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    caplog.set_level(logging.INFO, logger="bert_jax")
    local = tmp_path / "local"
    local.mkdir()
    run = run_in(local)
    alone = dataclasses.replace(checked.study, arms=checked.study.arms[:1], seeds=(3,))
    one_arm = dataclasses.replace(checked, study=alone, pretraining={"a": checked.pretraining["a"]})
    half = {"name": "half", "shares": "a", "at": 0.5}
    flags = dataclasses.replace(flags, config=flags.config | {"arms": [{"name": "a"}, half], "only_arms": ["a"]})
    played('[ "$command" = pretrain ]')
    with pytest.raises(UserError, match=r"^a, seed 3, own failed with status 1; "):
        command.study(one_arm, flags, run)
    assert names(local) == FILES
    content = read_json(local / "table.json")
    assert [(arm["parameters"], arm["scores"]["own"]["mean"]) for arm in content["table"]["arms"]] == [(11, None)]
    assert capsys.readouterr().out == ""
    for name in FILES:
        (local / name).unlink()
    ran = played("")
    assert command.study(one_arm, flags, run) == 0
    assert (flags.workdir / "a" / "seed-3" / "pretraining" / "checkpoints").is_dir(), "for the arm that is not run now"
    read = [read_json(flags.workdir / "a" / "seed-3" / f"{name}.json")["inputs"] for name in ("pretraining", "own")]
    assert read == [checked.inputs["a"], {"examples": checked.examples["own"]}]
    assert [line.partition(" ")[0] for line in ran.read_text().splitlines()] == ["pretrain", "finetune", "finetune"]
    content = read_json(local / "table.json")
    assert content["table"]["arms"][0]["scores"]["own"]["mean"] == 0.75
    assert content["measured"]["a"].keys() == {"training_seconds", "all_seconds", "devices"}
    assert (local / "table.md").read_text() == report.markdown(content)
    assert capsys.readouterr().out == f"{report.plain(content)}\n"
    assert "A tiny study: 2 parts, seeds (3,)" in caplog.messages
    assert caplog.messages[-1] == f"table: {local / 'table.md'}\nfigure: {local / 'figure.png'}"


# -------------------------------------------------------------------------------------------------------------- two processes
class Two:
    """A study in two processes, here threads, each with its own local directory. `runs` has the run of each."""

    def __init__(self, checked: Checked, flags: Flags, tmp_path: pathlib.Path, processes: Group):
        self._checked, self._flags, self._processes = checked, flags, processes
        self.locals = [tmp_path / f"local-{i}" for i in range(2)]
        self.runs = [run_in(local) for local in self.locals]
        for local in self.locals:
            local.mkdir()

    def study(self, before: Callable[[Run], object] = lambda run: None) -> list[int]:
        """Returns the exit status of each process."""

        def process(one: Processes) -> int:
            with one.shard_runs(self._flags.workdir, self.runs[one.index].preemption.request) as shard:
                self.runs[one.index] = dataclasses.replace(self.runs[one.index], shard=shard)
                before(self.runs[one.index])
                return command.study(self._checked, self._flags, self.runs[one.index])

        return self._processes.all(process)


@pytest.fixture
def one_seed(checked: Checked) -> Checked:
    """Returns the study with one seed, so that each process has one arm."""
    return dataclasses.replace(checked, study=dataclasses.replace(checked.study, seeds=(3,)))


@pytest.fixture
def two(one_seed: Checked, flags: Flags, tmp_path: pathlib.Path) -> Iterator[Two]:
    with group(count=2) as processes:
        yield Two(one_seed, flags, tmp_path, processes)


def test_two_processes_divide_the_parts_and_the_first_writes_one_table(
    two: Two, played: Play, capsys: pytest.CaptureFixture[str]
):
    ran = played("")
    assert two.study() == [0, 0]
    lines = ran.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 4
    logs = [{path.parent.parent.name for path in local.rglob("*.log")} for local in two.locals]
    assert logs == [{"a"}, {"b"}]
    written = [path.read_text() for local in two.locals for path in local.rglob("*.log")]
    assert all(text.endswith(" --hang-seconds=7 --changed-files\n") for text in written), "the parts get the flags of the study"
    assert [names(local) for local in two.locals] == [FILES, set()]
    content = json.loads((two.locals[0] / "table.json").read_text())
    assert [arm["scores"]["own"]["seeds"] for arm in content["table"]["arms"]] == [{"3": 0.75}] * 2
    assert capsys.readouterr().out == f"{report.plain(content)}\n"


def test_a_stopped_process_stops_the_others_while_they_wait_for_the_plan_or_train(two: Two, played: Play):
    played("sleep 20")

    def ask(run: Run) -> None:
        if run.shard.index:
            run.preemption.request()

    assert two.study(ask) == [143, 143]


def test_a_study_ends_with_the_status_of_a_part_that_a_restart_can_fix(two: Two, played: Play):
    played(f'case "$workdir" in */a/*) exit {HUNG};; esac; exec sleep 20')
    assert two.study() == [HUNG, 143]


def test_a_study_whose_other_process_is_lost_can_be_restarted(
    one_seed: Checked, flags: Flags, played: Play, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    played("")
    with group(count=2) as processes:
        first = processes.members[0]
        run = run_in(tmp_path)
        with first.shard_runs(flags.workdir, run.preemption.request) as shard:
            processes.die(1)
            assert command.study(one_seed, flags, dataclasses.replace(run, shard=shard)) == HUNG
    assert caplog.messages[-1].endswith("; run the same command again in all processes (finished parts are not repeated)")
