from __future__ import annotations

import bisect

import numpy as np
import pytest
from scipy import stats

from bert_jax.data import example_packing
from bert_jax.data.example_packing import best_fit, pack_histogram, pack_rows


def lengths_like_a_corpus(count: int, longest: int, seed: int = 0) -> np.ndarray:
    """Returns mostly full lengths and some short ones, like the pair sampler."""
    rng = np.random.default_rng(seed)
    short = rng.integers(5, longest + 1, count)
    return np.where(rng.random(count) < 0.6, longest, short)


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_every_example_is_in_one_row_and_no_row_is_overfull(most):
    lengths = lengths_like_a_corpus(5000, 128)
    rows = pack_rows(lengths, 128, most, key=3)
    assert rows.shape[1] == most
    assert (np.sort(rows[rows >= 0]) == np.arange(5000)).all()
    assert np.where(rows >= 0, lengths[rows], 0).sum(axis=1).max() <= 128
    assert (rows[:, 0] >= 0).all()
    assert (np.diff((rows >= 0).astype(int), axis=1) <= 0).all()  # examples first, then none


@pytest.mark.parametrize("most", [2, 3, 8])
def test_packing_needs_no_more_rows_than_best_fit_decreasing(most):
    lengths = lengths_like_a_corpus(3000, 128, seed=1)
    rooms: list[tuple[int, int]] = []  # (room, places) of the open rows, sorted
    rows = 0
    for length in sorted(lengths.tolist(), reverse=True):
        i = bisect.bisect_left(rooms, (length, 0))
        if i == len(rooms):
            rows, room, places = rows + 1, 128, most
        else:
            room, places = rooms.pop(i)
        if places > 1:
            bisect.insort(rooms, (room - length, places - 1))
    histogram = np.bincount(lengths, minlength=129)
    assert sum(count for _, count in pack_histogram(histogram, 128, most)) <= 1.002 * rows


@pytest.mark.parametrize(("row_length", "most"), [(128, 16), (8_192, 1_024)])
def test_short_examples_fill_rows(row_length, most):
    lengths = np.random.default_rng(0).integers(5, 60, 20_000)
    rows = pack_rows(lengths, row_length, most, key=3)
    assert lengths.sum() / (len(rows) * row_length) > 0.98
    assert (rows >= 0).sum(1).max() > row_length // 60


def test_equal_lengths_fill_rows_and_the_rest_share_one_row():
    histogram = np.zeros(11, int)
    histogram[3] = 7
    assert sorted(pack_histogram(histogram, 10, 5)) == [((3,), 1), ((3, 3, 3), 2)]
    assert sorted(pack_histogram(histogram, 10, 2)) == [((3,), 1), ((3, 3), 3)]


def test_the_shortest_examples_are_packed_too():
    histogram = np.zeros(4, int)
    histogram[[1, 3]] = 4, 1
    assert sorted(pack_histogram(histogram, 3, 9)) == [((1,), 1), ((1, 1, 1), 1), ((3,), 1)]


@pytest.mark.parametrize(("count", "dtype"), [(2**31 - 1, np.int32), (2**31 + 1, np.int64)])
def test_example_numbers_are_int32_if_they_fit(count, dtype, monkeypatch):
    """The array is a view of a single length and takes no memory. The permutation would take memory, so it is replaced."""
    monkeypatch.setattr(example_packing, "permutation", lambda count, key, dtype: np.zeros(1, dtype))
    assert pack_rows(np.broadcast_to(np.uint16(9), count), 128, 1, key=3).dtype == dtype


def test_examples_of_one_length_are_combined_at_random_in_random_row_order():
    lengths = np.repeat([100, 28], 2000)
    first, second = (pack_rows(lengths, 128, 2, key=key) for key in (1, 2))
    assert len(first) == len(second) == 2000
    for rows in (first, second):
        assert (rows[:, 0] < 2000).all()
        assert abs(stats.spearmanr(rows[:, 0], rows[:, 1]).statistic) < 0.1
        assert abs(stats.spearmanr(rows[:, 0], np.arange(2000)).statistic) < 0.1
    partner = dict(first.tolist())
    assert np.mean([partner[a] == b for a, b in second.tolist()]) < 0.01


@pytest.mark.parametrize(("row_length", "most"), [(64, 100), (64, 3), (100, 1), (40, 7)])
def test_best_fit_equals_a_search_through_all_open_rows(row_length, most):
    lengths = np.random.default_rng(most).integers(1, 41, 200).tolist()
    rows: list[list[int]] = []
    for i in sorted(range(200), key=lambda i: -lengths[i]):
        left = [row_length - sum(lengths[j] for j in row) for row in rows]
        open_rows = [r for r, row in enumerate(rows) if len(row) < most and left[r] >= lengths[i]]
        if open_rows:
            rows[min(open_rows, key=lambda r: (left[r], r))].append(i)
        else:
            rows.append([i])
    found = best_fit(lengths, lambda length: row_length, lambda length: most)
    assert found == [(row_length, row) for row in rows]
    assert sorted(i for row in rows for i in row) == list(range(200))


def test_the_longest_item_of_a_row_determines_its_length_and_capacity():
    rows = best_fit([50, 4, 4, 4, 20], lambda length: 64 if length > 32 else 32, lambda length: 3 if length == 64 else 2)
    assert rows == [(64, [0, 2, 3]), (32, [4, 1])]


def test_a_row_with_less_than_the_least_room_takes_no_more():
    lengths = [60, 4, 3, 2]
    assert best_fit(lengths, lambda length: 64, lambda length: 9) == [(64, [0, 1]), (64, [2, 3])]
    assert best_fit(lengths, lambda length: 64, lambda length: 9, least_room=5) == [(64, [0]), (64, [1, 2, 3])]
