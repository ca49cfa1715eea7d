"""Finds the head word, the kind and the traits of mentions from tags, features, parse trees and English pronouns. Also defines
the rules that choose the antecedent of a mention."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence

from bert_jax.errors import UserError
from bert_jax.interface.words import cut

KINDS = ("pronoun", "proper", "common", "other")
"""The kinds of mentions. The kind depends on the part of speech of the head word."""
EVERY_GENDER = frozenset(("masculine", "feminine", "neuter"))


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits in which a mention agrees with its antecedent."""

    number: str = ""
    """"singular", "plural", or "" if unknown."""
    person: str = ""
    """"1", "2", "3", or "" if unknown."""
    genders: frozenset[str] = EVERY_GENDER
    """The possible genders."""

    def agree(self, other: Traits) -> bool:
        """Returns whether the two agree. They do not agree if a trait is known for both and differs."""
        same_number = not (self.number and other.number) or self.number == other.number
        same_person = not (self.person and other.person) or self.person == other.person
        return same_number and same_person and bool(self.genders & other.genders)


@dataclasses.dataclass(frozen=True)
class Mention:
    """Words that refer to an entity."""

    entity: str
    words: tuple[int, ...]
    """The indices of the mention's words in the document, in order. A discontinuous mention has gaps."""
    head: int
    """The index of the mention's head word."""
    kind: str
    """One of KINDS."""
    traits: Traits = Traits()


_PRONOUN_TAGS = {"PRP", "PRP$", "WP", "WP$", "WDT", "DT", "EX"}
_NUMBERS = {"Sing": "singular", "Plur": "plural"}
_GENDERS = {"Masc": "masculine", "Fem": "feminine", "Neut": "neuter"}
_PEOPLE = frozenset(("masculine", "feminine"))
_TYPES_OF_ANY_GENDER = {"", "animal"}


def _row(words: str, number: str, person: str, genders: Collection[str] = EVERY_GENDER) -> dict[str, Traits]:
    return {word: Traits(number, person, frozenset(genders)) for word in words.split()}


PRONOUNS = {
    **_row("i me my mine myself", "singular", "1", _PEOPLE),
    **_row("we us our ours ourselves", "plural", "1", _PEOPLE),
    **_row("you your yours", "", "2", _PEOPLE),
    **_row("yourself", "singular", "2", _PEOPLE),
    **_row("yourselves", "plural", "2", _PEOPLE),
    **_row("he him his himself", "singular", "3", ("masculine",)),
    **_row("she her hers herself", "singular", "3", ("feminine",)),
    **_row("it its itself", "singular", "3", ("neuter",)),
    **_row("they them their theirs themselves 'em", "plural", "3"),
    **_row("this that", "singular", "3", ("neuter",)),
    **_row("these those", "plural", "3"),
    **_row("who whom whose", "", "3", _PEOPLE),
}
"""English pronouns, in lower case."""
_IT = frozenset(("it", "its", "itself"))
_THIRD_PERSON = frozenset(word for word, traits in PRONOUNS.items() if traits.person == "3") - {
    "this", "that", "these", "those", "who", "whom", "whose",
}  # fmt: skip
_OF_ONE_GENDER = {
    **_row("man boy father son brother husband uncle king mr mr. sir lord gentleman guy dad", "", "3", ("masculine",)),
    **_row("woman girl mother daughter sister wife aunt queen mrs mrs. ms ms. lady mom mum", "", "3", ("feminine",)),
}


def mention_kind(upos: str, xpos: str) -> str:
    """Returns the kind, one of KINDS, of a mention whose head word has these tags ("_" for a missing tag)."""
    if upos == "PRON" or (upos in ("DET", "_") and xpos in _PRONOUN_TAGS):
        return "pronoun"
    if upos == "PROPN" or (upos == "_" and xpos in ("NNP", "NNPS")):
        return "proper"
    return "common" if upos == "NOUN" or (upos == "_" and xpos in ("NN", "NNS")) else "other"


def find_traits(words: Sequence[str], head: str, kind: str, tags: tuple[str, str], entity_type: str) -> Traits:
    """Returns the traits of a mention that consists of `words`.

    `tags` is (XPOS, features) of the head word. `entity_type` is the annotated type of the entity, such as "person", or "" if
    no type is annotated.
    """
    xpos, features = tags
    given = dict(feature.partition("=")[::2] for feature in features.split("|"))
    if kind == "pronoun":
        known = PRONOUNS.get(head.lower(), Traits())
    else:  # the first word of a name may be a title, which shows the gender
        known = Traits(person="3", genders=_noun((words[0], head) if kind == "proper" else (head,), entity_type))
    number = _NUMBERS.get(given.get("Number", ""), known.number)
    if kind != "pronoun" and not number:
        number = {"NN": "singular", "NNP": "singular", "NNS": "plural", "NNPS": "plural"}.get(xpos, "")
    gender = _GENDERS.get(given.get("Gender", ""))
    return Traits(number, given.get("Person", known.person), frozenset((gender,)) if gender else known.genders)


def _noun(words: Sequence[str], entity_type: str) -> frozenset[str]:
    """Returns the possible genders of a noun phrase. If some of `words` have only one possible gender, this is the gender of
    the first of them. Otherwise, the genders follow from the annotated type of the entity."""
    for word in words:
        if word.lower() in _OF_ONE_GENDER:
            return _OF_ONE_GENDER[word.lower()].genders
    if entity_type.lower() == "person":
        return _PEOPLE
    return EVERY_GENDER if entity_type.lower() in _TYPES_OF_ANY_GENDER else frozenset(("neuter",))


def pronoun_groups(word: str, kind: str) -> tuple[str, ...]:
    """Returns the groups of English pronouns to which a mention with this head word belongs."""
    if kind != "pronoun" or word.lower() not in _THIRD_PERSON:
        return ()
    return ("he, she, it, they", "it") if word.lower() in _IT else ("he, she, it, they",)


def tree_head(words: Sequence[int], heads: Sequence[int]) -> int:
    """Returns the head word of a mention. This is the word whose syntactic head is outside the mention. If there are several,
    it is the word nearest to the root, or the first of the nearest words.

    `words` has the indices of the mention's words in the sentence. `heads` has the index of the head of every word in the
    sentence, -1 for the root.
    """
    inside = set(words)

    def depth(word: int) -> int:
        path = []
        while word >= 0:
            path.append(word)
            word = heads[word]
        return len(path)

    return min((word for word in words if heads[word] not in inside), key=lambda word: (depth(word), word))


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
    """The constituents and words of the phrase, in order."""


def read_parse(bits: Sequence[str]) -> Phrase | None:
    """Returns the tree of a sentence from its parse column, or None if the column is empty ("-" or "*" everywhere).

    Raises UserError if the brackets in the column do not match.
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
                raise UserError(f"the parse column closes a bracket that is not open, at {cut(text)!r}; correct it")
    if len(path) > 1:
        raise UserError(f"the parse column does not close the bracket of {cut(path[-1].label)}; correct it")
    return top


def find(tree: Phrase, first: int, last: int) -> Phrase:
    """Returns the constituent that covers exactly the words [first, last]. If there are several such constituents, returns the
    outermost. If there is none, returns a new constituent: the parts of the smallest constituent around these words that lie
    within [first, last]."""
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
    """Returns the head word of a constituent. The head of a clause or verb phrase is its first verb or verb phrase, or its last
    part if there is neither. For other constituents, the head is found by the rules of Collins for noun phrases (1999, appendix
    A), except that the noun before a possessive 's is chosen."""
    part: Phrase | int = phrase
    while isinstance(part, Phrase):  # not recursive, since a file may nest deeper than Python's recursion limit
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
    """Returns the head word of the words [first, last] from their tags alone. This is the last noun before a preposition, a
    relative pronoun or a comma. If there is no such noun, it is the last noun. If there is no noun, it is the last word."""
    end = next((i for i in range(first + 1, last + 1) if tags[i] in _BEGIN_MODIFIER), last + 1)
    for words in (range(first, end), range(first, last + 1)):
        nouns = [i for i in words if tags[i].startswith(("NN", "PRP"))]
        if nouns:
            return nouns[-1]
    return last


def is_coordinated(phrase: Phrase, tags: Sequence[str]) -> bool:
    """Returns whether a conjunction joins the parts of a constituent."""
    return any(_label(part, tags) == "CC" for part in phrase.parts)


def _label(part: Phrase | int, tags: Sequence[str]) -> str:
    return tags[part] if isinstance(part, int) else part.label.partition("-")[0]


def _ends(part: Phrase | int) -> tuple[int, int]:
    return (part, part) if isinstance(part, int) else (part.first, part.last)


RULES = ("nearest mention", "same head word", "sieve")
"""Three rules. The first chooses the nearest mention. The second chooses the nearest mention with the same head word, or the
nearest mention if there is none. The third is `sieve`."""


def guesses(mention: Mention, before: Sequence[Mention], words: Sequence[str]) -> tuple[int, ...]:
    """Returns the head word that each of RULES chooses for a mention.

    `before` has the candidates (at least one), the nearest first. `words` are the words of the document.
    """
    same_head = _same_head(mention, words)
    nearest = before[0].head
    return nearest, _first(before, (same_head,)), sieve(mention, before, words)


def sieve(mention: Mention, before: Sequence[Mention], words: Sequence[str]) -> int:
    """Returns the head word of the antecedent that three tests choose, as in Lee et al. 2011. The tests are whether all words
    are the same, whether the head word is the same, and whether number, gender and person agree. The first test that any
    candidate passes decides, and the nearest candidate that passes this test is the antecedent. If no candidate passes a test,
    the nearest candidate is the antecedent."""
    own = _letters(mention, words)
    tests = (
        lambda other: _letters(other, words) == own,
        _same_head(mention, words),
        lambda other: mention.traits.agree(other.traits),
    )
    return _first(before, tests)


def _first(before: Sequence[Mention], tests: Sequence[Callable[[Mention], bool]]) -> int:
    for test in tests:
        for other in before:
            if test(other):
                return other.head
    return before[0].head


def _same_head(mention: Mention, words: Sequence[str]) -> Callable[[Mention], bool]:
    own = words[mention.head].lower()
    return lambda other: words[other.head].lower() == own


def _letters(mention: Mention, words: Sequence[str]) -> list[str]:
    return [words[i].lower() for i in mention.words]
