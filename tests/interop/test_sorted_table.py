"""LevelDB's table on its own; `test_tensor_bundle.py` tests that TensorFlow writes and reads it as its index."""

from __future__ import annotations

import pytest

from bert_jax.interop.sorted_table import Damaged, _encode_block, encode_varint, read_table, read_varint
from tests.interop.tables import MAGIC, block_of, framed, varint


def test_a_block_that_overlaps_a_checksum_is_refused():
    block = _encode_block({b"a": b"1"})
    with pytest.raises(Damaged, match="its blocks overlap"):
        list(read_table(framed(block, index=[0, 1], handles={1: varint(len(block)) + varint(4)})))


@pytest.mark.parametrize(
    "entries",
    [[(1, 1, 1, b"a1")], [(0, 1, 9, b"a1")], [(0, 9, 1, b"a1")], [(0, 1, 1, b"a1"), (2, 1, 1, b"b1")]],
    ids=["shares what is not there", "value too long", "name too long", "shares more than there is"],
)
def test_an_entry_that_extends_beyond_its_block_is_refused(entries):
    with pytest.raises(Damaged, match="an entry extends beyond the end of its block"):
        list(read_table(framed(block_of(*entries))))


def test_a_block_has_at_least_four_bytes_within_the_file():
    assert list(read_table(framed(metadata=bytes(4)))) == []
    for content in (
        framed(metadata=bytes(3)), framed(handles={9: varint(0) + varint(10**6)}, index=[9]), bytes(40) + MAGIC
    ):  # fmt: skip
        with pytest.raises(Damaged, match="a block extends beyond the end of the file"):
            list(read_table(content))


def test_varints_survive_a_round_trip():
    for value in (0, 1, 127, 128, 129, 255, 256, 16_383, 16_384, 2**32, 2**63, 2**64 - 1):
        assert encode_varint(value) == varint(value)
        assert read_varint(b"\xff" + varint(value) + b"\x01", 1) == (value, 1 + len(varint(value)))
    with pytest.raises(Damaged, match="has no end"):
        read_varint(b"\x80" * 10 + b"\x01", 0)
