"""Reads numbers from the text of files and flags.

`int` is too lenient for this, because it accepts "1_000", " 7" and the digits of every script. It also raises a special error
beyond 4,300 digits. `str.isdigit` is too lenient, too, because `"²".isdigit()` is true, but `int("²")` fails. `whole_number`
and `decimal_number` accept only ASCII digits and return None for everything that is not a number in the range."""

from __future__ import annotations

import math
import re

LARGEST = 2**63 - 1
"""The largest integer that an array can hold."""
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def whole_number(text: str, low: int = 0, high: int = LARGEST) -> int | None:
    """Parses an integer in decimal digits with an optional sign. Returns None for other texts and numbers outside [low, high]."""
    if not _WHOLE.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > len(str(max(abs(low), abs(high)))):  # checked before `int`, which rejects more than 4,300 digits
        return None
    value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if low <= value <= high else None


def decimal_number(text: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Parses a number such as "2", "-0.5" or "1e-3". Returns None for other texts ("nan", "inf", "1_000"), numbers outside [low,
    high], and numbers too large for a float."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) and low <= value <= high else None
