"""A file with a user's own task: what it may contain, and the errors about its faults."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.task import load_task, task_head_class
from bert_jax.tasks.text_task import TextTask

FLAG = "config.task.name"
WHOLE = 'NAMES, KIND = ("colours",), "token"\n\ndef load(config, say):\n    '


def config_of(directory: pathlib.Path, text: str, name: str = "colours") -> TaskConfig:
    file = directory / "colours.py"
    file.write_text(text)
    return TaskConfig(name=f"{file}:{name}")


def test_the_head_of_an_own_task_is_known_without_its_data(tmp_path: pathlib.Path):
    assert task_head_class(config_of(tmp_path, WHOLE + "raise ValueError")) is TokenHead


def test_a_task_has_the_name_in_its_file(tmp_path: pathlib.Path):
    config = config_of(tmp_path, WHOLE + "raise ValueError(config.name)")
    with pytest.raises(ValueError, match=r"^colours$"):
        load_task(config)


def test_a_user_file_may_define_dataclasses_with_postponed_annotations(tmp_path: pathlib.Path):
    classes = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Row:\n    text: str\n"
    assert task_head_class(config_of(tmp_path, classes + WHOLE + "pass")) is TokenHead


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("KIND = 'token'", "NAMES is None, not a tuple of names; a file with tasks defines NAMES, KIND and load"),
        ("NAMES, KIND = (), 'token'", "NAMES is (), not a tuple of names"),
        ("NAMES, KIND = ('colours', ''), 'token'", "NAMES is ('colours', ''), not a tuple of names"),
        ("NAMES, KIND = ('colours', 3), 'token'", "NAMES is ('colours', 3), not a tuple of names"),
        ("NAMES = 'colours'", "NAMES is 'colours', not a tuple of names"),
        ("NAMES, KIND = ('colours',), 'tokens'", "KIND is 'tokens'; known: sequence, token, span, choice, mention"),
        ("NAMES, KIND = ('colours',), 'token'", "load is None, not a function load(config, say)"),
        ("from bert_jax.tasks.choice_task import KIND, load\nNAMES = ('colours',)",
         "load is the function of bert_jax.tasks.choice_task, which does not know your task; define a function load"),
        (WHOLE.replace("(config, say)", "(config)") + "pass", "not a function load(config, say)"),
        (WHOLE.replace("colours", "swag") + "pass", "'swag' is the name of a task of bert_jax; give your task another name"),
        (WHOLE.replace("colours", "colors") + "pass", "colours.py has no task 'colours'; did you mean 'colors'?"),
        ("NAMES = (", "colours.py, line 1: "),
        ("1 / 0", "colours.py raises ZeroDivisionError; correct the file here:\n"),
        ("import sys\nsys.exit(0)", "ended the program"),
        (WHOLE + "return 3", "the task returned by load lacks name, head, metric, "),
        (WHOLE.replace("NAMES", "from bert_jax.tasks.text_task import TextTask\nNAMES", 1)
         + "return TextTask('colours', 32, None, 'accuracy', {'train': ['a text']}, None)",
         "the split train holds 'a text', which is not an example; use a class of bert_jax/tasks/examples.py"),
        ("from bert_jax.model.heads.sequence import SequenceHead\nfrom bert_jax.tasks.text_task import TextTask\n"
         "class Ordinal(SequenceHead):\n    loss = None\n" + WHOLE.replace("token", "sequence")
         + "return TextTask('colours', 32, Ordinal(labels=('a', 'b')), 'accuracy', {}, None)",
         "the head of the task has the class Ordinal, but KIND='sequence' means SequenceHead, as which its model would"),
    ],
)
def test_a_file_without_a_task_is_refused_with_what_it_needs(text: str, says: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError) as error:
        load_task(config_of(tmp_path, text))
    assert says in str(error.value)


def test_a_label_missing_in_the_head_of_an_own_task_is_named():
    examples = {"train": [TextExample("7", "a text", label="green")]}
    head = SequenceHead(labels=("red", "blue"))
    task = TextTask("colours", 32, head, "accuracy", examples, score=lambda split, answers, labels: {})
    with pytest.raises(UserError, match=r"^colours: example 7 has the label 'green', which is not one of red, blue$"):
        task.scores("train", [np.zeros(2)])


@pytest.mark.parametrize(
    ("problem", "label", "says"),
    [
        ("classification", 3.0, "has the label 3.0, but the head with problem=classification needs a name"),
        ("multi_label", "red", "has the label 'red', but the head with problem=multi_label needs a tuple of names"),
        ("multi_label", ("red", "green"), "has the label 'green', which is not one of red, blue"),
        ("regression", "red", "has the label 'red', but the head with problem=regression needs a number"),
    ],
)
def test_a_label_of_another_kind_than_the_heads_is_named(problem: str, label: Any, says: str):
    head = SequenceHead(labels=("red",) if problem == "regression" else ("red", "blue"), problem=problem)
    examples = {"train": [TextExample("7", "a text", label=label)]}
    task = TextTask("colours", 32, head, "accuracy", examples, score=lambda split, answers, labels: {})
    with pytest.raises(UserError, match=rf"^colours: example 7 {re.escape(says)}"):
        task.scores("train", [np.zeros(2)])


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (None, "score returns None; it must return a dict of numbers, name -> score"),
        ({"accuracy": "high"}, "score returns {'accuracy': 'high'}; it must return a dict of numbers"),
        ({"accuracy": np.complex64(1)}, "score returns {'accuracy': np.complex64(1+0j)}; it must return a dict of numbers"),
        ({"acuracy": 0.5}, "metric='accuracy' is not one of the scores; did you mean 'acuracy'?"),
    ],
)
def test_scores_without_the_metric_are_refused(scores: Any, says: str):
    examples = {"dev": [TextExample("7", "a text", label="red")]}
    head = SequenceHead(labels=("red", "blue"))
    task = TextTask("colours", 32, head, "accuracy", examples, score=lambda split, answers, labels: scores)
    with pytest.raises(UserError, match=rf"^colours: {re.escape(says)}"):
        task.scores("dev", [np.zeros(2)])


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # a correlation with a constant
def test_an_undefined_score_is_refused_before_training_and_allowed_on_test():
    """A score that is not a number would be the best of a run for ever."""
    rows = [TextExample(str(i), "a text", label=i / 2) for i in range(3)]
    examples = dict.fromkeys(("train", "dev", "test"), rows)

    def score(split: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        return {"correlation": np.corrcoef(predictions, labels)[0, 1], "spread": np.nan}

    head = SequenceHead(labels=("score",), problem="regression")
    task = TextTask("colours", 32, head, "correlation", examples, score)
    with pytest.raises(UserError, match=r"^colours: score returns correlation=nan for dev \(all predictions are the same\)"):
        task.baseline("dev")
    assert np.isnan(task.scores("test", [np.zeros(1)] * 3)["correlation"])
    assert task.scores("dev", [np.full(1, i) for i in range(3)])["correlation"] == pytest.approx(1)


def test_scores_of_numpy_types_can_be_written_to_the_results(tmp_path: pathlib.Path):
    examples = {"train": [TextExample("7", "a text", label="red")], "dev": [TextExample("7", "a text", label="red")]}
    scores = {"accuracy": np.float32(0.5), "correct": np.int64(3), "all": 6}
    task = TextTask("colours", 32, SequenceHead(labels=("red", "blue")), "accuracy", examples, score=lambda *_: scores)
    for found in (task.scores("dev", [np.zeros(2)]), task.baseline("dev").scores):
        write_json(tmp_path / "results.json", found)
        assert read_json(tmp_path / "results.json") == {"accuracy": 0.5, "correct": 3, "all": 6}


def test_a_missing_file_is_refused_with_the_nearest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config_of(tmp_path, WHOLE)
    with pytest.raises(UserError, match=r"name=colors.py \(looked for in .*; did you mean colours.py\?\) is not a file"):
        task_head_class(TaskConfig(name="colors.py:colours"))


def test_an_exception_of_the_file_is_reported_with_its_line(tmp_path: pathlib.Path):
    config = config_of(tmp_path, WHOLE + "return int('a text')")
    file = config.name.rpartition(":")[0]
    with pytest.raises(UserError) as error, file_errors_explained():
        load_task(config)
    assert str(error.value).startswith(f"{FLAG}={file} raises ValueError; correct the file here:\n")
    assert 'colours.py", line 4, in load' in str(error.value)
    assert "task.py" not in str(error.value)
    with pytest.raises(ZeroDivisionError), file_errors_explained():
        1 / 0  # noqa: B018
