"""SentencePiece models (`spiece.model`), with the methods of `wordpiece.WordPiece`."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import sentencepiece

from bert_jax.data.tokenizers.wordpiece import WORD_START, joined_spans


class SentencePiece:
    """Converts text to ids with a SentencePiece model.

    If `lowercase` is True and the model does not lower-case text itself, text is lower-cased and its accents are dropped before
    the model receives it, as in ALBERT. `strip_accents` overrides whether accents are dropped.
    """

    kind: Literal["sentencepiece"] = "sentencepiece"
    max_word_characters = None
    split_cjk = True  # a field of VocabularyInfo; not used here

    def __init__(self, model: bytes, *, lowercase: bool = False, strip_accents: bool | None = None):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.lowercase = lowercase
        #: whether the model's own normalisation lower-cases
        self.folds = "A" not in self._processor.normalize("A")
        self._strip_accents = strip_accents
        self._left_out: dict[str, bool] = {}

    @property
    def strips(self) -> bool:
        """Whether accents are stripped before the model receives the text."""
        return self.lowercase and not self.folds if self._strip_accents is None else self._strip_accents

    @property
    def strip_accents(self) -> bool | None:
        """None if `strips` is the default for the casing, and otherwise `strips`."""
        return None if self.strips == (self.lowercase and not self.folds) else self.strips

    def specification(self) -> Any:
        """Returns the model as `ModelProto`, the protocol buffer of the library. It has the pieces with their scores, and the
        character map of the normalisation."""
        from sentencepiece import sentencepiece_model_pb2  # imported here because it is only needed to write tokenizer.json

        library: Any = sentencepiece_model_pb2  # the module creates its classes when it is imported, so mypy does not see them
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
        """Appends the ids of `text` to `out`. Never appends special ids other than [UNK], because the other special tokens are
        control pieces."""
        out.extend(self._processor.encode(self._prepared(text), out_type=int))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids and, for each id, the range [start, end) of its characters in `text`. The text may be lower-cased and
        lose its accents before the model receives it. To compute the ranges, each character is also changed on its own."""
        places = [i for i, c in enumerate(text) for _ in self._prepared(c)] + [len(text)]
        encoded = self._processor.encode(self._prepared(text), return_type="offset_mapping")
        spans = []
        for first, last in encoded["offsets"]:
            start, end = places[first], places[last - 1] + 1 if last > first else places[first]
            while start < end and self._is_left_out(text[start]):
                start += 1
            while start < end and self._is_left_out(text[end - 1]):
                end -= 1
            spans.append((start, end))
        return encoded["ids"], spans

    def _is_left_out(self, character: str) -> bool:
        """Returns whether this character is excluded at the start and end of a piece's span. White space is excluded, and so
        are characters that the normalisation drops, such as control characters."""
        if character not in self._left_out:
            self._left_out[character] = character.isspace() or not self._processor.normalize(character)
        return self._left_out[character]

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the range [start, end) of the characters of each word in `text`. A word has a piece that starts with U+2581,
        and the pieces that continue this piece."""
        ids, offsets = self.encode_with_offsets(text)
        return joined_spans(offsets, (not self.is_continuation(self.pieces[i]) for i in ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids."""
        return self._processor.decode([int(i) for i in ids])

    def surface_pieces(self, text: str) -> list[str]:
        """Returns the pieces of `text` as strings. An unknown piece is shown as the original characters."""
        pieces: list[str] = self._processor.encode(self._prepared(text), out_type=str)
        return pieces

    def join_pieces(self, pieces: Sequence[str]) -> str:
        """Returns the text of these pieces."""
        return str(self._processor.decode_pieces(list(pieces)))

    def is_continuation(self, piece: str) -> bool:
        """Returns whether a piece continues a word. A piece that starts a word begins with ▁ (U+2581)."""
        return not piece.startswith(WORD_START)
