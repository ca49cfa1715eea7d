"""Reads CoNLL-U files, whole and damaged."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.analysis.reading import Treebank
from bert_jax.analysis.windows import word_windows
from bert_jax.errors import UserError
from bert_jax.tasks.readers.conllu import Sentence


def row(number: int | str, word: str, head: int | str = 0, relation: str = "dep", misc: str = "_") -> str:
    return f"{number}\t{word}\t{word.lower()}\tNOUN\tNN\t_\t{head}\t{relation}\t_\t{misc}\n"


GOOD = row(1, "the", 2, "det") + row(2, "house", 0, "root", "Entity=(1)")


def read(tmp_path: pathlib.Path, text: str, **options: bool) -> tuple[list[Sentence], list[str]]:
    path = tmp_path / "x.conllu"
    path.write_text(text)
    problems: list[str] = []
    treebank = Treebank(path, report=problems.append, **options)
    assert (treebank.line, treebank.failed) == (0, 0)
    sentences = list(treebank)
    assert list(treebank) == sentences  # read again, without reporting problems again
    assert treebank.failed == len(problems)
    return sentences, [problem.removeprefix(f"{path}, ") for problem in problems]


def test_a_sentence_has_every_column_and_heads_count_from_0(tmp_path):
    (sentence,), problems = read(tmp_path, "# text = the house\n" + GOOD)
    assert problems == []
    assert (sentence.words, sentence.lemmas) == (("the", "house"), ("the", "house"))
    assert (sentence.upos, sentence.xpos) == (("NOUN", "NOUN"), ("NN", "NN"))
    assert (sentence.heads, sentence.relations) == ((1, -1), ("det", "root"))
    assert sentence.misc == ("_", "Entity=(1)")


def test_multiword_tokens_and_empty_nodes_are_left_out_and_their_words_stay(tmp_path):
    text = row("1-2", "don't", "_") + row(1, "do") + row(2, "n't", 1) + row("2.1", "go", "_") + row(3, "it", 1)
    (sentence,), problems = read(tmp_path, text)
    assert (sentence.words, sentence.heads, problems) == (("do", "n't", "it"), (-1, 0, 0), [])


def test_documents_are_counted_by_newdoc_or_else_by_sentence(tmp_path):
    sentences, _ = read(tmp_path, f"# newdoc id = a\n{GOOD}\n{GOOD}\n# newdoc\n{GOOD}")
    assert [sentence.document for sentence in sentences] == [0, 0, 1]
    sentences, _ = read(tmp_path, f"{GOOD}\n{GOOD}")
    assert [sentence.document for sentence in sentences] == [0, 1]


def test_halves_of_a_file_alternate_sentences_and_skip_those_of_the_other_half(tmp_path):
    path = tmp_path / "x.conllu"
    cycle = row(1, "a", 2) + row(2, "b", 1)
    path.write_text("\n".join([GOOD, GOOD, f"# newdoc\n{GOOD}", cycle, GOOD]))
    problems: list[str] = []
    treebank = Treebank(path, report=problems.append)
    even = list(treebank.half(0))
    assert problems == []
    odd = list(treebank.half(1))
    assert len(problems) == 1
    whole = list(treebank)
    assert (even, odd) == ([whole[0], whole[2], whole[3]], [whole[1]])


def test_a_half_without_a_readable_sentence_is_refused_unless_the_file_has_only_one(tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(GOOD)
    assert list(Treebank(path).half(1)) == []
    for text in ("", row(1, "a", 1)):
        path.write_text(text)
        treebank = Treebank(path, report=lambda problem: None)
        with pytest.raises(UserError, match="no sentence that can be read"):
            list(treebank.half(0))
        assert treebank.line == text.count("\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            row(1, "a", 2) + row(2, "b", 1),
            "line 1: the heads of the words 1 -> 2 -> 1 are a cycle, not a tree; correct the heads",
        ),
        (row(1, "a", 3) + row(2, "b", 0), "line 1: the head '3' is not a word of the sentence, from 1 to 2, or 0 for the root"),
        (row(1, "a", "_") + row(2, "b", 0), "line 1: the head '_' is not a word of the sentence, from 1 to 2, or 0 for the root"),
        (row(1, "a", "_"), "line 1: the sentence has no heads (column 7 is _); give a treebank, or parse the file first"),
        ("1\ta\n", "line 1: the line has 2 columns between TABs, not the 10 columns of CoNLL-U; correct the line"),
        (row("x", "a"), "line 1: 'x' is not an ID of CoNLL-U, such as 1, 1-2 or 8.1; correct the line"),
        (row(1, "a") + row(3, "b"), "line 2: the ID 3 follows the ID 1; number the words of a sentence from 1"),
        (row(1, ""), "line 1: column 2, the word, is empty; correct the line"),
        (row("1-2", "don't"), "line 1: the sentence has no word; remove its lines"),
    ],
)
def test_an_unreadable_sentence_is_reported_and_left_out(tmp_path, text, problem):
    sentences, problems = read(tmp_path, text + "\n" + GOOD, needs_heads=True)
    assert [sentence.words for sentence in sentences] == [("the", "house")]
    assert problems == [f"{problem}; the sentence is left out"]


def test_a_file_without_a_sentence_is_an_error(tmp_path):
    with pytest.raises(UserError, match="has no sentence that can be read; give a CoNLL-U file"):
        read(tmp_path, "# text = nothing\n")
    (tmp_path / "x.conllu").write_text(row("x", "a") + "\n" + GOOD)
    treebank = Treebank(tmp_path / "x.conllu", report=lambda problem: None)
    assert len(list(treebank.half(1))) == 1
    with pytest.raises(UserError, match="has no sentence that can be read among those with odd numbers; give a CoNLL-U file"):
        list(treebank.half(0))
    with pytest.raises(UserError, match="is standard input, but a treebank is read several times; give a file"):
        Treebank("-")


def test_given_words_keep_their_numbers_in_windows_of_the_position_table(analyser):
    words = ["Paris", "the"] * 30
    windows = list(word_windows(analyser.engine, words))
    assert len(windows) > 1
    assert [word.text for window in windows for word in window.words[1:-1]] == words
    assert [window.start for window in windows] == np.cumsum([0, *(len(window.words) - 2 for window in windows)])[:-1].tolist()
    long, unknown = word_windows(analyser.engine, ["a" * 90, "\u200b"])
    assert len(long.words[1].ids) == analyser.engine.config.max_position - 2
    assert (unknown.start, unknown.words[1].ids) == (1, (analyser.engine.model.tokenizer.unk_id,))
