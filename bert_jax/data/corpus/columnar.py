"""Reads Parquet and Arrow. Finds the files of a data set and the column with the text, and reads the texts in bounded memory.

    parquet:data/*.parquet      the files of a pattern
    parquet:DIR[:SPLIT]         a data set as the Hugging Face hub lays it out: `data/train-00000-of-00008.parquet`, `CONFIG/...`
    arrow:DIR[:SPLIT]           what `save_to_disk` of a Dataset or a DatasetDict wrote, or the .arrow files of a pattern

A file is divided by rows, and each part is read by `storage.records`. A Parquet file is divided between row groups, and large
row groups are divided again.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.data.corpus.sentences import paragraphs
from bert_jax.data.corpus.sources import (
    Document,
    Item,
    ReadOptions,
    Say,
    Source,
    SourceKind,
    Span,
    decode,
    exists,
    expanded,
    local_files,
    remote_files,
)
from bert_jax.errors import UserError, nearest, repeated
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import fetch_chosen
from bert_jax.storage.formats import HEAD_BYTES, recognise
from bert_jax.storage.paths import checked, is_remote
from bert_jax.storage.records import KINDS, columns_explained, open_columns, refuse_broken_links

#: likely names of the text column, the most likely name first; used if several columns hold texts
LIKELY = (
    "text", "content", "document", "article", "body", "passage", "story", "raw_content", "page_content", "context", "sentence",
    "paragraph", "review", "abstract", "contents", "texts", "markdown", "transcript", "description", "summary",
)  # fmt: skip
# A row group is divided into parts of at most this size, but into at most this many parts, because the reader of each part must
# decode the row group from its start.
_PART_BYTES, _MOST_PARTS = 16 << 20, 16
_SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_SHARD = re.compile(r"(.+?)-\d+-of-\d+(?:-[0-9a-f]+)?")
_UNNAMED = {"data", "part", "dataset", "file", "shard", "chunk"}  # prefixes that do not name a split
_CACHES = ("cache-*", "tmp*", "indices*")  # files that the `datasets` library writes next to its data


@dataclasses.dataclass(frozen=True)
class TableFile:
    """The properties of a file that are known before its texts are read: the number of rows, the column names, and the name and
    size in bytes of the text column."""

    rows: int
    columns: tuple[str, ...]
    column: str
    text_bytes: int
    cuts: tuple[int, ...] = ()  # the rows at which the file may be divided; (): at any row


def _items(source: Source, options: ReadOptions, say: Say) -> list[Item]:
    """Returns the Parquet or Arrow files of a source. The text column must have the same name in every file."""
    items: list[Item] = []
    column = options.text_field
    columns: tuple[str, ...] = ()
    paths = _files(source, say)
    for path in paths:
        found = inspect(source.kind, path, column, source.name, source.flag)
        column, columns = found.column, columns or found.columns
        if found.rows:
            weight = max(1.0, found.text_bytes)
            items.append(Item(source.kind, path, "records", found.rows, weight, column=column, cuts=found.cuts))
    if options.text_field is None and len(columns) > 1:
        names = ", ".join(columns)
        say(f"{source.flag}={source}: the text is the column {column!r} of {names}; --text-field=NAME chooses another")
    return items


def _files(source: Source, say: Say) -> list[str]:
    """Returns the files of a parquet: or arrow: source. The source is a pattern, or a directory with an optional split."""
    flag = f"{source.flag}={source.kind}:"
    remote = is_remote(checked(source.name, flag))
    name, split = source.name, None
    divided = re.fullmatch(r"(.+):([\w.+-]+)", name)
    if divided and not exists(expanded(name)) and (remote or expanded(divided[1]).is_dir()):
        name, split = divided[1], divided[2]

    def choose(names: Sequence[str]) -> list[str]:
        chosen, said = choose_files(source.kind, names, split, f"{flag}{name}")
        if said:
            say(said)
        return chosen

    if remote:
        if split is None and any(sign in name for sign in "*?["):
            return remote_files(source)
        return [str(path) for path in fetch_chosen(name, flag, choose)]
    there = local_files(dataclasses.replace(source, name=name))
    if isinstance(there, pathlib.Path):
        inside = sorted(there.rglob("*"))
        refuse_broken_links(path for path in inside if path.suffix == f".{source.kind}")
        names = [path.relative_to(there).as_posix() for path in inside if path.is_file()]
        return [str(there / chosen) for chosen in choose(names)]
    return there


def split_name(name: str) -> str:
    """Returns the split in the relative path of a file, following the naming of the hub. Returns "" if the path has no
    split."""
    return _split_in_path(name)[0]


def full_split_name(name: str) -> str:
    """Returns the full name of the split in the relative path of a file, such as "train_unlabeled", for which `split_name`
    returns "train". Words that number the files are left out, and "_" joins the other words."""
    return _split_in_path(name)[1]


def _split_in_path(name: str) -> tuple[str, str]:
    *folders, last = pathlib.PurePosixPath(name).parts
    shard = _SHARD.fullmatch(last.partition(".")[0])
    if shard and shard[1].lower() not in _UNNAMED:
        return _SPLITS.get(shard[1].lower(), shard[1]), shard[1]
    for part in (re.sub(rf"\.({'|'.join(KINDS)})\Z", "", last), *reversed(folders)):
        words = [_without_number(word) for word in re.split(r"[-_. ]", part)]
        if found := next((_SPLITS[word.lower()] for word in words if word.lower() in _SPLITS), None):
            return found, "_".join(word for word in words if word.lower().rstrip("0123456789") not in {"", *_UNNAMED})
    return "", ""


def _without_number(word: str) -> str:
    """Returns "train" for "train1", and any word that does not name a split unchanged."""
    plain = word.strip("0123456789")
    return plain if plain.lower() in _SPLITS else word


def choose_files(kind: str, names: Sequence[str], split: str | None, shown: str) -> tuple[list[str], str]:
    """Chooses the data files of a split from `names`, the relative paths in a directory. If `split` is None, chooses `train` or
    the only split. Returns the sorted files and a note about splits that are not read. `shown` is the flag, for errors.

    Raises UserError if the directory has no data files of this `kind`, if it has several data sets, or if the split is unknown.
    """
    files = sorted(name for name in names if is_data(name, kind))
    if not files:
        others = {other for name in names for other in KINDS if is_data(name, other)}
        remedy = f"write {shown.replace(kind, others.pop(), 1)}" if others else "give the directory that holds the files"
        raise UserError(f"{shown}: the directory has no .{kind} file; {remedy}")
    by_split: dict[str, list[str]] = {}
    for name in files:
        by_split.setdefault(split_name(name), []).append(name)
    known = ", ".join(name or "(unnamed)" for name in sorted(by_split))
    if split is None:
        wanted = "train" if "train" in by_split else next(iter(by_split)) if len(by_split) == 1 else None
        if wanted is None:
            raise UserError(
                f"{shown} has the splits {known}, but no 'train'; write {shown}:SPLIT, or {shown}:A+B to read two splits"
            )
        chosen = [wanted]
    else:
        chosen = split.split("+")
        for part in chosen:
            if part not in by_split:
                raise UserError(
                    f"{shown}:{split}: there is no split {part!r}; {nearest(part, [name for name in by_split if name])}"
                )
    found = sorted(name for part in dict.fromkeys(chosen) for name in by_split[part])
    sets = sorted({configuration_name(name) for name in found})
    if len(sets) > 1 and chosen != [""]:
        named = ", ".join([*sets[:4], *(["..."] if len(sets) > 4 else [])])
        raise UserError(
            f"{shown} holds {counted(len(sets), 'data set')} ({named}); "
            f"give the folder of one data set, or '{kind}:' with a pattern for all of them ('DIR/**/*{chosen[0]}*.{kind}')"
        )
    left = sorted(set(by_split) - set(chosen))
    names_left = ", ".join(name or "(unnamed)" for name in left)
    said = f"{shown}: reading split {'+'.join(chosen)}, not {names_left}; choose with {shown}:SPLIT" if left and not split else ""
    return found, said


def is_data(name: str, kind: str) -> bool:
    """Returns whether a file in a directory is a data file of this `kind`. Hidden files and the caches of the `datasets`
    library are not data files."""
    parts = pathlib.PurePosixPath(name).parts
    hidden = any(part.startswith((".", "__")) for part in parts)
    cache = kind == "arrow" and any(fnmatch.fnmatchcase(parts[-1], pattern) for pattern in _CACHES)
    return name.endswith(f".{kind}") and not hidden and not cache


def configuration_name(name: str) -> str:
    """Returns the configuration of the data set that a file belongs to. It is the folder of the file without "data" and the
    names of splits."""
    folders = pathlib.PurePosixPath(name).parts[:-1]
    return "/".join(part for part in folders if part.lower() not in _SPLITS and part != "data") or "."


def inspect(kind: str, path: str, column: str | None, given: str, flag: str = "--source") -> TableFile:
    """Describes a Parquet or Arrow file. `column` is the name of the text column. If it is None, the column is found. `given` is
    the name of the source, and `flag` is the flag with the source, for errors.

    Raises UserError if the file is damaged or has another format, or if the column is missing or does not hold text.
    """
    _require_format(kind, path, given, flag)
    with columns_explained(kind, path), open_columns(kind, path) as file:
        name = _text_column(path, file.schema, column)
        groups = file.groups(name)
        # An unknown codec is only noticed when a page is read. Reading the codec's name from the metadata may crash the
        # process.
        if kind == "parquet":
            next(file.batches([name]), None)
        rows, sizes = [count for count, _ in groups], [size for _, size in groups]
        cuts = _cuts(rows, sizes) if kind == "parquet" else ()
        return TableFile(sum(rows), tuple(file.schema.names), name, sum(sizes), cuts)


def _require_format(kind: str, path: str, given: str, flag: str) -> None:
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
            f"{path} is not {_a(kind)} file, because it starts with {head[:12]!r}; write {flag}={other}:{given}, or fetch the "
            "file again"
        )
    remedy = f"write {flag}={found.kind}:{given}" if found.kind in KINDS else found.remedy
    raise UserError(f"{path} {found.what}, not {_a(kind)} file; {remedy}")


def _a(kind: str) -> str:
    return "an Arrow" if kind == "arrow" else "a Parquet"


def _cuts(rows: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Divides row groups into parts, given their numbers of rows and their sizes in bytes. Returns the first row of every part.
    A part is read from the start of its row group, so even a large row group has at most `_MOST_PARTS` parts."""
    cuts, first = [], 0
    for count, size in zip(rows, sizes, strict=True):
        parts = max(1, min(_MOST_PARTS, -(-size // _PART_BYTES), count))
        cuts += [first + count * part // parts for part in range(parts)]
        first += count
    return tuple(cuts)


def _text_column(path: str, schema: Any, wanted: str | None) -> str:
    """Returns the name of the column with the text. Raises UserError if no column holds text, or if several columns hold text
    and none of them has a likely name."""
    names = list(schema.names)
    twice = dict.fromkeys(repeated(names))
    texts = [name for name in names if name not in twice and _holds_text(schema.field(name).type)]
    if wanted is not None:
        if wanted not in names:
            raise UserError(f"{path} has no column {wanted!r}; {nearest(wanted, names)} (--text-field)")
        if wanted in twice:
            raise UserError(f"{path}: two columns are named {wanted!r}; give each a different name")
        kind = schema.field(wanted).type
        if not _holds_text(kind, binary=True):
            named = ", ".join(texts)
            remedy = f"name a column of text with --text-field ({named})" if texts else "write the texts to another column"
            raise UserError(f"{path}: the column {wanted!r} holds {_kind(kind)}, not text; {remedy}")
        return wanted
    if not texts and twice:
        raise UserError(f"{path}: two columns are named {next(iter(twice))!r}; give each a different name")
    if not texts:
        columns = ", ".join(f"{field.name}: {_kind(field.type)}" for field in schema)[:200] or "no column"
        raise UserError(f"{path} has no column of texts ({columns}); write the texts to one column, one document per row")
    lower = {name.lower(): name for name in reversed(texts)}
    likely = next((lower[name] for name in LIKELY if name in lower), None)
    if likely is None and len(texts) > 1:
        named = ", ".join(texts)
        raise UserError(
            f"{path} has several columns of texts: {named}; choose the column of the documents with --text-field=NAME"
        )
    return likely or texts[0]


def _holds_text(kind: Any, *, binary: bool = False) -> bool:
    """Returns whether a column of this Arrow type holds one text per row. With `binary`, a column of bytes counts as text."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type, binary=binary)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return True
    return binary and (types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _kind(kind: Any) -> str:
    """Describes an Arrow type in words, e.g. "lists of texts"."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    if types.is_struct(kind):
        return f"objects with {', '.join(field.name for field in kind)}"
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    return "texts" if _holds_text(kind) else str(kind)


def _read(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a table, one per row."""
    item, length = span.item, span.stop - span.start
    texts = read_texts(item.kind, item.path, item.column, span.start, span.stop)
    for row, data in enumerate(texts, start=span.start):
        if data is None:
            if options.on_bad_records != "skip":
                raise UserError(
                    f"{item.path}: row {row + 1:,} has no text (the column {item.column!r} is null there); fill in a text, "
                    "or pass --on-bad-records=skip"
                )
            counts["bad-records"] += 1
            continue
        text = decode(data, options, counts, functools.partial(_bad_bytes, item, row, data))
        yield Document(paragraphs(text), False, (row + 1 - span.start) / length)


def _bad_bytes(item: Item, row: int, data: bytes, error: UnicodeDecodeError) -> str:
    return (
        f"{item.path}: row {row + 1:,} of the column {item.column!r} is not UTF-8 (byte {error.start + 1:,} is "
        f"0x{data[error.start]:02x}); write the table again in UTF-8"
    )


def read_texts(kind: str, path: str, column: str, start: int, stop: int) -> Iterator[bytes | None]:
    """Yields the texts in the rows [start, stop) of a column, as bytes. Yields None for a row without text."""
    import pyarrow

    with columns_explained(kind, path), open_columns(kind, path) as file:
        for batch in file.batches([column], start, stop):
            values = batch.column(column)
            if pyarrow.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            yield from values.cast(pyarrow.large_binary()).to_pylist()


PARQUET = SourceKind("parquet:GLOB", _items, _read, uses=("text_field",))
ARROW = SourceKind("arrow:DIR", _items, _read, uses=("text_field",))
