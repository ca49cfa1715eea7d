"""CoNLL-U: tagging and analysis read the same sentences, or report the same line."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.analysis.reading import Treebank
from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers import conllu
from bert_jax.tasks.readers.conllu import read_conllu
from bert_jax.tasks.readers.own_data import load_own_data


def row(number: int | str, word: str, head: int | str = 0) -> str:
    return f"{number}\t{word}\t_\tNOUN\tNN\t_\t{head}\tdep\t_\t_\n"


GOOD = row(1, "the", 2) + row(2, "house")


def both(tmp_path: pathlib.Path, text: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Returns the words of all sentences, which are the same from `Treebank` and `read_conllu`, and the messages of both."""
    path = tmp_path / "x.conllu"
    path.write_bytes(text.encode())
    problems: list[str] = []
    found = [sentence.words for sentence in Treebank(path, report=problems.append)]
    assert problems == []
    said: list[str] = []
    assert [example.words for example in read_conllu(path, say=said.append)] == found
    return found, [problem.removeprefix(f"{path}, ") for problem in said]


@pytest.mark.parametrize(
    ("faulty", "problem"),
    [
        (GOOD + GOOD, "line 3: the ID 1 follows the ID 2; end the previous sentence with an empty line"),
        (GOOD + "# text = b\n" + GOOD, "line 4: the ID 1 follows the ID 2; end the previous sentence with an empty line"),
        (row(1, "a") + row(3, "b"), "line 2: the ID 3 follows the ID 1; number the words of a sentence from 1"),
        (row(2, "a"), "line 1: the ID 2 is the first ID of the sentence; number the words of a sentence from 1"),
        (
            row("9" * 5000, "a"),
            f"line 1: the ID {'9' * 17}... is the first ID of the sentence; number the words of a sentence from 1",
        ),
        (row("²", "a"), "line 1: '²' is not an ID of CoNLL-U, such as 1, 1-2 or 8.1; correct the line"),
        (row(1, "\u00a0"), "line 1: column 2, the word, is empty; correct the line"),
        (
            GOOD.replace("\n", "\t\n", 1),
            "line 1: the line has 11 columns between TABs, not the 10 columns of CoNLL-U; remove the TAB at the end",
        ),
        (f"{GOOD}\u00a0\n", "line 3: the line has 1 column between TABs, not the 10 columns of CoNLL-U; correct the line"),
        (
            row(1, "_", 2) + row(2, "_"),
            "line 1: all 2 words of the sentence are '_': they were removed for licence reasons; restore them with the "
            "treebank's script",
        ),
        (row("1-2", "a"), "line 1: the sentence has no word; remove its lines"),
    ],
)
def test_both_readers_name_the_same_line(tmp_path: pathlib.Path, faulty: str, problem: str):
    path = tmp_path / "x.conllu"
    path.write_text(f"{faulty}\n{GOOD}")
    problems: list[str] = []
    assert [sentence.words for sentence in Treebank(path, report=problems.append)] == [("the", "house")]
    assert problems == [f"{path}, {problem}; the sentence is left out"]
    with pytest.raises(UserError) as error:
        read_conllu(path)
    assert str(error.value) == f"{path}, {problem}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_both_readers_accept_the_line_ends_of_other_systems(tmp_path: pathlib.Path, end: str):
    text = f"\ufeff# newdoc\n{GOOD}\n\n# text = b\n{GOOD}".replace("\n", end)
    assert both(tmp_path, text) == ([("the", "house")] * 2, [])


def test_both_readers_end_sentences_at_lines_of_spaces_or_tabs_and_report_it(tmp_path: pathlib.Path):
    told = "line 3: the line has only spaces or TABs, so it ends a sentence like an empty line (1 such line in the file)"
    assert both(tmp_path, f"{GOOD}\t\t\n{GOOD}") == ([("the", "house")] * 2, [told])


def test_columns_named_by_the_file_are_read_in_any_order(tmp_path: pathlib.Path):
    path = tmp_path / "x.cupt"
    path.write_text("# global.columns = FORM ID UPOS PARSEME:MWE HEAD\n\ngive\t1\tVERB\t1:VPC\t0\nup\t2\tADP\t1\t1\n")
    (sentence,) = Treebank(path, report=pytest.fail)
    assert (sentence.words, sentence.upos, sentence.heads) == (("give", "up"), ("VERB", "ADP"), (-1, 0))
    assert (sentence.lemmas, sentence.relations) == (("_", "_"), ("_", "_"))
    assert load_own_data(OwnDataConfig(train=str(path)), "token").train == [WordsExample("0", ("give", "up"), ("VERB", "ADP"), 0)]


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("ID FORM UPOS", "line 2: the line has 10 columns between TABs, not the 3 columns of global.columns; correct the line"),
        ("FORM UPOS", "line 1: global.columns names ID 0 times; name it once"),
        ("ID UPOS", "line 1: global.columns names FORM 0 times; name it once"),
        ("ID FORM FORM", "line 1: global.columns names FORM 2 times; name it once"),
    ],
)
def test_a_file_whose_header_does_not_fit_its_columns_is_refused(tmp_path: pathlib.Path, head: str, problem: str):
    path = tmp_path / "x.conllup"
    path.write_text(f"# global.columns = {head}\n{GOOD}")
    with pytest.raises(UserError) as error:
        read_conllu(path)
    assert str(error.value) == f"{path}, {problem}"


@pytest.mark.parametrize(
    ("marks", "documents"),
    [(("", "", ""), [0, 1, 2]), (("# newdoc id = a\n", "", "#newdoc\n"), [0, 0, 1]), (("", "# newdoc\n", ""), [0, 1, 1])],
)
def test_documents_start_at_their_marks_or_are_single_sentences(
    tmp_path: pathlib.Path, marks: tuple[str, ...], documents: list[int]
):
    path = tmp_path / "x.conllu"
    path.write_text("\n".join(mark + GOOD for mark in marks))
    sentences = list(Treebank(path, report=lambda problem: None))
    assert [sentence.document for sentence in sentences] == documents
    assert ["".join(f"{comment}\n" for comment in sentence.comments) for sentence in sentences] == list(marks)
    assert [(example.id, example.document) for example in read_conllu(path)] == [(str(i), n) for i, n in enumerate(documents)]


def test_an_underscore_is_an_empty_column(tmp_path: pathlib.Path):
    assert both(tmp_path, GOOD.replace("_", "")) == ([("the", "house")], [])


def test_a_file_may_lack_all_tags_but_not_a_single_one(tmp_path: pathlib.Path):
    path = tmp_path / "x.conllu"
    path.write_text(GOOD.replace("NOUN", "_"))
    assert [example.labels for example in read_conllu(path, may_lack_tags=True)] == [None]
    with pytest.raises(UserError, match=r"line 1: 'the' has no upos; choose the other column, or tag the file first"):
        read_conllu(path)
    path.write_text(GOOD + row(3, "burns").replace("NOUN", "_"))
    with pytest.raises(UserError, match=r"line 3: 'burns' has no upos; choose the other column, or tag the file first"):
        read_conllu(path, may_lack_tags=True)


@pytest.mark.parametrize("head", ["9" * 5000, "²", "+1", "-1", "1_0", "٣"])
def test_an_invalid_head_is_refused_only_by_the_analysis(tmp_path: pathlib.Path, head: str):
    path = tmp_path / "x.conllu"
    path.write_text(f"{row(1, 'a', head)}\n{GOOD}")
    problems: list[str] = []
    assert len(list(Treebank(path, report=problems.append))) == 1
    shown = head if len(head) < 20 else f"{'9' * 17}..."
    assert [problem.partition("line ")[2] for problem in problems] == [
        f"1: the head {shown!r} is not a word of the sentence, from 1 to 1, or 0 for the root; the sentence is left out"
    ]
    assert len(read_conllu(path)) == 2


def test_a_file_without_empty_lines_is_refused_as_one_sentence(tmp_path: pathlib.Path):
    path = tmp_path / "x.conllu"
    path.write_text("".join(row(i, "a", i - 1) for i in range(1, 10_001)))
    assert len(read_conllu(path)) == 1
    path.write_text("".join(row(i, "a", i - 1) for i in range(1, 10_002)))
    with pytest.raises(
        UserError, match=r"line 1: the sentence has 10,001 words, more than 10,000; end each sentence with an empty"
    ):
        read_conllu(path)
    with pytest.raises(UserError, match="has no sentence that can be read"):
        list(Treebank(path, report=lambda problem: None))


def test_chains_of_heads_take_linear_time():
    conllu.check_tree("", [i - 1 for i in range(100_000)])
    conllu.check_tree("", [*range(1, 100_000), -1])
    with pytest.raises(UserError, match=r"the heads of the words 1 -> 2 -> .* -> 10 -> \.\.\. -> 1 are a cycle, not a tree"):
        conllu.check_tree("", [*range(1, 100_000), 0])


@pytest.mark.parametrize(("words", "shown"), [(11, " -> ".join(map(str, [*range(1, 12), 1]))), (12, "9 -> 10 -> ... -> 1")])
def test_a_long_cycle_is_cut_in_its_message(words: int, shown: str):
    with pytest.raises(UserError, match=rf"{shown} are a cycle, not a tree"):
        conllu.check_tree("", [*range(1, words), 0])
