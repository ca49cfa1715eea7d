"""Compresses data as the names of files say."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pyarrow


def zstd(data: bytes) -> bytes:
    """`data` compressed with zstd."""
    file = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(file, "zstd") as packed:
        packed.write(data)
    return file.getvalue().to_pybytes()


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
"""The end of a name -> the function that compresses."""


def compressed(data: bytes, name: str) -> bytes:
    """`data` compressed as the end of the name says; as it is with another end."""
    pack = PACK.get(name[name.rfind(".") :])
    return pack(data) if pack else data
