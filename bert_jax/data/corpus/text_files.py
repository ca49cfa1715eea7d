"""Files of plain text and JSON lines: finds them, recognises files of other formats, and reads a part of a file, document by
document. The longest document determines how much memory is needed."""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_jax import files
from bert_jax.data.corpus import columnar
from bert_jax.data.corpus.sentences import SAMPLE_BYTES, detect_layout, paragraphs, unwrap
from bert_jax.data.corpus.sources import Document, Item, ReadOptions, Say, Source, SourceKind, Span, decode, source_files
from bert_jax.errors import UserError, nearest
from bert_jax.storage.formats import (
    bare_name,
    compression,
    conversion,
    open_packed,
    reading_explained,
    recognise,
    unicode_encoding,
)
from bert_jax.storage.records import KINDS as COLUMNAR
from bert_jax.storage.records import is_cut, read_lines, without_bom

_PIECE = 1 << 20  # if a text file has no document separators, it is cut at the first paragraph or line after every MiB
_MAX_LINE = 256 << 20
#: compression -> (how many times smaller English text becomes, the maximum number of parts per file). The first number is used
#: for the weight of a file. With more parts, decompression would take longer than tokenisation.
_RATIOS = {"gzip": (3.0, 16), "zstd": (3.3, 16), "xz": (4.0, 8), "bzip2": (4.0, 4)}
_PART_BYTES = 16 << 20
HEAD_BYTES = 1 << 16  # how much of a file is read to recognise its format (for `text:`, SAMPLE_BYTES)
_BLANK_LINE = re.compile(r"\n[ \t\r\v\f]*\n")  # the lines for which bytes.isspace() is true, like the reader's


def _items(source: Source, options: ReadOptions, say: Say) -> list[Item]:
    return [_item(source, path, options) for path in source_files(source) if pathlib.Path(path).stat().st_size]


def _item(source: Source, path: str, options: ReadOptions) -> Item:
    kind, size = source.kind, pathlib.Path(path).stat().st_size
    layout, blank_lines = "", True
    head = read_head(path, SAMPLE_BYTES if kind == "text" else HEAD_BYTES)
    require_text(source, path, head)
    if kind == "text":
        sample = head.decode("utf-8", "replace")
        layout = detect_layout(sample) if options.layout == "auto" else options.layout
        blank_lines = _BLANK_LINE.search(sample) is not None or len(sample) < SAMPLE_BYTES // 4
    if packed := compression(path):
        ratio, most = _RATIOS[packed]
        weight = size * ratio
        return Item(kind, path, "parts", min(most, math.ceil(weight / _PART_BYTES)), weight, layout, blank_lines)
    return Item(kind, path, "bytes", size, float(size), layout, blank_lines)


_NO_PROSE = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), "a table; write its texts to Parquet or JSON lines"),
    **dict.fromkeys(
        (".conll", ".conllu", ".conllup", ".cupt", ".ann"),
        "a file of annotated words; write the sentences to a text file",
    ),
}
"""Suffix of a file name -> what these files hold instead of prose, and the remedy."""


def require_text(source: Source, path: str, head: bytes) -> None:
    """Raises UserError if the first bytes of a file show that the file is not UTF-8 text, or that its lines end in CR. For a
    text: source, also raises UserError if the file is JSON, or if its suffix is in `_NO_PROSE`. For a jsonl: source, also
    raises UserError if the file is one JSON list."""
    found = recognise(head, path)
    if found is not None and not (found.kind == "html" and source.kind == "text"):  # cleaning drops its markup
        remedy = found.remedy
        if found.kind in COLUMNAR:
            saved = any((pathlib.Path(path).parent / name).is_file() for name in ("state.json", "dataset_info.json"))
            given = str(pathlib.Path(path).parent) if saved and found.kind == "arrow" else source.name
            write = f"{source.flag}={found.kind}:"
            remedy = f"unpack it, and give {write}FILE" if compression(path) else f"write {write}{given}"
        raise UserError(f"{source.flag}={source}: {path} {found.what}, not text; {remedy}")
    if source.kind == "text" and (instead := _NO_PROSE.get(pathlib.PurePath(bare_name(path)).suffix.lower())):
        rename = "rename it to end in .txt if it contains prose"
        raise UserError(f"{source.flag}={source}: {path} has the name of {instead}, or {rename}")
    if unicode_encoding(head):
        raise UserError(f"{source.flag}={source}: {path} is not UTF-8{conversion(head)}")
    nulls = head.count(0)
    if nulls > len(head) // 4:
        raise UserError(
            f"{source.flag}={source}: {path} is not text, because {nulls / len(head):.0%} of its bytes are zero; give a text "
            "file"
        )
    if b"\r" in head.strip() and b"\n" not in head:
        raise UserError(
            f"{source.flag}={source}: the lines of {path} end in CR, which is not recognised as a line end here; convert the "
            "file (tr '\\r' '\\n')"
        )
    if source.kind == "text" and (problem := _json_problem(head)):
        raise UserError(f"{source.flag}={source}: {path} {problem}")
    if source.kind == "jsonl" and re.match(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{", head):
        raise UserError(
            f"{source.flag}={source}: {path} is a JSON list, not one object per line; write each record on its own line "
            f"(jq -c '.[]' {pathlib.Path(path).name} > records.jsonl)"
        )


def _json_problem(head: bytes) -> str:
    """Returns the problem and the remedy if a file is JSON, or "" if it is text. `head` has the first bytes of the file."""
    text = without_bom(head).decode("utf-8", "replace")
    if re.match(r"\s*\[\s*\{\s*\"", text):
        return "is a list of JSON objects, not text; write each object on its own line, then use jsonl: instead of text:"
    if len(head) == SAMPLE_BYTES and "\n" not in text.strip() and re.match(r"\s*\{\s*\"[^\"\\]{1,200}\"\s*:", text):
        return "holds JSON, one object per line, not text; write jsonl: instead of text:"
    lines = text.split("\n") if len(head) < SAMPLE_BYTES else text.split("\n")[:-1]  # the last line of a sample is not whole
    lines = [line for line in lines[:20] if line.strip()]
    records = [record for line in lines if (record := _json_object(line))]
    if not records or len(records) < 0.9 * len(lines):
        return ""
    fields = [name for name, value in records[0].items() if isinstance(value, str)]
    field = next((name for name in columnar.LIKELY if name in fields), fields[0] if fields else "NAME")
    flag = "" if field == "text" else f" --text-field={field}"
    return f"holds JSON, one object per line, not text; write jsonl: instead of text:{flag}"


def _json_object(line: str) -> files.JsonObject:
    try:
        value = files.parse_json(line) if line.lstrip()[:1] == "{" else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_head(path: str, size: int) -> bytes:
    """Returns the first `size` bytes of a file, decompressed."""
    with reading_explained(path), open_packed(path) as file:
        return file.read(size)


def _read(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    item = span.item
    with reading_explained(item.path), pathlib.Path(item.path).open("rb") as raw:
        if item.unit == "parts":
            size = os.fstat(raw.fileno()).st_size
            with open_packed(raw, item.path) as unpacked:
                for number, (place, data) in enumerate(_raw_documents(unpacked, item, 0, math.inf)):
                    if span.start <= number % item.length < span.stop:
                        yield from _document(item, place, data, raw.tell() / size, options, counts)
        else:
            for place, data in _raw_documents(raw, item, span.start, span.stop):
                yield from _document(item, place, data, (place - span.start) / (span.stop - span.start), options, counts)


def _document(
    item: Item, place: int, data: bytes, fraction: float, options: ReadOptions, counts: Counter[str]
) -> Iterator[Document]:
    """Yields the document in `data`, which starts at byte `place`. If the options skip bad records, yields nothing for a bad
    record."""
    if place == 0:
        data = without_bom(data)
    text: str | None = decode(data, options, counts, functools.partial(_bad_bytes, item, place, data))
    if item.kind == "jsonl":
        text = _record_text(item, place, text or "", options, counts)
        if text is not None:
            yield Document(paragraphs(text), False, fraction)
    elif item.layout == "book":
        yield Document(unwrap(text or ""), False, fraction)
    else:
        yield Document((text or "").split("\n"), item.layout == "sentences", fraction)


def _bad_bytes(item: Item, place: int, data: bytes, error: UnicodeDecodeError) -> str:
    where = f"byte {place + error.start:,}" + (" of the unpacked file" if item.unit == "parts" else "")
    return f"{item.path} is not UTF-8 at {where} (0x{data[error.start]:02x}){conversion(b'')}"


def _record_text(item: Item, place: int, line: str, options: ReadOptions, counts: Counter[str]) -> str | None:
    """Returns the text field of a JSON line, or None if the record is skipped."""
    field = options.text_field or "text"
    try:
        record = files.parse_json(line)
        text = record[field]
        if isinstance(text, str):
            return text
        problem = f"the field {field!r} is {json.dumps(text)[:40]}, not a text"
    except ValueError as error:
        problem = f"it is not JSON ({error}): {line[:60]!r}"
    except KeyError:
        problem = f"it has no field {field!r}; {nearest(field, map(str, record))} (--text-field)"
    except TypeError:
        problem = f"it is a JSON {type(record).__name__}, not an object"
    if options.on_bad_records == "skip":
        counts["bad-records"] += 1
        return None
    raise UserError(f"{item.path}: the record at byte {place:,} is bad: {problem}; correct it, or pass --on-bad-records=skip")


def _raw_documents(file: IO[bytes], item: Item, start: int, stop: float) -> Iterator[tuple[int, bytes]]:
    """Yields (position of the first byte, bytes) for every document of a file in the span [start, stop)."""
    if item.kind == "jsonl" or item.layout == "lines":
        return _line_documents(file, item.path, start, stop)
    if item.layout == "book" or not item.blank_lines:
        return _piece_documents(file, item.path, start, stop, at_blank_lines=item.layout == "book" and item.blank_lines)
    return _blank_separated_documents(file, item.path, start, stop)


def _lines(file: IO[bytes], path: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Yields (position of the first byte, line) for every line that begins at `start` or later. The lines include their line
    ends."""
    for place, line in read_lines(file, _MAX_LINE, start):
        if is_cut(line, _MAX_LINE):
            raise UserError(f"{path}: there is no line end within {_MAX_LINE >> 20} MiB after byte {place:,}; give a text file")
        yield place, line


def _line_documents(file: IO[bytes], path: str, start: int, stop: float) -> Iterator[tuple[int, bytes]]:
    for place, line in _lines(file, path, start):
        if place >= stop:
            return
        if not line.isspace():
            yield place, line


def _blank_separated_documents(file: IO[bytes], path: str, start: int, stop: float) -> Iterator[tuple[int, bytes]]:
    """Yields documents that are separated by blank lines. A document belongs to the span in which the blank line before it
    begins. The first document of the file belongs to the first span. A document longer than `_PIECE` is cut at a line end."""
    owned, size = start == 0, 0
    first: int  # the position of held[0]
    held: list[bytes] = []
    for place, line in _lines(file, path, start):
        if line.isspace():
            if held:
                yield first, b"".join(held)
                held, size = [], 0
            if place >= stop:
                return
            owned = True
        elif owned:
            if not held:
                first = place
            held.append(line)
            size += len(line)
            if size > _PIECE:
                yield first, b"".join(held)
                held, size = [], 0
        elif place >= stop:
            return
    if held:
        yield first, b"".join(held)


def _piece_documents(file: IO[bytes], path: str, start: int, stop: float, *, at_blank_lines: bool) -> Iterator[tuple[int, bytes]]:
    """Yields the pieces of a file without document separators. The first piece begins at the start of the file. Every other
    piece begins at the first paragraph (or line) after a multiple of `_PIECE`.

    A piece belongs to the span that contains this multiple of `_PIECE`, so the cuts do not depend on the spans. A paragraph is
    after the multiple if the blank line before the paragraph is after the multiple. The reader of a span starts at the
    multiple, so it sees this blank line."""
    begin, blank = -(-start // _PIECE) * _PIECE, -1
    first: int  # the position of held[0]
    held: list[bytes] = []
    if begin >= stop:
        return
    begun = begin == 0
    due = _PIECE if begun else begin
    for place, line in _lines(file, path, begin):
        if line.isspace():
            blank = place
            held += [line] if held else []
            continue
        mark = blank if at_blank_lines else place
        blank = -1
        if mark >= due:
            if held:
                yield first, b"".join(held)
                held = []
            owner = mark // _PIECE * _PIECE
            if owner >= stop:
                return
            begun, due = True, owner + _PIECE
        if begun:
            if not held:
                first = place
            held.append(line)
    if held:
        yield first, b"".join(held)


TEXT = SourceKind("text:GLOB", _items, _read, uses=("layout",))
JSONL = SourceKind("jsonl:GLOB", _items, _read, uses=("text_field",))
