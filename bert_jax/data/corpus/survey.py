"""Statistics of a finished corpus from its arrays: lengths, unknown tokens, repeated sentences and documents.

Equal sentences are found by a 64-bit polynomial hash of their ids, all at once in numpy (about 60 million tokens/s on one
core). Above `_EXACT_SENTENCES` only the sentences whose hash falls in a fixed residue class are compared: all copies of a
sentence are in the same class, so the duplicate rate is unbiased and memory is bounded.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from bert_jax import files
from bert_jax.data.corpus.arrays import ARRAYS, DOCUMENT_HASHES, SPLITS, map_array, shard_name, write_array
from bert_jax.data.corpus.heldout import heldout_limit
from bert_jax.data.corpus.shard import finish_shard, temporary_name
from bert_jax.files import JsonObject

_EXACT_SENTENCES = 20_000_000
_CHUNK_TOKENS = 1 << 21
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so its powers never vanish modulo 2^64
_LENGTH_BINS = 24  # a length n is counted in bin floor(log2 n)
_REPEATED = 20  # the most repeated lines of each shard that are kept


@dataclasses.dataclass(frozen=True)
class ShardSurvey:
    """Statistics of one shard, as sums and hashes that can be combined over shards."""

    document_hashes: dict[str, np.ndarray]  # split -> uint64 [D]
    line_hashes: np.ndarray  # uint64, distinct
    line_counts: np.ndarray  # int64, how often each occurs in this shard
    repeated: dict[int, list[int]]  # hash -> ids of a line that is frequent in this shard
    sentence_lengths: np.ndarray  # int64 [bins], both splits, in tokens
    document_lengths: np.ndarray  # int64 [bins]
    one_sentence_documents: int
    unknown: dict[str, int]  # split -> unknown tokens


def survey_shard(path: pathlib.Path, *, vocabulary_size: int, unk_id: int, every: int) -> ShardSurvey:
    """Surveys one shard; compares the lines of one hash class in `every` (see `sampling`)."""
    hashes: dict[str, np.ndarray] = {}
    sentence_lengths, document_lengths = np.zeros(_LENGTH_BINS, np.int64), np.zeros(_LENGTH_BINS, np.int64)
    unknown, single = {}, 0
    lines, examples = [], {}
    for split in SPLITS:
        tokens, sentences, documents = (map_array(path / f"{split}.{name}.npy") for name in ARRAYS)
        of_sentences = _sentence_hashes(tokens, sentences, vocabulary_size)
        hashes[split] = _hash_runs(of_sentences, documents)
        sentence_lengths += _length_histogram(np.diff(sentences))
        document_lengths += _length_histogram(np.diff(sentences[documents]))
        single += int(np.sum(np.diff(documents) == 1))
        unknown[split] = sum(int(np.sum(chunk == unk_id)) for chunk in _chunks(tokens))
        sampled = np.flatnonzero(of_sentences % np.uint64(every) == 0)
        lines.append(of_sentences[sampled])
        distinct, first, counts = np.unique(lines[-1], return_index=True, return_counts=True)
        for k in np.argsort(-counts, kind="stable")[:_REPEATED]:
            place = sampled[first[k]]
            examples[int(distinct[k])] = tokens[sentences[place] : sentences[place + 1]].tolist()
    distinct, counts = np.unique(np.concatenate(lines), return_counts=True)
    return ShardSurvey(hashes, distinct, counts, examples, sentence_lengths, document_lengths, single, unknown)


def sampling(sentences: int) -> int:
    """The number of hash classes of which one is compared, for a corpus of `sentences` sentences; 1: all lines, an exact rate."""
    return max(1, sentences // _EXACT_SENTENCES)


def duplicate_lines(surveys: list[ShardSurvey]) -> tuple[float, list[tuple[int, list[int]]]]:
    """The fraction of sentences that repeat an earlier one, and the most repeated: (occurrences, ids)."""
    hashes = np.concatenate([survey.line_hashes for survey in surveys])
    counts = np.concatenate([survey.line_counts for survey in surveys])
    distinct, inverse = np.unique(hashes, return_inverse=True)
    totals = np.bincount(inverse, weights=counts, minlength=len(distinct))
    rate = float(1 - len(distinct) / totals.sum()) if len(distinct) else 0.0
    examples = {key: ids for survey in surveys for key, ids in survey.repeated.items()}
    best = sorted(((int(totals[np.searchsorted(distinct, np.uint64(key))]), ids) for key, ids in examples.items()), reverse=True)
    return rate, [(count, ids) for count, ids in best[:5] if count > 1]


def repeated_documents(surveys: list[ShardSurvey]) -> list[dict[str, np.ndarray]]:
    """For each shard and split: bool [D], True for a document that equals one before it (by shard, train before heldout)."""
    everything = [(shard, split) for shard in range(len(surveys)) for split in SPLITS]
    lengths = [len(surveys[shard].document_hashes[split]) for shard, split in everything]
    hashes = np.concatenate([surveys[shard].document_hashes[split] for shard, split in everything])
    repeated = np.ones(len(hashes), bool)
    repeated[np.unique(hashes, return_index=True)[1]] = False  # return_index gives first occurrences
    parts = dict(zip(everything, np.split(repeated, np.cumsum(lengths)[:-1]), strict=True))
    return [{split: parts[shard, split] for split in SPLITS} for shard in range(len(surveys))]


def drop_documents(store: pathlib.Path, index: int, shards: int, dropped: dict[str, np.ndarray], vocabulary_size: int) -> None:
    """Rewrites a shard without some documents. A kill leaves a complete shard, or none, which the next run builds again."""
    final = store / shard_name(index, shards)
    content = files.read_json(final / "shard.json")
    rewritten = {}
    for split in SPLITS:
        tokens, sentences, documents = (map_array(final / f"{split}.{name}.npy") for name in ARRAYS)
        keep = ~dropped[split]
        keep_sentences = np.repeat(keep, np.diff(documents))
        rewritten[split] = (
            tokens[np.repeat(keep_sentences, np.diff(sentences))],
            offsets_of(np.diff(sentences)[keep_sentences]),
            offsets_of(np.diff(documents)[keep]),
        )
    hashes = map_array(final / DOCUMENT_HASHES)
    heldout = hashes < heldout_limit(content["heldout_fraction"])
    gone_here = np.zeros(len(hashes), bool)
    gone_here[heldout], gone_here[~heldout] = dropped["heldout"], dropped["train"]
    hashes = hashes[~gone_here]
    gone = sum(int(mask.sum()) for mask in dropped.values())
    content["dropped"]["duplicate-documents"] = content["dropped"].get("duplicate-documents", 0) + gone
    rewrite_shard(store, (index, shards), rewritten, hashes, content, vocabulary_size)


def rewrite_shard(
    store: pathlib.Path,
    shard: tuple[int, int],
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
    hashes: np.ndarray,
    content: JsonObject,
    vocabulary_size: int,
) -> None:
    """Replaces shard (index, number of shards) by `arrays` (split -> `ARRAYS`), with `content` and the new counts as its
    shard.json."""
    final, part = store / shard_name(*shard), store / temporary_name(*shard)
    files.remove_tree(part)
    part.mkdir()
    for split, values in arrays.items():
        for name, array, dtype in zip(ARRAYS, values, (values[0].dtype, np.dtype(np.int64), np.dtype(np.int64)), strict=True):
            write_array(part / f"{split}.{name}.npy", array, dtype)
        tokens, sentences, documents = map(len, values)
        content["splits"][split] = {"documents": documents - 1, "sentences": sentences - 1, "tokens": tokens}
    write_array(part / DOCUMENT_HASHES, hashes, np.dtype(np.uint64))
    old = store / f"{temporary_name(*shard)}.old"
    final.rename(old)
    finish_shard(part, final, vocabulary_size, content)
    files.remove_tree(old)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """int64 [n + 1]: the start offsets of n concatenated runs of these `lengths`, and their total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _chunks(tokens: np.ndarray) -> Iterator[np.ndarray]:
    return (tokens[start : start + _CHUNK_TOKENS] for start in range(0, len(tokens), _CHUNK_TOKENS))


def _length_histogram(lengths: np.ndarray) -> np.ndarray:
    bins = np.floor(np.log2(lengths)).astype(np.int64) if len(lengths) else np.zeros(0, np.int64)
    return np.bincount(np.minimum(bins, _LENGTH_BINS - 1), minlength=_LENGTH_BINS)


def _sentence_hashes(tokens: np.ndarray, offsets: np.ndarray, vocabulary_size: int) -> np.ndarray:
    """uint64 [S]: the hash of each sentence, computed in chunks to bound memory."""
    # one random number for each id, the same in every process
    values = np.random.default_rng(0).integers(0, 2**64, vocabulary_size, dtype=np.uint64)
    parts, start = [np.zeros(0, np.uint64)], 0
    while start < len(offsets) - 1:
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _CHUNK_TOKENS, side="right")) - 1)
        chunk = np.asarray(offsets[start : stop + 1])
        parts.append(_hash_runs(values[tokens[chunk[0] : chunk[-1]]], chunk - chunk[0]))
        start = stop
    return np.concatenate(parts)


def _hash_runs(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """uint64 [runs]: the sum of value * multiplier ** (position + 1), modulo 2^64, over each run. No run may be empty."""
    lengths = np.diff(offsets)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), _MULTIPLIER))
    places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    return np.add.reduceat(values * powers[places], offsets[:-1])
