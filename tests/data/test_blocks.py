"""Large corpora in blocks."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus, CorruptedCorpus, ShardedOffsets, TokenStore
from bert_jax.data.plan import SEGMENTS, Blocks
from bert_jax.errors import UserError
from tests.data.corpora import FIRST, corpus_of, random_documents, vocabulary

CORPUS = corpus_of(random_documents(900, seed=1), shards=3)
BLOCK = CORPUS.num_tokens // 5 + 1
CONFIG = ExampleConfig(length=64, max_predictions=12)


def blocks(**options: int) -> Blocks:
    return Blocks(CORPUS, seed=9, block_tokens=BLOCK, **options)


def tokens_of(corpus: Corpus) -> np.ndarray:
    """Returns a corpus in which each token is a different number."""
    return corpus.tokens[0 : corpus.num_tokens]


def test_offsets_of_shards_equal_joined_offsets_by_index_slice_and_search():
    rng = np.random.default_rng(0)
    parts = [np.concatenate([[0], np.cumsum(rng.integers(1, 9, n))]).astype(np.int64) for n in (5, 1, 0, 7)]
    offsets = ShardedOffsets(parts)
    bases = np.cumsum([0, *(int(part[-1]) for part in parts)])
    joined = np.concatenate([[0], *(part[1:] + base for part, base in zip(parts, bases, strict=False))])
    np.testing.assert_array_equal(offsets.joined(), joined)
    assert [offsets[i] for i in range(len(offsets))] == joined.tolist()
    for start in range(len(joined)):
        for stop in range(start, len(joined) + 1):
            np.testing.assert_array_equal(offsets[start:stop], joined[start:stop])
    found = [offsets.first_reaching(goal) for goal in range(int(joined[-1]) + 3)]
    assert found == [min(int(np.searchsorted(joined, goal)), len(joined) - 1) for goal in range(int(joined[-1]) + 3)]


def test_a_small_corpus_is_one_block_with_the_seed_and_the_epochs_of_the_run():
    for epoch in (0, 3):
        corpus, seed, found = Blocks(CORPUS, seed=9).at(epoch)
        assert corpus is CORPUS
        assert (seed, found) == (9, epoch)


def test_the_blocks_of_an_epoch_hold_every_document_once_from_all_over_the_corpus():
    made = blocks()
    assert made.count == 5
    parts = [made.at(n)[0] for n in range(5)]
    starts = []
    for part in parts:
        sentences, documents = part.joined_offsets()
        tokens = tokens_of(part)
        assert abs(len(tokens) - CORPUS.num_tokens / 5) < 0.2 * CORPUS.num_tokens / 5
        for first, last in itertools.pairwise(documents):
            own = tokens[sentences[first] : sentences[last]]
            np.testing.assert_array_equal(own, np.arange(own[0], own[0] + len(own)))  # in the order of the corpus
            starts.append(own[0])
        thirds = np.histogram(tokens, 3, (FIRST, FIRST + CORPUS.num_tokens))[0]
        assert thirds.min() > 0
    whole_sentences, whole_documents = CORPUS.joined_offsets()
    np.testing.assert_array_equal(np.sort(starts), FIRST + whole_sentences[whole_documents[:-1]])
    np.testing.assert_array_equal(np.sort(np.concatenate([tokens_of(part) for part in parts])), tokens_of(CORPUS))


def test_segments_without_a_document_start_are_not_in_a_block():
    corpus = corpus_of([[9] * 30, [4], [7] * 40, [300]], shards=2)
    made = Blocks(corpus, seed=9, block_tokens=corpus.num_tokens // 3)
    parts = [made.at(n)[0] for n in range(made.count)]
    assert sum(part.num_documents for part in parts) == 4
    tokens = np.concatenate([tokens_of(part) for part in parts if part.num_tokens])
    np.testing.assert_array_equal(np.sort(tokens), tokens_of(corpus))


def test_documents_too_long_for_blocks_are_refused_before_a_run_starts():
    few = corpus_of([[9] * 30, [4], [7] * 40, [300]], shards=2)
    message = (
        r"are too long to be mixed: 854 tokens are in 4 documents. Of 64 parts with 13 tokens each, 61 contain no .* blank "
        r"lines"
    )
    with pytest.raises(UserError, match=message):
        BatchSource(few, CONFIG, 4, seed=0, block_tokens=few.num_tokens // 3)
    assert BatchSource(few, CONFIG, 4, seed=0).rows_per_epoch > 0  # one block


@pytest.mark.parametrize(("documents", "empty"), [([[80]] * 32, 32), ([[80]] * 30 + [[160]], 33)])
def test_documents_may_start_in_half_of_the_segments(documents, empty):
    corpus = corpus_of(documents, shards=1)
    made = Blocks(corpus, seed=0, block_tokens=640)
    assert (made.count, sum(first == last for first, last in map(made.documents, range(64)))) == (4, empty)
    if empty > 32:
        with pytest.raises(UserError, match=f"Of 64 parts with 40 tokens each, {empty} contain no document start"):
            made.require_documents()
    else:
        made.require_documents()


def test_blocks_have_new_segments_in_every_epoch_unless_duplicates_are_fixed():
    def contents(made: Blocks, epoch: int) -> list[tuple[bytes, int]]:
        return [(tokens_of(part).tobytes(), seed) for part, seed, _ in (made.at(5 * epoch + n) for n in range(5))]

    first, second = (contents(blocks(), epoch) for epoch in (0, 1))
    assert not {tokens for tokens, _ in first} & {tokens for tokens, _ in second}
    first, second = (contents(blocks(duplicates=1), epoch) for epoch in (0, 1))
    assert set(first) == set(second)
    assert first != second


def test_blocks_of_two_seeds_have_different_random_numbers():
    assert len({blocks().at(n)[1] for n in range(5)}) == 5
    assert Blocks(CORPUS, seed=8, block_tokens=BLOCK).at(0)[1] not in {blocks().at(n)[1] for n in range(5)}


def test_sharded_offsets_give_the_same_blocks_as_joined_offsets():
    ends = [0, 300, 301, 900]
    sentences, documents = CORPUS.joined_offsets()
    parts = [(documents[a : b + 1], sentences[documents[a] : documents[b] + 1]) for a, b in itertools.pairwise(ends)]
    lazy = dataclasses.replace(
        CORPUS,
        document_offsets=ShardedOffsets([of_documents - of_documents[0] for of_documents, _ in parts]),
        sentence_offsets=ShardedOffsets([of_sentences - of_sentences[0] for _, of_sentences in parts]),
    )
    for n in (0, 7):
        ours, theirs = Blocks(lazy, seed=9, block_tokens=BLOCK).at(n), blocks().at(n)
        np.testing.assert_array_equal(tokens_of(ours[0]), tokens_of(theirs[0]))
        for found, wanted in zip(ours[0].joined_offsets(), theirs[0].joined_offsets(), strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert ours[1:] == theirs[1:]


def test_descending_offsets_are_refused_when_their_block_is_read():
    sentences = CORPUS.joined_offsets()[0].copy()
    sentences[40] = sentences[39]
    with pytest.raises(CorruptedCorpus, match=r"the offsets of documents .* do not ascend"):
        dataclasses.replace(CORPUS, sentence_offsets=sentences).part([(0, 900)])


def epoch_of(source: BatchSource, epoch: int) -> np.ndarray:
    """Returns the rows of the batches that belong to this epoch only."""
    steps = source.rows_per_epoch // 48
    return np.concatenate([source.at(epoch * steps + step)["input_ids"] for step in range(steps)])


def test_batches_of_blocks_do_not_depend_on_earlier_requests():
    def source() -> BatchSource:
        return BatchSource(CORPUS, CONFIG, 48, seed=9, block_tokens=BLOCK)

    ours = source()
    steps = range(ours.rows_per_epoch // 48)
    served = {step: ours.at(step) for step in steps}
    for step in (steps[-1], 0, len(steps) // 2):
        again = source().at(step, (1, 2))
        for name, rows in again.items():
            np.testing.assert_array_equal(rows, served[step][name][24:])


def test_an_epoch_of_blocks_covers_as_much_of_the_corpus_as_a_single_block():
    """The fraction is 0.81 of the tokens: others are masked, cut off, or after a random second segment."""
    source = BatchSource(CORPUS, CONFIG, 48, seed=9, block_tokens=BLOCK)
    of_blocks, whole = epoch_of(source, 0), epoch_of(BatchSource(CORPUS, CONFIG, 48, seed=9), 0)
    seen, wanted = (len(np.unique(rows[rows >= FIRST])) / CORPUS.num_tokens for rows in (of_blocks, whole))
    assert seen == pytest.approx(wanted, abs=0.03)
    assert (of_blocks != epoch_of(source, 1)).any(1).mean() > 0.99


def test_a_batch_of_a_huge_corpus_needs_only_the_memory_of_a_block():
    """The corpus repeats one part of a million sentences. A batch reads the content of one block."""
    tile = 2**20
    lengths = np.random.default_rng(0).integers(8, 40, tile)
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    documents = np.arange(0, tile + 1, 64, dtype=np.int64)
    tokens = np.full(sentences[-1], 7, np.uint16)
    times = 10**11 // int(sentences[-1]) + 1
    bounds = np.arange(times + 1, dtype=np.int64) * sentences[-1]
    vocabulary_of_8 = dataclasses.replace(vocabulary(2_000), pad_id=0)
    corpus = Corpus(
        TokenStore((tokens,) * times, bounds),
        ShardedOffsets([sentences] * times),
        ShardedOffsets([documents] * times),
        np.ones(2_000, np.int64),
        vocabulary_of_8,
        "train",
        None,
    )
    assert corpus.num_tokens > 10**11
    block = 2**22  # tokens, here; 128 times as many in a run
    source = BatchSource(corpus, CONFIG, 16, seed=0, block_tokens=block)
    assert source.rows_per_epoch * 64 > 0.9e11
    late = source.rows_per_epoch // 16 - 3
    assert source.at(late)["input_ids"].shape == (16, 64)
    part = Blocks(corpus, 0, block_tokens=block).at(12_345)[0]
    assert abs(part.num_tokens - block) < 0.1 * block
    assert len(part.sentence_offsets) < 1.5 * block / 23.5
    assert SEGMENTS == 16
