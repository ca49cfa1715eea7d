"""The hash of dropout's random words, on Python's numbers."""

from __future__ import annotations


def hashed(word: int) -> int:
    """Wellons' lowbias32, with his constants of 2022."""
    word %= 2**32
    word = (word ^ word >> 16) * 0x21F0AAAD % 2**32
    word = (word ^ word >> 15) * 0xD35A2D97 % 2**32
    return word ^ word >> 15
