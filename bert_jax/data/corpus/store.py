"""The files of a corpus: writes them, checks them, and opens a finished corpus.

Its token ids are in memory-mapped shards, and offsets mark its sentences and documents.

corpus = open_corpus("DIR")                       # split="eval" for the held-out documents
corpus.tokens[corpus.sentence_offsets[5] : corpus.sentence_offsets[6]]      # the ids of sentence 5

Opening checks that the manifest is complete, that every array has the recorded type and size, that the offsets ascend, and that
the text was tokenised with this vocabulary. Opening does not read the tokens, because this takes seconds per gigabyte. The
module `verification` reads them once per machine."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np
from jaxtyping import Bool, Int64

from bert_jax import files
from bert_jax.data.tokenizers.json_tokenizer import BEGINS
from bert_jax.data.tokenizers.tokenizer import TABLE_KINDS, Tokenizer, VocabularyInfo, load_tokenizer
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.files import Json, JsonObject
from bert_jax.interface.words import counted

# ------------------------------------------------------------------------------------------------------------- the .npy files
SPLITS = ("train", "eval")
ARRAYS = ("tokens", "sentences", "documents")
WORDS = "words"
TOKEN_COUNTS = "token_counts.npy"
DOCUMENT_HASHES = "document_hashes.npy"
"""The names of the arrays of a shard. Each of the SPLITS has the arrays ARRAYS. It also has the array WORDS if the subwords do
not show where words start (`VocabularyInfo.marks_words`). TOKEN_COUNTS and DOCUMENT_HASHES exist once per shard. WORDS is uint8
with one bit per token, lowest bit first. The bit is 1 if a word starts at the token."""


def shard_name(index: int, shards: int) -> str:
    """Returns the directory name of a finished shard."""
    return f"shard-{index:05d}-of-{shards:05d}"


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the smallest dtype that holds every token id."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


class ArrayWriter:
    """A one-dimensional .npy file that is written piece by piece. The header gets the length of the array at the end of the
    `with` block."""

    def __init__(self, path: pathlib.Path, dtype: np.dtype):
        self.length = 0
        self._dtype = dtype
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        self._file.seek(0)
        # numpy pads a header for the largest possible first dimension, so the rewritten header has the same size
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, description)

    def append(self, values: np.ndarray) -> None:
        """Appends `values` to the file."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def write_array(path: pathlib.Path, values: np.ndarray, dtype: np.dtype) -> None:
    """Writes a one-dimensional .npy file and synchronises it to the disk."""
    with ArrayWriter(path, dtype) as writer:
        writer.append(values)


def map_array(path: pathlib.Path) -> np.ndarray:
    """Memory-maps a .npy file. An empty array cannot be mapped, so it is read into memory. A mapped array keeps its file open.

    Raises UserError if this process may not open or map further files."""
    try:
        try:
            return np.load(path, mmap_mode="r")
        except ValueError:
            return np.load(path)
    except OSError as error:
        if error.errno in _LIMITS:
            raise UserError(
                f"{path} cannot be mapped: {error.strerror}; {_LIMITS[error.errno]}, or build the corpus again with fewer "
                "--shards (all files of all shards are mapped at once)"
            ) from error
        raise


_OPEN_FILES = "allow more open files (ulimit -n)"
_LIMITS = {errno.EMFILE: _OPEN_FILES, errno.ENFILE: _OPEN_FILES, errno.ENOMEM: "allow more memory maps (sysctl vm.max_map_count)"}
"""errno -> remedy, for errors that do not mean that the file is damaged."""


def marked_tokens(directory: pathlib.Path, split: str) -> np.ndarray:
    """Returns the token ids in one split of a shard. If the shard has WORDS, the ids are uint32, and the bit BEGINS is set in
    ids that start a word."""
    tokens, words = map_array(directory / f"{split}.tokens.npy"), directory / f"{split}.{WORDS}.npy"
    if not words.is_file():
        return tokens
    begins = np.unpackbits(map_array(words), count=len(tokens), bitorder="little")
    return tokens | begins * np.uint32(BEGINS)


def packed_words(marked: np.ndarray) -> np.ndarray:
    """Returns the array WORDS for ids with the bit BEGINS."""
    return np.packbits((marked & np.uint32(BEGINS)) > 0, bitorder="little")


def checksum(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(directory: pathlib.Path) -> Iterator[None]:
    """Inside the `with` block, converts the OSErrors of a full or read-only disk to a UserError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {directory}; free space and run the same command again (finished shards are intact)"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EFBIG, errno.EIO):
            raise UserError(
                f"{error.filename or directory} cannot be written: {error.strerror}; choose another --output"
            ) from error
        raise


# -------------------------------------------------------------------------------------------------------------- their checks
MANIFEST = "manifest.json"
UNNAMED = ("source", "target")
"""The languages of a parallel corpus if the names of its files do not show them."""
FILES = frozenset({*(f"{split}.{name}.npy" for split in SPLITS for name in ARRAYS), TOKEN_COUNTS, DOCUMENT_HASHES})
"""The files of a shard."""
WORD_FILES = frozenset(f"{split}.{WORDS}.npy" for split in SPLITS)
"""Additional files if the vocabulary does not show where words begin (`VocabularyInfo.marks_words`)."""
_SHARD = re.compile(r"shard-\d+-of-(\d+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = ("documents", *ARRAYS[:2])


class CorruptedCorpus(UserError):
    """Raised when a file of a corpus differs from the file that was written."""


def check_manifest(directory: pathlib.Path, manifest: JsonObject) -> None:
    """Raises CorruptedCorpus unless `manifest` lists all shards of one corpus with their files, and its counts are the sums of
    the shards' counts. Raises UserError if the name of a shard does not have the form of a shard name."""
    path = directory / MANIFEST
    shards = manifest.get("shards")
    if not isinstance(shards, list) or not shards or not all(isinstance(shard, dict) for shard in shards):
        _refuse_manifest(path, f'"shards" is {str(shards)[:40]}', "a list of shards")
    for i, shard in enumerate(shards):
        _check_name(path, shard.get("name"), i, len(shards))
        _check_files(path, shard, marks_words(manifest))
    for split in SPLITS:
        parts = [_counts(path, shard, f'"splits" of {shard["name"]}', split) for shard in shards]
        total, found = {name: sum(part[name] for part in parts) for name in _COUNTS}, _counts(path, manifest, '"splits"', split)
        for name in _COUNTS:
            if found[name] != total[name]:
                _refuse_manifest(path, f"the {split} split has {found[name]:,} {name}", f"{total[name]:,}, the sum of its shards")


def _check_name(path: pathlib.Path, name: Json, index: int, shards: int) -> None:
    match = _SHARD.fullmatch(name) if isinstance(name, str) else None
    if match is None:  # a name such as "../../../home" would read or delete files elsewhere
        raise UserError(
            f"{path} names the shard {str(name)[:60]!r}, expected {shard_name(index, shards)!r}. bert_jax never writes such a "
            "name, so the file is forged or damaged. Do not trust this directory; copy the corpus again from the machine that "
            "built it"
        )
    if name != shard_name(index, shards):
        total = int(match[1])
        found = f"it lists {counted(shards, 'shard')}, and the shard with index {index} is {name}"
        of_name = f"{counted(total, 'shard')} according to this name, and {shard_name(index, total)} at this index"
        _refuse_manifest(path, found, of_name)


def marks_words(manifest: JsonObject) -> bool:
    """Returns whether the shards of a corpus have WORD_FILES."""
    vocabulary = manifest.get("vocabulary")
    return isinstance(vocabulary, dict) and vocabulary.get("kind", TABLE_KINDS[0]) not in TABLE_KINDS


def _check_files(path: pathlib.Path, shard: JsonObject, has_words: bool) -> None:
    listed, expected = shard.get("files"), FILES | WORD_FILES if has_words else FILES
    if not isinstance(listed, dict) or listed.keys() != expected:
        names = sorted(listed) if isinstance(listed, dict) else listed
        _refuse_manifest(path, f"the files of {shard['name']} are {str(names)[:200]}", ", ".join(sorted(expected)))
    for name, facts in listed.items():
        size, digest = (facts.get("bytes"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if not _is_count(size) or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            _refuse_manifest(path, f"{shard['name']}/{name} has {str(facts)[:60]}", "a size in bytes and a sha256")


def _counts(path: pathlib.Path, holder: JsonObject, where: str, split: str) -> dict[str, int]:
    splits = holder.get("splits")
    counts = splits.get(split) if isinstance(splits, dict) else None
    if not isinstance(counts, dict) or not all(_is_count(counts.get(name)) for name in _COUNTS):
        _refuse_manifest(path, f"{where} for {split} is {str(counts)[:80]}", f"{', '.join(_COUNTS)}, numbers from 0")
    return counts


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse_manifest(path: pathlib.Path, found: str, expected: str) -> NoReturn:
    raise CorruptedCorpus(
        f"corrupted corpus: {path}: {found}; expected {expected}. Copy the whole corpus again, or remove {path} and rerun the "
        "command that built the corpus (finished shards are kept)"
    )


def read_arrays(
    path: pathlib.Path, shard: JsonObject, split: str, vocabulary_size: int, *, whole: bool = True
) -> list[np.ndarray]:
    """Memory-maps the `ARRAYS` of one split of the shard in `path`, in order. `shard` is the shard's part of the manifest.

    Raises CorruptedCorpus unless the arrays have the recorded types and lengths, and the offsets ascend from 0 to the number of
    tokens or sentences. If `whole` is False, only the first and the last offset are checked."""
    counts = shard["splits"][split]
    kinds = (token_dtype(vocabulary_size), np.dtype(np.int64), np.dtype(np.int64))
    lengths = (counts["tokens"], counts["sentences"] + 1, counts["documents"] + 1)
    arrays = [
        _array(path / f"{split}.{name}.npy", dtype, length) for name, dtype, length in zip(ARRAYS, kinds, lengths, strict=True)
    ]
    for name, offsets, end in zip(ARRAYS[1:], arrays[1:], (*lengths[:1], counts["sentences"]), strict=True):
        if offsets[0] != 0 or offsets[-1] != end or (whole and not ascending(offsets)):
            found = f"offsets from {offsets[0]:,} to {offsets[-1]:,}"
            _refuse(path / f"{split}.{name}.npy", found, f"offsets that ascend from 0 to {end:,}")
    return arrays


def read_words(path: pathlib.Path, shard: JsonObject, split: str) -> np.ndarray:
    """Memory-maps the array WORDS of one split of the shard in `path`."""
    return _array(path / f"{split}.{WORDS}.npy", np.dtype(np.uint8), -(-shard["splits"][split]["tokens"] // 8))


def ascending(offsets: np.ndarray) -> bool:
    """Returns whether every offset is larger than the offset before it."""
    return bool((offsets[1:] > offsets[:-1]).all())


def read_token_counts(path: pathlib.Path, shard: JsonObject, vocabulary_size: int) -> np.ndarray:
    """Reads the counts of all token ids in the train split of the shard in `path`, int64 [V]. Raises CorruptedCorpus if a count
    is negative, or if the counts do not sum to the number of tokens."""
    counts = _array(path / TOKEN_COUNTS, np.dtype(np.int64), vocabulary_size)
    tokens = shard["splits"]["train"]["tokens"]
    if counts.min() < 0 or counts.sum() != tokens:
        found = f"counts from {counts.min():,} that sum to {counts.sum():,}"
        _refuse(path / TOKEN_COUNTS, found, f"counts from 0 that sum to {tokens:,}")
    return counts


def _array(file: pathlib.Path, dtype: np.dtype, length: int) -> np.ndarray:
    try:
        array = map_array(file)
    except (FileNotFoundError, ValueError, EOFError) as error:
        _refuse(file, f"no array ({error})", f"{counted(length, 'number')} of type {dtype}")
    if array.dtype != dtype or array.shape != (length,):
        _refuse(file, f"an array of shape {array.shape} and type {array.dtype}", f"{counted(length, 'number')} of type {dtype}")
    return array


def check_mapped(array: np.ndarray) -> None:
    """Raises CorruptedCorpus if the file of a memory-mapped array has become shorter since it was opened. `array` may be a
    view.

    Reading the missing part would kill the process with the message "Bus error" and nothing else. The check takes 1 us.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and mapped.size() < len(mapped):
        file = pathlib.Path(array.filename)  # type: ignore[attr-defined]
        raise CorruptedCorpus(
            f"corrupted corpus: {file} was cut from {len(mapped):,} to {counted(mapped.size(), 'byte')} while it was in use, "
            f"because another program has overwritten it; {remedy(file)}"
        )


def check_sizes(path: pathlib.Path, listed: Mapping[str, JsonObject]) -> None:
    """Raises CorruptedCorpus unless every file of the shard in `path` exists with the recorded size."""
    for name, facts in listed.items():
        file = path / name
        if not file.is_file():
            raise CorruptedCorpus(f"corrupted corpus: {file} is missing; {remedy(file)}")
        if (size := file.stat().st_size) != facts["bytes"]:
            raise CorruptedCorpus(
                f"corrupted corpus: {file} has {counted(size, 'byte')} instead of {facts['bytes']:,}; {remedy(file)}"
            )


def remedy(file: pathlib.Path) -> str:
    """Returns the remedy for a damaged file of a shard, for an error message."""
    shard = file.parent
    manifest = shard.parent / MANIFEST
    return f"remove {shard} and {manifest}, and rerun the command that built the corpus (only this shard is rebuilt)"


def _refuse(file: pathlib.Path, found: str, expected: str) -> NoReturn:
    raise CorruptedCorpus(f"corrupted corpus: {file} holds {found}; expected {expected}; {remedy(file)}")


def corpus_tokenizer(directory: pathlib.Path, recorded: JsonObject | None) -> Tokenizer:
    """Loads the tokenizer of a corpus from `directory`. Raises CorruptedCorpus if its vocabulary differs from the vocabulary
    `recorded` in the manifest, because the ids would then stand for different subwords."""
    names = {field.name for field in dataclasses.fields(VocabularyInfo)}
    try:
        expected = VocabularyInfo(**(recorded or {}))
    except TypeError:
        _refuse_manifest(directory.parent / MANIFEST, f'"vocabulary" is {str(recorded)[:80]}', ", ".join(sorted(names)))
    advice = (
        f"copy {directory} again from the machine that built the corpus (to use another vocabulary, build another corpus with "
        "--vocab and a new --output)"
    )
    whose = f"the vocabulary that the text was tokenised with (sha256 {str(expected.sha256)[:12]}...)"
    try:
        tokenizer = load_tokenizer(directory)
    except UserError as error:
        raise CorruptedCorpus(f"corrupted corpus: {directory} does not hold {whose}: {error}. Or {advice}") from error
    found = tokenizer.vocabulary
    if found.sha256 != expected.sha256:
        raise CorruptedCorpus(
            f"corrupted corpus: {directory} holds the vocabulary with sha256 {found.sha256[:12]}...; expected {whose}; {advice}"
        )
    if found != expected:
        name = next(name for name in sorted(names) if getattr(found, name) != getattr(expected, name))
        raise CorruptedCorpus(
            f"corrupted corpus: {directory} has {name}={getattr(found, name)}, but the text was tokenised with "
            f"{name}={getattr(expected, name)}; {advice}"
        )
    return tokenizer


# ---------------------------------------------------------------------------------------------------------- a finished corpus
FORMAT = 1
SETTINGS, TOKENIZER = "settings.json", "tokenizer"
BLOCK_TOKENS = 1 << 29
"""A split with more tokens is read and planned in blocks of about this many tokens (`plan.Blocks`). The offsets of a block take
170 MB. At length 128, the plan of a block takes 105 MB. The English Wikipedia has about 2.5 x 10^9 tokens."""


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """The token ids of all shards as one flat array. Shard s has the positions [bounds[s], bounds[s + 1]). No sentence spans
    two shards.
    """

    shards: tuple[np.ndarray, ...]  # unsigned, 1-d, memory-mapped
    bounds: np.ndarray  # int64 [shards + 1]

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def dtype(self) -> np.dtype:
        """The type of a token id, uint16 or uint32."""
        return self.shards[0].dtype

    def __getitem__(self, where: slice) -> np.ndarray:
        """Returns the ids at the positions [start, stop). The result is a view if the ids are in one shard, and otherwise a
        copy."""
        start, stop, step = where.indices(len(self))
        assert step == 1
        parts = self.views(start, stop)
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, self.dtype)])

    def shard(self, index: int) -> np.ndarray:
        """Returns the ids of a shard. Raises CorruptedCorpus if the shard's file has become shorter."""
        check_mapped(self.shards[index])
        return self.shards[index]

    def views(self, start: int, stop: int) -> list[np.ndarray]:
        """Returns the ids at the positions [start, stop), as one view per shard."""
        return [self.shard(shard)[first:last] for shard, first, last in self.places(start, stop)]

    def places(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Returns (shard, first, last) for each shard that has ids at the positions [start, stop). Inside the shard, these ids
        have the positions [first, last)."""
        shard = int(np.searchsorted(self.bounds, start, side="right")) - 1
        found = []
        while start < stop:
            begin, end = int(self.bounds[shard]), min(stop, int(self.bounds[shard + 1]))
            found.append((shard, start - begin, end - begin))
            start, shard = end, shard + 1
        return found


@dataclasses.dataclass(frozen=True)
class WordStarts:
    """Stores whether each token of a `TokenStore` with the same `bounds` starts a word."""

    shards: tuple[np.ndarray, ...]  # the arrays WORDS, uint8, memory-mapped
    firsts: np.ndarray  # int64 [shards], the index of the bit for the first token of each shard
    bounds: np.ndarray  # int64 [shards + 1]

    def at(self, places: Int64[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
        """Returns whether the tokens at these positions start a word. For positions outside the store, the results are
        arbitrary."""
        begins = np.zeros(places.shape, bool)
        if not self.bounds[-1]:
            return begins
        inside = np.clip(places, 0, self.bounds[-1] - 1)
        shard_of = np.searchsorted(self.bounds, inside, side="right") - 1
        bits = inside + (self.firsts - self.bounds[:-1])[shard_of]
        for shard in np.unique(shard_of).tolist():
            here = shard_of == shard
            check_mapped(self.shards[shard])
            begins[here] = self.shards[shard][bits[here] >> 3] >> (bits[here] & 7).astype(np.uint8) & 1
        return begins


class ShardedOffsets:
    """The offsets of all shards, joined without copying. The offsets of each shard start at 0. The joined offsets are positions
    in the concatenation of all shards.

    The class supports `len`, an index and a slice like an int64 array with the joined offsets. For a corpus of 10^11 tokens
    with 4 x 10^9 sentences, such an array would take 32 GB."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self._parts = tuple(parts)
        self._bases = np.cumsum([0, *(int(part[-1]) for part in parts)], dtype=np.int64)
        self._firsts = np.cumsum([0, *(len(part) - 1 for part in parts)], dtype=np.int64)
        """The index at which each part's offsets start. The last offset of a part is also the first offset of the next part."""

    def __len__(self) -> int:
        return int(self._firsts[-1]) + 1

    def __getitem__(self, where: int | slice) -> np.ndarray:
        """Returns the offset with this index, or the offsets in a slice with step 1."""
        if not isinstance(where, slice):
            (offset,) = self[where : where + 1]
            return offset
        start, stop, step = where.indices(len(self))
        assert step == 1
        found = np.empty(max(0, stop - start), np.int64)
        part = int(np.searchsorted(self._firsts, start, side="right")) - 1
        at = start
        while at < stop:
            part = min(part, len(self._parts) - 1)
            first = int(self._firsts[part])
            end = min(stop, first + len(self._parts[part]))
            check_mapped(self._parts[part])
            found[at - start : end - start] = self._parts[part][at - first : end - first] + self._bases[part]
            at, part = end, part + 1
        return found

    def first_reaching(self, goal: int) -> int:
        """Returns the index of the first offset that is at least `goal`, or the last index if there is none. Uses two binary
        searches."""
        part = min(max(0, int(np.searchsorted(self._bases, goal, side="left")) - 1), len(self._parts) - 1)
        within = int(np.searchsorted(self._parts[part], goal - int(self._bases[part]), side="left"))
        return min(int(self._firsts[part]) + within, len(self) - 1)

    def joined(self) -> Int64[np.ndarray, " _"]:
        """Returns all offsets as one array in memory."""
        return self[:]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One split of a corpus. Document d has the sentences [document_offsets[d], document_offsets[d + 1]). Sentence s has the
    tokens [sentence_offsets[s], sentence_offsets[s + 1])."""

    tokens: TokenStore
    # int64 [S + 1], positions in the tokens of all shards; not joined if the split is large
    sentence_offsets: np.ndarray | ShardedOffsets
    document_offsets: np.ndarray | ShardedOffsets  # int64 [D + 1], indices of sentences; not joined if the split is large
    token_counts: np.ndarray  # int64 [V], the counts in the train split, also if this is another split
    vocabulary: VocabularyInfo
    split: str
    directory: pathlib.Path | None  # None if the corpus was built in memory
    tokenizer: Tokenizer | None = None  # a tokenizer with this `vocabulary`; may be None if the corpus was built in memory
    word_starts: WordStarts | None = None  # if None, use `Tokenizer.continuation_table`
    languages: tuple[str, str] | None = None  # in a corpus of pairs: (language of the texts, language of the translations)

    @property
    def num_documents(self) -> int:
        """The number of documents of the split."""
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        """The number of sentences of the split."""
        return len(self.sentence_offsets) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the split."""
        return len(self.tokens)

    def joined_offsets(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the offsets of sentences and of documents as arrays in memory."""
        pair = self.sentence_offsets, self.document_offsets
        sentences, documents = (found.joined() if isinstance(found, ShardedOffsets) else found for found in pair)
        return sentences, documents

    def part(self, ranges: Sequence[tuple[int, int]]) -> Corpus:
        """Returns a corpus with the documents [first, last) of each of the `ranges`. The offsets of the new corpus are in
        memory. Its tokens are views of the tokens of this corpus.

        Raises CorruptedCorpus if the offsets do not ascend.
        """
        tokens: list[np.ndarray] = []
        words: list[tuple[np.ndarray, int]] = []
        sentences, documents = [], []
        for first, last in ranges:
            in_sentences = np.asarray(self.document_offsets[first : last + 1])
            in_tokens = np.asarray(self.sentence_offsets[int(in_sentences[0]) : int(in_sentences[-1]) + 1])
            if not (ascending(in_sentences) and ascending(in_tokens)):
                raise CorruptedCorpus(
                    f"corrupted corpus: {self.directory}: the offsets of documents {first:,} to {last - 1:,} of the "
                    f"{self.split} split do not ascend; check all files with python -m bert_jax.corpus --verify=DIR"
                )
            tokens += self.tokens.views(int(in_tokens[0]), int(in_tokens[-1]))
            if starts := self.word_starts:
                places = self.tokens.places(int(in_tokens[0]), int(in_tokens[-1]))
                words += [(starts.shards[shard], int(starts.firsts[shard]) + place) for shard, place, _ in places]
            sentences.append(in_tokens - in_tokens[0])
            documents.append(in_sentences - in_sentences[0])
        store = TokenStore(*_laid_end_to_end(tokens))
        of_sentences, of_documents = (
            ShardedOffsets(parts or [np.zeros(1, np.int64)]).joined() for parts in (sentences, documents)
        )
        starts = self.word_starts and _word_starts(words, store.bounds)
        return dataclasses.replace(
            self, tokens=store, sentence_offsets=of_sentences, document_offsets=of_documents, directory=None, word_starts=starts
        )

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[object, ...]]:
        """Pickles only the directory and the split, because pickling a memory map would copy the corpus."""
        if self.directory is not None:
            return open_corpus, (self.directory, self.split)
        return Corpus, tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def open_corpus(directory: pathlib.Path | str, split: str = "train") -> Corpus:
    """Opens one split of a finished corpus. Raises UserError as `open_splits` does."""
    return open_splits(directory, [split])[0]


def open_splits(directory: pathlib.Path | str, splits: Sequence[str] = SPLITS) -> list[Corpus]:
    """Opens one or more splits of a finished corpus.

    Raises UserError if the corpus is unfinished or visibly damaged. Damaged tokens are not noticed, because they are not read.
    """
    directory = pathlib.Path(directory)
    for split in splits:
        if split not in SPLITS:
            raise UserError(f"a corpus has no split {split!r}; {nearest(split, SPLITS)}")
    manifest = read_manifest(directory)
    tokenizer = corpus_tokenizer(directory / TOKENIZER, manifest.get("vocabulary"))
    shards = [(directory / shard["name"], shard) for shard in manifest["shards"]]
    for path, shard in shards:
        check_sizes(path, shard["files"])
    token_counts = np.zeros(tokenizer.size, np.int64)
    for path, shard in shards:
        token_counts += read_token_counts(path, shard, tokenizer.size)
    opened = []
    for split in splits:
        whole = sum(shard["splits"][split]["tokens"] for _, shard in shards) <= BLOCK_TOKENS
        arrays = [read_arrays(path, shard, split, tokenizer.size, whole=whole) for path, shard in shards]
        tokens, sentences, documents = zip(*arrays, strict=True)
        store = TokenStore(*_laid_end_to_end(tokens))
        of_sentences, of_documents = (
            ShardedOffsets(parts).joined() if whole else ShardedOffsets(parts) for parts in (sentences, documents)
        )
        starts = None
        if tokenizer.marks_words:
            starts = _word_starts([(read_words(path, shard, split), 0) for path, shard in shards], store.bounds)
        found = (store, of_sentences, of_documents, token_counts, tokenizer.vocabulary, split, directory, tokenizer, starts)
        opened.append(Corpus(*found, languages=_languages(directory, manifest)))
    return opened


def corpus_sources(corpus: Corpus) -> list[str]:
    """Returns the sources from which a corpus was built, or [] if the directory of the corpus no longer exists."""
    with contextlib.suppress(UserError, OSError):  # the directory may have been removed during the run
        if corpus.directory is not None:
            return list(files.read_object(corpus.directory / SETTINGS).get("sources", []))
    return []


def _languages(directory: pathlib.Path, manifest: JsonObject) -> tuple[str, str] | None:
    found = manifest.get("languages")
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(name, str) for name in found):
        _refuse_manifest(directory / MANIFEST, f'"languages" is {str(found)[:40]}', "two names")
    return found[0], found[1]


def _word_starts(shards: Sequence[tuple[np.ndarray, int]], bounds: np.ndarray) -> WordStarts:
    return WordStarts(tuple(words for words, _ in shards), np.array([first for _, first in shards], np.int64), bounds)


def _laid_end_to_end(shards: Sequence[np.ndarray]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    return tuple(shards), np.cumsum([0, *map(len, shards)], dtype=np.int64)


def finished_shards(directory: pathlib.Path, shards: int) -> list[int]:
    """Returns the indices of the complete shards."""
    return [i for i in range(shards) if (directory / shard_name(i, shards) / "shard.json").is_file()]


def read_manifest(directory: pathlib.Path) -> JsonObject:
    """Reads and checks the manifest of a finished corpus. Raises UserError if the corpus is missing, if it is unfinished, if it
    has another format, or if the manifest is damaged."""
    if directory.is_file():
        raise UserError(
            f"corpus {directory} is a file; give the directory that python -m bert_jax.corpus --output=DIR has written"
        )
    if not directory.is_dir():
        remedy = f"build a corpus with python -m bert_jax.corpus --output={directory} ..."
        raise UserError(f"corpus {missing_path(directory)} does not exist; {remedy}")
    if not (directory / MANIFEST).is_file():
        if not (directory / SETTINGS).is_file():
            raise UserError(f"{directory} is not a corpus (it has no {MANIFEST}); build a corpus with python -m bert_jax.corpus")
        settings = files.read_object(directory / SETTINGS)
        shards, command = settings.get("shards"), settings.get("command")
        done = "not all shards"
        if isinstance(shards, int):
            done = f"{len(finished_shards(directory, shards))} of {counted(shards, 'shard')}"
        raise UserError(
            f"corpus {directory} is unfinished ({done} are done); to complete it, run the same command again: {command}"
        )
    manifest = files.read_object(
        directory / MANIFEST, "remove it and rerun the command that built the corpus (finished shards are kept)"
    )
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"corpus {directory} has format {manifest.get('format')}, but this version of bert_jax reads format {FORMAT}; "
            "build the corpus again"
        )
    check_manifest(directory, manifest)
    return manifest
