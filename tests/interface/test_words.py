"""Numbers formatted as text."""

from __future__ import annotations

import pytest

from bert_jax.interface.words import byte_unit, cut, duration, prefixed, shortened


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (8.0, "8"),
        (93.42, "93.4"),
        (99.94, "99.9"),
        (99.96, "100"),
        (100.4, "100"),
        (-4310.4, "-4,310"),
        (9_994, "9,994"),
        (10_000, "10 k"),
        (4310.4, "4,310"),
        (9_999.9, "10 k"),
        (47_832, "47.8 k"),
        (999_999, "1 M"),
        (-1.5e6, "-1.5 M"),
        (1.9e6, "1.9 M"),
        (1e9, "1 G"),
        (1.9e9, "1.9 G"),
        (1e12, "1 T"),
        (1.9e12, "1.9 T"),
        (1e15, "1 P"),
        (1.9e15, "1.9 P"),
        (1e18, "1 E"),
        (1.9e18, "1.9 E"),
        (11_300_000, "11.3 M"),
        (9.87e9, "9.87 G"),
        (182e12, "182 T"),
        (1.2345e15, "1.23 P"),
        (3e20, "300 E"),
    ],
)
def test_a_number_has_three_digits_and_a_prefix(number: float, text: str):
    assert prefixed(number) == text


def test_a_unit_is_separated_from_its_number():
    assert [prefixed(number, "B/s") for number in (12.0, 1.2e9)] == ["12 B/s", "1.2 GB/s"]
    assert prefixed(100.0, "B/s") == "100 B/s"


@pytest.mark.parametrize(("size", "text"), [(0, "0 kB"), (66_300, "66 kB"), (9_999_999, "10,000 kB"), (10_000_000, "10 MB")])
def test_less_than_ten_megabytes_are_shown_in_kilobytes(size: int, text: str):
    scale, unit = byte_unit(size)
    assert f"{size / scale:,.0f} {unit}" == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.4, "0s"),
        (42.4, "42s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3_599, "59m59s"),
        (3_600, "1h00m"),
        (7_679, "2h07m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (4 * 86_400 + 3 * 3_600 + 3_599, "4d03h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_text_in_an_error_has_at_most_60_characters():
    assert cut("x" * 60) == "x" * 60
    assert cut("x" * 61) == "x" * 57 + "..."
    assert cut("abcdef", 5) == "ab..."


def test_a_very_long_line_is_shown_with_a_thousand_characters_of_each_end():
    line = "a b " * 1_000
    assert shortened(line) == f"{line[:1_000]}... (2,000 characters) ...{line[-1_000:]}"
