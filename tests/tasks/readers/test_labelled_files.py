"""What every reader of labelled files has to accept from the programs that write them: byte order marks and quotes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.examples import ChoiceExample
from bert_jax.tasks.readers.conll import read_conll
from bert_jax.tasks.readers.conllu import read_conllu
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.glue import read_glue
from bert_jax.tasks.readers.own_data import read_own_data
from bert_jax.tasks.readers.sick import read_sick
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.readers.swag import read_codah, read_swag

Read = Callable[[pathlib.Path], Sequence[Any]]

BOM = b"\xef\xbb\xbf"
QUESTIONS = {"context": "Ada and Bo", "qas": [{"id": "q", "question": "Who?", "answers": [{"text": "Bo", "answer_start": 8}]}]}
SQUAD = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [QUESTIONS]}]}, indent=1)
GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
SICK = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
SWAG = ("", "video-id", "sent1", "sent2", "gold-source", *(f"ending{i}" for i in range(4)), "label")
WORD = "1\tno\t_\tINTJ\tUH" + "\t_" * 5 + "\n"
MSR = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t10\t11\tA.\tB.\n0\t20\t21\tC.\tD.\n"


def put(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def comma_separated(*rows: Sequence[object]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue()


# ------------------------------------------------------------------------------------------------------------- byte order marks
def glue(task: str, split: str = "dev") -> Read:
    return lambda path: read_glue(task, path.parent, split)


def own(kind: str) -> Read:
    return lambda path: read_own_data(OwnDataConfig(train=str(path)), kind, "train")


def members_of_mrpc(path: pathlib.Path) -> Sequence[Any]:
    put(path.with_name("msr_paraphrase_train.txt"), MSR.encode())
    return read_glue("MRPC", path.parent, "dev")


FILES: Mapping[str, tuple[str, str, Read]] = {
    "SQuAD": ("dev-v1.1.json", SQUAD, read_squad),
    "GAP": ("gap.tsv", f"{GAP}t-1\tAnn met Bea. Her dog.\tHer\t13\tAnn\t0\tFALSE\tBea\t8\tTRUE\tu\n", read_gap),
    "CoNLL that begins with a word": ("a.conll", "EU B-ORG\nwins O\n\nBonn B-LOC\n", read_conll),
    "CoNLL that begins with a document": ("a.txt", "-DOCSTART- O\n\nEU B-ORG\n\nBonn B-LOC\n", read_conll),
    "CoNLL that begins with a comment": ("a.conll", "# by hand, in Bonn\nEU\tB-ORG\nwins\tO\n", read_conll),
    "CoNLL-U that begins with a word": ("a.conllu", f"{WORD}\n{WORD}", read_conllu),
    "CoNLL-U that begins with a document": ("a.conllu", f"# newdoc\n{WORD}\n{WORD}", read_conllu),
    "SICK": ("SICK.txt", f"{SICK}3\tA.\tB.\tNEUTRAL\t4.5\tTRAIN\n", lambda path: read_sick(path, "train")),
    "SWAG": ("val.csv", comma_separated(SWAG, (0, "v", "It is.", "She", "gold", "a", "b", "c", "d", 2)), read_swag),
    "CODAH": ("dev.tsv", "i\tShe\truns.\teats.\tsits.\tsings.\t3\n", read_codah),
    "GLUE with a header": ("dev.tsv", "sentence\tlabel\na fine film\t1\n", glue("SST-2")),
    "GLUE without a header": ("dev.tsv", "x1\t1\t\tBirds fly.\n", glue("CoLA")),
    "GLUE with an index": ("test.tsv", "index\tsentence\n7\tFish swim.\n", glue("CoLA", "test")),
    "MRPC of its authors": ("msr_paraphrase_test.txt", MSR, glue("MRPC", "test")),
    "the dev set of MRPC": ("dev_ids.tsv", "20\t21\n", members_of_mrpc),
    "CSV of one's own": ("a.csv", "text,label\nfine,x\nbad,y\n", own("sequence")),
    "CSV of one's own that begins with a quote": ("a.csv", '"text","label"\n"fine","x"\n', own("sequence")),
    "TSV of one's own, packed": ("a.tsv.gz", "text\tlabel\nfine\tx\n", own("sequence")),
    "JSON lines of one's own": ("a.jsonl", '{"words": ["EU", "wins"], "labels": ["ORG", "O"]}\n', own("token")),
    "questions of one's own": ("a.json", SQUAD, own("span")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_byte_order_mark_changes_nothing(tmp_path: pathlib.Path, name: str):
    file, text, read = FILES[name]
    plain = read(put(tmp_path / "plain" / file, text.encode()))
    assert plain
    assert read(put(tmp_path / "marked" / file, BOM + text.encode())) == plain


# ---------------------------------------------------------------------------------------------------------------------- quotes
TEXTS = (('"He ran', 'it is 5" long'), ('he ""ran"""', '"'), ('"all of it"', "none of it"))


def pairs(read: Read) -> Read:
    return lambda path: [(example.text, example.text_b) for example in read(path)]


def about_pronouns(before: str, between: str) -> str:
    text = f"{before} Ann {between} Bea. Her dog."
    her, ann, bea = (f"{name}\t{text.index(name)}" for name in ("Her", "Ann", "Bea"))
    return f"t-{TEXTS.index((before, between))}\t{text}\t{her}\t{ann}\tFALSE\t{bea}\tTRUE\tu\n"


LITERAL: Mapping[str, tuple[str, str, Callable[[str, str], str], Read]] = {
    "GLUE": ("dev.tsv", "index\tsentence1\tsentence2\tlabel\n", "0\t{}\t{}\tentailment\n".format, pairs(glue("RTE"))),
    "GLUE without a header": (
        "dev.tsv",
        "",
        "{}\t1\t\t{}\n".format,
        lambda path: [(a, e.text) for (a, _), e in zip(TEXTS, glue("CoLA")(path), strict=True)],
    ),
    "SICK": ("SICK.txt", SICK, "3\t{}\t{}\tNEUTRAL\t4.5\tTRAIN\n".format, pairs(lambda path: read_sick(path, "train"))),
    "CODAH": (
        "dev.tsv",
        "",
        "i\t{}\t{}\teats.\tsits.\tsings.\t3\n".format,
        lambda path: [(example.prompt, example.choices[0]) for example in read_codah(path)],
    ),
    "GAP": (
        "gap.tsv",
        GAP,
        about_pronouns,
        lambda path: [(e.text[: e.a_start - 1], e.text[e.a_start + 4 : e.b_start - 1]) for e in read_gap(path)],
    ),
}


@pytest.mark.parametrize("name", LITERAL)
def test_quotes_between_tabs_are_characters(tmp_path: pathlib.Path, name: str):
    file, header, row, read = LITERAL[name]
    path = put(tmp_path / file, (header + "".join(row(*texts) for texts in TEXTS)).encode())
    assert read(path) == list(TEXTS)


def test_quoted_swag_cells_may_contain_commas_quotes_and_line_ends(tmp_path: pathlib.Path):
    endings = ('says "no", then "yes"', "sings,\nthen eats", '"', "runs")
    path = put(tmp_path / "val.csv", comma_separated(SWAG, (0, "v", 'Ada, "the first"', "She", "gold", *endings, 2)).encode())
    assert read_swag(path) == [ChoiceExample("0", 'Ada, "the first"', tuple(f"She {ending}" for ending in endings), 2)]
    torn = put(tmp_path / "torn.csv", comma_separated(SWAG).encode() + b'0,v,"Ada sits,She,gold,a,b,c,d,2\n')
    with pytest.raises(UserError, match=r"torn\.csv, line 2: the quotes in this row are not balanced"):
        read_swag(torn)


# -------------------------------------------------------------------------------------------------------------- missing columns
HEADED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "GAP": ("\t", ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")),
    "SICK": ("\t", ("pair_ID", "sentence_A", "sentence_B", "entailment_label", "SemEval_set")),
    "SWAG": (",", ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")),
    "GLUE with a header": ("\t", ("sentence", "label")),
}


@pytest.mark.parametrize(("name", "column"), [(name, column) for name, (_, columns) in HEADED.items() for column in columns])
def test_a_missing_column_is_named(tmp_path: pathlib.Path, name: str, column: str):
    (file, text, read), (delimiter, _) = FILES[name], HEADED[name]
    header, *rows = text.splitlines()
    others = delimiter.join(f"{cell}s" if cell == column else cell for cell in header.split(delimiter))
    path = put(tmp_path / file, "\n".join([others, *rows, ""]).encode())
    with pytest.raises(UserError, match=f"{file}, line 1: there is no column '{column}'"):
        read(path)
