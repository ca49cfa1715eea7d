"""Sources of text for a corpus, and their division into shards that workers on all hosts read independently.

    embedded                      the reference prose of the installed Python and packages (`embedded/`)
    text:GLOB                     UTF-8 text in one of `sentences.LAYOUTS`
    jsonl:GLOB                    one JSON object per line; its field --text-field is the document
    parquet:GLOB, :DIR[:SPLIT]    Parquet files, or a directory in the Hugging Face hub's layout; one document per row (`tables`)
    arrow:DIR[:SPLIT], :GLOB      the output of `save_to_disk` of Hugging Face's `datasets`, or Arrow files
    tfds:NAME[:SPLIT][@FEATURE]   a text data set of the TensorFlow Datasets catalogue; split `train` by default
    parallel:GLOB.en:GLOB.de      texts and their translations, also in one file (.tsv, .jsonl); a pair is a document (`parallel`)
    FILE.py:NAME[:ARGUMENT]       what the function NAME in the user's own file yields: a string for each document (`own_texts`)

Text and JSON lines may be compressed (`storage.formats`). A file is divided by bytes. A shard gets the documents that begin in
its range, so one large file keeps all cores busy. A compressed file cannot be read from the middle. It is divided by the index
of the document, and the reader of each part decompresses the whole file. Tables and data sets are divided by rows. A user's
function and parallel text are divided into at most 16 parts, also by the index of the document. The division depends only on
the sources and the number of shards, not on workers or hosts.
"""

from __future__ import annotations

import bisect
import dataclasses
import glob
import inspect
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from bert_jax import files
from bert_jax.data.corpus import parallel, tables, tfds_text
from bert_jax.data.corpus.parallel import PairFile
from bert_jax.data.corpus.sentences import SAMPLE_BYTES, detect_layout
from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file, load_named, split_named
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.storage.fetching import copies_named_in_bucket, fetch_chosen, fetched_files
from bert_jax.storage.formats import (
    bare_name,
    compression,
    conversion,
    open_packed,
    reading_explained,
    recognise,
    unicode_encoding,
)
from bert_jax.storage.paths import checked, is_remote
from bert_jax.storage.records import KINDS as COLUMNAR
from bert_jax.storage.records import refuse_broken_links, without_bom

KINDS = {
    "embedded": "embedded",
    "text": "text:GLOB",
    "jsonl": "jsonl:GLOB",
    "parquet": "parquet:GLOB",
    "arrow": "arrow:DIR",
    "tfds": "tfds:NAME",
    "parallel": "parallel:GLOB.en:GLOB.de",
}
#: compression -> (how many times smaller English text becomes, the maximum number of parts per file). The first number is used
#: for the weight of a file. With more parts, decompression would take longer than tokenisation.
_RATIOS = {"gzip": (3.0, 16), "zstd": (3.3, 16), "xz": (4.0, 8), "bzip2": (4.0, 4)}
_PART_BYTES = 16 << 20
_HEAD_BYTES = 1 << 16  # how much of a file is read to recognise its format (for `text:`, SAMPLE_BYTES)
_PARTS = 16  # the maximum number of parts of a user's source or of pairs; the reader of a part must skip all earlier documents
_BLANK_LINE = re.compile(r"\n[ \t\r\v\f]*\n")  # the lines for which bytes.isspace() is true, like the reader's
_MIN_SHARD_BYTES, _MAX_SHARD_BYTES, _DEFAULT_SHARDS = 1 << 20, 64 << 20, 64
_MOST_DEFAULT_SHARDS = 1_024  # a process that reads a corpus keeps up to 8 files per shard open


@dataclasses.dataclass(frozen=True)
class Source:
    """One --source or --eval-source flag."""

    kind: str  # one of KINDS, or "own"
    name: str = ""  # the glob, or the name of the data set; for a user's own source, FILE.py:NAME[:ARGUMENT]
    flag: str = dataclasses.field(default="--source", compare=False)  # for messages

    def __str__(self) -> str:
        if self.kind == "own":
            return self.name
        return f"{self.kind}:{self.name}" if self.name else self.kind


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options for reading all sources of a corpus."""

    text_field: str | None = None  # None: the field "text" of a JSON record, or the likeliest column of a table
    layout: str = "auto"
    on_bad_bytes: str = "error"  # | "replace"
    on_bad_records: str = "error"  # | "skip"
    tfds_directory: str | None = None
    pair_fields: str | None = None  # SOURCE,TARGET; None: the first two columns, or the only two fields with text


@dataclasses.dataclass(frozen=True)
class Item:
    """One file or data set. Its `length` is counted in `unit`. Its `weight` is an estimate of the size of its text in bytes."""

    kind: str
    path: str
    unit: str  # "bytes" | "records" | "parts" (for a compressed file)
    length: int
    weight: float
    layout: str = ""  # for text files
    blank_lines: bool = True  # for text files: whether the file contains blank lines
    column: str = ""  # for a table: the column with the text
    cuts: tuple[int, ...] = ()  # the positions at which the item may be divided; (): at any position
    pairs: PairFile | None = None  # for parallel text

    @property
    def counted_files(self) -> tuple[str, ...]:
        """The files of an item whose length is not in bytes. A changed file may have the same length."""
        if self.unit == "bytes" or self.kind in ("tfds", "own"):
            return ()
        return self.pairs.paths if self.pairs else (self.path,)


@dataclasses.dataclass(frozen=True)
class Span:
    """The part [start, stop) of an item that a shard reads, in the item's unit."""

    item: Item
    start: int
    stop: int

    @property
    def weight(self) -> float:
        """The span's part of the weight of the item."""
        return self.item.weight * (self.stop - self.start) / self.item.length


def parse_source(text: str, flag: str = "--source") -> Source:
    """Parses the value of a --source flag, or of another `flag`. Raises UserError if the value is malformed."""
    kind, colon, name = text.partition(":")
    if kind not in KINDS and is_in_file(text):
        load_named(text, {}, flag)
        return Source("own", text, flag)
    if kind not in KINDS:
        known = ", ".join((*KINDS.values(), "FILE.py:NAME:ARGUMENT"))
        raise UserError(f"{flag}={text}: there is no source {kind!r}; {nearest(kind, KINDS)} ({known})")
    if (kind == "embedded") == bool(name) or (kind != "embedded" and not colon):
        raise UserError(f"{flag}={text} {'must not have a name' if name else 'is incomplete'}; write {KINDS[kind]}")
    if kind == "tfds":
        tfds_text.parse_name(name)
    return Source(kind, name, flag)


@copies_named_in_bucket()
def find_items(
    sources: Sequence[Source], options: ReadOptions, say: Callable[[str], object] = lambda _: None
) -> list[Item]:
    """Finds every file and data set of `sources`, in order. The files of a glob are sorted by name, and empty files are left
    out. `say` is called to report choices that the user did not make, e.g. which column has the text or which splits are not
    read.

    Raises UserError if a glob matches no file, or if a file does not have the format that its source states."""
    items: list[Item] = []
    for source in sources:
        if source.kind in ("embedded", "tfds"):
            name = source.name or tfds_text.EMBEDDED
            text_set = tfds_text.open_text_set(name, options.tfds_directory)
            pairs = None
            if languages := text_set.pair_features(options.pair_fields):
                pairs = PairFile("tfds", (), languages, languages)
            if len(text_set):
                items.append(Item("tfds", name, "records", len(text_set), text_set.text_bytes, pairs=pairs))
        elif source.kind == "parallel":
            items += _pair_items(source, options)
        elif source.kind == "own":
            items += _own_items(source)
        elif source.kind in COLUMNAR:
            items += _table_items(source, options, say)
        else:
            items += [_file_item(source, path, options) for path in _text_files(source) if pathlib.Path(path).stat().st_size]
    return items


def given_twice(items: Sequence[Item]) -> list[str]:
    """Returns the paths of files that are matched by several sources, or several times by one source."""
    seen: set[str] = set()
    repeated = []
    for item in items:
        key = item.path if item.kind in ("tfds", "own") else os.path.realpath(item.path)
        if key in seen and item.path not in repeated:
            repeated.append(item.path)
        seen.add(key)
    return repeated


def _own_items(source: Source) -> list[Item]:
    """Returns the documents of a user's function as one item. Reads all documents to count them."""
    sizes = [len(text) for text in own_texts(source.name, source.flag)]
    return [Item("own", source.name, "records", len(sizes), max(1.0, sum(sizes)), cuts=_parts(len(sizes)))] if sizes else []


def _parts(records: int) -> tuple[int, ...]:
    """Divides the records into at most `_PARTS` parts. Returns the index of the first record of each part."""
    return tuple(sorted({round(part * records / _PARTS) for part in range(_PARTS)}))


def _pair_items(source: Source, options: ReadOptions) -> list[Item]:
    """Returns the files of a parallel: source."""
    sides = [Source(source.kind, side, source.flag) for side in parallel.parse_sides(source.name, source.flag)]
    paths = [_text_files(side) for side in sides]
    for side, found in zip(sides, paths, strict=True):
        for path in found:
            _require_text(side, path, _head(path, _HEAD_BYTES))
    return [
        Item("parallel", file.paths[0], "records", count, max(1.0, size), cuts=_parts(count), pairs=file)
        for file, count, size in parallel.find_pairs(f"{source.flag}={source}", paths, options.pair_fields)
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
    return parallel.one_direction(pairs)


def own_texts(value: str, flag: str = "--source") -> Iterator[str]:
    """Yields the documents of FILE.py:NAME[:ARGUMENT], where `NAME(ARGUMENT)` yields one string per document.

    The order and number of the documents must depend only on the files that the function reads. The function is called once to
    count the documents. It is called again for each part of the corpus, in other processes. Raises UserError if the function
    raises an exception, or if it yields anything other than strings.
    """
    function, argument = load_named(value, {}, flag), split_named(value)[2]
    arguments = () if argument is None else (argument,)
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        takes = "an argument" if argument is None else f"the argument {argument!r}"
        raise UserError(
            f"{flag}={value}: the function cannot be called {'without' if argument is None else 'with'} {takes} ({error}); "
            "write FILE.py:NAME:ARGUMENT if the function has one argument (a string), FILE.py:NAME if it has none"
        ) from error
    with file_errors_explained():  # this may run in a worker process
        texts = function(*arguments)
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            kind = "a string" if isinstance(texts, str) else type(texts).__name__
            raise UserError(f"{flag}={value}: the function returns {kind}; it must yield one string per document")
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise UserError(
                    f"{flag}={value}: document {number:,} has the type {type(text).__name__}; yield one string per document"
                )
            yield text


def _text_files(source: Source) -> list[str]:
    """Returns the files of a text: or jsonl: source, sorted by name."""
    if is_remote(checked(source.name, f"{source.flag}={source.kind}:")):
        return [str(path) for path in _remote_files(source)]
    found = _local_files(source)
    if isinstance(found, pathlib.Path):
        if kind := next((kind for kind in COLUMNAR if next(found.rglob(f"*.{kind}"), None)), None):
            raise UserError(f"{source.flag}={source}: {found} is a directory with {COLUMNAR[kind]} files; write {kind}:{found}")
        raise UserError(
            f"{source.flag}={source}: {found} is a directory; write '{source.kind}:{found / '*'}' for the files in it, or "
            f"'{source.kind}:{found / '**'}' for all files in it and in its folders"
        )
    return found


def _remote_files(source: Source) -> list[pathlib.Path]:
    found = fetched_files(source.name, f"{source.flag}={source.kind}:")
    if not found:
        raise UserError(
            f"{source.flag}={source}: no object in the bucket matches; quote the pattern, and write ** to match folders"
        )
    return found


def _local_files(source: Source) -> list[str] | pathlib.Path:
    """Returns the files that match the pattern of a source, sorted by name. If the pattern is the name of a directory, or
    matches only directories, returns a directory. An existing path is used literally, even if it contains wildcards. Raises
    UserError if nothing matches."""
    pattern = str(_expanded(source.name))
    there = pathlib.Path(pattern)
    if _exists(there):
        if not there.is_file() and not there.is_dir():
            raise UserError(
                f"{source.flag}={source}: {there} is a pipe or a device, but text is read in several parts; write it to a "
                "file first"
            )
        return there if there.is_dir() else [pattern]
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    refuse_broken_links(map(pathlib.Path, sorted(matches)))
    paths = sorted(path for path in matches if pathlib.Path(path).is_file())
    if not paths and matches:
        return pathlib.Path(matches[0])
    if not paths:
        fetch = f". To read a data set of the hub, fetch it first: hf download {source.name} --repo-type=dataset --local-dir=DIR"
        raise UserError(
            f"{source.flag}={source}: no file matches {pattern} (in {pathlib.Path.cwd()}); quote the pattern, and write ** to "
            "match folders"
            + (fetch if source.kind in COLUMNAR and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source.name) else "")
        )
    return paths


def _expanded(name: str) -> pathlib.Path:
    """Expands `~` to the home directory, if the user has one."""
    return pathlib.Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser fails for an unknown user


def _exists(path: pathlib.Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. the name is too long
        return False


def _table_items(source: Source, options: ReadOptions, say: Callable[[str], object]) -> list[Item]:
    """Returns the Parquet or Arrow files of a source. The text column must have the same name in every file."""
    items: list[Item] = []
    column = options.text_field
    columns: tuple[str, ...] = ()
    paths = _table_files(source, say)
    for path in paths:
        found = tables.inspect(source.kind, path, column, source.name, source.flag)
        column, columns = found.column, columns or found.columns
        if found.rows:
            weight = max(1.0, found.text_bytes)
            items.append(Item(source.kind, path, "records", found.rows, weight, column=column, cuts=found.cuts))
    if options.text_field is None and len(columns) > 1:
        names = ", ".join(columns)
        say(f"{source.flag}={source}: the text is the column {column!r} of {names}; --text-field=NAME chooses another")
    return items


def _table_files(source: Source, say: Callable[[str], object]) -> list[str]:
    """Returns the files of a parquet: or arrow: source. The source is a pattern, or a directory with an optional split."""
    flag = f"{source.flag}={source.kind}:"
    remote = is_remote(checked(source.name, flag))
    name, split = source.name, None
    divided = re.fullmatch(r"(.+):([\w.+-]+)", name)
    if divided and not _exists(_expanded(name)) and (remote or _expanded(divided[1]).is_dir()):
        name, split = divided[1], divided[2]

    def choose(names: Sequence[str]) -> list[str]:
        chosen, said = tables.choose_files(source.kind, names, split, f"{flag}{name}")
        if said:
            say(said)
        return chosen

    if remote:
        if split is None and any(sign in name for sign in "*?["):
            return [str(path) for path in _remote_files(source)]
        return [str(path) for path in fetch_chosen(name, flag, choose)]
    there = _local_files(dataclasses.replace(source, name=name))
    if isinstance(there, pathlib.Path):
        inside = sorted(there.rglob("*"))
        refuse_broken_links(path for path in inside if path.suffix == f".{source.kind}")
        names = [path.relative_to(there).as_posix() for path in inside if path.is_file()]
        return [str(there / chosen) for chosen in choose(names)]
    return there


def _file_item(source: Source, path: str, options: ReadOptions) -> Item:
    kind, size = source.kind, pathlib.Path(path).stat().st_size
    layout, blank_lines = "", True
    head = _head(path, SAMPLE_BYTES if kind == "text" else _HEAD_BYTES)
    _require_text(source, path, head)
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


def _require_text(source: Source, path: str, head: bytes) -> None:
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
    field = next((name for name in tables.LIKELY if name in fields), fields[0] if fields else "NAME")
    flag = "" if field == "text" else f" --text-field={field}"
    return f"holds JSON, one object per line, not text; write jsonl: instead of text:{flag}"


def _json_object(line: str) -> files.JsonObject:
    try:
        value = files.parse_json(line) if line.lstrip()[:1] == "{" else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _head(path: str, size: int) -> bytes:
    """Returns the first `size` bytes of a file, decompressed."""
    with reading_explained(path), open_packed(path) as file:
        return file.read(size)


def default_shards(items: Sequence[Item], stated: int | None) -> int:
    """Returns the number of shards, which is `stated` if it is given. The default is 64, changed if necessary so that each
    shard has 1 to 64 MiB of text. More than 64 GiB are divided into 1,024 shards. The number does not depend on the number of
    cores."""
    if stated:
        return stated
    total = sum(item.weight for item in items)
    size = min(max(total / _DEFAULT_SHARDS, _MIN_SHARD_BYTES), max(total / _MOST_DEFAULT_SHARDS, _MAX_SHARD_BYTES))
    return min(math.ceil(total / size), sum(len(item.cuts) or item.length for item in items))


def cut(items: Sequence[Item], shards: int) -> list[list[Span]]:
    """Divides the concatenated items into `shards` parts of about equal weight. Returns a list of spans for each shard. A list
    may be empty."""
    total = sum(item.weight for item in items)
    spans: list[list[Span]] = [[] for _ in range(shards)]
    before = 0.0
    for item in items:
        bounds = [_bound(item, (total * k / shards - before) / item.weight) for k in range(shards + 1)]
        bounds[-1] = item.length
        for shard in range(shards):
            if bounds[shard] < bounds[shard + 1]:
                spans[shard].append(Span(item, bounds[shard], bounds[shard + 1]))
        before += item.weight
    return spans


def _bound(item: Item, fraction: float) -> int:
    place = min(item.length, max(0, round(item.length * fraction)))
    if not item.cuts:
        return place
    after = bisect.bisect(item.cuts, place)
    nearest_two = (item.cuts[max(0, after - 1)], item.cuts[after] if after < len(item.cuts) else item.length)
    return min(nearest_two, key=lambda cut: abs(cut - place))
