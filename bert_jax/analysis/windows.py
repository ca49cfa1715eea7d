"""Splits texts into windows for the model, and maps each piece to its word."""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from bert_jax.data.tokenizers.tokenizer import Tokenizer, is_mark
from bert_jax.data.tokenizers.wordpiece import WORD_START
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import shortened

T = TypeVar("T")
_MARK = re.compile(r"\[([^\[\]]*)\]")
_NO_SPACE = re.compile(r" (?=[.,;:!?)%'\u2019])|(?<=[(\u2018]) ")
"""Matches the spaces that are removed when words are joined to a text: before closing punctuation, and after an opening bracket
or quotation mark."""


class Kind(enum.IntEnum):
    """The kinds of words. [MASK] and [UNK] stand for words of the text, so they count as words."""

    PADDING = 0
    WORD = enum.auto()
    PUNCTUATION = enum.auto()
    CLS = enum.auto()
    SEP = enum.auto()


@dataclasses.dataclass(frozen=True)
class Word:
    """One word with its pieces."""

    text: str
    ids: tuple[int, ...]
    kind: Kind


@dataclasses.dataclass(frozen=True)
class Window:
    """Words that the model reads together, including [CLS] and [SEP]."""

    words: tuple[Word, ...]
    segment_b: int = 0
    """The index of the first word of the second text, or 0 if there is no second text."""
    start: int = 0
    """The index in the text of the first word after [CLS]. If a text is cut into several windows, `start` is above 0 in all
    windows after the first."""

    def item(self, of_pairs: bool = True) -> Item:
        """Returns the pieces of the window with two columns. "words" has the index of each piece's word, and "kinds" has the
        kind of this word.

        If `of_pairs` is True, the second text has token type 1. It is False for models with a single token type.
        """
        numbers = [number for number, word in enumerate(self.words) for _ in word.ids]
        return Item(
            [i for word in self.words for i in word.ids],
            numbers.index(self.segment_b) if self.segment_b and of_pairs else -1,
            columns={"words": numbers, "kinds": [int(self.words[number].kind) for number in numbers]},
        )

    def context(self, number: int, reach: int = 8) -> str:
        """Returns the word with the index `number` in brackets, with up to `reach` words before and after it."""
        first, last = max(1, number - reach), min(len(self.words) - 1, number + reach + 1)
        shown = (f"[{word.text}]" if i == number else word.text for i, word in enumerate(self.words[:last]) if i >= first)
        return _NO_SPACE.sub("", " ".join(shown)).lstrip(" .,;:!?)")


def text_words(tokenizer: Tokenizer, text: str) -> list[Word]:
    """Returns the words of `text` with their pieces. The name of a special token in the text, such as "[MASK]", becomes that
    token."""
    return [word for _, word in placed_words(tokenizer, text)]


def placed_words(tokenizer: Tokenizer, text: str) -> list[tuple[int, Word]]:
    """Returns the words of `text_words`, each after the index of its first character in `text`."""
    names = {tokenizer.pieces[i]: i for i in sorted(tokenizer.special_ids)}
    mask = tokenizer.pieces[tokenizer.mask_id]
    words: list[tuple[int, Word]] = []
    place = 0
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
    for part, following in itertools.zip_longest(parts, parts[1:]):
        if part in names:
            words.append((place, Word(part, (names[part],), Kind.WORD)))
        else:
            takes_space = following == mask and tokenizer.mask_takes_space
            found = _placed_plain_words(tokenizer, part.rstrip() if takes_space else part)
            words += [(place + start, word) for start, word in found]
        place += len(part)
    return words


def plain_words(tokenizer: Tokenizer, text: str) -> list[Word]:
    """Returns the words of `text` with their pieces. For every kind of tokenizer, punctuation marks are separate words, unless
    a piece has both marks and other characters. The name of a special token in `text` is treated as ordinary text."""
    return [word for _, word in _placed_plain_words(tokenizer, text)]


def _placed_plain_words(tokenizer: Tokenizer, text: str) -> list[tuple[int, Word]]:
    ids, offsets = tokenizer.encode_with_offsets(text)
    spans = tokenizer.words_and_marks(text, offsets)
    if not spans:
        return []
    ends = [end for _, end in spans]
    pieces: list[list[int]] = [[] for _ in spans]
    for piece, (start, _) in zip(ids, offsets, strict=True):
        # A piece that only marks a space has no characters. It belongs to the word after the space.
        pieces[min(bisect.bisect_right(ends, start), len(spans) - 1)].append(piece)
    found = zip(spans, pieces, strict=True)
    return [(start, Word(text[start:end], tuple(own), _kind(text[start:end]))) for (start, end), own in found if own]


def written_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """Returns the words of a text that a model has written as the pieces `ids`. If the tokenizer would split this text into
    other pieces, a word starts at each piece that does not continue a word."""
    text = tokenizer.decode(ids)
    if tokenizer.encode(text) == [*ids]:
        return plain_words(tokenizer, text)
    starts = [i for i, continues in enumerate(tokenizer.is_continuation(np.array(ids))) if i == 0 or not continues]
    groups = [tuple(ids[first:end]) for first, end in itertools.pairwise([*starts, len(ids)])]
    texts = [tokenizer.word(own).lstrip(WORD_START) for own in groups]
    return [Word(text, own, _kind(text)) for text, own in zip(texts, groups, strict=True)]


def _kind(word: str) -> Kind:
    """Returns PUNCTUATION if the word consists only of punctuation marks and symbols."""
    return Kind.PUNCTUATION if all(map(is_mark, word)) else Kind.WORD


def read_window(engine: Engine, text: str, text_b: str | None = None) -> Window:
    """Returns a text or a pair as one window. Raises UserError if a text has no tokens, or if the window has more tokens than
    the position table."""
    parts = [text_words(engine.model.tokenizer, part) for part in (text, text_b) if part is not None]
    for part, words in zip((text, text_b), parts, strict=False):
        if not words:
            raise UserError(f"{shortened(part or '')} has no tokens; give text")
    return _fitting(engine, as_window(engine, *parts), text)


def _fitting(engine: Engine, window: Window, text: str) -> Window:
    """Returns `window`. Raises UserError if the window has more tokens than the position table."""
    size, table = sum(len(word.ids) for word in window.words), engine.config.max_position
    if size > table:
        raise UserError(
            f"{shortened(text)} is {counted(size, 'token')} with its [CLS] and [SEP], more than the {table:,} of the model's "
            "position table; shorten it"
        )
    return window


def marked_window(engine: Engine, text: str) -> tuple[Window, int] | None:
    """Reads a text with one word in brackets, e.g. "the [bank] of the river". Returns the text without brackets as one window,
    and the index of the word that was in brackets. Returns None if no word is in brackets. The name of a special token, such as
    [MASK], is not a word in brackets.

    Raises UserError if the text has several pairs of brackets, if the brackets do not contain exactly one word, or if the text
    is longer than the position table.
    """
    tokenizer = engine.model.tokenizer
    names = {tokenizer.pieces[i] for i in tokenizer.special_ids}
    marks = [mark for mark in _MARK.finditer(text) if mark[0] not in names]
    if not marks:
        return None
    if len(marks) > 1:
        raise UserError(f"{shortened(text)} has {counted(len(marks), 'word')} in brackets; put only one in brackets")
    before, marked, after = (
        text_words(tokenizer, part) for part in (text[: marks[0].start()], marks[0][1], text[marks[0].end() :])
    )
    if len(marked) != 1:
        raise UserError(f"{marks[0][0]} in {shortened(text)} is {counted(len(marked), 'word')}; put one word in brackets")
    words = text_words(tokenizer, _MARK.sub(lambda mark: mark[0] if mark[0] in names else mark[1], text))
    if len(words) != len(before) + 1 + len(after):  # a part of a word is in brackets
        words = [*before, *marked, *after]
    return _fitting(engine, as_window(engine, words), text), len(before) + 1


def grouped(windows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the `windows` in lists of `size` windows. The last list may be shorter."""
    waiting = iter(windows)
    while group := list(itertools.islice(waiting, size)):
        yield group


def read_windows(engine: Engine, text: str) -> Iterator[Window]:
    """Splits a text of any length into as many windows as the position table requires. The text is cut between words.

    Raises UserError if the text has no tokens.
    """
    words = text_words(engine.model.tokenizer, text)
    if not words:
        raise UserError(f"{shortened(text)} has no tokens; give text")
    room = engine.config.max_position - 2  # words that are longer than the position table are cut as well
    parts = (dataclasses.replace(word, ids=word.ids[i : i + room]) for word in words for i in range(0, len(word.ids), room))
    return _windows(engine, parts)


def word_windows(engine: Engine, words: Sequence[str]) -> Iterator[Window]:
    """Splits the given words into as many windows as the position table requires. Each word has its own pieces.

    Word i is word `i - window.start + 1` of its window, since [CLS] is word 0. A word without pieces becomes the unknown token.
    If a word is longer than the position table, only its first pieces are read."""
    return _windows(engine, given_words(engine.model.tokenizer, words, engine.config.max_position - 2))


def given_words(tokenizer: Tokenizer, words: Sequence[str], most: int) -> list[Word]:
    """Returns the given words with their pieces, at most `most` for each."""
    ids, firsts, counts = tokenizer.encode_words(words)
    found = zip(words, firsts, counts, strict=True)
    return [Word(word, tuple(ids[first : first + min(n, most)]), _kind(word)) for word, first, n in found]


def _windows(engine: Engine, words: Iterable[Word]) -> Iterator[Window]:
    room = engine.config.max_position - 2
    own: list[Word] = []
    size = start = 0
    for word in words:
        if size + len(word.ids) > room:
            yield dataclasses.replace(as_window(engine, own), start=start)
            start, own, size = start + len(own), [], 0
        own.append(word)
        size += len(word.ids)
    yield dataclasses.replace(as_window(engine, own), start=start)


def as_window(engine: Engine, first: Sequence[Word], second: Sequence[Word] = ()) -> Window:
    """Returns the words of one text, or of two, as a window with [CLS] and [SEP]. The window may exceed the position table."""
    tokenizer = engine.model.tokenizer
    cls, sep = (Word(tokenizer.pieces[i], (i,), kind) for i, kind in ((tokenizer.cls_id, Kind.CLS), (tokenizer.sep_id, Kind.SEP)))
    if not second:
        return Window((cls, *first, sep))
    return Window((cls, *first, sep, *second, sep), segment_b=len(first) + 2)
