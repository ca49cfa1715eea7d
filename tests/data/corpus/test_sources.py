"""Naming sources, finding files, dividing them into shards."""

from __future__ import annotations

import gzip
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Iterator

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import SOURCES, sources, text_files
from bert_jax.data.corpus.sentences import SAMPLE_BYTES
from bert_jax.data.corpus.sources import (
    Document,
    Item,
    ReadOptions,
    Source,
    SourceKind,
    Span,
    cut,
    default_shards,
    find_items,
    parse_source,
    read_span,
)
from bert_jax.errors import UserError
from bert_jax.interface import python_files
from bert_jax.storage import objects
from bert_jax.storage.fetching import cached_path
from tests.compressed import PACK


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("embedded", Source("embedded")),
        ("text:a/*.txt", Source("text", "a/*.txt")),
        ("text:src/**/*.py", Source("text", "src/**/*.py")),
        ("jsonl:c:/odd:name.jsonl.gz", Source("jsonl", "c:/odd:name.jsonl.gz")),
        ("tfds:wikipedia/20230601.en:train[:1%]@text", Source("tfds", "wikipedia/20230601.en:train[:1%]@text")),
    ],
)
def test_sources_are_parsed(text, source):
    assert parse_source(text) == source
    assert str(source) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embeded", "did you mean 'embedded'"),
        ("json:a.jsonl", "did you mean 'jsonl'"),
        ("text", "write text:GLOB"),
        ("text:", "write text:GLOB"),
        ("tfds", "write tfds:NAME"),
        ("embedded:x", "embedded:x must not have a name"),
        ("tfds:a b", "must have the form tfds:NAME"),
    ],
)
def test_an_invalid_source_is_refused_with_a_suggestion(text, message):
    with pytest.raises(UserError, match=message):
        parse_source(text)


BAD = [
    "", "a.txt", "txt:a", "text", "text:", "embedded:x", "tfds:", "tfds:a b", "text:none", "text:*.none", "text:folder",
    "jsonl:none", "jsonl:list.json", "jsonl:folder", "text:list.json", "text:a.csv", "text:a.parquet", "text:cr.txt",
    "text:~no.body/a", "text:gs:/a/b", "text:https://a/b", "text:pipe", "parquet:none", "parquet:*.none", "parquet:folder",
    "parquet:folder:train", "parquet:list.json", "parquet:numbers.parquet", "parquet:pipe", "parquet:gs:/a/b", "arrow:none",
    "arrow:folder", "arrow:a.parquet", "parallel:", "parallel:none", "parallel:none:a.csv", "parallel:a.csv",
    "parallel:a.csv:none", "parallel:a.csv:a.csv", "parallel:a:b:c", "parallel:list.json", "own.py:none", "own.py:number",
    "own.py:raises", "own.py:texts:argument", "none.py:texts",
]  # fmt: skip


@pytest.mark.parametrize("given", BAD)
def test_a_bad_source_is_refused_under_the_name_of_its_flag(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder" / "a.txt").write_text("A text.\n")
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    (tmp_path / "cr.txt").write_bytes(b"One.\rTwo.\r")
    (tmp_path / "list.json").write_text('[{"text": "A text."}]\n')
    (tmp_path / "own.py").write_text("number = 1\ndef texts():\n    yield 'A'\ndef raises():\n    yield 1 / 0\n")
    parquet.write_table(pyarrow.table({"text": ["A text."]}), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"number": [1]}), tmp_path / "numbers.parquet")

    def refusal(flag: str) -> str:
        python_files._loaded_for.clear()  # as in a new process
        with pytest.raises(UserError) as error:
            find_items([parse_source(given, flag)], ReadOptions())
        return str(error.value)

    of_source, of_eval = refusal("--source"), refusal("--eval-source")
    assert of_eval == of_source.replace("--source", "--eval-source")


def test_a_pattern_without_files_is_an_error_that_names_it(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "folder.txt").rename(tmp_path / "folder")
    with pytest.raises(UserError, match=r"no file matches .*/\*\.txt"):
        find_items([Source("text", f"{tmp_path}/*.txt")], ReadOptions())


def test_an_existing_path_is_never_a_pattern(tmp_path):
    for name in ("a[1].txt", "a1.txt", "b*.txt", "bc.txt"):
        (tmp_path / name).write_text("Some text.\n")
    (tmp_path / "d[2]").mkdir()
    for name in ("a[1].txt", "b*.txt"):
        (item,) = find_items([Source("text", f"{tmp_path}/{name}")], ReadOptions())
        assert item.path == f"{tmp_path}/{name}"
    with pytest.raises(UserError, match=r"d\[2\] is a directory"):
        find_items([Source("text", f"{tmp_path}/d[2]")], ReadOptions())


def test_files_are_sorted_by_name_and_empty_files_left_out(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Some text.\n")
    (tmp_path / "empty.txt").touch()
    items = find_items([Source("text", f"{tmp_path}/**/*.txt")], ReadOptions())
    assert [item.path.removeprefix(f"{tmp_path}/") for item in items] == ["a.txt", "b.txt", "sub/c.txt"]


def test_gzip_files_are_recognised_and_weighed(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"One sentence here.\nAnother one.\n\nNext document.\n" * 100))
    (item,) = find_items([Source("text", f"{tmp_path}/a.txt.gz")], ReadOptions())
    assert (item.unit, item.length, item.layout) == ("parts", 1, "sentences")


@pytest.mark.parametrize("shards", [1, 2, 3, 16, 100])
def test_shards_cover_every_item_once_in_order_and_evenly(shards):
    items = [
        Item("text", "a", "bytes", 1000, 1000.0),
        Item("jsonl", "b", "parts", 4, 3000.0),
        Item("tfds", "c", "records", 77, 500.0),
        Item("text", "d", "bytes", 1, 1.0),
    ]
    spans = cut(items, shards)
    assert len(spans) == shards
    flat = [span for shard in spans for span in shard]
    assert [item for k, item in enumerate(span.item for span in flat) if k == 0 or flat[k - 1].item != item] == items
    for item in items:
        own = [(span.start, span.stop) for span in flat if span.item == item]
        assert own[0][0] == 0
        assert own[-1][1] == item.length
        assert all(a[1] == b[0] and a[0] < a[1] for a, b in itertools.pairwise(own))
    weights = [sum(span.weight for span in shard) for shard in spans]
    assert sum(weights) == pytest.approx(4501)
    assert max(weights) <= 4501 / shards + 750  # a part of a gzip file cannot be split


def test_an_item_is_cut_into_equal_parts():
    item = Item("text", "a", "bytes", 1000, 3000.0)
    assert cut([item], 4) == [[Span(item, k, k + 250)] for k in (0, 250, 500, 750)]
    assert [span.weight for (span,) in cut([item], 4)] == [750.0] * 4
    assert cut([item, item], 2) == [[Span(item, 0, 1000)]] * 2
    assert cut([Item("text", "a", "bytes", 1, 1.0)], 3)[0] == []


@pytest.mark.parametrize(
    ("megabytes", "shards"),
    [(0.01, 1), (5, 5), (64, 64), (500, 64), (4_096, 64), (8_000, 125), (65_536, 1_024), (300_000, 1_024)],
)
def test_the_number_of_shards_follows_the_amount_of_text(megabytes, shards):
    size = int(megabytes * (1 << 20))
    assert default_shards([Item("text", "a", "bytes", size, size)], None) == shards
    assert default_shards([Item("text", "a", "bytes", size, size)], 7) == 7


def test_there_are_at_most_as_many_shards_as_parts():
    assert default_shards([Item("jsonl", "a.gz", "parts", 3, 1e9)], None) == 3


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(UserError, match=r"a\.txt cannot be read: Permission denied"):
        find_items([Source("text", f"{tmp_path}/a.txt")], ReadOptions())


@pytest.mark.parametrize("pattern", ["books", "b*", "books/"])
def test_a_directory_is_refused_with_the_pattern_for_its_files(tmp_path, pattern):
    (tmp_path / "books" / "old").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"books is a directory; write 'text:.*books/\*' for the files in it, or 'text:.*books/\*\*'"
    ):
        find_items([Source("text", f"{tmp_path}/{pattern}")], ReadOptions())
    (tmp_path / "books" / "old" / "a.txt").write_text("One.")
    (item,) = find_items([Source("text", f"{tmp_path}/books/**")], ReadOptions())
    assert item.path.endswith("a.txt")


@pytest.mark.parametrize(("size", "parts"), [(100, 1), (5 << 20, 1), (11 << 19, 2), (200 << 20, 16)])
def test_a_gzip_file_counts_three_times_its_size_and_has_a_part_per_16_mib_up_to_16(tmp_path, size, parts):
    lines = 1 if size < 1_000 else 100_000  # more than is read: gzip would skip the zeros at the end byte by byte
    with (tmp_path / "a.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(b'{"text": "a"}\n' * lines))
        file.truncate(size)
    (item,) = find_items([Source("jsonl", f"{tmp_path}/a.jsonl.gz")], ReadOptions())
    assert (item.unit, item.length, item.weight) == ("parts", parts, 3.0 * size)


@pytest.mark.parametrize(("characters", "blank_lines"), [(SAMPLE_BYTES // 4 - 1, True), (SAMPLE_BYTES // 4, False)])
def test_a_file_without_early_blank_lines_is_treated_as_having_none(tmp_path, characters, blank_lines):
    for end in ("", "\n\nx", "\r\n\r\nx", "\n \nx", "\r\n\t\f\v\r\nx"):
        (tmp_path / "a.txt").write_bytes(b"x" * (characters - len(end)) + end.encode())
        (item,) = find_items([Source("text", f"{tmp_path}/a.txt")], ReadOptions(layout="sentences"))
        assert item.blank_lines is (blank_lines or bool(end))


def test_the_layout_is_recognised_from_the_first_256_kib(tmp_path):
    lines = ["It was " + "very " * 195 + "late."] * 266  # of 987 bytes
    (tmp_path / "a.txt").write_text("\n".join([*lines, *["It rained. " * 80] * 300]))
    (item,) = find_items([Source("text", f"{tmp_path}/a.txt")], ReadOptions())
    assert item.layout == "sentences"
    (tmp_path / "a.txt").write_text("\n".join([*lines[:200], *["It rained. " * 80] * 300]))
    (item,) = find_items([Source("text", f"{tmp_path}/a.txt")], ReadOptions())
    assert item.layout == "paragraphs"


def test_a_bucket_source_is_read_from_its_local_copies_in_order(bucket):
    for name in ("b.txt", "a.txt"):
        objects.write(f"{bucket}/{name}", b"It rained.")
    items = find_items([Source("text", f"{bucket}/*.txt")], ReadOptions(layout="lines"))
    copies = [cached_path(f"{bucket}/{name}") for name in ("a.txt", "b.txt")]
    assert [(item.path, item.layout) for item in items] == [(str(path), "lines") for path in copies]
    with pytest.raises(UserError, match=rf"--source=jsonl:{bucket}/\*\.jsonl: no object in the bucket matches"):
        find_items([Source("jsonl", f"{bucket}/*.jsonl")], ReadOptions())


@pytest.mark.parametrize(("ending", "ratio", "most"), [(".gz", 3.0, 16), (".zst", 3.3, 16), (".xz", 4.0, 8), (".bz2", 4.0, 4)])
def test_the_weight_and_the_parts_of_a_compressed_file_depend_on_its_compression(tmp_path, monkeypatch, ending, ratio, most):
    monkeypatch.setattr(text_files, "_PART_BYTES", 1)
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](b'{"text": "It rained."}\n' * 10))
    (item,) = find_items([Source("jsonl", str(path))], ReadOptions())
    assert (item.length, item.weight) == (most, ratio * path.stat().st_size)


def test_records_are_divided_into_sixteen_parts():
    assert sources.parts_of(32) == tuple(range(0, 32, 2))
    assert sources.parts_of(1) == (0, 1)
    assert sources.parts_of(0) == (0,)


@pytest.mark.parametrize(("head", "is_text"), [(b"abc\0" * 8, True), (b"abc\0" * 8 + b"\0", False), (b"abc\1" * 9, True)])
def test_a_quarter_of_the_bytes_of_a_text_may_be_zero(head, is_text):
    if is_text:
        text_files.require_text(Source("text", "a"), "a", head)
    else:
        with pytest.raises(UserError, match=r"--source=text:a: a is not text, because 27% of its bytes are zero"):
            text_files.require_text(Source("text", "a"), "a", head)


JSON_LINES = "holds JSON, one object per line, not text; write jsonl: instead of text:"
RECORD, PROSE = '{"id": "7", "text": "It rained."}', "It rained."
LONG = f'{{"title": "{"x" * 100_000}"}}'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([RECORD] * 9 + [PROSE], JSON_LINES),
        ([RECORD] * 8 + [PROSE], ""),
        ([RECORD] * 18 + [PROSE] * 9, JSON_LINES),
        ([PROSE], ""),
        (["", '{"title": "a", "id": 1}', " "], f"{JSON_LINES} --text-field=title"),
        (['{"id": 1}'], f"{JSON_LINES} --text-field=NAME"),
        (["[1]", '"a"', "{", "{}"], ""),
        (
            ['\ufeff[{"a": 1}]'],
            "is a list of JSON objects, not text; write each object on its own line, then use jsonl: instead of text:",
        ),
        ([LONG, LONG, LONG], f"{JSON_LINES} --text-field=title"),
        ([LONG, PROSE, LONG * 2], ""),  # the last line of the sample is not whole
        ([LONG * 3], JSON_LINES),
    ],
)
def test_text_is_json_if_nine_tenths_of_its_first_lines_are_objects(lines, says):
    assert text_files._json_problem("\n".join(lines).encode()[:SAMPLE_BYTES]) == says


def test_files_and_data_sets_that_two_sources_name_are_found_once(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    paths = [("text", f"{tmp_path}/{name}") for name in ("a", "link", "b", "b", "b", "c")]
    named = [*paths, ("tfds", "set"), ("tfds", "set"), ("own", "own.py:texts"), ("tfds", "set/other")]
    items = [Item(kind, path, "bytes", 1, 1.0) for kind, path in named]
    assert sources.given_twice(items) == [f"{tmp_path}/link", f"{tmp_path}/b", "set"]


def number_items(source: Source, options: ReadOptions, say: sources.Say) -> list[Item]:
    return [Item("numbers", source.name, "records", int(source.name), 1.0, is_file=False)]


def read_numbers(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    return (Document([str(number)], is_sentence=True, fraction=1.0) for number in range(span.start, span.stop))


NUMBERS = SourceKind("numbers:COUNT", number_items, read_numbers)


def test_a_kind_of_source_is_one_object_and_one_line(monkeypatch):
    monkeypatch.setitem(SOURCES, "numbers", f"{__name__}:NUMBERS")
    spans = cut(find_items([parse_source("numbers:5")], ReadOptions()), 2)
    assert [[document.lines for span in own for document in read_span(span, ReadOptions(), Counter())] for own in spans] == [
        [["0"], ["1"]], [["2"], ["3"], ["4"]],
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"^--source=numbers: is incomplete; write numbers:COUNT$"):
        parse_source("numbers:")


@pytest.mark.parametrize(
    ("kind", "name", "hint"), [("parquet", "lab/set", True), ("text", "lab/set", False), ("arrow", "*.a", False)]
)
def test_a_name_of_the_hub_is_recognised_if_no_file_has_it(tmp_path, monkeypatch, kind, name, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as told:
        find_items([Source(kind, name)], ReadOptions())
    assert f"--source={kind}:{name}: no file matches {name} (in {tmp_path}); quote the pattern" in str(told.value)
    assert (f"fetch it first: hf download {name} --repo-type=dataset" in str(told.value)) is hint


PARQUET, ARROW, HTML = b"PAR1\x15\x04", b"ARROW1\0\0", b"<!DOCTYPE html>\n<p>It rained.</p>\n"


@pytest.mark.parametrize(
    ("kind", "name", "head", "says"),
    [
        ("text", "a.txt", HTML, None),  # cleaning drops its markup
        ("jsonl", "a.jsonl", HTML, "is a web page, not text; fetch the file itself"),
        ("text", "a.txt", b"%PDF-1.7", "is a PDF, not text; write its text to a file first"),
        ("text", "a.txt", PARQUET, "is a Parquet file, not text; write --source=parquet:GIVEN$"),
        ("text", "saved/a", PARQUET, "is a Parquet file, not text; write --source=parquet:GIVEN$"),
        ("text", "a.txt", ARROW, "is an Arrow file, not text; write --source=arrow:GIVEN$"),
        ("text", "saved/a", ARROW, "is an Arrow file, not text; write --source=arrow:.*/saved$"),
        ("text", "a.gz", PARQUET, "is a Parquet file, not text; unpack it, and give --source=parquet:FILE$"),
        ("text", "a.CSV.gz", b"a,b\n", "has the name of a table; write its texts to Parquet or JSON lines, or rename it"),
        ("text", "a.conllu", b"a b\n", "has the name of a file of annotated words; write the sentences"),
        ("jsonl", "a.csv", b"{}\n", None),
        ("text", "a.txt", "It was.".encode("utf-16-le"), "is not UTF-8: it starts like UTF-16; convert it"),
        ("text", "a.txt", b"One.\rTwo.\r", "end in CR, which is not recognised as a line end here"),
        ("text", "a.txt", b"One.\rTwo.\n", None),
        ("text", "a.txt", b"One.\r", None),
        ("text", "a.txt", b'{"text": "a"}\n', "holds JSON, one object per line, not text; write jsonl: instead of text:$"),
        ("jsonl", "a.jsonl", b'{"text": "a"}\n', None),
        ("jsonl", "a.jsonl", b'\xef\xbb\xbf[\n{"text": "a"}]', "is a JSON list, not one object per line"),
        ("text", "a.txt", b"[{ is how a list begins.", None),
    ],
)
def test_a_source_of_another_format_is_refused_with_the_right_one(tmp_path, kind, name, head, says):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").touch()
    source = Source(kind, "GIVEN")
    if says is None:
        text_files.require_text(source, f"{tmp_path}/{name}", head)
    else:
        with pytest.raises(UserError, match=rf"^--source={kind}:GIVEN: .*{tmp_path}/{name} .*{says}"):
            text_files.require_text(source, f"{tmp_path}/{name}", head)
