"""Compresses data according to the suffix of a file name."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma

import pyarrow


def zstd(data: bytes) -> bytes:
    """Compresses `data` with zstd."""
    file = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(file, "zstd") as packed:
        packed.write(data)
    return file.getvalue().to_pybytes()


PACK = {".gz": functools.partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
"""The suffix of a name -> the function that compresses, always to the same bytes: gzip adds the time otherwise."""


def compressed(data: bytes, name: str) -> bytes:
    """Compresses `data` according to the suffix of the name; with another suffix, returns it unchanged."""
    pack = PACK.get(name[name.rfind(".") :])
    return pack(data) if pack else data
