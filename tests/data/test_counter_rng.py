from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bert_jax.data.counter_rng import hash_bits, lower_half, make_key, random_bits, uniform_integers

N = 200_000


def test_bits_equal_the_published_splitmix64_sequence():
    # The first outputs for seed 1234567, as published with many implementations of SplitMix64.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert random_bits(np.uint64(1234567), np.arange(1, 6)).tolist() == expected


@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_every_byte_is_uniform(shift):
    byte = random_bits(make_key(7, 1), np.arange(N)) >> np.uint64(shift) & np.uint64(255)
    assert stats.chisquare(np.bincount(byte.astype(int), minlength=256)).pvalue > 1e-4


def test_neighbouring_keys_and_counters_and_hashed_bits_are_uncorrelated():
    counter = np.arange(N)
    uniform = [
        bits / 2.0**64
        for bits in (
            random_bits(make_key(7, 1), counter),
            random_bits(make_key(7, 1), counter + 1),
            random_bits(make_key(7, 2), counter),
            random_bits(make_key(8, 1), counter),
            lower_half(random_bits(make_key(7, 1), counter)),
            hash_bits(random_bits(make_key(7, 1), counter)),
        )
    ]
    correlation = np.corrcoef(uniform) - np.eye(len(uniform))
    assert np.abs(correlation).max() < 5 / np.sqrt(N)


def test_a_key_depends_on_the_order_of_its_parts_and_accepts_any_integer():
    keys = {int(make_key(*parts)) for parts in [(1, 2), (2, 1), (0, 0), (0,), (-1, 2), (2**70, 1)]}
    assert len(keys) == 6


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000])
def test_numbers_below_a_limit_are_uniform(limit):
    numbers = uniform_integers(limit, random_bits(make_key(3), np.arange(N)))
    assert numbers.min() == 0
    assert numbers.max() == limit - 1
    if limit > 1:
        assert stats.chisquare(np.bincount(numbers, minlength=limit)).pvalue > 1e-4


def test_each_number_may_have_its_own_limit_and_a_limit_of_zero_gives_zero():
    limits = np.array([0, 1, 5, 0])
    assert (uniform_integers(limits, np.full(4, 2**64 - 1, np.uint64)) == [0, 0, 4, 0]).all()
