"""The steps that a command line asks for: which steps, how many executions, with which flags; and what each lowers."""

from __future__ import annotations

import json
import pathlib
import types
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.tpu import programs as module
from bert_jax.tpu.costs.flags import parse_flags
from bert_jax.tpu.programs import Case, cases, vocabulary_size

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


def steps_of(rows: int, *flags: str) -> tuple[int | None, str]:
    """Returns (steps, the work that they cover) of the only step that a command line asks for, on a program with this many
    rows."""
    (case,) = wanted("--topology=v5e:2x2", *flags)
    mesh = types.SimpleNamespace(shape={"data": 4})
    step = case.step(types.SimpleNamespace(mesh=mesh, rows=rows, length=128, flops=1.0))  # type: ignore[arg-type]
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
    program = types.SimpleNamespace(mesh=types.SimpleNamespace(shape={"data": 4}), rows=16, length=128, flops=3.0)
    names = {}
    for flags in ((f"--config={BASE}", "--phase=1"), (f"--config={BASE}", "--phase=0", "--step=eval"), (MRPC,),
                  ("--config=experiments/finetune/grid.py:rte",)):  # fmt: skip
        (case,) = wanted(*flags, TOPOLOGY)
        step = case.step(program)  # type: ignore[arg-type]
        names[step.name] = step.config
        assert (step.kind, step.mesh, step.rows, step.length, step.flops) == (case.kind, {"data": 4}, 16, 128, 3.0)
    grid = "experiments/finetune/grid.py:rte"
    assert names == {"phase 1, train step": BASE, "phase 0, eval step": BASE, "finetune step": MRPC.partition("=")[2],
                     "finetune step (1 of 18 runs)": grid}  # fmt: skip


def test_each_kind_of_step_has_its_own_lowering(monkeypatch: pytest.MonkeyPatch):
    for name in ("finetuning_step", "evaluation_step", "pretraining_step"):
        monkeypatch.setattr(module, name, lambda *given, name=name: (name, *given))
    monkeypatch.setattr(module, "model_config_to_finetune", lambda model: f"the {model} model")
    devices: Any = ["a device"]
    train, evaluation, task = (
        wanted(*flags, TOPOLOGY)[0]
        for flags in (
            (f"--config={BASE}", "--phase=1"),
            (f"--config={BASE}", "--phase=1", "--step=eval"),
            (MRPC, "--model=large"),
        )
    )
    assert train.lower(devices) == ("pretraining_step", train.experiment, 1, devices)
    assert evaluation.lower(devices) == ("evaluation_step", evaluation.experiment, 1, devices)
    assert task.lower(devices) == ("finetuning_step", task.experiment, "the large model", devices)


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


def test_the_model_to_finetune_is_the_named_or_the_local_initial_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "find_model_directory", lambda path: pathlib.Path(path) / "found")
    here = f"--config.init_from={tmp_path}"
    assert [wanted(MRPC, TOPOLOGY, *flags)[0].model for flags in ((), ("--config.init_from=OWNER/NAME",), (here,))] == [
        "base", "base", f"{tmp_path}/found",
    ]  # fmt: skip
    assert wanted(MRPC, TOPOLOGY, here, "--model=tiny")[0].model == "tiny"
    assert wanted(MRPC, TOPOLOGY, here)[0].experiment.init_from == str(tmp_path)


def test_the_vocabulary_size_comes_from_a_local_corpus(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        module, "open_corpus", lambda path: types.SimpleNamespace(vocabulary=types.SimpleNamespace(size=len(path)))
    )
    assert vocabulary_size({}) is None
    assert vocabulary_size({"corpus": {"directory": str(tmp_path / "gone")}}) is None
    assert vocabulary_size({"corpus": {"directory": str(tmp_path)}}) == len(str(tmp_path))
    fetched: list[str] = []

    def fetch(path: str, key: str) -> pathlib.Path:
        fetched.append(path)
        (tmp_path / "manifest.json").write_text(json.dumps({"vocabulary": {"size": 77}}))
        return tmp_path / "manifest.json"

    monkeypatch.setattr(module, "fetched", fetch)
    monkeypatch.setattr(module, "read_manifest", lambda path: json.loads((path / "manifest.json").read_text()))
    assert vocabulary_size({"corpus": {"directory": "gs://bucket/corpus"}}) == 77
    assert fetched == [f"gs://bucket/corpus/{module.MANIFEST}"]


def test_settings_are_inferred_from_local_files_and_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def infer(values: dict[str, Any], given: set[str], *, vocabulary_size: int | None, download: bool) -> Any:
        assert (given, vocabulary_size, download) == ({"seed"}, 77, False)
        return values | {"seed": 5}, ["a note"]

    monkeypatch.setattr(module, "infer_settings", infer)
    monkeypatch.setattr(module, "vocabulary_size", lambda values: 77)
    (case,) = wanted(f"--config={BASE}", "--phase=0", "--config.seed=1", TOPOLOGY)
    assert case.experiment.seed == 5
    assert capsys.readouterr().err == "a note\n"
