"""Finds files with parallel text, i.e. pairs of a text and its translation, and reads the pairs by index.

    parallel:GLOB.en:GLOB.de       two files with equally many lines: line n of the second translates line n of the first
    parallel:GLOB.tsv              columns separated by tabs; --pair-fields=1,2 are the text and its translation
    parallel:GLOB.jsonl            one JSON object per line, with two fields of text, or with an object of them ("translation")
    tfds:wmt14_translate/de-en     a data set of TensorFlow Datasets whose features are translations

The first side is translated into the second side. Only LF ends a line, so a text may contain other line separators. All files
may be compressed. The lines are counted first, so a missing line is found before the corpus is built."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bert_jax import files
from bert_jax.data.corpus.cleaning import without_controls
from bert_jax.data.corpus.sources import (
    Document,
    Item,
    ReadOptions,
    Say,
    Source,
    SourceKind,
    Span,
    decode,
    parts_of,
    source_files,
)
from bert_jax.data.corpus.store import UNNAMED
from bert_jax.data.corpus.text_files import HEAD_BYTES, read_head, require_text
from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import copies_named_in_bucket
from bert_jax.storage.formats import bare_name, conversion, open_packed, reading_explained
from bert_jax.storage.records import without_bom

NESTED = "translation"
"""The field of a JSON record that may hold the object with the two texts, as in the data sets of the Hugging Face hub."""
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class PairRules:
    """The limits of pairs, in tokens of the corpus's vocabulary."""

    max_length_ratio: float = 9.0
    """A pair is dropped if one side has more than this many times the tokens of the other side."""
    max_pair_tokens: int = 250
    """A pair is dropped if one side has more than this many tokens."""


@dataclasses.dataclass(frozen=True)
class PairFile:
    """A file of pairs, or two files with one side each."""

    kind: str
    """"lines" | "tsv" | "jsonl" | "tfds" (a data set, which has no paths)."""
    paths: tuple[str, ...]
    fields: Pair
    """The columns (numbered from 1), JSON fields or features with the two texts. For files of lines, the languages."""
    languages: Pair

    def __str__(self) -> str:
        return self.paths[1] if len(self.paths) == 2 else ",".join(self.fields)


def parse_sides(name: str, flag: str = "--source") -> list[str]:
    """Returns the one or two patterns in the name of a source `parallel:NAME`. Raises UserError if there are more than two
    patterns, or if a pattern is empty."""
    sides = re.split(r":(?!//)", name)
    if len(sides) > 2 or not all(sides):
        raise UserError(
            f"{flag}=parallel:{name} needs one or two patterns; write parallel:GLOB.en:GLOB.de for files of lines, or "
            "parallel:GLOB.tsv or parallel:GLOB.jsonl for files with both texts"
        )
    return sides


def find_pairs(given: str, paths: Sequence[Sequence[str]], pair_fields: str | None) -> list[tuple[PairFile, int, int]]:
    """Returns (file, number of pairs, bytes) for every file of pairs in `paths`. `paths` has one list of files for each of the
    one or two patterns of the source. `given` is the flag with the source, for messages. `pair_fields` is not used for two
    patterns, since each file has one side.

    Raises UserError if the two sides have different numbers of files or lines, or if a side has no text."""
    if len(paths) == 1:
        return [_both_in_one(given, path, pair_fields) for path in paths[0]]
    sources, targets = paths
    if len(sources) != len(targets):
        raise UserError(
            f"{given}: the first pattern matches {counted(len(sources), 'file')}, the second {len(targets)}; give exactly one "
            f"file of translations for each file of texts (the first two files are {sources[0]} and {targets[0]})"
        )
    found = []
    for source, target in zip(sources, targets, strict=True):
        if pathlib.Path(source).resolve() == pathlib.Path(target).resolve():
            raise UserError(f"{given}: both sides are the same file {source}; name the file with the translations second")
        lines, texts, size = zip(*(_survey(path) for path in (source, target)), strict=True)
        if lines[0] != lines[1]:
            longer, shorter = (source, target) if lines[0] > lines[1] else (target, source)
            first = min(lines)
            raise UserError(
                f"{given}: {source} has {counted(lines[0], 'line')}, but {target} has {lines[1]:,}; line {first + 1:,} of "
                f"{longer} ({_line(longer, first)}) is the first line without a partner in {shorter}. Line N of one file must "
                "translate line N of the other file"
            )
        for path, count in zip((source, target), texts, strict=True):
            if not count:
                raise UserError(
                    f"{given}: {path} has {counted(lines[0], 'line')} without any text, so this language is empty; give a "
                    "file with text"
                )
        languages = _languages(source, target)
        found.append((PairFile("lines", (source, target), languages, languages), lines[0], sum(size)))
    return found


def _items(source: Source, options: ReadOptions, say: Say) -> list[Item]:
    sides = [Source(source.kind, side, source.flag) for side in parse_sides(source.name, source.flag)]
    paths = [source_files(side) for side in sides]
    for side, found in zip(sides, paths, strict=True):
        for path in found:
            require_text(side, path, read_head(path, HEAD_BYTES))
    return [
        Item("parallel", file.paths[0], "records", count, max(1.0, size), cuts=parts_of(count), pairs=file)
        for file, count, size in find_pairs(f"{source.flag}={source}", paths, options.pair_fields)
        if count
    ]


@copies_named_in_bucket()
def source_languages(items: Sequence[Item]) -> tuple[str, str] | None:
    """Returns the languages of a corpus of pairs, the source language first. Returns None for a corpus of documents.

    Raises UserError if two files have pairs in different directions, or if some items have pairs and others have documents."""
    pairs = [(item.path, item.pairs.languages) for item in items if item.pairs]
    if pairs and len(pairs) < len(items):
        other = next(item.path for item in items if not item.pairs)
        raise UserError(
            f"{pairs[0][0]} holds pairs of a text and its translation, but {other} holds documents; build one corpus for each"
        )
    return one_direction(pairs)


def one_direction(given: Sequence[tuple[str, Pair]]) -> Pair | None:
    """Returns the languages of a corpus, given (name, languages) for each of its files. Returns None if there are no files of
    pairs. Raises UserError if two files have different directions."""
    named = [(source, languages) for source, languages in given if languages != UNNAMED]
    for source, languages in named:
        if languages != named[0][1]:
            raise UserError(
                f"{source} is {' to '.join(languages)}, but {named[0][0]} is {' to '.join(named[0][1])}; build one corpus "
                "for each direction"
            )
    return named[0][1] if named else UNNAMED if given else None


def _languages(source: str, target: str) -> Pair:
    """Returns the languages that are in the names of two files, such as "train.en.gz" and "train.de.gz". Returns UNNAMED if the
    names have no languages."""
    first, second = (pathlib.PurePath(bare_name(path)).suffix[1:] for path in (source, target))
    named = first != second and all(re.fullmatch(r"[A-Za-z][\w-]{1,9}", name) for name in (first, second))
    return (first, second) if named and not {first, second} & {"txt", "text"} else UNNAMED


def _both_in_one(given: str, path: str, pair_fields: str | None) -> tuple[PairFile, int, int]:
    suffix = pathlib.PurePath(bare_name(path)).suffix
    if suffix not in (".tsv", ".jsonl"):
        raise UserError(
            f"{given}: {path} is not a file of pairs: its name must end in .tsv (columns separated by tabs) or .jsonl "
            "(JSON lines); rename it, or give the files of both languages: parallel:GLOB.en:GLOB.de"
        )
    lines, texts, size = _survey(path)
    if suffix == ".tsv":
        fields = _two(pair_fields or "1,2")
        if not all(re.fullmatch(r"[1-9]\d{0,3}", field) for field in fields):
            raise UserError(f"--pair-fields={pair_fields}: columns are numbered from 1, as in --pair-fields=1,2")
        _check_first_rows(given, path, fields)
        return PairFile("tsv", (path,), fields, UNNAMED), lines, size
    fields = _two(pair_fields) if pair_fields else _text_fields(given, path) if texts else UNNAMED
    return PairFile("jsonl", (path,), fields, fields), lines, size


def _check_first_rows(given: str, path: str, fields: Pair) -> None:
    """Raises UserError if the first row of a table has column names, or if both texts are in double quotes in all of the first
    rows. A table of pairs must have neither column names nor quotes."""
    quoted = total = 0
    for line in itertools.islice((line for line in _lines(path) if not line.isspace()), _FIRST_ROWS):
        cells = without_bom(line).decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if len(cells) < max(map(int, fields)):
            return  # a row with too few columns is reported when it is read
        pair = [cells[int(field) - 1].strip() for field in fields]
        names = {text.strip('"').casefold() for text in pair}
        if not total and len(names) == 2 and names <= _HEADER:  # two equal words, such as Text and Text, are not column names
            raise UserError(
                f"{given}: the first row of {path} has column names ({', '.join(pair)}), which would be read as a pair; remove "
                "this row (tail -n +2)"
            )
        total += 1
        quoted += all(len(text) > 1 and text[0] == text[-1] == '"' for text in pair)
    if total == quoted == _FIRST_ROWS:
        raise UserError(
            f"{given}: the texts of {path} are in double quotes, and the quotes would become part of the texts; write the "
            "table without quotes, or as JSON lines"
        )


_FIRST_ROWS = 10
_HEADER = frozenset({
    "source", "target", "src", "tgt", "trg", "src_text", "tgt_text", "source_text", "target_text", "text", "translation",
    "original", "sentence", "sentence1", "sentence2", "sentence_1", "sentence_2", "input", "output", "reference", "english",
    "german", "french", "spanish", "italian", "portuguese", "dutch", "polish", "russian", "czech", "turkish", "arabic", "hindi",
    "chinese", "japanese", "korean", "ukrainian", "romanian", "hungarian", "greek", "swedish", "danish", "finnish", "norwegian",
    "hebrew", "en", "de", "fr", "es", "it", "pt", "nl", "pl", "ru", "cs", "tr", "ar", "hi", "zh", "ja", "ko", "uk", "ro", "hu",
    "el", "sv", "da", "fi", "no", "he", "vi", "id", "fa", "bn", "ta", "ur", "th", "bg", "hr", "sk", "sl", "et", "lv", "lt",
})  # fmt: skip
"""The usual column names in tables of pairs: roles, languages and language codes."""


def _two(pair_fields: str) -> Pair:
    first, comma, second = pair_fields.partition(",")
    if not comma or not first or not second or first == second:
        raise UserError(
            f"--pair-fields={pair_fields} must name two fields, the text and its translation: en,de, or 1,2 for columns"
        )
    return first, second


def _text_fields(given: str, path: str) -> Pair:
    """Returns the names of the two text fields in the first record."""
    try:
        first = next(line for line in _lines(path) if not line.isspace())
        record = _record(without_bom(first).decode("utf-8", "replace"))
    except _BadPair as error:
        raise UserError(
            f"{given}: the first record of {path} {error}; correct it, or name the fields with "
            "--pair-fields=SOURCE,TARGET"
        ) from None
    texts = [name for name, value in record.items() if isinstance(value, str)]
    if len(texts) != 2:
        named = ", ".join(texts) or "none"
        raise UserError(
            f"{given}: the first record of {path} has {counted(len(texts), 'field')} with text ({named}); choose two fields "
            "with --pair-fields=SOURCE,TARGET"
        )
    return texts[0], texts[1]


def _record(line: str) -> files.JsonObject:
    """Returns the JSON object with the two texts of a line. This is the record itself or the object in its field
    "translation"."""
    try:
        record = files.parse_json(line)
    except ValueError as error:
        raise _BadPair(f"is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise _BadPair(f"is a JSON {type(record).__name__}, not an object")
    nested = record.get(NESTED)
    return nested if isinstance(nested, dict) else record


class _BadPair(ValueError):
    """Raised if a line is not a valid pair. The message to the user has the file and the line, followed by the text of this
    error."""


def _lines(path: str) -> Iterator[bytes]:
    with reading_explained(path), open_packed(path) as file:
        yield from file


def _survey(path: str) -> tuple[int, int, int]:
    """Returns (number of lines, number of lines with text, size in bytes) of a file."""
    lines = texts = size = 0
    for line in _lines(path):
        lines += 1
        texts += not line.isspace()
        size += len(line)
    return lines, texts, size


def _line(path: str, number: int) -> str:
    line = next(itertools.islice(_lines(path), number, None)).decode("utf-8", "replace").strip()
    return json.dumps(line if len(line) <= 60 else f"{line[:57]}...", ensure_ascii=False)


def _read(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    assert span.item.pairs is not None
    pairs = read_pairs(span.item.pairs, span.start, span.stop, options, counts)
    for number, pair in enumerate(pairs, start=1):
        if pair is not None:
            yield Document([*pair], True, number / (span.stop - span.start), is_pair=True)


def read_pairs(file: PairFile, start: int, stop: int, options: ReadOptions, counts: Counter[str]) -> Iterator[Pair | None]:
    """Yields the pairs [start, stop) of a file. Yields None for a blank line in a table or in JSON lines, and for a bad pair
    that is skipped. Adds the numbers of skipped pairs and replaced bytes to `counts`."""

    def decoded(path: str, number: int, line: bytes) -> str:
        line = without_bom(line) if number == 0 else line

        def problem(error: UnicodeDecodeError) -> str:
            return f"{path} is not UTF-8 in line {number + 1:,} (0x{line[error.start]:02x}){conversion(b'')}"

        return decode(line, options, counts, problem).rstrip("\r\n")

    split: Callable[[str], Pair] = (_split_tsv if file.kind == "tsv" else _split_json)(file.fields)
    rows = itertools.islice(zip(*map(_lines, file.paths), strict=True), start, stop)
    for number, row in enumerate(rows, start=start):
        texts = [decoded(path, number, line) for path, line in zip(file.paths, row, strict=True)]
        if file.kind == "lines":
            yield texts[0], texts[1]
            continue
        if not texts[0].strip():  # a blank line between records, or at the end
            yield None
            continue
        try:
            yield split(texts[0])
        except _BadPair as error:
            if options.on_bad_records != "skip":
                raise UserError(
                    f"{file.paths[0]}: line {number + 1:,} {error}; correct it, or pass --on-bad-records=skip"
                ) from None
            counts["bad-records"] += 1
            yield None


def _split_tsv(fields: Pair) -> Callable[[str], Pair]:
    numbers = [int(field) - 1 for field in fields]

    def split(line: str) -> Pair:
        cells = line.split("\t")
        if len(cells) <= max(numbers):
            needed = f"but --pair-fields={','.join(fields)} needs {counted(max(numbers) + 1, 'column')}"
            raise _BadPair(f"has {counted(len(cells), 'column')}, {needed}")
        return cells[numbers[0]], cells[numbers[1]]

    return split


def _split_json(fields: Pair) -> Callable[[str], Pair]:
    def split(line: str) -> Pair:
        record = _record(line)
        texts = []
        for field in fields:
            if field not in record:
                raise _BadPair(f"has no field {field!r}; {nearest(field, map(str, record))} (--pair-fields)")
            if not isinstance(record[field], str):
                raise _BadPair(f"has {json.dumps(record[field])[:40]} instead of a text in the field {field!r}")
            texts.append(record[field])
        return texts[0], texts[1]

    return split


def clean_pair(pair: Sequence[str], counts: Counter[str]) -> list[str]:
    """Returns the two texts, each on one line without control characters. If a text is empty, returns [] and counts the
    pair."""
    texts = [" ".join(without_controls(text, counts).split()) for text in pair]
    if all(texts):
        return texts
    counts["empty-sides"] += 1
    return []


PARALLEL = SourceKind("parallel:GLOB.en:GLOB.de", _items, _read)
