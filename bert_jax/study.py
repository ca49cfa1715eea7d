r"""Compares ways to pretrain, over seeds and tasks, in one table.

    python -m bert_jax.study --config=experiments/studies/objectives.py --workdir=runs/objectives \
        --config.corpus=runs/wikipedia_corpus --config.data=data

Each arm of a study is pretrained with several seeds, and each of these models is fine-tuned on a set of tasks.

The workdir gets table.md, table.json and figure.png, and for each arm and seed a folder with its runs. The same command resumes
an interrupted study: finished runs are not repeated, and an interrupted one resumes from its last checkpoint. Seeds, arms and
tasks may be added later. Several processes (the hosts of a TPU slice) divide arms and seeds among themselves."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.study", check="bert_jax.configs.command_line:check_flags")

import functools
import logging
import time

import jax

from bert_jax.configs.command_line import Flags, parse_flags
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import HUNG
from bert_jax.files import write_json, write_text
from bert_jax.interface.flags import in_formats
from bert_jax.interface.words import counted
from bert_jax.runtime.launch import Run, start_run
from bert_jax.runtime.processes import ProcessesLost
from bert_jax.runtime.workdir import METRICS
from bert_jax.studies import report
from bert_jax.studies.arms import Checked, check
from bert_jax.studies.calibration import Measurement, awaited_plan, plan
from bert_jax.studies.children import POLL
from bert_jax.studies.figure import draw
from bert_jax.studies.parts import Planned, part_groups
from bert_jax.studies.running import Runner, Stopped
from bert_jax.studies.table import table

log = logging.getLogger("bert_jax.study")  # __name__ would be __main__ when this file runs as a command

TABLE, TEXT, FIGURE = "table.json", "table.md", "figure.png"


def study(checked: Checked, flags: Flags, run: Run) -> int:
    """Runs the unfinished parts of a study and writes its table. Returns the exit status."""
    runner = Runner(run, [f"--hang-seconds={flags.hang_seconds:g}", *(["--changed-files"] if flags.changed_files else [])])
    try:
        # -------------------------------------------------------------------------------------------- the steps of every arm
        steps = _steps(checked, flags, run, runner)
        everything = StudyExperiment.from_dict({**flags.config, "only_arms": (), "only_tasks": ()})
        of_arms = checked.pretraining, checked.tasks, flags.workdir, checked.teachers
        whole = Planned(checked.study, steps, *of_arms, everything, checked.inputs, checked.examples, flags.changed_files)

        # ------------------------------------------------------------------------------------------------------- the parts
        mine = [part for parts in run.shard.select(part_groups(checked.study)) for part in parts]
        log.info("%s: %s, seeds %s", checked.study.title, counted(len(mine), "part"), checked.study.seeds)
        runner.parts(whole, mine, lambda part: _write(whole, run))
    except Stopped as stopped:
        run.shard.tell_stopped()
        return stopped.status

    # ------------------------------------------------------------------------------------------------------------ the table
    try:
        found = run.shard.gather({}, waiting=functools.partial(_waiting, run))
    except ProcessesLost as error:
        log.error("%s; run the same command again in all processes (finished parts are not repeated)", error)
        return HUNG
    if found is None:
        return run.preemption.exit_status if run.shard.index == 0 else 0
    _write(whole, run)
    print(report.plain(table(whole)), flush=True)
    places = (run.durable(run.workdir / name) for name in (TEXT, in_formats(FIGURE, run.figure_formats)[0]))
    log.info("table: %s\nfigure: %s", *places)
    return 0


def _steps(checked: Checked, flags: Flags, run: Run, runner: Runner) -> dict[str, list[int]]:
    """Returns the name of each arm -> the number of steps of each phase. Process 0 determines these numbers. The other
    processes wait for the plan, and train while process 0 measures a speed. Raises Stopped if the process was asked to stop."""

    def wait() -> None:
        if _waiting(run):
            raise Stopped(run.preemption.exit_status)
        time.sleep(POLL)

    measurement = Measurement(flags.workdir, run.workdir, runner.command, run.shard.index)
    if measurement.index == 0:
        return plan(checked.study, checked.pretraining, measurement)
    return awaited_plan(checked.study, checked.pretraining, measurement, wait)


def _waiting(run: Run) -> bool:
    """Returns whether this process was asked to stop while it waits for the other processes."""
    run.watchdog.alive("waiting for the other processes")
    return run.preemption.requested()


def _write(whole: Planned, run: Run) -> None:
    """Writes the table and the figure of the finished parts. Only process 0 writes them."""
    if run.shard.index:
        return
    run.require_in_place()
    content = table(whole)
    write_json(run.workdir / TABLE, content)
    write_text(run.workdir / TEXT, report.markdown(content))
    draw(content, whole.study, run.workdir / FIGURE, run.figure_formats)


def main() -> int:
    """Runs the command."""
    flags = parse_flags("study", __doc__, schema=StudyExperiment)
    # The parts are computed in separate processes. This process only traces, and must not occupy a TPU that they need.
    jax.config.update("jax_platforms", "cpu")
    experiment = StudyExperiment.from_dict(flags.config)
    experiment.check_given(flags.given)
    checked = check(experiment, say=lambda text: print(text, flush=True))
    config = checked.study.to_dict()
    with start_run("study", flags, config, may_change=("*",), independent=True) as run:
        if not run.shard.index:
            (run.workdir / METRICS).touch()  # this file marks the directory of a run, see `runtime.workdir.open_workdir`
        return study(checked, flags, run)
