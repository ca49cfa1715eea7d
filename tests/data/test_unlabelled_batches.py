"""Sentences without labels, in turns with labelled examples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.data import batches as module
from bert_jax.data.batches import AlternatingBatches, LabelledBatches, UnlabelledBatches
from bert_jax.data.corpus.store import WordStarts
from bert_jax.data.rows import Batch, LabelLayout, RowShape
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.data.tokenizers.vocabulary_training import SPECIALS
from bert_jax.data.tokenizers.wordpiece import WordPiece
from tests.data.corpora import FIRST, corpus_of, random_documents
from tests.random_features import LAYOUTS, random_features

DOCUMENTS = [*random_documents(40, seed=3), [70]]
LENGTHS = [length for document in DOCUMENTS for length in document]
SHAPE = RowShape(LabelLayout(per_token=True, logits_per_token=True), 64, 6)
WEIGHTS = "view_weights"


def batches_of(seed: int = 0, sentences: int = 20) -> UnlabelledBatches:
    corpus = corpus_of(DOCUMENTS)
    pieces = [f"##{k}" if k % 3 == 0 else str(k) for k in range(corpus.vocabulary.size)]
    pieces[:5] = SPECIALS
    tokenizer = Tokenizer(WordPiece(pieces, lowercase=True))
    return UnlabelledBatches(
        dataclasses.replace(corpus, tokenizer=tokenizer), SHAPE, sentences, seed, row_multiple=4, weights=WEIGHTS
    )


def sentences_in(batch: Batch) -> list[tuple[int, ...]]:
    return [
        tuple(ids[own == slot].tolist())
        for ids, own in zip(batch["input_ids"], batch["sequence_ids"], strict=True)
        for slot in np.unique(own[own > 0])
    ]


def test_a_step_holds_newly_drawn_whole_sentences_and_marks_their_words():
    starts = dict(zip(np.cumsum([FIRST, *LENGTHS]).tolist(), LENGTHS, strict=False))
    batches = batches_of()
    assert batches.row_count % 4 == 0
    drawn = []
    for step in range(12):
        batch = batches.at(step)
        assert len(batch["input_ids"]) == batches.row_count
        assert not batch["label_weights"].any()
        for ids in sentences_in(batch):
            cls, *inside, sep = ids
            assert (cls, sep) == (101, 102)
            assert inside == list(range(inside[0], inside[0] + min(starts[inside[0]], 62)))
            drawn.append(inside[0])
        tokens, inside = batch["input_ids"], batch["input_ids"] >= FIRST
        first = np.roll(tokens == 101, 1, axis=1)
        np.testing.assert_array_equal(batch[WEIGHTS], (inside & ((tokens % 3 != 0) | first)).astype(np.float32))
    assert len(drawn) > 0.9 * 12 * 20, "few do not fit"
    assert len(set(drawn)) > 0.3 * len(drawn)


def test_words_begin_where_the_corpus_says_if_its_subwords_do_not_show_it():
    corpus = corpus_of(DOCUMENTS)
    bits = np.packbits(np.arange(corpus.num_tokens) % 5 == 0, bitorder="little")
    starts = WordStarts((bits,), np.zeros(1, np.int64), np.array([0, corpus.num_tokens]))
    marked = dataclasses.replace(corpus, word_starts=starts)
    batch = UnlabelledBatches(marked, SHAPE, 20, 0, row_multiple=4, weights=WEIGHTS).at(0)
    tokens = batch["input_ids"]
    inside, first = tokens >= FIRST, np.roll(tokens == 101, 1, axis=1)
    np.testing.assert_array_equal(batch[WEIGHTS], (inside & (((tokens - FIRST) % 5 == 0) | first)).astype(np.float32))


@pytest.mark.parametrize(("features", "rows"), [(6, 828), (1, 1100)])
def test_the_first_sentences_of_the_corpus_determine_the_number_of_rows(features: int, rows: int, monkeypatch):
    """The sentences take 8 and 16 tokens of a row of 16; the rows have a tenth more room than 1,000 sentences take."""
    monkeypatch.setattr(module, "_MEASURED", 2)
    corpus = corpus_of([[6, 100], [14] * 40])
    shape = RowShape(SHAPE.layout, 16, features)
    assert UnlabelledBatches(corpus, shape, 1_000, 0, row_multiple=4, weights=WEIGHTS).row_count == rows


def test_the_sentences_of_a_seed_and_step_equal_the_sentences_of_earlier_versions():
    assert [ids[1] for ids in sentences_in(batches_of(7).at(3))[:4]] == [5074, 6028, 5156, 7015]


def test_a_step_is_a_function_of_seed_and_step_and_hosts_share_its_rows():
    one, two = batches_of(), batches_of()
    for step in (0, 5):
        whole = one.at(step)
        halves = [two.at(step, (host, 2)) for host in (0, 1)]
        assert sorted(ids for half in halves for ids in sentences_in(half)) == sorted(sentences_in(whole))
        assert [len(half["input_ids"]) for half in halves] == [one.row_count // 2] * 2
        assert sentences_in(batches_of(seed=1).at(step)) != sentences_in(whole)


def test_labelled_and_unlabelled_batches_alternate():
    features = random_features("token", 10)
    shape = RowShape(LAYOUTS["token"], 32, 4)
    labelled = LabelledBatches(features, shape, 4, 0, epochs=2, row_multiple=1, pad_id=0)
    unlabelled = batches_of()
    both = AlternatingBatches(labelled, unlabelled)
    assert both.steps_per_epoch == 2 * 3
    assert both.row_counts == tuple(sorted({*labelled.row_counts, unlabelled.row_count}))
    for step in range(8):
        wanted = unlabelled.at(step // 2) if step % 2 else labelled.at(step // 2)
        found = both.at(step)
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
        assert (WEIGHTS in found) == bool(step % 2)
