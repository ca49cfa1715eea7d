"""SentencePiece models (`spiece.model`) behind the same methods as `wordpiece.WordPiece`."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence

import sentencepiece

WORD_START = "\u2581"


class SentencePiece:
    """Text to piece ids. A model that does not fold case itself is given lower-cased text without accents when `lowercase`, as
    ALBERT's was.
    """

    kind = "sentencepiece"
    max_word_characters = None

    def __init__(self, model: bytes, *, lowercase: bool = False):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.lowercase = lowercase
        #: whether the model's own normalisation lower-cases: then it needs no help and no flag
        self.folds = "A" not in self._processor.normalize("A")

    def _prepared(self, text: str) -> str:
        if self.folds or not self.lowercase:
            return text
        return "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))

    def append(self, text: str, out: array) -> None:
        """Appends the ids of `text` to `out`. Special tokens are control pieces, which text never produces."""
        out.extend(self._processor.encode(self._prepared(text), out_type=int))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the characters [start, end) of `text`; folding outside the model keeps no offsets, so it is done by
        character.
        """
        places = [i for i, c in enumerate(text) for _ in self._prepared(c)]
        encoded = self._processor.encode(self._prepared(text), return_type="offset_mapping")
        spans = [(places[start], places[end - 1] + 1) if end > start else (0, 0) for start, end in encoded["offsets"]]
        return encoded["ids"], spans

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def is_continuation(self, piece: str) -> bool:
        return not piece.startswith(WORD_START)
