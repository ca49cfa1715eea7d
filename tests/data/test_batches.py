from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import threading

import numpy as np
import pytest

from bert_jax.data.batches import BatchSource, check_own_rows, corpus_masking_tables
from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import masking_tables
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import assemble_rows
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.data.corpora import corpus_from_arrays, corpus_of, random_documents

CORPUS = corpus_of(random_documents(300, seed=1), shards=3)
CONFIG = ExampleConfig(length=64, max_predictions=12)


def assert_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name])


def joined(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.fixture(scope="module")
def source():
    return BatchSource(CORPUS, CONFIG, 52, seed=9)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_any_number_of_hosts_gives_the_same_global_rows(source, hosts):
    straddling = source.rows_per_epoch // 52
    for step in (0, 3, straddling, 5 * straddling + 4):
        sources = [BatchSource(CORPUS, CONFIG, 52, seed=9) for _ in range(hosts)]
        assert_equal(joined([sources[i].at(step, (i, hosts)) for i in range(hosts)]), source.at(step))


def test_a_batch_does_not_depend_on_earlier_requests_or_threads(source):
    steps = np.random.default_rng(0).permutation(4 * source.rows_per_epoch // 52)[:60].tolist()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for step, batch in zip(steps, pool.map(source.at, steps), strict=True):
            assert_equal(batch, BatchSource(CORPUS, CONFIG, 52, seed=9).at(step))


def test_batches_visit_every_row_of_an_epoch_once_and_continue_into_the_next(source):
    rows = source.rows_per_epoch
    assert rows % 52  # otherwise no batch straddles
    steps = range(2 * rows // 52)
    served = joined([source.at(step) for step in steps])
    tables = masking_tables(CORPUS.vocabulary)
    plans = [plan_epoch(CORPUS, CONFIG, seed=9, epoch=epoch) for epoch in (0, 1)]
    first = assemble_rows(CORPUS, plans[0], np.arange(rows), tables)
    second = assemble_rows(CORPUS, plans[1], np.arange(len(steps) * 52 - rows) % plans[1].num_rows, tables)
    assert_equal(served, joined([first, second]))


def test_an_epoch_with_fewer_rows_than_the_first_repeats_its_first_ones_once():
    shorter, rows = plan_epoch(CORPUS, CONFIG, seed=5, epoch=1), plan_epoch(CORPUS, CONFIG, seed=5, epoch=0).num_rows
    missing = rows - shorter.num_rows
    assert 1 < missing < shorter.num_rows
    served = BatchSource(CORPUS, CONFIG, rows, seed=5).at(1)
    expected = np.concatenate([np.arange(shorter.num_rows), np.arange(missing)])
    assert_equal(served, assemble_rows(CORPUS, shorter, expected, masking_tables(CORPUS.vocabulary)))


def test_a_batch_may_be_larger_than_several_epochs(source):
    small = corpus_of([[9, 8], [7], [6, 5, 4]])
    batch = BatchSource(small, CONFIG, 40, seed=0).at(2)
    assert batch["input_ids"].shape == (40, 64)
    assert (batch["nsp_labels"] >= 0).all()
    assert len(np.unique(batch["input_ids"], axis=0)) > 20  # with new masks each time


def test_another_seed_gives_other_rows(source):
    assert (BatchSource(CORPUS, CONFIG, 52, seed=10).at(0)["input_ids"] != source.at(0)["input_ids"]).any(axis=1).all()


def test_the_next_epoch_is_planned_in_the_background_before_it_is_needed(monkeypatch):
    start, started = threading.Thread.start, []
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self) or start(self))
    source = BatchSource(CORPUS, CONFIG, 16, seed=9)
    source.at(0)
    assert [thread.name for thread in started] == ["plan-block-0"]
    source.at(source.rows_per_epoch * 2 // 3 // 16)
    assert [thread.name for thread in started] == ["plan-block-0", "plan-block-1"]
    source.at(source.rows_per_epoch // 16)
    assert len(started) == 2
    assert all(thread.daemon for thread in started)


def test_a_failed_plan_fails_its_batch_and_is_tried_again(monkeypatch):
    source = BatchSource(CORPUS, CONFIG, 16, seed=9)

    def fail(**key):
        raise MemoryError("no room")

    step = source.rows_per_epoch // 16 + 5
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "Philox", fail)
        with pytest.raises(MemoryError, match="no room"):
            source.at(step)
    assert source.at(step)["input_ids"].shape == (16, 64)


def test_the_next_block_is_planned_from_the_middle_of_the_current_one():
    source = BatchSource(CORPUS, CONFIG, 1, seed=9)
    source._rows_per_block = 10
    source.at(4)
    assert list(source._planned) == [0]
    source.at(5)
    assert list(source._planned) == [0, 1]
    source = BatchSource(CORPUS, CONFIG, 3, seed=9)
    source._rows_per_block = 10
    source.at(1)  # the sixth is its last row, not its second
    assert list(source._planned) == [0, 1]
    source = BatchSource(CORPUS, CONFIG, 8, seed=9)
    source._rows_per_block = 10
    source.at(1)  # two rows of block 0, six of block 1
    assert list(source._planned) == [0, 1, 2]


def test_the_least_recently_used_plan_is_dropped():
    source = BatchSource(CORPUS, CONFIG, 16, seed=9)
    for block in (1, 2, 0, 3):
        source.plan(block)
    assert list(source._planned) == [2, 0, 3]


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2)])
def test_a_host_index_out_of_range_is_an_error(source, shard):
    with pytest.raises(ValueError, match=f"shard {shard[0]} of 2"):
        source.at(0, shard)


def test_few_plans_are_held(source):
    for step in range(0, 10 * source.rows_per_epoch // 52, 7):
        source.at(step)
    assert len(source._planned) <= 3


def test_a_batch_that_does_not_divide_over_the_hosts_is_refused_with_sizes_that_do(source):
    with pytest.raises(UserError, match=r"batch_size=52 cannot be divided equally among 5 hosts; set 50 or 55"):
        source.at(0, (1, 5))


def test_a_batch_without_rows_is_an_error():
    with pytest.raises(UserError, match="batch_size=0"):
        BatchSource(CORPUS, CONFIG, 0, seed=0)


def test_masking_tables_come_from_the_tokenizer_of_the_corpus(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused5]", *"abcdefghijklmnopqrstuvwxyz", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=True)
    tables = corpus_masking_tables(dataclasses.replace(CORPUS, vocabulary=tokenizer.vocabulary, tokenizer=tokenizer))
    assert tables.legal_ids.tolist() == list(range(6, 33))
    assert np.flatnonzero(tables.continuation).tolist() == [32]


POLICIES = """
import itertools
import numpy
calls = itertools.count()
def pure(example, rate, rng): return rng.permutation([word[0] for word in example.words])[:3]
def counting(example, rate, rng): return example.words[next(calls) % len(example.words)]
def drawing(example, rate, rng): return [numpy.random.permutation([word[0] for word in example.words])[0]]
"""


@pytest.mark.parametrize(("name", "is_pure"), [("pure", True), ("counting", False), ("drawing", False)])
def test_a_mask_policy_that_chooses_otherwise_when_called_again_is_refused(name, is_pure, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused5]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "policies.py").write_text(POLICIES)
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=True)
    letters = np.random.default_rng(0).integers(6, 32, 288).astype(np.uint32)
    corpus = corpus_from_arrays(letters, np.arange(0, 289, 12), np.arange(0, 25, 4), tokenizer.vocabulary)
    corpus = dataclasses.replace(corpus, tokenizer=tokenizer)
    config = ExampleConfig(length=32, max_predictions=4, masking=f"{tmp_path}/policies.py:{name}")
    refused = pytest.raises(UserError, match=f"policies.py:{name} chooses other positions .*; draw from rng, and keep nothing")
    with contextlib.nullcontext() if is_pure else refused:
        check_own_rows(corpus, config)
