"""Which step of a task's experiment is compiled; it is lowered for CPU devices, and nothing is compiled."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data import ROWS
from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import masking_tables
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import RowShape, assemble_rows
from bert_jax.errors import UserError
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.model.config import ModelConfig
from bert_jax.objectives.flops import forward_flops, task_row_flops
from bert_jax.objectives.objective import abstract_rows
from bert_jax.pretraining.program import phase_row_flops
from bert_jax.sharding.rules import BATCH
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.task import task_head_class
from bert_jax.tpu import programs
from bert_jax.tpu.costs import flags as aot_flags
from bert_jax.tpu.programs import (
    Case,
    StepProgram,
    costliest_run,
    evaluation_step,
    finetuning_step,
    model_config_to_finetune,
    pretraining_step,
    with_overrides,
)
from bert_jax.training import teachers as placed
from tests.data.corpora import corpus_of

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_layers": 4, "num_heads": 2, "intermediate_size": 64, "max_position": 512}
SMALL = ModelConfig(**SIZES)


def step(config: str, *overrides: tuple[str, str], devices: int = 8) -> StepProgram:
    """Returns the step of a shipped experiment on the small model."""
    given = [("init_from", "model"), ("model.scan_layers", "true"), *overrides]
    values = read_experiment(f"experiments/finetune/{config}", given, FinetuningExperiment)
    return finetuning_step(FinetuningExperiment.from_dict(values), SMALL, jax.devices()[:devices])


def shapes(program: StepProgram) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in program.batch.items()}


def donated(program: StepProgram) -> list[bool]:
    """Returns whether the memory of each argument is donated; only the old state's is."""
    parts = [jax.tree.leaves(part, is_leaf=lambda x: hasattr(x, "donated")) for part in program.lowered.args_info[0]]
    found = [{x.donated for x in part} for part in parts]
    assert all(len(flags) == 1 for flags in found)
    return [flags.pop() for flags in found]


def test_operations_of_a_training_step_are_named_after_model_parts():
    """A profile uses these names to add up the time by part."""
    phase = {"steps": 1, "length": 16, "batch_size": 4, "max_predictions": 3}
    model = SIZES | {"num_layers": 1, "scan_layers": True}
    experiment = PretrainingExperiment.from_dict({"model": model, "phases": [phase]})
    program = pretraining_step(experiment, 0, jax.devices()[:2])
    assert donated(program) == [True, False, False]
    text = program.lowered.as_text(debug_info=True)
    names = {part for name in re.findall(r'loc\("([^"]*/[^"]*)"', text) for part in re.findall(r"\w+", name)}
    parts = {"embeddings", "attention", "feed_forward", "pooler", "mlm_head", "nsp_head", "loss", "optimizer"}
    assert parts - names == set()


def test_the_largest_run_of_a_sweep_is_lowered_on_the_devices_of_one_run(unlowered):
    alone, pair = step("grid.py:glue/rte"), step("grid.py:glue/rte", ("sweep.devices_per_run", "2"))
    assert (alone.mesh.size, alone.rows, pair.mesh.size, pair.rows) == (1, 32, 2, 32)
    assert step("glue.py:mrpc").mesh.size == 8


def test_the_costliest_sweep_run_has_most_rows_then_most_epochs():
    sweep = {"batch_sizes": [16, 32], "epochs": [2, 4, 3]}
    run = costliest_run(FinetuningExperiment.from_dict({"init_from": "model", "sweep": sweep}))
    assert (run.training.batch_size, run.training.epochs) == (32, 4)


def test_overrides_change_only_their_keys_and_are_validated():
    experiment = PretrainingExperiment.from_dict({"phases": [{"steps": 1}, {"steps": 2}]})
    changed = with_overrides(experiment, {"phases.1.accumulation": 4, "mesh.fsdp": 2})
    assert (changed.phases[1].accumulation, changed.mesh.fsdp) == (4, 2)
    assert with_overrides(changed, {"phases.1.accumulation": 1, "mesh.fsdp": 1}) == experiment
    with pytest.raises(UserError, match="is not divisible by 3 microbatches"):
        with_overrides(experiment, {"phases.0.accumulation": 3})


def test_rows_have_slots_for_all_candidates_of_a_choice(unlowered):
    program = step("swag.py:swag")
    assert (program.rows, program.length) == (16, 512)
    assert shapes(program)["cls_positions"] == (16, 8)
    assert shapes(program)["labels"] == (16, 2)


def test_the_teacher_of_a_task_is_part_of_its_step(unlowered):
    """A teacher that is not there is as large as the student."""
    assert step("glue.py:mrpc").teacher is None
    alone, taught = step("glue.py:mrpc"), step("distil.py:glue/mrpc")
    head = task_head_class(TaskConfig(name="glue/mrpc")).typical()
    forward = forward_flops(task_row_flops(SMALL, head, RowShape(head.layout, 128, 2, 1)))
    assert taught.flops - alone.flops == pytest.approx(taught.rows * forward)
    assert unlowered[-1][1][-1] == taught.arguments()["teacher"]
    assert jax.tree.map(jnp.shape, taught.teacher) == jax.tree.map(jnp.shape, taught.state.params)


def test_the_teacher_of_a_task_has_the_size_in_its_directory(unlowered):
    found = ("distillation.teacher", str(TEACHER))
    taught = step("distil.py:glue/mrpc", found, ("distillation.hidden_weight", "0"))
    assert taught.teacher["embeddings"]["word_embeddings"]["embedding"].shape[1] == 20
    alike = step("distil.py:glue/mrpc", found)
    assert alike.teacher["embeddings"]["word_embeddings"]["embedding"].shape[1] == 32, "hidden states have to be compared"


def test_only_a_rejected_kernel_is_taken_from_the_teacher_of_a_task(unlowered, monkeypatch):
    """As in a run, whose `config.model` is not the teacher's."""
    values = read_experiment("experiments/finetune/distil.py:glue/mrpc", [("init_from", "model")], FinetuningExperiment)
    teachers: list[ModelConfig] = []
    monkeypatch.setattr(placed, "resolve", lambda config, mesh: teachers.append(config) or config)
    chosen = with_overrides(FinetuningExperiment.from_dict(values), {"model.attention": "plain"})
    case = Case("distil.py", chosen, "finetune", 0, str(TEACHER), None)
    for one in (case, case.without_kernels({"attention"})):
        one.lower(jax.devices()[:1])
    assert [teacher.attention for teacher in teachers] == ["auto", "plain"]


def test_an_experiment_file_is_run_once(tmp_path: pathlib.Path):
    file, runs = tmp_path / "experiment.py", tmp_path / "runs"
    file.write_text(
        "import pathlib\n\n\ndef get_config():\n"
        f"    file = pathlib.Path({str(runs)!r})\n"
        "    file.write_text('x' + (file.read_text() if file.exists() else ''))\n"
        "    return {'task': {'name': 'glue/mrpc', 'length': 128}}\n"
    )
    own = [f"--config={file}", "--topology=v5e:1x1", "--config.training.batch_size=7"]
    options, overrides, _ = aot_flags.parse_flags("", own)
    (case,) = programs.cases(options.config, overrides, options)
    experiment: Any = case.experiment
    assert (case.kind, experiment.training.batch_size, runs.read_text()) == ("finetune", 7, "x")


@pytest.mark.parametrize(
    "config",
    ["squad.py:v1.1", "ner.py:conll2003", "gap.py", "ulmfit.py:glue/sst2", "ner_features.py", "distil.py:glue/mrpc"],
)
def test_steps_of_every_kind_of_head_can_be_lowered(config: str):
    program = step(config)
    assert program.flops > 0
    assert program.rows % 8 == 0
    assert donated(program) == [True, False, False, *([False] if program.teacher else [])]


def test_a_step_without_pairs_has_neither_pooler_nor_nsp_head(unlowered):
    values = {"model": {**SIZES, "scan_layers": True}, "examples": {"pairs": "none"}, "phases": [{"steps": 1, "batch_size": 8}]}
    experiment = PretrainingExperiment.from_dict(values)
    for program in (pretraining_step(experiment, 0, jax.devices()), evaluation_step(experiment, 0, jax.devices())):
        assert program.arguments()["parameters"].keys() == {"embeddings", "encoder", "mlm_head"}


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"config\.task\.name='conll20003' is not a task; did you mean 'conll2003'"):
        step("ner.py:conll2003", ("task.name", "conll20003"))


# -------------------------------------------------------------------------------------------------- the programs, not lowered


@pytest.fixture
def unlowered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the mesh and the arguments of every step that would have been lowered."""
    asked: list[Any] = []
    monkeypatch.setattr(programs, "_lower", lambda mesh, step, *arguments: asked.append((mesh, arguments)))
    return asked


PHASES = [{"steps": 1, "batch_size": 16, "length": 64}, {"steps": 1, "batch_size": 24, "length": 32, "max_predictions": 7}]
TEACHER = pathlib.Path(__file__).parents[1] / "golden" / "heads" / "pretraining"  # 20 wide
PLAIN = {"model": {**SIZES, "scan_layers": True}, "phases": PHASES, "evaluation": {"batch_size": 40}}


@pytest.mark.parametrize("targets", ROWS)
def test_batch_shapes_equal_real_batches(targets: str):
    corpus = corpus_of([[9, 9]] * 20)
    config = ExampleConfig(
        length=48, max_predictions=11, packed_examples=3, targets=targets, pairs="none" if targets == "translated" else "original"
    )
    if targets == "translated":
        corpus = dataclasses.replace(corpus, languages=("en", "de"))
    rows = assemble_rows(corpus, plan_epoch(corpus, config, seed=0, epoch=0), np.arange(5), masking_tables(corpus.vocabulary))
    found = abstract_rows(5, 48, 11, 3, targets)
    assert {name: (x.shape, x.dtype) for name, x in found.items()} == {name: (x.shape, x.dtype) for name, x in rows.items()}


def test_the_step_of_a_phase_has_its_rows_and_flops(unlowered):
    experiment, devices = PretrainingExperiment.from_dict(PLAIN), jax.devices()[:2]
    program = pretraining_step(experiment, 1, devices)
    ((mesh, (state, batch, scalars)),) = unlowered
    assert scalars == program.scalars == {"seed": experiment.seed}
    assert (list(mesh.devices.flat), program.mesh, program.state, program.batch) == (devices, mesh, state, batch)
    assert (program.rows, program.length, program.teacher) == (24, 32, None)
    assert {name: x.shape for name, x in batch.items()} == {name: x.shape for name, x in abstract_rows(24, 32, 7, 1).items()}
    assert {x.sharding for x in batch.values()} == {NamedSharding(mesh, BATCH)}
    assert program.flops == 24 * phase_row_flops(experiment, 1)
    assert program.arguments() == {"parameters": state.params, "optimizer": state.opt_state, "batch": batch}


def test_an_evaluation_has_its_own_rows_and_a_third_of_the_flops(unlowered):
    experiment = PretrainingExperiment.from_dict(PLAIN)
    program = evaluation_step(experiment, 1, jax.devices()[:8])
    ((mesh, (params, batch)),) = unlowered
    assert (program.mesh, program.state, program.batch, program.rows, program.length) == (mesh, params, batch, 40, 32)
    assert {name: x.shape for name, x in batch.items()} == {name: x.shape for name, x in abstract_rows(40, 32, 7, 1).items()}
    assert program.flops == 40 * phase_row_flops(experiment, 1) / 3
    assert program.arguments() == {"parameters": params, "batch": batch}


def test_a_described_teacher_is_an_argument_and_counts_in_the_flops(unlowered):
    values = PLAIN | {"teacher": str(TEACHER), "distillation": {"hidden_weight": 0.5}}
    program = pretraining_step(PretrainingExperiment.from_dict(values), 1, jax.devices()[:1])
    ((_, (state, _, _, params)),) = unlowered
    assert program.arguments().keys() == {"parameters", "optimizer", "batch", "teacher"}
    assert program.arguments()["teacher"] == program.teacher == params
    assert params.keys() == {"embeddings", "encoder", "mlm_head"}
    config = config_from_json(json.loads((TEACHER / "config.json").read_text()), "")
    assert state.params["distillation"]["kernel"].shape == (SIZES["hidden_size"], config.hidden_size)
    taught = PretrainingExperiment.from_dict(values | {"distillation": {"hidden_weight": 0.5, "teacher_width": 20}})
    assert program.flops == 24 * phase_row_flops(taught, 1, config) > 24 * phase_row_flops(taught, 1)


@pytest.mark.parametrize(("make", "key"), [(pretraining_step, "phases.0"), (evaluation_step, "evaluation")])
def test_rows_that_do_not_divide_among_the_devices_are_refused(make, key, unlowered):
    phases = [{"steps": 1, "batch_size": 12, "length": 32}]
    experiment = PretrainingExperiment.from_dict(PLAIN | {"phases": phases, "evaluation": {"batch_size": 36}})
    with pytest.raises(UserError, match=rf"config\.{key}\.batch_size"):
        make(experiment, 0, jax.devices())
    assert unlowered == []


@pytest.mark.parametrize(("batch", "accumulation", "rows"), [(32, 1, 32), (33, 1, 40), (7, 1, 8), (20, 4, 32)])
def test_task_rows_fit_the_batch_and_divide_over_devices_and_microbatches(batch, accumulation, rows, unlowered):
    flags = (("training.batch_size", f"{batch}"), ("training.accumulation", f"{accumulation}"))
    program = step("glue.py:mrpc", *flags)
    assert (program.rows, program.length, program.batch["labels"].shape[0]) == (rows, 128, rows)
    head = task_head_class(TaskConfig(name="glue/mrpc")).typical()
    assert program.flops == rows * task_row_flops(SMALL, head, RowShape(head.layout, 128, 2))


def test_the_model_to_fine_tune_is_a_published_size_or_a_directory(tmp_path: pathlib.Path):
    assert (model_config_to_finetune("large").num_layers, model_config_to_finetune(str(TEACHER)).hidden_size) == (24, 20)
    with pytest.raises(
        UserError,
        match=r"--model=.* has no config\.json; give a directory of a Hugging Face model, or a "
        r"published size",
    ):
        model_config_to_finetune(str(tmp_path))
    with pytest.raises(UserError, match=r"no published model is called 'larg'; did you mean 'large'"):
        model_config_to_finetune("larg")
