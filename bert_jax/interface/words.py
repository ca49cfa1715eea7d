"""Formats counts, sizes and durations for log lines and errors, and makes arbitrary texts safe to print."""

from __future__ import annotations

import re
import sys

PLURALS = {"batch": "batches", "corpus": "corpora", "entry": "entries", "pass": "passes", "process": "processes",
           "query": "queries", "vocabulary": "vocabularies"}  # fmt: skip
"""Nouns passed to `counted` whose plural is not noun + s."""


def counted(number: int, noun: str) -> str:
    """Formats a number with its noun in singular or plural: "1 epoch", "1,234 rows", "0 batches"."""
    return f"{number:,} {noun if number == 1 else PLURALS.get(noun, noun + 's')}"


def cut(text: str, most: int = 60) -> str:
    """Cuts a text to `most` characters, ending in "...", for an error message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object) -> str:
    """Formats a value with `repr` for an error message, including integers with more digits than Python prints."""
    try:
        return repr(value)
    except ValueError:
        return f"a number of more than {sys.get_int_max_str_digits():,} digits"


def byte_unit(size: float) -> tuple[float, str]:
    """Returns (bytes per unit, name of the unit) for showing progress towards `size` bytes. The unit is MB, or kB below 10
    MB."""
    return (1e6, "MB") if size >= 1e7 else (1e3, "kB")


def prefixed(number: float, unit: str = "") -> str:
    """Formats `number` with three significant digits, an SI prefix and its `unit`: "93.4", "4,310", "47.8 k", "1.07 M", "107
    GFLOP/s"."""
    rounded = float(f"{number:.3g}")  # so that 999,999 is shown as 1 M
    for prefix, size, least in _PREFIXES:
        if abs(rounded) >= least:
            return f"{rounded / size:.3g} {prefix}{unit}"
    return (f"{number:,.0f}" if abs(rounded) >= 100 else f"{number:.3g}") + f" {unit}" * bool(unit)


_PREFIXES = (("E", 1e18, 1e18), ("P", 1e15, 1e15), ("T", 1e12, 1e12), ("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4))
"""(prefix, its size, the smallest number that uses it)."""


def duration(seconds: float) -> str:
    """Formats `seconds`: 42s, 3m05s, 2h07m, 4d03h."""
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86400}d{s % 86400 // 3600:02d}h"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONG_WORD, _LONG_LINE = re.compile(r"\S{600,}"), re.compile(r"[^\n]{3000,}")


def without_controls(text: str) -> str:
    r"""Escapes the control characters in `text`, except line breaks and TABs, as in JSON: "\u001b" for ESC. Otherwise, text from
    a file could erase lines of the terminal or change the colour of the following output."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str) -> str:
    """Omits the middle of very long words and lines in `text`, such as a path of 4,000 characters."""
    for long, kept in ((_LONG_WORD, 150), (_LONG_LINE, 1000)):
        text = long.sub(lambda found, kept=kept: _without_middle(found[0], kept), text)  # type: ignore[misc]
    return text


def _without_middle(text: str, kept: int) -> str:
    return f"{text[:kept]}... ({counted(len(text) - 2 * kept, 'character')}) ...{text[-kept:]}"
