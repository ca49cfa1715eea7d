"""The tables, figures and lines of a made-up vocabulary."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.vocabulary.command import print_vocabulary, read_names
from bert_jax.analysis.vocabulary.figures import examples, lengths_figure, parameters_figure, write_vocabulary
from bert_jax.analysis.vocabulary.measure import Piece, Splits, SplitWord, Vocabulary, letter_script, read_piece
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.looked_at import assert_as_looked_at

PIECES = (
    Piece(0, "[PAD]", "[PAD]", "reserved", False, "none", False, 0),
    Piece(1, "a", "a", "character", False, "latin", False, 5),
    Piece(2, "##a", "a", "character inside words", True, "latin", False, 0),
    Piece(3, "Ada", "Ada", "word", False, "latin", True, 3),
    Piece(4, "##ing", "ing", "continuation", True, "latin", False, 2),
    Piece(5, "12", "12", "number", False, "digits", False, 0),
    Piece(6, "##ed", "ed", "continuation", True, "latin", False, 0),
    Piece(7, "longest", "longest", "word", False, "latin", False, 0),
)
PARAMETERS = {
    "embeddings": {"word_embeddings": 430, "position_embeddings": 34, "layer_norm": 35, "rest": 1},
    "attention": {f"{i}": 10 for i in range(7)},
    "feed-forward": {},
    "pooler": {"kernel": 36, "bias": 4},
}
SPLITS = Splits(10, 17, tuple(SplitWord(f"word{i}", ("word", f"##{i}"), 10 - i) for i in range(8)))
FOUND = Vocabulary(PIECES, PARAMETERS, corpus_tokens=10, splits=SPLITS)

TABLES = {
    "vocabulary.tsv": """\
id piece kind script characters name count n
0 [PAD] reserved none 5 no 0 10
1 a character latin 1 no 5 10
2 ##a character_inside_words latin 1 no 0 10
3 Ada word latin 3 yes 3 10
4 ##ing continuation latin 3 no 2 10
5 12 number digits 2 no 0 10
6 ##ed continuation latin 2 no 0 10
7 longest word latin 7 no 0 10
""",
    "groups.tsv": """\
property value pieces share examples n
kind reserved 1 0.125 [PAD] 8
kind character 1 0.125 a 8
kind character_inside_words 1 0.125 ##a 8
kind number 1 0.125 12 8
kind word 2 0.25 Ada_longest 8
kind continuation 2 0.25 ##ing_##ed 8
script latin 6 0.75 a_##a_Ada_##ing_##ed_longest 8
script digits 1 0.125 12 8
name yes 1 0.125 Ada 8
in_the_corpus never 4 0.5 ##a_12_##ed_longest 8
""",
    "lengths.tsv": """\
characters begin_words continue_words n_begin n_continue
1 1 1 4 3
2 1 1 4 3
3 1 1 4 3
4 0 0 4 3
5 0 0 4 3
6 0 0 4 3
7 1 0 4 3
""",
    "parameters.tsv": """\
part array parameters share n
embeddings word_embeddings 430 0.704918 610
embeddings position_embeddings 34 0.0557377 610
embeddings layer_norm 35 0.057377 610
embeddings rest 1 0.00163934 610
attention 0 10 0.0163934 610
attention 1 10 0.0163934 610
attention 2 10 0.0163934 610
attention 3 10 0.0163934 610
attention 4 10 0.0163934 610
attention 5 10 0.0163934 610
attention 6 10 0.0163934 610
pooler kernel 36 0.0590164 610
pooler bias 4 0.00655738 610
""",
    "unseen.tsv": """\
id piece kind script n
2 ##a character_inside_words latin 10
5 12 number digits 10
6 ##ed continuation latin 10
7 longest word latin 10
""",
}

SAID = """\
words that it splits                     8  word0 word1 word2 word3 word4 word5
pieces per word                      1.700  in 10 words
kind reserved                            1  [PAD]
kind character                           1  a
kind character inside words              1  ##a
kind number                              1  12
kind word                                2  Ada longest
kind continuation                        2  ##ing ##ed
script latin                             6  a ##a Ada ##ing ##ed longest
script digits                            1  12
name yes                                 1  Ada
in the corpus never                      4  ##a 12 ##ed longest
parameters of embeddings               500  82.0 %
parameters of attention                 70  11.5 %
parameters of feed-forward               0  0.0 %
parameters of pooler                    40  6.6 %
"""


@pytest.mark.usefixtures("figures")
def test_the_tables_have_every_number(tmp_path: pathlib.Path):
    write_vocabulary(folder := Folder(tmp_path / "a"), FOUND)
    assert {path.name: path.read_text().replace(" ", "_").replace("\t", " ") for path in folder.path.glob("*.tsv")} == TABLES
    assert [path.name for path in folder.written if path.suffix == ".png"] == ["lengths.png", "parameters.png"]
    bare = tuple(dataclasses.replace(piece, count=None, is_name=None) for piece in PIECES)
    write_vocabulary(folder := Folder(tmp_path / "b"), Vocabulary(bare, PARAMETERS))
    rows = (folder.path / "vocabulary.tsv").read_text().splitlines()
    assert rows[2] == "1\ta\tcharacter\tlatin\t1\t\t\t8"
    assert "unseen.tsv" not in {path.name for path in folder.path.iterdir()}


@pytest.mark.parametrize(
    ("known", "most", "shown"),
    [(6, 6, "012345"), (11, 6, "012345"), (12, 6, "0 2 4 6 8 10"), (24, 12, "0 2 4 6 8 10 12 14 16 18 20 22"), (3, 6, "012")],
)
def test_examples_are_evenly_spaced_from_the_first(known: int, most: int, shown: str):
    pieces = [dataclasses.replace(PIECES[1], piece=str(i)) for i in range(known)]
    found = examples(pieces) if most == 12 else examples(pieces, most)
    assert found.replace(" ", "") == shown.replace(" ", "")


def test_the_terminal_shows_groups_parts_and_split_words(capsys: pytest.CaptureFixture[str]):
    print_vocabulary(FOUND)
    assert capsys.readouterr().out == SAID
    print_vocabulary(dataclasses.replace(FOUND, splits=None))
    assert capsys.readouterr().out == SAID.partition("words\n")[2]


def test_a_list_of_names_that_is_not_text_is_refused(tmp_path: pathlib.Path):
    (tmp_path / "names.txt").write_bytes(b"Ada\n\xff\n")
    with pytest.raises(UserError, match=r"names.txt, line 2: byte 1 is not UTF-8"):
        read_names(str(tmp_path / "names.txt"))


def test_a_piece_has_the_first_matching_kind(tmp_path: pathlib.Path):
    pieces = ("[CLS]", "added", "[unused1]", "<s>", "a", "##a", "12", "##12", "the", "##the", "\u2581the", "\u2581", "##", "[ab")
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, "[PAD]", "[UNK]", "[SEP]", "[MASK]"]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["added"], "do_lower_case": False}))
    tokenizer = load_tokenizer(tmp_path)
    found = [read_piece(tokenizer, i) for i in range(len(pieces))]
    assert [(piece.id, piece.piece) for piece in found] == list(enumerate(pieces))
    assert [(piece.text, piece.kind, piece.continues, piece.script) for piece in found] == [
        ("[CLS]", "reserved", False, "none"),
        ("added", "reserved", False, "none"),
        ("[unused1]", "reserved", False, "none"),
        ("<s>", "reserved", False, "none"),
        ("a", "character", False, "latin"),
        ("a", "character inside words", True, "latin"),
        ("12", "number", False, "digits"),
        ("12", "number", True, "digits"),
        ("the", "word", False, "latin"),
        ("the", "continuation", True, "latin"),
        ("the", "word", False, "latin"),
        ("\u2581", "character", False, "marks"),
        ("##", "continuation", True, "marks"),
        ("[ab", "word", False, "latin"),
    ]


def test_a_combining_accent_has_the_script_of_its_letter():
    assert (letter_script("e\u0301"), letter_script("\u0301")) == ("latin", "other")


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("vocabulary_lengths", lambda: lengths_figure(FOUND)),
        ("vocabulary_parameters", lambda: parameters_figure(FOUND)),
        ("vocabulary_parameters_of_a_million", lambda: parameters_figure(Vocabulary((), {"a": {"b": 999_000, "c": 1_000}}))),
        ("vocabulary_parameters_of_more", lambda: parameters_figure(Vocabulary((), {"a": {"b": 1_000_000, "c": 1_000}}))),
        ("vocabulary_parameters_of_a_row", lambda: parameters_figure(Vocabulary((), {"a": {"b": 93, "c": 7}, "d": {}}))),
    ],
)
def test_every_figure_equals_its_golden_description(name: str, figure: type[Figure]):
    assert_as_looked_at(figure(), name)
