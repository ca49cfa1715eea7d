"""Parquet and Arrow: the files of a data set, the column that holds the text, and the texts of some rows, in bounded memory.

    parquet:data/*.parquet      the files of a pattern
    parquet:DIR[:SPLIT]         a data set as the Hugging Face hub lays it out: `data/train-00000-of-00008.parquet`, `CONFIG/...`
    arrow:DIR[:SPLIT]           what `save_to_disk` of a Dataset or a DatasetDict wrote, or the .arrow files of a pattern

A file is divided by rows, a Parquet file between row groups. Only the row groups of a part and only the text's column are read,
batch by batch. Arrow files are mapped, so that batches before the rows are skipped without being read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import mmap
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.storage.formats import HEAD_BYTES, recognise

KINDS = {"parquet": "Parquet", "arrow": "Arrow"}
#: names of columns that hold the text where several columns are texts, the likeliest first
LIKELY = (
    "text", "content", "document", "article", "body", "passage", "story", "raw_content", "page_content", "context", "sentence",
    "paragraph", "review", "abstract", "contents", "texts", "markdown", "transcript", "description", "summary",
)  # fmt: skip
_PART_BYTES, _MOST_PARTS = 16 << 20, 16  # of a row group; more parts would decode it too often
_BATCH_BYTES, _MOST_ROWS = 4 << 20, 4096  # of text in a batch; rows in a batch
_MAPPED_BYTES = 32 << 20  # of an Arrow file are mapped at most, or one batch
_READ_BYTES = 1 << 20  # read at a time from a column of a Parquet file
_SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_SHARD = re.compile(r"(.+?)-\d+-of-\d+(?:-[0-9a-f]+)?")
_UNNAMED = {"data", "part", "dataset", "file", "shard", "chunk"}  # beginnings of names that are no split
_CACHES = ("cache-*", "tmp*", "indices*")  # what the `datasets` library leaves beside its data


@dataclasses.dataclass(frozen=True)
class TableFile:
    """The facts about a file before it is read: its rows, the names of its columns, and of the text's column name and bytes."""

    rows: int
    columns: tuple[str, ...]
    column: str
    text_bytes: int
    cuts: tuple[int, ...] = ()  # the rows at which the file may be divided; () for any


def split_of(name: str) -> str:
    """The split of a file by its relative path, as the hub names files; "" if the path names none."""
    *folders, last = pathlib.PurePosixPath(name).parts
    stem = last.partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard and shard[1].lower() not in _UNNAMED:
        return _SPLITS.get(shard[1].lower(), shard[1])
    words = [word for part in (stem, *reversed(folders)) for word in re.split(r"[-_. ]", part.lower())]
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def choose_files(kind: str, names: Sequence[str], split: str | None, shown: str) -> tuple[list[str], str]:
    """Of the relative paths in a directory the data files of the split (None: `train`, or the only one), sorted, and a sentence
    about splits that are not read. `shown` is the flag, for errors.

    Raises UserError for a directory without such files, an unknown split, and several data sets side by side.
    """
    files = sorted(name for name in names if is_data(name, kind))
    if not files:
        others = {other for name in names for other in KINDS if is_data(name, other)}
        remedy = f"write {shown.replace(kind, others.pop(), 1)}" if others else "give the directory that holds them"
        raise UserError(f"{shown}: there is no .{kind} file in it; {remedy}")
    by_split: dict[str, list[str]] = {}
    for name in files:
        by_split.setdefault(split_of(name), []).append(name)
    known = ", ".join(name or "(unnamed)" for name in sorted(by_split))
    if split is None:
        wanted = "train" if "train" in by_split else next(iter(by_split)) if len(by_split) == 1 else None
        if wanted is None:
            raise UserError(f"{shown} has the splits {known}, and none is train; write {shown}:SPLIT, several as A+B")
        chosen = [wanted]
    else:
        chosen = split.split("+")
        for part in chosen:
            if part not in by_split:
                raise UserError(f"{shown}:{split}: no split {part!r}; {nearest(part, [name for name in by_split if name])}")
    found = sorted(name for part in dict.fromkeys(chosen) for name in by_split[part])
    sets = sorted({set_of(name) for name in found})
    if len(sets) > 1 and chosen != [""]:
        named = ", ".join([*sets[:4], *(["..."] if len(sets) > 4 else [])])
        raise UserError(
            f"{shown} holds {counted(len(sets), 'data set')} side by side ({named}); "
            f"give the folder of one, or '{kind}:' with a pattern for all of them ('DIR/**/*{chosen[0]}*.{kind}')"
        )
    left = sorted(set(by_split) - set(chosen))
    names_left = ", ".join(name or "(unnamed)" for name in left)
    said = f"{shown}: reading split {'+'.join(chosen)}, not {names_left}; {shown}:SPLIT chooses" if left and not split else ""
    return found, said


def is_data(name: str, kind: str) -> bool:
    """Whether a file in a directory is part of a data set: neither hidden nor a cache of `datasets`."""
    parts = pathlib.PurePosixPath(name).parts
    hidden = any(part.startswith((".", "__")) for part in parts)
    cache = kind == "arrow" and any(fnmatch.fnmatchcase(parts[-1], pattern) for pattern in _CACHES)
    return name.endswith(f".{kind}") and not hidden and not cache


def set_of(name: str) -> str:
    """The folder of a file without its parts that name a split: the data set's configuration."""
    folders = pathlib.PurePosixPath(name).parts[:-1]
    return "/".join(part for part in folders if part.lower() not in _SPLITS and part != "data") or "."


def inspect(kind: str, path: str, column: str | None, given: str) -> TableFile:
    """Describes a Parquet or Arrow file. `column`: the name of the text's column, None to find it; `given`: how the user named
    the file, for the remedy in errors.

    Raises UserError for a file of another format, a damaged one, and a column that is missing or holds no text.
    """
    _require_format(kind, path, given)
    with explained(kind, path):
        return _inspect_parquet(path, column) if kind == "parquet" else _inspect_arrow(path, column)


def _require_format(kind: str, path: str, given: str) -> None:
    try:
        with pathlib.Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    found = recognise(head, path)
    if found is not None and found.kind == kind:
        return
    if not head:
        raise UserError(f"{path} is empty, not {_a(kind)} file; fetch it again")
    if found is None:
        other = "jsonl" if head.lstrip()[:1] == b"{" else "text"
        raise UserError(
            f"{path} is not {_a(kind)} file: it begins with {head[:12]!r}; write --source={other}:{given}, or fetch it again"
        )
    remedy = f"write --source={found.kind}:{given}" if found.kind in KINDS else found.remedy
    raise UserError(f"{path} {found.what}, not {_a(kind)} file; {remedy}")


def _a(kind: str) -> str:
    return "an Arrow" if kind == "arrow" else "a Parquet"


@contextlib.contextmanager
def explained(kind: str, path: str) -> Iterator[None]:
    """Turns the errors of pyarrow inside the `with` block into a UserError about the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        if "ompression" in str(error) and "upported" in str(error):
            raise UserError(f"{path} has a codec that is not read ({_sentence(error)}); write it again with zstd") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        raise UserError(f"{path} is not a whole {KINDS[kind]} file ({_sentence(error)}); fetch it again") from error


def _sentence(error: BaseException) -> str:
    return str(error).partition("\n")[0].partition(". ")[0].strip()[:160] or type(error).__name__


def _inspect_parquet(path: str, column: str | None) -> TableFile:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        schema, about = file.schema_arrow, file.metadata
        name = _text_column(path, schema, column)
        leaf = next(i for i in range(about.num_columns) if about.schema.column(i).path == name)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        sizes = [group.column(leaf).total_uncompressed_size for group in groups]
        if about.num_row_groups:  # an unknown codec shows only where a page is read; its name in the metadata may end the process
            next(file.iter_batches(1, row_groups=[0], columns=[name], use_threads=False), None)
        cuts = _cuts([group.num_rows for group in groups], sizes)
        return TableFile(about.num_rows, tuple(schema.names), name, sum(sizes), cuts)


def _cuts(rows: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The first row of every part of row groups with these rows and bytes of text. A row group is read from its beginning, so a
    large one has few parts."""
    cuts, first = [], 0
    for count, size in zip(rows, sizes, strict=True):
        parts = max(1, min(_MOST_PARTS, -(-size // _PART_BYTES), count))
        cuts += [first + count * part // parts for part in range(parts)]
        first += count
    return tuple(cuts)


def _inspect_arrow(path: str, column: str | None) -> TableFile:
    with arrow_batches(path) as (schema, batches):
        name = _text_column(path, schema, column)
        rows = size = 0
        for batch in batches:
            rows += batch.num_rows
            size += batch.column(name).nbytes
        return TableFile(rows, tuple(schema.names), name, size)


def _text_column(path: str, schema: Any, wanted: str | None) -> str:
    """The column with the text. Raises UserError if there is none, or several and none has a likely name."""
    names = list(schema.names)
    if wanted is not None:
        if wanted not in names:
            raise UserError(f"{path} has no column {wanted!r}; {nearest(wanted, names)} (--text-field)")
        kind = schema.field(wanted).type
        if names.count(wanted) > 1 or not _holds_text(kind, binary=True):
            texts = [name for name in names if _holds_text(schema.field(name).type)] if len(set(names)) == len(names) else []
            named = ", ".join(texts)
            remedy = f"name one that does with --text-field ({named})" if texts else "write the texts to another column"
            problem = "is there twice" if names.count(wanted) > 1 else f"holds {_kind(kind)}, not text"
            raise UserError(f"{path}: the column {wanted!r} {problem}; {remedy}")
        return wanted
    texts = [name for name in names if names.count(name) == 1 and _holds_text(schema.field(name).type)]
    if not texts:
        columns = ", ".join(f"{field.name}: {_kind(field.type)}" for field in schema)[:200] or "no column"
        raise UserError(f"{path} has no column of texts ({columns}); write the texts to one column, a document a row")
    lower = {name.lower(): name for name in reversed(texts)}
    likely = next((lower[name] for name in LIKELY if name in lower), None)
    if likely is None and len(texts) > 1:
        named = ", ".join(texts)
        raise UserError(f"{path} has several columns of texts: {named}; choose the documents' with --text-field=NAME")
    return likely or texts[0]


def _holds_text(kind: Any, *, binary: bool = False) -> bool:
    """Whether a column of this Arrow type holds one text a row; bytes count only if `binary`."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type, binary=binary)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return True
    return binary and (types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _kind(kind: Any) -> str:
    """An Arrow type in words."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    if types.is_struct(kind):
        return f"objects with {', '.join(field.name for field in kind)}"
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    return "texts" if _holds_text(kind) else str(kind)


def read_texts(kind: str, path: str, column: str, start: int, stop: int) -> Iterator[bytes | None]:
    """The texts in rows [start, stop) of a column, as UTF-8; None for a row without one."""
    import pyarrow

    rows = _parquet_rows(path, column, start, stop) if kind == "parquet" else _arrow_rows(path, column, start, stop)
    with explained(kind, path):
        for values in rows:
            if pyarrow.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            yield from values.cast(pyarrow.large_binary()).to_pylist()


def _parquet_rows(path: str, column: str, start: int, stop: int) -> Iterator[Any]:
    import pyarrow.parquet

    # pages are read as they are needed, since a whole column of a row group may be larger than the memory
    with pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        about, first = file.metadata, 0
        leaf = next(i for i in range(about.num_columns) if about.schema.column(i).path == column)
        for group in range(about.num_row_groups):
            rows = about.row_group(group).num_rows
            if start < first + rows and first < stop:
                size = about.row_group(group).column(leaf).total_uncompressed_size
                most = max(1, min(_MOST_ROWS, _BATCH_BYTES * rows // max(1, size)))
                place = first
                for batch in file.iter_batches(most, row_groups=[group], columns=[column], use_threads=False):
                    values = batch.column(0)
                    yield values[max(0, start - place) : max(0, stop - place)]
                    place += len(values)
                    if place >= stop:
                        return
            first += rows


def _arrow_rows(path: str, column: str, start: int, stop: int) -> Iterator[Any]:
    with arrow_batches(path) as (_, batches):
        place = 0
        for batch in batches:
            if place >= stop:
                return
            if place + batch.num_rows > start:
                chosen = batch.column(column)[max(0, start - place) : stop - place]
                yield from (chosen[k : k + _MOST_ROWS] for k in range(0, len(chosen), _MOST_ROWS))
            place += batch.num_rows


@contextlib.contextmanager
def arrow_batches(path: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema and the record batches of an Arrow file, in either of its two formats."""
    import pyarrow
    from pyarrow import ipc

    with pathlib.Path(path).open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    source = pyarrow.BufferReader(pyarrow.py_buffer(mapped))
    if mapped[:6] == b"ARROW1":
        file = ipc.open_file(source)
        yield file.schema, _in_bounded_memory(mapped, (file.get_batch(i) for i in range(file.num_record_batches)))
        return
    if mapped[-4:] != bytes(4):  # the end of a stream; batches could be missing without any other sign
        raise EOFError("the mark at its end is missing")
    stream = ipc.open_stream(source)
    yield stream.schema, _in_bounded_memory(mapped, stream)


def _in_bounded_memory(mapped: mmap.mmap, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches of a mapped file, whose pages are given back as they have been read. Raises EOFError if it becomes shorter: a
    page that is gone would end the process."""
    each, read = iter(batches), 0
    while True:
        if mapped.size() < len(mapped):
            raise EOFError("it was cut while it was read")
        batch = next(each, None)
        if batch is None:
            return
        yield batch
        read += batch.nbytes
        if read > _MAPPED_BYTES and hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)
            read = 0
