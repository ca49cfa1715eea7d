"""The studies in experiments/studies/: each loads in both settings, and documents its command, hardware, duration and
expectation."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.studies.arms import check_finetuning, finetuning_values, pretraining_values, with_new_parts
from bert_jax.studies.parts import part_groups
from bert_jax.tasks.task import task_head_class

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STUDIES = sorted((REPOSITORY / "experiments" / "studies").glob("*.py"))
SETTINGS = [(file, setting) for file in STUDIES for setting in ("laptop", "pod")]


def load(file: pathlib.Path, setting: str) -> StudyExperiment:
    flags = parse_flags("study", "", [f"--config={file}:{setting}", "--workdir=unused"], schema=StudyExperiment)
    return StudyExperiment.from_dict(flags.config)


def pretraining(study: StudyExperiment, name: str) -> PretrainingExperiment:
    values, _ = infer_settings(pretraining_values(study, study.arm(name)), (), vocabulary_size=8_192)
    return PretrainingExperiment.from_dict(values)


@pytest.mark.parametrize(("file", "setting"), SETTINGS, ids=lambda value: getattr(value, "stem", value))
def test_every_arm_of_a_shipped_study_supports_its_tasks(file: pathlib.Path, setting: str):
    study = load(file, setting)
    assert study.setting == setting
    experiments = {arm.name: pretraining(study, arm.name) for arm in study.arms if not arm.shares}
    for arm in study.arms:
        for task in study.tasks:
            values = finetuning_values(study, arm, task, 0)
            head = task_head_class(FinetuningExperiment.from_dict({**values, "init_from": "any"}).task).typical()
            model = experiments[study.trainer(arm).name]
            if setting == "laptop":
                check_finetuning(values, model, head)
            else:  # the models have the same heads as those of "laptop", which are traced
                built = FinetuningExperiment.from_dict({**with_new_parts(values, model, head), "init_from": "any"})
                assert built.task.length <= model.model.max_position
    assert study.expected
    assert part_groups(study)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_shipped_studies_document_command_hardware_duration_and_expectation(file: pathlib.Path):
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    for setting in ("", ":pod"):
        assert f"--config=experiments/studies/{file.name}{setting} " in text
    for word in ("Hardware: 2 CPU cores", "v5e", "hour|minutes", "Expected, before it was run", "aot --config"):
        assert re.search(word, text), word


def test_the_shipped_studies_cover_the_ablations_of_the_paper_and_the_lineage():
    names = {file.stem for file in STUDIES}
    assert names == {"objectives", "sizes", "layers", "masking", "steps", "lineage", "positions", "recipe", "transfer"}
    table_5 = load(REPOSITORY / "experiments" / "studies" / "objectives.py", "pod")
    assert [arm.paper["SQuAD F1"] for arm in table_5.arms] == [88.5, 87.9, 77.8, 84.9]
