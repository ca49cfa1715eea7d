"""`Tokenizer` is one interface to WordPiece, SentencePiece and any tokenizer.json. `VocabularyInfo` identifies a vocabulary,
and is saved with every corpus and model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data.tokenizers.json_tokenizer import BEGINS, JsonTokenizer
from bert_jax.data.tokenizers.tokenizer_files import (
    BACKENDS,
    CONFIG_FILE,
    JSON_FILE,
    MAP_FILE,
    MARIAN_FILES,
    MODEL_FILES,
    SPECIAL_NAMES,
    VOCAB_FILE,
    VOCABULARY_FILES,
    VOCABULARY_REMEDY,
    TokenizerDescription,
    check_not_fairseqs,
    check_sentencepiece_json,
    read_description,
    unfit_for_vocab_txt,
)
from bert_jax.data.tokenizers.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, WordPiece
from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject, read_object, refuse_pointer, write_json
from bert_jax.interface.words import counted

if TYPE_CHECKING:  # imported where a tokenizer of this kind is loaded
    from bert_jax.data.tokenizers.marian import MarianPieces
    from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece

TABLE_KINDS = ("wordpiece", "sentencepiece", "marian")
"""The kinds of vocabularies whose pieces show whether they continue a word."""
PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>")
"""The pattern of pieces that are reserved for tokens added later."""
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def is_mark(character: str) -> bool:
    """Returns whether a character is a punctuation mark or a symbol."""
    return unicodedata.category(character)[0] in "PS"


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """The properties of a vocabulary. Two tokenizers give the same ids only if all properties are equal. `sha256` is a hash of
    the pieces, which does not depend on line ends. For a tokenizer.json, it is also a hash of the text rules. `Tokenizer.added`
    is not compared, because few texts contain such a token."""

    size: int
    sha256: str
    lowercase: bool
    kind: str  # "wordpiece" | "sentencepiece"; for a tokenizer.json "bpe" | "unigram" | "wordlevel" | "library-wordpiece"
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    strip_accents: bool | None = None  # None: the same as `lowercase`
    split_cjk: bool = True

    @property
    def marks_words(self) -> bool:
        """Whether a corpus stores where words begin. A corpus does so if the pieces do not show it."""
        return self.kind not in TABLE_KINDS

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK]. A byte-level vocabulary without [UNK] uses [PAD] instead."""
        return frozenset((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    def to_json(self) -> JsonObject:
        """Returns the fields for a manifest, without fields that have their defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}


class Tokenizer:
    """Converts text to ids and back. No method adds [CLS] or [SEP]. Only `encode_with_specials` recognises the names of the five
    special tokens in a text. All other methods treat them as ordinary text.

    specials: role -> piece, for special pieces with unusual names, e.g. {"mask": "<mask>"}. added: further pieces, such as
    "[E1]", which all methods recognise in a text, before its other rules. max_length: the model's maximum text length in
    tokens, stored for `save`. notes: messages for the user about contradictions between the files.
    """

    def __init__(
        self,
        model: WordPiece | SentencePiece | JsonTokenizer | MarianPieces,
        *,
        specials: Mapping[str, str] | None = None,
        added: Sequence[str] = (),
        max_length: int | None = None,
        notes: Sequence[str] = (),
    ):
        self._model = model
        self.max_length = max_length
        self.notes = tuple(notes)
        ids = {piece: i for i, piece in enumerate(model.pieces)}
        special: dict[str, int] = {}
        for role, names in SPECIAL_NAMES.items():
            if specials and role in specials:
                names = (specials[role],)
            present = [name for name in names if name in ids]
            if not present and role == "unk" and isinstance(model, JsonTokenizer):
                special["unk_id"] = special["pad_id"]  # texts have no unknown pieces
                continue
            if not present:
                raise UserError(
                    f"the vocabulary of {counted(len(ids), 'piece')} has no {names[0]}; BERT needs "
                    f"{_special_names()}: {VOCABULARY_REMEDY}"
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
        #: the tokens that are recognised in every text, without the five special tokens
        self.added = tuple(dict.fromkeys(token for token in added if ids[token] not in self.special_ids))
        self._special_pieces = {model.pieces[i]: i for i in sorted(self.special_ids)}
        self._special_pieces |= {token: ids[token] for token in self.added}
        self._special_pattern = _any_of(self._special_pieces)
        self._added_pattern = _any_of(self.added) if self.added else None
        self._added_signs = {token[0] for token in self.added}

    def is_added(self, piece: str) -> bool:
        """Returns whether a piece is in `added`, which may be long."""
        found = self._special_pieces.get(piece)
        return found is not None and found not in self.special_ids

    @functools.cached_property
    def continuation_table(self) -> np.ndarray:
        """Whether each piece continues a word, bool [V]. With `marks_words`, whether it usually continues a word."""
        table = np.array([self._model.is_continuation(piece) for piece in self._model.pieces])
        table[sorted({*self.special_ids, *self._special_pieces.values()})] = False
        return table

    @property
    def marks_words(self) -> bool:
        """Whether `append` marks the ids that begin a word. It marks them if the pieces do not show where words begin."""
        return self.vocabulary.marks_words

    @property
    def distinguishes_spaces(self) -> bool:
        """Whether a word has different pieces after a space than at the start of a text."""
        return isinstance(self._model, JsonTokenizer) and self._model.distinguishes_spaces

    @property
    def mask_takes_space(self) -> bool:
        """Whether [MASK] in a text stands for a word and the space before the word."""
        return isinstance(self._model, JsonTokenizer) and bool(self._model.added.get(self.pieces[self.mask_id], {}).get("lstrip"))

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
    def specials(self) -> dict[str, str]:
        """The pieces of the five special tokens by role: pad, unk, cls, sep, mask."""
        return {role: self.pieces[getattr(self, f"{role}_id")] for role in SPECIAL_NAMES}

    @property
    def max_word_characters(self) -> int | None:
        """The maximum length of a word in characters. Longer words become [UNK]. None means that there is no limit."""
        return self._model.max_word_characters

    @property
    def strips(self) -> bool:
        """Whether accents and other marks are stripped before the text is divided into pieces."""
        return self._model.strips

    @property
    def pieces(self) -> list[str]:
        """The vocabulary: `pieces[i]` is the piece with id i."""
        return self._model.pieces

    @property
    def separate_vocabularies(self) -> bool:
        """Whether the target language of a translator has its own vocabulary."""
        return self._model.kind == "marian" and self._model.separate_vocabularies

    @functools.cached_property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of a translator's target language. Marian has a different SentencePiece model for this language. For
        other models, the result is this tokenizer."""
        return Tokenizer(self._model.turned, specials=self.specials) if self._model.kind == "marian" else self

    def append(self, text: str, out: array[int], *, target: bool = False) -> None:
        """Appends the ids of `text` to `out`, an `array` of an unsigned type. The corpus build uses this method, so that it
        does not create a list for each sentence. With `marks_words`, ids that begin a word have the bit BEGINS, so the type of
        `out` must have 32 bits. With `target`, `text` is in a translator's target language, and `target_tokenizer` is used."""
        of_side = self.target_tokenizer if target else self
        if not of_side._has_added(text):
            of_side._model.append(text, out)
        elif isinstance(of_side._model, JsonTokenizer):
            of_side._model.append_with_added(text, out, of_side._roles)
        else:
            for _, section, token in of_side._sections(text):
                if token is None:
                    of_side._model.append(section, out)
                else:
                    out.append(token)

    @property
    def _roles(self) -> frozenset[str]:
        return frozenset(self.specials.values())

    def _has_added(self, text: str) -> bool:
        if self._added_pattern is None or not any(sign in text for sign in self._added_signs):  # this is 50 times as fast
            return False
        return self._added_pattern.search(text) is not None

    def _sections(self, text: str) -> Iterator[tuple[int, str, int | None]]:
        """Divides `text` at the added tokens. Yields (the first character of a section, the section, its id), where the id is
        None for the text between added tokens."""
        start = 0
        for match in self._added_pattern.finditer(text) if self._added_pattern else ():
            yield start, text[start : match.start()], None
            yield match.start(), match[0], self._special_pieces[match[0]]
            start = match.end()
        yield start, text[start:], None

    def encode(self, text: str, *, target: bool = False) -> list[int]:
        """Returns the ids of `text`. The names of the five special tokens, e.g. "[MASK]", are ordinary text. `target` is
        explained in `append`."""
        ids = array("I")
        self.append(text, ids, target=target)
        return [i & ~BEGINS for i in ids] if self.marks_words else ids.tolist()

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of `text` and, for each id, the range [start, end) of its characters in `text`."""
        if not self._has_added(text):
            return self._model.encode_with_offsets(text)
        if isinstance(self._model, JsonTokenizer):
            return self._model.encode_with_words(text, self._roles)[:2]
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for at, section, token in self._sections(text):
            found, spans = self._model.encode_with_offsets(section) if token is None else ([token], [(0, len(section))])
            ids += found
            offsets += [(at + start, at + end) for start, end in spans]
        return ids, offsets

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
        """Encodes text that is split into words. Returns (ids, the index in `ids` of each word's first piece, the number of
        pieces of each word).

        Each word is tokenised separately, as with transformers' `is_split_into_words`. If a leading space changes the pieces of
        a word, a space is added before all words except the first and except added tokens, as in running text. A word without
        pieces (it is empty or has only control characters) becomes the unknown token, so that every word has a first piece."""
        space = " " if self.distinguishes_spaces else ""
        ids: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        for word in words:
            pieces = self.encode(f"{space}{word}" if word and firsts and not self.is_added(word) else word) or [self.unk_id]
            firsts.append(len(ids))
            counts.append(len(pieces))
            ids += pieces
        return ids, firsts, counts

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the range [start, end) of the characters of each word in `text`, in order. WordPiece splits text at white
        space and punctuation, and each punctuation mark and ideograph is a word. SentencePiece splits at white space. The
        pre-tokenizer of a tokenizer.json finds the words itself. An added token is a word. Every non-empty range of
        `encode_with_offsets` is inside exactly one word."""
        if not self._has_added(text):
            return self._model.word_spans(text)
        if isinstance(self._model, JsonTokenizer):
            return self._model.word_spans(text, self._roles)
        spans: list[tuple[int, int]] = []
        for at, section, token in self._sections(text):
            found = self._model.word_spans(section) if token is None else [(0, len(section))]
            spans += [(at + start, at + end) for start, end in found]
        return spans

    def words_and_marks(self, text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the ranges of `word_spans`, split between punctuation marks or symbols and other characters, also if the
        tokenizer splits only at white space. A piece is never split. `offsets` come from `encode_with_offsets`."""
        starts = {start for start, end in offsets if 0 < start < end and is_mark(text[start - 1]) != is_mark(text[start])}
        found: list[tuple[int, int]] = []
        for first, end in self.word_spans(text):
            found += itertools.pairwise([first, *sorted(starts.intersection(range(first + 1, end))), end])
        return found

    def encode_with_specials(self, text: str) -> list[int]:
        """Returns the ids of `text`. The five special tokens in the text, such as "[MASK]", are recognised too. Use this method
        for users' prompts, never for corpora."""
        if isinstance(self._model, JsonTokenizer):
            return self._model.encode_with_specials(text)
        ids: list[int] = []
        start = 0
        for match in self._special_pattern.finditer(text):
            ids += [*self.encode(text[start : match.start()]), self._special_pieces[match[0]]]
            start = match.end()
        return ids + self.encode(text[start:])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces with these ids for display. Byte-level pieces are decoded, and spaces are shown as ▁."""
        if isinstance(self._model, JsonTokenizer):
            return [self._model.readable([i]) for i in ids]
        return [self._model.pieces[i] for i in ids]

    def word(self, ids: Sequence[int]) -> str:
        """Joins the pieces of one word for display. A byte-level or SentencePiece word may start with ▁."""
        if isinstance(self._model, JsonTokenizer):
            return self._model.readable(ids)
        first, *rest = [self._model.pieces[i] for i in ids]
        return first + "".join(piece.removeprefix(CONTINUATION) for piece in rest)

    def decode(self, ids: Sequence[int], *, target: bool = False) -> str:
        """Returns the text of these ids. `target` is explained in `append`. WordPiece does not restore the original white space
        around punctuation."""
        return (self.target_tokenizer if target else self)._model.decode(ids)

    def is_continuation(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether each piece continues the word of the previous piece (`continuation_table`)."""
        return self.continuation_table[ids]

    def save(self, directory: pathlib.Path | str) -> None:
        """Writes the files from which `load_tokenizer` and transformers load this tokenizer. If a vocab.txt cannot hold a piece
        (e.g. a line end), the pieces are only written to tokenizer.json."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        names = {f"{role}_token": piece for role, piece in self.specials.items()}
        if isinstance(self._model, JsonTokenizer):
            self._save_json(self._model, directory, names)
            return
        if self._model.kind == "marian":
            for name, content in self._model.contents.items():
                (directory / name).write_bytes(content)
            own: JsonObject = {name: names[name] for name in ("pad_token", "unk_token")} | {"eos_token": "</s>"}
            classes = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": self._model.separate_vocabularies}
            write_json(directory / CONFIG_FILE, own | classes | self._model.settings)
            return
        config: JsonObject = {"do_lower_case": self.vocabulary.lowercase, **names}
        from bert_jax.data.tokenizers.rust_tokenizer import rust_tokenizer

        rust = rust_tokenizer(self._model, self.specials, self.added)
        if isinstance(self._model, WordPiece):
            config |= {"strip_accents": self._model.strip_accents, "tokenize_chinese_chars": self._model.split_cjk}
            config |= {"tokenizer_class": "BertTokenizer", "max_input_chars_per_word": self.max_word_characters}
            if unfit_for_vocab_txt(self.pieces) is None:
                (directory / VOCAB_FILE).write_bytes(_content(self._model))
            else:
                (directory / VOCAB_FILE).unlink(missing_ok=True)
        else:  # AlbertTokenizer of transformers overrides the rules, but PreTrainedTokenizerFast uses tokenizer.json unchanged
            config |= {"keep_accents": not self._model.strips, "model_input_names": _INPUTS}
            config["tokenizer_class"] = "PreTrainedTokenizerFast" if rust else "AlbertTokenizer"
            (directory / MODEL_FILES[0]).write_bytes(self._model.model)
        if rust:
            (directory / JSON_FILE).write_text(rust.to_str(pretty=True), encoding="utf-8")  # the library's `save` hides OSErrors
        if self.added:
            config["additional_special_tokens"] = list(self.added)
        if self.max_length:
            config["model_max_length"] = self.max_length
        write_json(directory / CONFIG_FILE, config)
        write_json(directory / MAP_FILE, names)

    def _save_json(self, model: JsonTokenizer, directory: pathlib.Path, names: dict[str, str]) -> None:
        """Writes tokenizer.json as it was read, and the settings together with the names of the special tokens."""
        if self.unk_id == self.pad_id:
            del names["unk_token"]
        (directory / VOCAB_FILE).unlink(missing_ok=True)
        (directory / JSON_FILE).write_bytes(model.content.encode())
        config: JsonObject = {"tokenizer_class": BACKENDS[0], "model_input_names": _INPUTS, "clean_up_tokenization_spaces": False}
        config |= model.settings | {name: piece for name, piece in names.items() if _name(model.settings.get(name)) != piece}
        if config["tokenizer_class"] in BACKENDS:  # these are two names of one class; transformers 4 only knows the first name
            config["tokenizer_class"] = BACKENDS[0]
        if self.max_length:
            config["model_max_length"] = self.max_length
        write_json(directory / CONFIG_FILE, config)
        changed = {name: piece for name, piece in names.items() if _name(model.names.get(name)) != piece}
        write_json(directory / MAP_FILE, model.names | changed)


def _name(token: Json) -> Json:
    """Returns the text of a special token. `token` is a string or {"content": string}."""
    return token.get("content") if isinstance(token, dict) else token


def with_added_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Returns a copy of `tokenizer` with added tokens. `tokenizer` must come from a tokenizer.json. Tokens in brackets, e.g.
    "[E1]", become special tokens."""
    model = tokenizer._model
    assert isinstance(model, JsonTokenizer)
    made = model.with_tokens(tokens, PLACEHOLDER)
    return Tokenizer(made, specials=tokenizer.specials, added=made.special_tokens, max_length=tokenizer.max_length)


def load_tokenizer(
    path: pathlib.Path | str, *, lowercase: bool | None = None, max_word_characters: int | None = None
) -> Tokenizer:
    """Loads a tokenizer from a vocab.txt, a spiece.model, a tokenizer.json, or a directory with any of these files (a published
    model, or `tokenizer/` of a corpus). Other files in the directory define how accents, ideographs and special tokens are
    treated (`tokenizer_files`). If `path` is a file, the files next to it are not used. A note then names the text rules in
    tokenizer_config.json that differ.

    The casing is read from the files of the directory. If the files do not state the casing, it is inferred from the
    vocabulary. If the casing is still unclear, or if the files contradict each other, `lowercase` decides. Raises UserError if
    the casing cannot be determined, or if `lowercase` contradicts it, because every capitalised word could then become
    [UNK]. Also raises UserError if `max_word_characters` is given for a vocabulary that is not WordPiece."""
    if (pathlib.Path(path) / MARIAN_FILES[0]).is_file():
        from bert_jax.data.tokenizers.marian import SPECIALS, read_marian

        marian = read_marian(pathlib.Path(path))
        if lowercase:
            raise UserError(f"--lowercase does not fit the vocabulary {path}, because Marian keeps capitals; leave it out")
        _refuse_word_limit(max_word_characters, path, marian.kind)
        length = marian.settings.get("model_max_length")
        return Tokenizer(marian, specials=SPECIALS, max_length=length if isinstance(length, int) else None)
    described = read_description(pathlib.Path(path))
    model: WordPiece | SentencePiece | JsonTokenizer
    if described.library is not None:
        model = described.library
        _casing(described, model.pieces, False, lowercase)
    elif described.path.suffix == ".model":
        from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece

        content = described.path.read_bytes()
        refuse_pointer(described.path, content)
        try:
            if not content:
                raise RuntimeError("the file is empty")
            model = SentencePiece(content, strip_accents=described.strip_accents)
        except RuntimeError as error:
            raise UserError(f"{described.path} is not a SentencePiece model ({error}); {VOCABULARY_REMEDY}") from error
        check_not_fairseqs(described.path, model.pieces)
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
    if not isinstance(model, WordPiece):
        _refuse_word_limit(max_word_characters, described.path, model.kind)
    return Tokenizer(
        model,
        specials=described.specials,
        added=described.added,
        max_length=described.max_length,
        notes=(
            *(described.notes if lowercase is None or not described.disputed else ()),
            *_unused_rules(pathlib.Path(path), model),
            *(_inferred_casing(pathlib.Path(path), described, model) if lowercase is None else ()),
        ),
    )


def _refuse_word_limit(limit: int | None, path: pathlib.Path | str, kind: str) -> None:
    if limit is not None:
        raise UserError(
            f"--max-word-characters={limit} sets the limit of a WordPiece vocabulary, but {path} ({kind}) has rules of its own; "
            "leave it out"
        )


def _unused_rules(path: pathlib.Path, model: WordPiece | SentencePiece | JsonTokenizer) -> list[str]:
    """Returns a note if the vocabulary was given as a file, and the tokenizer_config.json next to it states other text rules."""
    beside = path.parent / CONFIG_FILE
    if path.name not in VOCABULARY_FILES or isinstance(model, JsonTokenizer) or not beside.is_file():
        return []
    try:
        config = read_object(beside)
    except UserError:  # the file is not used, so it may be damaged
        return []
    rules: dict[str, bool] = {"do_lower_case": model.lowercase}
    if model.kind == "sentencepiece":
        rules["keep_accents"] = not model.strips
    else:
        rules |= {"strip_accents": model.strips, "tokenize_chinese_chars": model.split_cjk}
    differing = [f"{name}={json.dumps(config[name])}" for name, rule in rules.items() if config.get(name) is (not rule)]
    return differing and [
        f"the {CONFIG_FILE} next to {path} has {' and '.join(differing)}, which is not used, because the vocabulary is given as "
        "a file; give its directory to use all files"
    ]


def _inferred_casing(
    path: pathlib.Path, described: TokenizerDescription, model: WordPiece | SentencePiece | JsonTokenizer
) -> list[str]:
    """Returns a note if capitals are kept because of the vocabulary, and transformers would lower-case text by default."""
    if model.lowercase or described.lowercase is not None or not any((path / n).is_file() for n in (CONFIG_FILE, "config.json")):
        return []
    return [
        f"{described.path}: capitals are kept, because {infer_casing(model.pieces)[1]}; no file next to it has do_lower_case, so "
        f'transformers would lower-case text; if the model was trained with lower-cased text, write {{"do_lower_case": true}} to '
        f"{CONFIG_FILE}, and otherwise false"
    ]


def _casing(described: TokenizerDescription, pieces: Sequence[str], folds: bool, stated: bool | None) -> bool:
    """Returns whether text is lower-cased. This is `stated` if it is given. Otherwise it is read from the files next to the
    vocabulary, or inferred from the vocabulary. Raises UserError if it is unclear, or if `stated` contradicts it."""
    recorded = described.lowercase
    certain, why = infer_casing(pieces, folds) if recorded is None else (recorded, described.lowercase_source)
    if stated is None and certain is None:
        write = f', or write {{"do_lower_case": true}} (or false) to {CONFIG_FILE} next to the vocabulary, and give the directory'
        raise UserError(
            f"the casing of the vocabulary {described.path} is unclear, because {why}; give --lowercase or --cased"
            f"{write if described.path.name in VOCABULARY_FILES else ''}"
        )
    if stated is not None and certain is not None and stated != certain and not described.disputed:
        given, other = ("--lowercase", "--cased") if stated else ("--cased", "--lowercase")
        raise UserError(
            f"{given} does not fit the vocabulary {described.path}, because {why}; use {other}, or another vocabulary"
        )
    return bool(certain if stated is None else stated)


def infer_casing(pieces: Sequence[str], folds: bool = False) -> tuple[bool | None, str]:
    """Returns (whether the vocabulary is lower-cased, the reason). The first element is None if this is unclear.

    The casing is clear in three cases. In the first, the model lower-cases text itself (`folds`). In the second, at least 1 %
    of the pieces have capitals, which lower-cased text would never use. In the third, the vocabulary has the whole Latin
    alphabet but no capitals, so every capitalised word of cased text would become [UNK]."""
    if folds:
        return True, "its model lower-cases text itself"
    words = [piece for piece in pieces if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))]
    capitals = sum(piece != piece.lower() for piece in words)
    if capitals * 100 >= len(words) > 0:
        return False, f"{capitals:,} of its {counted(len(words), 'piece')} have capitals"
    if not capitals and {piece.lstrip("#\u2581") for piece in words} >= set("abcdefghijklmnopqrstuvwxyz"):
        return True, "it has lower-case letters but no capitals"
    return None, f"{capitals:,} of its {counted(len(words), 'piece')} have capitals"


def _content(model: WordPiece | SentencePiece | JsonTokenizer | MarianPieces) -> bytes:
    if isinstance(model, JsonTokenizer) or model.kind == "marian":
        return model.identity
    return model.model if model.kind == "sentencepiece" else "".join(f"{piece}\n" for piece in model.pieces).encode()


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that matches the longest of `tokens` at a position."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _special_names() -> str:
    return ", ".join(names[0] for names in SPECIAL_NAMES.values())
