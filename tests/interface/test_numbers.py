"""Numbers in the text of files and flags: digits within a range, without the notations that only Python accepts."""

from __future__ import annotations

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.ranges import COUNT, Count, InRange, check_value, decimal_number, whole_number

LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("+3", 3), ("-4", -4), ("9" * 18, 10**18 - 1), ("0" * 5_000 + "5", 5), ("-0", 0)],
)
def test_whole_numbers_are_digits_with_or_without_a_sign(text: str, number: int):
    assert whole_number(text, -(10**18), 10**18) == number


@pytest.mark.parametrize("text", ["", "-", "1_0", " 1", "1 ", "1.0", "1e3", "²", "٣", "１", "0x1", "one", LONG, f"-{LONG}"])
def test_other_texts_are_not_whole_numbers(text: str):
    assert whole_number(text) is None


def test_a_number_outside_of_the_range_is_rejected():
    assert [whole_number(text, 1, 3) for text in ("0", "1", "3", "4", "-1")] == [None, 1, 3, None, None]
    assert [decimal_number(text, 0.5, 2) for text in ("0.4", "0.5", "2", "2.1", "-1")] == [None, 0.5, 2.0, None, None]


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2.0), ("-0.5", -0.5), (".5", 0.5), ("1.", 1.0), ("1e-3", 1e-3), ("+1E2", 100.0)]
)
def test_decimal_numbers_may_have_a_point_and_an_exponent(text: str, number: float):
    assert decimal_number(text) == number


@pytest.mark.parametrize("text", ["", ".", "nan", "inf", "-Infinity", "1_0", "1e", "1,5", "²", "1e999", "1" * 400, " 1"])
def test_other_texts_are_not_decimal_numbers(text: str):
    assert decimal_number(text) is None


def test_numbers_in_unusual_notation_are_refused_with_the_range():
    with pytest.raises(UserError, match="steps=a number of more than 4,300 digits must be at least 1 and at most 2,147,483,647"):
        check_value("steps", 10**5_000, Count)
    with pytest.raises(Exception, match="must be a whole number, at least 1"):
        InRange(int, COUNT)(LONG)
