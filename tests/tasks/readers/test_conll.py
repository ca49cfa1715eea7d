"""Words in columns: which lines are comments, which characters separate columns, and where sentences end."""

from __future__ import annotations

import pathlib
import re

import pytest

from bert_jax.analysis.probe.annotated import AnnotatedFile
from bert_jax.errors import UserError
from bert_jax.tasks.readers.conll import conll_width, first_with_tag, read_conll

MARK = "# id 5f1e-22 domain=train"


def read(tmp_path: pathlib.Path, text: str, name: str = "a.conll") -> tuple[list[list[str]], list[str]]:
    """Returns the sentences as "word/tag", and the messages without the path of the file."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    said: list[str] = []
    found = read_conll(path, say=said.append)
    pairs = [[f"{w}/{t}" for w, t in zip(e.words, e.labels or (), strict=True)] for e in found]
    # the probes read the same sentences
    probed = [[f"{w}/{t}" for w, t in zip(e.words, e.labels["tag"], strict=True)] for e in AnnotatedFile(path)]
    assert probed == pairs
    return pairs, [problem.removeprefix(f"{path}, ") for problem in said]


WORDS = "a _ _ B-X\nb _ _ I-X\n"
SENTENCE = ["a/B-X", "b/I-X"]


@pytest.mark.parametrize(
    "comment",
    ["# i\tx", "# i", "#", "#\t", "# a comment of many words", "# text\t=\tx\ty", "#comment", MARK, MARK.replace(" d", "\td")],
)
def test_a_comment_does_not_determine_the_column_separator(tmp_path: pathlib.Path, comment: str):
    assert read(tmp_path, f"{comment}\n{WORDS}\n{comment}\n{WORDS}") == ([SENTENCE, SENTENCE], [])
    tabs = WORDS.replace(" ", "\t")
    found, said = read(tmp_path, f"{comment}\n{tabs}\n{comment}\n{tabs}")
    assert found == [SENTENCE, SENTENCE]
    assert len(said) == (comment == "# text\t=\tx\ty"), "as many columns as a word line"


def test_a_comment_with_as_many_columns_as_words_is_reported(tmp_path: pathlib.Path):
    told = [
        "line 1: the line is read as a comment, although it has as many columns as the lines of words (2 such lines in the file)"
    ]
    comment = "# sent_id = 7\n"
    assert read(tmp_path, f"{comment}{WORDS}\n{comment}{WORDS}") == ([SENTENCE, SENTENCE], told)
    assert read(tmp_path, "# x\na O\n\n# x\nb O\n") == ([["a/O"], ["b/O"]], told)
    alone = [told[0].replace("2 such lines", "1 such line")]
    assert read(tmp_path, comment + WORDS) == ([SENTENCE], alone)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# O\na B-X\n\n# O\nb O\n", [["#/O", "a/B-X"], ["#/O", "b/O"]]),  # the tag of # occurs with other words
        ("# O\na B-X\n\nb B-X\n", [["#/O", "a/B-X"], ["b/B-X"]]),  # the only one, with a tag that no other word has
        ("# #\na NN\n\nb NN\n", [["#/#", "a/NN"], ["b/NN"]]),
        ("# # B-NP O\n1 CD I-NP O\n\n# # B-NP O\n", [["#/O", "1/O"], ["#/O"]]),
        ("a O\n# x\n", [["a/O", "#/x"]]),  # inside a sentence nothing is a comment
        ("#tag O\na B-X\n\n#tag O\n", [["#tag/O", "a/B-X"], ["#tag/O"]]),
        ("#\tO\na\tB-X\n\n#\tO\nb\tO\n", [["#/O", "a/B-X"], ["#/O", "b/O"]]),
        ("# a\n\n# b\n", [["#/a"], ["#/b"]]),  # nothing else could be a word
    ],
)
def test_a_hash_sign_may_be_a_word(tmp_path: pathlib.Path, text: str, words: list[list[str]]):
    assert read(tmp_path, text) == (words, [])


def test_a_line_with_a_hash_is_a_word_if_its_tag_is_known(tmp_path: pathlib.Path):
    words = "a _ NN B-X\nb _ VB I-X\n"
    assert read(tmp_path, f"# _ SYM O\n{words}")[0] == [["#/O", "a/B-X", "b/I-X"]]
    assert read(tmp_path, f"# _ SYM O\n{words}\n# _ NUM O\n{words}")[0] == [["a/B-X", "b/I-X"]] * 2


def test_sentences_have_the_number_of_their_document(tmp_path: pathlib.Path):
    path = tmp_path / "a.conll"
    path.write_text("-DOCSTART- O\n\na O\n\nb O\n\n-DOCSTART- O\n\nc O\n")
    first, second, third = (example.document for example in read_conll(path))
    assert first == second != third
    path.write_text("a O\n\nb O\n\nc O\n")
    assert len({example.document for example in read_conll(path)}) == 3, "without marks, each sentence is a document"


@pytest.mark.parametrize(("words", "tags"), [(2, -1), (-3, -1), (0, 2), (0, -3)])
def test_a_missing_column_is_refused_with_the_available_ones(tmp_path: pathlib.Path, words: int, tags: int):
    (tmp_path / "a.conll").write_text("a O\nb O\n")
    wrong = f"word={words}" if words else f"tag={tags}"
    with pytest.raises(UserError, match=f"a.conll has 2 columns, but no column {wrong}; give an index from -2 to 1"):
        read_conll(tmp_path / "a.conll", word=words, tag=tags)


def test_a_line_with_id_1_starts_a_sentence(tmp_path: pathlib.Path):
    assert read(tmp_path, f"\n{MARK}\n{WORDS}{MARK}\n{WORDS}") == ([SENTENCE, SENTENCE], [])
    assert read(tmp_path, f"{WORDS}{MARK}\n# a comment of many words\n{WORDS}") == ([SENTENCE, SENTENCE], [])


def test_the_line_with_a_different_number_of_columns_is_named(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"a.conll, line 1: the line has 1 column, but other lines have 4; correct the line"):
        read(tmp_path, f"a\tb\n{WORDS}\n")
    with pytest.raises(UserError, match=r"line 3: the line has 1 column, but other lines have 4; correct the line"):
        read(tmp_path, f"{WORDS}c\tO\n")
    with pytest.raises(UserError, match=r"line 3: the line has 5 columns, .* 4; correct the line, or put the comment"):
        read(tmp_path, f"{WORDS}# a comment too late\n")
    with pytest.raises(UserError, match=r"line 3: the line has 1 column, but other lines have 2; correct the line"):
        read(tmp_path, "a\tB-X\nb\tI-X\nc O\n")
    path = tmp_path / "b.conll"
    path.write_text(f"# O O\tO\n{WORDS}c _ _ PLACE\nd _ _ O\n")
    assert (first_with_tag(path, "PLACE"), first_with_tag(path, "I-X"), first_with_tag(path, "O")) == (4, 3, 5)
    assert conll_width(path) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\tB-X\t\nb\tI-X\t\n", "line 1: the tag is empty"),
        ("a B-X \t\nb I-X \t\n", "line 1: the tag is empty"),
        ("a\tB-X\nb\tI-X\t\n\nc\tO\n", "line 2: the line has 3 columns, but other lines have 2"),
    ],
)
def test_a_tab_at_the_end_of_a_line_is_named(tmp_path: pathlib.Path, text: str, problem: str):
    remedy = r"the line ends with a TAB; remove it from all lines (sed -E 's/[[:space:]]+$//')"
    with pytest.raises(UserError, match=re.escape(f"{problem}; {remedy}")):
        read(tmp_path, text)
    assert read(tmp_path, re.sub(r"[ \t]+(?=\n)", "", text))[0][0] == SENTENCE


def test_blank_lines_with_spaces_end_a_sentence_and_are_reported(tmp_path: pathlib.Path):
    told = "line 3: the line has only spaces or TABs, so it ends a sentence like an empty line (2 such lines in the file)"
    assert read(tmp_path, f"{WORDS}\t\t\n{WORDS} \n") == ([SENTENCE, SENTENCE], [told])


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000", "\u2028", "\x85", "\f", " \u00a0\t"])
def test_other_white_space_ends_no_sentence(tmp_path: pathlib.Path, blank: str):
    with pytest.raises(
        UserError,
        match=r"line 3: the line has only white space \(U\+.*\), so it is neither a word nor an empty "
        r"line",
    ):
        read(tmp_path, f"{WORDS}{blank}\n{WORDS}")
    letter = blank.strip(" \t")
    with pytest.raises(UserError, match=r"line 3: the word is empty; correct the line"):
        read(tmp_path, f"{WORDS}{letter} _ _ O\n".replace(" ", "\t"))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems_are_accepted(tmp_path: pathlib.Path, end: str):
    assert read(tmp_path, f"{WORDS}\n{WORDS}".replace("\n", end)) == ([SENTENCE, SENTENCE], [])


def test_a_sentence_that_does_not_end_is_reported(tmp_path: pathlib.Path):
    assert read(tmp_path, "a O\n" * 1_000)[1] == []
    found, said = read(tmp_path, "a O\n" * 1_001 + "\nb O\n")
    assert [len(words) for words in found] == [1_001, 1]
    assert said == [f"WARNING: {tmp_path / 'a.conll'} has a sentence with 1,001 words; end each sentence with an empty line"]


def test_a_line_that_starts_a_sentence_has_no_tag(tmp_path: pathlib.Path):
    path = tmp_path / "a.conll"
    path.write_text("# id 7 domain=PER\na _ _ domain=PER\n")
    assert first_with_tag(path, "domain=PER") == 2
