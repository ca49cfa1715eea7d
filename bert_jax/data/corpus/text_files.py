"""Reads one span of a source, document by document. The longest document determines how much memory is needed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_jax import files
from bert_jax.data.corpus import tables, tfds_text
from bert_jax.data.corpus.parallel import read_pairs
from bert_jax.data.corpus.sentences import is_wrapped, unwrap
from bert_jax.data.corpus.sources import Item, ReadOptions, Span, own_texts
from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import copies_named_in_bucket
from bert_jax.storage.formats import conversion, open_packed, reading_explained
from bert_jax.storage.records import KINDS, is_cut, read_lines, without_bom

_PIECE = 1 << 20  # if a text file has no document separators, it is cut at the first paragraph or line after every MiB
_MAX_LINE = 256 << 20


@dataclasses.dataclass(frozen=True)
class Document:
    """A document before cleaning."""

    lines: list[str]  # paragraphs, or sentences if `is_sentence` is True
    is_sentence: bool
    fraction: float  # the fraction of the span that has been read, including this document
    is_pair: bool = False  # whether the lines are a text and its translation


def read_span(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a span. Adds the numbers of skipped records and replaced byte sequences to `counts`."""
    with copies_named_in_bucket():
        yield from _documents_of(span, options, counts)


def _documents_of(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    if span.item.pairs:
        return _read_pairs(span, options, counts)
    if span.item.kind in KINDS:
        return _read_rows(span, options, counts)
    if span.item.kind == "own":
        return _read_own(span)
    if span.item.unit == "records":
        return _read_records(span, options)
    return _read_file(span, options, counts)


def _read_records(span: Span, options: ReadOptions) -> Iterator[Document]:
    text_set = tfds_text.open_text_set(span.item.path, options.tfds_directory)
    for number, text in enumerate(text_set.texts(span.start, span.stop), start=1):
        yield Document(_paragraphs(text.decode("utf-8", "replace")), False, number / (span.stop - span.start))


def _read_pairs(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    item, length = span.item, span.stop - span.start
    assert item.pairs is not None
    if item.kind == "tfds":
        records = tfds_text.open_text_set(item.path, options.tfds_directory).records(span.start, span.stop)
        for number, record in enumerate(records, start=1):
            texts = [record[name].decode("utf-8", "replace") for name in item.pairs.fields]
            yield Document(texts, True, number / length, is_pair=True)
        return
    replace, skip = options.on_bad_bytes == "replace", options.on_bad_records == "skip"
    found = read_pairs(item.pairs, span.start, span.stop, replace=replace, skip=skip, counts=counts)
    for number, pair in enumerate(found, start=1):
        if pair is not None:
            yield Document([*pair], True, number / length, is_pair=True)


def _read_own(span: Span) -> Iterator[Document]:
    number = -1
    for number, text in enumerate(own_texts(span.item.path)):
        if number >= span.stop:
            return
        if number >= span.start:
            yield Document(_paragraphs(text), False, (number + 1 - span.start) / (span.stop - span.start))
    if number + 1 < span.stop:
        raise UserError(
            f"{span.item.path}: the function first yielded {counted(span.item.length, 'document')}, but then "
            f"{number + 1:,}; it must yield the same documents in the same order every time"
        )


def _read_rows(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a table, one per row."""
    item, length = span.item, span.stop - span.start
    texts = tables.read_texts(item.kind, item.path, item.column, span.start, span.stop)
    for row, data in enumerate(texts, start=span.start):
        if data is None:
            if options.on_bad_records != "skip":
                raise UserError(
                    f"{item.path}: row {row + 1:,} has no text (the column {item.column!r} is null there); fill in a text, "
                    "or pass --on-bad-records=skip"
                )
            counts["bad-records"] += 1
            continue
        text = _decode(item, row, data, options, counts)
        yield Document(_paragraphs(text), False, (row + 1 - span.start) / length)


def _read_file(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
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
    text: str | None = _decode(item, place, data, options, counts)
    if item.kind == "jsonl":
        text = _record_text(item, place, text or "", options, counts)
        if text is not None:
            yield Document(_paragraphs(text), False, fraction)
    elif item.layout == "book":
        yield Document(unwrap(text or ""), False, fraction)
    else:
        yield Document((text or "").split("\n"), item.layout == "sentences", fraction)


def _paragraphs(text: str) -> list[str]:
    """Returns the paragraphs in the text of a record. The lines are the paragraphs, unless the text is wrapped."""
    return unwrap(text) if is_wrapped(text[:4000].split("\n")) else text.split("\n")


def _decode(item: Item, place: int, data: bytes, options: ReadOptions, counts: Counter[str]) -> str:
    """Decodes `data`. `place` is the position in bytes at which `data` starts in the file. For a table, it is the index of the
    row."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if options.on_bad_bytes == "replace":
            text = data.decode("utf-8", "replace")
            counts["replaced-bytes"] += text.count("\ufffd")
            return text
        replace = "or pass --on-bad-bytes=replace to read U+FFFD instead"
        if item.kind in KINDS:
            raise UserError(
                f"{item.path}: row {place + 1:,} of the column {item.column!r} is not UTF-8 (byte {error.start + 1:,} is "
                f"0x{data[error.start]:02x}); write the table again in UTF-8, {replace}"
            ) from error
        where = f"byte {place + error.start:,}" + (" of the unpacked file" if item.unit == "parts" else "")
        raise UserError(
            f"{item.path} is not UTF-8 at {where} (0x{data[error.start]:02x}){conversion(b'')}, {replace}"
        ) from error


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
