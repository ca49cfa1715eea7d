"""BoolQ in both formats of its files, and as tfds prepares it."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.boolq_task import DATA_SET, LABELS, read_boolq
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.task import load_task

AUTHORS = [
    {"question": "is the sky blue", "title": "Sky", "answer": True, "passage": "The sky is blue."},
    {"question": "is tea hot", "title": "Tea", "answer": False, "passage": "Iced tea is cold."},
    {"question": "do cats bark", "title": "Cat", "answer": False, "passage": "Cats meow."},
]
EXAMPLES = [
    TextExample("0", "is the sky blue", "The sky is blue.", "true"),
    TextExample("1", "is tea hot", "Iced tea is cold.", "false"),
    TextExample("2", "do cats bark", "Cats meow.", "false"),
]


def put(path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def superglue(rows: list[dict], first: int = 0, labelled: bool = True) -> list[dict]:
    """Writes the same rows in SuperGLUE's format."""
    shown = [{"question": row["question"], "passage": row["passage"], "idx": first + i} for i, row in enumerate(rows)]
    return [one | ({"label": row["answer"]} if labelled else {}) for one, row in zip(shown, rows, strict=True)]


def test_both_formats_give_the_same_questions(tmp_path: pathlib.Path):
    assert read_boolq(put(tmp_path / "a.jsonl", AUTHORS)) == EXAMPLES
    assert read_boolq(put(tmp_path / "b.jsonl", superglue(AUTHORS))) == EXAMPLES
    with pytest.raises(UserError, match=r"c\.jsonl, line 1: there is no field 'label'"):
        read_boolq(put(tmp_path / "c.jsonl", superglue(AUTHORS, labelled=False)))


def test_the_task_reads_scores_and_writes_superglue_submissions(tmp_path: pathlib.Path):
    put(tmp_path / "train.jsonl", superglue(AUTHORS))
    put(tmp_path / "val.jsonl", superglue(AUTHORS[:2]))
    put(tmp_path / "test.jsonl", superglue(AUTHORS, first=5, labelled=False))
    task = load_task(TaskConfig(name="boolq", data_dir=str(tmp_path)))
    assert (task.head.kind, task.head.labels, task.of_pairs) == ("sequence", LABELS, True)
    assert {split: len(examples) for split, examples in task.splits.items()} == {"train": 3, "dev": 2, "test": 3}
    no = np.array([1.0, -1.0], np.float32)
    assert task.scores("dev", [-no, -no]) == {"accuracy": 0.5}
    assert task.baseline("dev").scores == {"accuracy": 0.5}
    paths = task.write_predictions(tmp_path / "out", "test", [-no, no, no])
    assert [path.name for path in paths] == ["test.tsv", "BoolQ.jsonl"]
    assert paths[1].read_text() == '{"idx": 5, "label": "true"}\n{"idx": 6, "label": "false"}\n{"idx": 7, "label": "false"}\n'
    assert [path.name for path in task.write_predictions(tmp_path / "out", "dev", [no, no])] == ["dev.tsv"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "maybe"}, r"train\.jsonl, line 2: answer is 'maybe', not true or false"),
        ({"question": ""}, r"line 2: question is \"\", not a text"),
        ({"idx": "five"}, r"line 2: idx is 'five', not a whole number"),
        ({"answer": None}, "line 2: answer is null"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(change: dict, message: str, tmp_path: pathlib.Path):
    put(tmp_path / "dev.jsonl", AUTHORS)
    put(tmp_path / "train.jsonl", [AUTHORS[0], AUTHORS[1] | change])
    with pytest.raises(UserError, match=message):
        load_task(TaskConfig(name="boolq", data_dir=str(tmp_path)))


def test_a_missing_split_is_refused_with_its_file_names(tmp_path: pathlib.Path):
    put(tmp_path / "train.jsonl", AUTHORS)
    with pytest.raises(UserError, match=r"has no dev\.jsonl or val\.jsonl, the dev split of boolq"):
        load_task(TaskConfig(name="boolq", data_dir=str(tmp_path)))


def test_tfds_records_equal_the_examples_of_the_files():
    rows = superglue(AUTHORS)
    records = [{name: x.encode() if isinstance(x, str) else x for name, x in row.items()} for row in rows]
    made = [DATA_SET.convert({}, i, record | {"label": int(record["label"])}, None) for i, record in enumerate(records)]
    assert made == EXAMPLES
    assert (DATA_SET.name, DATA_SET.in_order_of_ids) == ("super_glue/boolq", True)  # prepared data sets are shuffled
    assert DATA_SET.convert({}, 0, records[0] | {"label": -1}, None).label is None
