from __future__ import annotations

import ast
import dataclasses
import pathlib
import re

import pytest

from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.model.config import published_sizes
from bert_jax.model.pretraining import count_parameters
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import mesh_shape
from tests.documented import own_experiment

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted((REPOSITORY / "experiments" / "pretrain").glob("*.py"))
FINETUNING = sorted((REPOSITORY / "experiments" / "finetune").glob("*.py"))


def documented(file: pathlib.Path) -> str:
    """Returns FILE[:ARG] as in the docstring's command."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    found = re.search(rf"--config=experiments/\w+/{file.name}(:\S+)?", text)
    return str(file) + (found[1] or "" if found else "")


def load_finetuning(name: str) -> FinetuningExperiment:
    flags = ["--workdir=unused", "--config.init_from=model", f"--config={name}"]
    return FinetuningExperiment.from_dict(parse_flags("finetune", "", flags, schema=FinetuningExperiment).config)


def load(name: str) -> PretrainingExperiment:
    flags = parse_flags("pretrain", "", [f"--config={name}", "--workdir=unused"], schema=PretrainingExperiment)
    return PretrainingExperiment.from_dict(flags.config)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_experiment_loads_and_validates(file):
    assert load(documented(file)).phase_starts()[-1] > 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_experiment_documents_command_hardware_duration_and_expectation(file):
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    assert "tpu_scripts/run.sh" in text
    assert file.stem == "quickstart" or f"--config=experiments/pretrain/{file.name}" in text
    for word in ("CPU|TPU|v5e", "hour|minutes", "xpect"):
        assert re.search(word, text), f"{file.name}: nothing about {word}"


def test_the_quickstart_documents_the_accuracies_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text()
    own, words = re.findall(r"MLM accuracy ([\d.]+) % \(word frequency alone ([\d.]+) %\)", readme)[-1]
    text = " ".join((REPOSITORY / "experiments" / "pretrain" / "quickstart.py").read_text().split())
    times = float(own) / float(words)
    assert f"MLM accuracy {own} %, which is {times:.1f} times as much as word frequency alone reaches ({words} %)." in text


def test_the_experiment_that_the_page_shows_has_a_model_and_its_phases(tmp_path: pathlib.Path):
    (tmp_path / "mine.py").write_text(own_experiment())
    for size, width in {"narrow": 128, "wide": 256}.items():
        experiment = load(f"{tmp_path / 'mine.py'}:{size}")
        assert experiment.phase_starts() == [0, 3_000, 3_500]
        config = dataclasses.replace(experiment.model, vocab_size=1_000)
        assert (config.num_layers, config.hidden_size) == (2, width)
        assert count_parameters(config).trained > 1_000 * width


def test_laptop_more_continues_with_the_last_row_length():
    whole, more = (load(f"experiments/pretrain/laptop.py{part}") for part in ("", ":more"))
    (phase,) = more.phases
    assert dataclasses.replace(phase, steps=whole.phases[-1].steps) == whole.phases[-1]
    assert dataclasses.replace(more, phases=whole.phases) == whole


@pytest.mark.parametrize("size", sorted(published_sizes()))
def test_every_published_miniature_is_an_experiment(size):
    layers, width = published_sizes()[size]
    model = load(f"experiments/pretrain/bert_miniature.py:{size}").model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.intermediate_size) == (
        layers,
        width,
        width // 64,
        4 * width,
    )


def test_base_and_large_have_the_settings_of_the_paper():
    for name, parameters in (("base", 109_482_240), ("large", 335_141_888)):
        experiment = load(f"experiments/pretrain/bert_{name}.py")
        counts = count_parameters(experiment.model)
        padded = (experiment.model.padded_vocab_size - 30_522) * experiment.model.hidden_size
        assert (counts.trained, counts.fixed, counts.padded) == (parameters, 0, padded)
        assert [(phase.length, phase.steps, phase.batch_size) for phase in experiment.phases] == [
            (128, 900_000, 256),
            (512, 100_000, 256),
        ]
        (schedule,) = experiment.schedules()
        assert (schedule.peak, schedule.warmup_steps, schedule.steps) == (1e-4, 10_000, 1_000_000)
        assert (experiment.optimizer.name, experiment.optimizer.epsilon, experiment.optimizer.weight_decay) == (
            "bert_adam",
            1e-6,
            0.01,
        )


@pytest.mark.parametrize(("name", "chips"), [("bert_base", 16), ("bert_large", 64), ("lamb_large", 256)])
def test_the_batches_of_an_experiment_divide_over_the_chips_it_names(name, chips):
    experiment = load(f"experiments/pretrain/{name}.py")
    data, fsdp, _ = mesh_shape(MeshConfig(), chips).values()
    for phase in experiment.phases:
        assert phase.batch_size % (data * fsdp * phase.accumulation) == 0
    assert experiment.evaluation.batch_size % (data * fsdp) == 0


@pytest.mark.parametrize("file", FINETUNING, ids=lambda file: file.stem)
def test_every_finetuning_experiment_loads_and_documents_command_and_expectation(file):
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    assert f"--config=experiments/finetune/{file.name}" in text
    assert re.search("chip|laptop", text)
    assert "xpect" in text
    assert len(file.read_text().splitlines()) < 50
    assert load_finetuning(documented(file)).runs()


@pytest.mark.parametrize("file", ["glue", "squad", "distil", "grid", "ner", "sick", "ulmfit"])
def test_an_experiment_for_several_tasks_requires_one(file: str):
    with pytest.raises(UserError, match=rf"needs an argument, --config=\S+/{file}\.py:ARG; for example \S+/{file}\.py:\S+$"):
        load_finetuning(f"experiments/finetune/{file}.py")


def test_the_grid_has_the_values_of_the_paper():
    runs = load_finetuning("experiments/finetune/grid.py:glue/rte").runs()
    assert {run.training.batch_size for run in runs} == {16, 32}
    assert {run.training.learning_rate for run in runs} == {5e-5, 3e-5, 2e-5}
    assert {run.training.epochs for run in runs} == {2, 3, 4}
    assert len(runs) == 18


@pytest.mark.parametrize(
    "layers",
    ["embeddings", "second_to_last", "last", "last_four_mix", "last_four_concat", "scalar_mix", "embeddings_and_last"],
)
def test_every_row_of_table_7_and_the_features_of_cove_are_experiments(layers):
    experiment = load_finetuning(f"experiments/finetune/ner_features.py:{layers}")
    assert (experiment.head.layers, experiment.head.lstm, experiment.training.freeze_encoder) == (layers, 768, True)
