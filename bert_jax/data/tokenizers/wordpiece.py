"""WordPiece with exactly the text rules of the original BERT (google-research/bert, tokenization.py).

The rules are applied in this order. NUL, U+FFFD and the characters of the categories Cc and Cf are dropped. Spaces are put
around CJK ideographs, unless `split_cjk` is False. The text is split at white space. If `lowercase` is True, each token is
lower-cased. If accents are stripped (the default for lower-cased text), the token is decomposed (NFD) and its combining marks
(Mn) are dropped. Every punctuation character is split off. Any printable ASCII character that is not a letter or digit counts
as punctuation. Finally the vocabulary is searched for the longest piece at each position, where `##` marks a piece inside a
word. A word becomes the unknown token if a part of it has no piece, or if it is longer than `max_word_characters`.

All rules apply within a chunk between white space, so one cache from chunks to ids answers nearly all lookups. On English
Wikipedia, one core converts 3.5-4 million tokens/s with a filled cache, compared with 0.55 million with the Rust library
`tokenizers`. The `BertNormalizer` of this library also differs from the original. It lower-cases letter by letter, so final
sigmas become medial, and it drops private-use characters."""

from __future__ import annotations

import functools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Literal, TypeVar

CONTINUATION = "##"
WORD_START = "\u2581"
"""WordPiece marks the pieces inside a word (##). SentencePiece marks the pieces at the start of a word (▁)."""
MAX_WORD_CHARACTERS = 200  # the value of the original; transformers uses 100
Ids = TypeVar("Ids", tuple[int, ...], bytes)
_Span = tuple[int, int]  # characters [start, end) of a text
# A cache takes at most about 140 MB per worker, then it is emptied. A chunk is a word in most languages, but a whole sentence in
# Chinese.
_CACHED_CHUNKS, _CACHED_CHARACTERS = 1 << 19, 1 << 22

# `str.split` treats these characters as white space. The original treats them as control characters, so it drops them and joins
# the characters before and after them.
_DROPPED_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_CONTROLS = re.compile("[\x00-\x1f\x7f]")
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@functools.cache
def _cleaned(character: str) -> str:
    """Returns "" if cleaning drops the character, " " if it is white space, and otherwise the character."""
    if character in " \t\n\r":
        return " "
    category = unicodedata.category(character)
    if character == "\ufffd" or category in ("Cc", "Cf"):
        return ""
    return " " if category == "Zs" else character


@functools.cache
def _spaced(character: str) -> str:
    """Returns the result of `_cleaned`. If the character is an ideograph, it gets spaces around it."""
    code = ord(character)
    return f" {character} " if any(low <= code <= high for low, high in _CJK) else _cleaned(character)


@functools.cache
def _is_punctuation(character: str) -> bool:
    if character.isascii():
        return not character.isalnum() and "!" <= character <= "~"
    return unicodedata.category(character).startswith("P")


def _fold(token: str, lowercase: bool, strip: bool) -> str:
    """Lower-cases the token if `lowercase` is True, and strips its accents if `strip` is True. `str.lower` gets the whole
    token, because the lower case of a capital sigma depends on its position in the word."""
    token = token.lower() if lowercase else token
    return "".join(c for c in unicodedata.normalize("NFD", token) if unicodedata.category(c) != "Mn") if strip else token


def _split_punctuation(token: str) -> str:
    return "".join(f" {c} " if _is_punctuation(c) else c for c in token)


@functools.cache
def stripped(character: str) -> str | None:
    """Returns what is left of a letter or mark after lower-casing and stripping accents. Returns None if at most the case
    changes, or if the character is neither a letter nor a mark."""
    if unicodedata.category(character)[0] not in "LM":
        return None
    folded = _fold(character, lowercase=True, strip=True)
    return None if folded == character.lower() else folded


def stands_alone(character: str) -> bool:
    """Returns whether a character is always a separate word, i.e. whether it is punctuation or an ideograph."""
    return _is_punctuation(character) or len(_spaced(character)) == 3


def basic_words(text: str, lowercase: bool, strip_accents: bool | None = None, split_cjk: bool = True) -> list[str]:
    """Splits `text` into words. Applies all rules except the lookup in the vocabulary. If `strip_accents` is None, accents are
    stripped if `lowercase` is True."""
    if text.isascii():
        text = _ASCII_CONTROLS.sub(lambda m: " " if m[0] in "\t\n\r" else "", text)
        return _ASCII_WORDS.findall(text.lower() if lowercase else text)
    tokens = "".join(map(_spaced if split_cjk else _cleaned, text)).split()
    strip = lowercase if strip_accents is None else strip_accents
    if lowercase or strip:
        tokens = [_fold(token, lowercase, strip) for token in tokens]
    return " ".join(map(_split_punctuation, tokens)).split()


class WordPiece:
    """Converts text to ids with a WordPiece vocabulary.

    `pieces[i]` is the piece with id i. A repeated piece has the last of its ids, as in the original. If `strip_accents` is
    None, accents are stripped if `lowercase` is True. `split_cjk=False` keeps ideographs in their words, like
    `tokenize_chinese_chars=False` of transformers. `unknown` is the piece for words that the vocabulary cannot represent.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    folds = False  # whether the model lower-cases text itself, as SentencePiece may

    def __init__(
        self,
        pieces: Sequence[str],
        *,
        lowercase: bool = False,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        max_word_characters: int = MAX_WORD_CHARACTERS,
        unknown: str = "[UNK]",
    ):
        self.pieces = list(pieces)
        self.lowercase = lowercase
        self.strip_accents = None if strip_accents == lowercase else strip_accents  # None: the default
        self.strips = lowercase if strip_accents is None else strip_accents
        """Whether accents and other marks are stripped."""
        self.split_cjk = split_cjk
        self.max_word_characters = max_word_characters
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._starts = ids
        self._continuations = {piece[2:]: i for piece, i in ids.items() if piece.startswith(CONTINUATION)}
        self._longest = max(map(len, self.pieces), default=0)
        self._unknown = ids.get(unknown, -1)  # `Tokenizer` rejects a vocabulary without the unknown piece
        self._chunks = ChunkCache(self._encode_chunk)
        self._words = ChunkCache(self.encode_word)

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Encodes a word by greedy longest match. Returns only the unknown token if any part of the word has no piece."""
        return tuple(i for i, _ in self._spell(word))

    def _spell(self, word: str) -> list[tuple[int, int]]:
        """Returns [(piece id, end offset in the word)] by greedy longest match."""
        whole = [(self._unknown, len(word))]
        if len(word) > self.max_word_characters:
            return whole
        spelt: list[tuple[int, int]] = []
        table, start = self._starts, 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = table.get(word[start:end])
                if piece is not None:
                    break
            else:
                return whole
            spelt.append((piece, end))
            table, start = self._continuations, end
        return spelt

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        words = basic_words(chunk, self.lowercase, self.strip_accents, self.split_cjk)
        return self._words[words[0]] if len(words) == 1 else tuple(chain.from_iterable(map(self._words.__getitem__, words)))

    def append(self, text: str, out: array[int]) -> None:
        """Appends the ids of `text` to `out`. [UNK] is the only special id that can occur, because brackets are split off as
        punctuation."""
        if _DROPPED_SPACES.search(text):
            text = _DROPPED_SPACES.sub("", text)
        out.extend(chain.from_iterable(map(self._chunks.__getitem__, text.split())))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of `text` and, for each id, the range [start, end) of its characters in `text`."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for word, places in self._words_with_offsets(text):
            start = 0
            for piece, end in self._spell(word):
                ids.append(piece)
                offsets.append((places[start][0], places[end - 1][1]))
                start = end
        return ids, offsets

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the range [start, end) of the characters in `text` for each word of `basic_words`."""
        return [(places[0][0], places[-1][1]) for _, places in self._words_with_offsets(text)]

    def _words_with_offsets(self, text: str) -> list[tuple[str, list[_Span]]]:
        """Returns the words of `basic_words`. For every character of a word, also returns its span [start, end) in `text`."""
        strip = self.lowercase if self.strip_accents is None else self.strip_accents
        words: list[tuple[str, list[_Span]]] = []
        for token, places in _tokens_with_offsets(text, _spaced if self.split_cjk else _cleaned):
            folded, spans = _folded_with_offsets(token, places, self.lowercase, strip)
            start = 0
            for stop in range(len(folded) + 1):
                if stop == len(folded) or _is_punctuation(folded[stop]):
                    if stop > start:
                        words.append((folded[start:stop], spans[start:stop]))
                    if stop < len(folded):
                        words.append((folded[stop], spans[stop : stop + 1]))
                    start = stop + 1
        return words

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the words of these ids, joined by spaces."""
        return " ".join(self.pieces[i] for i in ids).replace(f" {CONTINUATION}", "")

    def is_continuation(self, piece: str) -> bool:
        """Returns whether a piece continues a word, i.e. starts with ##."""
        return piece.startswith(CONTINUATION)


class ChunkCache(dict[str, Ids]):
    """A cache of `compute(key)`. To bound memory, the cache is emptied when it has `_CACHED_CHUNKS` keys or
    `_CACHED_CHARACTERS` characters."""

    def __init__(self, compute: Callable[[str], Ids]):
        self._compute: Callable[[str], Ids] = compute
        self._characters = 0  # the number of characters of the keys

    def __missing__(self, key: str) -> Ids:
        self._characters += len(key)
        if len(self) >= _CACHED_CHUNKS or self._characters > _CACHED_CHARACTERS:
            self.clear()
            self._characters = len(key)
        value = self[key] = self._compute(key)
        return value


def _tokens_with_offsets(text: str, clean: Callable[[str], str]) -> list[tuple[str, list[_Span]]]:
    """Cleans `text` and splits it at white space. Returns each chunk with the spans of its characters in `text`."""
    tokens: list[tuple[str, list[_Span]]] = []
    token, places = "", list[_Span]()

    def close() -> None:
        nonlocal token, places
        if token:
            tokens.append((token, places))
        token, places = "", []

    for i, character in enumerate(text):
        cleaned = clean(character)
        if not cleaned:
            continue
        if cleaned.isspace():
            close()
        elif cleaned == character:
            token += character
            places.append((i, i + 1))
        else:  # an ideograph between spaces
            close()
            token, places = character, [(i, i + 1)]
            close()
    close()
    return tokens


def _folded_with_offsets(token: str, places: list[_Span], lowercase: bool, strip: bool) -> tuple[str, list[_Span]]:
    """Folds a token as `_fold` does. Also returns the span of each remaining character. If a combining mark is dropped, the
    span of the previous character is extended.

    Lower-casing and decomposition keep the order of characters, except that marks may be put into canonical order. The spans
    are therefore collected character by character, but the token is folded as a whole.
    """
    spans: list[_Span] = []
    for character, place in zip(token, places, strict=True):
        kept = _fold(character, lowercase, strip)
        if not kept and spans:
            spans[-1] = (spans[-1][0], place[1])
        spans.extend([place] * len(kept))
    return _fold(token, lowercase, strip), spans


def joined_spans(offsets: Iterable[tuple[int, int]], begins: Iterable[bool]) -> list[tuple[int, int]]:
    """Returns the range [start, end) of the characters of each word. `offsets` has the ranges of the pieces. `begins` is True
    for pieces that start a word. If such a piece has no characters, the next piece starts the word."""
    spans: list[tuple[int, int]] = []
    fresh = True
    for (start, end), begin in zip(offsets, begins, strict=True):
        fresh |= begin
        if end > start:
            spans.append((start if fresh else spans.pop()[0], end))
            fresh = False
    return spans
