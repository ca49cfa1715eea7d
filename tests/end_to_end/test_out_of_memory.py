"""When memory runs out, a run ends with an error that names settings that would fit, and saved files stay."""

from __future__ import annotations

import pathlib

import jax
import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import OUT_OF_MEMORY, Ended
from tests.end_to_end.conftest import command as pretraining
from tests.end_to_end.forked import Commands, Done, Failure
from tests.end_to_end.runs import checkpoints, last_step
from tests.end_to_end.test_finetuning_recovery import command

RUNS_OUT = "does not fit in memory: it asks for 4.44 GiB of memory at once, which is not free, with "


def refused(done: Done) -> str:
    """Returns the error with which a run ended."""
    assert done.status == 2, done.output
    assert "Traceback" not in done.output
    assert done.output.count("error: ") == 1
    return done.output.partition("error: ")[2]


def out_of_memory(function: str, call: int = 1) -> Failure:
    return Failure(function, call=call, error=jax.errors.JaxRuntimeError(OUT_OF_MEMORY))


def test_a_step_that_does_not_compile_keeps_earlier_checkpoints(late: Ended, restarts: dict[str, Done]):
    says = refused(restarts["uncompiled"])
    assert says.splitlines()[:6] == [
        "the training step of phase 1 does not fit in memory: it needs 20.25 GiB of HBM, but there are 15.75 GiB, with 8 rows of "
        "64 tokens per step, 8 per device (config.phases.1.batch_size=8, accumulation=1).",
        "Each of these flags takes less memory:",
        "    --config.phases.1.accumulation=2",
        "    --config.model.remat=full",
        "    --config.phases.1.batch_size=4 (in another --workdir, because it changes the trained model)",
        "Or end other programs that use this memory, or use devices with more memory.",
    ]
    assert "`python -m bert_jax.aot --config=FILE --topology=v5e:4x4 --phase=1`" in says
    assert checkpoints(late.workdir.with_name("uncompiled")) == checkpoints(late.workdir)


def test_a_run_out_of_memory_in_a_step_trains_with_the_suggested_flag_until_its_evaluation(
    experiment: pathlib.Path, finished: dict[str, Done]
):
    says = refused(finished["out of memory"])
    assert says.startswith(f"the training step of phase 0 {RUNS_OUT}8 rows of 32 tokens per step, 8 per device ")
    assert "    --config.phases.0.accumulation=2\n" in says
    again, workdir = finished["with the flag"], experiment.with_name("short_of_memory")
    assert "resuming from step 4" in again.output
    assert refused(again).startswith("the evaluation of phase 0 does not fit in memory"), "as the program that ran out of it"
    assert (checkpoints(workdir)[-1], last_step(workdir)) == (8, 12)


def test_a_state_that_does_not_fit_is_named(experiment: pathlib.Path, tmp_path: pathlib.Path):
    at = out_of_memory("bert_jax.pretraining.start:initial_parameters")
    (done,) = forked.run(experiment.parent, pretraining(experiment, tmp_path / "run"), at=at)
    assert refused(done).startswith("the state (parameters and optimizer) does not fit in memory")


@pytest.fixture(scope="module")
def tasks(toys: pathlib.Path) -> Commands:
    """Starts a task that runs out of memory three times, the third time with a flag that needs less, and a sweep whose first run
    does."""
    base = toys / "short_of_memory"
    often = ("--config.checkpoints.every=4", "--config.training.epochs=1", "--config.log_every=1")
    commands: dict[str, forked.Command] = {
        "step": out_of_memory("bert_jax.training.loop:StepSums.add", call=6).arm,
        "run": command(toys, base / "run", *often),
        "first": out_of_memory("bert_jax.training.loop:StepSums.add").arm,
        "sweep": command(toys, base / "sweep", "--config.sweep.seeds=[1, 2]", "--config.training.epochs=1"),
        "evaluation": out_of_memory("bert_jax.data.batches:EvaluationBatches.logits").arm,
        "again": command(toys, base / "run", *often),
        "not compiled": out_of_memory("bert_jax.finetuning.job:Job.arguments").arm,
        "with the flag": command(toys, base / "run", *often, "--config.training.accumulation=2"),
    }
    return forked.commands_run(base, commands)


def test_a_task_out_of_memory_in_a_step_or_an_evaluation_resumes_also_with_the_suggested_flag(tasks: Commands):
    says = refused(tasks.ends["run"])
    assert says.startswith(f"the training step {RUNS_OUT}")
    assert " rows of 32 tokens per step, " in says
    for remedy in ("--config.model.remat=full", "--config.training.batch_size=8", "--config.task.length below 32"):
        assert remedy in says
    assert "`python -m bert_jax.aot --config=FILE --topology=v5e:4x4 --model=base`" in says
    done = tasks.ends["again"]
    assert refused(done).startswith("the evaluation does not fit in memory: it asks for 4.44 GiB")
    with_flag = tasks.ends["with the flag"]
    assert "accumulation=2" in refused(with_flag), "before it is compiled"
    for end in (done, with_flag):
        assert "resuming from step 4" in end.output


def test_a_sweep_run_out_of_memory_counts_as_failed_and_the_others_continue(tasks: Commands):
    done = tasks.ends["sweep"]
    assert done.status == 0, done.output
    assert "Traceback" not in done.output
    assert "seed-1 failed: the training step does not fit in memory" in done.output
    assert last_step(tasks.base / "sweep" / "runs" / "batch-16_rate-0.004_epochs-1_seed-2") > 0
