"""Groups the pieces of a vocabulary by kind, script, length and names, and counts the parameters of the model by part."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int64, Integer, UInt64

from bert_jax.data.corpus.store import Corpus, open_corpus
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.pretraining import NEVER_TRAINED

READ = 50_000_000
"""The maximum number of tokens of a corpus to read."""
SHORTEST = 3
"""The minimum length of a listed word in characters. Shorter words are seldom technical terms."""
_FEWEST = 5  # the minimum count of a listed word
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # an odd number, so its powers are never 0 modulo 2^64


@dataclasses.dataclass(frozen=True)
class SplitWord:
    """A word that the vocabulary splits into two or more pieces."""

    word: str
    pieces: tuple[str, ...]
    count: int
    """How often the word occurs in the corpus."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """The words of a corpus, counted by how a vocabulary splits them."""

    words: int
    """The number of words read, including single punctuation marks."""
    pieces: int
    """The number of pieces of these words."""
    split: tuple[SplitWord, ...]
    """The words of two or more pieces, most frequent first. They have at least SHORTEST letters and occur at least five
    times."""

    @property
    def pieces_per_word(self) -> float:
        """The mean number of pieces of a word."""
        return self.pieces / max(self.words, 1)


def find_splits(corpus: Corpus, tokenizer: Tokenizer) -> Splits:
    """Returns the split words in the first `READ` tokens of `corpus`, which was built with `tokenizer`. Raises UserError if the
    tokenizer's pieces do not mark continuations with ##, since words cannot be added to such a vocabulary."""
    if tokenizer.vocabulary.kind != "wordpiece":
        raise UserError(f"words cannot be added to a {tokenizer.vocabulary.kind} vocabulary; train a new one on this text")
    words = pieces = 0
    counts = collections.Counter[int]()
    made_of: dict[int, tuple[int, ...]] = {}  # the ids of each word, by its hash
    for shard in corpus.tokens.shards:
        ids = np.asarray(shard[: READ - pieces])
        starts = np.flatnonzero(~tokenizer.continuation_table[ids])  # the positions at which words start
        sizes = np.diff(np.append(starts, len(ids)))
        words, pieces = words + len(starts), pieces + len(ids)
        several = np.flatnonzero(sizes > 1)
        hashes, first, times = np.unique(_hashes(ids, starts, sizes)[several], return_index=True, return_counts=True)
        for key, place, count in zip(hashes.tolist(), several[first].tolist(), times.tolist(), strict=True):
            counts[key] += count
            if key not in made_of:
                made_of[key] = tuple(ids[starts[place] : starts[place] + sizes[place]].tolist())
    listed = []
    for key, count in counts.items():
        names = tuple(tokenizer.pieces[i] for i in made_of[key])
        word = "".join(name.removeprefix("##") for name in names)
        if count >= _FEWEST and len(word) >= SHORTEST and word.isalpha():
            listed.append(SplitWord(word, names, count))
    return Splits(words, pieces, tuple(sorted(listed, key=lambda one: (-one.count, one.word))))


def _hashes(
    ids: Integer[np.ndarray, " T"], starts: Int64[np.ndarray, " W"], sizes: Int64[np.ndarray, " W"]
) -> UInt64[np.ndarray, " W"]:
    """Returns a 64-bit polynomial hash of the ids of each word."""
    begin = len(ids) - int(sizes.sum())  # a shard starts at the start of a word, unless it was cut
    offsets = np.arange(begin, len(ids)) - np.repeat(starts, sizes)
    powers = _MULTIPLIER ** np.arange(sizes.max(initial=0), dtype=np.uint64)
    terms = (ids[begin:].astype(np.uint64) + np.uint64(1)) * powers[offsets]
    return np.add.reduceat(terms, starts - begin)


KINDS = ("reserved", "character", "character inside words", "number", "word", "continuation")
"""Every piece belongs to the first kind that fits. "reserved" is a special token, or a name in brackets such as [CLS].
"character" and "character inside words" are single characters. "number" consists of digits and other numerals. "word" starts a
word and is mostly a whole word, and "continuation" continues a word."""
_RESERVED = re.compile(r"\[[^\[\]]+\]|<[^<>]+>")
_NO_SCRIPTS = {"modifier", "feminine", "masculine", "micro", "superscript", "subscript", "script", "double-struck", "unknown"}
"""The Unicode names of some letters start with one of these words, which do not name a script."""
_SPACE = "\u2581"
"""The mark for a space before a word in SentencePiece and byte-level BPE."""
_PARTS = {
    "attention": "attention", "attention_layer_norm": "attention",
    "feed_forward": "feed-forward", "feed_forward_layer_norm": "feed-forward",
}  # fmt: skip
"""The part to which the arrays of a layer belong."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece of the vocabulary."""

    id: int
    piece: str
    text: str
    """The piece without the mark for a continuation or for a space before the piece."""
    kind: str
    continues: bool
    """Whether the piece continues a word."""
    script: str
    """The result of `letter_script`; "none" for reserved pieces."""
    is_name: bool | None = None
    """Whether the piece is a name. If there is a list of names, a piece is a name if the list contains it. In a cased
    vocabulary without a list, a piece is a name if it starts with a capital and its lowercase form is not a piece. None in an
    uncased vocabulary without a list."""
    count: int | None = None
    """How often the piece occurs in a corpus."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """All pieces of a vocabulary in order, and the parameters of the model."""

    pieces: tuple[Piece, ...]
    parameters: Mapping[str, Mapping[str, int]]
    """The number of parameters, by part and array."""
    corpus_tokens: int | None = None
    """The number of tokens in the corpus in which pieces are counted."""
    splits: Splits | None = None
    """The words of the corpus that the vocabulary splits, if requested."""

    @property
    def num_parameters(self) -> int:
        """The number of all parameters."""
        return sum(sum(arrays.values()) for arrays in self.parameters.values())

    @property
    def unseen(self) -> list[Piece]:
        """The pieces that never occur in the corpus, except the reserved ones."""
        return [piece for piece in self.pieces if piece.count == 0 and piece.kind != "reserved"]


def read_vocabulary(
    model: Model, corpus: str | None = None, names: Collection[str] | None = None, *, with_splits: bool = False
) -> Vocabulary:
    """Returns the vocabulary of `model`. Pieces are counted in the corpus directory `corpus` and looked up in the list `names`.
    If `with_splits` is True, also finds the words of the corpus that the vocabulary splits.

    Raises UserError if the corpus cannot be read, or was built with another vocabulary.
    """
    tokenizer = model.tokenizer
    counts = splits = None
    if corpus is not None:
        opened = open_corpus(pathlib.Path(corpus))
        if opened.vocabulary != tokenizer.vocabulary:
            raise UserError(
                f"--corpus={corpus} has a different vocabulary than {model.source or 'the model'} ({opened.vocabulary.size:,} "
                f"and {counted(tokenizer.size, 'piece')}); name a corpus that was built with --vocab={model.source or 'MODEL'}"
            )
        counts = opened.token_counts
        splits = find_splits(opened, tokenizer) if with_splits else None
    pieces = _with_names([read_piece(tokenizer, i) for i in range(tokenizer.size)], tokenizer, names)
    return Vocabulary(
        pieces=tuple(pieces if counts is None else (dataclasses.replace(p, count=int(counts[p.id])) for p in pieces)),
        parameters=count_parameters(model.params),
        corpus_tokens=None if counts is None else int(counts.sum()),
        splits=splits,
    )


def read_piece(tokenizer: Tokenizer, i: int) -> Piece:
    """Returns piece `i` with its kind and script."""
    piece = tokenizer.pieces[i]
    continues = bool(tokenizer.continuation_table[i])
    reserved = not piece or i in tokenizer.special_ids or tokenizer.is_added(piece) or _RESERVED.fullmatch(piece) is not None
    shown = piece if reserved else tokenizer.tokens([i])[0]
    text = piece if reserved else (shown.removeprefix("##") if continues else shown).removeprefix(_SPACE) or shown
    if reserved:
        kind = "reserved"
    elif len(text) == 1:
        kind = "character inside words" if continues else "character"
    elif text.isnumeric():
        kind = "number"
    else:
        kind = "continuation" if continues else "word"
    return Piece(i, shown, text, kind, continues, "none" if reserved else letter_script(text))


def _with_names(pieces: Sequence[Piece], tokenizer: Tokenizer, names: Collection[str] | None) -> list[Piece]:
    """Returns the pieces with their `is_name`. Names come from the list `names` if it is given, otherwise from capitals."""
    if names is None and tokenizer.vocabulary.lowercase:
        return list(pieces)
    known = {name.casefold() for name in names or ()}
    words = {piece.text for piece in pieces if not piece.continues}

    def is_name(piece: Piece) -> bool:
        text = piece.text
        if piece.kind != "word":  # and the text of other kinds may be empty
            return False
        return text.casefold() in known if names is not None else text[0].isupper() and text.lower() not in words

    return [dataclasses.replace(piece, is_name=is_name(piece)) for piece in pieces]


def letter_script(text: str) -> str:
    """Returns the script of the letters of `text`. The script is the first word of the letters' Unicode names, such as "latin"
    or "cjk". It is "mixed" for letters of several scripts, and "other" for letters that are symbols, such as the micro sign.
    Text without letters is "digits" or "marks" (punctuation and symbols)."""
    letters = [letter for letter in text if unicodedata.category(letter)[0] in "LM"]
    if not letters:
        return "digits" if any(letter.isnumeric() for letter in text) else "marks"
    scripts = {unicodedata.name(letter, "UNKNOWN").split()[0].lower() for letter in letters} - {"combining"}
    if len(scripts) != 1:
        return "mixed" if scripts else "other"
    (script,) = scripts
    return "other" if script in _NO_SCRIPTS else script


def count_parameters(params: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Returns the number of parameters by part, and by array or layer inside the part. Each array of the Transformer layers is
    counted over all layers. The encoder of a user is counted by the names in it. Tables that are never trained are marked as
    fixed."""
    found: dict[str, dict[str, int]] = {part: {} for part in ("embeddings", "attention", "feed-forward")}
    for part, tree in params.items():
        has_layers = part == "encoder" and "layers" in tree
        for name, branch in (tree["layers"] if has_layers else tree).items():
            own = found.setdefault(_PARTS.get(name, name) if has_layers else part, {})
            if has_layers and isinstance(branch, Mapping) and name in ("attention", "feed_forward"):
                own |= {inner: _size(arrays) for inner, arrays in branch.items()}
            else:
                inside = branch if isinstance(branch, Mapping) else {}
                fixed = {inner: x for inner, x in inside.items() if f"{part}/{name}/{inner}" in NEVER_TRAINED}
                own |= {f"{inner} (fixed)": _size(x) for inner, x in fixed.items()}
                shown = f"{name} (fixed)" if f"{part}/{name}" in NEVER_TRAINED else name
                own["layer_norm" if name.endswith("layer_norm") else shown] = _size(branch) - _size(fixed)
    return {part: own for part, own in found.items() if own}


def _size(tree: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


def groups(found: Vocabulary) -> Iterator[tuple[str, str, list[Piece]]]:
    """Yields (property, value, the pieces with this value). The properties are the kind, the script, whether a piece is a name,
    and, if there is a corpus, whether the piece never occurs in the corpus."""
    for kind in KINDS:
        yield "kind", kind, [piece for piece in found.pieces if piece.kind == kind]
    plain = [piece for piece in found.pieces if piece.kind != "reserved"]
    for script, _ in collections.Counter(piece.script for piece in plain).most_common():
        yield "script", script, [piece for piece in plain if piece.script == script]
    if any(piece.is_name is not None for piece in found.pieces):
        yield "name", "yes", [piece for piece in found.pieces if piece.is_name]
    if found.corpus_tokens is not None:
        yield "in the corpus", "never", found.unseen
