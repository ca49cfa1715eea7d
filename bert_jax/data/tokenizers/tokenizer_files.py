"""Reads the tokenizer files of transformers: `vocab.txt` or `spiece.model`, `tokenizer.json`, `tokenizer_config.json`,
`special_tokens_map.json`, `added_tokens.json`.

The content of the files becomes one `TokenizerDescription`. If a tokenizer.json has components that BERT does not have, the
library runs it (`json_tokenizer`). An unsupported feature or class raises a UserError that names it. If a piece has different
ids in two files, this is also an error. If the files state different text rules, the same file is used as in transformers, and
the user gets a note. If a SentencePiece model is next to a tokenizer.json of another program, only the latter is used, as in
transformers. `Tokenizer.save` writes the files.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

from bert_jax import files
from bert_jax.data.tokenizers.json_tokenizer import BRACKETED, PREFIX_SPACE, JsonTokenizer, model_type, parts, with_prefix_space
from bert_jax.data.tokenizers.wordpiece import CONTINUATION, WORD_START
from bert_jax.errors import UserError, missing_path
from bert_jax.files import Json, JsonObject
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted
from bert_jax.storage.formats import HEAD_BYTES, conversion, recognise, refuse_pipe, unicode_encoding

VOCAB_FILE, JSON_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
MAP_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
MODEL_FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
VOCABULARY_FILES = (VOCAB_FILE, *MODEL_FILES, JSON_FILE, MARIAN_FILES[0])
"""The files that contain the pieces of a vocabulary, in order of preference."""
#: role -> the usual names of the special token with this role
SPECIAL_NAMES = {"pad": ("[PAD]", "<pad>"), "unk": ("[UNK]", "<unk>"), "cls": ("[CLS]",), "sep": ("[SEP]",), "mask": ("[MASK]",)}
VOCABULARY_REMEDY = "copy the model's vocabulary again, or train a new one: python -m bert_jax.corpus --train-vocab=wordpiece"
"""The remedy for an unusable vocabulary, for error messages."""
BACKENDS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of transformers 4 and 5 that use tokenizer.json unchanged. All other classes build their rules from
tokenizer_config.json."""
WORDPIECE_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "Lxmert", "LayoutLM")
SENTENCEPIECE_CLASSES = ("Albert",)
"""The tokenizer classes of transformers that our tokenizers reproduce, without the suffix "Tokenizer" or "TokenizerFast"."""
_FAIRSEQ = ("XLMRoberta", "Camembert")
_READ_CLASSES = {
    f"{name}Tokenizer{end}" for name in (*WORDPIECE_CLASSES, *SENTENCEPIECE_CLASSES) for end in ("", "Fast", "Legacy")
}
_CLASSES_READ = (
    "choose a model with a supported tokenizer: "
    f"{', '.join(f'{name}Tokenizer' for name in (*WORDPIECE_CLASSES, *SENTENCEPIECE_CLASSES))}"
)
_SHIFTED = (
    "its ids are the ids of the SentencePiece model shifted by one (fairseq's order <s>, <pad>, </s>, <unk>); copy the model's "
    f"{JSON_FILE}, which has the shifted ids, into the same directory, and give this directory"
)
MOST_PIECES = 10_000_000
_NO_LIMIT = 10**9  # a larger maximum length means no limit; transformers writes 10**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerDescription:
    """The content of a tokenizer's files. A property is None if no file states it."""

    path: pathlib.Path  # the file with the vocabulary
    library: JsonTokenizer | None = None  # the tokenizer, if a tokenizer.json has components that BERT does not have
    pieces: tuple[str, ...] = ()  # in the order of their ids; empty for a SentencePiece model
    lowercase: bool | None = None
    lowercase_source: str = ""  # the file that states `lowercase`, for error messages
    strip_accents: bool | None = None  # None: not stated, or the same as `lowercase`
    split_cjk: bool = True
    specials: Mapping[str, str] = dataclasses.field(default_factory=dict)  # role (a key of `SPECIAL_NAMES`) -> piece
    added: tuple[str, ...] = ()  # pieces that transformers matches before all rules, such as "[E1]"
    max_word_characters: int | None = None
    max_length: int | None = None  # the maximum number of tokens in a text, including [CLS] and [SEP]
    disputed: bool = False  # whether two files next to the vocabulary state different casings
    notes: tuple[str, ...] = ()  # messages for the user about resolved contradictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Json:
    """The content of a tokenizer.json with a WordPiece model."""

    ids: dict[str, int]  # includes added tokens
    added: dict[int, str]
    own: int  # the number of pieces of the model, excluding added tokens
    unknown: str
    limit: int | None
    lowercase: bool
    strip_accents: bool
    split_cjk: bool


def read_description(path: pathlib.Path) -> TokenizerDescription:
    """Reads a vocab.txt, a spiece.model, a tokenizer.json, or a directory with any of these files and the files next to them.

    Raises UserError if a file is missing or damaged, if two files contradict each other, or if a feature is not supported.
    """
    try:
        described = _read_files(path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # the JSON has an unknown structure
        raise UserError(
            f"the JSON files of {path} do not describe a tokenizer ({type(error).__name__}: {error}); copy the files again"
        ) from error
    _check_word_marks(described)
    return described


def vocabulary_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in `directory` that contain the pieces of a vocabulary, in order of preference."""
    return [directory / name for name in VOCABULARY_FILES if (directory / name).is_file()]


def _read_files(path: pathlib.Path) -> TokenizerDescription:
    if not path.is_dir():
        refuse_pipe(path)
        if not path.is_file():
            raise UserError(
                f"vocabulary {missing_path(path)} does not exist; give a {VOCAB_FILE}, a {MODEL_FILES[0]}, or a directory with "
                "one of them"
            )
        if path.suffix == ".model":
            return TokenizerDescription(path=path)
        if path.suffix == ".json":
            spec = _object(path)
            if "model" not in spec:
                raise UserError(
                    f"vocabulary {path} has no 'model', so it is not a {JSON_FILE}; give a {JSON_FILE} or its directory"
                )
            if _other_than_berts(path, spec):
                return _described_library(path, spec, {}, {}, {})
            return _described(path, None, _read_json(path, spec), {}, {}, {})
        pieces = _read_vocabulary(path)
        return TokenizerDescription(path=path, pieces=tuple(pieces[: _find_end(pieces)]))
    found = vocabulary_files(path)
    if not found:
        raise UserError(f"{path} holds neither {VOCAB_FILE} nor {MODEL_FILES[0]} nor {JSON_FILE}; {VOCABULARY_REMEDY}")
    config, names, later = (
        _object(path / name) if (path / name).is_file() else {} for name in (CONFIG_FILE, MAP_FILE, ADDED_FILE)
    )
    library = _object(path / JSON_FILE) if (path / JSON_FILE).is_file() else None
    name = _tokenizer_class(path, config)[1]
    # If a model has both files, as ALBERT, mmBERT and modernbert-ja, transformers reads the tokenizer.json.
    only_json = found[0].suffix != ".model" or not _converted_by_us(library or {})
    if library is not None and only_json and (why := _other_than_berts(path / JSON_FILE, library)):
        if _stem(name) in WORDPIECE_CLASSES:
            _check_class_uses(path / JSON_FILE, library, why, name, config)
        if name is None:
            _check_class(path, config, found[0])
        fields = _object(path / "config.json") if (path / "config.json").is_file() else {}
        return _described_library(path / JSON_FILE, library, config, names, fields)
    _check_class(path, config, found[0])
    _check_config(path / CONFIG_FILE, config)
    if found[0].suffix == ".model":
        return _described_sentencepiece(found[0], config, names, _stem(name) == "Albert" and "bos_token" in config)
    lines = _read_vocabulary(found[0]) if found[0].name == VOCAB_FILE else None
    content = _read_json(path / JSON_FILE, library) if library is not None else None
    described = _described(found[0], lines, content, config, names, later)
    end = _find_end(described.pieces)
    rows = _model_rows(path)
    if rows is not None:
        end = max(end, min(rows, len(described.pieces)))
    elif content is not None and "" in content.ids:  # the file fills the unused ids of a model with empty pieces
        end = len(described.pieces)
    return dataclasses.replace(described, pieces=described.pieces[:end])


def _described(
    path: pathlib.Path,
    lines: list[str] | None,
    content: _Json | None,
    config: JsonObject,
    names: JsonObject,
    later: dict[str, int],
) -> TokenizerDescription:
    """Makes the TokenizerDescription of a WordPiece tokenizer.

    `lines` are the lines of a vocab.txt, and `content` is the content of a tokenizer.json. One of the two may be None.
    `config`, `names` and `later` are the contents of tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    """
    added = _added_tokens(path.parent, config, later) | (content.added if content else {})
    _check_text(path.parent, [*(content.ids if content else ()), *added.values()])
    if content is not None and (lines is None or unfit_for_vocab_txt(content.ids) is not None):
        path = (
            path.with_name(JSON_FILE) if lines else path
        )  # like transformers, prefers tokenizer.json if vocab.txt cannot hold every piece
        pieces = _by_id(path, content)
        for i, token in added.items():
            if content.ids.get(token) != i:
                raise UserError(
                    f"the files next to {path} add {token!r} with the id {i}, but {path.name} has no such token; take all "
                    "files from one model"
                )
    else:
        assert lines is not None
        pieces = _extended(path, lines, added)
        if content is not None:
            _check_same_pieces(path, pieces, {piece.strip(): i for piece, i in content.ids.items()})
    if unfit_for_vocab_txt(pieces) is not None:  # `save` then writes no vocab.txt, and tokenizer.json has every piece only once
        last = {piece: i for i, piece in enumerate(pieces)}
        pieces = [piece if last[piece] == i else "" for i, piece in enumerate(pieces)]
    specials = _special_names(config, names)
    if content is not None:
        specials.setdefault("unk", content.unknown)
    return TokenizerDescription(
        path=path,
        pieces=tuple(pieces),
        specials=specials,
        added=tuple(
            token  # the empty token is left out, because it only fills an unused id
            for token in (*(added[i] for i in sorted(added)), *_further_specials(config))
            if token and token in pieces
        ),
        max_word_characters=config.get("max_input_chars_per_word") or (content.limit if content else None),
        max_length=_max_length(config),
        **_text_rules(content, config),
    )


def _text_rules(content: _Json | None, config: JsonObject) -> JsonObject:
    """Returns the fields of TokenizerDescription for casing, accents and ideographs.

    If tokenizer_config.json and tokenizer.json differ, the function uses the same file as transformers.
    """
    lowercase, strip, split = (config.get(name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"))
    source = f"the {CONFIG_FILE} next to it has do_lower_case={_as_json(lowercase)}"
    if content is None:
        return {"lowercase": lowercase, "lowercase_source": source, "strip_accents": strip, "split_cjk": split is not False}
    in_json = {
        "do_lower_case": content.lowercase,
        "strip_accents": content.strip_accents,
        "tokenize_chinese_chars": content.split_cjk,
    }
    followed = {name: rule if config.get(name) is None else config[name] for name, rule in in_json.items()}
    if strip is None and ("strip_accents" in config or followed["do_lower_case"] != content.lowercase):
        followed["strip_accents"] = followed["do_lower_case"]
    differing = [name for name in in_json if name in config and followed[name] != in_json[name]]
    if "do_lower_case" in differing and strip is None and content.strip_accents == content.lowercase:
        differing = [name for name in differing if name != "strip_accents"]  # the casing is the same in both files
    notes: tuple[str, ...] = ()
    if differing:
        json_wins = config.get("tokenizer_class") in BACKENDS
        listed = " and ".join(f"{name}={_as_json(config[name])}" for name in differing)
        notes = (
            f"{CONFIG_FILE} has {listed}, but {JSON_FILE} differs; {JSON_FILE if json_wins else CONFIG_FILE} is used, as in "
            "transformers",
        )
        followed = in_json if json_wins else followed
    if lowercase is None or followed is in_json:
        source = f"{JSON_FILE} has lowercase={_as_json(content.lowercase)}"
    lowercase, strip = followed["do_lower_case"], followed["strip_accents"]
    return {
        "lowercase": lowercase,
        "lowercase_source": source,
        "disputed": "do_lower_case" in differing,
        "strip_accents": None if strip == lowercase else strip,
        "split_cjk": followed["tokenize_chinese_chars"],
        "notes": notes,
    }


def _described_sentencepiece(
    path: pathlib.Path, config: JsonObject, names: JsonObject, alberts: bool
) -> TokenizerDescription:
    """Makes the TokenizerDescription of a SentencePiece model. `alberts` is True if transformers saved it."""
    keep = config.get("keep_accents")
    note = (
        "AlbertTokenizer of transformers also reads `` and '' as \", and makes a comma after a digit a separate piece. Without a "
        f"{JSON_FILE} next to {path}, texts with them get other ids here; save the tokenizer with AlbertTokenizerFast"
    )
    return TokenizerDescription(
        path=path,
        lowercase=config.get("do_lower_case"),
        lowercase_source=f"the {CONFIG_FILE} next to it has do_lower_case={_as_json(config.get('do_lower_case'))}",
        strip_accents=None if keep is None else not keep,
        specials=_special_names(config, names),
        max_length=_max_length(config),
        notes=(note,) if alberts else (),
    )


def check_sentencepiece_json(path: pathlib.Path, pieces: Sequence[str]) -> None:
    """Raises UserError if the tokenizer.json next to the SentencePiece model `path` gives other ids to the `pieces` of the
    model."""
    file = path.parent / JSON_FILE
    if not file.is_file():
        return
    content = _object(file)
    vocabulary = content.get("model", {}).get("vocab")
    if not isinstance(vocabulary, list):
        raise UserError(
            f"{file} holds a {model_type(content)} model, but {path.name} next to it holds a SentencePiece model; remove one "
            "of the two files"
        )
    ids = {entry[0]: i for i, entry in enumerate(vocabulary)}
    ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    _check_same_pieces(path, pieces, ids)


def _converted_by_us(content: JsonObject) -> bool:
    """Returns whether a tokenizer.json has the form in which `rust_tokenizer` writes a SentencePiece model. Such a file is only
    close to the model, so the model itself is read. In the file of a translator, no token precedes the text."""
    model, splits, framing = (
        part if isinstance(part := content.get(name), dict) else {} for name in ("model", "pre_tokenizer", "post_processor")
    )
    single = framing.get("single") if framing.get("type") == "TemplateProcessing" else None
    of_translator = isinstance(single, list) and bool(single) and "Sequence" in single[0]
    steps = {step.get("type") for step in parts(content.get("normalizer"), "normalizers")}
    return (
        (model.get("type"), splits.get("type")) == ("Unigram", "Metaspace")
        and (of_translator or framing.get("type") == "BertProcessing")
        and not (model.get("byte_fallback") or steps - {"Lowercase", "NFKD", "Replace", "NFC", "Precompiled", "Strip"})
        and not any(token.get("normalized") for token in content.get("added_tokens") or ())
    )


def _object(path: pathlib.Path) -> JsonObject:
    return files.read_object(path, "copy the file again")


def _read_vocabulary(path: pathlib.Path) -> list[str]:
    """Returns the pieces of a vocab.txt, which has one piece per line. As in the original, surrounding white space is removed.
    Line ends may be LF, CRLF or CR. A byte order mark is not part of the first piece."""
    data = path.read_bytes()
    if unicode_encoding(data[:HEAD_BYTES]):
        raise UserError(f"vocabulary {path} is not UTF-8{conversion(data[:HEAD_BYTES])}")
    if found := recognise(data[:HEAD_BYTES], path.name, unpacks=False):
        raise UserError(f"vocabulary {path} {found.what}, not text; {found.remedy}")
    try:
        text = data.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary {path} is not UTF-8 at byte {error.start:,}; convert it with iconv. If it is a SentencePiece model, "
            "give it a name that ends in .model"
        ) from error
    if re.match(r'\s*\{\s*"', text):
        raise UserError(
            f"vocabulary {path} is JSON instead of one piece per line; if it is a {JSON_FILE}, give it a name that ends in "
            ".json"
        )
    lines = text.split("\n" if "\n" in text else "\r")
    if lines[-1] == "":
        lines.pop()
    if not any(map(str.strip, lines)):
        raise UserError(f"vocabulary {path} is empty; {VOCABULARY_REMEDY}")
    if (i := next((i for i, line in enumerate(lines, 1) if "\t" in line.strip()), None)) is not None:
        raise UserError(
            f"vocabulary {path}, line {i}: {lines[i - 1].strip()[:60]!r} has a TAB; give one piece per line, without its count "
            "or score (cut -f1)"
        )
    return [line.strip() for line in lines]


def unfit_for_vocab_txt(pieces: Iterable[str]) -> str | None:
    """Returns the first piece that a vocab.txt cannot hold, or None. A vocab.txt cannot hold pieces with a line end, or with
    white space at the start or end."""
    return next((piece for piece in pieces if piece != piece.strip() or "\n" in piece or "\r" in piece), None)


def _check_word_marks(described: TokenizerDescription) -> None:
    """Raises UserError if the pieces for WordPiece mark the start of a word, as SentencePiece and byte-level BPE do. A
    vocabulary of whole words has no continuations, and a few words may start with Ġ (Maltese)."""
    inside = sum(piece.startswith(CONTINUATION) for piece in described.pieces)
    for mark, kind, file in ((WORD_START, "SentencePiece", MODEL_FILES[0]), ("Ġ", "byte-level BPE", JSON_FILE)):
        starts = sum(piece.startswith(mark) and len(piece) > 1 for piece in described.pieces)
        if starts > max(inside, len(described.pieces) // 10):
            raise UserError(
                f"{described.path}: {starts:,} of its {counted(len(described.pieces), 'piece')} start with {mark}, as in {kind}, "
                f"and {inside:,} with {CONTINUATION}, as in WordPiece, which would not find most words; remove this file, and "
                f"use the model's {file}"
            )


def _find_end(pieces: Sequence[str]) -> int:
    """Returns the number of pieces without empty pieces at the end. A vocab.txt may end in blank lines."""
    return next((i for i in range(len(pieces), 0, -1) if pieces[i - 1]), 0)


def _model_rows(directory: pathlib.Path) -> int | None:
    """Returns the number of word embeddings of the model in `directory`, or None if there is no model."""
    for name in ("config.json", "bert_config.json"):
        if (directory / name).is_file():
            rows = _object(directory / name).get("vocab_size")
            return rows if isinstance(rows, int) else None
    return None


def _check_text(path: pathlib.Path, pieces: Sequence[str]) -> None:
    """Raises UserError if a piece has half a surrogate pair. JSON can express this, but text cannot contain it."""
    for piece in pieces:
        if any("\ud800" <= character <= "\udfff" for character in piece):
            raise UserError(
                f"{path}: the piece {piece!r} has half a surrogate pair, which is not a character; copy the files again"
            )


def _tokenizer_class(directory: pathlib.Path, config: JsonObject) -> tuple[pathlib.Path, str | None]:
    """Returns (the file that names the class of the tokenizer, the name of the class). The name is None if no file names a
    class."""
    name, path = config.get("tokenizer_class"), directory / CONFIG_FILE
    if name is None and (directory / "config.json").is_file():
        path = directory / "config.json"
        name = _object(path).get("tokenizer_class")
    return path, name


def _stem(name: str | None) -> str:
    return re.sub("Tokenizer(Fast|Legacy)?$", "", str(name))


def _check_class(directory: pathlib.Path, config: JsonObject, vocabulary: pathlib.Path) -> None:
    """Raises UserError if the rules of transformers' tokenizer class for `directory` differ from ours, or if this class does
    not read the file `vocabulary`. The name of the class is in tokenizer_config.json or, if it is not there, in the model's
    config.json."""
    path, name = _tokenizer_class(directory, config)
    if name is None and "AutoTokenizer" in (config.get("auto_map") or ()):
        raise UserError(
            f"{directory / CONFIG_FILE}: auto_map names a tokenizer with code of its own, but bert_jax does not run such code; "
            f"{_CLASSES_READ}"
        )
    stem = _stem(name)
    if name is None or str(name) in {*BACKENDS, *_READ_CLASSES}:
        read = {**dict.fromkeys(WORDPIECE_CLASSES, VOCAB_FILE), **dict.fromkeys(SENTENCEPIECE_CLASSES, MODEL_FILES[0])}.get(stem)
        if read and (read == VOCAB_FILE) == (vocabulary.suffix == ".model"):
            raise UserError(
                f"{path}: {name} reads {read}, but there is no {read} next to {vocabulary.name}; copy it from the model"
            )
        return
    why = _SHIFTED if stem in _FAIRSEQ else f"its rules differ from BERT's rules; {_CLASSES_READ}"
    raise UserError(f"{path}: tokenizer_class={_as_json(name)} is not supported, because {why}")


def _check_class_uses(path: pathlib.Path, content: JsonObject, why: str, name: str | None, config: JsonObject) -> None:
    """Raises UserError unless a class of BERT uses the component of a tokenizer.json that `WordPiece` does not support. These
    classes use the added tokens (`tokenizer.add_tokens([...])`), but make all other rules from tokenizer_config.json."""
    if why != _inner_token(path, content):
        raise UserError(f"{path}: {why}, but the class {name} ignores this; take all files from one model")
    _check_config(path.with_name(CONFIG_FILE), config)
    rules = _Json(ids={}, added={}, own=0, unknown="", limit=None, **_normalizer(content.get("normalizer")))
    for note in _text_rules(rules, config)["notes"]:
        raise UserError(f"{path}: {why}, so this file is used unchanged. {note.partition(';')[0]}; make the two files equal")


def _inner_token(path: pathlib.Path, content: JsonObject) -> str | None:
    """Returns a clause that names the first added token that is matched inside words, or None."""
    for token in _entries(path, content.get("added_tokens") or []):
        if not token.get("special") and not BRACKETED.fullmatch(token["content"]):
            return f"its added token {token['content']!r} is matched inside words"
    return None


def check_not_fairseqs(path: pathlib.Path, pieces: Sequence[str]) -> None:
    """Raises UserError if the SentencePiece model `path` is from XLM-R or CamemBERT. These models lack BERT's special
    pieces."""
    if path.name == MODEL_FILES[2] and "[CLS]" not in pieces and list(pieces[:3]) == ["<unk>", "<s>", "</s>"]:
        raise UserError(f"{path} has the vocabulary of XLM-R, which is not supported alone, because {_SHIFTED}")


def _check_config(path: pathlib.Path, config: JsonObject) -> None:
    """Raises UserError if a setting of a tokenizer_config.json has the wrong type or is not supported."""
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "do_basic_tokenize"):
        if not isinstance(config.get(name), bool | None):
            raise UserError(f"{path}: {name}={_as_json(config[name])} must be true, false or null, without quotation marks")
    for name in ("model_max_length", "max_len"):
        if isinstance(config.get(name), bool) or not isinstance(config.get(name), int | float | None):
            raise UserError(f"{path}: {name}={_as_json(config[name])} must be a number or null")
    longest = config.get("max_input_chars_per_word")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise UserError(f"{path}: max_input_chars_per_word={_as_json(longest)} must be a whole number above 0, or null")
    split = config.get("never_split")
    if split is not None and (not isinstance(split, list) or not all(isinstance(word, str) for word in split)):
        raise UserError(f"{path}: never_split={_as_json(split)} must be a list of texts, or null")
    if config.get("do_basic_tokenize") is False:
        raise UserError(
            f"{path}: do_basic_tokenize=false is not supported, because text must then be split into words beforehand; if "
            "text is plain, remove the setting"
        )
    for name, ours in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if config.get(name, ours) != ours:
            raise UserError(f"{path}: {name}={config[name]!r} is not supported; the only supported value is {ours!r}")
    split = [word for word in config.get("never_split") or () if not BRACKETED.fullmatch(word)]
    if split:
        raise UserError(f"{path}: never_split={split} is not supported, and transformers 5 ignores it; remove it")


def _as_json(value: Json) -> str:
    """Formats `value` as JSON, shortened to 80 characters."""
    return json.dumps(value, ensure_ascii=False)[:80]


def _special_names(*sources: JsonObject, roles: Sequence[str] = tuple(SPECIAL_NAMES)) -> dict[str, str]:
    """Returns role -> piece. The piece comes from the first of the `sources` that names a piece for the role. A source may name
    it as a string or as {"content": string}."""
    names: dict[str, str] = {}
    for source, part in itertools.product(sources, roles):
        name = source.get(f"{part}_token")
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str):
            names.setdefault(part, name)
    return names


def _further_specials(config: JsonObject) -> list[str]:
    """Returns the special tokens without a role. transformers 4 and 5 store them under different keys. The value is a list or,
    only in version 5, a dictionary with names."""
    further = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    tokens = further.values() if isinstance(further, dict) else further
    return [token["content"] if isinstance(token, dict) else token for token in tokens]


def _max_length(config: JsonObject) -> int | None:
    length = config.get("model_max_length") or config.get("max_len")
    return int(length) if length and 1 <= length < _NO_LIMIT else None


def _added_tokens(directory: pathlib.Path, config: JsonObject, later: Mapping[str, int]) -> dict[int, str]:
    """Returns id -> token for the tokens that are added to a vocab.txt. Older and newer Python tokenizers store them in
    different files."""
    tokens: list[Json] = [{"id": i, "content": token} for token, i in later.items()]
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise UserError(
            f"{directory / CONFIG_FILE}: added_tokens_decoder is {_as_json(listed)}, not an object; copy the file again"
        )
    for i, token in listed.items():
        about = token if isinstance(token, dict) else {"content": token}
        tokens.append(about | {"id": whole_number(i, 0, MOST_PIECES - 1) if i.isdecimal() else i})
    return _checked_added(directory, tokens)


def _entries(path: pathlib.Path, tokens: Json) -> list[JsonObject]:
    """Returns `tokens`, the list of added tokens. Raises UserError if it is not a list, if a token has no text, or if an id is
    not an integer in the accepted range."""
    if not isinstance(tokens, list):
        raise UserError(f"{path}: the added tokens are {_as_json(tokens)}, not a list; copy the file again")
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise UserError(f"{path}: the added token {_as_json(token)} has no text; copy the file again")
        if type(token.get("id")) is not int or not 0 <= token["id"] < MOST_PIECES:
            raise UserError(
                f"{path}: the id of the added token {token['content']!r} is {_as_json(token.get('id'))}, not an integer from "
                f"0 to {MOST_PIECES - 1:,}; copy the file again"
            )
    return tokens


def _checked_added(path: pathlib.Path, tokens: Json) -> dict[int, str]:
    """Returns id -> text for the added tokens. Raises UserError if a token is not special, because transformers would also
    match this token inside words."""
    listed = _entries(path, tokens)
    for token in listed:
        if not token.get("special") and not BRACKETED.fullmatch(token["content"]):
            raise UserError(
                f"{path}: the added token {token['content']!r} (id {token['id']}) is not a special token, so transformers "
                f"also matches it inside words. WordPiece cannot do this; save the tokenizer with BertTokenizerFast, whose "
                f"{JSON_FILE} can, or remove the token from the files, and add it as a whole word with convert --add-tokens=FILE"
            )
    return {token["id"]: token["content"] for token in listed}


def _extended(path: pathlib.Path, lines: list[str], added: Mapping[int, str]) -> list[str]:
    """Returns the pieces of a vocab.txt, followed by the added tokens. Raises UserError if the ids do not fit together."""
    behind = {i: token for i, token in added.items() if i >= len(lines)}
    if sorted(behind) != list(range(len(lines), len(lines) + len(behind))):
        raise UserError(
            f"{path} has {counted(len(lines), 'piece')}, so the ids of added tokens must continue from {len(lines):,} without "
            f"gaps, but they are {sorted(behind)[:8]}; copy the model's files again"
        )
    for i, token in added.items():
        if i < len(lines) and lines[i] != token:
            raise UserError(
                f"{path}: id {i} is {lines[i]!r} in the vocabulary, but {token!r} in the added tokens; take both files from "
                "one model"
            )
    return lines + [behind[i] for i in sorted(behind)]


def _by_id(path: pathlib.Path, content: _Json) -> list[str]:
    """Returns the pieces of a tokenizer.json in the order of their ids. An id without a piece gets the empty piece, which no
    text contains. Ids without a piece come from a vocab.txt that repeats a piece, because the piece keeps only its last id."""
    pieces = {i: piece for piece, i in content.ids.items()}
    size = max(pieces, default=-1) + 1
    hole = next((i for i in range(size) if i not in pieces), None)
    if len(pieces) != len(content.ids) or (hole is not None and len(content.ids) > content.own):
        fault = "two pieces have the same id" if hole is None else f"no piece has the id {hole}"
        raise UserError(f"{path}: {fault}; put the model's vocab.txt next to it, or restore its {JSON_FILE}")
    return [pieces.get(i, "") for i in range(size)]


def _check_same_pieces(path: pathlib.Path, pieces: Sequence[str], ids: Mapping[str, int]) -> None:
    """Raises UserError unless both files give the same id to every piece. For a repeated piece, the last id counts. Empty
    pieces are ignored."""
    ours, theirs = {piece: i for i, piece in enumerate(pieces)}, {i: piece for piece, i in ids.items() if piece}
    by_id = {i: piece for piece, i in ours.items() if piece}
    for i in sorted(by_id.keys() | theirs.keys()):
        if by_id.get(i) != theirs.get(i):
            here, there = (f"is {p!r}" if p is not None else "is missing" for p in (by_id.get(i), theirs.get(i)))
            raise UserError(
                f"{path.parent}: id {i} {here} in {path.name}, but {there} in {JSON_FILE} (transformers would use "
                f"{JSON_FILE}); remove the file that the model was not trained with"
            )


def _other_than_berts(path: pathlib.Path, content: JsonObject) -> str | None:
    """Returns a clause that names the first component of a tokenizer.json that `WordPiece` does not support, or None if it
    supports all components."""
    kind, model = model_type(content), content.get("model") or {}
    if kind != "WordPiece":
        return f"it holds a {kind} model"
    prefix = model.get("continuing_subword_prefix", CONTINUATION)
    if prefix != CONTINUATION:
        return f"its continuing_subword_prefix is {prefix!r}"
    splitter = [part.get("type") for part in parts(content.get("pre_tokenizer"), "pretokenizers")]
    if splitter != ["BertPreTokenizer"]:
        return f"its pre_tokenizer is {_named(splitter)}"
    steps = parts(content.get("normalizer"), "normalizers")
    types = [step.get("type") for step in steps]
    berts = [step for step in steps if step.get("type") == "BertNormalizer"]
    marks = [kind for kind in types if kind in ("NFD", "StripAccents")]
    known = {"BertNormalizer", "Lowercase", "NFD", "StripAccents"}
    if not berts or not {*types} <= known or marks not in ([], ["NFD", "StripAccents"]):
        return f"its normalizer is {_named(types)}"
    if not any(bert.get("clean_text", True) for bert in berts):
        return "its normalizer has clean_text=false"
    return _inner_token(path, content)


def _described_library(
    path: pathlib.Path, content: JsonObject, config: JsonObject, names: JsonObject, fields: JsonObject
) -> TokenizerDescription:
    """Makes the TokenizerDescription of a tokenizer.json that the library runs. `fields` is the model's config.json."""
    _check_text(path, [token["content"] for token in content.get("added_tokens") or ()])
    text, notes = path.read_text("utf-8"), []
    if (changed := with_prefix_space(content, config.get(PREFIX_SPACE))) is not None:
        text, adds = changed, "a " if config[PREFIX_SPACE] else "no "
        notes.append(
            f"{adds}space is added before a text, because {CONFIG_FILE} sets {PREFIX_SPACE}; {JSON_FILE} differs and is not "
            "used"
        )
    try:
        library = JsonTokenizer(text, settings=config, names=names)
    except ValueError as error:
        raise UserError(f"{path}: {error}; copy the file again, or choose another model") from error
    specials = _roles(path, content, library, (config, names), fields)
    cls, sep = (library.pieces.index(specials[role]) for role in ("cls", "sep"))
    translates = fields.get("is_encoder_decoder") is True or fields.get("model_type") == "encoder_decoder"
    single = [*library.letter, sep] if translates else [cls, *library.letter, sep]
    for theirs, ours in zip(library.framed, (single, [*single, *library.letter, sep]), strict=True):
        if theirs != ours:
            shown = [" ".join(library.pieces[i] for i in ids) for ids in (theirs, ours)]
            notes.append(f"{JSON_FILE} puts special tokens around texts as in {shown[0]!r}, but bert_jax as in {shown[1]!r}")
            break
    return TokenizerDescription(
        path=path,
        library=library,
        lowercase=library.lowercase,
        lowercase_source=f"the normalizer of {JSON_FILE} {'lower-cases' if library.lowercase else 'keeps capitals'}",
        specials=specials,
        added=tuple(library.special_tokens),
        max_length=_max_length(config),
        notes=tuple(notes),
    )


_OTHER_NAMES = {
    "pad": ("<|pad|>", "<|padding|>"),
    "cls": ("<s>", "<cls>"),
    "sep": ("</s>", "<sep>"),
    "mask": ("<mask>", "<|mask|>"),
}
"""role -> names of the special token with this role in models other than BERT."""


def _roles(
    path: pathlib.Path, content: JsonObject, library: JsonTokenizer, sources: Sequence[JsonObject], fields: JsonObject
) -> dict[str, str]:
    """Returns role -> piece.

    If the post-processor puts two different special tokens around a text, the first token is [CLS] and the second is [SEP],
    even if config.json has other ids. (In mmBERT's config.json, both are <eos>.) Otherwise the function looks for the piece of
    a role in the files next to the tokenizer.json, then in the vocabulary by the usual names of the role, then in the model's
    config.json by id. If [CLS] or [SEP] is still missing, the token for the beginning or end of a text (bos, eos) is used, then
    the token that the post-processor adds, then a name in `_OTHER_NAMES`."""
    ids = {piece: i for i, piece in enumerate(library.pieces) if piece}
    named = _special_names(*sources, roles=("pad", "unk", "cls", "sep", "mask", "bos", "eos"))
    for role, piece in named.items():
        if role in ("pad", "cls", "sep", "mask") and piece not in ids:
            raise UserError(
                f"the files next to {path} have {role}_token={piece!r}, but this piece is not in the vocabulary; correct one "
                "of the files"
            )

    def by_id(key: str) -> str | None:
        i = fields.get(key)
        return library.pieces[i] if type(i) is int and 0 <= i < len(library.pieces) else None

    frame, inside = library.framed[0], library.letter
    ends = dict[str, str]()
    if len(frame) == len(inside) + 2 and frame[1:-1] == inside:
        ends = {"cls": library.pieces[frame[0]], "sep": library.pieces[frame[-1]]}
    distinct = len({*ends.values()} & {*library.special_tokens}) == 2
    unknown = content["model"].get("unk_token")
    if type(content["model"].get("unk_id")) is int:
        unknown = library.pieces[content["model"]["unk_id"]]
    roles: dict[str, str] = {}
    for role, usual in SPECIAL_NAMES.items():
        other = {"cls": "bos", "sep": "eos"}.get(role, role)
        found: list[str | None] = [ends.get(role) if distinct else None, named.get(role), *(x for x in usual if x in ids)]
        found += [by_id(f"{role}_token_id"), unknown if role == "unk" else None, named.get(other), by_id(f"{other}_token_id")]
        found += [ends.get(role), *_OTHER_NAMES.get(role, ())]
        known = [name for name in found if name in ids]
        if known:
            roles[role] = str(known[0])
        elif role != "unk":
            raise UserError(
                f"{path}: no piece is known as [{role.upper()}], which masked language modelling needs; name one of the "
                f'{counted(len(ids), "piece")} in the {CONFIG_FILE} next to the file, as {{"{role}_token": "<{role}>"}}'
            )
    if same := next((role for role in ("cls", "sep") if roles[role] == roles["mask"]), None):
        raise UserError(
            f"{path}: {roles['mask']!r} is both [MASK] and [{same.upper()}], so a masked word would look like the "
            f"{'beginning' if same == 'cls' else 'end'} of a text; name another piece as mask_token in the {CONFIG_FILE} "
            "next to this file"
        )
    return roles


def _read_json(path: pathlib.Path, content: JsonObject) -> _Json:
    """Reads a tokenizer.json with the components of BERT."""
    model = content["model"]
    added = _checked_added(path, content.get("added_tokens") or [])
    if not isinstance(model["vocab"], dict):
        raise UserError(
            f"{path}: the vocab of the WordPiece model is {_as_json(model['vocab'])}, not an object of pieces and ids; copy "
            "the file again"
        )
    ids = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    wrong = next((piece for piece, i in ids.items() if type(i) is not int or not 0 <= i < MOST_PIECES), None)
    if wrong is not None:
        raise UserError(
            f"{path}: the id of {wrong!r} is {ids[wrong]!r}, not an integer from 0 to {MOST_PIECES - 1:,}; copy the file again"
        )
    for i, token in added.items():
        if ids.setdefault(token, i) != i:
            raise UserError(
                f"{path}: {token!r} has the id {ids[token]} in the vocabulary, but {i} in the added tokens; copy the file again"
            )
    return _Json(
        ids=ids,
        added=added,
        own=len(model["vocab"]),
        unknown=model.get("unk_token") or "[UNK]",
        limit=model.get("max_input_chars_per_word"),
        **_normalizer(content.get("normalizer")),
    )


def _named(types: Sequence[str | None]) -> str:
    return " + ".join(map(str, types)) or "null"


def _normalizer(part: JsonObject | None) -> dict[str, bool]:
    """Returns the fields of `_Json` that a normalizer determines. The normalizer has a BertNormalizer, and may also have the
    steps Lowercase, NFD and StripAccents."""
    steps = parts(part, "normalizers")
    types = [step.get("type") for step in steps]
    berts = [step for step in steps if step.get("type") == "BertNormalizer"]
    lowers = [bool(bert.get("lowercase", True)) for bert in berts]
    strips = [bert.get("strip_accents") for bert in berts]
    return {
        "lowercase": any(lowers) or "Lowercase" in types,
        "strip_accents": any(lower if own is None else own for own, lower in zip(strips, lowers, strict=True))
        or "StripAccents" in types,
        "split_cjk": any(bert.get("handle_chinese_chars", True) for bert in berts),
    }
