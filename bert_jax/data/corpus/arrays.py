"""The names of the .npy files of a corpus. Also writes these files piece by piece, and explains disk errors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from bert_jax.data.tokenizers.json_tokenizer import BEGINS
from bert_jax.errors import UserError

SPLITS = ("train", "eval")
ARRAYS = ("tokens", "sentences", "documents")
WORDS = "words"
TOKEN_COUNTS = "token_counts.npy"
DOCUMENT_HASHES = "document_hashes.npy"
"""The names of the arrays of a shard. Each of the SPLITS has the arrays ARRAYS. It also has the array WORDS if the subwords do
not show where words start (`VocabularyInfo.marks_words`). TOKEN_COUNTS and DOCUMENT_HASHES exist once per shard. WORDS is uint8
with one bit per token, lowest bit first. The bit is 1 if a word starts at the token."""


def shard_name(index: int, shards: int) -> str:
    """Returns the directory name of a finished shard."""
    return f"shard-{index:05d}-of-{shards:05d}"


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the smallest dtype that holds every token id."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


class ArrayWriter:
    """A one-dimensional .npy file that is written piece by piece. The header gets the length of the array at the end of the
    `with` block."""

    def __init__(self, path: pathlib.Path, dtype: np.dtype):
        self.length = 0
        self._dtype = dtype
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        self._file.seek(0)
        # numpy pads a header for the largest possible first dimension, so the rewritten header has the same size
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, description)

    def append(self, values: np.ndarray) -> None:
        """Appends `values` to the file."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def write_array(path: pathlib.Path, values: np.ndarray, dtype: np.dtype) -> None:
    """Writes a one-dimensional .npy file and synchronises it to the disk."""
    with ArrayWriter(path, dtype) as writer:
        writer.append(values)


def map_array(path: pathlib.Path) -> np.ndarray:
    """Memory-maps a .npy file. An empty array cannot be mapped, so it is read into memory. A mapped array keeps its file open.

    Raises UserError if this process may not open or map further files."""
    try:
        try:
            return np.load(path, mmap_mode="r")
        except ValueError:
            return np.load(path)
    except OSError as error:
        if error.errno in _LIMITS:
            raise UserError(
                f"{path} cannot be mapped: {error.strerror}; {_LIMITS[error.errno]}, or build the corpus again with fewer "
                "--shards (all files of all shards are mapped at once)"
            ) from error
        raise


_OPEN_FILES = "allow more open files (ulimit -n)"
_LIMITS = {errno.EMFILE: _OPEN_FILES, errno.ENFILE: _OPEN_FILES, errno.ENOMEM: "allow more memory maps (sysctl vm.max_map_count)"}
"""errno -> remedy, for errors that do not mean that the file is damaged."""


def marked_tokens(directory: pathlib.Path, split: str) -> np.ndarray:
    """Returns the token ids in one split of a shard. If the shard has WORDS, the ids are uint32, and the bit BEGINS is set in
    ids that start a word."""
    tokens, words = map_array(directory / f"{split}.tokens.npy"), directory / f"{split}.{WORDS}.npy"
    if not words.is_file():
        return tokens
    begins = np.unpackbits(map_array(words), count=len(tokens), bitorder="little")
    return tokens | begins * np.uint32(BEGINS)


def packed_words(marked: np.ndarray) -> np.ndarray:
    """Returns the array WORDS for ids with the bit BEGINS."""
    return np.packbits((marked & np.uint32(BEGINS)) > 0, bitorder="little")


def checksum(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(directory: pathlib.Path) -> Iterator[None]:
    """Inside the `with` block, converts the OSErrors of a full or read-only disk to a UserError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {directory}; free space and run the same command again (finished shards are intact)"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EFBIG, errno.EIO):
            raise UserError(
                f"{error.filename or directory} cannot be written: {error.strerror}; choose another --output"
            ) from error
        raise
