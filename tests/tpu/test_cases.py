"""The steps that a command line asks for: which steps, how many executions, with which flags."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.data.corpus.store import MANIFEST
from bert_jax.errors import UserError
from bert_jax.storage.objects import write
from bert_jax.tpu.costs.flags import parse_flags
from bert_jax.tpu.programs import Case, StepProgram, cases
from tests.end_to_end.runs import build_corpus

BASE = "experiments/pretrain/bert_base.py"
MRPC = "--config=experiments/finetune/glue.py:mrpc"
TOPOLOGY = "--topology=v5e:2x2"


def wanted(*flags: str) -> list[Case]:
    """Returns the steps that a command line asks for."""
    options, overrides, _ = parse_flags("", flags)
    return cases(options.config, overrides, options)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([f"--config={BASE}"], "--topology is missing, for example --topology=v5e:4x4"),
        (["--topology=v5e:4x4"], "--config is missing"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=trian"], "--step=trian is unknown: did you mean 'train'"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--price=-1"], "--price=-1 must be at least 0"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--price=2e9"], "--price=2e9 must be"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--slices=0"], "--slices=0 must be at least 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--slices=65537"], "--slices=65537 must be .* at most 65,536"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phase=-1"], "--phase=-1 must be at least 0"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phase=2"], "--phase=2 does not exist in .*; give a phase from 0 to 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phases.0.length=8"], "--config.phases.0.length"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--against.seed=1"], "--against.seed sets a key of --against"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phase=7"], "give a phase from 0 to 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=finetune"], "--step=finetune does not apply to .*, a pretr"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=eval", "--rows=0"], "--rows=0 must be at least 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--rows=9"], "--rows=9 does not apply to .*, whose number of steps is fixed"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=eval", "--save=x"], "--save=x saves .* no command loads the eval"),
        ([MRPC, "--topology=v5e:1x1", "--save=x"], "no command loads the finetune step of"),
        ([MRPC, "--topology=v5e:1x1", "--phase=0"], "--phase=0 does not apply to .*, a fine-tuning experiment"),
        ([MRPC, "--topology=v5e:1x1", "--step=eval"], "a fine-tuning experiment; leave it out \\(the only step"),
        ([MRPC, "--topology=v5e:1x1", "--config.phases.0.length=8"], "there is no 'phases'"),
    ],
)
def test_a_wrong_flag_is_an_error_that_names_it(flags: list[str], says: str):
    with pytest.raises(UserError, match=says):
        wanted(*flags)


@pytest.mark.parametrize(
    "flags", [("--slices=65536",), ("--phase=0",), ("--price=0", "--no-remedies"), ("--price=1e9", "--step=train")]
)
def test_flags_at_their_limits_are_accepted(flags: tuple[str, ...]):
    assert wanted(f"--config={BASE}", "--topology=v5e:4x4", *flags)


def test_against_overrides_apply_to_the_other_experiment():
    with pytest.raises(UserError, match=r"--against\.sede=1: .* did you mean 'seed'"):
        cases(BASE, [("sede", "1")], parse_flags("", [f"--config={BASE}", "--topology=v5e:1x1"])[0], "against")
    flags = [f"--config={BASE}", "--config.seed=1", "--against=b.py", "--against.seed=2", "--topology=v5e:1x1"]
    _, own, others = parse_flags("", flags)
    assert (own, others) == ([("seed", "1")], [("seed", "2")])


def test_all_phases_are_examined_unless_one_is_named():
    base = (f"--config={BASE}", "--topology=v5e:4x4")
    assert [(case.phase, case.kind) for case in wanted(*base)] == [(0, "train"), (1, "train")]
    assert [(case.phase, case.kind) for case in wanted(*base, "--phase=1", "--step=eval")] == [(1, "eval")]
    assert [(case.config, case.examples) for case in wanted(*base, "--save=x")] == [(BASE, None)] * 2
    (case,) = wanted(MRPC, "--topology=v5e:1x1", "--rows=7")
    assert (case.config, case.phase, case.kind, case.examples) == (MRPC.partition("=")[2], 0, "finetune", 7)


def described(rows: int) -> StepProgram:
    """Returns a step of four devices with this many rows, without its operations."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    return StepProgram(jax.jit(lambda: 0).lower(), mesh, {}, {}, rows, 128, 3.0)


def steps_of(rows: int, *flags: str) -> tuple[int | None, str]:
    """Returns (steps, the work that they cover) of the only step that a command line asks for, on a program with this many
    rows."""
    (case,) = wanted("--topology=v5e:2x2", *flags)
    step = case.step(described(rows))
    return step.steps, step.covers


def test_rows_give_the_steps_of_a_pass():
    evaluation = (f"--config={BASE}", "--phase=0", "--step=eval")
    assert steps_of(256, *evaluation) == (None, "")
    assert steps_of(256, *evaluation, "--rows=10000") == (40, "1 pass, 10,000 rows")
    task = MRPC
    assert steps_of(32, task)[0] is None
    assert steps_of(32, task, "--rows=3668", "--config.training.epochs=2") == (2 * 115, "2 epochs, 3,668 examples")
    assert steps_of(32, task, "--rows=3680", "--config.training.epochs=2")[0] == 2 * 115
    assert steps_of(256, *evaluation, "--rows=10240")[0] == 40
    grid = ("--config=experiments/finetune/grid.py:rte", "--config.sweep.epochs=[2,4]", "--config.sweep.batch_sizes=[16,32]")
    assert steps_of(32, *grid, "--rows=3668")[0] == 4 * 115
    assert steps_of(16, f"--config={BASE}", "--phase=0") == (900_000, "experiment")


def test_a_step_is_named_after_its_experiment_and_program():
    names = {}
    for flags in ((f"--config={BASE}", "--phase=1"), (f"--config={BASE}", "--phase=0", "--step=eval"), (MRPC,),
                  ("--config=experiments/finetune/grid.py:rte",)):  # fmt: skip
        (case,) = wanted(*flags, TOPOLOGY)
        step = case.step(described(16))
        names[step.name] = step.config
        assert (step.kind, step.mesh, step.rows, step.length, step.flops) == (case.kind, {"data": 4}, 16, 128, 3.0)
    grid = "experiments/finetune/grid.py:rte"
    assert names == {"phase 1, train step": BASE, "phase 0, eval step": BASE, "finetune step of base": MRPC.partition("=")[2],
                     "finetune step of base (1 of 18 runs)": grid}  # fmt: skip


def test_microbatches_come_from_the_phase_or_the_task():
    (train, evaluation), (task,) = (
        [
            wanted(f"--config={BASE}", "--phase=1", "--config.phases.1.accumulation=4", TOPOLOGY, *step)[0]
            for step in ((), ("--step=eval",))
        ],
        wanted(MRPC, "--config.training.accumulation=2", TOPOLOGY),
    )
    assert (train.accumulation, evaluation.accumulation, task.accumulation) == (4, 1, 2)
    assert train.changed({"seed": 7}).experiment.seed == 7


MODEL = pathlib.Path(__file__).parents[1] / "golden" / "heads" / "pretraining"


def test_the_model_to_finetune_is_the_named_or_the_local_initial_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "model").symlink_to(MODEL)
    here = f"--config.init_from={tmp_path}"
    assert [wanted(MRPC, TOPOLOGY, *flags)[0].model for flags in ((), ("--config.init_from=OWNER/NAME",), (here,))] == [
        "base", "base", f"{tmp_path}/model",
    ]  # fmt: skip
    told = "config.init_from=OWNER/NAME is not on this machine, so base is estimated; aot --model names another model\n"
    assert capsys.readouterr().err == told
    assert wanted(MRPC, TOPOLOGY, "--config.init_from=OWNER/NAME", "--model=tiny")[0].model == "tiny"
    assert wanted(MRPC, TOPOLOGY, here, "--model=tiny")[0].model == "tiny"
    assert wanted(MRPC, TOPOLOGY, here)[0].experiment.init_from == str(tmp_path)
    assert capsys.readouterr().err == ""


def test_a_teacher_is_refused_only_for_a_student_whose_size_is_known(capsys: pytest.CaptureFixture[str]):
    """The teacher is 20 wide."""
    flags = ("--config=experiments/finetune/distil.py:glue/mrpc", TOPOLOGY, f"--config.distillation.teacher={MODEL}")
    with pytest.raises(UserError, match="the teacher is 20 wide and the student 128; set hidden_weight to 0"):
        wanted(*flags, "--model=tiny")
    assert wanted(*flags, f"--config.init_from={MODEL}")
    assert wanted(*flags, "--model=tiny", "--config.distillation.hidden_weight=0")
    assert capsys.readouterr().err == ""
    assert wanted(*flags, "--config.init_from=OWNER/NAME")[0].model == "base"
    assert f"teacher={MODEL} is not as wide as base, so a teacher like the model is estimated\n" in capsys.readouterr().err


def test_the_vocabulary_size_comes_from_the_corpus_and_is_reported(
    tmp_path: pathlib.Path, bucket: str, capsys: pytest.CaptureFixture[str]
):
    """The corpus is missing, on this machine, or in a bucket. From the bucket, only the manifest is read."""
    corpus = build_corpus(tmp_path / "corpus", documents=3)
    manifest = (corpus / MANIFEST).read_bytes()
    size = json.loads(manifest)["vocabulary"]["size"]
    write(f"{bucket}/corpus/{MANIFEST}", manifest)
    capsys.readouterr()
    flags, sizes = ("--config=experiments/pretrain/quickstart.py", TOPOLOGY), {}
    for directory in (str(tmp_path / "gone"), str(corpus), f"{bucket}/corpus"):
        (case,) = wanted(*flags, f"--config.corpus.directory={directory}")
        sizes[directory] = (case.experiment.model.vocab_size, capsys.readouterr().err)  # type: ignore[union-attr]
    note = f"config.model.vocab_size is {size}, as in the corpus (the experiment file has 8192)\n"
    assert list(sizes.values()) == [(8192, ""), (size, note), (size, note)]
    (case,) = wanted(*flags, f"--config.corpus.directory={corpus}", "--config.model.vocab_size=500")
    assert case.experiment.model.vocab_size == 500  # type: ignore[union-attr]
