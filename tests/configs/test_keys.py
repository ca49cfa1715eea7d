"""Unknown keys and flags: the suggestions, over all keys of an experiment."""

from __future__ import annotations

import pathlib
import re
from typing import Any, get_args

import pytest

from bert_jax.configs.command_line import flag_parser
from bert_jax.configs.experiment_files import ALIASES, _value, leaf_keys, read_experiment, suggested_keys
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import FlagParser
from bert_jax.interface.ranges import value_types
from bert_jax.prediction.commands import COMMANDS, command_parser

BOTH_DROPOUTS = ["model.hidden_dropout", "model.attention_dropout"]


@pytest.mark.parametrize(
    ("key", "finetunes", "pretrains"),
    [
        ("training.lr", ["training.learning_rate"], ["phases.0.learning_rate"]),
        ("lr", ["training.learning_rate"], ["phases.0.learning_rate"]),
        ("learning_rate", ["training.learning_rate"], ["phases.0.learning_rate"]),
        ("epochs", ["training.epochs", "sweep.epochs"], []),
        ("batch_size", ["cross_view.batch_size", "training.batch_size"], ["evaluation.batch_size", "phases.0.batch_size"]),
        ("optimizer.wd", ["optimizer.weight_decay"], ["optimizer.weight_decay"]),
        ("wd", ["optimizer.weight_decay"], ["optimizer.weight_decay"]),
        ("max_seq_length", ["task.length"], ["examples.length", "phases.0.length"]),
        ("training.gradient_accumulation_steps", ["training.accumulation"], ["phases.0.accumulation"]),
        ("save_every", ["checkpoints.every"], ["checkpoints.every"]),
        ("model.dropout", BOTH_DROPOUTS, BOTH_DROPOUTS),
        ("model.n_heads", [], ["model.num_heads"]),
        ("sweep.seed", ["sweep.seeds"], ["seed"]),
        ("task.stride", ["task.doc_stride"], []),
        ("optimiser", ["optimizer"], ["optimizer"]),
        ("optimizer.b3", ["optimizer.b2"], ["optimizer.b2"]),  # b1 is as similar, but one suggestion is enough
        ("optimiser.b3", ["optimizer.b2"], ["optimizer.b2"]),
        ("colour", [], []),
        ("top_k", [], []),
    ],
)
def test_suggestions_search_all_keys(key: str, finetunes: list[str], pretrains: list[str]):
    assert sorted(suggested_keys(key, FinetuningExperiment)) == sorted(finetunes)
    assert sorted(suggested_keys(key, PretrainingExperiment)) == sorted(pretrains)


def test_every_alias_names_a_key_and_is_not_a_key():
    known = [f".{key}" for schema in (PretrainingExperiment, FinetuningExperiment) for key, _ in leaf_keys(schema)]
    assert [name for name in ALIASES if not any(key.endswith(f".{name}") for key in known)] == []


@pytest.mark.parametrize(
    ("command", "schema", "flag", "says"),
    [
        ("finetune", FinetuningExperiment, "--learning_rate=1e-5", "did you mean --config.training.learning_rate?"),
        ("finetune", FinetuningExperiment, "--epochs=2", "did you mean --config.training.epochs or --config.sweep.epochs?"),
        ("pretrain", PretrainingExperiment, "--batch-size=2", "--config.phases.0.batch_size?"),
        ("pretrain", PretrainingExperiment, "--work_dir=x", "did you mean '--workdir'?"),
        ("pretrain", PretrainingExperiment, "--hang_seconds=9", "did you mean '--hang-seconds'?"),
    ],
)
def test_a_key_given_as_a_flag_is_suggested_as_the_key(command: str, schema: type, flag: str, says: str):
    with pytest.raises(UserError) as error:
        flag_parser(command, "", schema).parse_args([flag])
    assert str(error.value).startswith(f"unknown argument {flag}: ")
    assert says in str(error.value)


def test_flags_are_suggested_by_name_without_dashes():
    assert nearest("--topk", ["--output", "--top-k", "--input"]) == "did you mean '--top-k'?"
    assert nearest("--topk", ["--output", "--input"]) == "known: --input, --output"
    assert nearest("--learning_rate", ["--coordinator", "--config"]) == "known: --config, --coordinator"
    for name in ("classify", "fill-mask"):
        parser: FlagParser = command_parser(name, COMMANDS[name])
        with pytest.raises(UserError) as error:
            parser.parse_args(["--model=m", "--topk=3", "text"])
        assert "--output'?" not in str(error.value)


def test_errors_show_the_current_value_of_a_key(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    config = {"training": {"learning_rate": 3e-4}, "init_from": "model", "head": {"dropout": 0.2}}
    file.write_text(f"def get_config(): return {config!r}")

    def read(*overrides: tuple[str, str]) -> dict:
        return read_experiment(str(file), overrides, FinetuningExperiment)

    with pytest.raises(UserError, match=r"learning_rate=fast: wanted a number, above 0 and at most 1e\+30 \(now 0\.0003\)$"):
        read(("training.learning_rate", "fast"))
    with pytest.raises(UserError, match=r"epochs=two: wanted a whole number, at least 1 and at most 10,000 \(now 3\)$"):
        read(("training.epochs", "two"))
    assert read(("init_from", "null"))["training"] == {"learning_rate": 3e-4}
    assert "init_from" not in read(("init_from", "null"))
    assert read(("head.dropout", "null"))["head"] == {"dropout": None}
    assert read(("task.own.dev", "null"))["task"] == {"own": {"dev": None}}
    assert read(("task.own.label_names", "[pos,neg]"))["task"]["own"]["label_names"] == ["pos", "neg"]
    assert read(("task.own.label_names", "pos, neg"))["task"]["own"]["label_names"] == ["pos", "neg"]
    assert read(("task.own.label_names", "['a,b','c']"))["task"]["own"]["label_names"] == ["a,b", "c"]
    assert read(("sweep.seeds", "[]"))["sweep"]["seeds"] == []
    with pytest.raises(UserError, match=r"^--config\.objective_options\.window=3: the objective Labels has no settings; leave"):
        read(("objective_options.window", "3"))


NO_PATHS = {
    *("init_new", "init_drop", "distillation.teacher_sha256"),
    *(f"task.{key}" for key in ("name", "scheme", "own.delimiter", "own.separator")),
    *(f"task.own.{column}" for column in ("columns", "id", "text", "text_b", "label", "words", "labels", "document")),
    *(f"task.own.{column}" for column in ("question", "context", "answers", "answer_start", "prompt", "choices", "label_names")),
    *("title", "setting", "reference", "paper", "arms.0.name", "arms.0.label", "arms.0.shares", "arms.0.continues"),
    *("tasks.0.name", "tasks.0.metric", "expected.0.order", "expected.0.tasks", "only_arms", "only_tasks", "task.own.sentence"),
}
"""Keys whose value is a text that is neither a path nor one of a few words."""


def _takes_text(hint: Any) -> bool:
    """Returns whether a key accepts any text, or several."""
    return any(kind is str or "str" in f"{get_args(kind)[:1]}" for kind in value_types(hint)) and "dict" not in f"{hint}"


@pytest.mark.parametrize("schema", [PretrainingExperiment, FinetuningExperiment, StudyExperiment])
def test_a_tilde_is_the_home_directory_in_every_key_that_is_a_path(schema: type, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/at/ada")
    texts = {key: hint for key, hint in leaf_keys(schema) if not re.search("OneOf|NamedIn", f"{hint}") and _takes_text(hint)}
    keys = {key: hint for key, hint in texts.items() if key not in NO_PATHS}
    assert len(keys) >= 3
    for key, hint in texts.items():
        if key in NO_PATHS and str in value_types(hint):
            assert _value(key, "~/x", hint, None, schema) == "~/x", key
    for key, hint in keys.items():
        assert _value(key, "~/x", hint, None, schema) == "/at/ada/x", key
        assert _value(key, "gs://bucket/~/x", hint, None, schema) == "gs://bucket/~/x", key
        with pytest.raises(UserError, match=rf"^{key}='a\\x00b' contains a zero byte"):
            _value(key, "a\0b", hint, None, schema)
