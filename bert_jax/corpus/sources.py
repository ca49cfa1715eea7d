"""Sources of text for a corpus, and their division into shards that workers on all hosts read independently.

    embedded                      the reference prose of the installed Python and packages (`embedded/`)
    text:GLOB                     UTF-8 text, .gz too, in one of `layouts.LAYOUTS`
    jsonl:GLOB                    one JSON object a line, .gz too; its field --text-field is the document
    tfds:NAME[:SPLIT][@FEATURE]   a text data set of the TensorFlow Datasets catalogue; split `train` by default

A file is divided by bytes: a shard gets the documents that begin in its range, so one large file keeps all cores busy. A gzip
file cannot be read from the middle: it is divided by document number, and the reader of each part decompresses the whole file. A
data set is divided by records. The division depends only on the sources and the number of shards, so neither workers nor hosts
change the result.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import math
import pathlib
import zlib
from collections.abc import Sequence

from bert_jax.corpus import tfds_text
from bert_jax.corpus.layouts import SAMPLE_BYTES, detect_layout
from bert_jax.errors import UserError, nearest
from bert_jax.storage.fetching import fetched_files
from bert_jax.storage.paths import checked, is_remote

KINDS = ("embedded", "text", "jsonl", "tfds")
_GZIP_RATIO = 3.0  # of English text; only for the weight of a .gz file relative to others
_GZIP_PART_BYTES, _GZIP_MAX_PARTS = 16 << 20, 16  # with finer parts, decompression would take longer than tokenisation
_MIN_SHARD_BYTES, _MAX_SHARD_BYTES, _DEFAULT_SHARDS = 1 << 20, 64 << 20, 64


@dataclasses.dataclass(frozen=True)
class Source:
    """One --source flag."""

    kind: str
    name: str = ""  # the glob, or the data set

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options for reading all sources of a corpus."""

    text_field: str = "text"
    layout: str = "auto"
    on_bad_bytes: str = "error"  # | "replace"
    on_bad_records: str = "error"  # | "skip"
    tfds_directory: str | None = None


@dataclasses.dataclass(frozen=True)
class Item:
    """One file or data set: its `length` in `unit`, and its `weight`, an estimate of its text in bytes."""

    kind: str
    path: str
    unit: str  # "bytes" | "parts" of a gzip file | "records"
    length: int
    weight: float
    layout: str = ""  # of text
    blank_lines: bool = True  # of text: whether it contains blank lines


@dataclasses.dataclass(frozen=True)
class Span:
    """The part of one item that a shard reads: [start, stop) in the item's unit."""

    item: Item
    start: int
    stop: int

    @property
    def weight(self) -> float:
        """The part of the item's weight in the span."""
        return self.item.weight * (self.stop - self.start) / self.item.length


def parse_source(text: str) -> Source:
    """The Source of a --source flag. Raises UserError if it is malformed."""
    kind, colon, name = text.partition(":")
    if kind not in KINDS:
        raise UserError(
            f"--source={text}: no source {kind!r}; {nearest(kind, KINDS)} (embedded, text:GLOB, jsonl:GLOB, tfds:NAME)"
        )
    if (kind == "embedded") == bool(name) or (kind != "embedded" and not colon):
        raise UserError(
            f"--source={text}: " + ("embedded takes no name" if name else f"write {kind}:{'NAME' if kind == 'tfds' else 'GLOB'}")
        )
    if kind == "tfds":
        tfds_text.parse_name(name)
    return Source(kind, name)


def find_items(sources: Sequence[Source], options: ReadOptions) -> list[Item]:
    """Every file and data set of `sources`, in order; the files of a glob sorted by name, without empty files. Raises UserError
    if a glob matches no file.
    """
    items: list[Item] = []
    for source in sources:
        if source.kind in ("embedded", "tfds"):
            name = source.name or tfds_text.EMBEDDED
            text_set = tfds_text.open_text_set(name, options.tfds_directory)
            if len(text_set):
                items.append(Item("tfds", name, "records", len(text_set), text_set.text_bytes))
            continue
        if is_remote(checked(source.name, f"--source={source.kind}:")):
            found = fetched_files(source.name, f"--source={source.kind}:")
            if not found:
                raise UserError(f"--source={source}: no object of the bucket matches; quote the pattern; ** matches folders")
            items += [_file_item(source.kind, str(path), options) for path in found]
            continue
        pattern = str(pathlib.Path(source.name).expanduser())
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        paths = sorted(path for path in matches if pathlib.Path(path).is_file())
        if not paths and matches:
            inside = pathlib.Path(matches[0])
            raise UserError(
                f"--source={source}: {inside} is a directory; write '{source.kind}:{inside / '*'}' for the files in it, or "
                f"'{source.kind}:{inside / '**'}' for those in its folders too"
            )
        if not paths:
            raise UserError(
                f"--source={source}: no file matches {pattern} (in {pathlib.Path.cwd()}); quote the pattern; ** matches folders"
            )
        items += [_file_item(source.kind, path, options) for path in paths if pathlib.Path(path).stat().st_size]
    return items


def _file_item(kind: str, path: str, options: ReadOptions) -> Item:
    size = pathlib.Path(path).stat().st_size
    layout, blank_lines = "", True
    if kind == "text":
        sample = _head(path)
        layout = detect_layout(sample) if options.layout == "auto" else options.layout
        blank_lines = "\n\n" in sample.replace("\r", "") or len(sample) < SAMPLE_BYTES // 4
    if is_gzip(path):
        weight = size * _GZIP_RATIO
        return Item(kind, path, "parts", min(_GZIP_MAX_PARTS, math.ceil(weight / _GZIP_PART_BYTES)), weight, layout, blank_lines)
    return Item(kind, path, "bytes", size, float(size), layout, blank_lines)


def is_gzip(path: str) -> bool:
    """Whether a file is read as gzip, by its name."""
    return path.endswith(".gz")


def _head(path: str) -> str:
    """The first `SAMPLE_BYTES` of a text file, with invalid bytes replaced; `reading` reports those with their offsets."""
    try:
        with gzip.open(path) if is_gzip(path) else pathlib.Path(path).open("rb") as file:
            return file.read(SAMPLE_BYTES).decode("utf-8", "replace")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def default_shards(items: Sequence[Item], stated: int | None) -> int:
    """The number of shards: `stated`, or 64, changed so that each has 1 to 64 MiB of text. Independent of the machine's cores."""
    if stated:
        return stated
    total = sum(item.weight for item in items)
    size = min(max(total / _DEFAULT_SHARDS, _MIN_SHARD_BYTES), _MAX_SHARD_BYTES)
    return min(math.ceil(total / size), sum(item.length for item in items))


def cut(items: Sequence[Item], shards: int) -> list[list[Span]]:
    """The spans of each shard: the items, concatenated, in `shards` parts of equal weight. A shard may be empty."""
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
    return min(item.length, max(0, round(item.length * fraction)))
