"""Chooses the held-out documents by their content hashes, and changes the choice in a finished shard.

A document is held out if its hash is below the held-out fraction of the hash range. A finished shard stores the hash of every
document, so a new fraction moves documents between its splits without reading or tokenising text.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

_ENOUGH = 10  # documents: an evaluation on fewer is too noisy


def heldout_limit(fraction: float) -> np.uint64:
    """The hash below which documents are held out."""
    return np.uint64(math.ceil(fraction * 2.0**64))


def min_heldout_documents(documents: int) -> int:
    """The minimum number of held-out documents for a corpus of `documents`: ten, or a tenth below a hundred, but at least two
    (next sentence prediction takes its random segments from another document); below four documents one or none, so that one is
    left for training."""
    return min(_ENOUGH, max(2, documents // 10)) if documents >= 4 else max(0, min(1, documents - 1))


def usable_fraction(hashes: np.ndarray, fraction: float) -> float:
    """`fraction`, or the smallest fraction that holds out enough of the documents with these `hashes` (uint64 [D])."""
    wanted = min_heldout_documents(len(hashes))
    if np.count_nonzero(hashes < heldout_limit(fraction)) >= wanted:
        return fraction
    exact = (int(np.sort(hashes)[wanted - 1]) + 4096) / 2.0**64
    short = math.ceil(exact * 1000) / 1000  # three decimals, unless that holds out too many documents
    if short >= 1:
        return exact
    taken = np.count_nonzero(hashes < heldout_limit(short))
    return short if taken <= 2 * wanted and len(hashes) - taken >= wanted else exact


def resplit_shard(
    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], hashes: np.ndarray, before: float, now: float
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The arrays of a shard, split -> (tokens, sentences, documents), after a change of the held-out fraction from `before` to
    `now`."""
    was, heldout = hashes < heldout_limit(before), hashes < heldout_limit(now)
    tokens, lengths = {}, {}
    for split, (ids, sentences, documents) in arrays.items():
        bounds = sentences[documents]
        tokens[split] = [ids[start:stop] for start, stop in itertools.pairwise(bounds)]
        inside = np.diff(sentences)
        lengths[split] = [inside[start:stop] for start, stop in itertools.pairwise(documents)]
    places = {"heldout": iter(range(len(tokens["heldout"]))), "train": iter(range(len(tokens["train"])))}
    moved: dict[str, list[tuple[str, int]]] = {split: [] for split in arrays}
    for there, here in zip(was.tolist(), heldout.tolist(), strict=True):  # in the order of the text
        split = "heldout" if there else "train"
        moved["heldout" if here else "train"].append((split, next(places[split])))
    result = {}
    for split, found in moved.items():
        ids = np.concatenate([np.empty(0, arrays[split][0].dtype), *(tokens[old][i] for old, i in found)])
        sentences = np.concatenate([np.zeros(1, np.int64), *(lengths[old][i] for old, i in found)])
        documents = np.array([0, *(len(lengths[old][i]) for old, i in found)], np.int64)
        result[split] = (ids, np.cumsum(sentences), np.cumsum(documents))
    return result
