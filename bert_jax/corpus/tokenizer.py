"""One tokenizer interface over WordPiece and SentencePiece, and the vocabulary's identity that travels with every corpus and
model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_jax.corpus.files import JsonObject
from bert_jax.corpus.rust_tokenizer import rust_tokenizer
from bert_jax.corpus.tokenizer_files import (
    ANOTHER,
    CONFIG_FILE,
    JSON_FILE,
    MAP_FILE,
    MODEL_FILES,
    SPECIAL_NAMES,
    VOCAB_FILE,
    Description,
    check_sentencepiece_json,
    read_description,
)
from bert_jax.corpus.unigram import SentencePiece
from bert_jax.corpus.wordpiece import MAX_WORD_CHARACTERS, WordPiece
from bert_jax.errors import UserError
from bert_jax.interface.words import counted

_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """What must be equal for ids to mean the same: `sha256` is of the vocabulary's content, whatever its line ends.

    The last two fields are newer than the first corpora, whose manifests lack them: they mean what was always done.
    """

    size: int
    sha256: str
    lowercase: bool
    kind: str  # "wordpiece" | "sentencepiece"
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    strip_accents: bool | None = None  # None: as `lowercase`
    split_cjk: bool = True

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return frozenset((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    def to_json(self) -> JsonObject:
        """The fields as a manifest holds them; the newer ones only where they say something else than was always done, so that
        an older manifest of the same vocabulary is equal.
        """
        newer = {"strip_accents": None, "split_cjk": True}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in newer or value != newer[name]}


class Tokenizer:
    """Text <-> ids. Nothing here adds [CLS] or [SEP]; text never yields a special id but for [UNK], save in
    `encode_with_specials`.

    `specials` names the special pieces that are called otherwise than usual, {"mask": "<mask>"}; `added` are further pieces that
    count only in `encode_with_specials`; `max_length` is the longest text of the model it came with, carried along.
    """

    def __init__(
        self,
        model: WordPiece | SentencePiece,
        *,
        specials: Mapping[str, str] | None = None,
        added: Sequence[str] = (),
        max_length: int | None = None,
    ):
        self._model = model
        self.max_length = max_length
        ids = {piece: i for i, piece in enumerate(model.pieces)}
        special = {}
        for role, names in SPECIAL_NAMES.items():
            if specials and role in specials:
                names = (specials[role],)
            present = [name for name in names if name in ids]
            if not present:
                raise UserError(
                    f"the vocabulary of {counted(len(ids), 'piece')} has no {names[0]}; BERT needs "
                    f"{_names_of_specials()}: {ANOTHER}"
                )
            special[f"{role}_id"] = ids[present[0]]
        self.vocabulary = VocabularyInfo(
            size=len(model.pieces),
            sha256=hashlib.sha256(_content(model)).hexdigest(),
            lowercase=model.lowercase,
            kind=model.kind,
            strip_accents=model.strip_accents,
            split_cjk=model.split_cjk,
            **special,
        )
        #: the tokens that count where they are written out, the added ones last
        self.added = tuple(dict.fromkeys(token for token in added if ids[token] not in self.special_ids))
        self._special_pieces = {model.pieces[i]: i for i in sorted(self.special_ids)}
        self._special_pieces |= {token: ids[token] for token in self.added}
        longest_first = sorted(self._special_pieces, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)))
        #: bool [V]: pieces that continue a word, for whole-word masking
        self.continuation_table = np.array([model.is_continuation(piece) for piece in model.pieces])
        self.continuation_table[sorted(self.special_ids)] = False

    @property
    def size(self) -> int:
        """V, the number of pieces."""
        return self.vocabulary.size

    @property
    def pad_id(self) -> int:
        """The id of [PAD]."""
        return self.vocabulary.pad_id

    @property
    def unk_id(self) -> int:
        """The id of [UNK]."""
        return self.vocabulary.unk_id

    @property
    def cls_id(self) -> int:
        """The id of [CLS]."""
        return self.vocabulary.cls_id

    @property
    def sep_id(self) -> int:
        """The id of [SEP]."""
        return self.vocabulary.sep_id

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return self.vocabulary.mask_id

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the five special tokens."""
        return self.vocabulary.special_ids

    @property
    def max_word_characters(self) -> int | None:
        """Longer words are unknown; None where the model has no such limit."""
        return self._model.max_word_characters

    @property
    def pieces(self) -> list[str]:
        """The vocabulary: `pieces[i]` is the piece with id i."""
        return self._model.pieces

    def append(self, text: str, out: array[int]) -> None:
        """Appends the ids of `text` to `out` (an `array` of an unsigned type): the corpus writer's path, without a list per
        sentence.
        """
        self._model.append(text, out)

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`; a special token written out is text like any other."""
        ids = array("I")
        self._model.append(text, ids)
        return ids.tolist()

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same ids, and for each the characters [start, end) of `text` it stands for."""
        return self._model.encode_with_offsets(text)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
        """Text that is split into words already: (ids, for each word the index in `ids` of its first piece, how many it has).

        Each word is tokenised by itself, as with transformers' `is_split_into_words`; one that has no piece at all (empty, or
        nothing but control characters) is the unknown token, so that every word has a first piece.
        """
        ids: list[int] = []
        firsts, counts = [], []
        for word in words:
            pieces = self.encode(word) or [self.unk_id]
            firsts.append(len(ids))
            counts.append(len(pieces))
            ids += pieces
        return ids, firsts, counts

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """The characters [start, end) of `text` of each word, in order: for WordPiece between white space and punctuation, each
        mark and ideograph a word; for SentencePiece between white space. Every span of `encode_with_offsets` that is not empty
        lies in exactly one of them.
        """
        return self._model.word_spans(text)

    def encode_with_specials(self, text: str) -> list[int]:
        """As `encode`, but a special token written out, such as "[MASK]", is that token. For people's prompts, never for
        corpora.
        """
        ids: list[int] = []
        start = 0
        for match in self._special_pattern.finditer(text):
            ids += [*self.encode(text[start : match.start()]), self._special_pieces[match[0]]]
            start = match.end()
        return ids + self.encode(text[start:])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces with these ids."""
        return [self._model.pieces[i] for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, as far as pieces keep it: WordPiece loses the white space around punctuation."""
        return self._model.decode(ids)

    def is_continuation(self, ids: np.ndarray) -> np.ndarray:
        """bool, of the shape of `ids`: whether the piece continues the word of the piece before it."""
        return self.continuation_table[ids]

    def save(self, directory: pathlib.Path | str) -> None:
        """Writes the files by which `load_tokenizer` and transformers read this tokenizer back."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        specials = {role: self._model.pieces[getattr(self, f"{role}_id")] for role in SPECIAL_NAMES}
        names = {f"{role}_token": piece for role, piece in specials.items()}
        config: dict[str, object] = {"do_lower_case": self.vocabulary.lowercase, **names}
        rust = rust_tokenizer(self._model, specials, self.added)
        if isinstance(self._model, WordPiece):
            config |= {"strip_accents": self._model.strip_accents, "tokenize_chinese_chars": self._model.split_cjk}
            config |= {"tokenizer_class": "BertTokenizer", "max_input_chars_per_word": self.max_word_characters}
            (directory / VOCAB_FILE).write_bytes(_content(self._model))
        else:  # transformers' AlbertTokenizer makes rules of its own; the general class takes tokenizer.json as it is
            config |= {"keep_accents": not self._model.strips, "model_input_names": _INPUTS}
            config["tokenizer_class"] = "PreTrainedTokenizerFast" if rust else "AlbertTokenizer"
            (directory / MODEL_FILES[0]).write_bytes(self._model.model)
        if rust:
            (directory / JSON_FILE).write_text(rust.to_str(pretty=True), encoding="utf-8")  # `save` of theirs hides what failed
        if self.added:
            config["additional_special_tokens"] = list(self.added)
        if self.max_length:
            config["model_max_length"] = self.max_length
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        (directory / MAP_FILE).write_text(json.dumps(names, indent=2) + "\n")


def load_tokenizer(
    path: pathlib.Path | str, *, lowercase: bool | None = None, max_word_characters: int | None = None
) -> Tokenizer:
    """A vocab.txt, a spiece.model, a tokenizer.json, or a directory with any of them (a published model, `tokenizer/` of a
    corpus), whose other files then say the rest: accents, ideographs, names of special tokens (`tokenizer_files`).

    Casing: as the directory says; else `lowercase`; else inferred from the vocabulary, and an error where that is not certain. A
    `lowercase` that contradicts the directory or the vocabulary is an error too: it would cost every capitalised word.
    """
    described = read_description(pathlib.Path(path))
    model: WordPiece | SentencePiece
    if described.path.suffix == ".model":
        content = described.path.read_bytes()
        try:
            if not content:
                raise RuntimeError("the file is empty")
            model = SentencePiece(content, strip_accents=described.strip_accents)
        except RuntimeError as error:
            raise UserError(f"{described.path} is not a SentencePiece model ({error}); {ANOTHER}") from error
        model.lowercase = _casing(described, model.pieces, model.folds, lowercase)
        if pathlib.Path(path).is_dir():
            check_sentencepiece_json(described.path, model.pieces)
    else:
        model = WordPiece(
            described.pieces,
            lowercase=_casing(described, described.pieces, False, lowercase),
            strip_accents=described.strip_accents,
            split_cjk=described.split_cjk,
            max_word_characters=max_word_characters or described.max_word_characters or MAX_WORD_CHARACTERS,
            unknown=described.specials.get("unk") or next((n for n in SPECIAL_NAMES["unk"] if n in described.pieces), ""),
        )
    return Tokenizer(model, specials=described.specials, added=described.added, max_length=described.max_length)


def _casing(described: Description, pieces: Sequence[str], folds: bool, stated: bool | None) -> bool:
    """Whether text is lower-cased: as recorded beside the vocabulary, as stated, or as the vocabulary makes certain."""
    recorded = described.lowercase
    certain, why = infer_casing(pieces, folds) if recorded is None else (recorded, described.lowercase_source)
    if stated is None and certain is None:
        raise UserError(f"{described.path}: {why}, which does not show its casing; say --lowercase or --cased")
    if stated is not None and certain is not None and stated != certain:
        said, other = ("--lowercase", "--cased") if stated else ("--cased", "--lowercase")
        raise UserError(f"{said} does not fit the vocabulary {described.path}: {why}; use {other}, or another vocabulary")
    return bool(certain if stated is None else stated)


def infer_casing(pieces: Sequence[str], folds: bool = False) -> tuple[bool | None, str]:
    """(lower-cased or not, None where it is not certain; the reason).

    Certain: a model that `folds` case itself; capitals in a hundredth of the pieces or more (lower-cased text could never use
    them); or the whole Latin alphabet without one capital (cased text would lose every capitalised word to [UNK]).
    """
    if folds:
        return True, "it folds case itself"
    words = [piece for piece in pieces if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))]
    capitals = sum(piece != piece.lower() for piece in words)
    if capitals * 100 >= len(words) > 0:
        return False, f"{capitals:,} of its {counted(len(words), 'piece')} have capitals"
    if not capitals and {piece.lstrip("#\u2581") for piece in words} >= set("abcdefghijklmnopqrstuvwxyz"):
        return True, "it has the small letters and no capital"
    return None, f"{capitals:,} of its {counted(len(words), 'piece')} have capitals"


def _content(model: WordPiece | SentencePiece) -> bytes:
    return model.model if isinstance(model, SentencePiece) else "".join(f"{piece}\n" for piece in model.pieces).encode()


def _names_of_specials() -> str:
    return ", ".join(names[0] for names in SPECIAL_NAMES.values())
