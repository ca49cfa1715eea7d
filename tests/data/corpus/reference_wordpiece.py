"""The published text rules of BERT's tokenizer, written out slowly and plainly one by one, as a reference for the fast
implementation.

It goes through the whole text character by character, without caches or regular expressions.
"""

from __future__ import annotations

import unicodedata

CJK_BLOCKS = [
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
]


def without_controls(text: str) -> str:
    """Applies rule 1: NUL, U+FFFD and control or format characters are removed; tab, line feed, carriage return and space
    separators become a space."""
    result = []
    for c in text:
        if c in ("\t", "\n", "\r") or unicodedata.category(c) == "Zs":
            result.append(" ")
        elif c != "\0" and c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cf"):
            result.append(c)
    return "".join(result)


def with_spaced_ideographs(text: str) -> str:
    """Applies rule 2: every character of a CJK ideograph block is a word of its own."""
    return "".join(" " + c + " " if any(ord(c) in block for block in CJK_BLOCKS) else c for c in text)


def without_accents(token: str) -> str:
    """Applies rule 4, only when lower-casing: decomposes, and drops the non-spacing marks."""
    return "".join(c for c in unicodedata.normalize("NFD", token) if unicodedata.category(c) != "Mn")


def is_punctuation(c: str) -> bool:
    """Checks rule 5: punctuation is the Unicode punctuation categories, and every visible ASCII character that is not a letter or
    digit."""
    return unicodedata.category(c)[0] == "P" or c in "$+<=>^`|~"


def words(text: str, lowercase: bool) -> list[str]:
    result = []
    for token in with_spaced_ideographs(without_controls(text)).split():
        if lowercase:
            token = without_accents(token.lower())
        word = ""
        for c in token:
            if is_punctuation(c):
                result += [word, c]
                word = ""
            else:
                word += c
        result.append(word)
    return " ".join(result).split()


def pieces(word: str, vocabulary: set[str], longest_word: int) -> list[str]:
    """Applies rule 6: takes the longest piece that fits, from the left; the whole word becomes [UNK] if no piece fits, or if it
    is too long."""
    if len(word) > longest_word:
        return ["[UNK]"]
    if not word:
        return []
    found, rest, prefix = [], word, ""
    while rest:
        fitting = [n for n in range(len(rest), 0, -1) if prefix + rest[:n] in vocabulary]
        if not fitting:
            return ["[UNK]"]
        found.append(prefix + rest[: fitting[0]])
        rest, prefix = rest[fitting[0] :], "##"
    return found


def tokenize(text: str, vocabulary: set[str], *, lowercase: bool, longest_word: int = 200) -> list[str]:
    return [piece for word in words(text, lowercase) for piece in pieces(word, vocabulary, longest_word)]
