from __future__ import annotations

import pathlib
import zipfile

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.readers.glue import SUBMISSION, TASKS, read_glue, write_submission

STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
PAIRS = "index\tsentence1\tsentence2\tlabel\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
)


def put(path: pathlib.Path, text: str | bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_cola_has_a_header_only_in_its_test_set(tmp_path: pathlib.Path):
    put(tmp_path / "CoLA" / "train.tsv", "x1\t1\t\tBirds fly.\nx1\t0\t*\tFly birds the.\n")
    put(tmp_path / "CoLA" / "test.tsv", "index\tsentence\n0\tFish swim.\n")
    read = read_glue("CoLA", tmp_path, "train")
    assert read == [TextExample("0", "Birds fly.", None, "1"), TextExample("1", "Fly birds the.", None, "0")]
    assert read_glue("CoLA", tmp_path, "test") == [TextExample("0", "Fish swim.", None, None)]


@pytest.mark.parametrize(
    ("task", "header", "row", "wanted"),
    [
        ("SST-2", "sentence\tlabel\n", "a fine film \t1\n", TextExample("0", "a fine film ", None, "1")),
        ("STS-B", STS, "7\tg\tf\ty\to\ts\ts\tA cat.\tOne cat.\t4.250\n", TextExample("7", "A cat.", "One cat.", 4.25)),
        ("QQP", QQP, "9\t1\t2\tWhy?\tHow?\t0\n", TextExample("9", "Why?", "How?", "0")),
        ("QNLI", "index\tquestion\tsentence\tlabel\n", "3\tA?\tB.\tentailment\n", TextExample("3", "A?", "B.", "entailment")),
        ("RTE", PAIRS, "4\tA.\tB.\tnot_entailment\n", TextExample("4", "A.", "B.", "not_entailment")),
        ("WNLI", PAIRS, "5\tA.\tB.\t0\n", TextExample("5", "A.", "B.", "0")),
    ],
)
def test_columns_of_the_official_files_are_read(tmp_path: pathlib.Path, task: str, header: str, row: str, wanted: TextExample):
    put(tmp_path / "dev.tsv", header + row)
    assert read_glue(task, tmp_path, "dev") == [wanted]  # the task's own directory works as well


def test_mnli_takes_the_gold_label_and_leaves_out_examples_without_one(tmp_path: pathlib.Path):
    parses = "\t".join(["prompt", "pair", "genre", "binary", "binary", "parse"])
    votes = "\t".join(["neutral", "neutral", "entailment", "neutral", "entailment"])
    rows = [f"{i}\t{parses}\tparse\tA.\tB.\t{votes}\t{gold}\n" for i, gold in enumerate(["entailment", "-"])]
    put(tmp_path / "MNLI" / "dev_matched.tsv", MNLI + "".join(rows))
    said: list[str] = []
    assert read_glue("MNLI", tmp_path, "dev_matched", say=said.append) == [TextExample("0", "A.", "B.", "entailment")]
    assert len(said) == 1
    assert "left out 1 example without a gold label" in said[0]
    with pytest.raises(UserError, match="no split 'dev'; known: dev_matched, dev_mismatched"):
        read_glue("MNLI", tmp_path, "dev")


@pytest.mark.parametrize("place", ["AX/AX.tsv", "diagnostic/diagnostic.tsv"])
def test_the_diagnostic_set_has_two_names_and_the_labels_of_mnli(tmp_path: pathlib.Path, place: str):
    put(tmp_path / place, "index\tsentence1\tsentence2\n0\tA.\tB.\n")
    assert read_glue("AX", tmp_path, "test") == [TextExample("0", "A.", "B.", None)]
    assert TASKS["AX"].labels == TASKS["MNLI"].labels == ("contradiction", "entailment", "neutral")


def test_quotes_are_characters_and_only_line_feeds_end_lines(tmp_path: pathlib.Path):
    put(tmp_path / "dev.tsv", 'sentence\tlabel\r\n"he said\t1\r\nnext\u2028line\u0085here\t0\r\nlast\t1')
    assert [(e.text, e.label) for e in read_glue("SST-2", tmp_path, "dev")] == [
        ('"he said', "1"),
        ("next\u2028line\u0085here", "0"),
        ("last", "1"),
    ]


MSR = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t10\t11\tA.\tB.\r\n0\t20\t21\tC.\t"D.\r\n1\t30\t31\tE.\tF.\r\n'


def test_mrpc_is_read_in_both_layouts(tmp_path: pathlib.Path):
    put(tmp_path / "a" / "train.tsv", MSR)
    assert [e.text_b for e in read_glue("MRPC", tmp_path / "a", "train")] == ["B.", '"D.', "F."]
    put(tmp_path / "b" / "msr_paraphrase_train.txt", MSR)
    put(tmp_path / "b" / "msr_paraphrase_test.txt", MSR)
    with pytest.raises(UserError, match=r"dev_ids\.tsv is missing"):
        read_glue("MRPC", tmp_path / "b", "train")
    put(tmp_path / "b" / "dev_ids.tsv", "20\t21\n")
    assert [e.text for e in read_glue("MRPC", tmp_path / "b", "train")] == ["A.", "E."]
    assert read_glue("MRPC", tmp_path / "b", "dev") == [TextExample("0", "C.", '"D.', "0")]
    assert [(e.id, e.label) for e in read_glue("MRPC", tmp_path / "b", "test")] == [("0", "1"), ("1", "0"), ("2", "1")]


def test_a_broken_line_is_an_error_except_in_known_files(tmp_path: pathlib.Path):
    put(tmp_path / "SST-2" / "dev.tsv", "sentence\tlabel\nfine\t1\nhalf\n")
    with pytest.raises(UserError, match=r"dev\.tsv, line 3: the row has 1 column, but there are 2 column names"):
        read_glue("SST-2", tmp_path, "dev")
    put(tmp_path / "QQP" / "train.tsv", QQP + "0\t1\t2\tA\tB\t1\n1\t3\n2\t1\t2\tC\tD\t0\n3\n")
    said: list[str] = []
    assert [e.id for e in read_glue("QQP", tmp_path, "train", say=said.append)] == ["0", "2"]
    assert "left out 2 lines with too many or too few columns; the first is line 3" in said[0]
    put(tmp_path / "QQP" / "test.tsv", "id\tquestion1\tquestion2\n0\tA\n")
    with pytest.raises(UserError, match="line 2: the row has 2 columns"):
        read_glue("QQP", tmp_path, "test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"dev\.tsv is empty"),
        (b"sentence\tlabel\n", "no examples of the dev split"),
        (b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", r"line 3: byte 26 of the file \(0xe9\) is not UTF-8"),
        ("sentence\tlabel\n".encode("utf-16"), "line 1: byte 1 .*starts like UTF-16"),
        (b"s\0e\0", "character 2 of the file is NUL"),
        (b"sentence,label\nfine,1\n", "line 1: the only column is 'sentence,label'; separate columns with TABs, not with ','"),
        (b"sentense\tlabel\nfine\t1\n", "no column 'sentence'; did you mean 'sentense'"),
        (b"sentence\tsentence\nfine\t1\n", "line 1: two columns are named 'sentence'"),
        (b"sentence\tlabel\nfine\t2\n", "line 2: label is '2', not one of 0, 1"),
    ],
)
def test_bad_files_are_refused_with_the_fault(tmp_path: pathlib.Path, text: bytes, message: str):
    put(tmp_path / "SST-2" / "dev.tsv", text)
    with pytest.raises(UserError, match=message):
        read_glue("SST-2", tmp_path, "dev")


@pytest.mark.parametrize("score", ["5.1", "-1", "high", "nan"])
def test_a_similarity_must_be_between_0_and_5(tmp_path: pathlib.Path, score: str):
    put(tmp_path / "dev.tsv", STS + f"0\tg\tf\ty\to\ts\ts\tA\tB\t{score}\n")
    with pytest.raises(UserError, match=f"line 2: score is '{score}', not a number from 0 to 5"):
        read_glue("STS-B", tmp_path, "dev")


def test_missing_files_are_refused_with_the_searched_directory(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"none is not a directory.*none/RTE/dev\.tsv, .*none/dev\.tsv"):
        read_glue("RTE", tmp_path / "none", "dev")
    with pytest.raises(UserError, match="no task 'RTF'; did you mean 'RTE'"):
        read_glue("RTF", tmp_path, "dev")


def answers(name: str) -> list[str | float]:
    task, rows = TASKS[SUBMISSION[name].task], SUBMISSION[name].rows
    return [i / rows * 6 - 0.5 if task.is_regression else task.labels[i % len(task.labels)] for i in range(rows)]


def test_a_submission_has_every_file_in_leaderboard_format(tmp_path: pathlib.Path):
    path = write_submission(tmp_path / "out", {name: answers(name) for name in SUBMISSION})
    with zipfile.ZipFile(path) as archive:
        tables = {name: archive.read(name).decode().split("\n") for name in archive.namelist()}
    assert set(tables) == {
        *("AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv"),
        *("QQP.tsv", "RTE.tsv", "SST-2.tsv", "STS-B.tsv", "WNLI.tsv"),
    }
    for name, lines in tables.items():
        assert (tmp_path / "out" / name).read_text().split("\n") == lines
    assert tables["CoLA.tsv"][:3] == ["index\tprediction", "0\t0", "1\t1"]
    assert tables["RTE.tsv"][2] == "1\tnot_entailment"
    assert tables["MNLI-mm.tsv"][1:4] == ["0\tcontradiction", "1\tentailment", "2\tneutral"]
    assert (tables["STS-B.tsv"][1], tables["STS-B.tsv"][-2]) == ("0\t0.000", "1378\t5.000")
    rows = {"AX": 1104, "CoLA": 1063, "MNLI-m": 9796, "MNLI-mm": 9847, "MRPC": 1725, "QNLI": 5463}
    rows |= {"QQP": 390_965, "RTE": 3000, "SST-2": 1821, "STS-B": 1379, "WNLI": 146}
    assert {name: len(lines) - 2 for name, lines in tables.items()} == {f"{name}.tsv": n for name, n in rows.items()}


def test_an_invalid_submission_is_not_written(tmp_path: pathlib.Path):
    good = answers("WNLI")
    with pytest.raises(UserError, match="lacks CoLA, SST-2"):
        write_submission(tmp_path, {"WNLI": good})
    for wrong, message in [
        ({"WNLI": good[1:]}, "WNLI has 145 predictions, but the official test set has 146"),
        ({"WNLI": ["yes", *good[1:]]}, "prediction 0 of WNLI is 'yes', not one of 0, 1"),
        ({"STS-B": [float("nan")] * 1379}, "prediction 0 of STS-B is nan"),
        ({"MNLI": good}, "no 'MNLI'; did you mean 'MNLI-m'"),
    ]:
        with pytest.raises(UserError, match=message):
            write_submission(tmp_path, wrong, complete=False)
    assert list(tmp_path.iterdir()) == []
    assert write_submission(tmp_path, {"WNLI": good}, complete=False).is_file()


@pytest.mark.parametrize(
    ("task", "train", "dev", "test"),
    [
        ("CoLA", 8551, 1043, 1063),
        ("SST-2", 67_349, 872, 1821),
        ("MRPC", 3668, 408, 1725),
        ("STS-B", 5749, 1500, 1379),
        ("RTE", 2490, 277, 3000),
        ("WNLI", 635, 71, 146),
    ],
)
def test_the_real_glue_files_are_read_completely(shared_data: pathlib.Path, task: str, train: int, dev: int, test: int):
    splits = {split: read_glue(task, shared_data / "glue", split) for split in ("train", "dev", "test")}
    assert {split: len(examples) for split, examples in splits.items()} == {"train": train, "dev": dev, "test": test}
    for split, examples in splits.items():
        assert all(example.text and (example.text_b is None) == (TASKS[task].text_b is None) for example in examples)
        assert all((example.label is None) == (split == "test") for example in examples)
    assert [example.id for example in splits["test"]] == [str(i) for i in range(test)]
    assert test == SUBMISSION[task].rows
