"""Limits that no result depends on: waiting times, and the work done at once."""

from __future__ import annotations

import pytest

from bert_jax.storage import fetching, formats, lock, mirror, objects, records


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ((lock.BEAT, lock.MISSED), (10.0, 6)),  # a lock is stale after a minute
        (mirror.EVERY, 30.0),  # seconds of metrics that may be lost with a machine
        (fetching._AT_ONCE, 8),  # downloads
        (fetching.RECORDED, 5.0),  # seconds of transfers that a killed process repeats
        (objects._IN_ONE_REQUEST, 8 << 20),  # bytes
        (records._READ_BYTES, 1 << 20),  # bytes of a column of a Parquet file
        (records._BATCH_BYTES, 4 << 20),
        (records._MOST_ROWS, 4096),
        (records._MAPPED_BYTES, 32 << 20),
        (records._SKIPPED_BYTES, 1 << 20),
        (records._LONGEST_CELL, 128 << 20),  # characters
        (formats.HEAD_BYTES, 512),  # the mark of a tar archive is at byte 257
        (formats._BUFFER, 1 << 18),
    ],
)
def test_internal_limits_have_their_documented_values(limit, expected):
    assert limit == expected
