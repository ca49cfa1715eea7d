from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface import python_files
from bert_jax.model.heads import KINDS
from bert_jax.storage import objects
from bert_jax.tasks import TASKS
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.task import load_task, task_head_class
from tests.end_to_end.toy_tasks import WRITERS, write_vocabulary

DOCUMENTED = {
    *(f"glue/{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")),
    *("sick/entailment", "sick/relatedness", "swag", "codah", "gap"),
    *("conll2003", "wnut17", "pos", "squad/v1.1", "squad/v2.0"),
    *("own/sequence", "own/token", "own/span", "own/choice"),
}


EXPERIMENTS = {
    **{name: name.replace("glue/", "glue.py:") for name in DOCUMENTED if name.startswith("glue/") and name != "glue/ax"},
    **{name: name.replace("/", ".py:") for name in DOCUMENTED if name.startswith(("sick/", "squad/"))},
    **{"boolq": "boolq.py", "swag": "swag.py:swag", "codah": "swag.py:codah", "gap": "gap.py", "own/sequence": "own_text.py"},
    **{"conll2003": "ner.py:conll2003", "wnut17": "ner.py:wnut17", "pos": "pos.py"},
}


def test_every_documented_task_is_listed():
    assert set(TASKS) >= DOCUMENTED


def test_every_file_of_a_task_is_listed():
    files = (pathlib.Path(__file__).parents[2] / "bert_jax" / "tasks").glob("*_task.py")
    assert set(TASKS.values()) == {f"bert_jax.tasks.{file.stem}" for file in files}
    assert {importlib.import_module(module).KIND for module in TASKS.values()} == set(KINDS)


def test_every_official_task_has_an_experiment():
    assert {name for name in TASKS if not name.startswith("own/")} - {"glue/ax"} == EXPERIMENTS.keys() - {"own/sequence"}
    for name, file in EXPERIMENTS.items():
        assert python_files.load(f"experiments/finetune/{file}")["task"]["name"] == name


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("token", {"conll2003", "wnut17", "pos", "own/token"}),
        ("span", {"squad/v1.1", "squad/v2.0", "own/span"}),
        ("choice", {"swag", "codah", "own/choice"}),
        ("mention", {"gap"}),
        ("sequence", {name for name in DOCUMENTED if name.startswith(("glue/", "sick/"))} | {"own/sequence"}),
    ],
)
def test_the_head_of_every_task_is_known_without_its_data(kind: str, names: set[str]):
    assert {name for name in DOCUMENTED if task_head_class(TaskConfig(name=name)).kind == kind} == names


@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        ("own/sequence", [{"text": "a", "label": "Good"}, {"text": "b", "label": "good"}], "are read as different classes"),
        ("own/token", [{"words": ["a", "b"], "labels": ["O", "O"]}] * 2, "has the label 'O', so there is nothing to learn"),
        ("own/span", [{"question": "a", "context": "b", "answers": []}] * 2, "has an answer, so there is nothing to learn"),
        ("own/choice", [{"n": "x", "prompt": "a", "choices": ["b", "c"], "label": 0}] * 2, "the id 'x' is also the id of an"),
    ],
)
def test_messages_about_own_files_reach_the_caller(name: str, rows: list[dict[str, Any]], says: str, tmp_path: pathlib.Path):
    path, said = tmp_path / "train.jsonl", list[str]()
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    load_task(
        TaskConfig(name=name, own=OwnDataConfig(train=str(path), dev=str(path), id="n" if "n" in rows[0] else None)), said.append
    )
    assert [line for line in said if says in line]


def test_data_in_a_bucket_is_fetched_and_other_data_is_read_where_it_is(bucket: str, tmp_path: pathlib.Path):
    for label in ("good", "poor"):
        objects.write(f"{bucket}/train/{label}.csv", f"text,label\nit was {label},{label}\n".encode())
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nit,poor\n")
    own = OwnDataConfig(train=f"{bucket}/*/*.csv", dev=str(dev), label_names=("good", "poor"))
    splits = load_task(TaskConfig(name="own/sequence", own=own)).splits
    assert {split: [example.text for example in examples] for split, examples in splits.items()} == {
        "train": ["it was good", "it was poor"], "dev": ["it"],
    }  # fmt: skip
    objects.remove(f"{bucket}/train/good.csv")
    assert [example.text for example in load_task(TaskConfig(name="own/sequence", own=own)).splits["train"]] == ["it was poor"]
    with pytest.raises(UserError, match=r"own\.train=gs://.*/c-\*\.csv matches no file"):
        load_task(TaskConfig(name="own/sequence", own=OwnDataConfig(train=f"{bucket}/c-*.csv", dev=str(dev))))
    objects.write(f"{bucket}/empty.csv", b"")
    with pytest.raises(UserError, match=rf"{bucket}/empty\.csv is empty"):
        load_task(TaskConfig(name="own/sequence", own=OwnDataConfig(train=f"{bucket}/empty.csv", dev=str(dev))))
    WRITERS["sick/relatedness"](tmp_path)
    objects.write(f"{bucket}/sick/SICK.txt", (tmp_path / "SICK.txt").read_bytes())
    task = load_task(TaskConfig(name="sick/relatedness", data_dir=f"{bucket}/sick"))
    assert task.splits == load_task(TaskConfig(name="sick/relatedness", data_dir=str(tmp_path))).splits


@pytest.mark.parametrize("name", sorted(DOCUMENTED - {"own/sequence", "own/token", "own/span", "own/choice"}))
def test_a_missing_data_directory_is_refused_with_the_searched_place(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wnut17").mkdir()
    with pytest.raises(UserError) as error:
        load_task(TaskConfig(name=name, data_dir="wnut71"))
    where = f"config.task.data_dir=wnut71 (looked for in {tmp_path}; did you mean wnut17?) does not exist"
    assert str(error.value) == f"{where}; give the directory that holds the files of {name}"
    (tmp_path / "wnut71").touch()
    with pytest.raises(UserError, match="is a file; give the directory"):
        load_task(TaskConfig(name=name, data_dir="wnut71"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("boolq", "set config.task.name=own/sequence and config.task.own.train={file}, and name its columns"),
        ("gap", "write the data as a file of gap"),
    ],
)
def test_a_directory_of_the_hub_is_refused_with_the_task_that_reads_it(name: str, remedy: str, tmp_path: pathlib.Path):
    file = tmp_path / "data" / "train-0.parquet"
    file.parent.mkdir()
    with pytest.raises(UserError) as missing:
        load_task(TaskConfig(name=name, data_dir=str(tmp_path)))
    for path in (tmp_path / "data" / "a.parquet", file):
        path.touch()
    with pytest.raises(UserError) as error:
        load_task(TaskConfig(name=name, data_dir=str(tmp_path)))
    assert str(error.value) == f"{missing.value}. The task {name} does not read {file}; {remedy.format(file=file)}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glue/sst-2", r"config\.task\.name='glue/sst-2' is not a task; did you mean 'glue/sst2'"),
        ("squad/v2", "did you mean 'squad/v2.0'"),
        ("xyz", r"is not a task; known: .*\bcodah, "),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest(name: str, message: str):
    with pytest.raises(UserError, match=message):
        load_task(TaskConfig(name=name))


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.startswith(("own/", "squad/v2"))])
def test_every_task_fulfils_the_protocol(tmp_path: pathlib.Path, name: str):
    """The head's outputs for the features of the dev set are scored, evaluated and written, whatever the task."""
    WRITERS[name](tmp_path)
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocabulary"))
    task = load_task(TaskConfig(name=name, data_dir=str(tmp_path), train_rows=50, length=64), say=lambda message: None)
    assert (task.name, len(task.splits["train"])) == (name, 50)
    assert type(task.head) is task_head_class(TaskConfig(name=name))
    draw = np.random.default_rng(0)
    (split, *_) = [split for split in task.splits if split.startswith("dev")]
    features = task.features(split, tokenizer)
    assert sorted({feature.example for feature in features}) == list(range(len(task.splits[split])))
    outputs = {"token": lambda feature: (feature.size, task.head.num_outputs), "span": lambda feature: (feature.size, 2)}
    outputs |= {"choice": lambda feature: (len(feature.ids),)}
    shape = outputs.get(task.head.kind, lambda feature: (task.head.num_outputs,))
    logits = [draw.normal(size=shape(feature)).astype(np.float32) for feature in features]
    scores = task.scores(split, logits)
    assert np.isfinite(scores[task.metric])
    assert task.metric in task.baseline(split).scores
    assert not task.degeneracy(split, logits)
    assert all(path.is_file() for path in task.write_predictions(tmp_path, split, logits))
