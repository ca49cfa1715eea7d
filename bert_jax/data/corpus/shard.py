"""Writes and rewrites shards. A shard is made of some spans of the sources. One process reads, cleans and tokenises the spans,
in bounded memory.

A shard is written under a temporary name and renamed when it is complete (`files.writing_directory`). A directory with the name
of a shard is therefore always finished.

A document is held out if its content hash is below the held-out fraction of the hash range. A finished shard stores the hash of
every document. If the held-out fraction changes, documents move between the splits of finished shards without being tokenised
again. Repeated documents are also dropped from finished shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import pathlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax import files
from bert_jax.data.corpus.cleaning import CleaningConfig, clean_document
from bert_jax.data.corpus.parallel import PairRules, clean_pair
from bert_jax.data.corpus.sources import Document, ReadOptions, Span, read_span
from bert_jax.data.corpus.store import (
    ARRAYS,
    DOCUMENT_HASHES,
    SPLITS,
    TOKEN_COUNTS,
    WORDS,
    ArrayWriter,
    checksum,
    map_array,
    marked_tokens,
    packed_words,
    shard_name,
    token_dtype,
    write_array,
)
from bert_jax.data.tokenizers.json_tokenizer import BEGINS
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.files import JsonObject

SIDES = ("source", "target")
_FLUSH_TOKENS = 1 << 20
_SAMPLED_FIRST, _SAMPLED = 100, 16  # count characters in the first 100 documents of a shard, then in every 16th
_MOST_LETTERS = 5_000


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The settings that determine the sentences and the split of every document. They are the same for all shards."""

    options: ReadOptions
    cleaning: CleaningConfig
    eval_fraction: float
    pairs: PairRules = dataclasses.field(default_factory=PairRules)


@dataclasses.dataclass(frozen=True)
class ShardWork:
    """The job of writing one shard, sent to a worker process."""

    store: pathlib.Path
    index: int
    shards: int
    spans: tuple[Span, ...]
    text: TextConfig
    vocabulary_sha256: str


def content_hash(sentences: Sequence[str]) -> int:
    """Returns a 64-bit hash of a document's text. The hash decides whether the document is held out."""
    return int.from_bytes(hashlib.blake2b("\n".join(sentences).encode(), digest_size=8).digest(), "big")


def is_eval(sentences: Sequence[str], fraction: float) -> bool:
    """Returns whether a document is held out. This depends only on the content of the document, not on shards, hosts or the
    order."""
    return content_hash(sentences) < fraction * 2.0**64


class _SplitWriter:
    """Writes the arrays of one split, including WORDS if `marks_words` is True. The arrays are flushed every `_FLUSH_TOKENS`
    tokens."""

    def __init__(
        self, directory: pathlib.Path, split: str, dtype: np.dtype, opened: contextlib.ExitStack, *, marks_words: bool = False
    ):
        def array_file(name: str, kind: np.dtype) -> ArrayWriter:
            return opened.enter_context(ArrayWriter(directory / f"{split}.{name}.npy", kind))

        offsets = np.dtype(np.int64)
        self._files = [array_file(name, kind) for name, kind in zip(ARRAYS, (dtype, offsets, offsets), strict=True)]
        self._words = array_file(WORDS, np.dtype(np.uint8)) if marks_words else None
        self._held = array("H" if dtype == np.uint16 and not marks_words else "I")
        self._unwritten = np.zeros(0, np.uint32)  # the last ids; they do not fill a byte of WORDS yet
        self._sentence_ends, self._document_ends = array("q", [0]), array("q", [0])
        self._tokens = self.sentences = self.documents = 0

    @property
    def tokens(self) -> int:
        return self._tokens + len(self._held)

    def add(self, sentences: Sequence[str], tokenizer: Tokenizer) -> bool:
        """Adds a document. Returns whether the document has any tokens. Sentences without tokens are dropped.

        If a leading space changes the subwords of a word, a space is added before every sentence except the first, as in
        running text.
        """
        before = self.sentences
        space = " " if tokenizer.distinguishes_spaces else ""
        for sentence in sentences:
            length = len(self._held)
            tokenizer.append(f"{space}{sentence}" if space and self.sentences > before else sentence, self._held)
            if len(self._held) > length:
                self.sentences += 1
                self._sentence_ends.append(self.tokens)
        if self.sentences > before:
            self.documents += 1
            self._document_ends.append(self.sentences)
        if len(self._held) >= _FLUSH_TOKENS:
            self.flush()
        return self.sentences > before

    def add_pair(self, pair: Sequence[str], tokenizer: Tokenizer, config: TextConfig, counts: Counter[str]) -> bool:
        """Adds a text and its translation as a document of two sentences. Returns whether the pair is kept. Adds the numbers of
        characters, tokens and unknown tokens on each side to `counts`. If a rule drops the pair, this is also counted."""
        sides: list[array[int]] = []
        for side, text in enumerate(pair):
            ids = array(self._held.typecode)
            tokenizer.append(text, ids, target=side == 1)
            counts[f"{SIDES[side]} characters"] += len(text)
            counts[f"{SIDES[side]} tokens"] += len(ids)
            counts[f"{SIDES[side]} unknown"] += sum(ids.count(id) for id in (tokenizer.unk_id, tokenizer.unk_id | BEGINS))
            sides.append(ids)
        shorter, longer = sorted(map(len, sides))
        rule = "empty-sides" if not shorter else ""
        if not rule and longer > config.pairs.max_pair_tokens and "long-pairs" not in config.cleaning.keep:
            rule = "long-pairs"
        if not rule and longer > config.pairs.max_length_ratio * shorter and "unlike-lengths" not in config.cleaning.keep:
            rule = "unlike-lengths"
        if rule:
            counts[rule] += 1
            return False
        for ids in sides:
            self._held.extend(ids)
            self.sentences += 1
            self._sentence_ends.append(self.tokens)
        self.documents += 1
        self._document_ends.append(self.sentences)
        if len(self._held) >= _FLUSH_TOKENS:
            self.flush()
        return True

    def flush(self, *, last: bool = False) -> None:
        """Writes the buffered ids and offsets. If the last ids do not fill a byte of WORDS, their bits are kept for the next
        flush, unless this is the `last` flush."""
        held = (self._held, self._sentence_ends, self._document_ends)
        for file, values in zip(self._files, held, strict=True):
            written = np.frombuffer(values, values.typecode)
            if values is self._held and self._words is not None:
                marked = np.concatenate([self._unwritten, written])
                whole = len(marked) if last else len(marked) // 8 * 8
                self._words.append(packed_words(marked[:whole]))
                self._unwritten, written = marked[whole:], written & np.uint32(BEGINS - 1)
            file.append(written)
        self._tokens += len(self._held)
        self._held, self._sentence_ends, self._document_ends = (array(values.typecode) for values in held)

    def counts(self) -> dict[str, int]:
        return {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens}


def cleaned(document: Document, config: CleaningConfig, counts: Counter[str]) -> list[str]:
    """Returns the sentences of a document, or the two texts of a pair. If the document or pair is dropped, counts it and
    returns []."""
    if document.is_pair:
        return clean_pair(document.lines, counts)
    return clean_document(document.lines, is_sentence=document.is_sentence, config=config, counts=counts)


def write_shard(work: ShardWork, tokenizer: Tokenizer, progress: Callable[[float, int], None]) -> None:
    """Writes one shard. `progress(fraction of the spans' weight, tokens so far)` is called first and for every document."""
    progress(0.0, 0)  # ends a worker whose parent was killed before it creates a directory that the next build has to remove
    final = work.store / shard_name(work.index, work.shards)
    try:
        with files.writing_directory(final) as part:
            _finish(part, tokenizer.size, _write_splits(part, work.spans, work.text, tokenizer, progress))
    except FileExistsError:
        if not (final / "shard.json").is_file():  # otherwise, another process has finished the shard
            raise


def _write_splits(
    part: pathlib.Path, spans: Sequence[Span], config: TextConfig, tokenizer: Tokenizer, progress: Callable[[float, int], None]
) -> JsonObject:
    """Reads the spans and writes the arrays of both splits into `part`. Returns the counts for shard.json."""
    counts: Counter[str] = Counter()
    read: Counter[str] = Counter()
    total = sum(span.weight for span in spans)
    before, kept = 0.0, 0
    letters: Counter[str] = Counter()  # counts of the characters in a sample of the text
    limit, hashes = config.eval_fraction * 2.0**64, array("Q")
    with contextlib.ExitStack() as opened:
        dtype, marks_words = token_dtype(tokenizer.size), tokenizer.marks_words
        writers = {split: _SplitWriter(part, split, dtype, opened, marks_words=marks_words) for split in SPLITS}
        for span in spans:
            for document in read_span(span, config.options, counts):
                sentences = cleaned(document, config.cleaning, counts)
                read["documents"] += 1
                read["characters"] += sum(map(len, document.lines))
                if sentences:
                    digest = content_hash(sentences)
                    if tokenizer.strips and (read["documents"] <= _SAMPLED_FIRST or digest % _SAMPLED == 0):
                        for sentence in sentences:
                            letters.update(sentence)
                    writer = writers["eval" if digest < limit else "train"]
                    if document.is_pair:
                        is_kept = writer.add_pair(sentences, tokenizer, config, counts)
                    else:
                        is_kept = writer.add(sentences, tokenizer)
                    if is_kept:
                        hashes.append(digest)
                    if is_kept or not document.is_pair:
                        kept += sum(map(len, sentences))
                done = before + min(1.0, document.fraction) * span.weight
                progress(done / total, sum(writer.tokens for writer in writers.values()))
            before += span.weight
        for writer in writers.values():
            writer.flush(last=True)
    write_array(part / DOCUMENT_HASHES, np.frombuffer(hashes, np.uint64), np.dtype(np.uint64))
    sides = {name: counts.pop(name) for name in [*counts] if name.startswith(SIDES)}
    return {
        "eval_fraction": config.eval_fraction,
        "splits": {split: writer.counts() for split, writer in writers.items()},
        "sides": sides,
        "dropped": dict(counts),
        "read": dict(read),
        "kept_characters": kept,
        "letters": dict(letters.most_common(_MOST_LETTERS)),
    }


def _finish(part: pathlib.Path, vocabulary_size: int, content: JsonObject) -> None:
    """Adds the token counts and shard.json to the arrays in `part`."""
    tokens = map_array(part / "train.tokens.npy")
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(tokens), _FLUSH_TOKENS):
        counts += np.bincount(tokens[start : start + _FLUSH_TOKENS], minlength=vocabulary_size)
    write_array(part / TOKEN_COUNTS, counts, np.dtype(np.int64))
    names = sorted(path.name for path in part.glob("*.npy"))
    content["files"] = {name: {"bytes": (part / name).stat().st_size, "sha256": checksum(part / name)} for name in names}
    files.write_json(part / "shard.json", content, indent=1)


_ENOUGH = 10  # the minimum number of held-out documents; an evaluation on fewer documents is too noisy


def eval_limit(fraction: float) -> np.uint64:
    """Returns the hash below which documents are held out."""
    return np.uint64(min(math.ceil(fraction * 2.0**64), 2**64 - 1))


def min_eval_documents(documents: int) -> int:
    """Returns the minimum number of held-out documents for a corpus of `documents` documents. It is ten, or a tenth of the
    documents if there are fewer than a hundred. If there are four documents or more, it is at least two, because next sentence
    prediction takes random segments from another document. If there are fewer than four, it is one or zero, so that at least
    one document is left for training."""
    return min(_ENOUGH, max(2, documents // 10)) if documents >= 4 else max(0, min(1, documents - 1))


def usable_fraction(hashes: np.ndarray, fraction: float) -> float:
    """Returns `fraction` if it holds out enough of the documents with these `hashes` (uint64 [D]). Otherwise returns the
    smallest fraction that holds out enough documents. This fraction is rounded up to three decimals, unless too many documents
    would then be held out."""
    wanted = min_eval_documents(len(hashes))
    if np.count_nonzero(hashes < eval_limit(fraction)) >= wanted:
        return fraction
    exact = (int(np.sort(hashes)[wanted - 1]) + 4096) / 2.0**64
    short = math.ceil(exact * 1000) / 1000
    if short >= 1:
        return exact
    taken = np.count_nonzero(hashes < eval_limit(short))
    return short if taken <= 2 * wanted and len(hashes) - taken >= wanted else exact


def resplit_shard(
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], hashes: np.ndarray, before: float, now: float
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Moves documents between the splits of a shard, so that the held-out fraction changes from `before` to `now`. Returns the
    new arrays. `arrays` and the result map a split to (tokens, sentences, documents)."""
    was, eval_split = hashes < eval_limit(before), hashes < eval_limit(now)
    tokens, lengths = {}, {}
    for split, (ids, sentences, documents) in arrays.items():
        bounds = sentences[documents]
        tokens[split] = [ids[start:stop] for start, stop in itertools.pairwise(bounds)]
        inside = np.diff(sentences)
        lengths[split] = [inside[start:stop] for start, stop in itertools.pairwise(documents)]
    places = {"eval": iter(range(len(tokens["eval"]))), "train": iter(range(len(tokens["train"])))}
    moved: dict[str, list[tuple[str, int]]] = {split: [] for split in arrays}
    for there, here in zip(was.tolist(), eval_split.tolist(), strict=True):  # in the order of the text
        split = "eval" if there else "train"
        moved["eval" if here else "train"].append((split, next(places[split])))
    result = {}
    for split, found in moved.items():
        ids = np.concatenate([np.empty(0, arrays[split][0].dtype), *(tokens[old][i] for old, i in found)])
        sentences = np.concatenate([np.zeros(1, np.int64), *(lengths[old][i] for old, i in found)])
        documents = np.array([0, *(len(lengths[old][i]) for old, i in found)], np.int64)
        result[split] = (ids, np.cumsum(sentences), np.cumsum(documents))
    return result


def drop_documents(store: pathlib.Path, index: int, shards: int, dropped: dict[str, np.ndarray], vocabulary_size: int) -> None:
    """Rewrites a shard without the documents for which `dropped` (split -> bool [D]) is True. If the process is killed, the
    next run finds the new shard or the older one."""
    final = store / shard_name(index, shards)
    content = files.read_json(final / "shard.json")
    rewritten = {}
    for split in SPLITS:
        tokens, sentences, documents = shard_arrays(final, split)
        keep = ~dropped[split]
        keep_sentences = np.repeat(keep, np.diff(documents))
        rewritten[split] = (
            tokens[np.repeat(keep_sentences, np.diff(sentences))],
            offsets_from_lengths(np.diff(sentences)[keep_sentences]),
            offsets_from_lengths(np.diff(documents)[keep]),
        )
    hashes = map_array(final / DOCUMENT_HASHES)
    eval_split = hashes < eval_limit(content["eval_fraction"])
    gone_here = np.zeros(len(hashes), bool)
    gone_here[eval_split], gone_here[~eval_split] = dropped["eval"], dropped["train"]
    hashes = hashes[~gone_here]
    gone = sum(int(mask.sum()) for mask in dropped.values())
    content["dropped"]["duplicate-documents"] = content["dropped"].get("duplicate-documents", 0) + gone
    rewrite_shard(store, (index, shards), rewritten, hashes, content, vocabulary_size)


def shard_arrays(shard: pathlib.Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the ARRAYS of one split of a shard. If the shard has WORDS, the token ids are marked (`marked_tokens`)."""
    sentences, documents = (map_array(shard / f"{split}.{name}.npy") for name in ARRAYS[1:])
    return marked_tokens(shard, split), sentences, documents


def rewrite_shard(
    store: pathlib.Path,
    shard: tuple[int, int],
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
    hashes: np.ndarray,
    content: JsonObject,
    vocabulary_size: int,
) -> None:
    """Replaces the arrays of the shard `shard` = (index, number of shards) by `arrays` (split -> arrays as in `shard_arrays`).
    Writes `content` with the new counts as shard.json."""
    final = store / shard_name(*shard)
    with files.writing_directory(final, replace=True) as part:
        for split, values in arrays.items():
            if (final / f"{split}.{WORDS}.npy").is_file():
                write_array(part / f"{split}.{WORDS}.npy", packed_words(values[0]), np.dtype(np.uint8))
                values = (values[0] & np.uint32(BEGINS - 1), *values[1:])
            dtypes = (token_dtype(vocabulary_size), np.dtype(np.int64), np.dtype(np.int64))
            for name, held, dtype in zip(ARRAYS, values, dtypes, strict=True):
                write_array(part / f"{split}.{name}.npy", held, dtype)
            tokens, sentences, documents = map(len, values)
            content["splits"][split] = {"documents": documents - 1, "sentences": sentences - 1, "tokens": tokens}
        write_array(part / DOCUMENT_HASHES, hashes, np.dtype(np.uint64))
        _finish(part, vocabulary_size, content)


def offsets_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Returns the start offsets of n concatenated runs with these `lengths`, followed by the total length, int64 [n + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
