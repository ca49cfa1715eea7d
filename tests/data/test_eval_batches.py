from __future__ import annotations

import numpy as np
import pytest

from bert_jax.data.batches import corpus_masking_tables, eval_batches
from bert_jax.data.config import ExampleConfig
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import assemble_rows
from bert_jax.errors import UserError
from tests.data.corpora import corpus_of, random_documents

CORPUS = corpus_of(random_documents(60, seed=1))
CONFIG = ExampleConfig(length=64, max_predictions=12)


def real_rows(batches):
    """Returns every row with an example, as a sorted list of tuples: tokens, targets, label."""
    rows = [
        (*ids, *targets, *labels)
        for batch in batches
        for ids, targets, labels, sequence in zip(*(batch[n].tolist() for n in NAMES), strict=True)
        if any(sequence)
    ]
    return sorted(rows)


NAMES = ("input_ids", "masked_targets", "nsp_labels", "sequence_ids")


@pytest.mark.parametrize("packed", [1, 3])
@pytest.mark.parametrize("max_rows", [None, 50])
def test_each_row_comes_once_for_any_batch_size_and_number_of_hosts(packed, max_rows):
    config = ExampleConfig(length=64, max_predictions=12, packed_examples=packed)
    expected = real_rows(eval_batches(CORPUS, config, 1, max_rows, seed=0))
    assert len(set(expected)) == len(expected)
    assert max_rows is None or len(expected) == 50
    if max_rows is None:
        assert real_rows(eval_batches(CORPUS, config, 28, 10**9, seed=0)) == expected  # more rows than there are
    for batch_size in (12, 28, 1000):
        for hosts in (1, 4):
            shards = [list(eval_batches(CORPUS, config, batch_size, max_rows, seed=0, shard=(i, hosts))) for i in range(hosts)]
            assert len({len(batches) for batches in shards}) == 1  # hosts that have to meet in every step
            own = min(batch_size // hosts, -(-len(expected) // hosts))  # there are fewer than 1,000 rows
            assert all(len(batch["input_ids"]) == own for batches in shards for batch in batches)
            assert real_rows(batch for batches in shards for batch in batches) == expected


def test_padding_rows_of_the_last_batch_do_not_count():
    *_, last = eval_batches(CORPUS, CONFIG, 32, 40, seed=0)
    assert (last["sequence_ids"][8:] == 0).all()
    assert (last["masked_targets"][8:] == -1).all()
    assert (last["nsp_labels"][8:] == -1).all()
    assert (last["sequence_ids"][:8] > 0).any(axis=1).all()


def test_evaluation_rows_are_fixed():
    first, again = (real_rows(eval_batches(CORPUS, CONFIG, 16, None, seed=0)) for _ in range(2))
    assert first == again


def test_evaluation_rows_are_the_first_of_epoch_0_by_default():
    plan = plan_epoch(CORPUS, CONFIG, seed=3, epoch=0)
    first, second = eval_batches(CORPUS, CONFIG, 4, 8, 3)
    for batch, rows in ((first, np.arange(4)), (second, np.arange(4, 8))):
        for name, array in assemble_rows(CORPUS, plan, rows, corpus_masking_tables(CORPUS)).items():
            np.testing.assert_array_equal(batch[name], array)


def test_fewer_rows_are_a_subset_of_all_rows():
    everything = set(real_rows(eval_batches(CORPUS, CONFIG, 16, None, seed=0)))
    some = real_rows(eval_batches(CORPUS, CONFIG, 16, 30, seed=0))
    assert len(some) == 30
    assert set(some) <= everything


def test_too_small_a_split_is_an_error():
    with pytest.raises(UserError, match="at least two"):
        next(eval_batches(corpus_of([[4, 4]]), CONFIG, 16, None, seed=0))


def test_a_batch_that_does_not_divide_over_the_hosts_is_an_error():
    with pytest.raises(UserError, match=r"batch_size=10 cannot be divided equally among 4 hosts; set 8 or 12"):
        next(eval_batches(CORPUS, CONFIG, 10, None, seed=0, shard=(0, 4)))


def test_a_single_row_may_be_evaluated_and_a_split_of_one_row_be_padded():
    (one,) = eval_batches(CORPUS, CONFIG, 16, 1, seed=0)
    assert one["input_ids"].shape == (1, 64)
    config = ExampleConfig(length=64, max_predictions=12, pairs="none")
    (padded,) = eval_batches(corpus_of([[9]]), config, 16, None, seed=0, row_multiple=4)
    assert (padded["sequence_ids"] > 0).sum(axis=1).tolist() == [11, 0, 0, 0]


def test_zero_rows_are_refused():
    with pytest.raises(UserError, match="max_rows=0"):
        next(eval_batches(CORPUS, CONFIG, 16, 0, seed=0))


def test_a_batch_is_at_most_the_number_of_rows_and_divides_over_the_devices():
    (whole,) = eval_batches(CORPUS, CONFIG, 100_000, 13, seed=0)
    assert len(whole["input_ids"]) == 13
    (on_devices,) = eval_batches(CORPUS, CONFIG, 100_000, 13, seed=0, row_multiple=8)
    assert len(on_devices["input_ids"]) == 16
    assert real_rows([on_devices]) == real_rows([whole])
