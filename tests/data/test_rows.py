from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from bert_jax.data import MASKING
from bert_jax.data import rows as rows_module
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import TokenStore
from bert_jax.data.masking import MaskingTables
from bert_jax.data.plan import EpochPlan, Pairs, plan_epoch
from bert_jax.data.rows import assemble_rows
from tests.data.corpora import FIRST, corpus_of, random_documents

CORPUS = corpus_of(random_documents(3000, seed=5), shards=5)
TABLES = MaskingTables(mask_id=103, legal_ids=np.arange(200, 900, dtype=np.int32))  # not an id of the corpus


def settings(**changes) -> ExampleConfig:
    return ExampleConfig(**({"length": 64, "max_predictions": 12} | changes))


def all_rows(config, corpus=CORPUS, tables=TABLES, epoch=0):
    plan = plan_epoch(corpus, config, seed=1, epoch=epoch)
    return plan, assemble_rows(corpus, plan, np.arange(plan.num_rows), tables)


def originals(batch):
    """Returns the input ids before masking."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_targets"] >= 0)
    ids[row, batch["masked_positions"][row, slot]] = batch["masked_targets"][row, slot]
    return ids


def masked_places(batch):
    """Returns bool [B, L], the masked positions."""
    places = np.zeros(batch["input_ids"].shape, bool)
    row, slot = np.nonzero(batch["masked_targets"] >= 0)
    places[row, batch["masked_positions"][row, slot]] = True
    return places


def literal_plan(config, rows):
    pairs = Pairs(
        a_start=np.array([0, 5, 8]),
        b_start=np.array([10, 8, 0]),
        a_length=np.array([3, 1, 2], np.uint16),
        b_length=np.array([2, 2, 1], np.uint16),
        random_next=np.array([True, False, True]),
    )
    return EpochPlan(config, pairs, np.array(rows), np.uint64(1))


def test_a_row_has_the_layout_cls_a_sep_b_sep_padding():
    corpus = corpus_of([[3, 2, 5], [4]])
    plan = literal_plan(ExampleConfig(length=10, max_predictions=1), [[1], [0]])
    batch = assemble_rows(corpus, plan, np.array([1, -1, 0]), TABLES)
    f = FIRST
    assert originals(batch).tolist() == [
        [101, f, f + 1, f + 2, 102, f + 10, f + 11, 102, 0, 0],
        [0] * 10,
        [101, f + 5, 102, f + 8, f + 9, 102, 0, 0, 0, 0],
    ]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1, 0, 0], [0] * 10, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]]
    assert batch["sequence_ids"].tolist() == [[1] * 8 + [0] * 2, [0] * 10, [1] * 6 + [0] * 4]
    assert batch["position_ids"].tolist() == [[*range(8), 0, 0], [0] * 10, [*range(6), 0, 0, 0, 0]]
    assert batch["cls_positions"].tolist() == [[0], [0], [0]]
    assert batch["nsp_labels"].tolist() == [[1], [-1], [0]]
    assert (batch["masked_targets"][1] == -1).all()
    assert all(array.dtype == np.int32 for array in batch.values())


def test_packed_examples_follow_each_other_with_their_own_cls_positions_and_label():
    corpus = corpus_of([[3, 2, 5], [4]])
    plan = literal_plan(ExampleConfig(length=16, max_predictions=4, packed_examples=3), [[0, 2, -1], [1, -1, -1]])
    batch = assemble_rows(corpus, plan, np.array([0, 1]), TABLES)
    f = FIRST
    assert originals(batch).tolist() == [
        [101, f, f + 1, f + 2, 102, f + 10, f + 11, 102, 101, f + 8, f + 9, 102, f, 102, 0, 0],
        [101, f + 5, 102, f + 8, f + 9, 102, *[0] * 10],
    ]
    assert batch["token_type_ids"][0].tolist() == [0] * 5 + [1] * 3 + [0] * 4 + [1] * 2 + [0] * 2
    assert batch["sequence_ids"][0].tolist() == [1] * 8 + [2] * 6 + [0] * 2
    assert batch["position_ids"][0].tolist() == [*range(8), *range(6), 0, 0]
    assert batch["cls_positions"].tolist() == [[0, 8, 0], [0, 0, 0]]
    assert batch["nsp_labels"].tolist() == [[1, 1, -1], [0, -1, -1]]


def test_without_pairs_a_row_has_the_layout_cls_text_sep_and_no_nsp_label():
    plan, batch = all_rows(settings(pairs="none"))
    length = plan.lengths()[plan.rows[:, 0]]
    ids = originals(batch)
    rows = np.arange(plan.num_rows)
    assert (ids[:, 0] == 101).all()
    assert (ids[rows, length - 1] == 102).all()
    assert ((ids >= FIRST).sum(axis=1) == length - 2).all()
    assert (batch["nsp_labels"] == -1).all()
    assert (batch["token_type_ids"] == 0).all()


@pytest.mark.parametrize("packed", [1, 3])
def test_tokens_come_from_the_planned_spans(packed):
    plan, batch = all_rows(settings(packed_examples=packed))
    ids = originals(batch)
    for row in range(0, plan.num_rows, 97):
        expected = []
        for e in plan.rows[row][plan.rows[row] >= 0]:
            a = range(plan.pairs.a_start[e], plan.pairs.a_start[e] + plan.pairs.a_length[e])
            b = range(plan.pairs.b_start[e], plan.pairs.b_start[e] + plan.pairs.b_length[e])
            expected += [101, *(FIRST + i for i in a), 102, *(FIRST + i for i in b), 102]
        assert ids[row].tolist() == expected + [0] * (64 - len(expected))


@pytest.mark.parametrize(
    "changes",
    [{}, {"packed_examples": 3}, {"pairs": "none"}, *({"masking": masking} for masking in list(MASKING)[1:])],
)
def test_special_tokens_and_padding_are_never_masked(changes):
    rng = np.random.default_rng(0)
    tables = dataclasses.replace(TABLES, continuation=rng.random(CORPUS.vocabulary.size) < 0.3)
    _, batch = all_rows(settings(**changes), tables=tables)
    targets = batch["masked_targets"][batch["masked_targets"] >= 0]
    assert (targets >= FIRST).all()
    assert (batch["sequence_ids"][masked_places(batch)] > 0).all()
    assert (batch["masked_positions"][batch["masked_targets"] < 0] == 0).all()


def test_the_unknown_token_is_never_masked():
    corpus = corpus_of(random_documents(200, seed=2))
    unknown = np.random.default_rng(0).random(corpus.num_tokens) < 0.9
    tokens = np.where(unknown, 100, corpus.tokens.shards[0])
    corpus = dataclasses.replace(corpus, tokens=dataclasses.replace(corpus.tokens, shards=(tokens,)))
    _, batch = all_rows(settings(), corpus)
    targets = batch["masked_targets"]
    assert (targets != 100).all()
    known = (originals(batch) >= FIRST).sum(axis=1)
    assert ((targets >= 0).sum(axis=1) <= known).all()
    assert (targets >= 0).any(axis=1).sum() == (known > 0).sum()


def test_fifteen_percent_are_chosen_of_which_80_10_10_are_mask_random_and_kept():
    plan, batch = all_rows(settings(length=60))
    places = masked_places(batch)
    assert (places.sum(axis=1) == plan.config.predictions(plan.lengths()[plan.rows[:, 0]])).all()
    assert places.sum() / plan.lengths().sum() == pytest.approx(0.15, abs=0.002)  # exactly 9 of 60; rounded in shorter rows
    seen, before = batch["input_ids"][places], originals(batch)[places]
    n = places.sum()
    assert np.mean(seen == 103) == pytest.approx(0.8, abs=5 * np.sqrt(0.16 / n))
    assert np.mean(seen == before) == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / n))
    assert np.mean((seen >= 200) & (seen < 900)) == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / n))
    assert (batch["input_ids"] == originals(batch))[~places].all()


def test_all_positions_are_masked_equally_often():
    plan, batch = all_rows(settings(short_probability=0.0))
    full = plan.lengths()[plan.rows[:, 0]] == 64
    places, text = masked_places(batch)[full], originals(batch)[full] >= FIRST
    rate = places.sum(axis=0)[1:63] / text.sum(axis=0)[1:63]
    expected = places.sum() / text.sum()
    deviation = (rate - expected) / np.sqrt(expected * (1 - expected) / text.sum(axis=0)[1:63])
    assert np.abs(deviation).max() < 4.5
    assert np.sum(deviation**2) < stats.chi2.ppf(0.9999, 62)


def test_masks_of_neighbouring_positions_and_rows_are_independent():
    plan, batch = all_rows(settings(short_probability=0.0))
    full = plan.lengths()[plan.rows[:, 0]] == 64
    places = masked_places(batch)[full][:, 1:20].astype(float)
    for left, right in [(places[:, :-1], places[:, 1:]), (places[:-1], places[1:])]:
        correlation = np.corrcoef(left.ravel(), right.ravel())[0, 1]
        assert abs(correlation + 1 / 60 * (left.shape[1] == 18)) < 5 / np.sqrt(left.size)  # without replacement: -1 / (n - 1)


def test_replacements_are_independent_of_the_choice_of_positions():
    """Both draws are hashes of the position: position p in one must not share a hash with p, 2p or 2p + 1 in the other."""
    plan, batch = all_rows(settings(short_probability=0.0))
    full = plan.lengths()[plan.rows[:, 0]] == 64
    places = masked_places(batch)[full]
    hidden = places & (batch["input_ids"][full] == 103)
    for offset in (0, 1):
        p = np.arange(1, 31)
        chosen, decision = places[:, 2 * p + offset], hidden[:, p]
        rates = [chosen[places[:, p] & decision].mean(), chosen[places[:, p] & ~decision].mean()]
        assert rates[0] == pytest.approx(rates[1], abs=5 * np.sqrt(0.15 * 0.85 / (places[:, p] & ~decision).sum()))


def test_the_number_of_masks_is_limited():
    _, batch = all_rows(settings(max_predictions=5))
    used = (batch["masked_targets"] >= 0).sum(axis=1)
    assert used.max() == 5
    assert np.mean(used == 5) > 0.5


@pytest.mark.parametrize("changes", [{}, {"masking": "whole_words"}, {"masking": "spans"}, {"pairs": "none"}])
def test_a_packed_example_equals_the_unpacked_one_in_tokens_masks_and_label(changes):
    corpus = corpus_of(random_documents(400, seed=2, sentences=3, tokens=6))
    tables = dataclasses.replace(TABLES, continuation=np.arange(corpus.vocabulary.size) % 3 == 0)
    one, unpacked = all_rows(settings(**changes), corpus, tables)
    plan, packed = all_rows(settings(packed_examples=4, **changes), corpus, tables)
    assert plan.num_rows < 0.7 * one.num_rows
    row_of = np.argsort(one.rows[:, 0])
    for row, examples in enumerate(plan.rows):
        for slot, example in enumerate(examples[examples >= 0]):
            there = row_of[example]
            inside = packed["sequence_ids"][row] == slot + 1
            real = unpacked["sequence_ids"][there] == 1
            for name in ("input_ids", "token_type_ids", "position_ids"):
                assert (packed[name][row, inside] == unpacked[name][there, real]).all()
            column = packed["cls_positions"][row, slot]
            assert column == np.argmax(inside)
            masks = zip(packed["masked_positions"][row], packed["masked_targets"][row], strict=True)
            alone = zip(unpacked["masked_positions"][there], unpacked["masked_targets"][there], strict=True)
            assert [(p - column, t) for p, t in masks if t >= 0 and inside[p]] == [(p, t) for p, t in alone if t >= 0]
            assert packed["nsp_labels"][row, slot] == unpacked["nsp_labels"][there, 0]
    assert (np.diff(packed["masked_positions"], axis=1)[packed["masked_targets"][:, 1:] >= 0] > 0).all()


CONTINUATION = np.random.default_rng(0).random(CORPUS.vocabulary.size) < 0.3


@pytest.mark.parametrize("masking", ["whole_words", "spans"])
def test_words_are_masked_completely_or_not_at_all(masking):
    continuation = CONTINUATION
    plan, batch = all_rows(settings(masking=masking), tables=dataclasses.replace(TABLES, continuation=continuation))
    ids, places = originals(batch), masked_places(batch)
    joined = continuation[ids] & (ids >= FIRST)
    joined[:, 1:] &= ids[:, :-1] >= FIRST  # the first piece of a segment starts a word
    assert (places[:, 1:] == places[:, :-1])[joined[:, 1:]].all()
    counts = plan.config.predictions(plan.lengths()[plan.rows[:, 0]])
    assert (places.sum(axis=1) <= counts).all()
    assert places.sum() > 0.98 * counts.sum()


@pytest.mark.parametrize("packed", [1, 4])
def test_the_masked_fraction_refers_to_words_when_counting_words(packed):
    config = settings(masking="words", max_predictions=30, packed_examples=packed)
    _, batch = all_rows(config, tables=dataclasses.replace(TABLES, continuation=CONTINUATION))
    ids, places = originals(batch), masked_places(batch)
    heads = ids >= FIRST
    heads[:, 1:] &= ~CONTINUATION[ids[:, 1:]] | (ids[:, :-1] < FIRST)
    assert places[heads].mean() == pytest.approx(0.15, abs=0.005)
    assert places[ids >= FIRST].mean() == pytest.approx(0.15, abs=0.005)
    assert places.sum(axis=1).max() <= 30


def test_a_span_shares_one_kind_of_replacement():
    """The batch does not show where one of two adjacent spans ends. So only more than 90 % of adjacent masked tokens have the
    same kind of replacement."""
    tables = dataclasses.replace(TABLES, continuation=np.zeros_like(CONTINUATION))
    _, batch = all_rows(settings(masking="spans", mask_probability=0.5, random_probability=0.25), tables=tables)
    places, seen, before = masked_places(batch), batch["input_ids"], originals(batch)
    decision = np.where(seen == 103, 0, np.where(seen == before, 2, 1))
    both = places[:, 1:] & places[:, :-1]
    assert (
        np.mean(decision[:, 1:][both] == decision[:, :-1][both]) > 0.9
    )  # independent decisions agree for 0.375 of the neighbours
    n = places.sum() / 3.8
    for i, expected in enumerate((0.5, 0.25, 0.25)):
        assert np.mean(decision[places] == i) == pytest.approx(expected, abs=6 * np.sqrt(expected * (1 - expected) / n))


def test_a_row_does_not_depend_on_the_other_rows(monkeypatch):
    plan, batch = all_rows(settings(packed_examples=2))
    rows = np.random.default_rng(0).permutation(plan.num_rows)[:50]
    together = assemble_rows(CORPUS, plan, rows, TABLES)
    monkeypatch.setattr(rows_module, "_BLOCK", 3 * 64)
    in_threes = assemble_rows(CORPUS, plan, rows, TABLES)
    for name in batch:
        assert (together[name] == batch[name][rows]).all()
        assert (in_threes[name] == batch[name][rows]).all()


@pytest.mark.parametrize("masking", ["tokens", "whole_words", "words", "spans"])
def test_short_examples_of_long_rows_have_the_masks_of_whole_rows(masking, monkeypatch):
    corpus = corpus_of(random_documents(300, seed=4))
    tables = dataclasses.replace(TABLES, continuation=np.arange(corpus.vocabulary.size) % 3 == 0)
    config = settings(length=1_024, packed_examples=200, max_predictions=400, pairs="none", masking=masking)
    plan = plan_epoch(corpus, config, seed=1, epoch=0)
    rows = np.argsort(-(plan.rows >= 0).sum(1))[:1]  # with the most examples
    assert (plan.rows[rows] >= 0).sum() > 16
    by_width = assemble_rows(corpus, plan, rows, tables)
    monkeypatch.setattr(rows_module, "_FEW", 1_024)
    in_whole_rows = assemble_rows(corpus, plan, rows, tables)
    for name, array in by_width.items():
        np.testing.assert_array_equal(array, in_whole_rows[name], err_msg=name)


def test_rows_do_not_depend_on_the_number_of_shards():
    documents = random_documents(40, seed=3)
    config = settings()
    plan, expected = all_rows(config, corpus_of(documents))
    for shards in (2, 7, 40):
        batch = assemble_rows(corpus_of(documents, shards), plan, np.arange(plan.num_rows), TABLES)
        assert all((batch[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_a_window_has_the_tokens_of_its_shard_around_its_start(shards):
    """Only the columns inside the shard are compared, since some shards are shorter than a window."""
    store = corpus_of([[9, 4], [6], [3, 2], [30], [1, 7], [5], [12]], shards).tokens
    starts, columns = (grid.ravel() for grid in np.meshgrid(np.arange(79), np.arange(12)))
    found = rows_module._windows(store, starts, columns, 12)
    shard = np.searchsorted(store.bounds, starts, side="right") - 1
    token = starts[:, np.newaxis] + np.arange(12) - columns[:, np.newaxis]
    inside = (token >= store.bounds[shard][:, np.newaxis]) & (token < store.bounds[shard + 1][:, np.newaxis])
    assert (found[inside] == FIRST + token[inside]).all()


def test_windows_are_found_among_more_than_65536_shards():
    count = 70_000
    store = TokenStore(tuple(np.arange(count, dtype=np.uint32).reshape(count, 1)), np.arange(count + 1))
    found = rows_module._windows(store, np.array([count - 1, 3]), np.zeros(2, np.int64), 1)
    assert found.tolist() == [[count - 1], [3]]


def test_batches_of_no_rows_and_of_empty_rows_are_well_formed():
    plan, _ = all_rows(settings())
    assert assemble_rows(CORPUS, plan, np.zeros(0, np.int64), TABLES)["input_ids"].shape == (0, 64)
    empty = assemble_rows(CORPUS, plan, np.array([-1, -1]), TABLES)
    assert (empty["sequence_ids"] == 0).all()
    assert (empty["masked_targets"] == -1).all()
    assert (empty["nsp_labels"] == -1).all()


@pytest.mark.parametrize(("packed", "predictions"), [(1, 12), (1, 63), (3, 30), (3, 63)])
def test_next_targets_follow_random_positions_of_their_example_without_masks(packed, predictions):
    config = settings(pairs="none", targets="next", packed_examples=packed, max_predictions=predictions)
    plan, batch = all_rows(config)
    _, masked = all_rows(settings(pairs="none", packed_examples=packed, max_predictions=21))
    np.testing.assert_array_equal(batch["input_ids"], originals(masked))
    row, slot = np.nonzero(batch["masked_targets"] >= 0)
    position = batch["masked_positions"][row, slot]
    np.testing.assert_array_equal(batch["masked_targets"][row, slot], batch["input_ids"][row, position + 1])
    np.testing.assert_array_equal(batch["sequence_ids"][row, position], batch["sequence_ids"][row, position + 1])
    places = masked_places_of(row, position, batch)
    assert places.sum() == len(row), "a position was drawn twice"
    tokens, examples = (batch["sequence_ids"] > 0).sum(1), (plan.rows >= 0).sum(1)
    if predictions >= config.length - 1:
        np.testing.assert_array_equal(places.sum(1), tokens - examples)
    else:
        np.testing.assert_array_less(places.sum(1), predictions + 1)
        assert packed > 1 or (places.sum(1) == np.minimum(tokens - 1, predictions)).all()
        assert abs(places[:, 5].mean() - places[:, 20].mean()) < 0.1, "positions are not equally likely"


def masked_places_of(row, position, batch):
    """Returns bool [B, L]: True at the given positions."""
    places = np.zeros(batch["input_ids"].shape, bool)
    places[row, position] = True
    return places


def test_an_unknown_token_is_never_a_next_target():
    corpus = corpus_of([[6]])
    corpus = dataclasses.replace(corpus, vocabulary=dataclasses.replace(corpus.vocabulary, unk_id=FIRST + 2))
    config = settings(pairs="none", targets="next", length=8, max_predictions=7)
    batch = assemble_rows(corpus, plan_epoch(corpus, config, seed=1, epoch=0), np.array([0]), TABLES)
    assert batch["masked_positions"].tolist() == [[0, 1, 3, 4, 5, 6, 0]]
    assert batch["masked_targets"].tolist() == [[FIRST, FIRST + 1, FIRST + 3, FIRST + 4, FIRST + 5, 102, -1]]


def test_centres_are_the_positions_of_next_targets():
    settings_of = {"pairs": "none", "packed_examples": 3, "max_predictions": 30}
    corpus = corpus_of(random_documents(60, seed=2))
    _, expected = all_rows(settings(targets="next", **settings_of), corpus)
    _, batch = all_rows(settings(targets="centres", **settings_of), corpus)
    positions = np.where(expected.pop("masked_targets") < 0, -1, expected.pop("masked_positions"))
    assert batch.keys() == {*expected, "centres"}
    for name, array in (expected | {"centres": positions}).items():
        np.testing.assert_array_equal(batch[name], array)
    assert batch["centres"].dtype == np.int32


def test_the_token_with_id_0_can_be_a_target():
    corpus = corpus_of([[6]])
    tokens = np.where(np.arange(6) == 2, 0, corpus.tokens.shards[0])
    corpus = dataclasses.replace(corpus, tokens=dataclasses.replace(corpus.tokens, shards=(tokens,)))
    for targets in ("next", "centres"):
        config = settings(pairs="none", targets=targets, length=8, max_predictions=7)
        plan, rows = plan_epoch(corpus, config, seed=1, epoch=0), np.array([0])
        batch = assemble_rows(corpus, plan, rows, TABLES)
        assert batch["centres" if targets == "centres" else "masked_positions"].tolist() == [[*range(7)]]
        if targets == "next":
            tables = dataclasses.replace(TABLES, continuation=np.zeros(corpus.vocabulary.size, bool))
            assert rows_module.words_begun(corpus, plan, rows, batch, tables).all()
