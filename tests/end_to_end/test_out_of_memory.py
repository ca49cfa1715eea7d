"""When memory runs out, a run ends with an error that names settings that would fit, and saved files stay."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import jax

from tests.end_to_end import forked
from tests.end_to_end.conftest import Ended
from tests.end_to_end.conftest import command as pretraining
from tests.end_to_end.forked import Done, Signal
from tests.end_to_end.runs import checkpoints, last_step
from tests.end_to_end.test_finetuning_recovery import command

COMPILING = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm."
RUNNING = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes."
RUNS_OUT = "does not fit in memory: it asks for 4.44 GiB of memory at once, which is not free, with "


@dataclasses.dataclass(frozen=True)
class Shortage(Signal):
    """Raises JAX's out-of-memory error instead of sending a signal."""

    message: str = RUNNING

    def send(self) -> None:
        raise jax.errors.JaxRuntimeError(self.message)


def refused(done: Done) -> str:
    """Returns the error with which a run ended."""
    assert done.status == 2, done.output
    assert "Traceback" not in done.output
    assert done.output.count("error: ") == 1
    return done.output.partition("error: ")[2]


def pretrained(experiment: pathlib.Path, workdir: pathlib.Path, *flags: str, at: Signal | None = None) -> Done:
    (done,) = forked.run(experiment.parent, pretraining(experiment, workdir, *flags), at=at)
    return done


def test_a_step_that_does_not_compile_keeps_earlier_checkpoints(experiment: pathlib.Path, late: Ended, tmp_path: pathlib.Path):
    workdir = shutil.copytree(late.workdir, tmp_path / "run")
    says = refused(pretrained(experiment, workdir, at=Shortage("jax.stages:Lowered.compile", message=COMPILING)))
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
    assert checkpoints(workdir) == checkpoints(late.workdir)


def test_a_run_out_of_memory_in_a_step_resumes_with_the_suggested_flag_until_its_evaluation(
    experiment: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = tmp_path / "run"
    says = refused(pretrained(experiment, workdir, at=Shortage("jax.stages:Compiled.__call__", call=7)))
    assert says.startswith(f"the training step of phase 0 {RUNS_OUT}8 rows of 32 tokens per step, 8 per device ")
    assert checkpoints(workdir) == [4]
    advised = next(line.strip() for line in says.splitlines() if "accumulation=2" in line)
    at = Shortage("bert_jax.training.steps:Program.evaluate")
    done = pretrained(experiment, workdir, advised, at=at)
    assert "resuming from step 4" in done.output
    assert refused(done).startswith("the evaluation of phase 0 does not fit in memory"), "as the program that ran out of it"
    assert (checkpoints(workdir)[-1], last_step(workdir)) == (8, 12)


def test_a_state_that_does_not_fit_is_named(experiment: pathlib.Path, tmp_path: pathlib.Path):
    at = Shortage("bert_jax.pretraining.start:initial_parameters")
    says = "the state (parameters and optimizer) does not fit in memory"
    assert refused(pretrained(experiment, tmp_path / "run", at=at)).startswith(says)


def test_a_task_out_of_memory_in_a_step_resumes_with_the_suggested_flag_until_its_evaluation(
    toys: pathlib.Path, tmp_path: pathlib.Path
):
    workdir, often = tmp_path / "run", ("--config.checkpoints.every=4", "--config.training.epochs=1", "--config.log_every=1")
    (done,) = forked.run(toys, command(toys, workdir, *often), at=Shortage("bert_jax.training.loop:StepSums.add", call=6))
    says = refused(done)
    assert says.startswith(f"the training step {RUNS_OUT}")
    assert " rows of 32 tokens per step, " in says
    for remedy in ("--config.model.remat=full", "--config.training.batch_size=8", "--config.task.length below 32"):
        assert remedy in says
    assert "`python -m bert_jax.aot --config=FILE --topology=v5e:4x4 --model=base`" in says
    assert checkpoints(workdir) == [4]
    at = Shortage("bert_jax.data.batches:EvaluationBatches.logits")
    (done,) = forked.run(toys, command(toys, workdir, *often, "--config.training.accumulation=2"), at=at)
    assert refused(done).startswith("the evaluation does not fit in memory: it asks for 4.44 GiB")
    assert "resuming from step 4" in done.output
    assert last_step(workdir) == 6, "the step that ran out of memory"


def test_a_sweep_run_out_of_memory_counts_as_failed_and_the_others_continue(toys: pathlib.Path, tmp_path: pathlib.Path):
    flags = ("--config.sweep.seeds=[1, 2]", "--config.training.epochs=1")
    at = Shortage("bert_jax.training.loop:StepSums.add")
    (done,) = forked.run(toys, command(toys, tmp_path / "run", *flags), at=at)
    assert done.status == 0, done.output
    assert "Traceback" not in done.output
    assert "seed-1 failed: the training step does not fit in memory" in done.output
    assert last_step(tmp_path / "run" / "runs" / "batch-16_rate-0.004_epochs-1_seed-2") > 0
