"""Writes files atomically, reads untrusted JSON, and turns errors of a full or read-only disk into UserErrors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.paths import Place, is_remote

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as read from a file: its values are unchecked."""
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value that can be written as JSON."""


class ArrayWriter:
    """A one-dimensional .npy file written piece by piece; its length is filled in at the end of the `with` block."""

    def __init__(self, path: pathlib.Path, dtype: np.dtype):
        self.length = 0
        self._dtype = dtype
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        self._file.seek(0)
        # numpy pads a header for the largest possible first dimension, so the rewritten one has the same size
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
    """Writes a one-dimensional .npy file, synchronised to the disk."""
    with ArrayWriter(path, dtype) as writer:
        writer.append(values)


def map_array(path: pathlib.Path) -> np.ndarray:
    """A .npy file as a memory-mapped array; an empty file, which cannot be mapped, as an ordinary empty array."""
    try:
        return np.load(path, mmap_mode="r")
    except ValueError:
        return np.load(path)


def checksum(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Place, content: Json) -> None:
    """Replaces `path` atomically with `content` as JSON."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Place, content: str) -> None:
    """Replaces `path` atomically: a reader sees the complete old file or the complete new one."""
    if is_remote(path):
        objects.write(path, content.encode())
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # left over if the disk was full


def parse_json(text: str | bytes, *, strict: bool = False) -> Any:
    """The value of JSON text; the only JSON reader of the project. `strict` rejects NaN and infinities, which Python writes but
    the JSON standard does not allow, and numbers like 1e999, which Python reads as infinite.

    Raises ValueError for invalid text, for brackets nested so deeply (about ten thousand) that json.loads raises RecursionError,
    and for integers of more digits than Python converts.
    """
    try:
        if strict:
            return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # whose remedy, a call of sys, is not one for a user
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
        raise


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large for a float")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read_json(path: Place, remedy: str = "remove it and run the same command again") -> Any:
    """The value in a JSON file. Raises UserError, with the file and `remedy`, if it cannot be read."""
    try:
        return parse_json(objects.read_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); {remedy}") from error


def read_object(path: pathlib.Path, remedy: str = "remove it and run the same command again") -> JsonObject:
    """The object in a JSON file. Raises UserError like `read_json`, and if the file holds another type of value."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object, but {json.dumps(content)[:40]}; {remedy}")
    return content


@contextlib.contextmanager
def disk_errors(directory: pathlib.Path) -> Iterator[None]:
    """Turns OSErrors of a full or read-only disk inside the `with` block into a UserError with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {directory}; finished shards are intact: free space and run the same command again"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EFBIG, errno.EIO):
            raise UserError(
                f"{error.filename or directory} cannot be written: {error.strerror}; choose another --output"
            ) from error
        raise


def remove_tree(path: pathlib.Path) -> None:
    """Removes a directory tree if it exists."""
    shutil.rmtree(path, ignore_errors=True)
