"""Reads and writes LevelDB's sorted table, an immutable map of bytes to bytes. The index of a TensorFlow checkpoint has this
format.

A table consists of blocks of entries in ascending order, an index of the blocks, and a footer. In a block, a key omits the prefix
that it shares with the previous key. Every block is followed by its compression type and a checksum.

Source: LevelDB's `doc/table_format.md`. TensorFlow's `tsl/lib/io/table` differs in that it does not compress checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import google_crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES, TRAILER_BYTES = 48, 5
RESTART_INTERVAL = 16
UNCOMPRESSED, SNAPPY = 0, 1
LONGEST = 1 << 24
"""The maximum number of bytes of a table, and of all its uncompressed keys. The index of BERT-Large with its optimizer has 100
kB. The limit bounds the work for files that are not tables."""


class Damaged(Exception):
    """Raised if bytes are not in the expected format. Callers know the name of the file, so they raise a UserError instead."""


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of every entry, in the order of the keys.

    Raises Damaged if `content` is not a table. Blocks must not overlap, and the uncompressed keys may have at most `LONGEST`
    bytes in total, so the work is bounded for any content."""
    if len(content) < FOOTER_BYTES or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise Damaged("it does not end with the footer of a table")
    footer = content[-FOOTER_BYTES:]
    offset, size, at = _handle(footer, 0)
    for _ in _block(content, offset, size):
        raise Damaged("it has a block of metadata, which checkpoints do not have")
    offset, size, _ = _handle(footer, at)
    last: bytes | None = None
    end = written_out = 0
    for separator, value in _block(content, offset, size):
        offset, size, _ = _handle(value, 0)
        written_out += len(separator)
        if offset < end:
            raise Damaged("its blocks overlap")
        end = offset + size + TRAILER_BYTES
        for key, entry in _block(content, offset, size):
            written_out += len(key)
            if written_out > LONGEST:
                raise Damaged(f"its keys have more than {LONGEST:,} bytes")
            if last is not None and key <= last:
                raise Damaged("its keys are not in ascending order")
            last = key
            yield key, entry


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return offset, size, at


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    stored = content[offset : offset + size + TRAILER_BYTES]
    if len(stored) != size + TRAILER_BYTES or size < 4:
        raise Damaged("a block extends beyond the end of the file")
    if checksum(stored[:-4]) != struct.unpack("<I", stored[-4:])[0]:
        raise Damaged("a block's checksum is wrong")
    if stored[size] != UNCOMPRESSED:
        kind = "snappy" if stored[size] == SNAPPY else f"type {stored[size]}"
        raise Damaged(f"a block is compressed ({kind}), which checkpoints are not")
    block = stored[:size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]  # without the restart offsets, which only a search needs
    key, at = b"", 0
    while at < end:
        shared, at = read_varint(block, at)
        unshared, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or at + unshared + length > end:
            raise Damaged("an entry extends beyond the end of its block")
        key = key[:shared] + block[at : at + unshared]
        yield key, block[at + unshared : at + unshared + length]
        at += unshared + length
    if at != end:
        raise Damaged("the entries of a block do not fill it")


def encode_table(entries: Mapping[bytes, bytes]) -> bytes:
    """Encodes `entries`, whose keys must be in ascending order, as one block. TensorFlow starts a new block after 256 kB, but
    it reads blocks of any size."""
    table = b""

    def append(block: bytes) -> bytes:
        nonlocal table
        handle = encode_varint(len(table)) + encode_varint(len(block))
        stored = block + bytes([UNCOMPRESSED])
        table += stored + struct.pack("<I", checksum(stored))
        return handle

    data = append(_encode_block(entries))
    metadata = append(_encode_block({}))
    last = max(entries)
    # The key of the block in the index may be `last` or any later key. TensorFlow writes the first byte of `last`, plus one.
    index = append(_encode_block({bytes([last[0] + 1]) if last else b"": data}))
    return table + (metadata + index).ljust(FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", MAGIC)


def _encode_block(entries: Mapping[bytes, bytes]) -> bytes:
    block, restarts, last = bytearray(), [0], b""
    for n, (key, value) in enumerate(entries.items()):
        if n and n % RESTART_INTERVAL == 0:
            restarts.append(len(block))
            last = b""
        # keys ascend, so `last` never starts with the whole key
        shared = sum(last.startswith(key[:n]) for n in range(1, len(key)))
        for length in (shared, len(key) - shared, len(value)):
            block += encode_varint(length)
        block += key[shared:] + value
        last = key
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def checksum(data: bytes) -> int:
    """Returns the masked crc32c of LevelDB. The mask keeps checksums reliable for data that contains checksums."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns (the varint at position `at`, the position after it). A varint has seven bits per byte, the lowest bits first."""
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value, at + n + 1
    raise Damaged("a variable-length integer has no end")


def encode_varint(value: int) -> bytes:
    """Returns the varint encoding of `value`."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
