"""The single-file task of bert_jax/tasks/README.md, exactly as printed: fine-tuned, continued and queried."""

from __future__ import annotations

import json
import pathlib
import random

import pytest

from tests.documented import python_file
from tests.end_to_end import forked
from tests.end_to_end.runs import REPOSITORY, results
from tests.end_to_end.test_finetuning_recovery import SMALL
from tests.end_to_end.toy_tasks import sentence
from tests.flags import replacing


def readme_file() -> str:
    """Returns the page's Python code that defines a task."""
    return python_file("bert_jax/tasks/README.md", "NAMES, KIND")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, toys: pathlib.Path) -> tuple[pathlib.Path, list[forked.Done]]:
    """Returns the directory of the task, its workdir `run`, and how every command ended."""
    base = tmp_path_factory.mktemp("own_task")
    (base / "colours.py").write_text(readme_file())
    rng = random.Random(0)
    for split, rows in (("train", 16), ("dev", 8)):
        words = (("red", "fine"), ("blue", "bad")) * (rows // 2)
        lines = [f"{sentence(rng, word)}\t{label}" for label, word in words]
        (base / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (base / "broken.py").write_text(readme_file().replace("accuracy(answers, labels)", "accuracy(answers, truth)"))
    places = [f"--config={REPOSITORY}/experiments/finetune/own_text.py", f"--config.init_from={toys}/model"]
    task = [f"--config.task.data_dir={base}", "--config.training.epochs=1"]
    train = ["finetune", *places, *task, *replacing(SMALL, "--config.training.batch_size=8")]
    (base / "elsewhere").mkdir()
    (base / "elsewhere" / "moved.py").write_text(readme_file())
    commands = [
        [*train, f"--workdir={base}/run", f"--config.task.name={base}/colours.py:colours"],
        ["predict", "classify", f"--model={base}/run", "people saw a fine house", "--json"],
        [*train, f"--workdir={base}/run", f"--config.task.name={base}/elsewhere/moved.py:colours"],
        [*train, f"--workdir={base}/broken", f"--config.task.name={base}/broken.py:colours"],
        [*train, f"--workdir={base}/none", "--config.task.name=colours"],
    ]
    return base, forked.run(toys, *commands)


def test_a_user_task_is_trained_scored_and_predicted(own: tuple[pathlib.Path, list[forked.Done]]):
    base, (train, predict, *_) = own
    assert train.status == 0, train.output
    found = results(base / "run")
    assert (found["task"], found["metric"], found["steps"]) == ("colours", "accuracy", 2)
    assert 0 <= found["scores"]["dev"]["accuracy"] <= 1
    assert found["files"]["task.name"]["source"] == (base / "colours.py").read_text()
    assert (base / "run" / "predictions" / "dev.tsv").read_text().startswith("id\tprediction\tlabel\tP(red)\tP(blue)\n")
    assert predict.status == 0, predict.output
    (line,) = [line for line in predict.output.splitlines() if line.startswith("{")]
    assert json.loads(line)["label"] in ("red", "blue")


def test_a_run_resumes_after_its_task_file_was_moved(own: tuple[pathlib.Path, list[forked.Done]]):
    _, (_, _, again, *_) = own
    assert again.status == 0, again.output
    assert "this run is done" in again.output


def test_an_error_in_the_task_file_during_a_run_is_reported_as_the_files(own: tuple[pathlib.Path, list[forked.Done]]):
    base, (*_, broken, _) = own
    assert broken.status == 2
    assert f"error: config.task.name={base}/broken.py raises NameError; correct the file here:" in broken.output
    assert "Traceback" not in broken.output


def test_a_user_task_is_unknown_without_its_file(own: tuple[pathlib.Path, list[forked.Done]]):
    _, (*_, none) = own
    assert none.status == 2
    assert "config.task.name='colours' is not a task; known: " in none.output
