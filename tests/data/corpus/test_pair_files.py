"""Files of parallel text: which files belong together, and what is read from them; `test_parallel.py` builds corpora of them."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

import pytest

from bert_jax.data.corpus import parallel
from bert_jax.data.corpus.parallel import UNNAMED, PairFile, find_pairs, one_direction, read_pairs
from bert_jax.data.corpus.sources import ReadOptions
from bert_jax.errors import UserError

GIVEN = "--source=parallel:x"


def write(path: pathlib.Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("a.en", "a.de", ("en", "de")),
        ("a.en.gz", "b.pt-BR", ("en", "pt-BR")),
        ("a.en", "b.en", UNNAMED),
        ("a.txt", "b.de", UNNAMED),
        ("a.en", "b.text", UNNAMED),
        ("a.e", "b.de", UNNAMED),
        ("a.en", "b.1", UNNAMED),
    ],
)
def test_languages_are_read_from_two_different_suffixes(source, target, languages):
    assert parallel._languages(source, target) == languages


def test_files_of_one_corpus_have_one_direction():
    en_de = ("a.en", ("en", "de"))
    assert one_direction([]) is None
    assert one_direction([("x", UNNAMED)]) == UNNAMED
    assert one_direction([("x", UNNAMED), en_de]) == one_direction([en_de, en_de]) == ("en", "de")
    with pytest.raises(UserError, match=r"b\.de is de to en, but a\.en is en to de; build one corpus for each direction"):
        one_direction([en_de, ("x", UNNAMED), ("b.de", ("de", "en"))])


def test_two_files_have_their_lines_and_bytes_counted(tmp_path):
    source, target = write(tmp_path / "a.en", "one\n\ntwo"), write(tmp_path / "a.de", "eins\n\nzwei\n")
    file = PairFile("lines", (source, target), ("en", "de"), ("en", "de"))
    for fields in (None, "2,1"):  # of another source
        assert find_pairs(GIVEN, [[source], [target]], fields) == [(file, 3, 8 + 11)]
    assert str(file) == target


@pytest.mark.parametrize(("long", "shown"), [("x" * 60, "x" * 60), ("x" * 61, f"{'x' * 57}...")])
def test_the_first_line_without_a_partner_is_shown(tmp_path, long, shown):
    two, three = write(tmp_path / "a.en", "1\n2\n"), write(tmp_path / "a.de", f"1\n2\n{long}\n4\n")
    for source, target, counts in ((two, three, "2 lines, but {} has 4"), (three, two, "4 lines, but {} has 2")):
        says = f'{GIVEN}: {source} has {counts.format(target)}; line 3 of {three} ("{shown}") is the first line without'
        with pytest.raises(UserError, match=f"{re.escape(says)} a partner in {two}. Line N of one file"):
            find_pairs(GIVEN, [[source], [target]], None)


def test_a_side_without_text_is_named(tmp_path):
    source, target = write(tmp_path / "a.en", "1\n2\n"), write(tmp_path / "a.de", "\n \n")
    with pytest.raises(UserError, match=r"a\.de has 2 lines without any text, so this language is empty"):
        find_pairs(GIVEN, [[source], [target]], None)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('Source\t"target"\na\tb\n', "the first row of .* has column names"),
        ("\n \na\tsource\tEn\n", None),
        ("en\ttext\n", "the first row of .* has column names"),
        ("a\tb\nsource\ttarget\n", None),  # not the first row
        ("source\ta\n", None),
        ("one\nsource\ttarget\n", None),  # a row with too few columns is reported when it is read
        ('"a"\t"b"\n' * 10, "the texts of .*a.tsv are in double quotes"),
        ('"a"\t"b"\n' * 9 + "a\tb\n" + '"a"\t"b"\n', None),
        ('"a"\t"b"\n' * 9, None),  # a short table may hold quotations
        ('"a"\tb\n' * 10, None),
        ('"\t"\n' * 10, None),
    ],
)
def test_a_table_with_column_names_or_quotes_is_refused(tmp_path, table, says):
    path = write(tmp_path / "a.tsv", table)
    if says is None:
        (found,) = find_pairs(GIVEN, [[path]], None)
        assert found == (PairFile("tsv", (path,), ("1", "2"), UNNAMED), table.count("\n"), len(table))
    else:
        with pytest.raises(UserError, match=f"^{GIVEN}: {says}"):
            find_pairs(GIVEN, [[path]], None)


@pytest.mark.parametrize(
    ("name", "content", "fields", "says"),
    [
        ("a.tsv", "a\tb\n", "0,1", "--pair-fields=0,1: columns are numbered from 1"),
        ("a.tsv", "a\tb\n", "1", "--pair-fields=1 must name two fields"),
        ("a.tsv", "a\tb\n", "1,", "--pair-fields=1, must name two fields"),
        ("a.tsv", "a\tb\n", ",1", "--pair-fields=,1 must name two fields"),
        ("a.tsv", "a\tb\n", "1,1", "--pair-fields=1,1 must name two fields"),
        ("a.csv", "a,b\n", None, f"{GIVEN}: .*a.csv is not a file of pairs"),
        ("a.jsonl", '\n{"en": 1, "de": "a"}\n', None, rf"{GIVEN}: the first record of .* has 1 field with text \(de\)"),
        ("a.jsonl", "[]\n", None, f"{GIVEN}: the first record of .*a.jsonl is a JSON list, not an object"),
    ],
)
def test_fields_that_are_no_pair_are_refused(tmp_path, name, content, fields, says):
    with pytest.raises(UserError, match=f"^{says}"):
        find_pairs(GIVEN, [[write(tmp_path / name, content)]], fields)


def test_a_source_has_one_or_two_patterns():
    assert parallel.parse_sides("gs://x/a:gs://x/b") == ["gs://x/a", "gs://x/b"]
    assert parallel.parse_sides("a") == ["a"]
    for name in ("a:b:c", "a:", ""):
        with pytest.raises(UserError, match=f"^--source=parallel:{name} needs one or two patterns"):
            parallel.parse_sides(name)


def test_json_lines_without_text_have_no_fields_and_no_languages(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n \n")
    assert find_pairs(GIVEN, [[path]], None) == [(PairFile("jsonl", (path,), UNNAMED, UNNAMED), 2, 3)]


def test_a_byte_order_mark_is_skipped_and_replaced_bytes_are_counted(tmp_path):
    source = write(tmp_path / "a.en", b"\xef\xbb\xbfone\ntwo\n")
    target = write(tmp_path / "a.de", b"eins\r\n\xef\xbb\xbfzw\xe9i\xe9\n")
    file, counts = PairFile("lines", (source, target), ("en", "de"), ("en", "de")), Counter[str]()
    found = list(read_pairs(file, 0, 2, ReadOptions(on_bad_bytes="replace"), counts))
    assert found == [("one", "eins"), ("two", "\ufeffzw\ufffdi\ufffd")]
    assert counts == {"replaced-bytes": 2}
    assert list(read_pairs(file, 1, 2, ReadOptions(on_bad_bytes="replace"), counts)) == found[1:]


def test_bad_pairs_and_blank_lines_are_skipped_and_bad_ones_counted(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\tc\n \nonly\n1\t2\t3\n")
    counts = Counter[str]()
    file = PairFile("tsv", (path,), ("3", "1"), UNNAMED)
    found = list(read_pairs(file, 0, 4, ReadOptions(on_bad_records="skip"), counts))
    assert found == [("c", "a"), None, None, ("3", "1")]
    assert counts == {"bad-records": 1}
