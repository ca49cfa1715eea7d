"""Sources of a corpus in a bucket are found and read like those on a disk."""

from __future__ import annotations

import io
import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.data.corpus.sources import ReadOptions, cut, find_items, parse_source, read_span
from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.fetching import cached_path


def texts(source: str) -> list[str]:
    options = ReadOptions()
    spans = cut(find_items([parse_source(source)], options), 2)
    return [line for shard in spans for span in shard for doc in read_span(span, options, Counter()) for line in doc.lines]


def parquet(text: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": [text]}), file)
    return file.getvalue()


def arrow(text: str) -> bytes:
    file, table = io.BytesIO(), pa.table({"text": [text]})
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def test_only_the_needed_split_of_a_bucket_directory_is_fetched(bucket: str):
    for split in ("train", "test"):
        for k in (0, 1):
            objects.write(f"{bucket}/set/data/{split}-0000{k}-of-00002.parquet", parquet(f"In {split} {k}."))
    objects.write(f"{bucket}/set/README.md", b"A card.")
    assert texts(f"parquet:{bucket}/set") == ["In train 0.", "In train 1."]
    assert not list(cached_path(f"{bucket}/set").rglob("test*"))
    assert texts(f"parquet:{bucket}/set:test") == ["In test 0.", "In test 1."]
    assert texts(f"parquet:{bucket}/set/data/*-00001-*.parquet") == ["In test 1.", "In train 1."]
    assert texts(f"parquet:{bucket}/set/data/train-00000-of-00002.parquet") == ["In train 0."]
    assert len(list(cached_path(f"{bucket}/set").rglob("*.parquet"))) == 4, "a fetch of some files removes no others"
    with pytest.raises(UserError, match=re.escape(f"--source=parquet:{bucket}/set:dev: there is no split 'dev'; known: test")):
        texts(f"parquet:{bucket}/set:dev")
    with pytest.raises(UserError, match=re.escape(f"--source=arrow:{bucket}/set: the directory has no .arrow file; write")):
        texts(f"arrow:{bucket}/set")


def test_a_saved_data_set_and_compressed_lines_in_a_bucket_are_read(bucket: str):
    for split in ("train", "test"):
        objects.write(f"{bucket}/saved/{split}/data-00000-of-00001.arrow", arrow(f"In {split}."))
    objects.write(f"{bucket}/saved/dataset_dict.json", json.dumps({"splits": ["train", "test"]}).encode())
    assert texts(f"arrow:{bucket}/saved") == ["In train."]
    assert texts(f"arrow:{bucket}/saved:test") == ["In test."]
    file = pa.BufferOutputStream()
    with pa.CompressedOutputStream(file, "zstd") as packed:
        packed.write(b'{"text": "In a line."}\n')
    objects.write(f"{bucket}/a.jsonl.zst", file.getvalue().to_pybytes())
    assert texts(f"jsonl:{bucket}/*.zst") == ["In a line."]


def test_errors_about_a_source_in_a_bucket_name_its_address(bucket: str):
    objects.write(f"{bucket}/bad.jsonl", b'{"text": "a"}\n{"text"\n')
    objects.write(f"{bucket}/half.txt.gz", b"\x1f\x8b\x08")
    objects.write(f"{bucket}/a.parquet", b"no table")
    for source, says in (
        (f"jsonl:{bucket}/bad.jsonl", f"{bucket}/bad.jsonl"),
        (f"text:{bucket}/*.gz", f"{bucket}/half.txt.gz is not a whole gzip file"),
        (f"parquet:{bucket}/a.parquet", f"{bucket}/a.parquet is not"),
    ):
        with pytest.raises(UserError, match=f"(^|: ){re.escape(says)}") as raised:
            texts(source)
        assert str(cached_path(bucket)) not in str(raised.value)
