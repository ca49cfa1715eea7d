"""Runs any `tokenizer.json` with the library `tokenizers`, e.g. byte-level BPE, Unigram, or WordPiece with other text rules.

The library's pre-tokenizer defines the words (`word_ids`), so a subword alone does not show whether it starts a word. `append`
therefore marks each id that starts a word.

In most tokenizers, no rule spans a single space. A text can then be cut before each space, and the parts can be encoded
separately. A cache from parts to ids answers nearly all lookups, as for WordPiece. `_stops_at_spaces` looks at the components
of the tokenizer to decide whether this is possible. If it is not, or if a text has other white space, the text is encoded as a
whole.
"""

from __future__ import annotations

import functools
import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from bert_jax.data.tokenizers.wordpiece import CONTINUATION, WORD_START, ChunkCache, joined_spans
from bert_jax.files import Json, JsonObject, parse_json

Kind = Literal["bpe", "unigram", "wordlevel", "library-wordpiece"]

BRACKETED = re.compile(r"\[\S+\]|<\S+>|\{\S+\}")
"""The pattern for the names of special tokens."""
BEGINS = 1 << 29
"""The bit that `append` sets in ids that begin a word. The ids stay below 2^30, because Python is fast with such integers."""
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regular expressions with which the tokenizers of GPT-2 and GPT-4 split text before the merges. Llama 3 splits text like
GPT-4."""
_SPACE_SPLITS = {
    GPT2_SPLIT,
    GPT4_SPLIT,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # Qwen 2
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",  # cl100k
}
_ASCII = {
    GPT2_SPLIT: re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"),
    GPT4_SPLIT: re.compile(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""The regular expressions that are equivalent for ASCII text, in Python's syntax."""
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled", "Nmt"}
_LOCAL_SPLITS = {"ByteLevel", "Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation"}
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_PROBES = (
    "a b",
    "It's 12 cats, isn't it?",
    "x. (y) #1 $2",
    "é ü ß 中文 日 本",
    "don't stop",
    "A-b c_d e/f",
    "a",
    "the  end ",
    " a b",
)


class JsonTokenizer:
    """Converts text to ids with a tokenizer of the library. It has the methods of `wordpiece.WordPiece`.

    `content` is the text of the tokenizer.json, which `Tokenizer.save` writes unchanged. `settings` and `names` are the
    contents of tokenizer_config.json and special_tokens_map.json.

    Raises ValueError if the library cannot run the tokenizer. The message is a clause with the problem.
    """

    max_word_characters = None
    strip_accents = None
    split_cjk = True  # a field of VocabularyInfo; not used here

    def __init__(self, content: str, *, settings: JsonObject | None = None, names: JsonObject | None = None):
        self.content = content
        self.settings, self.names = settings or {}, names or {}
        self._spec: JsonObject = parse_json(content)
        self._rust = _load(content, self._spec)
        #: `letter` has the ids of the text "a". `framed` has the ids of this text and of a pair of such texts, with the special
        #: tokens that the post-processor adds.
        self.letter = self._rust.encode("a", add_special_tokens=False).ids
        self.framed = (self._rust.encode("a").ids, self._rust.encode("a", "a").ids)
        text_content, hidden = _without_specials(content, self._spec)
        if hidden:
            self._with_specials, self._rust = self._rust, _load(text_content, self._spec)
        self._of_roles: dict[frozenset[str], Any] = {}
        # Special tokens in a text are treated as ordinary text, except in `encode_with_specials` and `_with_added`.
        self._rust.encode_special_tokens = True
        vocabulary = self._rust.get_vocab(with_added_tokens=True)
        if len(set(vocabulary.values())) < len(vocabulary):
            raise ValueError("two pieces have the same id")
        self.pieces = [""] * (max(vocabulary.values(), default=-1) + 1)
        for piece, i in vocabulary.items():
            self.pieces[i] = hidden.get(piece, piece)
        self._hides = bool(hidden)
        model = model_type(self._spec)
        self.kind: Kind = "library-wordpiece" if model == "WordPiece" else model.lower()  # type: ignore[assignment]
        self.is_byte_level = any(
            part.get("type") == "ByteLevel"
            for name, inside in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders"))
            for part in parts(self._spec.get(name), inside)
        )
        self.added = {token["content"]: token for token in self._spec.get("added_tokens") or ()}
        probe = self._rust.normalizer.normalize_str if self._rust.normalizer else str
        #: whether text is lower-cased, and whether accents are dropped
        self.lowercase = "A" not in probe("A")
        self.strips = "é" not in probe("é") and "e\u0301" not in probe("é")
        self.folds = self.lowercase
        #: whether a space before a word changes the ids of the word, so that words at the start of a text have different ids
        self.distinguishes_spaces = [*self._rust.encode("a", add_special_tokens=False).ids] != [
            *self._rust.encode(" a", add_special_tokens=False).ids
        ]
        self._joins_words = len({*self._rust.encode("a b", add_special_tokens=False).word_ids}) < 2
        self._opens = {i for i, piece in enumerate(self.pieces) if piece.startswith((WORD_START, "Ġ", " "))}
        self._words_of, self._plain_tokens = _ascii_split(self._spec)
        #: The caches have the ids as bytes of uint32, because bytes are joined faster than integers.
        self._model, self._words, self._first = self._rust.model, ChunkCache(self._merged), ChunkCache(self._marked_chunk)
        self._inner = ChunkCache(self._marked_after_space)
        self._only_ascii = _spans_spaces(self._spec)  # True if rules for non-ASCII characters may span a space
        self._is_local = _stops_at_spaces(self._spec) and all(map(self._is_sum_of_parts, _PROBES))

    def __reduce__(self) -> tuple[Callable[..., JsonTokenizer], tuple[str, JsonObject, JsonObject]]:
        return _made, (self.content, self.settings, self.names)

    @functools.cached_property
    def identity(self) -> bytes:
        """The part of the file's content that determines the ids of a text. Its form does not depend on the program that wrote
        the file."""
        content = {name: self._spec.get(name) for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        model: JsonObject = dict(self._spec["model"])
        if "merges" in model:  # older files have merges as "a b", newer files as ["a", "b"]
            model["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        if isinstance(model.get("vocab"), list):  # the library reads and writes scores with an error in the last digit
            model["vocab"] = [[piece, f"{score:.10g}"] for piece, score in model["vocab"]]
        model = {name: value for name, value in model.items() if value is not None and value is not False} | {
            "type": model_type(self._spec)
        }
        return json.dumps(content | {"model": model}, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()

    def _begins(self, ids: Sequence[int], words: Sequence[int | None]) -> list[bool]:
        """Returns whether each piece begins a word. If the pre-tokenizer leaves spaces inside words, a piece that starts with a
        space also begins a word."""
        begins = [i == 0 or word is None or word != words[i - 1] for i, word in enumerate(words)]
        return [found or piece in self._opens for found, piece in zip(begins, ids, strict=True)] if self._joins_words else begins

    def _marked(self, text: str) -> bytes:
        """Encodes a text. Returns the ids as bytes of uint32, with the bit BEGINS in ids that begin a word."""
        encoded = self._rust.encode(text, add_special_tokens=False)
        ids = encoded.ids
        begins = self._begins(ids, encoded.word_ids)
        return array("I", [i | BEGINS if first else i for i, first in zip(ids, begins, strict=True)]).tobytes()

    def _marked_after_space(self, text: str) -> bytes:
        return self._marked_chunk(f" {text}")

    def _merged(self, word: str) -> bytes:
        """Returns the result of `_marked` for one word of printable ASCII characters. This word needs only the merges, and the
        library's call for the merges is the fastest."""
        ids = array("I", [token.id for token in self._model.tokenize(word.replace(" ", "Ġ"))])
        if ids:  # there are no ids if the vocabulary has neither these bytes nor [UNK]
            ids[0] |= BEGINS
        return ids.tobytes()

    def _marked_chunk(self, chunk: str) -> bytes:
        """Returns the result of `_marked` for a part of a text. If the bounds of the words in this part are known, the ids of
        the words come from a cache."""
        if self._words_of is None or not (chunk.isascii() and chunk.isprintable()) or self._plain_tokens.search(chunk):
            return self._marked(chunk)
        words = self._words_of.findall(chunk)
        return self._words[words[0]] if len(words) == 1 else b"".join(map(self._words.__getitem__, words))

    def _by_parts(self, text: str, out: array[int]) -> None:
        chunks = iter(text.split(" "))
        if first := next(chunks):
            out.frombytes(self._first[first])
        out.frombytes(b"".join(map(self._inner.__getitem__, chunks)))

    def _is_sum_of_parts(self, text: str) -> bool:
        made = array("I")
        self._by_parts(text, made)
        return "  " in text or made.tobytes() == self._marked(text)

    def append(self, text: str, out: array[int]) -> None:
        """Appends the ids of `text` to `out`, a 32-bit `array`. Ids that begin a word have the bit BEGINS. Special tokens in
        the text are ordinary text."""
        if self._is_local and "  " not in text and text.isprintable() and (not self._only_ascii or text.isascii()):
            self._by_parts(text, out)  # the space is the only printable white space
        else:
            out.frombytes(self._marked(text))

    def append_with_added(self, text: str, out: array[int], roles: frozenset[str]) -> None:
        """Does the same as `append`, but recognises all special tokens except `roles`."""
        ids, _, begins = self.encode_with_words(text, roles)
        out.extend(i | BEGINS if first else i for i, first in zip(ids, begins, strict=True))

    def _with_added(self, roles: frozenset[str]) -> Any:
        """Returns the library's tokenizer, with all special tokens as ordinary added tokens except `roles`, which are text."""
        if roles not in self._of_roles:
            tokens = [
                token | {"special": bool(token.get("special")) and content in roles} for content, token in self.added.items()
            ]
            spec = self._spec | {"added_tokens": tokens}
            content, _ = _without_specials(json.dumps(spec, ensure_ascii=False), spec)
            self._of_roles[roles] = _load(content, spec)
            self._of_roles[roles].encode_special_tokens = True
        return self._of_roles[roles]

    def encode_with_words(
        self, text: str, roles: frozenset[str] | None = None
    ) -> tuple[list[int], list[tuple[int, int]], list[bool]]:
        """Returns the ids and, for each id, the range [start, end) of its characters in `text`, and whether it begins a word.
        The ranges exclude surrounding white space. All special tokens in `text` are ordinary text or, if `roles` is given, only
        these."""
        rust = self._rust if roles is None else self._with_added(roles)
        encoded = rust.encode(text, add_special_tokens=False)
        offsets = []
        for start, end in encoded.offsets:
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            offsets.append((start, end))
        return encoded.ids, offsets, self._begins(encoded.ids, encoded.word_ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids and, for each id, the range [start, end) of its characters in `text`. The ranges exclude surrounding
        white space."""
        return self.encode_with_words(text)[:2]

    def encode_with_specials(self, text: str) -> list[int]:
        """Returns the ids of `text`. Special tokens in the text are recognised, as the library does by default."""
        return self._with_specials.encode(text, add_special_tokens=False).ids

    @functools.cached_property
    def _with_specials(self) -> Any:
        return _load(self.content, self._spec)

    def word_spans(self, text: str, roles: frozenset[str] | None = None) -> list[tuple[int, int]]:
        """Returns the range [start, end) of the characters of each word in `text`. The ranges exclude surrounding white space.
        `roles` is explained in `encode_with_words`."""
        return joined_spans(*self.encode_with_words(text, roles)[1:])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids, including special tokens. If encoding has lost nothing, this is the original text."""
        rust = self._with_specials if self._hides else self._rust
        return rust.decode([int(i) for i in ids], skip_special_tokens=False)

    def readable(self, ids: Sequence[int]) -> str:
        """Returns the pieces with these ids as one text for display. Byte-level pieces are decoded. Spaces are shown as ▁, and
        the bytes of an incomplete character in hexadecimal."""
        if not self.is_byte_level:
            joined = "".join(self.pieces[i] for i in ids[:1])
            return joined + "".join(self.pieces[i].removeprefix(CONTINUATION) for i in ids[1:])
        data = b"".join(self._piece_bytes(self.pieces[i]) for i in ids)
        return data.decode("utf-8", "backslashreplace").replace(" ", WORD_START)

    def _piece_bytes(self, piece: str) -> bytes:
        if piece in self.added or not _BYTES.keys() >= {*piece}:
            return piece.encode()
        return bytes(map(_BYTES.__getitem__, piece))

    def is_continuation(self, piece: str) -> bool:
        """Returns whether a piece usually continues a word. This is assumed if the piece has no leading space and starts with a
        letter, a digit or a part of a character. Whether it really continues a word depends on the text."""
        if piece.startswith(CONTINUATION) and self.kind == "library-wordpiece":
            return True
        if not piece or piece in self.added or self.kind == "library-wordpiece":
            return False
        if not self.is_byte_level:
            return not piece.startswith((WORD_START, " ")) and (piece[0].isalnum() or piece.startswith("<0x"))
        data = self._piece_bytes(piece)
        text = data.decode("utf-8", "replace")
        return text[0].isalnum() or text[0] == "\ufffd"

    @property
    def special_tokens(self) -> list[str]:
        """The added tokens that are special."""
        return [token for token, about in self.added.items() if about.get("special")]

    def with_tokens(self, tokens: Sequence[str], placeholder: re.Pattern[str]) -> JsonTokenizer:
        """Returns a copy of this tokenizer with added tokens. The tokens first get the ids of pieces that match `placeholder`.
        If there are more tokens, they get new ids."""
        spec: JsonObject = parse_json(self.content)
        free = [i for i, piece in enumerate(self.pieces) if placeholder.fullmatch(piece)][::-1]
        added = {token["id"]: token for token in spec.get("added_tokens") or ()}
        vocabulary, size = spec["model"]["vocab"], len(self.pieces)
        for token in tokens:
            i = free.pop() if free else size
            size = max(size, i + 1)
            special = BRACKETED.fullmatch(token) is not None
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
            added[i] = {"id": i, "content": token, **flags}
            if isinstance(vocabulary, dict):
                if vocabulary.get(self.pieces[i] if i < len(self.pieces) else "") == i:
                    del vocabulary[self.pieces[i]]
                    vocabulary[token] = i
            elif i < len(vocabulary):
                vocabulary[i][0] = token
        spec["added_tokens"] = [added[i] for i in sorted(added)]
        settings = {name: value for name, value in self.settings.items() if name != "added_tokens_decoder"}
        return JsonTokenizer(json.dumps(spec, ensure_ascii=False, indent=2), settings=settings, names=self.names)


def _made(content: str, settings: JsonObject, names: JsonObject) -> JsonTokenizer:
    return JsonTokenizer(content, settings=settings, names=names)


def parts(part: JsonObject | None, inside: str) -> list[JsonObject]:
    """Returns the steps of a normalizer, pre-tokenizer or decoder. Nested sequences are flattened. `inside` is the key of the
    steps in a sequence."""
    if part is None:
        return []
    return [step for p in part[inside] for step in parts(p, inside)] if part.get("type") == "Sequence" else [part]


def model_type(content: JsonObject) -> str:
    """Returns the type of the model in a tokenizer.json. In older files the type is missing, so it is inferred."""
    model = content.get("model") or {}
    guess = "BPE" if "merges" in model else "WordPiece" if isinstance(model.get("vocab"), dict) else "Unigram"
    return model.get("type") or guess


_HIDDEN = "\U0010ffff"


def _without_specials(content: str, spec: JsonObject) -> tuple[str, dict[str, str]]:
    """Returns (the content of the file with renamed special tokens, new name -> token). The special tokens are usually pieces
    of the model. The model would therefore find them in ordinary text if they were not renamed. [UNK] is not renamed."""
    model = spec.get("model") or {}
    vocabulary = model.get("vocab") or {}
    if model_type(spec) == "BPE" and not model.get("ignore_merges"):  # no merge produces special tokens
        return content, {}
    specials = {token["content"] for token in spec.get("added_tokens") or () if token.get("special")}
    specials -= {model.get("unk_token")}
    if isinstance(vocabulary, dict):
        specials &= vocabulary.keys()
        changed: Any = {f"{_HIDDEN}{piece}" if piece in specials else piece: i for piece, i in vocabulary.items()}
    else:
        unknown = model.get("unk_id")
        specials &= {entry[0] for i, entry in enumerate(vocabulary) if i != unknown}
        changed = [[f"{_HIDDEN}{entry[0]}" if entry[0] in specials else entry[0], *entry[1:]] for entry in vocabulary]
    if not specials:
        return content, {}
    added = [token for token in spec["added_tokens"] if token["content"] not in specials]
    hidden = spec | {"model": model | {"vocab": changed}, "added_tokens": added, "post_processor": None}
    return json.dumps(hidden, ensure_ascii=False), {f"{_HIDDEN}{piece}": piece for piece in specials}


def _types(spec: JsonObject, name: str) -> list[str]:
    inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[name]
    return [str(part.get("type")) for part in parts(spec.get(name), inside)]


def _load(content: str, spec: JsonObject) -> Any:
    """Loads the library's tokenizer. If the library cannot read the file, raises ValueError with the part that it cannot
    read."""
    import tokenizers  # imported here because the import takes 0.1 s

    try:
        rust = tokenizers.Tokenizer.from_str(content)
        rust.no_truncation()
        rust.no_padding()
        return rust
    except Exception as error:  # the library raises bare Exceptions
        for name in _PARTS:
            if spec.get(name) is None:
                continue
            try:
                tokenizers.Tokenizer.from_str(json.dumps({**spec, name: None}))
            except Exception:
                continue
            shown = " + ".join(_types(spec, name)) if name != "post_processor" else str(spec[name].get("type"))
            raise ValueError(f"its {name} ({shown}) is unknown to the library tokenizers {tokenizers.__version__}") from error
        raise ValueError(f"the library tokenizers {tokenizers.__version__} cannot read it ({error})") from error


PREFIX_SPACE = "add_prefix_space"
"""A key of a pre-tokenizer and of tokenizer_config.json. If its value is true, a text gets a leading space, unless the text has
a leading space already."""


def with_prefix_space(spec: JsonObject, wanted: Json) -> str | None:
    """Changes whether the pre-tokenizer of the tokenizer.json `spec` adds a leading space. `wanted` is the value in
    tokenizer_config.json. Returns the new text of the tokenizer.json, or None if both files agree or if tokenizer_config.json
    does not state whether to add a space. Like transformers 4, this only changes a pre-tokenizer with a single component."""
    first = spec.get("pre_tokenizer") or {}
    if not isinstance(wanted, bool) or first.get(PREFIX_SPACE, wanted) == wanted:
        return None
    return json.dumps({**spec, "pre_tokenizer": {**first, PREFIX_SPACE: wanted}}, ensure_ascii=False, indent=2)


def _stops_at_spaces(spec: JsonObject) -> bool:
    """Returns whether a text whose only white space are single spaces can be cut before each space, so that the parts can be
    encoded separately."""
    separates = False
    for part in parts(spec.get("normalizer"), "normalizers"):
        pattern = part.get("pattern") or {}
        if part.get("type") == "Replace":
            text, after = pattern.get("String"), str(part.get("content"))
            if pattern.get("Regex") != " {2,}" and (not after or after[-1].isspace()):
                return False
            if pattern.get("Regex") != " {2,}" and (text is None or (text != " " and any(map(str.isspace, text)))):
                return False
        elif part.get("type") not in _LOCAL_NORMALIZERS:
            return False
    for part in parts(spec.get("pre_tokenizer"), "pretokenizers"):
        kind = part.get("type")
        if kind == "Split":
            pattern = part.get("pattern") or {}
            if pattern.get("Regex") in _SPACE_SPLITS and part.get("behavior") == "Isolated" and not part.get("invert"):
                separates = True
            elif pattern.get("String") != " ":  # " " is allowed, as in Gemma, whose normalizer replaces all spaces; see _PROBES
                return False
        elif kind not in _LOCAL_SPLITS:
            return False
        elif kind != "ByteLevel" or part.get("use_regex", True):
            separates |= kind not in ("Digits", "Punctuation") and part.get("split", True)
    for token in spec.get("added_tokens") or ():
        if not token.get("special"):
            inner = token["content"]
            if token.get("rstrip") or (" " in inner and not inner.isspace()) or inner == " ":
                return False
    return separates or _merges_end_at_spaces(spec)


def _spans_spaces(spec: JsonObject) -> bool:
    """Returns whether the result may change if a non-ASCII text is split at spaces and the parts are tokenised separately. This
    is the case if the normalizer has a character map. It is also the case if the normalizer drops whole characters, because a
    dropped character may be between two spaces. If the pre-tokenizer drops spaces, dropped characters make no difference."""
    rules = {*_types(spec, "normalizer")}
    drops_spaces = _types(spec, "pre_tokenizer")[:1] in (["BertPreTokenizer"], ["Whitespace"], ["WhitespaceSplit"])
    return "Precompiled" in rules or (bool(rules & {"StripAccents", "BertNormalizer", "Nmt"}) and not drops_spaces)


def _ascii_split(spec: JsonObject) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    """Returns (the regular expression that splits ASCII text into words, the regular expression for added tokens that are not
    special). The added tokens are matched first. The first expression is equivalent to the Unicode expression of the library.
    It is None unless the tokenizer is byte-level and leaves ASCII text unchanged."""
    plain = [token["content"] for token in spec.get("added_tokens") or () if not token.get("special")]
    before = re.compile("|".join(map(re.escape, plain)) or r"(?!)")
    steps = parts(spec.get("pre_tokenizer"), "pretokenizers")
    if (
        model_type(spec) != "BPE"
        or not {*_types(spec, "normalizer")} <= {"NFC", "NFD", "NFKC", "NFKD"}
        or any(step.get("add_prefix_space") for step in steps)
    ):
        return None, before
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return _ASCII[GPT2_SPLIT], before
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True) and steps[0].get("behavior") == "Isolated":
        return _ASCII.get(str((steps[0].get("pattern") or {}).get("Regex"))), before
    return None, before


def _merges_end_at_spaces(spec: JsonObject) -> bool:
    """Returns True if the model is BPE and none of its merges joins a space to anything before the space."""
    if model_type(spec) != "BPE":
        return False
    return not any(re.search(f"[^{sign}]{sign}", piece) for piece in spec["model"]["vocab"] for sign in (WORD_START, "Ġ", " "))


def _byte_alphabet() -> Mapping[str, int]:
    """Returns character -> byte for the characters with which GPT-2 represents bytes."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()
