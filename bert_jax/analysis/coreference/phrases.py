"""The parse column of CoNLL-2012 -> constituents and their head words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.interface.words import cut

_BITS = re.compile(r"(\()([^()*\s]*)|(\*)|\)")
_NOUNS = ("NN", "NNP", "NNS", "NNPS", "NX", "NML", "PRP", "JJR")
_TURNS = (("ADJP", "PRN", "$"), ("CD",), ("JJ", "JJS", "RB", "QP"))
_BEGIN_MODIFIER = {"IN", "WDT", "WP", "WP$", ",", ":", "-LRB-"}


@dataclasses.dataclass
class Phrase:
    """A constituent: the words [first, last] of a sentence."""

    label: str
    first: int
    last: int
    parts: list[Phrase | int] = dataclasses.field(default_factory=list)
    """Its constituents and words, in order."""


def read_parse(bits: Sequence[str]) -> Phrase | None:
    """The sentence's tree from the parse column; None where the column is empty ("-" or "*" everywhere).

    Raises UserError where its brackets do not match.
    """
    if not any("(" in text for text in bits):
        return None
    top = Phrase("", 0, len(bits) - 1)
    path = [top]
    for i, text in enumerate(bits):
        for opens, label, word in _BITS.findall(text):
            if word:
                path[-1].parts.append(i)
            elif opens:
                path[-1].parts.append(phrase := Phrase(label, i, i))
                path.append(phrase)
            elif len(path) > 1:
                path.pop().last = i
            else:
                raise UserError(f"the parse column closes more brackets than it opens, at {cut(text)!r}; correct it")
    if len(path) > 1:
        raise UserError(f"the parse column does not close ({cut(path[-1].label)}; correct it")
    return top


def find(tree: Phrase, first: int, last: int) -> Phrase:
    """The constituents of the words [first, last]: the smallest that has exactly them; else the parts of a larger one that lie
    in them, as one."""
    while True:
        inner = [part for part in tree.parts if isinstance(part, Phrase) and part.first <= first and part.last >= last]
        if not inner or (tree.first, tree.last) == (first, last):
            break
        tree = inner[0]
    if (tree.first, tree.last) == (first, last):
        return tree
    inside = [part for part in tree.parts if _ends(part)[0] >= first and _ends(part)[1] <= last]
    return Phrase("NP", first, last, inside)


def phrase_head(phrase: Phrase, tags: Sequence[str]) -> int:
    """The head word of a constituent: Collins' (1999, appendix A) rules for noun phrases, but the noun before a possessive 's;
    of others the first verb or verb phrase, else the last word."""
    part: Phrase | int = phrase
    while isinstance(part, Phrase):  # no recursion: a file may nest deeper than Python does
        part = _head_part(part, tags)
    return part


def _head_part(phrase: Phrase, tags: Sequence[str]) -> Phrase | int:
    parts = [part for part in phrase.parts if _label(part, tags) not in ("POS", "''", ".", ",")] or phrase.parts
    if not parts:
        return phrase.last
    labels = [_label(part, tags) for part in parts]
    if phrase.label.startswith(("S", "V")):
        return next((p for p, name in zip(parts, labels, strict=True) if name.startswith("V")), parts[-1])
    turns = [(labels[::-1], parts[::-1], _NOUNS), (labels, parts, ("NP",))]
    turns += [(labels[::-1], parts[::-1], turn) for turn in _TURNS]
    for names, ordered, wanted in turns:
        for name, part in zip(names, ordered, strict=True):
            if name in wanted:
                return part
    return parts[-1]


def last_noun(first: int, last: int, tags: Sequence[str]) -> int:
    """The head word of the words [first, last] by their tags alone: the last noun before a preposition, a relative pronoun or a
    comma; else the last noun; else the last word."""
    end = next((i for i in range(first + 1, last + 1) if tags[i] in _BEGIN_MODIFIER), last + 1)
    for words in (range(first, end), range(first, last + 1)):
        nouns = [i for i in words if tags[i].startswith(("NN", "PRP"))]
        if nouns:
            return nouns[-1]
    return last


def is_coordinated(phrase: Phrase, tags: Sequence[str]) -> bool:
    """Whether a conjunction joins the parts of a constituent."""
    return any(_label(part, tags) == "CC" for part in phrase.parts)


def _label(part: Phrase | int, tags: Sequence[str]) -> str:
    return tags[part] if isinstance(part, int) else part.label.partition("-")[0]


def _ends(part: Phrase | int) -> tuple[int, int]:
    return (part, part) if isinstance(part, int) else (part.first, part.last)
