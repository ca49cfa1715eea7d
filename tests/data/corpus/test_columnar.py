"""Parquet and Arrow as sources: files, splits, the text column, rows in bounded memory."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import pathlib
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.data.corpus import columnar
from bert_jax.data.corpus.sources import ReadOptions, cut, default_shards, find_items, parse_source, read_span
from bert_jax.data.corpus.store import open_corpus
from bert_jax.errors import UserError
from bert_jax.storage import records
from tests.data.conftest import english


def save(directory: pathlib.Path, table: pa.Table, chunk: int = 7, name: str = "data-00000-of-00001.arrow") -> None:
    """Saves `table` in the format of `Dataset.save_to_disk`."""
    directory.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(directory / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=chunk)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (directory / "dataset_info.json").write_text("{}")


def texts(source: str, shards: int = 1, **options) -> list[str]:
    read = ReadOptions(**options)
    spans = cut(find_items([parse_source(source)], read), shards)
    documents = (document for shard in spans for span in shard for document in read_span(span, read, Counter()))
    return ["\n".join(document.lines) for document in documents]


@pytest.fixture
def documents() -> list[str]:
    return english(100)


@pytest.mark.parametrize("shards", [1, 3, 40])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_rows_are_documents_in_order_for_any_row_groups(tmp_path, documents, shards, rows):
    table = pa.table({"id": range(100), "text": documents})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    save(tmp_path / "saved", table, chunk=rows)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    for source in ("parquet:{}/a.parquet", "arrow:{}/saved", "arrow:{}/b.arrow"):
        assert texts(source.format(tmp_path), shards) == documents


def test_a_corpus_from_parquet_or_arrow_equals_one_from_json_lines(tmp_path, documents, build):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    table = pa.table({"text": documents})
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for number, part in enumerate((table[:30], table[30:])):
        pq.write_table(part, tmp_path / "hub" / "data" / f"train-0000{number}-of-00002.parquet", compression="zstd")
    save(tmp_path / "saved", table)
    corpora = []
    for name, source in (("a", "jsonl:{}/a.jsonl"), ("b", "parquet:{}/hub"), ("c", "arrow:{}/saved")):
        build(tmp_path / name, source.format(tmp_path), shards=1)
        corpora.append(open_corpus(tmp_path / name))
    for other in corpora[1:]:
        np.testing.assert_array_equal(other.tokens[:], corpora[0].tokens[:])
        np.testing.assert_array_equal(other.document_offsets, corpora[0].document_offsets)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["One.", "Two.", "One."], pa.large_string()),
        pa.array(["One.", "Two.", "One."], pa.string_view()),
        pa.array(["One.", "Two.", "One."]).dictionary_encode(),
        pa.array([b"One.", b"Two.", b"One."], pa.binary()),
        pa.array([b"One.", b"Two.", b"One."], pa.large_binary()),
    ],
)
def test_texts_of_all_types_are_read(tmp_path, values):
    save(tmp_path / "saved", pa.table({"text": values}), chunk=2)
    assert texts(f"arrow:{tmp_path}/saved", text_field="text") == ["One.", "Two.", "One."]
    if not pa.types.is_string_view(values.type):
        pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", row_group_size=2)
        assert texts(f"parquet:{tmp_path}/a.parquet", 2, text_field="text") == ["One.", "Two.", "One."]


def test_rows_without_text_are_skipped_on_request(tmp_path):
    pq.write_table(pa.table({"text": ["One.", None, "Three."]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"row 2 has no text .*--on-bad-records=skip"):
        texts(f"parquet:{tmp_path}/a.parquet")
    assert texts(f"parquet:{tmp_path}/a.parquet", on_bad_records="skip") == ["One.", "Three."]


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        (("id", "title", "text"), "text"),
        (("url", "Content"), "Content"),
        (("title", "article", "content"), "content"),
        (("words",), "words"),
        (("Text", "text"), "Text"),
    ],
)
def test_the_likely_column_is_found_and_named(tmp_path, columns, chosen):
    pq.write_table(pa.table({name: [f"In {name}."] for name in columns}), tmp_path / "a.parquet")
    said: list[str] = []
    source = parse_source(f"parquet:{tmp_path}/a.parquet")
    (item,) = find_items([source], ReadOptions(), said.append)
    assert item.column == chosen
    assert texts(str(source)) == [f"In {chosen}."]
    listed = ", ".join(columns)
    wanted = f"--source={source}: the text is the column {chosen!r} of {listed}; --text-field=NAME chooses another"
    assert said == ([wanted] if len(columns) > 1 else [])
    assert texts(str(source), text_field=columns[0]) == [f"In {columns[0]}."]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (pa.array([1]), "holds int64, not text"),
        (pa.array([["One."]]), "holds lists of texts, not text"),
        (pa.array([{"text": "One.", "id": 1}]), "holds objects with text, id, not text"),
        (pa.array([1]).dictionary_encode(), "holds int64, not text"),
    ],
)
def test_a_column_without_text_is_refused_with_its_type(tmp_path, values, told):
    pq.write_table(pa.table({"column": values}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=told):
        texts(f"parquet:{tmp_path}/a.parquet", text_field="column")


def test_two_text_columns_of_one_name_are_refused(tmp_path):
    twice = pa.Table.from_arrays([pa.array(["One."]), pa.array(["Two."]), pa.array([1])], names=["text", "text", "id"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: two columns are named 'text'; give each a different name"):
        texts(f"parquet:{tmp_path}/a.parquet")


def test_all_files_of_a_source_must_have_the_column_of_the_first(tmp_path):
    pq.write_table(pa.table({"content": ["One."]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["Two."]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no column 'content'; known: text"):
        texts(f"parquet:{tmp_path}/*.parquet")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00008.parquet", "train"),
        ("data/train-00000-of-00001-0123456789abcdef.parquet", "train"),
        ("20231101.en/train-00000-of-00041.parquet", "train"),
        ("plain_text/unsupervised-00000-of-00001.parquet", "unsupervised"),
        ("default/validation/0000.parquet", "validation"),
        ("dev.parquet", "validation"),
        ("wiki.valid.parquet", "validation"),
        ("wiki.test", "test"),
        ("v1.0-train.parquet", "train"),
        ("test1.parquet", "test"),
        ("data/train_sft-00000-of-00002.zstd.parquet", "train_sft"),
        ("test/data-00000-of-00001.arrow", "test"),
        ("train/fr/test/0000.parquet", "test"),
        ("data-00000-of-00001.arrow", ""),
        ("part-00000-of-00001.parquet", ""),
        ("data/CC-MAIN-2013-20/000_00000.parquet", ""),
    ],
)
def test_the_split_of_a_file_is_read_from_its_path(name, split):
    assert columnar.split_name(name) == split


def write_files(root: pathlib.Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": [name]}), root / name)


def test_a_directory_of_the_hub_is_read_by_its_splits(tmp_path):
    names = [f"data/{split}-0000{k}-of-00002.parquet" for split in ("test", "train") for k in (0, 1)]
    write_files(tmp_path, [*names, ".cache/train-00000-of-00001.parquet"])
    (tmp_path / "README.md").write_text("A card.")
    said: list[str] = []
    find_items([parse_source(f"parquet:{tmp_path}")], ReadOptions(), said.append)
    flag = f"--source=parquet:{tmp_path}"
    assert said == [f"{flag}: reading split train, not test; choose with {flag}:SPLIT"]
    assert texts(f"parquet:{tmp_path}") == names[2:]
    assert texts(f"parquet:{tmp_path}/data:test") == names[:2]
    assert texts(f"parquet:{tmp_path}:test+train") == names
    assert texts(f"parquet:{tmp_path}:train+train") == names[2:]


def test_a_directory_without_splits_is_read_whole(tmp_path):
    names = ["data/CC-2013/000_00000.parquet", "data/CC-2014/000_00000.parquet"]
    write_files(tmp_path, names)
    assert texts(f"parquet:{tmp_path}") == names


def test_a_saved_dictionary_of_data_sets_is_read_by_its_splits(tmp_path):
    for split in ("train", "validation"):
        save(tmp_path / "saved" / split, pa.table({"text": [f"In {split}."]}))
    save(tmp_path / "saved" / "train", pa.table({"text": ["A cache."]}), name="cache-0123456789abcdef.arrow")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert texts(f"arrow:{tmp_path}/saved") == ["In train."]
    assert texts(f"arrow:{tmp_path}/saved:validation") == ["In validation."]
    assert texts(f"arrow:{tmp_path}/saved/validation") == ["In validation."]


def test_empty_tables_have_no_text(tmp_path):
    empty = pa.table({"text": pa.array([], pa.string())})
    pq.write_table(empty, tmp_path / "a.parquet")
    pq.ParquetWriter(tmp_path / "b.parquet", empty.schema).close()
    save(tmp_path / "saved", empty)
    assert pq.ParquetFile(tmp_path / "b.parquet").num_row_groups == 0
    for source in ("parquet:{}/a.parquet", "parquet:{}/b.parquet", "arrow:{}/saved"):
        assert find_items([parse_source(source.format(tmp_path))], ReadOptions()) == []


def test_a_row_group_larger_than_the_memory_is_read_in_parts(tmp_path):
    text = "word " * 2000
    pq.write_table(pa.table({"text": [f"{k} {text}" for k in range(4000)]}), tmp_path / "a.parquet", use_dictionary=False)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    for count, found in enumerate(columnar.read_texts("parquet", str(tmp_path / "a.parquet"), "text", 0, 4000)):
        assert found is not None
        assert found.startswith(b"%d " % count)
        most = max(most, pa.total_allocated_bytes() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 24 << 20  # of 40 MB
    assert peak < 12 << 20


def test_any_range_of_rows_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_MOST_ROWS", 4)
    table = pa.table({"text": [f"Row {k}." for k in range(30)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=11)
    save(tmp_path, table, chunk=11, name="a.arrow")
    for kind in records.KINDS:
        for start, stop in ((0, 30), (0, 1), (3, 5), (5, 6), (8, 11), (9, 25), (11, 22), (17, 30), (29, 30)):
            found = list(columnar.read_texts(kind, str(tmp_path / f"a.{kind}"), "text", start, stop))
            assert found == [b"Row %d." % k for k in range(start, stop)], (kind, start, stop)


def test_only_the_text_column_counts_for_the_size(tmp_path):
    alone = pa.table({"text": [f"Row {k}." for k in range(30)]})
    beside = alone.append_column("html", pa.array([f"{k} " * 500 for k in range(30)]))
    for name, table in (("alone", alone), ("beside", beside)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        save(tmp_path, table, name=f"{name}.arrow")
    for kind in records.KINDS:
        sizes = [columnar.inspect(kind, str(tmp_path / f"{name}.{kind}"), "text", "").text_bytes for name in ("alone", "beside")]
        assert sizes[0] == sizes[1], kind


def test_an_arrow_file_truncated_while_read_is_an_error_without_a_crash(tmp_path):
    save(tmp_path / "saved", pa.table({"text": [f"{k} " + "word " * 2000 for k in range(200)]}))
    path = tmp_path / "saved" / "data-00000-of-00001.arrow"
    read = columnar.read_texts("arrow", str(path), "text", 0, 200)
    next(read)
    os.truncate(path, 5_000)
    with pytest.raises(
        UserError,
        match=r"is not a whole Arrow file \(the file was cut while it was being read\); fetch it "
        r"again",
    ):
        list(read)


def test_memory_of_an_arrow_file_is_released_after_small_and_large_batches(tmp_path, monkeypatch):
    given_back: list[int] = []

    class Mapped(mmap.mmap):
        def madvise(self, advice: int) -> None:  # type: ignore[override]
            given_back.append(advice)

    table = pa.table({"text": ["x" * 100] * 60})
    save(tmp_path, table, chunk=6, name="a.arrow")
    monkeypatch.setattr(records.mmap, "mmap", Mapped)
    monkeypatch.setattr(records, "_MAPPED_BYTES", 2_000)  # three batches
    assert len(list(columnar.read_texts("arrow", str(tmp_path / "a.arrow"), "text", 0, 60))) == 60
    assert given_back == 2 * [mmap.MADV_DONTNEED]  # after four batches each


def test_a_parquet_file_is_divided_between_row_groups_and_a_large_one_into_a_few_parts(tmp_path, monkeypatch, documents):
    pq.write_table(pa.table({"text": documents}), tmp_path / "a.parquet", row_group_size=30)
    source = f"parquet:{tmp_path}/a.parquet"
    (item,) = find_items([parse_source(source)], ReadOptions())
    assert item.cuts == (0, 30, 60, 90)
    assert [[(span.start, span.stop) for span in shard] for shard in cut([item], 3)] == [[(0, 30)], [(30, 60)], [(60, 100)]]
    assert default_shards([item], None) == 1
    assert default_shards([dataclasses.replace(item, weight=1e9)], None) == 4
    monkeypatch.setattr(columnar, "_PART_BYTES", int(item.weight / 8))
    (item,) = find_items([parse_source(source)], ReadOptions())
    assert {0, 30, 60, 90} < set(item.cuts)
    assert 8 <= len(item.cuts) <= 13
    monkeypatch.setattr(columnar, "_PART_BYTES", 1)
    (item,) = find_items([parse_source(source)], ReadOptions())
    assert len(item.cuts) == 16 * 3 + 10
    for shards in (1, 3, 7, 40):
        assert texts(source, shards) == documents


FLAG = "--source=parquet:x"


def files_of(*sets: str, split: str = "train") -> list[str]:
    return [f"{name}/{split}-00000-of-00001.parquet" for name in sets]


@pytest.mark.parametrize(
    ("names", "split", "chosen", "said"),
    [
        (["test.parquet", "a.parquet.txt", "x/__pycache__/train.parquet"], None, ["test.parquet"], ""),  # the only split
        (
            ["train.parquet", "a.parquet"],
            None,
            ["train.parquet"],
            f"{FLAG}: reading split train, not (unnamed); choose with {FLAG}:SPLIT",
        ),
        (["train.parquet", "dev.parquet"], "validation", ["dev.parquet"], ""),
        (files_of("data"), None, files_of("data"), ""),
    ],
)
def test_the_files_of_the_requested_split_or_of_train_are_chosen(names, split, chosen, said):
    assert columnar.choose_files("parquet", names, split, FLAG) == (chosen, said)


@pytest.mark.parametrize(
    ("names", "split", "says"),
    [
        (["a.txt"], None, f"{FLAG}: the directory has no .parquet file; give the directory that holds the files"),
        (["a.arrow", "cache-1.arrow"], None, f"{FLAG}: the directory has no .parquet file; write --source=arrow:x"),
        (["cache-1.arrow"], None, f"{FLAG}: the directory has no .parquet file; give the directory"),
        (["test.parquet", "a.parquet"], None, f"{FLAG} has the splits (unnamed), test, but no 'train'; write {FLAG}:SPLIT, or"),
        (["test.parquet", "train.parquet"], "tset", f"{FLAG}:tset: there is no split 'tset'; did you mean 'test'"),
        (files_of("b", "a"), None, f"{FLAG} holds 2 data sets (a, b); give the folder of one data set, or 'parquet:' with"),
        (files_of(*"dcba"), None, f"{FLAG} holds 4 data sets (a, b, c, d); give the folder"),
        (files_of(*"edcba"), "train", f"{FLAG} holds 5 data sets (a, b, c, d, ...); give the folder"),
    ],
)
def test_a_choice_of_files_that_is_unclear_is_refused(names, split, says):
    with pytest.raises(UserError, match=f"^{re.escape(says)}"):
        columnar.choose_files("parquet", names, split, FLAG)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'\n {"text": "a"}\n', r"is not a Parquet file, because it starts with .*; write --eval-source=jsonl:GIVEN, or fetch"),
        (b"Some text.\n", r"is not a Parquet file, because it starts with b'Some text.\\n'; write --eval-source=text:GIVEN"),
        (b"", "is empty, not a Parquet file; fetch it again"),
        (b"%PDF-1.7\n", "is a PDF, not a Parquet file; write its text to a file first"),
        (b"ARROW1\0\0", "is an Arrow file, not a Parquet file; write --eval-source=arrow:GIVEN"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_another_format_is_refused_with_its_source(tmp_path, content, says):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=f"^{tmp_path}/a {says}"):
        columnar.inspect("parquet", f"{tmp_path}/a", None, "GIVEN", "--eval-source")


TEXT, NUMBER = pa.array(["One."]), pa.array([1])


@pytest.mark.parametrize(
    ("names", "columns", "wanted", "says"),
    [
        (
            ["id", "a", "b"],
            [NUMBER, TEXT, TEXT],
            "id",
            r": the column 'id' holds int64, not text; name a column of text with .* \(a, b\)",
        ),
        (["id"], [NUMBER], "id", ": the column 'id' holds int64, not text; write the texts to another column"),
        (["a", "a"], [TEXT, TEXT], "a", ": two columns are named 'a'; give each a different name"),
        (["a", "b", "b"], [TEXT, TEXT, NUMBER], "b", ": two columns are named 'b'; give each a different name"),
        (["id", "b", "b"], [NUMBER, TEXT, TEXT], "id", ": the column 'id' holds int64, not text; write the texts to another"),
        (["text"], [TEXT], "txt", " has no column 'txt'; did you mean 'text'"),
        (["id"], [NUMBER], None, r" has no column of texts \(id: int64\); write the texts to one column"),
        (
            ["a", "b"],
            [TEXT, TEXT],
            None,
            " has several columns of texts: a, b; choose the column of the documents with --text-field",
        ),
    ],
)
def test_a_text_column_that_is_unclear_is_refused(tmp_path, names, columns, wanted, says):
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"^{tmp_path}/a.parquet{says}"):
        columnar.inspect("parquet", f"{tmp_path}/a.parquet", wanted, "GIVEN")
