"""tfds's own builders prepare small official files; the result has to match the readers of those files."""

from __future__ import annotations

import importlib
import json
import pathlib
import struct
import sys
from typing import Any

import pytest

from bert_jax.data.corpus import tfds_text
from bert_jax.data.corpus import tfds_text as prepared_sets
from bert_jax.errors import UserError
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.conll import read_conll
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.glue import GLUE_NAMES, TASKS, read_glue
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.task import load_task

tfds = tfds_text._tfds()

# builders that tfds knows only after their modules are imported, which needs no TensorFlow
BUILDERS = {
    "glue": ("tensorflow_datasets.text.glue", "Glue"),
    "squad": ("tensorflow_datasets.datasets.squad.squad_dataset_builder", "Builder"),
    "gap": ("tensorflow_datasets.text.gap", "Gap"),
    "conll2003": ("tensorflow_datasets.text.conll2003.conll2003", "Conll2003"),
}
PLAIN = "index\tsentence1\tsentence2"
FILES = {
    "CoLA/train.tsv": ["x1\t1\t\tBirds “fly”.", "x1\t0\t*\tFly\u00a0birds the 中文."],
    "CoLA/dev.tsv": ["x1\t0\t*\tIt fish."],
    "CoLA/test.tsv": ["index\tsentence", *(f"{i}\tFish {i}." for i in range(30))],  # enough for a shuffle to be visible
    "SST-2/train.tsv": ["sentence\tlabel", '"a fine film \t1', "a 😀 film\t0"],
    "SST-2/dev.tsv": ["sentence\tlabel", "cafe\u0301\t1"],
    "SST-2/test.tsv": ["index\tsentence", "0\tx"],
    "MRPC/msr_paraphrase_train.txt": [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        *(f"{i % 2}\t{i}\t{i + 50}\tA {i}\tB {i}" for i in range(8)),
    ],
    "MRPC/msr_paraphrase_test.txt": ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t10\t11\tE\tF"],
    "MRPC/dev_ids.tsv": ["2\t52", "5\t55"],
    "STS-B/train.tsv": [f"{PLAIN}\tscore", "0\tA\tB\t3.8", "1\tC\tD\t4.250", "2\tE\tF\t0.000"],
    "STS-B/dev.tsv": [f"{PLAIN}\tscore", "0\tA\tB\t1.333"],
    "STS-B/test.tsv": [PLAIN, "0\tA\tB"],
    "MNLI/train.tsv": [f"{PLAIN}\tgold_label", "0\tA\tB\tneutral", "1\tC\tD\tcontradiction", "2\tE\tF\tentailment"],
    "MNLI/dev_matched.tsv": [f"{PLAIN}\tgold_label", "0\tA\tB\tcontradiction"],
    "MNLI/dev_mismatched.tsv": [f"{PLAIN}\tgold_label", "0\tA\tB\tneutral"],
    "MNLI/test_matched.tsv": [PLAIN, "0\tG\tH"],
    "MNLI/test_mismatched.tsv": [PLAIN, "0\tI\tJ"],
    "AX/AX.tsv": [PLAIN, "0\tK\tL"],
    "QQP/train.tsv": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t0", "1\t1\t2\tWhy?\tWhy?\t1"],
    "QQP/dev.tsv": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t1"],
    "QQP/test.tsv": ["id\tquestion1\tquestion2", "0\tWhy?\tHow?"],
    "QNLI/train.tsv": ["index\tquestion\tsentence\tlabel", "0\tA?\tB.\tentailment", "1\tC?\tD.\tnot_entailment"],
    "QNLI/dev.tsv": ["index\tquestion\tsentence\tlabel", "0\tA?\tB.\tnot_entailment"],
    "QNLI/test.tsv": ["index\tquestion\tsentence", "0\tA?\tB."],
    "RTE/train.tsv": [f"{PLAIN}\tlabel", "0\tA\tB\tnot_entailment", "1\tC\tD\tentailment"],
    "RTE/dev.tsv": [f"{PLAIN}\tlabel", "0\tA\tB\tentailment"],
    "RTE/test.tsv": [PLAIN, "0\tA\tB"],
    "WNLI/train.tsv": [f"{PLAIN}\tlabel", "0\tA\tB\t1", "1\tC\tD\t0"],
    "WNLI/dev.tsv": [f"{PLAIN}\tlabel", "0\tA\tB\t0"],
    "WNLI/test.tsv": [PLAIN, "0\tA\tB"],
}


def put(path: pathlib.Path, *lines: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the directory in which data sets are looked for, offline."""
    monkeypatch.setattr(prepared_sets, "HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


def prepare(name: str, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fetched: Any) -> pathlib.Path:
    """Makes the builder of tfds prepare a data set from files that it takes for downloaded ones."""
    base, _, config = name.partition("/")
    with tfds_text.without_tfds_warnings():
        module, class_name = BUILDERS[base]
        builder = getattr(importlib.import_module(module), class_name)(
            **({"config": config} if config else {}), data_dir=root, file_format="array_record"
        )
    for method in ("download", "download_and_extract"):
        monkeypatch.setattr(tfds.download.DownloadManager, method, lambda self, urls: fetched)
    with tfds_text.without_tfds_warnings():
        builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)


def as_tfrecords(directory: pathlib.Path) -> None:
    """Writes the same data set in the format of most prepared ones, by hand, since tfds needs TensorFlow for it."""
    builder = tfds.builder_from_directory(directory)
    info = json.loads((directory / "dataset_info.json").read_text())
    for split in info["splits"]:
        examples = [builder.info.features.serialize_example(record) for record in builder.as_data_source(split["name"])]
        framed = b"".join(struct.pack("<QI", len(example), 0) + example + b"\0" * 4 for example in examples)
        (directory / f"{builder.name}-{split['name']}.tfrecord-00000-of-00001").write_bytes(framed)
        split["shardLengths"] = [str(len(examples))]
        split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (directory / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))


def glue_files(directory: pathlib.Path) -> pathlib.Path:
    for name, lines in FILES.items():
        put(directory / name, *lines)
    return directory


@pytest.mark.parametrize("task", GLUE_NAMES)
def test_glue_from_the_catalogue_equals_its_files_in_order(
    task: str, root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    files = glue_files(tmp_path / "glue")
    name = GLUE_NAMES[task]
    msr = {"train": files / "MRPC/msr_paraphrase_train.txt", "test": files / "MRPC/msr_paraphrase_test.txt"}
    fetched = {"AX": files / "AX/AX.tsv", "MRPC": msr | {"dev_ids": files / "MRPC/dev_ids.tsv"}}.get(name, files)
    if name == "MRPC":  # the builder skips a byte order mark in one of the two files only
        put(msr["test"], FILES["MRPC/msr_paraphrase_test.txt"][0].removeprefix("\ufeff"), "1\t10\t11\tE\tF")
    prepare(task, root, monkeypatch, fetched)
    for split in TASKS[name].files:
        wanted = read_glue(name, files, split)
        found = catalogue.examples(task, split)
        if name == "MRPC":  # there the index is the row of the common file, and the test set has no labels
            assert [(e.text, e.text_b) for e in found] == [(e.text, e.text_b) for e in wanted]
            assert split == "test" or [e.label for e in found] == [e.label for e in wanted]
        else:
            assert found == wanted
    assert catalogue.examples(task, "nothing") == []
    assert "tensorflow" not in sys.modules


def test_a_task_without_a_directory_comes_from_the_catalogue(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    prepare("glue/mnli", root, monkeypatch, glue_files(tmp_path / "glue"))
    said: list[str] = []
    task = load_task(TaskConfig(name="glue/mnli", train_rows=2), said.append)
    assert {split: len(examples) for split, examples in task.splits.items()} == {
        "train": 2,
        "dev_matched": 1,
        "dev_mismatched": 1,
        "test_matched": 1,
        "test_mismatched": 1,
    }
    assert len(said) == 1
    assert "continues without glue/ax" in said[0]
    with pytest.raises(UserError, match=r"^glue/ax is not available from the catalogue"):
        load_task(TaskConfig(name="glue/ax"))


CONTEXT = " Añna 🎉 中文 and Bo\tsaw\u00a0Bo."


def squad(version: str) -> str:
    def ask(i: int, *answers: tuple[str, int], **more: object) -> dict:
        return {"id": f"q{i}", "question": f"Who {i}?", "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}

    first = {} if version == "v1.1" else {"is_impossible": False}
    questions = [ask(0, ("Bo", CONTEXT.index("Bo")), ("Añna", 1), **first), ask(1, ("中文", 0), **first)]
    if version == "v2.0":
        plausible = [{"text": "Bo", "answer_start": CONTEXT.index("Bo")}]
        questions.append(ask(2, is_impossible=True, plausible_answers=plausible))
        questions.append(ask(3, ("Bo", CONTEXT.index("Bo")), is_impossible=True))
    return json.dumps({"version": version, "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]})


@pytest.mark.parametrize("format", ["array_record", "tfrecord"])
@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_squad_from_the_catalogue_equals_its_files(
    version: str, format: str, root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    files = {name: put(tmp_path / f"{name}.json", squad(version)) for name in ("train", "dev")}
    directory = prepare(f"squad/{version}", root, monkeypatch, files)
    if format == "tfrecord":
        as_tfrecords(directory)
    here: list[str] = []
    task = load_task(TaskConfig(name=f"squad/{version}"), here.append)
    assert list(task.splits) == ["train", "dev"]
    for line, split in zip(here, task.splits, strict=True):
        there: list[str] = []
        assert sorted(task.splits[split], key=lambda e: e.id) == read_squad(files[split], say=there.append)
        assert [line.rpartition(":")[2]] == [line.rpartition(":")[2] for line in there]  # of the answer at another position
    assert catalogue.examples(f"squad/{version}", "test") == []


def test_gap_from_the_catalogue_equals_its_files_except_for_rows_with_quotes(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    header = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"

    def row(i: int, a: str, b: str, text: str = "Añna 🎉 saw Bo and she ran", end: str = "") -> str:
        starts = [text.index(name) for name in ("she", "na", "Bo")]
        return f"dev-{i}\t{text}\tshe\t{starts[0]}\tna\t{starts[1]}\t{a}\tBo\t{starts[2]}\t{b}\turl{end}"

    rows = [row(i, *(("TRUE", "FALSE"), ("FALSE", "TRUE"), ("FALSE", "FALSE"))[i % 3]) for i in range(12)]
    plain = put(tmp_path / "plain.tsv", header, *rows)
    quoted = put(tmp_path / "quoted.tsv", header, *rows, row(12, "TRUE", "FALSE", '"Añna" 🎉 saw Bo and she ran'))
    prepare("gap", root, monkeypatch, {"train": plain, "validation": quoted, "test": plain})
    said: list[str] = []
    assert load_task(TaskConfig(name="gap"), said.append).splits == dict.fromkeys(("train", "dev", "test"), read_gap(plain))
    assert said == ["tfds:gap: left out 1 row whose names are not at the stated offsets; the first row is dev-12"]


def test_conll_from_the_catalogue_keeps_sentences_but_neither_order_nor_documents(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    lines = [
        "-DOCSTART- -X- -X- O",
        "",
        "EU NNP B-NP B-ORG",
        "café NN B-NP O",
        "",
        "Ann NNP B-NP B-PER",
        "Lee NNP I-NP I-PER",
        "",
    ]
    for name in ("train", "valid", "test"):
        path = put(tmp_path / f"{name}.txt", *lines, "Bo NNP B-NP B-PER")
    prepare("conll2003", root, monkeypatch, tmp_path)
    splits = load_task(TaskConfig(name="conll2003")).splits
    assert list(splits) == ["train", "dev", "test"]
    for found in splits.values():
        assert sorted((e.words, e.labels) for e in found) == sorted((e.words, e.labels) for e in read_conll(path))
        assert [(e.id, e.document) for e in found] == [("0", 0), ("1", 1), ("2", 2)]
        assert all(isinstance(e, WordsExample) for e in found)


@pytest.mark.parametrize("task", ["swag", "sick/entailment", "codah", "wnut17", "pos"])
def test_tasks_missing_in_the_catalogue_require_a_directory(task: str):
    with pytest.raises(UserError, match=f"{task} is not in the catalogue of tfds; set config.task.data_dir"):
        catalogue.examples(task, "train")


def test_failed_downloads_suggest_a_directory(root: pathlib.Path):
    with pytest.raises(UserError, match=r"glue/rte is not available from the catalogue: .*set config\.task\.data_dir") as caught:
        catalogue.examples("glue/rte", "train")
    assert "--source" not in str(caught.value)
