"""Techniques beyond plain fine-tuning, through keys on the command line; and the README's example of a user's own data, exactly
as printed."""

from __future__ import annotations

import pathlib
import re
import shlex

import jax
import numpy as np
import pytest

from bert_jax.interop.huggingface import import_model
from bert_jax.model.heads.sequence import SequenceHead
from tests.end_to_end import forked
from tests.end_to_end.forked import Commands, Surroundings, commands_run
from tests.end_to_end.runs import REPOSITORY, results
from tests.end_to_end.test_finetuning_recovery import SMALL, THAWING
from tests.end_to_end.toy_tasks import ROWS, TRAIN, entities, sentiment, write_model
from tests.flags import replacing

LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture(scope="module")
def techniques(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("techniques")
    write_model(base / "mnli", head=SequenceHead(labels=LABELS))
    write_model(base / "half", num_layers=1)
    sentiment(base / "sentiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROWS, "train", 4 * TRAIN)  # fewer epochs, and so fewer evaluations, for as many steps
        entities(base / "entities")

    def command(name: str, experiment: str, model: str, data: str, *flags: str) -> list[str]:
        places = [f"--workdir={base / name}", f"--config.init_from={base / model}", f"--config.task.data_dir={base / data}"]
        return ["finetune", f"--config={REPOSITORY}/experiments/finetune/{experiment}", *places, *replacing(SMALL, *flags)]

    weighted = ("--config.training.class_weights=[0]", "--config.training.label_smoothing=0.1")
    commands = {
        "ulmfit": command("ulmfit", "ulmfit.py:glue/sst2", "mnli", "sentiment", "--config.training.epochs=3", *weighted),
        "again": command(
            "again",
            "ulmfit.py:glue/sst2",
            "ulmfit",
            "sentiment",
            *weighted,
            "--config.keep_head=true",
            "--config.training.epochs=1",
            "--config.training.learning_rate=1e-20",
            "--config.selection.select=last",
        ),
        "distil": command(
            "distil",
            "distil.py:glue/sst2",
            "half",
            "sentiment",
            f"--config.distillation.teacher={base / 'ulmfit'}",
            "--config.task.train_rows=10",
        ),
        "features": command(
            "features",
            "ner_features.py:scalar_mix",
            "mnli",
            "entities",
            "--config.head.lstm=8",
            "--config.head.crf=iob2",
            "--config.training.crf_multiplier=1",
            "--config.training.epochs=5",
            "--config.training.learning_rate=6e-2",
        ),
        "tag": ["predict", "tag", f"--model={base / 'features'}", "ada bob saw oslo"],
    }
    return commands_run(base, commands)


def test_every_run_finishes(techniques: Commands):
    for name, end in techniques.ends.items():
        assert end.status == 0, (name, end.output)
        assert "Traceback" not in end.output


def test_a_model_with_three_labels_starts_a_task_with_two(techniques: Commands):
    assert "not used by the task, left out: pooler, sequence_head" in techniques.ends["ulmfit"].output
    assert "labels: 0, 1" in techniques.ends["ulmfit"].output


def test_gradual_unfreezing_leaves_layers_frozen_that_no_epoch_reached(techniques: Commands):
    said = "gradual unfreezing: in 3 epochs, the lowest 1 of layers and embeddings are never unfrozen"
    assert said in techniques.ends["ulmfit"].output
    before, after = (import_model(techniques.base / name).params for name in ("mnli", "ulmfit"))
    jax.tree.map(np.testing.assert_array_equal, after["embeddings"], before["embeddings"])
    kernels = (params["encoder"]["layers"]["feed_forward"]["intermediate"]["kernel"] for params in (before, after))
    assert (np.abs(np.subtract(*kernels)).max(axis=(1, 2)) > 0).all()  # of both layers


def test_a_kept_head_continues_from_its_trained_weights(techniques: Commands):
    """With a learning rate of almost 0 it keeps its score."""
    first, again = (results(techniques.base / name) for name in ("ulmfit", "again"))
    assert again["scores"] == first["scores"]
    assert again["best_step"] == again["steps"] == 6


def test_fewer_rows_than_a_batch_make_one_step_per_epoch(techniques: Commands):
    assert results(techniques.base / "distil")["steps_per_epoch"] == 1


def test_a_frozen_encoder_keeps_its_weights_while_the_feature_head_trains(techniques: Commands):
    before, after = (import_model(techniques.base / name).params for name in ("mnli", "features"))
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, after[part], before[part])
    found = results(techniques.base / "features")
    assert found["scores"]["dev"]["f1"] > found["baseline"]["dev"]["f1"] + 0.3  # by 0.78 at the worst of five seeds
    assert "oslo/B-LOC" in techniques.ends["tag"].output


# --------------------------------------------------------------------------------------------------------------------- the README
def readme_commands(word: str) -> list[list[str]]:
    """Returns the command lines of the README's block that contains `word`, split as a shell splits them."""
    text = (REPOSITORY / "README.md").read_text()
    (block,) = [block for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE) if word in block]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def test_the_readme_example_learns_from_a_user_table(toys: pathlib.Path, tmp_path: pathlib.Path):
    finetune, predict = readme_commands("--config.task.own.train=train.csv")
    assert finetune[:2] == ["tpu_scripts/run.sh", "finetune"]
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text((toys / name).read_text())
    flags = [flag.replace("runs/quickstart", str(toys / "model")) for flag in finetune[2:]]
    for_a_tiny_model = replacing(SMALL, THAWING, "--config.training.learning_rate=1e-3", "--config.training.epochs=12")
    assert predict[:2] == ["tpu_scripts/run.sh", "predict"]
    commands = ["finetune", *flags, *for_a_tiny_model], ["predict", *predict[2:-1], "people saw a fine house"]
    trained, answer = forked.run(toys, *commands, around=Surroundings(directory=tmp_path))
    assert trained.status == 0, trained.output
    found = results(tmp_path / "runs" / "own")
    assert found["baseline"]["dev"]["accuracy"] == 0.5
    assert found["scores"]["dev"]["accuracy"] > 0.9  # 1.0 at the worst of five seeds
    assert answer.status == 0, answer.output
    assert re.search(r"\d%  good  people saw a fine house", answer.output)
