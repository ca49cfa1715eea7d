"""Reads and writes TensorFlow's checkpoint format, "tensor bundle" V2, without TensorFlow.

`PREFIX.index` is a sorted table. The value of the empty key is a `BundleHeaderProto`. Every other key is the name of a tensor,
and its value is a `BundleEntryProto`. The data of the tensors is in `PREFIX.data-0000i-of-0000n`, little-endian and one tensor
after another. Index and tensors have checksums. A directory of several checkpoints has a file `checkpoint` that names the
newest one.

Sources: tensorflow `core/util/tensor_bundle`, `core/protobuf/tensor_bundle.proto`, `python/training/checkpoint_state.proto`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from bert_jax.errors import UserError, missing_path
from bert_jax.files import PartialFile, aside
from bert_jax.interface.words import counted
from bert_jax.interop.sorted_table import LONGEST, Damaged, checksum, encode_table, encode_varint, read_table, read_varint

DTYPES: dict[int, np.dtype] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype(np.float16),
}
"""The supported types by their numbers in TensorFlow's `types.proto`."""

STATE = "checkpoint"
"""The file in which TensorFlow lists the checkpoints of a directory."""
VERSION = 1  # The version of the bundle format. A file states the minimum version that its reader must support.


@dataclasses.dataclass(frozen=True)
class Entry:
    """The type, shape and position of a tensor. `dtype` is TensorFlow's number of the type. A `partitioned` tensor is stored as
    slices under other keys."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    partitioned: bool


class Bundle(Mapping[str, np.ndarray]):
    """A mapping from names to tensors. A tensor is read and verified on access. Its array is read-only and has the stored type.

    `entries` has the shapes of all tensors. Access raises a UserError that names the tensor if the tensor is damaged or
    partitioned, or if its type is not in `DTYPES`."""

    def __init__(self, prefix: pathlib.Path, shards: int, entries: Mapping[str, Entry]):
        self.prefix = prefix
        self.shards = shards
        self.entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # the default implementation of Mapping would read the tensor

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        if entry.partitioned:
            raise UserError(f"{self.prefix}: {name} is a partitioned variable, which cannot be read; save it as one tensor")
        if entry.dtype not in DTYPES:
            known = ", ".join(dtype.name for dtype in DTYPES.values())
            raise UserError(
                f"{self.prefix}: {name} has the type {entry.dtype} of TensorFlow's DataType, which cannot be read; known: {known}"
            )
        path = shard_path(self.prefix, entry.shard, self.shards)
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); copy the checkpoint again") from error
        if len(data) != entry.size or checksum(data) != entry.checksum:
            raise UserError(f"{path} is damaged: the checksum of {name} is wrong; copy the checkpoint again")
        return np.frombuffer(data, DTYPES[entry.dtype].newbyteorder("<")).reshape(entry.shape)


def shard_path(prefix: pathlib.Path, shard: int, shards: int) -> pathlib.Path:
    """Returns the data file of one shard."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def index_path(prefix: pathlib.Path) -> pathlib.Path:
    """Returns the index file, with the names and positions of the tensors."""
    return prefix.with_name(f"{prefix.name}.index")


def find_bundle(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the common prefix of the files of the checkpoint at `path`. `path` may be a prefix, one of the files, or a
    directory with a checkpoint.

    If a directory has several checkpoints, its file `checkpoint` names the newest one. Raises UserError if there is no
    checkpoint at `path`, or if it is not clear which one is meant."""
    path = pathlib.Path(path)
    if not path.exists() and path.name and aside(path).is_dir():  # an export was killed while swapping directories
        path = aside(path)
    if not path.is_dir():
        prefix = path.with_name(prefix_name(path.name)) if path.name else path
        if index_path(prefix).is_file():
            return prefix
        if path.is_file():
            raise UserError(
                f"{path} is not part of a TensorFlow checkpoint of format V2, because there is no {path}.index; name another file"
            )
        raise UserError(
            f"there is no {missing_path(path)}, nor {path}.index; name the directory of a checkpoint, or the common prefix "
            "of its files"
        )
    state = path / STATE
    text = state.read_text(encoding="utf-8", errors="replace") if state.is_file() else None
    return path / newest_bundle(path, [file.name for file in path.iterdir()], text)


def prefix_name(name: str) -> str:
    """Returns the common prefix of the files of a checkpoint, one of which is called `name`. Other names are returned
    unchanged."""
    return re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", name)


def newest_bundle(directory: str | os.PathLike[str], names: Iterable[str], state: str | None) -> str:
    """Returns the common prefix of the newest checkpoint in a directory with the files `names`. `state` is the text of its file
    `checkpoint`, or None if it has no such file. Raises UserError as `find_bundle` does."""
    path, found = os.fspath(directory), sorted(name.removesuffix(".index") for name in names if name.endswith(".index"))
    choices = f"name one of these: {', '.join(f'{path}/{name}' for name in found)}"
    if state is not None:
        named = re.search(r'^model_checkpoint_path:\s*"(.*)"\s*$', state, re.MULTILINE)
        # the directory is ignored, since it may be on another machine
        newest = re.split(r"[/\\]", named[1])[-1] if named else ""
        if newest in found:
            return newest
        others = f"; {choices}" if found else ""
        raise UserError(f"{path}/{STATE} names {newest!r} as the newest checkpoint, but {path} has no {newest}.index{others}")
    if not found:
        raise UserError(f"{path} holds no TensorFlow checkpoint, because it has no file *.index; name another directory")
    if len(found) > 1:
        raise UserError(f"{path} has several checkpoints; {choices}")
    return found[0]


def read_bundle(prefix: str | os.PathLike[str]) -> Bundle:
    """Reads the bundle whose files have the common `prefix`. Verifies the whole index, and that every shard exists and is long
    enough.

    Raises a UserError that names the file and the remedy if a file is invalid or missing.
    """
    prefix = pathlib.Path(prefix)
    path = index_path(prefix)
    try:
        if path.stat().st_size > LONGEST:
            raise Damaged(f"it has more than {counted(LONGEST, 'byte')}")
        shards, entries = _parse_index(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name the common prefix of its files") from error
    except Damaged as error:
        raise UserError(f"{path} is not the index of a TensorFlow checkpoint, or is damaged: {error}; copy it again") from error
    needed: dict[int, int] = {}
    for entry in entries.values():
        if not entry.partitioned:
            needed[entry.shard] = max(needed.get(entry.shard, 0), entry.offset + entry.size)
    for shard, size in sorted(needed.items()):
        data = shard_path(prefix, shard, shards)
        if not data.is_file():
            raise UserError(f"{data} is missing; copy all {shards} data files of the checkpoint next to its index")
        if data.stat().st_size < size:
            raise UserError(
                f"{data} is incomplete: it has {counted(data.stat().st_size, 'byte')} of at least {size:,}; copy the "
                f"checkpoint again"
            )
    return Bundle(prefix, shards, entries)


def write_bundle(prefix: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `tensors` (of the types of `DTYPES`) as one shard, byte for byte as TensorFlow would.

    The index gets its final name last, when all data is on the disk, since files without an index are not a bundle. An older
    bundle with the same prefix is replaced. Raises ValueError if a tensor has another type or an empty name."""
    prefix = pathlib.Path(prefix)
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    unfit = [name for name, x in tensors.items() if not name or np.asarray(x).dtype not in numbers]
    if unfit:
        raise ValueError(f"not in the checkpoint format: {unfit}")
    data, index = shard_path(prefix, 0, 1), index_path(prefix)
    entries = {b"": _varint_field(1, 1) + _bytes_field(3, _varint_field(1, VERSION))}
    with contextlib.closing(PartialFile(data)) as new_data, contextlib.closing(PartialFile(index)) as new_index:
        for name in sorted(tensors, key=str.encode):
            value = np.asarray(tensors[name])
            content = np.asarray(value, value.dtype.newbyteorder("<")).tobytes()
            place = new_data.file.tell()
            entry = Entry(numbers[value.dtype], value.shape, 0, place, len(content), checksum(content), False)
            entries[name.encode()] = _encode_entry(entry)
            new_data.file.write(content)
        new_index.file.write(encode_table(entries))
        for file in (new_data, new_index):
            file.flush_to_disk()
        index.unlink(missing_ok=True)  # so that the older index is never read with the new data
        new_data.complete()
        new_index.complete()


def _parse_index(content: bytes) -> tuple[int, dict[str, Entry]]:
    table = dict(read_table(content))
    if b"" not in table:
        raise Damaged("it has no header")
    header = _message(table.pop(b""))
    shards, big_endian = _number(header, 1), _number(header, 2)
    if big_endian:
        raise Damaged("it was written on a big-endian machine, whose files cannot be read")
    if _number(_message(_bytes(header, 3)), 2) > VERSION:
        version = _number(_message(_bytes(header, 3)), 2)
        raise Damaged(f"its format needs a reader of version {version}, and this reader has version {VERSION}")
    entries = {}
    for key, value in table.items():
        if key.startswith(b"\0"):  # this is a slice of a partitioned variable, and the variable itself has a separate entry
            continue
        try:
            entries[key.decode()] = _decode_entry(value, shards)
        except UnicodeDecodeError:
            raise Damaged("a tensor's name is not UTF-8") from None
        except Damaged as error:
            raise Damaged(f"{key.decode(errors='replace')}: {error}") from None
    return shards, entries


# --- protocol buffers ---------------------------------------------------------------------------------------------------------


def _decode_entry(data: bytes, shards: int) -> Entry:
    """Decodes a BundleEntryProto: 1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c, 7 slices."""
    fields = _message(data)
    dims = _message(_bytes(fields, 2)).get(2, [])
    shape = tuple(_number(_message(_bytes({2: [dim]}, 2)), 1) for dim in dims)
    entry = Entry(
        dtype=_number(fields, 1),
        shape=shape,
        shard=_number(fields, 3),
        offset=_number(fields, 4),
        size=_number(fields, 5),
        checksum=_number(fields, 6),
        partitioned=7 in fields,
    )
    if len(shape) > 32 or math.prod(dim or 1 for dim in shape) >= 1 << 48:
        raise Damaged(f"the shape {list(shape)[:32]} is impossible")
    if entry.shard >= shards:
        raise Damaged(f"its shard is {entry.shard}, but there are only shards 0 to {shards - 1}")
    if entry.dtype in DTYPES and not entry.partitioned and entry.size != math.prod(shape) * DTYPES[entry.dtype].itemsize:
        raise Damaged(f"it has {counted(entry.size, 'byte')}, which is wrong for {DTYPES[entry.dtype]} {list(shape)}")
    return entry


def _encode_entry(entry: Entry) -> bytes:
    shape = b"".join(_bytes_field(2, _varint_field(1, dim)) for dim in entry.shape)
    return (
        _varint_field(1, entry.dtype)
        + _bytes_field(2, shape)
        + _varint_field(3, entry.shard)
        + _varint_field(4, entry.offset)
        + _varint_field(5, entry.size)
        + encode_varint(6 << 3 | 5)
        + struct.pack("<I", entry.checksum)
    )


def _message(data: bytes) -> dict[int, list[int | bytes]]:
    """Decodes a protocol buffer message of any type. Returns field number -> the values of the field."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(tag & 7)
            if tag & 7 == 2:
                length, at = read_varint(data, at)
            if length is None or at + length > len(data):
                raise Damaged("its entry is truncated")
            value = data[at : at + length]
            if tag & 7 != 2:
                value = int.from_bytes(value, "little")
            at += length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(fields: Mapping[int, list[int | bytes]], number: int) -> int:
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise Damaged(f"field {number} of its entry is not a number")
    return value


def _bytes(fields: Mapping[int, list[int | bytes]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise Damaged(f"field {number} of its entry is not a message")
    return value


def _varint_field(number: int, value: int) -> bytes:
    """Encodes a field with a number. Zero is encoded as no bytes, since a missing field means zero."""
    return encode_varint(number << 3) + encode_varint(value) if value else b""


def _bytes_field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value
