"""Reads numbers from the text of files and flags.

`int` accepts "1_000", " 7" and the digits of every script, and raises an error of its own beyond 4,300 digits; `"²".isdigit()` is
true, but `int("²")` fails. These two functions accept ASCII digits alone, and return None for everything that is not a number in
the range.
"""

from __future__ import annotations

import math
import re

LARGEST = 2**63 - 1
"""The largest whole number that an array holds."""
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def whole_number(text: str, low: int = 0, high: int = LARGEST) -> int | None:
    """Returns the integer that `text` writes in decimal digits, with or without a sign; None if it is another text, or a number
    outside [low, high]."""
    if not _WHOLE.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > len(str(max(abs(low), abs(high)))):  # before `int`, which refuses more than 4,300 digits
        return None
    value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if low <= value <= high else None


def decimal_number(text: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Returns the number that `text` writes, such as "2", "-0.5" or "1e-3"; None if it is another text ("nan", "inf", "1_000"), a
    number outside [low, high], or one too large for a float."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) and low <= value <= high else None
