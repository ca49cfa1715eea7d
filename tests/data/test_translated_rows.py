"""Rows of texts and their translations: each pair is complete on both sides of its row, and a batch is a function of the step."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest

from bert_jax.data import DECODER, INPUTS
from bert_jax.data.batches import BatchSource, eval_batches
from bert_jax.data.config import ExampleConfig
from bert_jax.data.plan import plan_epoch
from bert_jax.errors import UserError
from tests.data.corpora import corpus_of

DRAW = np.random.default_rng(3)
SIZES = [[int(n) for n in DRAW.integers(1, 20, 2)] for _ in range(400)]
CORPUS = dataclasses.replace(corpus_of(SIZES, shards=4), languages=("en", "de"))
CONFIG = ExampleConfig(length=32, max_predictions=32, pairs="none", targets="translated", packed_examples=6)
PAD, SEP = CORPUS.vocabulary.pad_id, CORPUS.vocabulary.sep_id


def stored() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    sentences, documents = CORPUS.joined_offsets()
    texts = [tuple(CORPUS.tokens[sentences[s] : sentences[s + 1]].tolist()) for s in range(len(sentences) - 1)]
    return [(texts[d], texts[d + 1]) for d in documents[:-1].tolist()]


def pairs_of(batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the pairs of a batch, read from its arrays, which are checked too."""
    found = []
    for row in range(len(batch["input_ids"])):
        one = {name: array[row] for name, array in batch.items()}
        for prefix in ("", DECODER):
            numbers = one[f"{prefix}sequence_ids"]
            used = np.count_nonzero(numbers)
            assert (numbers[:used] > 0).all(), "padding is at the end"
            assert (np.diff(numbers[:used]) >= 0).all()
            assert (one[f"{prefix}input_ids"][used:] == PAD).all()
            assert not one[f"{prefix}token_type_ids"].any()
        assert (one["targets"][one[f"{DECODER}sequence_ids"] == 0] == -1).all()
        assert one["sequence_ids"].max() == one[f"{DECODER}sequence_ids"].max()
        for pair in range(1, one["sequence_ids"].max() + 1):
            here, there = one["sequence_ids"] == pair, one[f"{DECODER}sequence_ids"] == pair
            source, shown, targets = one["input_ids"][here], one[f"{DECODER}input_ids"][there], one["targets"][there]
            np.testing.assert_array_equal(one["position_ids"][here], np.arange(here.sum()))
            np.testing.assert_array_equal(one[f"{DECODER}position_ids"][there], np.arange(there.sum()))
            assert source[-1] == SEP
            assert targets[-1] == SEP
            assert shown[0] == PAD
            np.testing.assert_array_equal(shown[1:], targets[:-1])
            found.append((tuple(source[:-1].tolist()), tuple(targets[:-1].tolist())))
    return found


def test_every_epoch_has_every_pair_once_in_a_new_order():
    source = BatchSource(CORPUS, CONFIG, 1, seed=0)
    rows = source.rows_per_epoch
    first = [pair for step in range(rows) for pair in pairs_of(source.at(step))]
    second = [pair for step in range(rows, rows + 5) for pair in pairs_of(source.at(step))]
    assert sorted(first) == sorted(stored())
    assert first != stored()
    assert second != first[: len(second)]
    assert set(second) <= set(stored())


def test_rows_are_full():
    summary = plan_epoch(CORPUS, CONFIG, seed=0, epoch=0).summary()
    assert summary["examples"] == 400
    assert summary["examples_per_row"] > 1.5
    assert summary["padding_fraction"] < 0.3
    tokens = sum(map(sum, SIZES)) // 2 + 400  # the mean of both sides, each with a [SEP] or [PAD]
    assert summary["padding_fraction"] == pytest.approx(1 - tokens / (32 * summary["rows"]))
    assert summary["packing_efficiency"] == -(-tokens // 32) / summary["rows"]


def test_the_parts_of_all_hosts_form_the_batch_of_one_host():
    whole = BatchSource(CORPUS, CONFIG, 8, seed=5).at(17)
    for hosts in (2, 4):
        parts = [BatchSource(CORPUS, CONFIG, 8, seed=5).at(17, (host, hosts)) for host in range(hosts)]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_a_batch_does_not_depend_on_earlier_batches():
    source = BatchSource(CORPUS, CONFIG, 8, seed=5)
    for step in (40, 3, 90):
        again = BatchSource(CORPUS, CONFIG, 8, seed=5).at(step)
        for name, array in source.at(step).items():
            np.testing.assert_array_equal(again[name], array)


def test_unpacked_rows_have_one_pair_each():
    config = dataclasses.replace(CONFIG, packed_examples=1)
    plan = plan_epoch(CORPUS, config, seed=0, epoch=0)
    batch = BatchSource(CORPUS, config, 400, seed=0).at(0)
    assert plan.num_rows == 400
    assert sorted(pairs_of(batch)) == sorted(stored())


def test_evaluation_reads_every_pair_once_in_batches_of_any_size():
    for size, shards in ((7, 1), (16, 2), (1_000, 4)):
        found = []
        for shard in range(shards):
            for batch in eval_batches(CORPUS, CONFIG, size if size % shards == 0 else size * shards, None, 0, (shard, shards)):
                assert batch.keys() == {*INPUTS, *(DECODER + name for name in INPUTS), "targets"}
                found += pairs_of(batch)
        assert sorted(found) == sorted(stored())


@pytest.mark.parametrize("length", [12, 20, 21])
def test_a_pair_with_a_side_that_is_too_long_is_left_out(length):
    config = dataclasses.replace(CONFIG, length=length, max_predictions=length)
    plan = plan_epoch(CORPUS, config, seed=0, epoch=0)
    assert plan.num_examples == sum(max(pair) + 1 <= length for pair in SIZES)
    batch = BatchSource(CORPUS, config, plan.num_rows, seed=0).at(0)
    assert sorted(pairs_of(batch)) == sorted((a, b) for a, b in stored() if max(len(a), len(b)) < length)


def test_rows_too_short_for_every_pair_are_refused():
    corpus = dataclasses.replace(corpus_of([[9, 9]] * 8), languages=("en", "de"))
    with pytest.raises(UserError, match=r"no pair of the train split .* fits into rows of 9 tokens; raise length"):
        plan_epoch(corpus, dataclasses.replace(CONFIG, length=9, max_predictions=9), seed=0, epoch=0)


def test_a_corpus_of_documents_is_refused():
    with pytest.raises(UserError, match="holds documents, but translation needs pairs of a text and its translation; build a"):
        plan_epoch(corpus_of([[3, 4]] * 8), CONFIG, seed=0, epoch=0)


def test_translation_refuses_settings_of_masks_and_pairs():
    with pytest.raises(
        UserError, match="pairs=original does not apply to translation, which has no masks and no sentence pairs; set pairs=none"
    ):
        dataclasses.replace(CONFIG, pairs="original")
    with pytest.raises(
        UserError, match=r"masking=whole_words does not apply to translation, which has no .* sentence pairs; set masking=tokens"
    ):
        dataclasses.replace(CONFIG, masking="whole_words")


def test_text_infilling_replaces_spans_by_a_mask_and_keeps_the_whole_text_for_the_decoder():
    """The kind of rows is a class in a user's file."""
    file = pathlib.Path(__file__).parents[2] / "experiments" / "extensions" / "denoising.py"
    config = dataclasses.replace(CONFIG, length=64, max_predictions=64, targets=f"{file}:Denoised")
    corpus = corpus_of([[60]] * 200)
    source, mask = BatchSource(corpus, config, 40, seed=0), corpus.vocabulary.mask_id
    batch, again, later = source.at(0), source.at(0), source.at(source.rows_per_epoch // 40)
    stored = {tuple(corpus.tokens[60 * text : 60 * text + 60].tolist()) for text in range(200)}
    pairs = pairs_of(batch)
    for short, whole in pairs:
        assert whole in stored
        left = iter(whole)
        assert all(token in left for token in short if token != mask), "the kept tokens are in order"
        assert (mask, mask) not in itertools.pairwise(short)
    kept = sum(token != mask for short, _ in pairs for token in short)
    assert kept / sum(len(whole) for _, whole in pairs) == pytest.approx(0.7, abs=0.05)
    assert {name: array.tolist() for name, array in batch.items()} == {name: array.tolist() for name, array in again.items()}
    masked = {whole: short for short, whole in pairs}
    assert all(masked[whole] != short for short, whole in pairs_of(later) if whole in masked), "each epoch has other masks"
