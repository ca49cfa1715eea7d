"""Which step is compiled of a task's experiment; lowered for CPU devices, nothing is compiled."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import pytest

from bert_jax import aot
from bert_jax.configs.files import read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.costs import cases
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.programs.lowered import (
    StepProgram,
    costliest_run,
    evaluation_step,
    finetuning_step,
    pretraining_step,
    with_overrides,
)

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_layers": 4, "num_heads": 2, "intermediate_size": 64, "max_position": 512}
SMALL = ModelConfig(**SIZES)


def step(config: str, *overrides: tuple[str, str], devices: int = 8) -> StepProgram:
    """The step of a shipped experiment on the small model."""
    given = [("init_from", "model"), ("model.scan_unroll", "1"), *overrides]
    values = read_experiment(f"experiments/finetune/{config}", given, FinetuningExperiment)
    return finetuning_step(FinetuningExperiment.from_dict(values), SMALL, jax.devices()[:devices])


def shapes(program: StepProgram) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in program.batch.items()}


def test_the_operations_of_a_training_step_have_the_names_of_the_models_parts():
    """By which a profile adds up their time."""
    phase = {"steps": 1, "length": 16, "batch_size": 4, "max_predictions": 3}
    model = SIZES | {"num_layers": 1, "scan_unroll": 1}
    experiment = PretrainingExperiment.from_dict({"model": model, "phases": [phase]})
    text = pretraining_step(experiment, 0, jax.devices()[:2]).lowered.as_text(debug_info=True)
    names = {part for name in re.findall(r'loc\("([^"]*/[^"]*)"', text) for part in re.findall(r"\w+", name)}
    parts = {"embeddings", "attention", "feed_forward", "pooler", "mlm_head", "nsp_head", "loss", "optimizer"}
    assert parts - names == set()


def test_of_a_sweep_the_run_with_most_rows_is_taken_on_the_devices_of_one_run():
    alone, pair = step("grid.py:glue/rte"), step("grid.py:glue/rte", ("sweep.devices_per_run", "2"))
    assert (alone.mesh.size, alone.rows, pair.mesh.size, pair.rows) == (1, 32, 2, 32)
    assert step("glue.py:mrpc").mesh.size == 8


def test_the_costliest_run_of_a_sweep_has_most_rows_and_then_most_epochs():
    sweep = {"batch_sizes": [16, 32], "epochs": [2, 4, 3]}
    run = costliest_run(FinetuningExperiment.from_dict({"init_from": "model", "sweep": sweep}))
    assert (run.training.batch_size, run.training.epochs) == (32, 4)


def test_an_experiment_with_other_values_is_the_same_elsewhere_and_must_be_possible():
    experiment = PretrainingExperiment.from_dict({"phases": [{"steps": 1}, {"steps": 2}]})
    changed = with_overrides(experiment, {"phases.1.accumulation": 4, "mesh.fsdp": 2})
    assert (changed.phases[1].accumulation, changed.mesh.fsdp) == (4, 2)
    assert with_overrides(changed, {"phases.1.accumulation": 1, "mesh.fsdp": 1}) == experiment
    with pytest.raises(UserError, match="does not divide into 3 microbatches"):
        with_overrides(experiment, {"phases.0.accumulation": 3})


def test_rows_hold_all_candidates_of_a_choice():
    program = step("swag.py:swag")
    assert (program.rows, program.length) == (16, 512)
    assert shapes(program)["cls_positions"] == (16, 8)
    assert shapes(program)["labels"] == (16, 2)


def test_the_batch_of_a_pupil_has_its_teachers_answers():
    program = step("distil.py:glue/mrpc")
    assert shapes(program)["teacher_logits"] == (32, 2, 3)
    assert shapes(program)["teacher_hidden_states"] == (32, 5, 128, 32)
    assert "teacher_hidden_states" not in step("distil.py:glue/mrpc", ("distillation.hidden_weight", "0.0")).batch
    assert "teacher_logits" not in step("glue.py:mrpc").batch


def test_an_experiment_file_is_run_once(tmp_path: pathlib.Path):
    file, runs = tmp_path / "experiment.py", tmp_path / "runs"
    file.write_text(
        "import pathlib\n\n\ndef get_config():\n"
        f"    file = pathlib.Path({str(runs)!r})\n"
        "    file.write_text('x' + (file.read_text() if file.exists() else ''))\n"
        "    return {'task': {'name': 'glue/mrpc', 'length': 128}}\n"
    )
    options, overrides, _ = aot.parse([f"--config={file}", "--topology=v5e:1x1", "--config.training.batch_size=7"])
    (case,) = cases.cases(options.config, overrides, options)
    experiment: Any = case.experiment
    assert (case.kind, experiment.training.batch_size, runs.read_text()) == ("finetune", 7, "x")


@pytest.mark.parametrize("config", ["squad.py:v1.1", "ner.py:conll2003", "gap.py", "ulmfit.py:glue/sst2", "ner_features.py"])
def test_the_step_of_every_kind_of_head_can_be_lowered(config: str):
    program = step(config)
    assert program.flops > 0
    assert program.rows % 8 == 0


def test_the_step_without_pairs_is_lowered_without_pooler_and_next_sentence_head():
    values = {"model": {**SIZES, "scan_unroll": 1}, "examples": {"pairs": "none"}, "phases": [{"steps": 1, "batch_size": 8}]}
    experiment = PretrainingExperiment.from_dict(values)
    for program in (pretraining_step(experiment, 0, jax.devices()), evaluation_step(experiment, 0, jax.devices())):
        assert program.arguments()["parameters"].keys() == {"embeddings", "encoder", "mlm_head"}


def test_the_step_of_an_unknown_task_is_an_error_that_names_the_nearest():
    with pytest.raises(UserError, match=r"config\.task\.name='conll20003' is no task; did you mean 'conll2003'"):
        step("ner.py:conll2003", ("task.name", "conll20003"))
