from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from bert_jax.data import plan as plan_module
from bert_jax.data.config import ExampleConfig
from bert_jax.data.plan import plan_epoch, truncation
from tests.data.corpora import FIRST, corpus_of, random_documents
from tests.data.sequential_original import examples_of

DOCUMENTS = random_documents(3000, seed=5)
CORPUS = corpus_of(DOCUMENTS)


def settings(**changes) -> ExampleConfig:
    return ExampleConfig(**({"length": 64, "max_predictions": 10} | changes))


def document_of(corpus, token):
    """Returns int [n], the document that contains token number `token`."""
    sentence = np.searchsorted(corpus.sentence_offsets, token, side="right") - 1
    return np.searchsorted(corpus.document_offsets, sentence, side="right") - 1


@pytest.fixture(scope="module")
def sequential():
    """Returns about 27,000 examples from the plain implementation."""
    tokens = iter(range(FIRST, FIRST + 10**9))
    documents = [[[next(tokens) for _ in range(n)] for n in sentences] for sentences in DOCUMENTS]
    rng = random.Random(1)
    return [example for _ in range(2) for example in examples_of(documents, 61, 0.1, rng)]


@pytest.fixture(scope="module")
def planned():
    return [plan_epoch(CORPUS, settings(), seed=3, epoch=epoch).pairs for epoch in range(3)]


def joined(planned, name):
    return np.concatenate([getattr(pairs, name) for pairs in planned]).astype(np.int64)


def test_the_number_of_examples_equals_the_sequential_original(planned, sequential):
    assert len(joined(planned, "a_start")) / 3 == pytest.approx(len(sequential) / 2, rel=0.01)


def test_the_rate_of_random_next_equals_the_sequential_original(planned, sequential):
    expected = np.mean([example.random_next for example in sequential])
    assert expected > 0.53  # above one half: a window of one sentence always gets a random one
    assert joined(planned, "random_next").mean() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("random_next", [False, True])
def test_lengths_are_distributed_as_in_the_sequential_original(planned, sequential, random_next):
    where = joined(planned, "random_next") == random_next
    a, b = joined(planned, "a_length")[where], joined(planned, "b_length")[where]
    expected = [(len(example.a), len(example.b)) for example in sequential if example.random_next == random_next]
    expected_a, expected_b = map(np.array, zip(*expected, strict=True))
    for ours, theirs in [(a, expected_a), (b, expected_b), (a + b, expected_a + expected_b), (a - b, expected_a - expected_b)]:
        assert stats.ks_2samp(ours, theirs).statistic < 0.02


@pytest.mark.parametrize("random_next", [False, True])
def test_segments_are_cut_from_either_end_as_in_the_sequential_original(planned, sequential, random_next):
    """The test compares where in its first sentence a segment begins."""

    def into_sentence(token):
        return token - CORPUS.sentence_offsets[np.searchsorted(CORPUS.sentence_offsets, token, side="right") - 1]

    where = joined(planned, "random_next") == random_next
    for segment, start in (("a", "a_start"), ("b", "b_start")):
        ours = into_sentence(joined(planned, start)[where])
        theirs = into_sentence(np.array([getattr(e, segment)[0] - FIRST for e in sequential if e.random_next == random_next]))
        assert 0.05 < np.mean(ours > 0) < 0.95
        assert stats.ks_2samp(ours, theirs).statistic < 0.02


def test_truncation_equals_removing_tokens_one_by_one_from_the_longer_segment():
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(30), np.arange(30)))
    for limit in (2, 7, 20, 40, 100):
        cut_a, cut_b = truncation(a, b, limit)
        for i in range(len(a)):
            left = [a[i], b[i]]
            while sum(left) > limit:
                left[0 if left[0] > left[1] else 1] -= 1
            assert (a[i] - cut_a[i], b[i] - cut_b[i]) == tuple(left)
        assert truncation(int(a[77]), int(b[77]), limit) == (cut_a[77], cut_b[77])


@pytest.mark.parametrize("cut", [361, 64, 65])
def test_each_cut_token_comes_off_the_front_with_probability_one_half(cut):
    """Every segment is one sentence, truncated to 39 tokens. Each bit of a 64-bit hash decides one cut."""
    size = 39 + cut
    pairs = plan_epoch(corpus_of([[size]] * 4000), settings(length=80 + 1), seed=0, epoch=0).pairs
    for start, length in ((pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)):
        assert (length == 39).all()
        front = start % size
        assert front.mean() == pytest.approx(cut / 2, abs=5 * np.sqrt(cut / 4 / 4000))
        assert front.var() == pytest.approx(cut / 4, rel=0.12)


def test_cuts_of_the_two_segments_are_independent():
    """Both segments lose 361 of 400 tokens: if they were drawn with the same key, they would lose equally many at the front."""
    pairs = plan_epoch(corpus_of([[400]] * 4000), settings(length=80 + 1), seed=0, epoch=0).pairs
    front_a, front_b = pairs.a_start % 400, pairs.b_start % 400
    assert abs(np.corrcoef(front_a, front_b)[0, 1]) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("pairs", ["original", "paper", "successive"])
def test_actual_next_continues_a_and_random_next_is_from_another_document(pairs):
    plan = plan_epoch(CORPUS, settings(pairs=pairs), seed=0, epoch=0).pairs
    random_next = plan.random_next
    own, other = document_of(CORPUS, plan.a_start), document_of(CORPUS, plan.b_start)
    assert (own[random_next] != other[random_next]).all()
    assert (own[~random_next] == other[~random_next]).all()
    gap = (plan.b_start - plan.a_start - plan.a_length)[~random_next]
    assert gap.min() == 0
    full = (plan.a_length.astype(int) + plan.b_length == 61)[~random_next]
    assert (gap[~full] == 0).all()  # if nothing was truncated, B begins where A ends
    for start, length, document in ((plan.a_start, plan.a_length, own), (plan.b_start, plan.b_length, other)):
        assert (length >= 1).all()
        assert (document_of(CORPUS, start + length - 1) == document).all()  # no segment crosses the end of a document
    assert (plan.a_length.astype(int) + plan.b_length <= 61).all()


def test_unused_sentences_are_put_back_so_that_each_is_used_once():
    # With sentences of one token and a length that never cuts, A and actual-next B together are the corpus, each token once.
    corpus = corpus_of([[1] * n for n in range(1, 120)])
    pairs = plan_epoch(corpus, settings(), seed=0, epoch=0).pairs
    used = [np.arange(s, s + n) for s, n in zip(pairs.a_start, pairs.a_length, strict=True)]
    used += [np.arange(s, s + n) for s, n, r in zip(pairs.b_start, pairs.b_length, pairs.random_next, strict=True) if not r]
    assert (np.sort(np.concatenate(used)) == np.arange(corpus.sentence_offsets[-1])).all()


def test_random_segments_start_uniformly_in_other_documents():
    corpus = corpus_of([[1] * n for n in (1, 2, 4, 8, 16)] * 4)
    document, sentence = [], []
    for epoch in range(300):
        pairs = plan_epoch(corpus, settings(length=24, max_predictions=3), seed=1, epoch=epoch).pairs
        where = pairs.random_next & (document_of(corpus, pairs.a_start) == 19)  # from the last document: 0..18 equally often
        document.append(document_of(corpus, pairs.b_start[where]))
        sentence.append(pairs.b_start[where] - corpus.document_offsets[document[-1]])
    document, sentence = np.concatenate(document), np.concatenate(sentence)
    assert stats.chisquare(np.bincount(document, minlength=19)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(sentence[document % 5 == 3], minlength=8)).pvalue > 1e-4


def test_a_document_has_one_target_length_and_a_tenth_of_them_a_short_one():
    corpus = corpus_of([[1] * 600] * 2000)  # one token per sentence: all chunks but a document's last have the target length
    pairs = plan_epoch(corpus, settings(), seed=2, epoch=0).pairs
    total = pairs.a_length.astype(int) + pairs.b_length
    own = document_of(corpus, pairs.a_start)
    longest = np.zeros(2000, int)
    np.maximum.at(longest, own, total)
    short = longest < 61
    assert short.mean() == pytest.approx(0.1 * 59 / 60, abs=5 * np.sqrt(0.09 / 2000))
    whole = document_of(corpus, pairs.a_start + 61) == own  # not at the end of the document
    inside = whole & ~pairs.random_next
    assert (total[inside] == longest[own[inside]]).all()
    assert stats.chisquare(np.histogram(longest[short], bins=6, range=(2, 61))[0]).pvalue > 1e-4


def test_paper_pairs_are_random_half_of_the_time_for_any_length_of_a():
    pairs = [plan_epoch(CORPUS, settings(pairs="paper"), seed=4, epoch=epoch).pairs for epoch in range(3)]
    random_next, a_length = joined(pairs, "random_next"), joined(pairs, "a_length")
    for where in (a_length > 0, a_length < 10, (a_length >= 10) & (a_length < 30), a_length >= 30):
        assert random_next[where].mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(where.sum()))


def test_paper_pairs_leave_out_only_sentences_without_a_next_one():
    corpus = corpus_of([[3] * n for n in (1, 2, 3, 4, 7)] * 50)
    pairs = plan_epoch(corpus, settings(pairs="paper"), seed=4, epoch=0).pairs
    last = corpus.sentence_offsets[corpus.document_offsets[1:] - 1]
    assert not np.isin(pairs.a_start, last).any()
    own = pairs.a_start[~pairs.random_next]
    assert len(own) > 50


def test_successive_pairs_use_every_sentence_once_and_need_only_one_document():
    for corpus in (corpus_of([[1] * n for n in range(2, 120)]), corpus_of([[1] * 400])):
        pairs = plan_epoch(corpus, settings(pairs="successive", short_probability=0.0), seed=4, epoch=0).pairs
        assert not pairs.random_next.any()
        spans = [(pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)]
        used = np.concatenate([np.arange(s, s + n) for starts, lengths in spans for s, n in zip(starts, lengths, strict=True)])
        assert len(np.unique(used)) == len(used) > 0.95 * corpus.num_tokens


def test_without_pairs_a_row_is_one_segment_and_a_cut_sentence_begins_the_next_row():
    corpus = corpus_of([[20] * 10, [7] * 30])
    pairs = plan_epoch(corpus, settings(pairs="none", short_probability=0.0), seed=4, epoch=0).pairs
    assert (pairs.b_length == 0).all()
    assert not pairs.random_next.any()
    # 62 tokens fit: three sentences of 20 and two tokens of the fourth, which is used again; the last two make a short row.
    assert pairs.a_start[:4].tolist() == [0, 60, 120, 180]
    assert pairs.a_length[:4].tolist() == [62, 62, 62, 20]
    assert pairs.a_start[4:].tolist() == [200, 256, 312, 368]
    assert pairs.a_length[4:].tolist() == [62, 62, 62, 42]


def test_without_pairs_sentences_that_fill_a_row_exactly_are_not_repeated():
    corpus = corpus_of([[31] * 20, [62] * 5])
    pairs = plan_epoch(corpus, settings(pairs="none", short_probability=0.0), seed=4, epoch=0).pairs
    assert pairs.a_start.tolist() == list(range(0, corpus.num_tokens, 62))
    assert (pairs.a_length == 62).all()


def test_without_pairs_a_sentence_longer_than_a_row_is_read_through_a_random_window():
    pairs = plan_epoch(corpus_of([[262]] * 2000), settings(pairs="none"), seed=4, epoch=0).pairs
    offset = pairs.a_start % 262
    assert offset.max() == 200
    assert stats.chisquare(np.histogram(offset, bins=3, range=(0, 201))[0]).pvalue > 1e-4


@pytest.mark.parametrize("pairs", ["original", "paper", "successive", "none"])
def test_the_plan_does_not_depend_on_its_chunk_size(monkeypatch, pairs):
    corpus = corpus_of([[4] * 500, [1] * 200, *random_documents(60, seed=1), [300]])
    whole = plan_epoch(corpus, settings(pairs=pairs), seed=0, epoch=0).pairs
    for block in (7, 1001):
        monkeypatch.setattr(plan_module, "_BLOCK", block)
        for name, values in vars(plan_epoch(corpus, settings(pairs=pairs), seed=0, epoch=0).pairs).items():
            assert (values == getattr(whole, name)).all()
