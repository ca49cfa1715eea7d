"""A file with a user's own task: what it may contain, and the errors about its faults."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.registry import load_task, task_head_class
from bert_jax.tasks.text_task import TextTask

FLAG = "config.task.module"
WHOLE = 'NAMES, KIND = ("colours",), "token"\n\ndef load(config, say):\n    '


def config_of(directory: pathlib.Path, text: str, name: str = "colours") -> TaskConfig:
    file = directory / "colours.py"
    file.write_text(text)
    return TaskConfig(name=name, module=str(file))


def test_the_head_of_an_own_task_is_known_without_its_data(tmp_path: pathlib.Path):
    assert task_head_class(config_of(tmp_path, WHOLE + "raise ValueError")) is TokenHead


def test_built_in_tasks_remain_available_with_a_user_file(tmp_path: pathlib.Path):
    assert task_head_class(config_of(tmp_path, WHOLE + "pass", name="swag")) is ChoiceHead


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
        (WHOLE.replace("(config, say)", "(config)") + "pass", "not a function load(config, say)"),
        (WHOLE.replace("colours", "swag") + "pass", "'swag' is a task of this project; give yours another name"),
        (WHOLE.replace("colours", "colors") + "pass", "config.task.name='colours' is not a task; did you mean 'colors'?"),
        ("NAMES = (", "colours.py, line 1: "),
        ("1 / 0", "colours.py raises ZeroDivisionError; correct the file here:\n"),
        ("import sys\nsys.exit(0)", "ended the program"),
        (WHOLE + "return 3", "the task returned by load lacks name, head, metric, "),
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


def test_a_missing_file_is_refused_with_the_nearest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config_of(tmp_path, WHOLE)
    with pytest.raises(UserError, match=r"module=colors.py \(looked for in .*; did you mean colours.py\?\) is not a file"):
        task_head_class(TaskConfig(name="colours", module="colors.py"))


def test_an_exception_of_the_file_is_reported_with_its_line(tmp_path: pathlib.Path):
    config = config_of(tmp_path, WHOLE + "return int('a text')")
    with pytest.raises(UserError) as error, file_errors_explained(config.module, FLAG):
        load_task(config)
    assert str(error.value).startswith(f"{FLAG}={config.module} raises ValueError; correct the file here:\n")
    assert 'colours.py", line 4, in load' in str(error.value)
    assert "registry.py" not in str(error.value)
    with pytest.raises(ZeroDivisionError), file_errors_explained(config.module, FLAG):
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), file_errors_explained("", FLAG):
        1 / 0  # noqa: B018
