"""Statistics of a shard from its arrays, compared with counts by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax import files
from bert_jax.data.corpus import corpus_report
from bert_jax.data.corpus.corpus_report import ShardSurvey, duplicate_lines, sampling
from bert_jax.data.corpus.shard import drop_documents

EMPTY = ShardSurvey({}, np.zeros(0, np.uint64), np.zeros(0, np.int64), {}, np.zeros(24, np.int64), np.zeros(24, np.int64), 0, {})


def lines(counts: dict[int, int]) -> ShardSurvey:
    """Returns a shard in which the line with this hash occurs this often; its only token is its hash."""
    hashes = np.array(sorted(counts), np.uint64)
    return dataclasses.replace(
        EMPTY,
        line_hashes=hashes,
        line_counts=np.array([counts[int(key)] for key in hashes], np.int64),
        repeated={key: [key] for key in counts},
    )


def test_the_five_most_repeated_lines_of_all_shards_are_shown():
    rate, shown = duplicate_lines([lines({7: 3, 8: 1, 9: 2, 10: 1}), lines({7: 1, 8: 1, 11: 5, 12: 6, 13: 7, 14: 8})])
    assert shown == [(8, [14]), (7, [13]), (6, [12]), (5, [11]), (4, [7])]
    assert rate == pytest.approx(1 - 8 / 35)
    assert duplicate_lines([lines({7: 1, 8: 1}), lines({8: 1, 9: 1})]) == (0.25, [(2, [8])])
    assert duplicate_lines([EMPTY, EMPTY]) == (0.0, [])


def test_lines_are_sampled_only_beyond_twenty_million():
    assert [sampling(sentences) for sentences in (0, 5, 39_999_999, 40_000_000, 1_000_000_000)] == [1, 1, 1, 2, 50]


def test_lengths_are_counted_by_powers_of_two_and_the_longest_in_the_last_bin():
    expected = [1, 2, 1, *[0] * 20, 3]
    assert corpus_report._length_histogram(np.array([1, 2, 3, 4, 1 << 23, 1 << 24, 1 << 30])).tolist() == expected
    assert corpus_report._length_histogram(np.zeros(0, np.int64)).tolist() == [0] * 24


def test_the_hash_of_a_line_depends_on_every_value_and_its_position():
    values = np.random.default_rng(0).integers(0, 2**64, 150, dtype=np.uint64)
    offsets = np.array([0, 100, 101, 150])
    multiplier = int(corpus_report._MULTIPLIER)
    sums = [
        sum(int(value) * multiplier ** (place + 1) for place, value in enumerate(values[start:stop])) % 2**64
        for start, stop in ((0, 100), (100, 101), (101, 150))
    ]
    assert corpus_report._hash_runs(values, offsets).tolist() == sums
    for place in (0, 98, 99):  # an even multiplier would forget all but the first 63
        other = values.copy()
        other[place] += np.uint64(1)
        assert corpus_report._hash_runs(other, offsets)[0] != sums[0]
    assert len(corpus_report._hash_runs(values[:0], np.zeros(1, np.int64))) == 0


def test_rewriting_a_shard_removes_leftovers_of_a_killed_process(tmp_path, text_file, build):
    directory = tmp_path / "corpus"
    build(directory, f"text:{text_file}", shards=1)
    before = {path.name: path.read_bytes() for path in (directory / "shard-00000-of-00001").iterdir()}
    left = directory / f".shard-00000-of-00001.{files.HOST}.1.bert_jax.directory"
    left.mkdir()
    (left / "train.tokens.npy").write_bytes(b"half")
    (left / "other").touch()
    content = files.read_json(directory / "shard-00000-of-00001" / "shard.json")
    none = {split: np.zeros(counts["documents"], bool) for split, counts in content["splits"].items()}
    drop_documents(directory, 0, 1, none, 132)
    after = {path.name: path.read_bytes() for path in (directory / "shard-00000-of-00001").iterdir()}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} <= {"shard.json", "token_counts.npy"}
    assert [path.name for path in directory.glob(".shard*")] == []
