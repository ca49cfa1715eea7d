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
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.corpus import files
from bert_jax.corpus.unigram import SentencePiece
from bert_jax.corpus.wordpiece import MAX_WORD_CHARACTERS, WordPiece
from bert_jax.terminal import UserError

VOCAB_FILE, CONFIG_FILE = "vocab.txt", "tokenizer_config.json"
MODEL_FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_SPECIAL_NAMES = {"pad": ("[PAD]", "<pad>"), "unk": ("[UNK]", "<unk>"), "cls": ("[CLS]",), "sep": ("[SEP]",), "mask": ("[MASK]",)}


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """What must be equal for ids to mean the same: `sha256` is of the vocabulary's content, whatever its line ends."""

    size: int
    sha256: str
    lowercase: bool
    kind: str  # "wordpiece" | "sentencepiece"
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))


class Tokenizer:
    """Text <-> ids. Nothing here adds [CLS] or [SEP]; text never yields a special id but for [UNK], save in
    `encode_with_specials`.
    """

    def __init__(self, model: WordPiece | SentencePiece):
        self._model = model
        ids = {piece: i for i, piece in enumerate(model.pieces)}
        special = {}
        for role, names in _SPECIAL_NAMES.items():
            present = [name for name in names if name in ids]
            if not present:
                raise UserError(f"the vocabulary of {len(ids):,} pieces has no {names[0]}; BERT needs {_names_of_specials()}")
            special[f"{role}_id"] = ids[present[0]]
        self.vocabulary = VocabularyInfo(
            size=len(model.pieces),
            sha256=hashlib.sha256(_content(model)).hexdigest(),
            lowercase=model.lowercase,
            kind=model.kind,
            **special,
        )
        self._special_pieces = {model.pieces[i]: i for i in sorted(self.special_ids)}
        self._special_pattern = re.compile("|".join(map(re.escape, self._special_pieces)))
        #: bool [V]: pieces that continue a word, for whole-word masking
        self.continuation_table = np.array([model.is_continuation(piece) for piece in model.pieces])
        self.continuation_table[sorted(self.special_ids)] = False

    @property
    def size(self) -> int:
        return self.vocabulary.size

    @property
    def pad_id(self) -> int:
        return self.vocabulary.pad_id

    @property
    def unk_id(self) -> int:
        return self.vocabulary.unk_id

    @property
    def cls_id(self) -> int:
        return self.vocabulary.cls_id

    @property
    def sep_id(self) -> int:
        return self.vocabulary.sep_id

    @property
    def mask_id(self) -> int:
        return self.vocabulary.mask_id

    @property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    @property
    def max_word_characters(self) -> int | None:
        """Longer words are unknown; None where the model has no such limit."""
        return self._model.max_word_characters

    @property
    def pieces(self) -> list[str]:
        """The vocabulary: `pieces[i]` is the piece with id i."""
        return self._model.pieces

    def append(self, text: str, out: array) -> None:
        """Appends the ids of `text` to `out` (an `array` of an unsigned type): the corpus writer's path, without a list per
        sentence.
        """
        self._model.append(text, out)

    def encode(self, text: str) -> list[int]:
        ids = array("I")
        self._model.append(text, ids)
        return ids.tolist()

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same ids, and for each the characters [start, end) of `text` it stands for."""
        return self._model.encode_with_offsets(text)

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
        return [self._model.pieces[i] for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(ids)

    def is_continuation(self, ids: np.ndarray) -> np.ndarray:
        """bool, of the shape of `ids`: whether the piece continues the word of the piece before it."""
        return self.continuation_table[ids]

    def save(self, directory: pathlib.Path | str) -> None:
        """Writes the files by which `load_tokenizer` and transformers read this tokenizer back."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        names = {f"{role}_token": self._model.pieces[getattr(self, f"{role}_id")] for role in _SPECIAL_NAMES}
        config: dict[str, object] = {"do_lower_case": self.vocabulary.lowercase, **names}
        if isinstance(self._model, WordPiece):
            config |= {"tokenizer_class": "BertTokenizer", "max_input_chars_per_word": self.max_word_characters}
            (directory / VOCAB_FILE).write_bytes(_content(self._model))
            _rust_tokenizer(self).save(str(directory / "tokenizer.json"))
        else:
            config["tokenizer_class"] = "AlbertTokenizer"
            (directory / MODEL_FILES[0]).write_bytes(self._model.model)
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        (directory / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")


def load_tokenizer(
    path: pathlib.Path | str, *, lowercase: bool | None = None, max_word_characters: int | None = None
) -> Tokenizer:
    """A vocab.txt, a spiece.model, or a directory with either (a published model, `tokenizer/` of a corpus).

    Casing: `do_lower_case` of the directory's tokenizer_config.json; else `lowercase`; else inferred from the vocabulary, and
    an error where that is not certain. A `lowercase` that contradicts the directory or the vocabulary is an error too: it would
    cost every capitalised word.
    """
    path = pathlib.Path(path)
    config: dict = {}
    if path.is_dir():
        config = files.read_json(path / CONFIG_FILE) if (path / CONFIG_FILE).is_file() else {}
        found = [path / name for name in (VOCAB_FILE, *MODEL_FILES) if (path / name).is_file()]
        if not found:
            raise UserError(f"{path} holds neither {VOCAB_FILE} nor {MODEL_FILES[0]}")
        path = found[0]
    if not path.is_file():
        raise UserError(
            f"vocabulary {path} does not exist; give a {VOCAB_FILE}, a {MODEL_FILES[0]}, or a directory with one of them"
        )
    model: WordPiece | SentencePiece
    if path.suffix == ".model":
        try:
            model = SentencePiece(path.read_bytes())
        except RuntimeError as error:
            raise UserError(f"{path} is not a SentencePiece model ({error})") from error
    else:
        limit = max_word_characters or config.get("max_input_chars_per_word") or MAX_WORD_CHARACTERS
        model = WordPiece(_read_vocabulary(path), max_word_characters=limit)
    model.lowercase = _casing(path, model, lowercase, config.get("do_lower_case"))
    return Tokenizer(model)


def _casing(path: pathlib.Path, model: WordPiece | SentencePiece, stated: bool | None, recorded: bool | None) -> bool:
    """Whether text is lower-cased: as recorded beside the vocabulary, as stated, or as the vocabulary makes certain."""
    certain, why = (
        infer_casing(model) if recorded is None else (recorded, f"{CONFIG_FILE} beside it says do_lower_case={recorded}")
    )
    if stated is None and certain is None:
        raise UserError(f"{path}: {why}, which does not show its casing; say --lowercase or --cased")
    if stated is not None and certain is not None and stated != certain:
        said, other = ("--lowercase", "--cased") if stated else ("--cased", "--lowercase")
        raise UserError(f"{said} does not fit the vocabulary {path}: {why}; use {other}, or another vocabulary")
    return bool(certain if stated is None else stated)


def infer_casing(model: WordPiece | SentencePiece) -> tuple[bool | None, str]:
    """(lower-cased or not, None where it is not certain; the reason).

    Certain: a model that folds case itself; capitals in a hundredth of the pieces or more (lower-cased text could never use
    them); or the whole Latin alphabet without one capital (cased text would lose every capitalised word to [UNK]).
    """
    if model.folds:
        return True, "it folds case itself"
    words = [piece for piece in model.pieces if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))]
    capitals = sum(piece != piece.lower() for piece in words)
    if capitals * 100 >= len(words) > 0:
        return False, f"{capitals:,} of its {len(words):,} pieces have capitals"
    if not capitals and {piece.lstrip("#\u2581") for piece in words} >= set("abcdefghijklmnopqrstuvwxyz"):
        return True, "it has the small letters and no capital"
    return None, f"{capitals:,} of its {len(words):,} pieces have capitals"


def _read_vocabulary(path: pathlib.Path) -> list[str]:
    """One piece a line; white space around it does not count, as in the original."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"vocabulary {path} is not UTF-8 at byte {error.start:,}; convert it with iconv") from error
    if lines[-1] == "":
        lines.pop()
    return [line.strip() for line in lines]


def _content(model: WordPiece | SentencePiece) -> bytes:
    return model.model if isinstance(model, SentencePiece) else "".join(f"{piece}\n" for piece in model.pieces).encode()


def _names_of_specials() -> str:
    return ", ".join(names[0] for names in _SPECIAL_NAMES.values())


def _rust_tokenizer(tokenizer: Tokenizer):
    """The Rust tokenizer nearest to ours (`wordpiece` names the difference), for transformers and servers."""
    from tokenizers import Tokenizer as Rust  # only here and in training: 0.1 s that no reader of a corpus should pay
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    info, pieces = tokenizer.vocabulary, tokenizer.pieces
    ids = {piece: i for i, piece in enumerate(pieces)}
    limit = tokenizer.max_word_characters
    rust = Rust(models.WordPiece(ids, unk_token=pieces[info.unk_id], max_input_chars_per_word=limit))
    rust.add_special_tokens([pieces[i] for i in sorted(info.special_ids)])
    rust.normalizer = normalizers.BertNormalizer(lowercase=info.lowercase)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.BertProcessing((pieces[info.sep_id], info.sep_id), (pieces[info.cls_id], info.cls_id))
    rust.decoder = decoders.WordPiece()
    return rust
