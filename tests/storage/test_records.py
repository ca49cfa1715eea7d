"""Lines, rows of tables, and rows of Parquet and Arrow: every reader of a file gets the same records."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.data.corpus.sources import ReadOptions, cut, find_items, parse_source, read_span
from bert_jax.errors import UserError
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_texts
from bert_jax.storage import records
from bert_jax.storage.records import (
    Line,
    columns_explained,
    is_cut,
    open_columns,
    read_lines,
    read_text,
    refuse_broken_links,
    table_rows,
    text_lines,
)
from bert_jax.tasks.readers.own_rows import read_own_rows
from tests.compressed import PACK, compressed

TEXTS = ["One text.", 'A "quoted" one, with a comma.', "Zwölf\u2028Jahre."]


def of_corpus(path: pathlib.Path) -> list[str]:
    """Returns the texts that a corpus would get from a source with the file's name."""
    kind = "jsonl" if ".jsonl" in path.name else path.suffix[1:]
    spans = cut(find_items([parse_source(f"{kind}:{path}")], ReadOptions()), 2)
    documents = (document for shard in spans for span in shard for document in read_span(span, ReadOptions(), Counter()))
    return ["\n".join(document.lines) for document in documents]


def of_labelled_data(path: pathlib.Path) -> list[str]:
    return [row.text("text") for row in read_own_rows(path)]


def of_predictions(path: pathlib.Path) -> list[str]:
    return [record.values["text"] for record in read_texts([], str(path), (Field("text"),))]


EVERYONE = (of_corpus, of_labelled_data, of_predictions)


def write(path: pathlib.Path, texts: Sequence[str]) -> None:
    table = pa.table({"id": [*range(len(texts))], "text": [*texts]})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    elif ".jsonl" in path.name:
        lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
        path.write_bytes(compressed(lines.encode(), path.name))
    else:
        quoted = "".join('{},"{}"\n'.format(i, text.replace('"', '""')) for i, text in enumerate(texts))
        path.write_bytes(compressed(f"id,text\n{quoted}".encode(), path.name))


@pytest.mark.parametrize(
    ("name", "readers"),
    [
        *((f"a.jsonl{end}", EVERYONE) for end in ("", *PACK)),
        ("a.parquet", EVERYONE),
        ("a.arrow", EVERYONE),
        *((f"a.csv{end}", (of_labelled_data, of_predictions)) for end in ("", *PACK)),
    ],
)
def test_a_corpus_labelled_data_and_predictions_read_the_same_texts_of_a_file(
    tmp_path: pathlib.Path, name: str, readers: Sequence[Callable[[pathlib.Path], list[str]]]
):
    write(tmp_path / name, TEXTS)
    assert [read(tmp_path / name) for read in readers] == [TEXTS] * len(readers)


class Endless(io.RawIOBase):
    """A file with one endless line, which counts how much of it is read."""

    read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.read_bytes += len(buffer)
        buffer[:] = b"x" * len(buffer)
        return len(buffer)


def test_a_too_long_line_is_returned_before_its_rest_is_read():
    endless = Endless()
    place, line = next(read_lines(io.BufferedReader(endless), 1 << 16))
    assert (place, len(line), is_cut(line, 1 << 16)) == (0, 1 << 16, True)
    assert endless.read_bytes < 1 << 17


def test_lines_after_a_too_long_one_keep_their_numbers():
    data = b"short\n" + b"y" * 3_000_000 + b"\nlast"
    found = list(read_lines(io.BytesIO(data), 1 << 20))
    assert [(place, line[:5], is_cut(line, 1 << 20)) for place, line in found] == [
        (0, b"short", False),
        (6, b"yyyyy", True),
        (3_000_007, b"last", False),
    ]
    assert [place for place, _ in read_lines(io.BytesIO(data), 1 << 20, 3)] == [6, 3_000_007]
    assert not is_cut(b"x" * 9 + b"\n", 10)


def test_lines_are_read_lazily(tmp_path: pathlib.Path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n" + b"x" * 100_000 + b"\n\xff\n")
    lines = text_lines(tmp_path / "a.txt")
    assert [next(lines), next(lines), len(next(lines))] == ["one\r\n", "\n", 100_001]
    with pytest.raises(UserError, match=r"a\.txt, line 4: byte 100,011 of the file \(0xff\) is not UTF-8"):
        next(lines)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quotes", [True, False])
def test_table_rows_have_the_number_of_their_first_line_for_any_line_end(tmp_path: pathlib.Path, end: str, quotes: bool):
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["a,b", "", "c,d", ""]).encode())
    lines = (Line(number, text) for number, text in enumerate(text_lines(path), 1))
    found = [(row.location.line, row.cells) for row in table_rows(path, lines, ",", quotes=quotes)]
    assert found == [(1, ["a", "b"]), (2, []), (3, ["c", "d"])]


@pytest.mark.parametrize(
    ("header", "row", "text"),
    [("text,label", " a,no", " a"), ("text, label", " a, no", "a"), ("label, text", 'no, "a, b"', "a, b")],
)
def test_spaces_before_a_cell_belong_to_it_unless_the_header_has_them_too(
    tmp_path: pathlib.Path, header: str, row: str, text: str
):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{row}\n")
    assert of_labelled_data(path) == [text]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_requested_columns_belong_to_the_requested_rows(tmp_path: pathlib.Path, kind: str):
    write(tmp_path / f"a.{kind}", [f"Text {i}." for i in range(7)])
    with open_columns(kind, tmp_path / f"a.{kind}") as file:
        assert file.schema.names == ["id", "text"]
        batches = list(file.batches(["text"], 1, 6))
    assert [text for batch in batches for text in batch.column("text").to_pylist()] == [f"Text {i}." for i in range(1, 6)]
    with open_columns(kind, tmp_path / f"a.{kind}") as file:
        assert [rows for rows, _ in file.groups("text")] == [2, 2, 2, 1]


def test_rows_have_the_sizes_of_their_lines_and_the_first_problem(tmp_path: pathlib.Path):
    lines = [Line(1, 'a,"b\n', 6), Line(2, 'c",d\n', 7, "bad"), Line(3, "e\n", 2), Line(4, "f\n", 3, "worse")]
    quoted = list(table_rows("a.csv", lines, ",", quotes=True))
    assert [(row.location.line, row.size, row.problem) for row in quoted] == [(1, 13, "bad"), (3, 2, None), (4, 3, "worse")]
    assert quoted[0].cells == ["a", "b\nc", "d"]
    plain = list(table_rows("a.csv", lines, ",", quotes=False))
    assert [(row.location.line, row.size, row.problem) for row in plain] == [
        (line.number, line.size, line.problem) for line in lines
    ]
    assert Line(1, "").size == 0


def test_a_carriage_return_ends_a_row_wherever_it_is():
    for text in ("a\rb", "ab\rcd", "a\r\rbc\r"):
        found = [row.cells for row in table_rows("a.csv", [Line(1, text)], ",", quotes=True)]
        assert found == [[cell] if cell else [] for cell in text.removesuffix("\r").split("\r")]


def test_a_cell_may_be_longer_than_the_limit_of_the_csv_module():
    csv.field_size_limit(131_072)
    (row,) = table_rows("a.csv", [Line(1, f'"{"x" * 200_000}",b\n')], ",", quotes=True)
    assert [len(cell) for cell in row.cells] == [200_000, 1]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_nul_is_refused_with_its_place_and_remedy(tmp_path: pathlib.Path, encoding: str):
    text = "ab\n\0c\n" if encoding == "utf-8" else "ab of a text in UTF-16\n"
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    with pytest.raises(UserError) as told:
        read_text(tmp_path / "a.txt")
    says = {
        "utf-8": "line 2: character 4 of the file is NUL, which text must not contain; remove it",
        "utf-16-le": "line 1: character 2 of the file is NUL, which text must not contain: it starts like UTF-16; convert it "
        "(iconv -f UTF-16LE -t UTF-8)",
    }
    assert str(told.value) == f"{tmp_path}/a.txt, {says[encoding]}"


def test_broken_links_are_refused_unless_hidden(tmp_path: pathlib.Path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "good").symlink_to(tmp_path / "a.txt")
    for name in (".#lock", "b.txt", ".c"):
        (tmp_path / name).symlink_to(tmp_path / "gone")
    refuse_broken_links([tmp_path / name for name in ("a.txt", "good", ".#lock", ".c", "none")])
    with pytest.raises(UserError, match=r"b\.txt \(a link to .*gone, which does not exist\) cannot be read; restore its target"):
        refuse_broken_links([tmp_path / "b.txt"])


def test_a_nested_column_has_the_size_of_its_parts(tmp_path: pathlib.Path):
    table = pa.table({"id": [1, 2], "pair": [{"en": "a" * 1_000, "de": "b"}, {"en": "c" * 500, "de": "d" * 3_000}]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    with open_columns("parquet", tmp_path / "a.parquet") as file:
        ((rows, size),) = file.groups("pair")
        assert (rows, [batch.num_rows for batch in file.batches(["pair"])]) == (2, [2])
    assert 4_500 < size < 5_000


def test_batches_of_a_parquet_file_have_a_bounded_size(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The rows have about 100 bytes each."""
    table, plain = pa.table({"text": ["x" * 96] * 50}), {"compression": "none", "use_dictionary": False}
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False, **plain)
    for limit, rows in ((1_030, 10), (50, 1), (1 << 20, 50)):
        monkeypatch.setattr(records, "_BATCH_BYTES", limit)
        with open_columns("parquet", tmp_path / "a.parquet") as file:
            assert [batch.num_rows for batch in file.batches(["text"])] == [rows] * (50 // rows)
        with open_columns("parquet", tmp_path / "a.parquet") as file:
            found = [batch.num_rows for batch in file.batches(["text"], 12, 27)]
            assert found == ([8, 7] if rows == 10 else [1] * 15 if rows == 1 else [15])


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (pa.ArrowInvalid("First. Second\nThird"), r"is not a whole Arrow file \(First\); fetch it again"),
        (pa.ArrowInvalid(f"{'x' * 160}y"), rf"is not a whole Arrow file \({'x' * 160}\); fetch"),
        (EOFError(), r"is not a whole Arrow file \(EOFError\); fetch"),
        (OSError("no end"), r"is not a whole Arrow file \(no end\); fetch"),
        (OSError(errno.EACCES, "not yours"), "cannot be read: not yours$"),
        (pa.ArrowNotImplementedError("Unsupported compression codec"), r"has an unsupported codec \(Unsupported compr"),
        (pa.ArrowInvalid("Unsupported type"), "is not a whole Arrow file"),
        (pa.ArrowInvalid("Compression failed"), "is not a whole Arrow file"),
    ],
)
def test_an_error_of_pyarrow_is_explained_in_one_sentence(error: Exception, says: str):
    with pytest.raises(UserError, match=rf"^a\.arrow {says}"), columns_explained("arrow", "a.arrow"):
        raise error


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "a.txt is empty; fetch it again, or give another file"),
        ("a.txt", b"\n \n", "a.txt is empty"),
        ("a.gz", PACK[".gz"](b"It rained.\n" * 1_000)[:-20], r"a.gz is not a whole gzip file \(.*\); fetch it again"),
        ("a.txt", None, "a.txt .*cannot be read: No such file or directory; give the path of a text file"),
        ("pipe", None, "pipe is a pipe or a device"),
        ("a.txt", b"%PDF-1.7\n", "a.txt is a PDF, not text"),
    ],
)
def test_a_file_that_cannot_be_read_as_text_is_explained(tmp_path: pathlib.Path, name: str, content: bytes | None, says: str):
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"^{tmp_path}/{says}"):
        read_text(tmp_path / name)


def test_spaces_before_cells_are_kept_by_default():
    for options, cells in (({}, ["a", " b"]), ({"spaced": True}, ["a", "b"])):
        (row,) = table_rows("a.csv", [Line(1, "a, b\n")], ",", quotes=True, **options)
        assert row.cells == cells
