from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bert_jax.data import batches as module
from bert_jax.data.batches import EvaluationBatches, LabelledBatches, evaluation_rows
from bert_jax.data.rows import Batch, Feature, LabelLayout, RowShape, pack_features, row_shape
from tests.random_features import KINDS, LAYOUTS, random_features

FEATURES = random_features("sequence", 50, seed=1)
SHAPE = row_shape(FEATURES, LAYOUTS["sequence"])
BATCH_SIZE = 12


def batches_of(seed: int = 0, *, batch_size: int = BATCH_SIZE, row_multiple: int = 4) -> LabelledBatches:
    return LabelledBatches(FEATURES, SHAPE, batch_size, seed, epochs=3, row_multiple=row_multiple, pad_id=0)


def sequences_in(batch: Batch) -> list[tuple[int, ...]]:
    """Returns the ids of every sequence in a batch, sorted."""
    return sorted(
        tuple(ids[own == slot].tolist())
        for ids, own in zip(batch["input_ids"], batch["sequence_ids"], strict=True)
        for slot in np.unique(own[own > 0])
    )


def sequences_of(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    return sorted(tuple(FEATURES[i].ids[0].tolist()) for i in numbers)


@pytest.mark.parametrize("batch_size", [1, 12, 50, 200])
def test_every_epoch_visits_every_feature_once_and_ends_with_the_remaining_ones(batch_size):
    batches = batches_of(batch_size=batch_size)
    assert batches.steps_per_epoch == -(-50 // batch_size)
    for epoch in range(3):
        steps = [batches.members(epoch * batches.steps_per_epoch + i) for i in range(batches.steps_per_epoch)]
        assert sorted(i for step in steps for i in step) == list(range(50))
        assert all(len(step) == min(batch_size, 50) for step in steps[:-1])
        assert len(steps[-1]) == 50 - (len(steps) - 1) * min(batch_size, 50)


def test_the_order_differs_between_epochs_and_between_seeds():
    orders = {
        tuple(i for step in range(5) for i in batches_of(seed).members(5 * epoch + step))
        for seed in range(3)
        for epoch in range(4)
    }
    assert len(orders) == 12
    assert tuple(range(50)) not in orders


def test_the_order_of_a_seed_and_epoch_equals_the_order_of_earlier_versions():
    batches = batches_of(7)
    assert batches.members(2 * batches.steps_per_epoch)[:6] == [5, 7, 24, 18, 10, 14]


def test_the_features_are_shuffled_once_for_all_steps_of_an_epoch(monkeypatch: pytest.MonkeyPatch):
    shuffled: list[object] = []
    original = module.permutation
    monkeypatch.setattr(module, "permutation", lambda *given: shuffled.append(given) or original(*given))
    monkeypatch.setattr(module, "PACKED_AHEAD", 5)
    batches = batches_of()
    assert (batches.steps_per_epoch, len(shuffled)) == (5, 1), "no epoch after the steps that are packed ahead"
    for step in range(2 * batches.steps_per_epoch):
        batches.at(step)
    assert len(shuffled) == 2


def test_a_batch_holds_only_the_features_of_its_step():
    batches = batches_of()
    for step in range(2 * batches.steps_per_epoch):
        assert sequences_in(batches.at(step)) == sequences_of(batches.members(step))


def test_a_batch_depends_only_on_features_seed_and_step():
    first = batches_of(7)
    for step in range(6):
        first.at(step)
    for name, array in batches_of(7).at(3).items():
        np.testing.assert_array_equal(first.at(3)[name], array)
    assert not np.array_equal(first.at(3)["input_ids"], batches_of(8).at(3)["input_ids"])


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_the_shards_of_all_hosts_form_the_whole_batch(hosts):
    batches = batches_of()
    for step in range(batches.steps_per_epoch):
        shards = [batches.at(step, (host, hosts)) for host in range(hosts)]
        assert len({len(shard["input_ids"]) for shard in shards}) == 1
        for name, array in batches.at(step).items():
            np.testing.assert_array_equal(np.concatenate([shard[name] for shard in shards]), array)


@pytest.mark.parametrize("row_multiple", [1, 3, 8])
@pytest.mark.parametrize("worth", [1, 2**40])
def test_batches_have_at_most_two_numbers_of_rows(row_multiple: int, worth: int, monkeypatch: pytest.MonkeyPatch):
    """Each number of rows needs a compilation, so a second one is used only if it saves enough."""
    monkeypatch.setattr(module, "WORTH_COMPILING", worth)
    features = [*random_features("sequence", 400, seed=2), *random_features("sequence", 40, seed=3)]
    shape = row_shape(features, LAYOUTS["sequence"])
    for batch_size in (7, 64):
        batches = LabelledBatches(features, shape, batch_size, 0, epochs=4, row_multiple=row_multiple, pad_id=0)
        rows = {len(batches.at(step)["input_ids"]) for step in range(4 * batches.steps_per_epoch)}
        assert all(count % row_multiple == 0 for count in rows)
        assert rows == set(batches.row_counts)
        assert len(rows) <= (1 if worth > 1 else 2)


@pytest.mark.parametrize(
    ("needed", "counts"),
    [
        ([5, 5, 5, 5, 6], (5, 6)),  # 26 rows, not 30
        ([5, 5, 6, 6, 6], (6,)),  # two of 30 rows are padding
        ([3, 5, 9, 5, 5, 5, 4, 5, 9, 5], (5, 9)),  # with 3, most of the others would need 9 rows
        ([4], (4,)),
        ([4, 4, 4], (4,)),
        ([4, 5], (4, 5)),  # one of ten rows
        ([5, 7, 7], (7,)),  # two of 21 rows
    ],
)
def test_a_second_number_of_rows_is_used_if_it_saves_a_tenth_of_padding(needed, counts):
    assert module.choose_row_counts(np.array(needed), 32) == (max(needed),)
    assert module.choose_row_counts(np.repeat(needed, 2**20), 32) == counts


@pytest.mark.parametrize(("times", "counts"), [(2**13, (5, 6)), (2**13 - 1, (6,))])
def test_a_second_number_of_rows_is_used_if_it_saves_a_million_tokens(times: int, counts: tuple[int, ...]):
    assert module.choose_row_counts(np.repeat([5, 5, 5, 5, 6], times), 32) == counts  # it saves 4 * 32 tokens each time


def test_a_batch_may_need_more_rows_than_the_sampled_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PACKED_AHEAD", 1)
    short, long = (Feature(0, (np.zeros(size, np.int32),), (np.zeros(size, np.int32),)) for size in (1, 32))
    shape = RowShape(LAYOUTS["sequence"], 32, 4)
    features = [short, short, short, short, long, long]
    needed = set()
    for seed in range(5):
        batches = LabelledBatches(features, shape, 2, seed, epochs=1, row_multiple=1, pad_id=0)
        ends = [batches.at(step)["sequence_ids"] for step in range(3)]
        assert sum(int((ids > 0).sum()) for ids in ends) == 2 * 32 + 4
        needed |= {len(ids) for ids in ends}
    assert needed == {1, 2}


# ------------------------------------------------------------------------------------------------------------------- evaluation


def fake_logits(batch: Batch, shape: RowShape) -> np.ndarray:
    """Returns fake logits: for a token, its id, type and position in its own sequence; for a sequence, sums of them; for
    mentions, the marked ids."""
    rows = np.arange(len(batch["input_ids"]))[:, None]
    of_tokens = np.stack([batch["input_ids"], batch["token_type_ids"], batch["position_ids"]], -1).astype(np.float32)
    if shape.layout.logits_per_token:
        return of_tokens
    if shape.layout.read_positions:
        return batch["input_ids"][rows[:, :, None], batch["read_positions"]].astype(np.float32)
    own = (batch["sequence_ids"][:, None, :] == np.arange(1, shape.slots + 1)[None, :, None]).astype(np.float32)
    sums = own @ of_tokens
    return sums[..., :1] if shape.layout.logits_per_candidate else sums


def fake_logits_of(feature: Feature, layout: LabelLayout) -> np.ndarray:
    """Returns the same logits, computed from the feature itself."""
    of_sequences = [
        np.stack([ids, types, np.arange(len(ids))], -1) for ids, types in zip(feature.ids, feature.types, strict=True)
    ]
    if layout.logits_per_token:
        return of_sequences[0]
    if layout.read_positions:
        return feature.ids[0][feature.read_positions]
    return np.array([x[:, 0].sum() for x in of_sequences]) if layout.logits_per_candidate else of_sequences[0].sum(0)


def evaluated(batches: EvaluationBatches, hosts: int) -> list[list[np.ndarray]]:
    """Returns the results of each host. All hosts take part in every batch: as on a TPU, `forward` computes a host's rows
    together with the rows of the other hosts."""
    rows = [list(range(host, batches.rows, hosts)) for host in range(hosts)]
    parts: list[list[Batch]] = []
    for host in range(hosts):
        given: list[Batch] = []

        def remember(batch: Batch, given=given) -> np.ndarray:
            given.append(batch)
            return fake_logits({name: np.concatenate([array] * hosts) for name, array in batch.items()}, batches.shape)

        batches.logits(remember, rows[host])
        parts.append(given)
    assert len({len(given) for given in parts}) == 1, "all hosts have to take part in every batch"
    order = np.argsort(np.concatenate(rows))
    whole = [
        fake_logits({name: np.concatenate([part[name] for part in of_hosts])[order] for name in of_hosts[0]}, batches.shape)
        for of_hosts in zip(*parts, strict=True)
    ]
    found = []
    for host in range(hosts):
        answers = iter(whole)
        found.append(batches.logits(lambda batch, answers=answers: next(answers), rows[host]))
        assert next(answers, None) is None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_returns_logits_in_order_for_any_rows_and_hosts(kind):
    features = random_features(kind, 30, seed=4)
    shape = row_shape(features, LAYOUTS[kind])
    for rows, hosts in ((4, 1), (4, 2), (8, 4), (64, 2)):
        for found in evaluated(EvaluationBatches(features, shape, rows, pad_id=0), hosts):
            assert len(found) == len(features)
            for mine, feature in zip(found, features, strict=True):
                np.testing.assert_array_equal(mine, fake_logits_of(feature, shape.layout))


def test_evaluation_reports_the_number_of_finished_features():
    told: list[tuple[int, int]] = []
    batches = EvaluationBatches(FEATURES, SHAPE, 4, 0)

    def forward(batch: Batch) -> np.ndarray:
        return fake_logits(batch, SHAPE)

    batches.logits(forward, progress=lambda done, total: told.append((done, total)))
    rows = pack_features(FEATURES, SHAPE)  # several features in a row
    done = np.cumsum([sum(map(len, rows[first : first + 4])) for first in range(0, len(rows), 4)])
    assert told == [(count, len(FEATURES)) for count in done.tolist()]
    assert done[-1] == len(FEATURES) > len(rows)


def test_every_evaluation_batch_has_the_same_shape():
    shapes = set()

    def forward(batch: Batch) -> np.ndarray:
        shapes.add(tuple(array.shape for array in batch.values()))
        return fake_logits(batch, SHAPE)

    EvaluationBatches(FEATURES, SHAPE, 8, pad_id=0).logits(forward)
    assert len(shapes) == 1


@pytest.mark.parametrize(("platform", "tokens"), [("cpu", 2_048), ("gpu", 16_384), ("tpu", 16_384)])
def test_an_evaluation_batch_divides_over_the_devices_with_at_least_one_row_each(platform, tokens):
    shape = RowShape(LAYOUTS["token"], 384, 4)
    assert evaluation_rows(shape, platform, 8) == 8 * (tokens // 384)
    assert evaluation_rows(RowShape(LAYOUTS["token"], 1, 4), platform, 8) == 8 * tokens
    assert evaluation_rows(RowShape(LAYOUTS["token"], 99_968, 4), platform, 8) == 8
