"""Marian's tokenizer (`source.spm`, `target.spm`, `vocab.json`), with the methods of `wordpiece.WordPiece`. Each language has a
SentencePiece model. A vocabulary has the ids of the pieces. Both languages share one vocabulary, or each language has its
own."""

from __future__ import annotations

import functools
import pathlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Literal

from bert_jax import files
from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece
from bert_jax.data.tokenizers.tokenizer_files import MARIAN_FILES
from bert_jax.data.tokenizers.wordpiece import WORD_START
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, parse_json

SOURCE_MODEL, TARGET_MODEL, VOCABULARY, TARGET_VOCABULARY = MARIAN_FILES
SPECIALS = {"pad": "<pad>", "unk": "<unk>", "sep": "</s>", "cls": "</s>", "mask": "<unk>"}
"""Role -> piece. A source text ends with </s> and has no special token at the start. Marian has no mask token."""


class MarianPieces:
    """Converts text to ids as transformers' `MarianTokenizer` does, without the </s> at the end.

    A text may begin with the code of the target language, such as ">>deu<<". The code is one token. `contents` maps the names
    of the files to their contents. If TARGET_VOCABULARY is not among them, both languages share a vocabulary."""

    kind: Literal["marian"] = "marian"
    max_word_characters = None
    split_cjk = True  # a field of VocabularyInfo; not used here
    lowercase = False
    strip_accents = None
    strips = False

    def __init__(self, contents: Mapping[str, bytes], settings: JsonObject | None = None):
        self.contents = dict(contents)
        self.settings: JsonObject = dict(settings or {})
        self._source = SentencePiece(contents[SOURCE_MODEL])
        self._ids: dict[str, int] = parse_json(contents[VOCABULARY])
        self.pieces = _by_id(self._ids)

    @functools.cached_property
    def turned(self) -> MarianPieces:
        """The same tokenizer with the two languages exchanged. It encodes and decodes texts in the target language."""
        names = {SOURCE_MODEL: TARGET_MODEL, TARGET_MODEL: SOURCE_MODEL}
        if self.separate_vocabularies:
            names |= {VOCABULARY: TARGET_VOCABULARY, TARGET_VOCABULARY: VOCABULARY}
        return MarianPieces({name: self.contents[names.get(name, name)] for name in self.contents}, self.settings)

    @property
    def separate_vocabularies(self) -> bool:
        """Whether the target language has its own vocabulary."""
        return TARGET_VOCABULARY in self.contents

    @property
    def identity(self) -> bytes:
        """The content of all files, from which the hash of the vocabulary is computed."""
        return b"".join(self.contents.get(name, b"") for name in MARIAN_FILES)

    def append(self, text: str, out: array[int]) -> None:
        """Appends the ids of a text in the source language to `out`."""
        out.extend(_encoded(text, self._source, self._ids))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of a text in the source language and, for each id, the range [start, end) of its characters in
        `text`."""
        code, rest = _split_code(text)
        own, spans = self._source.encode_with_offsets(rest)
        ids = _encoded(text, self._source, self._ids)
        assert len(ids) == len(own) + bool(code)
        shifted = [(start + len(code), end + len(code)) for start, end in spans]
        return ids, [(0, len(code))] * bool(code) + shifted

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the range [start, end) of the characters of each word in a text in the source language. A language code is a
        word."""
        code, rest = _split_code(text)
        shifted = [(start + len(code), end + len(code)) for start, end in self._source.word_spans(rest)]
        return [(0, len(code))] * bool(code) + shifted

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text in the source language with these ids. Special tokens are left out."""
        return _decoded(ids, self._source, self.pieces)

    def is_continuation(self, piece: str) -> bool:
        """Returns whether a piece continues a word. A piece that begins a word starts with ▁ (U+2581)."""
        return not piece.startswith(WORD_START)


def read_marian(directory: pathlib.Path) -> MarianPieces:
    """Returns the tokenizer in a directory that has the file SOURCE_MODEL. Raises UserError if another file is missing, if a
    file is damaged, or if a vocabulary lacks the special pieces."""
    if lacking := [name for name in MARIAN_FILES[:3] if not (directory / name).is_file()]:
        raise UserError(f"{directory} holds {SOURCE_MODEL} but no {lacking[0]}; copy the whole model")
    contents = {name: (directory / name).read_bytes() for name in MARIAN_FILES if (directory / name).is_file()}
    for name, content in contents.items():
        files.refuse_pointer(directory / name, content)
    config = directory / "tokenizer_config.json"
    settings = files.read_object(config, "copy the file again") if config.is_file() else {}
    if not settings.get("separate_vocabs", TARGET_VOCABULARY in contents):
        contents.pop(TARGET_VOCABULARY, None)
    try:
        if empty := [name for name, content in contents.items() if not content]:
            raise ValueError(f"{empty[0]} is empty")
        model = MarianPieces(contents, settings)
        target = model.turned
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{directory}: its files are not Marian's tokenizer ({error}); copy the model again") from error
    for pieces, name in ((model.pieces, VOCABULARY), (target.pieces, TARGET_VOCABULARY)):
        if absent := [piece for piece in SPECIALS.values() if piece not in pieces]:
            raise UserError(f"{directory / name} has no {absent[0]}, which every Marian vocabulary has; copy the model again")
    return model


def _split_code(text: str) -> tuple[str, str]:
    """Returns (the language code, the rest of the text). The code is at the start of a text and names the target language, such
    as ">>deu<<". If the text has no code, the first element is ""."""
    end = text.find("<<") if text.startswith(">>") else -1
    return (text[: end + 2], text[end + 2 :]) if end >= 0 else ("", text)


def _encoded(text: str, model: SentencePiece, ids: Mapping[str, int]) -> list[int]:
    code, rest = _split_code(text)
    unknown = ids[SPECIALS["unk"]]
    return [ids.get(piece, unknown) for piece in [code] * bool(code) + model.surface_pieces(rest)]


def _decoded(ids: Sequence[int], model: SentencePiece, pieces: Sequence[str]) -> str:
    kept = [pieces[i] for i in ids if pieces[i] not in SPECIALS.values()]
    return model.join_pieces(kept).replace(WORD_START, " ").strip()


def _by_id(ids: Mapping[str, int]) -> list[str]:
    """Returns the pieces of a vocabulary in the order of their ids. An id without a piece gets the empty piece."""
    found = {i: piece for piece, i in ids.items()}
    return [found.get(i, "") for i in range(max(found) + 1)]
