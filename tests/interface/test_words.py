"""Numbers as text."""

from __future__ import annotations

import pytest

from bert_jax.interface.words import byte_unit, prefixed


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (8.0, "8"),
        (93.42, "93.4"),
        (4310.4, "4,310"),
        (9_999.9, "10 k"),
        (47_832, "47.8 k"),
        (999_999, "1 M"),
        (11_300_000, "11.3 M"),
        (9.87e9, "9.87 G"),
        (182e12, "182 T"),
        (1.2345e15, "1.23 P"),
        (3e20, "300 E"),
    ],
)
def test_a_number_has_three_digits_and_a_prefix(number: float, text: str):
    assert prefixed(number) == text


def test_a_unit_stands_apart_from_its_number():
    assert [prefixed(number, "B/s") for number in (12.0, 1.2e9)] == ["12 B/s", "1.2 GB/s"]


@pytest.mark.parametrize(("size", "text"), [(0, "0 kB"), (66_300, "66 kB"), (9_999_999, "10,000 kB"), (10_000_000, "10 MB")])
def test_less_than_ten_megabytes_are_told_in_kilobytes(size: int, text: str):
    scale, unit = byte_unit(size)
    assert f"{size / scale:,.0f} {unit}" == text
