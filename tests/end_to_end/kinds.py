"""The tasks that are trained end to end: what to add to the command line, and how to check the result without the project's own
code."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.end_to_end.toy_tasks import ROWS


# ------------------------------------------------------------------------------------------ the files of predictions, read again
def file(directory: pathlib.Path, name: str) -> pathlib.Path:
    return directory / "run" / "predictions" / name


def table(path: pathlib.Path, delimiter: str = "\t") -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter=delimiter, quoting=csv.QUOTE_NONE))


def agreement(directory: pathlib.Path, split: str = "dev") -> float:
    rows = table(file(directory, f"{split}.tsv"))
    assert len(rows) == ROWS["dev"]
    return float(np.mean([row["prediction"] == row["label"] for row in rows]))


def values(directory: pathlib.Path) -> list[list[float]]:
    """Returns the predictions and the labels."""
    rows = table(file(directory, "dev.tsv"))
    assert len(rows) == ROWS["dev"]
    return [[float(row[name]) for row in rows] for name in ("prediction", "label")]


def f1(said: set[Any], true: set[Any]) -> float:
    return 2 * len(said & true) / (len(said) + len(true))


def f1_of_sets(directory: pathlib.Path) -> float:
    rows = table(file(directory, "dev.tsv"))
    said, true = ({(row["id"], x) for row in rows for x in row[name].split(", ") if x} for name in ("prediction", "label"))
    return f1(said, true)


def tagged(directory: pathlib.Path) -> list[list[list[str]]]:
    """Returns the word, its label and the prediction, for every word of every sentence."""
    sentences = file(directory, "dev.conll").read_text().strip().split("\n\n")
    assert len(sentences) == ROWS["dev"]
    return [[line.split() for line in sentence.splitlines()] for sentence in sentences]


def agreement_of_words(directory: pathlib.Path) -> float:
    return float(np.mean([said == gold for sentence in tagged(directory) for _, gold, said in sentence]))


def f1_of_entities(directory: pathlib.Path) -> float:
    """Computes F1 of entities: a B begins one, and so does an I after anything but its own kind (conlleval)."""

    def entities(sentence: int, tags: Sequence[str]) -> set[tuple[int, str, int, int]]:
        found, start = set(), 0
        for i, (tag, after) in enumerate(zip(tags, [*tags[1:], "O"], strict=True)):
            start = i if tag.startswith("B") or i == 0 or tags[i - 1][2:] != tag[2:] else start
            if tag != "O" and after != f"I-{tag[2:]}":
                found.add((sentence, tag[2:], start, i))
        return found

    said: set[Any] = set()
    true: set[Any] = set()
    for n, sentence in enumerate(tagged(directory)):
        _, gold, tags = zip(*sentence, strict=True)
        true |= entities(n, gold)
        said |= entities(n, tags)
    return f1(said, true)


def f1_of_pronouns(directory: pathlib.Path) -> float:
    """Computes F1 of decisions: each of the two names of a text refers to the same person as the pronoun, or does not."""
    lines = [line.split("\t") for line in file(directory, "dev.tsv").read_text().splitlines()]
    gold = [(row["ID"], row["A-coref"], row["B-coref"]) for row in table(directory / "gap-validation.tsv")]
    assert len(lines) == ROWS["dev"]
    said, true = ({(row[0], i) for row in rows for i in (1, 2) if row[i] == "TRUE"} for rows in (lines, gold))
    return f1(said, true)


def questions(directory: pathlib.Path, version: str) -> list[dict[str, Any]]:
    data = json.loads((directory / f"dev-{version}.json").read_text())["data"]
    return [entry | {"context": p["context"]} for article in data for p in article["paragraphs"] for entry in p["qas"]]


def share_of_exact(directory: pathlib.Path, true: Mapping[str, str]) -> float:
    """Computes the share of exact answers, in percent as in SQuAD's scripts. Answers are single words here, so F1 is the same."""
    said = json.loads(file(directory, "dev_predictions.json").read_text())
    assert said.keys() == true.keys()
    return 100 * float(np.mean([said[name] == text for name, text in true.items()]))


def exact_answers(version: str) -> Callable[[pathlib.Path], float]:
    return lambda directory: share_of_exact(
        directory, {q["id"]: q["answers"][0]["text"] if q["answers"] else "" for q in questions(directory, version)}
    )


def exact_own_answers(directory: pathlib.Path) -> float:
    return share_of_exact(directory, {str(n): row["answers"][0] for n, row in enumerate(json_lines(directory))})


# ------------------------------------------------------------------------------------------------ the dev set, asked with predict
def as_texts(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [{"text": row["sentence"]} for row in table(directory / "SST-2" / "dev.tsv")]


def as_inferences(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [{"text": row["sentence1"], "text_b": row["sentence2"]} for row in table(directory / "MNLI" / "dev_matched.tsv")]


def as_pairs(directory: pathlib.Path) -> list[dict[str, Any]]:
    rows = [row for row in table(directory / "SICK.txt") if row["SemEval_set"] == "TRIAL"]
    return [{"text": row["sentence_A"], "text_b": row["sentence_B"]} for row in rows]


def json_lines(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "dev.jsonl").read_text().splitlines()]


def as_fields(*names: str) -> Callable[[pathlib.Path], list[dict[str, Any]]]:
    return lambda directory: [{name: row[name] for name in names} for row in json_lines(directory)]


def as_words(directory: pathlib.Path) -> list[dict[str, Any]]:
    sentences: list[list[str]] = [[]]
    for line in (directory / "valid.txt").read_text().splitlines():
        if line and not line.startswith("-DOCSTART-"):
            sentences[-1].append(line.split()[0])
        elif sentences[-1]:
            sentences.append([])
    return [{"words": words} for words in sentences if words]


def as_syntactic_words(directory: pathlib.Path) -> list[dict[str, Any]]:
    sentences = (directory / "toy-dev.conllu").read_text().strip().split("\n\n")
    rows = [[line.split("\t") for line in sentence.splitlines()] for sentence in sentences]
    return [{"words": [row[1] for row in sentence if row[0].isdigit()]} for sentence in rows]


def as_questions(version: str) -> Callable[[pathlib.Path], list[dict[str, Any]]]:
    return lambda directory: [{name: q[name] for name in ("question", "context")} for q in questions(directory, version)]


def as_choices(directory: pathlib.Path) -> list[dict[str, Any]]:
    rows = table(directory / "val.csv", ",")
    return [{"prompt": r["sent1"], "choices": [f"{r['sent2']} {r[f'ending{i}']}" for i in range(4)]} for r in rows]


def as_pronouns(directory: pathlib.Path) -> list[dict[str, Any]]:
    names = {"pronoun": "Pronoun", "a": "A", "b": "B"}  # each word occurs once in a text
    return [
        {"text": row["Text"]} | {field: row[column] for field, column in names.items()}
        for row in table(directory / "gap-validation.tsv")
    ]


def predicted(directory: pathlib.Path, split: str = "dev") -> list[str]:
    return [row["prediction"] for row in table(file(directory, f"{split}.tsv"))]


def values_of(directory: pathlib.Path) -> list[Any]:
    return [pytest.approx(value, abs=1e-4) for value in values(directory)[0]]


def tags_of(directory: pathlib.Path) -> list[list[str]]:
    return [[said for *_, said in sentence] for sentence in tagged(directory)]


def likelihoods_of(directory: pathlib.Path) -> list[Any]:
    rows = table(file(directory, "dev.csv"), ",")
    return [pytest.approx([float(row[name]) for name in ("A", "B", "NEITHER")], abs=1e-4) for row in rows]


def answers_of(directory: pathlib.Path) -> list[str]:
    return list(json.loads(file(directory, "dev_predictions.json").read_text()).values())


@dataclasses.dataclass(frozen=True)
class Kind:
    """A task of one kind: what to add to the command line, and how to check the result without the project's own code."""

    experiment: str
    metric: str
    beats: float
    """The score that the task has to reach. The most frequent answer scores far below it.

    The worst scores of five seeds, with at most as many steps on half as many examples: 0.951 for own/sequence, 0.943 for
    own/sequence with values, 1.0 (100 for questions) for every other task; also with `XLA_FLAGS=--xla_cpu_max_isa=SSE4_2`.
    """
    score: Callable[[pathlib.Path], float]
    """Computes the metric from the file of predictions."""
    files: tuple[str, ...]
    """The name of the file of predictions."""
    predict: tuple[str, ...]
    """The command of `predict`, with its flags."""
    asked: Callable[[pathlib.Path], list[dict[str, Any]]]
    """The input records of `predict` for the dev set."""
    flags: Callable[[pathlib.Path], Sequence[str]] = lambda directory: (f"--config.task.data_dir={directory}",)
    rate: float = 2e-3
    steps: int = 60
    """The settings with which such a small model learns the task."""
    answer: Callable[[Mapping[str, Any]], Any] = lambda reply: reply["label"]
    """Converts the answer of `predict` to one record into the form of `told`."""
    told: Callable[[pathlib.Path], Sequence[Any]] = predicted
    """Reads the answers from the file of predictions."""
    dev: str = "dev"
    """The split on which models are compared."""


def own_files(name: str, *flags: str) -> Callable[[pathlib.Path], Sequence[str]]:
    return lambda directory: (
        f"--config.task.name={name}",
        *(f"--config.task.own.{split}={directory}/{split}.jsonl" for split in ROWS),
        *flags,
    )


def labels_of_words(reply: Mapping[str, Any]) -> list[str]:
    return [word["label"] for word in reply["tags"]]


SQUAD = ("dev_predictions.json", "dev_nbest_predictions.json")
ANSWER = ("answer",)
KINDS: Mapping[str, Kind] = {  # by the name of the task; a suffix after a comma distinguishes two tasks of one name
    "glue/sst2": Kind(
        "glue.py:sst2", "accuracy", 0.9, agreement, ("dev.tsv", "SST-2.tsv"), predict=("classify",), asked=as_texts, steps=48
    ),
    "glue/mnli": Kind(
        "glue.py:mnli",
        "accuracy",
        0.8,
        lambda directory: agreement(directory, "dev_matched"),
        ("dev_matched.tsv", "dev_mismatched.tsv"),
        steps=72,
        predict=("classify",),
        asked=as_inferences,
        told=lambda directory: predicted(directory, "dev_matched"),
        dev="dev_matched",
    ),
    "sick/relatedness": Kind(
        "sick.py:relatedness",
        "pearson",
        0.9,
        lambda directory: float(np.corrcoef(*values(directory))[0, 1]),
        ("dev.tsv", "dev.txt", "test.tsv", "test.txt"),
        rate=1e-3,
        steps=96,
        predict=("classify",),
        asked=as_pairs,
        answer=lambda reply: reply["value"],
        told=values_of,
    ),
    "own/sequence": Kind(
        "own_text.py",
        "micro_f1",
        0.8,
        f1_of_sets,
        ("dev.tsv", "test.tsv"),
        flags=own_files("own/sequence", "--config.task.own.problem=multi_label"),
        steps=96,
        predict=("classify",),
        asked=as_fields("text"),
        answer=lambda reply: ", ".join(reply["labels"]),
    ),
    "own/sequence, values of pairs": Kind(
        "own_text.py",
        "spearman",
        0.8,
        lambda directory: float(stats.spearmanr(*values(directory)).statistic),
        ("dev.tsv", "test.tsv"),
        flags=own_files("own/sequence", "--config.task.own.problem=regression", "--config.task.own.text_b=text_b"),
        predict=("classify",),
        asked=as_fields("text", "text_b"),
        answer=lambda reply: reply["value"],
        told=values_of,
    ),
    "conll2003": Kind(
        "ner.py:conll2003",
        "f1",
        0.8,
        f1_of_entities,
        ("dev.conll", "test.conll"),
        flags=lambda directory: (f"--config.task.data_dir={directory}", "--config.task.context=sentence"),
        predict=("tag", "--words"),
        asked=as_words,
        answer=labels_of_words,
        told=tags_of,
    ),
    "pos": Kind(
        "pos.py",
        "accuracy",
        0.9,
        agreement_of_words,
        ("dev.conll",),
        predict=("tag", "--words"),
        asked=as_syntactic_words,
        answer=labels_of_words,
        told=tags_of,
    ),
    "squad/v1.1": Kind(
        "squad.py:v1.1",
        "f1",
        90.0,
        exact_answers("v1.1"),
        SQUAD,
        predict=ANSWER,
        asked=as_questions("v1.1"),
        answer=lambda reply: reply["answer"],
        told=answers_of,
    ),
    "squad/v2.0": Kind(
        "squad.py:v2.0",
        "f1",
        75.0,
        exact_answers("v2.0"),
        (*SQUAD, "dev_null_odds.json"),
        predict=ANSWER,
        asked=as_questions("v2.0"),
        answer=lambda reply: reply["no_answer_margin"],
        told=lambda directory: [
            pytest.approx(odds, abs=1e-3) for odds in json.loads(file(directory, "dev_null_odds.json").read_text()).values()
        ],
    ),
    "own/span": Kind(
        "own_text.py",
        "f1",
        90.0,
        exact_own_answers,
        (*SQUAD, *(name.replace("dev", "test") for name in SQUAD)),
        flags=own_files("own/span"),
        predict=ANSWER,
        asked=as_fields("question", "context"),
        answer=lambda reply: reply["answer"],
        told=answers_of,
    ),
    "swag": Kind(
        "swag.py:swag",
        "accuracy",
        0.9,
        agreement,
        ("dev.tsv",),
        steps=36,
        predict=("choose",),
        asked=as_choices,
        answer=lambda reply: str(reply["choice"]),
    ),
    "own/choice": Kind(
        "own_text.py",
        "accuracy",
        0.9,
        agreement,
        ("dev.tsv", "test.tsv"),
        flags=own_files("own/choice"),
        steps=36,
        predict=("choose",),
        asked=as_fields("prompt", "choices"),
        answer=lambda reply: str(reply["choice"]),
    ),
    "gap": Kind(
        "gap.py",
        "f1",
        0.8,
        f1_of_pronouns,
        ("dev.tsv", "dev.csv"),
        predict=("resolve",),
        asked=as_pronouns,
        answer=lambda reply: list(reply["probabilities"].values()),
        told=likelihoods_of,
    ),
}
