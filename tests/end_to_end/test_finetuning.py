"""From the official files of every kind of task to its scores, its files of predictions, and a model that answers."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.end_to_end import forked
from tests.end_to_end.forked import Done
from tests.end_to_end.runs import REPOSITORY, records, results
from tests.end_to_end.toy_tasks import ROWS, WRITERS

FLAGS = (
    "--config.task.length=32",
    "--config.training.batch_size=16",
    "--config.model.hidden_dropout=0.0",
    "--config.model.attention_dropout=0.0",
    "--config.model.scan_unroll=1",
    "--config.log_every=10",
)


# ------------------------------------------------------------------------------------------ the files of predictions, read again
def file(directory: pathlib.Path, name: str) -> pathlib.Path:
    return directory / "run" / "predictions" / name


def table(path: pathlib.Path, delimiter: str = "\t") -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter=delimiter, quoting=csv.QUOTE_NONE))


def agreement(directory: pathlib.Path) -> float:
    rows = table(file(directory, "dev.tsv"))
    assert len(rows) == ROWS["dev"]
    return float(np.mean([row["prediction"] == row["label"] for row in rows]))


def correlation(directory: pathlib.Path) -> float:
    rows = table(file(directory, "dev.tsv"))
    return float(np.corrcoef(*([float(row[name]) for row in rows] for name in ("prediction", "label")))[0, 1])


def f1(said: set[Any], true: set[Any]) -> float:
    return 2 * len(said & true) / (len(said) + len(true))


def f1_of_sets(directory: pathlib.Path) -> float:
    rows = table(file(directory, "dev.tsv"))
    said, true = ({(row["id"], x) for row in rows for x in row[name].split(", ") if x} for name in ("prediction", "label"))
    return f1(said, true)


def f1_of_entities(directory: pathlib.Path) -> float:
    """A B begins an entity, and so does an I behind anything but its own kind (conlleval)."""

    def entities(sentence: int, tags: Sequence[str]) -> set[tuple[int, str, int, int]]:
        found, start = set(), 0
        for i, (tag, after) in enumerate(zip(tags, [*tags[1:], "O"], strict=True)):
            start = i if tag.startswith("B") or i == 0 or tags[i - 1][2:] != tag[2:] else start
            if tag != "O" and after != f"I-{tag[2:]}":
                found.add((sentence, tag[2:], start, i))
        return found

    sentences = file(directory, "dev.conll").read_text().strip().split("\n\n")
    assert len(sentences) == ROWS["dev"]
    said: set[Any] = set()
    true: set[Any] = set()
    for n, sentence in enumerate(sentences):
        _, gold, tags = zip(*(line.split() for line in sentence.splitlines()), strict=True)
        true |= entities(n, gold)
        said |= entities(n, tags)
    return f1(said, true)


def f1_of_pronouns(directory: pathlib.Path) -> float:
    """Each of both names of a text refers to the same person as the pronoun, or does not."""
    lines = [line.split("\t") for line in file(directory, "dev.tsv").read_text().splitlines()]
    gold = [(row["ID"], row["A-coref"], row["B-coref"]) for row in table(directory / "gap-validation.tsv")]
    assert len(lines) == ROWS["dev"]
    said, true = ({(row[0], i) for row in rows for i in (1, 2) if row[i] == "TRUE"} for rows in (lines, gold))
    return f1(said, true)


def questions(directory: pathlib.Path, version: str) -> list[dict[str, Any]]:
    data = json.loads((directory / f"dev-{version}.json").read_text())["data"]
    return [entry | {"context": p["context"]} for article in data for p in article["paragraphs"] for entry in p["qas"]]


def exact_answers(version: str) -> Callable[[pathlib.Path], float]:
    """Answers are single words here, so that F1 is the share of exact ones; in percent, as SQuAD's scripts."""

    def score(directory: pathlib.Path) -> float:
        said = json.loads(file(directory, "dev_predictions.json").read_text())
        true = {q["id"]: q["answers"][0]["text"] if q["answers"] else "" for q in questions(directory, version)}
        assert said.keys() == true.keys()
        return 100 * float(np.mean([said[name] == text for name, text in true.items()]))

    return score


# ------------------------------------------------------------------------------------------------ the dev set, asked with predict
def as_texts(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [{"text": row["sentence"]} for row in table(directory / "SST-2" / "dev.tsv")]


def as_pairs(directory: pathlib.Path) -> list[dict[str, Any]]:
    rows = [row for row in table(directory / "SICK.txt") if row["SemEval_set"] == "TRIAL"]
    return [{"text": row["sentence_A"], "text_b": row["sentence_B"]} for row in rows]


def as_json_lines(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [{"text": json.loads(line)["text"]} for line in (directory / "dev.jsonl").read_text().splitlines()]


def as_words(directory: pathlib.Path) -> list[dict[str, Any]]:
    sentences: list[list[str]] = [[]]
    for line in (directory / "valid.txt").read_text().splitlines():
        if line and not line.startswith("-DOCSTART-"):
            sentences[-1].append(line.split()[0])
        elif sentences[-1]:
            sentences.append([])
    return [{"words": words} for words in sentences if words]


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


def predicted(directory: pathlib.Path) -> list[str]:
    return [row["prediction"] for row in table(file(directory, "dev.tsv"))]


def tags_of(directory: pathlib.Path) -> list[list[str]]:
    sentences = file(directory, "dev.conll").read_text().strip().split("\n\n")
    return [[line.split()[-1] for line in sentence.splitlines()] for sentence in sentences]


def likelihoods_of(directory: pathlib.Path) -> list[Any]:
    rows = table(file(directory, "dev.csv"), ",")
    return [pytest.approx([float(row[name]) for name in ("A", "B", "NEITHER")], abs=1e-4) for row in rows]


def answers_of(directory: pathlib.Path) -> list[str]:
    return list(json.loads(file(directory, "dev_predictions.json").read_text()).values())


@dataclasses.dataclass(frozen=True)
class Kind:
    """A task of one kind: what to add to the command line, and how to check what came of it without the project's own code."""

    experiment: str
    metric: str
    beats: float
    """The score that it reaches; what the most frequent answer scores is far below."""
    score: Callable[[pathlib.Path], float]
    """The metric, from the file of predictions."""
    files: tuple[str, ...]
    """Of predictions."""
    predict: tuple[str, ...]
    """The verb of `predict` and its flags."""
    asked: Callable[[pathlib.Path], list[dict[str, Any]]]
    """Its records for the dev set."""
    flags: Callable[[pathlib.Path], Sequence[str]] = lambda directory: (f"--config.task.data_dir={directory}",)
    rate: float = 2e-3
    epochs: int = 20
    """With which a model so small learns it."""
    answer: Callable[[Mapping[str, Any]], Any] = lambda reply: reply["label"]
    """Its answer to one, in the form of `told`."""
    told: Callable[[pathlib.Path], Sequence[Any]] = predicted
    """The answers in the file of predictions."""


def own_files(directory: pathlib.Path) -> Sequence[str]:
    return (
        "--config.task.name=own/sequence",
        "--config.task.own.problem=multi_label",
        *(f"--config.task.own.{split}={directory}/{split}.jsonl" for split in ROWS),
    )


SQUAD = ("dev_predictions.json", "dev_nbest_predictions.json")
ANSWER = ("answer", "--length=32")
KINDS: Mapping[str, Kind] = {
    "glue/sst2": Kind(
        "glue.py:sst2", "accuracy", 0.9, agreement, ("dev.tsv", "SST-2.tsv"), predict=("classify",), asked=as_texts, epochs=8
    ),
    "sick/relatedness": Kind(
        "sick.py:relatedness",
        "pearson",
        0.9,
        correlation,
        ("dev.tsv", "test.tsv"),
        predict=("classify",),
        asked=as_pairs,
        answer=lambda reply: reply["value"],
        told=lambda directory: [pytest.approx(float(value), abs=1e-4) for value in predicted(directory)],
    ),
    "own/sequence": Kind(
        "own_text.py",
        "micro_f1",
        0.7,
        f1_of_sets,
        ("dev.tsv", "test.tsv"),
        flags=own_files,
        epochs=12,
        predict=("classify",),
        asked=as_json_lines,
        answer=lambda reply: ", ".join(reply["labels"]),
    ),
    "conll2003": Kind(
        "ner.py:conll2003",
        "f1",
        0.8,
        f1_of_entities,
        ("dev.conll", "test.conll"),
        flags=lambda directory: (f"--config.task.data_dir={directory}", "--config.task.context=sentence"),
        rate=4e-3,
        predict=("tag", "--words"),
        asked=as_words,
        answer=lambda reply: [word["label"] for word in reply["tags"]],
        told=tags_of,
    ),
    "squad/v1.1": Kind(
        "squad.py:v1.1",
        "f1",
        90.0,
        exact_answers("v1.1"),
        SQUAD,
        epochs=10,
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
        predict=(*ANSWER, "--may-be-unanswerable"),
        asked=as_questions("v2.0"),
        answer=lambda reply: reply["no_answer_margin"],
        told=lambda directory: [
            pytest.approx(odds, abs=1e-3) for odds in json.loads(file(directory, "dev_null_odds.json").read_text()).values()
        ],
    ),
    "swag": Kind(
        "swag.py:swag",
        "accuracy",
        0.9,
        agreement,
        ("dev.tsv",),
        epochs=5,
        predict=("choose",),
        asked=as_choices,
        answer=lambda reply: str(reply["choice"]),
    ),
    "gap": Kind(
        "gap.py",
        "f1",
        0.8,
        f1_of_pronouns,
        ("dev.tsv", "dev.csv"),
        rate=4e-3,
        predict=("resolve",),
        asked=as_pronouns,
        answer=lambda reply: list(reply["probabilities"].values()),
        told=likelihoods_of,
    ),
}
EACH = pytest.mark.parametrize("name", KINDS)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What came of a task: how both verbs ended, and where its files and its workdir `run` are."""

    directory: pathlib.Path
    finetune: Done
    predict: Done


@pytest.fixture(scope="module")
def trained(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Every kind of task, trained and asked in one process."""
    base = tmp_path_factory.mktemp("kinds")
    directories = {name: base / name.replace("/", "-") for name in KINDS}
    commands: list[Sequence[str]] = []
    for name, kind in KINDS.items():
        directory = directories[name]
        WRITERS[name](directory)
        experiment = REPOSITORY / "experiments" / "finetune" / kind.experiment
        places = (f"--config={experiment}", f"--workdir={directory}/run", f"--config.init_from={toys}/model")
        learning = (f"--config.training.learning_rate={kind.rate}", f"--config.training.epochs={kind.epochs}")
        commands.append(("finetune", *places, *FLAGS, *learning, *kind.flags(directory)))
        asked = directory / "asked.jsonl"
        asked.write_text("".join(json.dumps(record) + "\n" for record in kind.asked(directory)))
        commands.append(("predict", *kind.predict, f"--model={directory}/run", f"--input={asked}", "--json"))
    done = iter(forked.run(base, *commands))
    return {name: Trained(directory, next(done), next(done)) for name, directory in directories.items()}


@EACH
def test_a_task_is_learned_far_beyond_its_most_frequent_answer(trained: dict[str, Trained], name: str):
    run, metric = trained[name], KINDS[name].metric
    assert run.finetune.status == 0, run.finetune.output
    found = results(run.directory / "run")
    assert (found["task"], found["metric"], found["degenerate"]) == (name, metric, False)
    assert found["scores"]["dev"][metric] >= KINDS[name].beats > 1.2 * found["baseline"]["dev"][metric]


@EACH
def test_the_files_of_predictions_are_worth_what_the_results_say(trained: dict[str, Trained], name: str):
    run, kind = trained[name], KINDS[name]
    assert {path.name for path in (run.directory / "run" / "predictions").iterdir()} == set(kind.files)
    assert kind.score(run.directory) == pytest.approx(results(run.directory / "run")["scores"]["dev"][kind.metric], abs=1e-5)


@EACH
def test_a_run_is_told_in_curves_and_metrics(trained: dict[str, Trained], name: str):
    workdir, metric = trained[name].directory / "run", KINDS[name].metric
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((workdir / "tensorboard").glob("events.out.tfevents.*"))
    found = results(workdir)
    each = found["steps_per_epoch"]
    dev = {record["step"]: record[f"dev/{metric}"] for record in records(workdir) if f"dev/{metric}" in record}
    assert list(dev) == [each * epoch for epoch in range(1, KINDS[name].epochs + 1)]
    assert found["scores"]["dev"][metric] == dev[found["best_step"]] == pytest.approx(max(dev.values()), rel=1e-6)
    losses = [record["train/loss"] for record in records(workdir) if "train/loss" in record]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


@EACH
def test_predict_loads_the_model_and_says_what_the_files_of_predictions_say(trained: dict[str, Trained], name: str):
    run, kind = trained[name], KINDS[name]
    assert run.predict.status == 0, run.predict.output
    replies = [json.loads(line) for line in run.predict.output.splitlines() if line.startswith("{")]
    assert [kind.answer(reply) for reply in replies] == list(kind.told(run.directory))


def test_a_test_set_without_labels_becomes_a_file_of_the_leaderboard(trained: dict[str, Trained]):
    rows = table(file(trained["glue/sst2"].directory, "SST-2.tsv"))
    assert [row["index"] for row in rows] == [str(i) for i in range(ROWS["test"])]
    assert {row["prediction"] for row in rows} == {"0", "1"}
