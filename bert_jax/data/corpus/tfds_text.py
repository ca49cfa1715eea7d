"""Reads data sets of TensorFlow Datasets without TensorFlow. A data set is in the catalogue, or it is the embedded corpus.

Prepared data sets are found by name on disk, or downloaded from the public bucket of prepared data sets. TensorFlow or Apache
Beam is needed to prepare the largest text data sets (`wikipedia`, `lm1b`). The public bucket has the prepared files of these
data sets. Reading these files needs neither TensorFlow nor Apache Beam."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import http.client
import os
import pathlib
import re
import shutil
import ssl
import struct
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from bert_jax import files
from bert_jax.data.corpus.parallel import PairFile
from bert_jax.data.corpus.sentences import paragraphs
from bert_jax.data.corpus.sources import Document, Item, ReadOptions, Say, Source, SourceKind, Span
from bert_jax.errors import UserError, nearest
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit, counted
from bert_jax.storage.paths import cache_directory

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


HOST = "https://storage.googleapis.com"
_BUCKET, _FOLDER = "tfds-data", "datasets"
_INFO_FILE = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+\Z")
_CONNECTIONS = 8
_TIMEOUT = 60  # the longest time without receiving data, in seconds


def tfds_directory(stated: str | None) -> pathlib.Path:
    """Returns `stated` if it is given, and otherwise the directory in which tfds keeps its data sets."""
    try:
        return pathlib.Path(stated or os.environ.get("TFDS_DATA_DIR") or pathlib.Path.home() / "tensorflow_datasets")
    except RuntimeError as error:  # as in `cache_directory`
        raise UserError("this user has no home directory for the data sets of tfds; set TFDS_DATA_DIR to a directory") from error


def find_prepared(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Finds the newest prepared version of `name` (NAME or NAME/CONFIG, optionally with /VERSION) below `root`."""
    directory = root / name
    if (directory / _INFO_FILE).is_file():
        return directory
    versions = [path for path in directory.glob("*") if _VERSION.match(path.name) and (path / _INFO_FILE).is_file()]
    return max(versions, key=lambda path: _version_key(path.name), default=None)


def _version_key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def fetch(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Downloads the newest prepared version of `name` from the bucket into `root`. Returns the directory of the data set, or
    None if the bucket does not have the data set.

    After an interruption, complete files are not downloaded again. The directory gets its final name when it has all files. If
    another process downloads the same version, waits for this process. Raises UserError if a download fails.
    """
    objects = _list_objects(f"{_FOLDER}/{name}/")
    versions = {path.split("/")[0] for path in objects if _VERSION.match(path.split("/")[0])}
    if _INFO_FILE in objects:
        version = ""
    elif versions:
        version = f"{max(versions, key=_version_key)}/"
    else:
        return None
    wanted = {path.removeprefix(version): size for path, size in objects.items() if path.startswith(version)}
    wanted = {path: size for path, size in wanted.items() if path and "/" not in path}
    final = root / name / version.rstrip("/")
    part = final.with_name(f".{final.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(part.with_suffix(".lock")):
        if not (final / _INFO_FILE).is_file():
            part.mkdir(exist_ok=True)
            _fetch_files(name, version, wanted, part)
            part.rename(final)
    return final


def _fetch_files(name: str, version: str, wanted: Mapping[str, int], part: pathlib.Path) -> None:
    """Downloads the `wanted` files (name -> size in bytes) that are not complete in `part`."""
    files.remove_leftovers(part)
    url = f"{HOST}/{_BUCKET}/{_FOLDER}/{urllib.parse.quote(f'{name}/{version}')}"
    missing = [path for path, size in wanted.items() if not (part / path).is_file() or (part / path).stat().st_size != size]
    scale, unit = byte_unit(sum(wanted.values()))
    progress = Progress(f"fetching {name}:", total=max(1, round(sum(wanted.values()) / scale)), unit=unit)
    done = sum(size for path, size in wanted.items() if path not in missing)
    with progress, concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
        progress.update(round(done / scale))
        fetches = {pool.submit(_fetch_file, url + urllib.parse.quote(path), part / path): path for path in missing}
        for future in concurrent.futures.as_completed(fetches):
            try:
                future.result()
            except OSError as error:
                pool.shutdown(cancel_futures=True)
                raise UserError(
                    f"cannot fetch {fetches[future]} of {name} ({error}); run the same command again to continue"
                ) from error
            done += wanted[fetches[future]]
            progress.update(round(done / scale))


def _list_objects(prefix: str) -> dict[str, int]:
    """Returns path -> size in bytes for every object below `prefix` in the bucket. The paths are relative to `prefix`."""
    found: dict[str, int] = {}
    page = ""
    while True:
        query = {"prefix": prefix, "fields": "items(name,size),nextPageToken", "pageToken": page}
        with _opened(f"{HOST}/storage/v1/b/{_BUCKET}/o?{urllib.parse.urlencode(query)}") as reply:
            listing = files.parse_json(reply.read())
        found |= {entry["name"].removeprefix(prefix): int(entry["size"]) for entry in listing.get("items", ())}
        page = listing.get("nextPageToken", "")
        if not page:
            return found


def _fetch_file(url: str, path: pathlib.Path) -> None:
    with _opened(url) as reply, files.replacing(path) as file:
        shutil.copyfileobj(reply, file)


def _opened(url: str) -> http.client.HTTPResponse:
    reply: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=_TIMEOUT, context=_certificates())
    return reply


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Returns a context with the certificates of the system. If the system has no file of them, as with the Python of
    python.org on macOS, it also has the certificates of certifi, which other downloads use."""
    context = ssl.create_default_context()
    if ssl.get_default_verify_paths().cafile is None:
        import certifi  # imported where it is needed, since this takes 0.05 s

        context.load_verify_locations(certifi.where())
    return context


EMBEDDED = "embedded"
_TFRECORD_HEADER = struct.Struct("<QI")  # record length, checksum of the length; the checksum of the record follows the record


@dataclasses.dataclass(frozen=True)
class TextSet:
    """The texts in one split of a data set, by record index."""

    builder: tfds.core.DatasetBuilder
    split: str
    feature: str
    """The name of the feature with the text. It is "" if the data set has translations."""

    def __len__(self) -> int:
        return self.builder.info.splits[self.split].num_examples

    @property
    def text_bytes(self) -> float:
        """The size of the records in bytes, at least 1. It is an estimate of the size of the text. tfds knows the size of
        "train", but not the size of its slice "train[:1%]", which is computed from the number of records."""
        whole = self.builder.info.splits[self.split.partition("[")[0]]
        return max(1.0, whole.num_bytes * len(self) / max(1, whole.num_examples))

    def pair_features(self, given: str | None = None) -> tuple[str, str] | None:
        """Returns the names of the features with a text and its translation. The names are read from `given` (SOURCE,TARGET).
        If `given` is None, they are the names and the order in the data set. Returns None if the data set has no translations,
        or if a single feature is read as text."""
        features = self.builder.info.features
        if self.feature or not isinstance(features, _tfds().features.Translation):
            return None
        chosen = tuple(given.split(",")) if given else self.builder.info.supervised_keys or tuple(features)
        for name in chosen:
            if name not in features:
                raise UserError(f"--pair-fields={given}: tfds:{self.builder.name} has no {name!r}; {nearest(name, features)}")
        if len(set(chosen)) != 2:
            raise UserError(f"--pair-fields={given} must name the text and its translation, two of {', '.join(features)}")
        return chosen[0], chosen[1]

    def texts(self, start: int, stop: int) -> Iterator[bytes]:
        """Returns the texts of the records [start, stop)."""
        return (record[self.feature] for record in self.records(start, stop))

    def records(self, start: int, stop: int) -> Iterator[dict[str, bytes]]:
        """Yields the records [start, stop). A record maps the name of each feature to its value."""
        if self.builder.info.file_format.value == "tfrecord":
            decode = self.builder.info.features.deserialize_example_np
            yield from (decode(record) for record in self.tfrecords(start, stop))
        else:
            records = self.builder.as_data_source(split=self.split)
            yield from (records[i] for i in range(start, stop))

    def tfrecords(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields serialised examples from TFRecord files. Most prepared data sets have this format. The files have no index, so
        a file is read from its first record, and records before `start` are skipped."""
        before = 0
        for part in self.builder.info.splits[self.split].file_instructions:
            first, last = max(start - before, 0), min(stop - before, part.take)
            if first < last:
                yield from _read_tfrecords(pathlib.Path(part.filename), part.skip + first, last - first)
            before += part.take


def _read_tfrecords(path: pathlib.Path, skip: int, take: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number in range(skip + take):
            header = file.read(_TFRECORD_HEADER.size)
            if len(header) < _TFRECORD_HEADER.size:
                raise UserError(
                    f"{path} ends after {counted(number, 'record')} instead of {skip + take:,} or more; fetch it again"
                )
            length, _ = _TFRECORD_HEADER.unpack(header)
            if number < skip:
                file.seek(length + 4, os.SEEK_CUR)
                continue
            record = file.read(length)
            file.seek(4, os.SEEK_CUR)
            if len(record) < length:
                raise UserError(f"{path} ends within record {number:,}; fetch it again")
            yield record


def parse_name(name: str) -> tuple[str, str, str]:
    """Parses `NAME[:SPLIT][@FEATURE]` to (name, split or "train", feature or "")."""
    match = re.fullmatch(r"([\w./+-]+)(?::([^@\s]+))?(?:@(\S+))?", name)
    if not match:
        raise UserError(
            f"tfds:{name} must have the form tfds:NAME, tfds:NAME:SPLIT or tfds:NAME:SPLIT@FEATURE, for example "
            "tfds:wikipedia/20230601.en:train@text"
        )
    return match[1], match[2] or "train", match[3] or ""


def open_text_set(name: str, directory: str | None) -> TextSet:
    """Opens the data set `name`. `name` is EMBEDDED, or has the form that `parse_name` describes. If the data set is not on the
    disk yet, it is downloaded or prepared.

    Raises UserError if the data set, split or feature is unknown, or if the data set can be neither downloaded nor prepared.
    """
    with without_tfds_warnings():
        if name == EMBEDDED:
            return TextSet(_embedded_builder(directory), "train", "text")
        name, split, feature = parse_name(name)
        builder = catalogue_builder(name, tfds_directory(directory))
        splits = builder.info.splits
        if split.split("[")[0] not in splits:
            raise UserError(f"tfds:{name} has no split {split!r}; {nearest(split, splits)}")
        try:
            splits[split]
        except ValueError as error:
            why = str(error).strip().splitlines()[-1]
            raise UserError(
                f"tfds:{name}:{split} is not a slice of a split ({why}); write a slice such as train[:1%] or train[:5000]"
            ) from error
        return TextSet(builder, split, _text_feature(builder, feature))


@contextlib.contextmanager
def without_tfds_warnings() -> Iterator[None]:
    """Suppresses the warnings of tfds inside the `with` block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings of tfds and its imports do not concern the user
        yield


@functools.cache
def _tfds() -> ModuleType:
    os.environ.setdefault("NO_GCE_CHECK", "true")  # otherwise tfds waits for the metadata server of Google Cloud
    with without_tfds_warnings():
        import tensorflow_datasets as tfds  # imported here because the import takes 0.3-2 s
    tfds.disable_progress_bar()
    return tfds


def _embedded_builder(directory: str | None) -> tfds.core.DatasetBuilder:
    _tfds()
    from bert_jax.data.corpus.embedded.embedded_dataset_builder import prepared

    root = pathlib.Path(directory) if directory else cache_directory() / "tfds"
    try:
        return prepared(root)
    except OSError as error:
        remedy = "give another --tfds-directory" if directory else "set BERT_JAX_CACHE to a directory that can be written"
        reason = f"cannot be used ({error.strerror or error})"
        raise UserError(f"{root}, the directory of the embedded corpus, {reason}; {remedy}") from error


def catalogue_builder(name: str, root: pathlib.Path) -> tfds.core.DatasetBuilder:
    """Returns the tfds builder of `name`. If the data is not on disk, it is downloaded from the public bucket. If the bucket
    does not have it, the data set's own code prepares it.

    Raises UserError if the data can be neither downloaded nor prepared, or if its files are damaged.
    """
    tfds = _tfds()
    path = find_prepared(name, root)
    if path is None:
        try:
            path = fetch(name, root)
        except OSError as error:
            if not isinstance(error, urllib.error.URLError) and error.filename:
                raise UserError(
                    f"tfds:{name} is not prepared in {root}, which cannot be written ({error.strerror}); give another "
                    "--tfds-directory, or set TFDS_DATA_DIR"
                ) from error
            raise UserError(
                f"tfds:{name} is not prepared in {root}, and it cannot be downloaded ({error}){_name_hint(name)}; prepare it "
                "on a machine with a network and pass the directory as --tfds-directory, or use another source, such as "
                "embedded, text: or jsonl:"
            ) from error
    if path is not None:
        try:
            return tfds.builder_from_directory(path)
        except Exception as error:  # damaged files raise many kinds of errors in tfds
            raise UserError(f"tfds:{name}: {path} cannot be read: {_first_line(error)}") from error
    try:
        builder = tfds.builder(name, data_dir=root, file_format="array_record")
        builder.download_and_prepare()
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(f"tfds:{name} is not in the catalogue{_name_hint(name)}") from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"tfds:{name} cannot be prepared without the package {error.name}; prepare it on a machine "
            "with this package, and pass the directory as --tfds-directory"
        ) from error
    except Exception as error:
        raise UserError(f"tfds:{name} cannot be prepared in {root}: {_first_line(error)}") from error
    return builder


def _name_hint(name: str) -> str:
    """Returns a hint with the right name if the name of a data set is misspelt, and otherwise ""."""
    known = _tfds().list_builders(with_community_datasets=False)
    hint = "" if name.split("/")[0] in known else nearest(name.split("/")[0], known)
    return f"; {hint}" if hint.startswith("did") else ""


def _text_feature(builder: tfds.core.DatasetBuilder, feature: str) -> str:
    features = builder.info.features
    texts = [name for name in features if isinstance(features[name], _tfds().features.Text)]
    if feature and feature not in texts:
        raise UserError(
            f"tfds:{builder.name} has no text feature {feature!r}; {nearest(feature, texts) if texts else 'it has none'}"
        )
    if not feature and isinstance(features, _tfds().features.Translation):
        return ""
    if feature or "text" in texts or len(texts) == 1:
        return feature or ("text" if "text" in texts else texts[0])
    raise UserError(
        f"tfds:{builder.name} has {len(texts)} text features ({', '.join(texts)}); choose one with tfds:{builder.name}@FEATURE"
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _items(source: Source, options: ReadOptions, say: Say) -> list[Item]:
    name = source.name or EMBEDDED
    text_set = open_text_set(name, options.tfds_directory)
    languages = text_set.pair_features(options.pair_fields)
    pairs = PairFile("tfds", (), languages, languages) if languages else None
    if not len(text_set):
        return []
    return [Item("tfds", name, "records", len(text_set), text_set.text_bytes, pairs=pairs, is_file=False)]


def _read(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    text_set, length = open_text_set(span.item.path, options.tfds_directory), span.stop - span.start
    if pairs := span.item.pairs:
        for number, record in enumerate(text_set.records(span.start, span.stop), start=1):
            texts = [record[name].decode("utf-8", "replace") for name in pairs.fields]
            yield Document(texts, True, number / length, is_pair=True)
        return
    for number, text in enumerate(text_set.texts(span.start, span.stop), start=1):
        yield Document(paragraphs(text.decode("utf-8", "replace")), False, number / length)


CATALOGUE = SourceKind("tfds:NAME", _items, _read, check=lambda source: parse_name(source.name))
EMBEDDED_CORPUS = SourceKind("embedded", _items, _read)
