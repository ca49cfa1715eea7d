"""Converts the lines of an input to records with the named fields of a question.

A record is a line of text whose fields are separated by TABs, a JSON object whose keys are the field names, or a row of a table
(CSV, TSV, Parquet, Arrow) whose columns have these names. Spaces at the ends of a text are part of it. Blank lines are skipped
unless the caller needs a record for every line. A line that cannot be read becomes a record with a problem, and reading
continues with the next line."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, TypeAlias, TypeVar

from bert_jax.errors import UserError, nearest, repeated
from bert_jax.files import JsonObject, parse_json
from bert_jax.interface.words import counted, cut
from bert_jax.storage.formats import HEAD_BYTES, conversion, recognise, unicode_encoding
from bert_jax.storage.records import (
    KINDS,
    Line,
    first_bytes,
    has_spaces,
    is_cut,
    is_utf8,
    open_columns,
    read_lines,
    table_rows,
    without_bom,
)
from bert_jax.tasks.readers.conll import begins_document
from bert_jax.tasks.readers.own_rows import (
    CHOICES_OBJECT,
    COLUMNS_REMEDY,
    MARKDOWN_LINE,
    SENTENCE,
    as_choices,
    holds_columns,
    is_markdown_line,
    is_quoted,
    plain,
    several_questions,
    short,
    split_words,
    without_blank_end,
    written_list,
    written_object,
)
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.readers.tables import note

MOST_BYTES = 64 << 20
"""The maximum length of a line. A longer line becomes a record with a problem, so that a file without line ends does not fill
the memory."""
DELIMITERS = ",;\t|"
"""The delimiters of tables, in the order in which they are tried."""
UNQUOTED = "\t|"
"""The delimiters of tables without quotes."""
_WORD_LINES = 1 << 12
"""The number of bytes in which `FileReader` looks for lines of words."""
_LONGEST_WORD = 40
"""The maximum number of characters of a line that may be a word."""
_SENTENCE_MARKS = tuple(".!?。！？")
TAB_TABLES = (".tsv", ".tab")
JSON_LINES = (".jsonl", ".ndjson")
_NAME = re.compile(r"[\w.-]+|\"[^\"]+\"")
"""A cell in the header of a table whose suffix is that of a text: one word, or a quoted name."""
USUAL_COLUMNS = frozenset({
    "id", "idx", "index", "text", "text_a", "text_b", "sentence", "sentence1", "sentence2", "question", "question1",
    "question2", "premise", "hypothesis", "context", "answer", "label", "labels", "score", "target", "words", "tags", "review",
    "title",
})  # fmt: skip
"""If all cells of the first line are among these words, the first line is the header of a table, as in GLUE."""

Place = TypeVar("Place", int, str)
"""The index of a column, or a key of a JSON object."""
Lines: TypeAlias = Iterator[tuple[int, bytes]]
"""(line number, line) of the lines of a file. Line numbers start at 1."""


@dataclass(frozen=True)
class Field:
    """A field of a record. The texts of a line are assigned to the fields in order. A field with `many` gets all remaining
    texts."""

    name: str
    many: bool = False  # whether the value is a list of texts
    optional: bool = False  # whether the value may be missing, which makes it None
    number: bool = False  # whether the value is a character offset, which only JSON objects and tables can hold
    words: bool = False  # with `many`: whether spaces separate the texts of a line without TABs
    hint: str = ""  # the end of the error message if the field is missing
    sentence: bool = False  # whether every word has its own answer, so that a file must not have a word on each line
    whole: bool = False  # whether the only field is the whole line, even white space; an empty line is a blank record


@dataclass(frozen=True)
class Record:
    """One line of the input. If the line cannot be read, `problem` explains why."""

    number: int  # the index of the line, row or argument, counted from 1
    place: str  # the prefix of messages, e.g. "FILE, line 3: "; "" for a single argument
    values: JsonObject = field(default_factory=dict)  # field name -> value
    rest: JsonObject = field(default_factory=dict)  # the other fields of a JSON object, or the other columns of a table
    problem: str | None = None
    blank: bool = False  # whether the line is blank
    size: int = 0  # the bytes of the line
    divided: bool = False  # whether the fields were assigned by their order in a line of text, not by their names


@dataclass(frozen=True)
class FileReader:
    """Reads the records of a file. The name and the first line of the file determine its format."""

    name: str  # the name in messages
    fields: Sequence[Field]
    jsonl: bool = False  # whether every line is a JSON object
    blank_lines: bool = False  # whether a blank line is a record too
    # the suffix of the file, to detect its format; "" for standard input; None: plain lines
    suffix: str | None = None
    # field -> the column or columns of a table that hold it, if their names differ; (): the field is never read
    columns: Mapping[str, Sequence[str] | str] = field(default_factory=dict)
    # the delimiter, quotes, separator and column `sentence` with which the model's tables were read, if not the defaults
    table: Mapping[str, Any] = field(default_factory=dict)
    path: pathlib.Path | None = None  # the path of a regular file, for formats that are not read line by line

    def read(self, file: IO[bytes]) -> Iterator[Record]:
        """Yields the records of the open file. Raises UserError if the content has another format. Errors of reading the file
        are raised unchanged."""
        head = first_bytes(file)
        width = self._word_columns(file) if self.suffix is not None and self.fields[0].sentence else 0
        if width:
            several = f" in {counted(width, 'column')}" if width > 1 else ""
            take = "take the column of the words (such as cut -f1), " if width > 1 else ""
            raise UserError(
                f"{self.name} has a word on each line{several} and empty lines between sentences, but a sentence is expected on "
                f"each line; {take}write each sentence on a line (awk -v RS= '{{$1=$1}}1'), and give --words; if each line is a "
                "sentence, remove the empty lines"
            )
        lines: Lines = enumerate(_separate(line for _, line in read_lines(file, MOST_BYTES)), 1)
        begun: list[tuple[int, bytes]] = []
        for line in lines:
            begun.append(line)
            if not without_bom(line[1]).isspace():
                break
        first = begun[-1][1] if begun else b""
        found = recognise((head or first)[:HEAD_BYTES], self.name)
        kind = "parquet" if first.startswith(b"PAR1") else found.kind if found else ""
        if kind in KINDS and self.suffix is not None and not self.jsonl:
            yield from self._columnar(kind)
            return
        if found:
            raise UserError(f"{self.name} {found.what}, not text; {found.remedy}")
        if unicode_encoding(head or first):
            raise UserError(f"{self.name} is not UTF-8{conversion(head or first)}")
        lines = itertools.chain(begun, lines)
        text = without_bom(first).strip()
        is_json = text.startswith((b"{", b"["))
        if self.suffix is not None and text.startswith(b"__label__"):
            raise UserError(
                f"{self.name} is in fastText's format; leave out its labels, which the model must not read (sed -E "
                "'s/^(__label__[^[:space:]]+[[:space:]]+)+//')"
            )
        if self.suffix == ".ann":
            raise UserError(f"{self.name} holds annotations by their characters, as written by brat; give the file of the text")
        if self.suffix is not None and re.match(rb'<doc id="', text):
            raise UserError(
                f"{self.name} is written by WikiExtractor, with its tags; give the texts as JSON lines (wikiextractor --json)"
            )
        if self.suffix in JSON_LINES and text in (b"{", b"["):
            raise UserError(
                f"{self.name} has objects on several lines; write each on a line of its own (jq -c . {cut(self.name, 100)} > "
                "lines.jsonl; .[] for the items of a list)"
            )
        if self.suffix is None or (self.jsonl and not (self.suffix in JSON_LINES and is_json)):
            yield from self._lines(lines)
        elif self.jsonl or self.suffix == ".json" or text.startswith(b"{") or re.match(rb'\[\s*($|[\[{"])', text):
            yield from self._json(lines)
        elif self.suffix == ".csv" or self._names_columns(text.decode("utf-8", "replace")):
            yield from self._table(lines)
        else:
            yield from self._lines(lines)

    def _word_columns(self, file: IO[bytes]) -> int:
        """Returns the number of columns if the first lines of a file have a word each, with empty lines between sentences, as in
        a CoNLL file without tags. Returns 0 for other files. If the only column is mostly long, or ends with a sentence mark,
        lines are sentences without spaces, as in Chinese or Thai. Several columns may also be sentences with equally many words,
        so one column must have tags or numbers (`_has_annotation`). If the field is a text, TABs between all columns suffice. If
        it is a list of words, they do not, since they may separate the words of a sentence."""
        head: bytes = file.peek(_WORD_LINES)[:_WORD_LINES] if hasattr(file, "peek") else b""
        lines = [line.strip() for line in head.decode("utf-8", "ignore").strip().split("\n")]
        rows = [line.split() for line in lines]
        if max(map(len, rows)) > 1:
            if len(head) == _WORD_LINES:  # the last line may be incomplete
                del rows[-1], lines[-1]
            kept = [i for i, line in enumerate(lines) if not (line.startswith("# ") or begins_document(line))]
            lines, rows = [lines[i] for i in kept], [rows[i] for i in kept]
        counts = [len(row) for row in rows]
        width = max(counts, default=0)
        if {*counts} != {0, width} or (width, width) not in itertools.pairwise(counts):
            return 0
        if width == 1:
            short_lines = sum(0 < len(line) <= _LONGEST_WORD and not line.endswith(_SENTENCE_MARKS) for line in lines)
            return int(2 * short_lines > sum(counts))
        has_tabs = not self.fields[0].words and all(line.count("\t") == width - 1 for line in filter(None, lines))
        is_other = lines[0].startswith(("{", "[")) or self._found_columns(_cells(lines[0], "\t"))[1] is None
        return width if (has_tabs or _has_annotation(rows)) and not is_other else 0

    # Lines of text or of JSON

    def _lines(self, lines: Lines) -> Iterator[Record]:
        first = self.fields[0]
        only = len(self.fields) == 1 and not (self.jsonl or first.many or first.number)
        for number, line in lines:
            place = f"{self.name}, line {number}: "
            text, problem = _decoded(line)
            text = text.removesuffix("\n").removesuffix("\r")
            if problem:
                yield Record(number, place, problem=problem, size=len(line))
            elif first.whole:
                at = Record(number, place, size=len(line))
                yield replace(at, values={first.name: text}) if text else replace(at, blank=True)
            elif only and text and not text.isspace():  # like `_text_record`, but four times as fast: 8 us per line
                if self.suffix in TAB_TABLES and (tabs := text.count("\t")):
                    problem = (
                        f"{tabs + 1} texts between TABs, but only 1 field: {first.name}; name the columns in the first line"
                    )
                yield Record(number, place, {first.name: text}, problem=problem, size=len(line), divided=True)
            elif text and not text.isspace():
                record = self._json_line(number, place, text) if self.jsonl else _text_record(number, place, text, self.fields)
                yield replace(record, size=len(line), divided=not self.jsonl)
            elif self.blank_lines:
                yield Record(number, place, blank=True, size=len(line))

    def _json_line(self, number: int, place: str, text: str) -> Record:
        try:
            given = parse_json(text, strict=True)
        except ValueError as error:
            comma = "; remove the comma at its end" if text.rstrip().endswith(",") else ""
            return Record(number, place, problem=f"not JSON ({error}): {text[:60].strip()!r}{comma}")
        return self._object(number, place, given)

    def _json(self, lines: Lines) -> Iterator[Record]:
        """Yields the records of JSON objects. The file has one object per line, or one list of objects. Text that starts like
        JSON but is not JSON is read as lines."""
        begun: list[tuple[int, bytes]] = []
        first = b""
        for number, first in lines:
            begun.append((number, first))
            if not without_bom(first).isspace():
                break
        if not without_bom(first).strip():
            wanted = self.fields[0].name
            raise UserError(f"{self.name} is empty; give a list of objects with {wanted!r}, or such an object per line")
        too_large = is_cut(first, MOST_BYTES)  # a line that is too large is only read in part
        with contextlib.suppress(ValueError):
            if not too_large and isinstance(value := parse_json(without_bom(first).decode("utf-8")), dict):
                rest = next(lines, None)
                if rest or not (self.suffix == ".json" or "data" in value):
                    yield from replace(self, jsonl=True)._lines(itertools.chain(begun, [rest] if rest else [], lines))
                    return
        size = len(first)
        while not too_large and (line := next(lines, None)):
            begun.append(line)
            size += len(line[1])
            too_large = size > MOST_BYTES
        try:
            if too_large:
                raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
            content = parse_json(without_bom(b"".join(line for _, line in begun)).decode("utf-8"), strict=True)
        except ValueError as error:
            if self.suffix == ".json":
                raise UserError(
                    f"{self.name} cannot be read as JSON ({error}); give JSON lines, one object per line, in a .jsonl file"
                ) from error
            lists = [line for _, line in begun if not without_bom(line).isspace()][:2]
            is_jsonl = len(lists) == 2 and all(_is_list(line) for line in lists)
            yield from replace(self, jsonl=self.jsonl or is_jsonl)._lines(itertools.chain(begun, lines))
            return
        if (
            isinstance(content, dict)
            and "data" in content
            and {"question", "context"} <= {f.name for f in self.fields}
            and self.path
        ):
            for i, example in enumerate(read_squad(self.path, say=lambda message: None), 1):
                asked = {"question": example.question, "context": example.context}
                yield _record(i, f"{self.name}, question {i}: ", asked, self.fields, {"id": example.id})
            return
        if isinstance(content, dict) and not self._found(lambda key: key if key in content else None)[1]:
            content = [content]
        if not isinstance(content, list):
            kind = f"one object, with {', '.join([*content][:5])}" if isinstance(content, dict) else "no list"
            raise UserError(
                f"{self.name} holds {kind}; give a list of objects with {self.fields[0].name!r}, or such an object per line"
            )
        required = [f.name for f in self.fields if not f.optional]
        for i, item in enumerate(content, 1):
            place = f"{self.name}, item {i}: "
            if isinstance(item, str) and len(required) == 1 and not self.fields[0].many:
                yield _record(i, place, {required[0]: item}, self.fields)
            else:
                yield self._object(i, place, item)

    def _object(self, number: int, place: str, given: Any) -> Record:
        """Returns the record of a JSON object, whose keys are named like the columns of a table."""
        first = self.fields[0]
        if first.words and isinstance(given, list):
            return _record(number, place, {first.name: given}, self.fields)
        if not isinstance(given, dict):
            hint = first.hint if isinstance(given, list) else ""
            return Record(number, place, problem=f"a JSON {type(given).__name__}, not an object with {first.name!r}{hint}")
        if {"qas", "header"} & given.keys() and first.name == "question" and first.name not in given:
            raise UserError(f"{place}{several_questions(first.name, self.name)}")
        found, missing = self._found(lambda key: key if key in given else None)
        used = {key for keys in found.values() for key in keys}
        rest = {key: value for key, value in given.items() if key not in used}
        if missing:
            known = f"; {nearest(missing, given)}" if given else ""
            return Record(number, place, rest=rest, problem=f"no field {missing!r}{known}{first.hint}")
        return _record(number, place, _values(found, given), self.fields, rest)

    # Tables

    def _table(self, lines: Lines) -> Iterator[Record]:
        """Yields the rows of a table whose first line is the header. Raises UserError if a required field has no column."""

        def text() -> Iterator[Line]:
            for number, line in lines:
                decoded, problem = _decoded(line)
                yield Line(number, decoded or ("?" if problem else "\n"), len(line), problem)

        rest = text()
        header = next((line for line in rest if not line.text.isspace()), None)
        if header is None:
            raise UserError(f"{self.name} is empty; give a table whose first line names the column {self.fields[0].name!r}")
        if re.fullmatch(r"sep=.\s*", header.text):  # Excel writes this line before the header
            header = next(rest, Line(header.number, ""))
        if header.problem:
            raise UserError(f"{self.name}, line {header.number}: {header.problem}")
        by_delimiter = {delimiter: _cells(header.text, delimiter) for delimiter in self._delimiters}
        delimiter = next((d for d in by_delimiter if self._found_columns(by_delimiter[d])[1] is None), None)
        if delimiter is None:
            _, missing = self._found_columns(max(by_delimiter.values(), key=len))
            raise UserError(
                f"{self.name} is read as a table, but its first line has no column {missing!r} (it is "
                f"{header.text.strip()[:60]!r}); name the column {missing}, or give the texts as JSON lines, or one per line in "
                f"a .txt file{self.fields[0].hint}"
            )
        names = by_delimiter[delimiter]
        sentence = next((name for name in (self.table.get("sentence"), SENTENCE) if name in names), None)
        if sentence and any(f.words for f in self.fields):
            raise UserError(
                f"{self.name} has one word per row, with the number of its sentence in the column {sentence!r}; give one "
                'sentence per row, or JSON lines with "words"'
            )
        columns, _ = self._found_columns(names)
        used = {i for some in columns.values() for i in some}
        quoted = self.table.get("quotes")
        if quoted is None:  # as in training, but other tables than .tsv and .psv may have quotes
            bare = delimiter in UNQUOTED and self.suffix != ".csv"
            quoted = not bare or all(map(is_quoted, header.text.strip("\r\n").split(delimiter)))
        spaced = has_spaces(header.text, delimiter)
        rows = table_rows(self.name, rest, delimiter, quotes=quoted, spaced=spaced, keep_going=True)
        for where, row, size, problem in rows:
            first, place = where.line, f"{where}: "
            if not problem and not any(cell.strip() for cell in row):
                if self.blank_lines:
                    yield Record(first, place, blank=True, size=size)
                continue
            if [cell.strip() for cell in row] == names:
                problem = "the row repeats the names of the columns, as if files had been joined; remove it"
            elif is_markdown_line(row):
                problem = f"{MARKDOWN_LINE}; remove it"
            elif not problem and len(row) != len(names):
                problem = f"{counted(len(row), 'column')}, but the first line names {len(names)}: {', '.join(names)}"
            doubled = [] if quoted or problem else [row[i] for i in used if is_quoted(row[i]) and '""' in row[i][1:-1]]
            if doubled:
                signs = "TABs" if delimiter == "\t" else repr(delimiter)
                remedy = "remove them or name it .csv"
                problem = f"{cut(doubled[0])} is in double quotes, but fields between {signs} have none; {remedy}"
            if problem:
                yield Record(first, place, problem=problem, size=size)
                continue
            given: JsonObject = {
                f.name: _cell_value(f, [row[i] for i in columns[f.name]], self.table.get("separator"))
                for f in self.fields
                if f.name in columns
            }
            others = {column: cell for i, (column, cell) in enumerate(zip(names, row, strict=True)) if i not in used}
            yield replace(_record(first, place, given, self.fields, others), size=size)

    def _columnar(self, kind: str) -> Iterator[Record]:
        """Yields the rows of a Parquet or Arrow file. Raises UserError if the file is damaged or a required field has no
        column."""
        if self.path is None:
            a = "an Arrow" if kind == "arrow" else "a Parquet"
            raise UserError(f"{self.name} is {a} file, which cannot be read from a pipe; name the file with --input=FILE")
        import pyarrow

        try:
            with open_columns(kind, self.path) as file:
                names = file.schema.names
                if twice := repeated(names):
                    raise UserError(f"{self.name}: two columns are named {twice[0]!r}; give each a different name")
                columns, missing = self._found_columns(names)
                if missing:
                    shown = ", ".join(names[:8])
                    raise UserError(
                        f"{self.name} has no column {missing!r}; known: {shown}; rename the column, or give JSON lines"
                        f"{self.fields[0].hint}"
                    )
                used = {i for some in columns.values() for i in some}
                rows = (plain(row) for batch in file.batches(names) for row in batch.to_pylist())
                for number, row in enumerate(rows, 1):
                    values = list(row.items())
                    given = _values(columns, [value for _, value in values])
                    others = {column: value for i, (column, value) in enumerate(values) if i not in used and _is_json(value)}
                    yield _record(number, f"{self.name}, row {number}: ", given, self.fields, others)
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            shown = str(error).splitlines()[0]
            raise UserError(f"{self.name} cannot be read as {KINDS[kind]} ({shown}); copy or make it again") from error

    @property
    def _delimiters(self) -> Sequence[str]:
        """The possible delimiters of a table, in the order in which they are tried."""
        usual = "\t" if self.suffix in TAB_TABLES else DELIMITERS
        return [*dict.fromkeys([*self.table.get("delimiter", ""), *usual])]

    def _names_columns(self, line: str) -> bool:
        """Returns whether a first line is the header of a table. A header has only usual names, or names all required fields. If
        only one of its names is a field or a usual name, and the file is not known as a table, its other cells must also look
        like names, since a text may start with "Text, ...". If they do not, a note tells that the line is read as a text."""
        perhaps = False
        for delimiter in self._delimiters:
            names = _cells(line, delimiter)
            if len(names) == 1 and self.suffix not in TAB_TABLES:
                continue
            usual = sum(name.casefold() in USUAL_COLUMNS for name in names)
            if usual == len(names) > 1:
                return True
            found, missing = self._found_columns(names)
            known = self.suffix in (*TAB_TABLES, ".psv") or delimiter in ("\t", self.table.get("delimiter"))
            several = len(found) > 1 or usual > 1
            if missing is None and (known or several or all(map(_NAME.fullmatch, line.strip().split(delimiter)))):
                return True
            perhaps = perhaps or missing is None
        if perhaps:
            note(f"{self.name}: the first line is read as a text; if it names columns, give a .csv or .tsv file")
        return False

    def _found_columns(self, names: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], str | None]:
        """Returns `_found` for a table with the columns `names`. A place is an index. Case is ignored if no column has exactly
        the wanted name. Raises UserError if two columns have it."""

        def find(name: str) -> int | None:
            exact = [i for i, other in enumerate(names) if other == name]
            found = exact or [i for i, other in enumerate(names) if other.casefold() == name.casefold()]
            if len(found) > 1:
                raise UserError(f"{self.name}: two columns are named {names[found[0]]!r}; give each a different name")
            return found[0] if found else None

        return self._found(find)

    def _found(self, find: Callable[[str], Place | None]) -> tuple[dict[str, tuple[Place, ...]], str | None]:
        """Returns (field -> the places of its columns, the name of the first column that a required field lacks, or None).
        `find` returns the place of the column or key with a name, or None.

        A field is read from the columns that the model was trained with (`columns`). If they are missing, it is read from the
        column with its own name, unless another field was trained with this column. If a required field is then missing, but
        every field has a column with its own name, these columns are read."""
        stated = {f.name: self.columns.get(f.name, f.name) for f in self.fields}
        wanted = {name: [some] if isinstance(some, str) else some for name, some in stated.items() if some}

        def places(names: Mapping[str, Sequence[str]]) -> dict[str, tuple[Place, ...]]:
            there = {name: tuple(x for each in some if (x := find(each)) is not None) for name, some in names.items()}
            return {name: some for name, some in there.items() if len(some) == len(names[name])}

        trained = places({name: some for name, some in wanted.items() if name in self.columns})
        own = places({name: [name] for name in wanted if name not in trained})
        taken = {place for some in trained.values() for place in some}
        found = {name: some for name, some in own.items() if taken.isdisjoint(some)} | trained
        lacking = next((f.name for f in self.fields if not f.optional and f.name not in found), None)
        if lacking is None:
            return found, None
        if len(own) + len(trained) == len(wanted):
            own |= places({name: [name] for name in trained})
        if len(own) == len(wanted):
            return own, None
        return found, next((name for name in wanted[lacking] if find(name) is None), lacking)


def _separate(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file. If all lines end in CR, as on old Macs, the first item of `lines` is the whole file. This
    function splits it."""
    for number, line in enumerate(lines):
        if number or line.endswith(b"\n") or b"\r" not in line or is_cut(line, MOST_BYTES):
            yield line
        else:
            yield from (part + b"\r" for part in line.removesuffix(b"\r").split(b"\r"))


def _cells(line: str, delimiter: str) -> list[str]:
    """Returns the column names of a header line. Quotes and surrounding blanks are removed."""
    return [cell.strip().strip('"').strip() for cell in line.strip("\r\n").split(delimiter)]


def _cell_value(of: Field, cells: Sequence[str], separator: str | None = None) -> Any:
    """Returns the value of a field from the cells of its columns. If an optional field has an empty cell, returns None. As in
    training, spaces at the ends of a text are part of it, since a byte-level tokenizer has tokens for them. `separator`
    separates the texts in a cell of a field with `many` (None: spaces between words)."""
    cell = cells[0]
    if of.optional and not cell.strip():
        return None
    if of.number:
        return int(float(cell)) if re.fullmatch(r"\s*[0-9]{1,15}(\.0+)?\s*", cell) else cell
    if not of.many:
        return cell
    if len(cells) > 1:
        return without_blank_end(cells)
    try:
        items = written_object(cell) if CHOICES_OBJECT.match(cell) else written_list(cell)
    except ValueError:  # `_problem` reports that this is not a list
        return cell
    if items is not None:
        return items
    if separator is not None and separator != " ":
        return [text.strip() for text in cell.split(separator)]
    return split_words(cell) if of.words or separator else cell


def _is_list(line: bytes) -> bool:
    """Returns whether a line is a JSON list."""
    try:
        return isinstance(parse_json(without_bom(line).decode("utf-8")), list)
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _has_annotation(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether a column of the lines of words has tags or the numbers of words. `rows` has the cells of each line, and is
    empty between sentences. The numbers of each sentence start at 0 or 1. Tags have no small letters, unlike other columns, and
    differ. They are not in the first column, which sentences may begin with."""
    sentences = [list(zip(*lines, strict=True)) for is_filled, lines in itertools.groupby(rows, bool) if is_filled]
    columns = [list(itertools.chain(*parts)) for parts in zip(*sentences, strict=True)]
    for first, k in itertools.product((0, 1), range(len(columns))):
        if all([*cells[k]] == [str(first + i) for i in range(len(cells[k]))] for cells in sentences):
            return True
    capital = [all(cell.isascii() and cell == cell.upper() for cell in column) for column in columns]
    return not all(capital) and any(
        capital[k] and len({*columns[k]}) > 1 and any(map(str.isalpha, "".join(columns[k]))) for k in range(1, len(columns))
    )


def _decoded(line: bytes) -> tuple[str, str | None]:
    """Returns (the text of a line, None). If the line cannot be read, returns ("", the problem)."""
    if is_cut(line, MOST_BYTES):
        return "", f"longer than {MOST_BYTES >> 20} MiB; split the text into lines"
    if (place := line.find(b"\0")) >= 0:
        return "", f"byte {place + 1} is NUL, which no text holds; give text in UTF-8, one per line"
    try:
        return without_bom(line).decode("utf-8"), None
    except UnicodeDecodeError as error:
        return "", f"byte {error.start + 1} is not UTF-8; convert the text with iconv"


def argument_records(texts: Sequence[str], fields: Sequence[Field]) -> Iterator[Record]:
    """Yields the records of command-line arguments. If the question has one required field, each argument is a record. If it
    has several required fields, or reads words, all arguments together are one record. However, if any argument contains a TAB,
    or a space in a question that reads words, each argument is a record."""
    required = [field for field in fields if not field.optional]
    one_each = any("\t" in text or (fields[0].words and len(_line_words(text)) > 1) for text in texts)
    if not one_each and (len(required) > 1 or fields[0].words):
        yield _divided(1, "", list(texts), fields, arguments=True)
        return
    for number, text in enumerate(texts, 1):
        yield _text_record(number, f"text {number}: " if len(texts) > 1 else "", text, fields)


def _text_record(number: int, place: str, text: str, fields: Sequence[Field]) -> Record:
    texts = [f for f in fields if not f.number]
    if len(texts) == 1 and not texts[0].many:
        parts = [text]
    else:
        parts = _line_words(text) if texts[0].words and "\t" not in text else text.split("\t")
    return _divided(number, place, parts, fields)


def _line_words(text: str) -> list[str]:
    """Returns the words of a line, without those that are only white space."""
    return [word for word in split_words(text) if not word.isspace()]


def _divided(number: int, place: str, parts: Sequence[str], fields: Sequence[Field], *, arguments: bool = False) -> Record:
    """Returns the record of the texts `parts`, which are in the order of the fields. They come from a line, or from
    `arguments`."""
    fields = [f for f in fields if not f.number]
    parts = [part.strip() for part in parts] if fields[0].words else parts
    names = [f"{f.name} ..." if f.many else f.name for f in fields]
    if len(parts) > len(fields) and not fields[-1].many:
        count = f"{len(parts)} arguments" if arguments else f"{counted(len(parts), 'text')} between TABs"
        form = f"{' '.join(names)}; put each in quotes" if arguments else " TAB ".join(names)
        return Record(number, place, problem=f"{count}, but only {counted(len(fields), 'field')}: {form}")
    given: JsonObject = dict(zip((f.name for f in fields), parts, strict=False))
    if fields[-1].many and len(parts) >= len(fields):
        given[fields[-1].name] = parts[len(fields) - 1 :]
    missing = [f.name for f in fields if f.name not in given and not f.optional]
    if missing:
        form = f"the arguments are {' '.join(names)}, each in quotes" if arguments else f"a line is {' TAB '.join(names)}"
        return Record(number, place, problem=f"no {missing[0]}: {form}")
    return _record(number, place, given, fields)


def _values(found: Mapping[str, Sequence[Place]], given: Any) -> JsonObject:
    """Returns the value of each field, which `given` has at the places `found`. Several places become a list, without blank
    values at its end."""
    return {
        name: without_blank_end([given[i] for i in some]) if len(some) > 1 else given[some[0]] for name, some in found.items()
    }


def _record(number: int, place: str, given: JsonObject, fields: Sequence[Field], rest: JsonObject | None = None) -> Record:
    """Returns the record of the fields `given` and the other columns or keys, `rest`. In a field with `many`, numbers are
    converted to texts, and labels of choices are removed, as in training."""
    rest = rest or {}
    for f in fields:
        items = given.get(f.name)
        if f.many and (choices := as_choices(items)):
            items = choices["text"]
            given = given | {f.name: items}
        if f.many and isinstance(items, list):
            given = given | {f.name: [json.dumps(item) if _is_number(item) else item for item in items]}
    values = {f.name: given.get(f.name) for f in fields}
    problems = (_problem(f, values[f.name], rest | given) for f in fields)
    return Record(number, place, values, rest, problem=next(filter(None, problems), None))


def _problem(of: Field, value: Any, row: JsonObject) -> str | None:
    """Returns what is wrong with the `value` of a field of `row`, or None."""
    if value is None and of.optional:
        return None
    if of.number:
        count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if count else f"its {of.name} is {short(value)}, not a character offset, 0 or more"
    texts = value if of.many else [value]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        if isinstance(value, list) and value and holds_columns(row):
            return f"its {of.name} is {short(value)}; {COLUMNS_REMEDY}"
        return f"its {of.name} is {short(value)}, not {'a list of texts' if of.many else 'text'}"
    if not texts or not all(text and not text.isspace() for text in texts):
        return f"its {of.name} {'holds no text or an empty one' if of.many else 'is empty'}; give text"
    if not is_utf8("".join(texts)):
        return f"its {of.name} holds half a surrogate pair, or a byte that is not UTF-8; convert it with iconv"
    return None
