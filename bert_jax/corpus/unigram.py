"""SentencePiece models (`spiece.model`) behind the same methods as `wordpiece.WordPiece`."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence
from typing import Any

import sentencepiece

WORD_START = "\u2581"


class SentencePiece:
    """Text to piece ids. A model that does not fold case itself is given lower-cased text without accents when `lowercase`, as
    ALBERT's was; `strip_accents` says otherwise of the accents.
    """

    kind = "sentencepiece"
    max_word_characters = None
    split_cjk = True  # nothing of WordPiece's rules applies; said for the vocabulary's identity

    def __init__(self, model: bytes, *, lowercase: bool = False, strip_accents: bool | None = None):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.lowercase = lowercase
        #: whether the model's own normalisation lower-cases: then it needs no help and no flag
        self.folds = "A" not in self._processor.normalize("A")
        self._strip_accents = strip_accents

    @property
    def strips(self) -> bool:
        """Whether accents are dropped before the model sees the text."""
        return self.lowercase and not self.folds if self._strip_accents is None else self._strip_accents

    @property
    def strip_accents(self) -> bool | None:
        """`strips` where it departs from what the casing says, else None."""
        return None if self.strips == (self.lowercase and not self.folds) else self.strips

    def specification(self) -> Any:
        """The model as its library's protocol buffer, `ModelProto`: pieces with scores, the normalisation's character map."""
        from sentencepiece import sentencepiece_model_pb2  # only to write tokenizer.json

        library: Any = sentencepiece_model_pb2  # made at import, out of mypy's sight
        specification = library.ModelProto()
        specification.ParseFromString(self.model)
        return specification

    def _prepared(self, text: str) -> str:
        if self.lowercase and not self.folds:
            text = text.lower()
        if not self.strips:
            return text
        return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))

    def append(self, text: str, out: array[int]) -> None:
        """Appends the ids of `text` to `out`. Special tokens are control pieces, which text never produces."""
        out.extend(self._processor.encode(self._prepared(text), out_type=int))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the characters [start, end) of `text`; folding outside the model keeps no offsets, so it is done by
        character.
        """
        places = [i for i, c in enumerate(text) for _ in self._prepared(c)] + [len(text)]
        encoded = self._processor.encode(self._prepared(text), return_type="offset_mapping")
        spans = []
        for first, last in encoded["offsets"]:
            start, end = places[first], places[last - 1] + 1 if last > first else places[first]
            while start < end and text[start].isspace():  # a word's piece begins at the word
                start += 1
            spans.append((start, end))
        return encoded["ids"], spans

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """The characters [start, end) of `text` of each word: a piece that begins with U+2581 and those that continue it."""
        spans: list[tuple[int, int]] = []
        fresh = True
        for piece, (start, end) in zip(*self.encode_with_offsets(text), strict=True):
            fresh |= not self.is_continuation(self.pieces[piece])
            if end > start:
                begin = start if fresh else spans.pop()[0]
                spans.append((begin, end))
                fresh = False
        return spans

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids."""
        return self._processor.decode([int(i) for i in ids])

    def is_continuation(self, piece: str) -> bool:
        """Whether a piece continues a word; pieces that begin one start with ▁."""
        return not piece.startswith(WORD_START)
