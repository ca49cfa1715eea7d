from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import masking_tables
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import assemble_rows
from bert_jax.errors import UserError
from tests.data.corpora import corpus_of, random_documents

CORPUS = corpus_of(random_documents(200, seed=1))


def settings(**changes) -> ExampleConfig:
    return ExampleConfig(**({"length": 64, "max_predictions": 12} | changes))


def rows_as_set(config, seed, epoch):
    """Returns every row with its masks, and the order of the rows."""
    plan = plan_epoch(CORPUS, config, seed=seed, epoch=epoch)
    batch = assemble_rows(CORPUS, plan, np.arange(plan.num_rows), masking_tables(CORPUS.vocabulary))
    rows = list(map(tuple, np.concatenate([batch["input_ids"], batch["masked_targets"]], axis=1).tolist()))
    return set(rows), rows


@pytest.mark.parametrize("packed", [1, 3])
def test_the_same_seed_and_epoch_give_the_same_rows(packed):
    assert rows_as_set(settings(packed_examples=packed), 5, 2)[1] == rows_as_set(settings(packed_examples=packed), 5, 2)[1]


OTHERS = [(6, 2), (5, 3), (2, 5)]  # (seed, epoch) other than (5, 2)
ONE_EXAMPLE_EACH = corpus_of([[40]] * 300)  # without pairs: the same 300 examples for any seed and epoch


def spans(seed, epoch):
    """Returns (A's start, B's start, A's length, B's length) of every example."""
    pairs = plan_epoch(CORPUS, settings(), seed=seed, epoch=epoch).pairs
    return set(zip(*(values.tolist() for values in (pairs.a_start, pairs.b_start, pairs.a_length, pairs.b_length)), strict=True))


def masks_by_example(seed, epoch):
    """Returns int [E, M], the masked columns of each example, wherever it is."""
    plan = plan_epoch(ONE_EXAMPLE_EACH, settings(pairs="none"), seed=seed, epoch=epoch)
    rows = np.argsort(plan.rows[:, 0])
    return assemble_rows(ONE_EXAMPLE_EACH, plan, rows, masking_tables(ONE_EXAMPLE_EACH.vocabulary))["masked_positions"]


@pytest.mark.parametrize(("seed", "epoch"), OTHERS)
def test_another_seed_or_epoch_gives_other_pairs(seed, epoch):
    here, there = spans(5, 2), spans(seed, epoch)
    assert len(here & there) < 0.1 * len(here)


@pytest.mark.parametrize(("seed", "epoch"), OTHERS)
def test_another_seed_or_epoch_changes_the_masks_of_the_same_examples(seed, epoch):
    here, there = masks_by_example(5, 2), masks_by_example(seed, epoch)
    assert here.shape == there.shape == (300, 12)
    assert (here == there).all(axis=1).mean() < 0.02


@pytest.mark.parametrize("packed", [1, 3])
@pytest.mark.parametrize(("seed", "epoch"), OTHERS)
def test_another_seed_or_epoch_changes_the_order_of_the_same_examples(seed, epoch, packed):
    config = settings(pairs="none", packed_examples=packed, length=130, max_predictions=60)
    here, there = (plan_epoch(ONE_EXAMPLE_EACH, config, seed=s, epoch=e).rows for s, e in ((5, 2), (seed, epoch)))
    assert here.shape == there.shape
    assert (here == there).all(axis=1).mean() < 0.1


def test_duplicates_repeat_fixed_masks_in_a_new_order():
    rows = [rows_as_set(settings(duplicates=2), 5, epoch) for epoch in range(4)]
    assert rows[0][0] == rows[2][0]
    assert rows[1][0] == rows[3][0]
    assert len(rows[0][0] & rows[1][0]) < 0.02 * len(rows[0][0])
    assert rows[0][1] != rows[2][1]


@pytest.mark.parametrize("pairs", ["original", "paper"])
def test_a_single_document_is_refused_with_a_remedy(pairs):
    corpus = corpus_of([[5, 6, 7]])
    with pytest.raises(UserError, match=r"1 document, 3 sentences.*at least two.*blank lines.*pairs='none'"):
        plan_epoch(corpus, settings(pairs=pairs), seed=0, epoch=0)
    assert plan_epoch(corpus, settings(pairs="none"), seed=0, epoch=0).num_rows == 1


@pytest.mark.parametrize("pairs", ["original", "paper", "none"])
def test_an_empty_corpus_is_an_error(pairs):
    empty = corpus_of([])
    with pytest.raises(UserError, match=r"train split of the corpus is empty \(0 documents, 0 sentences\); build the corpus"):
        plan_epoch(empty, settings(pairs=pairs), seed=0, epoch=0)
    with pytest.raises(UserError, match=r"eval split of the corpus is empty .* with a larger --eval-fraction"):
        plan_epoch(dataclasses.replace(empty, split="eval"), settings(pairs=pairs), seed=0, epoch=0)


def test_a_corpus_of_single_sentences_is_refused_for_paper_pairs():
    corpus = corpus_of([[5]] * 7)
    with pytest.raises(UserError, match=r"no example .* \(7 documents, 7 sentences\).*pairs='paper'"):
        plan_epoch(corpus, settings(pairs="paper"), seed=0, epoch=0)
    assert plan_epoch(corpus, settings(), seed=0, epoch=0).num_rows == 7


def test_the_smallest_corpora_and_rows_work():
    for config in (settings(length=5, max_predictions=1), settings(pairs="none", length=3, max_predictions=1)):
        plan = plan_epoch(corpus_of([[1], [1]]), config, seed=0, epoch=0)
        assert plan.num_rows == 2
        assert (plan.lengths() == config.length).all()


def test_the_summary_counts_rows_examples_random_next_and_padding():
    corpus = corpus_of([[30]] * 8)
    summary = plan_epoch(corpus, settings(length=63, short_probability=0.0), seed=0, epoch=0).summary()
    assert summary == {
        "rows": 8,
        "examples": 8,
        "examples_per_row": 1.0,
        "random_next_fraction": 1.0,
        "padding_fraction": 0.0,
        "packing_efficiency": 1.0,
    }
    packed = plan_epoch(corpus, settings(length=140, packed_examples=2, max_predictions=22), seed=0, epoch=0).summary()
    assert (packed["rows"], packed["examples_per_row"]) == (4, 2.0)
    assert packed["padding_fraction"] == pytest.approx(0.1)
    loose = plan_epoch(corpus, settings(length=200, packed_examples=2, max_predictions=60), seed=0, epoch=0).summary()
    assert loose["packing_efficiency"] == 3 / 4  # 8 examples of 63 tokens fill 2.52 rows
