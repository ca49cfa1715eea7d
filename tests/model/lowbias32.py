"""The hash for dropout's random words, in plain Python."""

from __future__ import annotations


def hashed(word: int) -> int:
    """Computes Wellons' lowbias32, with his constants of 2022."""
    word %= 2**32
    word = (word ^ word >> 16) * 0x21F0AAAD % 2**32
    word = (word ^ word >> 15) * 0xD35A2D97 % 2**32
    return word ^ word >> 15


def word_of(seed: int, index: tuple[int, ...]) -> int:
    """Returns the random word of an element: the indices of its row are hashed one after the other, then its column."""
    row = seed
    for axis, i in enumerate(index[:-1]):
        row = hashed(row + i * 0x85EBCA6B + axis + 1)
    return hashed(hashed(seed ^ row) + index[-1] * 0x9E3779B9)


def rate_at_a_word(seed: int, axes: int) -> float:
    """Returns a dropout rate near 1/4 whose threshold equals the random word of an element in the first row, which is therefore
    just kept."""
    words = (word_of(seed, (0,) * (axes - 1) + (column,)) for column in range(16))
    return min(words, key=lambda word: abs(word - 2**30)) / 2**32
