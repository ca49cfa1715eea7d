"""Sources of text for a corpus, and their division into shards that workers on all hosts read independently.

    embedded                      the reference prose of the installed Python and packages (`embedded/`)
    text:GLOB                     UTF-8 text in one of `sentences.LAYOUTS`
    jsonl:GLOB                    one JSON object per line; its field --text-field is the document
    parquet:GLOB, :DIR[:SPLIT]    Parquet files, or a directory in the Hugging Face hub's layout; a document per row (`columnar`)
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
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bert_jax.data.corpus import OWN, SOURCES
from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file, load_built_in
from bert_jax.storage.fetching import copies_named_in_bucket, fetched_files
from bert_jax.storage.paths import checked, is_remote
from bert_jax.storage.records import KINDS as COLUMNAR
from bert_jax.storage.records import refuse_broken_links

if TYPE_CHECKING:
    from bert_jax.data.corpus.parallel import PairFile

Say = Callable[[str], object]
_PARTS = 16  # the maximum number of parts of a user's source or of pairs; the reader of a part must skip all earlier documents
_MIN_SHARD_BYTES, _MAX_SHARD_BYTES, _DEFAULT_SHARDS = 1 << 20, 64 << 20, 64
_MOST_DEFAULT_SHARDS = 1_024  # a process that reads a corpus keeps up to 8 files per shard open


@dataclasses.dataclass(frozen=True)
class Source:
    """One --source or --eval-source flag."""

    kind: str  # a key of `SOURCES`, or "own"
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

    kind: str  # a key of `SOURCES`, or "own"
    path: str
    unit: str  # "bytes" | "records" | "parts" (for a compressed file)
    length: int
    weight: float
    layout: str = ""  # for text files
    blank_lines: bool = True  # for text files: whether the file contains blank lines
    column: str = ""  # for a table: the column with the text
    cuts: tuple[int, ...] = ()  # the positions at which the item may be divided; (): at any position
    pairs: PairFile | None = None  # for parallel text
    is_file: bool = True  # whether `path` is the path of a file

    @property
    def counted_files(self) -> tuple[str, ...]:
        """The files of an item whose length is not in bytes. A changed file may have the same length."""
        if self.unit == "bytes" or not self.is_file:
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


@dataclasses.dataclass(frozen=True)
class Document:
    """A document before cleaning."""

    lines: list[str]  # paragraphs, or sentences if `is_sentence` is True
    is_sentence: bool
    fraction: float  # the fraction of the span that has been read, including this document
    is_pair: bool = False  # whether the lines are a text and its translation


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """A kind of source: its functions find and read sources of this kind. They raise UserError for text that cannot be read."""

    form: str
    """How a source of this kind is written, e.g. "text:GLOB"."""
    items: Callable[[Source, ReadOptions, Say], list[Item]]
    """Returns the files and data sets of a source. Reports choices that the user did not make, e.g. which column has the text."""
    read: Callable[[Span, ReadOptions, Counter[str]], Iterator[Document]]
    """Yields the documents of a span. Adds the numbers of skipped records and replaced byte sequences to the counts."""
    uses: tuple[str, ...] = ()
    """The `ReadOptions` that have an effect on this kind, of those that only some kinds use: "text_field" and "layout"."""
    check: Callable[[Source], object] = lambda source: None
    """Checks the name of a source when its flag is parsed."""


def source_kind(name: str) -> SourceKind:
    """Returns the kind of a source, by the name in `Source.kind` or `Item.kind`."""
    kind: SourceKind = load_built_in(SOURCES.get(name, OWN))
    return kind


def parse_source(text: str, flag: str = "--source") -> Source:
    """Parses the value of a --source flag, or of another `flag`. Raises UserError if the value is malformed."""
    kind, _, name = text.partition(":")
    if kind not in SOURCES and not is_in_file(text):
        known = ", ".join(load_built_in(place).form for place in (*SOURCES.values(), OWN))
        raise UserError(f"{flag}={text}: there is no source {kind!r}; {nearest(kind, SOURCES)} ({known})")
    source = Source(kind, name, flag) if kind in SOURCES else Source("own", text, flag)
    found = source_kind(source.kind)
    if (":" in found.form) != bool(source.name):
        raise UserError(f"{flag}={text} {'must not have a name' if name else 'is incomplete'}; write {found.form}")
    found.check(source)
    return source


@copies_named_in_bucket()
def find_items(sources: Sequence[Source], options: ReadOptions, say: Say = lambda _: None) -> list[Item]:
    """Finds every file and data set of `sources`, in order. The files of a glob are sorted by name, and empty files are left
    out. `say` is called to report choices that the user did not make, e.g. which column has the text or which splits are not
    read.

    Raises UserError if a glob matches no file, or if a file does not have the format that its source states."""
    return [item for source in sources for item in source_kind(source.kind).items(source, options, say)]


def read_span(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a span. Adds the numbers of skipped records and replaced byte sequences to `counts`."""
    with copies_named_in_bucket():
        yield from source_kind(span.item.kind).read(span, options, counts)


def decode(data: bytes, options: ReadOptions, counts: Counter[str], problem: Callable[[UnicodeDecodeError], str]) -> str:
    """Decodes UTF-8. If the options replace bad bytes, adds their number to `counts`. Otherwise raises UserError with the
    problem."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if options.on_bad_bytes == "replace":
            text = data.decode("utf-8", "replace")
            counts["replaced-bytes"] += text.count("\ufffd")
            return text
        raise UserError(f"{problem(error)}, or pass --on-bad-bytes=replace to read U+FFFD instead") from error


def given_twice(items: Sequence[Item]) -> list[str]:
    """Returns the paths of files that are matched by several sources, or several times by one source."""
    seen: set[str] = set()
    repeated = []
    for item in items:
        key = os.path.realpath(item.path) if item.is_file else item.path
        if key in seen and item.path not in repeated:
            repeated.append(item.path)
        seen.add(key)
    return repeated


def parts_of(records: int) -> tuple[int, ...]:
    """Divides the records into at most `_PARTS` parts. Returns the index of the first record of each part."""
    return tuple(sorted({round(part * records / _PARTS) for part in range(_PARTS)}))


def source_files(source: Source) -> list[str]:
    """Returns the files of a source whose name is a pattern, sorted by name."""
    if is_remote(checked(source.name, f"{source.flag}={source.kind}:")):
        return remote_files(source)
    found = local_files(source)
    if isinstance(found, pathlib.Path):
        if kind := next((kind for kind in COLUMNAR if next(found.rglob(f"*.{kind}"), None)), None):
            raise UserError(f"{source.flag}={source}: {found} is a directory with {COLUMNAR[kind]} files; write {kind}:{found}")
        raise UserError(
            f"{source.flag}={source}: {found} is a directory; write '{source.kind}:{found / '*'}' for the files in it, or "
            f"'{source.kind}:{found / '**'}' for all files in it and in its folders"
        )
    return found


def remote_files(source: Source) -> list[str]:
    """Returns local copies of the objects in a bucket that match the pattern of a source. Raises UserError if there are none."""
    found = fetched_files(source.name, f"{source.flag}={source.kind}:")
    if not found:
        raise UserError(
            f"{source.flag}={source}: no object in the bucket matches; quote the pattern, and write ** to match folders"
        )
    return [str(path) for path in found]


def local_files(source: Source) -> list[str] | pathlib.Path:
    """Returns the files that match the pattern of a source, sorted by name. If the pattern is the name of a directory, or
    matches only directories, returns a directory. An existing path is used literally, even if it contains wildcards. Raises
    UserError if nothing matches."""
    pattern = str(expanded(source.name))
    there = pathlib.Path(pattern)
    if exists(there):
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


def expanded(name: str) -> pathlib.Path:
    """Expands `~` to the home directory, if the user has one."""
    return pathlib.Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser fails for an unknown user


def exists(path: pathlib.Path) -> bool:
    """Returns whether there is a file or a directory."""
    try:
        return path.exists()
    except OSError:  # e.g. the name is too long
        return False


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
