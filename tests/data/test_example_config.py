from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 4}, r"length=4 must be at least 5, because every row has 3 special"),
        ({"length": 100_000}, r"length=100000 must be at least 3 and at most 32,767"),
        ({"max_predictions": 0}, r"max_predictions=0 must be at least 1"),
        ({"max_predictions": 126}, r"max_predictions=126 must be at most 125"),
        ({"masked_fraction": 1.5}, r"masked_fraction=1.5 must be above 0 and at most 1"),
        ({"masked_fraction": 0.0}, r"masked_fraction=0"),
        ({"mask_probability": 0.9, "random_probability": 0.2}, r"sum to more than 1"),
        ({"short_probability": -0.1}, r"short_probability=-0.1"),
        ({"packed_examples": 0}, r"packed_examples=0 must be at least 1 and at most 4,096"),
        ({"duplicates": -1}, r"duplicates=-1"),
        (
            {"max_predictions": 128, "targets": "next"},
            r"max_predictions=128 must be at most 127, because a row of length=128 has no more tokens",
        ),
        (
            {"masking": "spans", "targets": "next"},
            r"masking=spans masks words, but targets=next needs no masks; leave masking out",
        ),
        ({"pairs": "orginal"}, r"'orginal'.*did you mean 'original'"),
        ({"packed_examples": 4}, r"max_predictions=20 is too small for packed_examples=4 .*set max_predictions=21"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_key_value_and_limit(changes, message):
    with pytest.raises(UserError, match=message):
        ExampleConfig(**({"length": 128, "max_predictions": 20} | changes))


def test_the_defaults_equal_the_flags_of_bert_except_for_dynamic_masks():
    """The defaults of create_pretraining_data.py: max_seq_length, max_predictions_per_seq, masked_lm_prob, short_seq_prob, and 80
    / 10 / 10."""
    assert vars(ExampleConfig()) == {
        "length": 128,
        "max_predictions": 20,
        "masked_fraction": 0.15,
        "short_probability": 0.1,
        "mask_probability": 0.8,
        "random_probability": 0.1,
        "pairs": "original",
        "masking": "tokens",
        "targets": "masked",
        "packed_examples": 1,
        "duplicates": 0,
    }


@pytest.mark.parametrize(
    ("length", "packed", "fraction", "pairs"),
    [
        (40, 3, 0.15, "original"), (30, 2, 0.5, "paper"), (23, 4, 0.3, "original"), (20, 4, 0.3, "none"), (22, 7, 0.5, "none"),
        (21, 4_096, 0.5, "none"),
    ],
)  # fmt: skip
def test_packing_needs_the_smallest_sufficient_number_of_predictions(length, packed, fraction, pairs):
    shape = {"length": length, "packed_examples": packed, "masked_fraction": fraction, "pairs": pairs}
    alone = ExampleConfig(**{**shape, "packed_examples": 1}, max_predictions=length - 3)
    counts = alone.predictions(np.arange(length + 1))
    sizes = range(3 if pairs == "none" else 5, length + 1)
    most, combined = min(packed, length // sizes[0]), itertools.combinations_with_replacement
    rows = [row for k in range(1, most + 1) for row in combined(sizes, k) if sum(row) <= length]
    needed = max(sum(counts[size] for size in row) for row in rows)
    ExampleConfig(max_predictions=int(needed), **shape)
    with pytest.raises(UserError, match=f"set max_predictions={needed} "):
        ExampleConfig(max_predictions=int(needed) - 1, **shape)


def test_masks_that_depend_on_the_words_may_be_fewer_than_the_tokens_of_packed_rows_need():
    settings = {"length": 128, "max_predictions": 20, "packed_examples": 4}
    with pytest.raises(UserError, match="max_predictions=20"):
        ExampleConfig(**settings, masking="tokens")
    for masking in ("words", "policy.py:mine"):
        assert ExampleConfig(**settings, masking=masking).max_predictions == 20


def test_an_example_has_as_many_predictions_as_in_bert_and_at_most_its_tokens():
    config = ExampleConfig(length=128, max_predictions=20, masked_fraction=0.5)
    lengths = np.arange(129)
    expected = [min(20, max(1, round(0.5 * n)), max(n - 3, 0)) for n in lengths]  # rounds half to even, as the original does
    np.testing.assert_array_equal(config.predictions(lengths), expected)


def test_another_masked_fraction_has_enough_predictions():
    config = ExampleConfig(length=128, max_predictions=20)
    assert config.with_masked_fraction(0.15) is config
    following = ExampleConfig(length=128, max_predictions=20, targets="next")
    assert following.with_masked_fraction(0.3) is following
    assert vars(config.with_masked_fraction(0.3)) == vars(config) | {"masked_fraction": 0.3, "max_predictions": 38}
    words = ExampleConfig(length=128, max_predictions=31, masking="words", packed_examples=2)
    for fraction, predictions in ((0.2, 42), (0.9, 125)):  # in proportion, up to all tokens
        found = words.with_masked_fraction(fraction)
        assert (found.masked_fraction, found.max_predictions, found.packed_examples) == (fraction, predictions, 2)
