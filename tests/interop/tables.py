"""Writes sorted tables byte by byte, valid or damaged, for the tests of their reader and of the bundles that contain them."""

from __future__ import annotations

import struct

from bert_jax.interop.sorted_table import _encode_block, checksum

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


def varint(value: int) -> bytes:
    low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return low + varint(value >> 7) if value > 0x7F else low


def framed(
    *blocks: bytes,
    index: list[int] | None = None,
    metadata: bytes | None = None,
    handles: dict | None = None,
    compression: bytes = b"\0",
) -> bytes:
    """Returns a table of these blocks. `index` is their order, the names in the index are made up, `handles` replace the
    blocks' positions, and `compression` is the type that every block states."""
    content = b""
    order = range(len(blocks)) if index is None else index

    def append(block: bytes) -> bytes:
        nonlocal content
        handle = varint(len(content)) + varint(len(block))
        content += block + compression + struct.pack("<I", checksum(block + compression))
        return handle

    places = dict(enumerate(append(block) for block in blocks)) | (handles or {})
    first = append(_encode_block({}) if metadata is None else metadata)
    last = append(_encode_block({f"{n:04}".encode(): places[block] for n, block in enumerate(order)}))
    return content + (first + last).ljust(40, b"\0") + MAGIC


def block_of(*entries: tuple[int, int, int, bytes]) -> bytes:
    """Returns a block of entries (bytes shared, bytes not shared, bytes of the value, the rest), as a damaged file may contain
    them."""
    body = b"".join(varint(shared) + varint(unshared) + varint(length) + rest for shared, unshared, length, rest in entries)
    return body + struct.pack("<II", 0, 1)
