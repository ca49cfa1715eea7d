"""Computes precision, recall and F1 over the entities in tag sequences, as conlleval and seqeval (default mode) do.

A tag is O, or B-, I-, E- or S- and a type. The schemes are

    IOB1   I, but B on the first word of an entity directly after an entity of the same type (CoNLL-2003 as released)
    IOB2   B on the first word of every entity, I on the others (also called BIO)
    IOE1   I, but E on the last word of an entity directly before an entity of the same type
    IOE2   E on the last word of every entity, I on the others
    BIOES  B on the first, E on the last and I on the words between, S on an entity of one word

The function `entities` reads all schemes. It finds the same entities as conlleval in any tag sequence, valid or not. Tags that
conlleval.pl does not know (S, and E together with B) are read as in seqeval. `as_tags` renames the tags of schemes that use
other letters than BIOES (BILOU, BMES, BMEWO) or another format (PER-B, B_PER, b-per).

seqeval gives the same scores (the tests compare both). seqeval is not used, because it returns no entities and does not convert
between schemes, so most of this module would still be needed. The last release of seqeval is from 2020 and has no wheel.
seqeval also needs scikit-learn, takes five times as long, and only warns about labels that are not tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SCHEMES = ("IOB1", "IOB2", "IOE1", "IOE2", "BIOES")

Entity = tuple[str, int, int]
"""(type, index of the first word, index of the last word)."""


def is_tag(label: str) -> bool:
    """Returns whether a label is a tag. A tag is O, or B, I, E or S, usually with a type, e.g. B-PER."""
    prefix, hyphen, kind = label.partition("-")
    return label == "O" or (prefix in ("B", "I", "E", "S") and bool(kind) == bool(hyphen))


_OTHER_LETTERS = {"L": "E", "U": "S", "W": "S", "M": "I"}
"""The letters of BILOU (last, unit), BMEWO (whole) and BMES (middle) mapped to BIOES."""
_LETTERS = ("BIES", "BILU", "BMES", "BIEW", "BMEW")
"""The letters of each scheme. The tags of a data set must use the letters of one scheme."""
_FORMS = (
    re.compile(r"(?P<letter>[BIELMSUW])(?P<sign>[-_:/.])(?P<kind>.+)"),
    re.compile(r"\A(?P<kind>.+)(?P<sign>[-_:/.])(?P<letter>[BIELMSUW])"),
    re.compile(r"(?P<letter>[bielmsuw])(?P<sign>[-_:/.])(?P<kind>.+)"),
    re.compile(r"\A(?P<kind>.+)(?P<sign>[-_:/.])(?P<letter>[bielmsuw])"),
    re.compile(r"(?P<letter>[BIELMSUW])(?P<sign>)(?P<kind>)"),
)


def as_tags(labels: Iterable[str]) -> dict[str, str]:
    """Maps the labels of a data set to equivalent tags. Returns {} if the labels do not follow a single scheme.

    Labels that are already tags do not change. Single letters are read as tags without types (Chinese word segmentation uses
    B, M, E and S) only if there is a B and an end (E or L), because other data sets use single letters as ordinary labels."""
    given = list(dict.fromkeys(labels))
    if all(map(is_tag, given)):
        return {label: label for label in given}
    inside = [label for label in given if label not in ("O", "o")]
    for form in _FORMS if inside else ():
        found = [match for label in inside if (match := form.fullmatch(label))]
        letters = {match["letter"].upper() for match in found}
        if len(found) < len(inside) or len({match["sign"] for match in found}) > 1:
            continue
        has_type, is_upper = bool(found[0]["kind"]), found[0]["letter"].isupper()
        is_clear = ("B" in letters and letters & {"E", "L"}) if not has_type else letters & {"B", "I"} or len(inside) < len(given)
        if is_clear and (is_upper or len(inside) < len(given)) and any(letters <= set(known) for known in _LETTERS):
            tags = {"O": "O", "o": "O"}
            for match in found:
                letter = match["letter"].upper()
                tags[match.string] = "-".join(filter(None, (_OTHER_LETTERS.get(letter, letter), match["kind"])))
            return {label: tags[label] for label in given}
    return {}


def looks_like_tags(labels: Iterable[str]) -> bool:
    """Returns whether labels look like tags. Some labels must have a scheme letter and a type, and there must be O, or both B
    and I."""
    given = set(labels)
    for form in _FORMS[:4]:
        letters = {match["letter"].upper() for label in given if (match := form.fullmatch(label))}
        if letters and ("O" in given or letters >= {"B", "I"}):
            return True
    return False


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence, in order. B and S always start an entity, and E and S always end an entity. I and E
    continue the entity of the previous word if it has not ended and has the same type. Otherwise, I and E start an entity.
    Raises ValueError for a label that is not a tag."""
    found: list[Entity] = []
    ended = True
    for i, tag in enumerate(tags):
        if not is_tag(tag):
            raise ValueError(f"{tag!r} is not a tag; tags are O, and B-, I-, E- or S- with a type")
        prefix, _, kind = tag.partition("-")
        if prefix == "O":
            ended = True
            continue
        if prefix in "BS" or ended or found[-1][0] != kind:
            found.append((kind, i, i))
        else:
            found[-1] = (kind, found[-1][1], i)
        ended = prefix in "ES"
    return found


def entity_tags(found: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence with `length` words and these entities. Raises ValueError if entities overlap or exceed
    the sentence, or if the scheme is unknown."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; the schemes are {', '.join(SCHEMES)}")
    tags = ["O"] * length
    before: Entity | None = None
    for entity in sorted(found, key=lambda e: e[1]):
        kind, first, last = entity
        if not (before[2] if before else -1) < first <= last < length:
            raise ValueError(f"entity {entity} overlaps the entity {before}, or ends after the {length} words of the sentence")
        touches = before is not None and before[0] == kind and before[2] == first - 1
        inside = f"-{kind}" if kind else ""
        tags[first : last + 1] = [f"I{inside}"] * (last - first + 1)
        if scheme in ("IOB2", "BIOES") or (scheme == "IOB1" and touches):
            tags[first] = f"B{inside}"
        if scheme in ("IOE2", "BIOES"):
            tags[last] = f"E{inside}" if scheme == "IOE2" or first < last else f"S{inside}"
        if scheme == "IOE1" and touches:
            tags[first - 1] = f"E{inside}"
        before = entity
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Converts tags to another scheme. The result has the same entities and is always valid."""
    return entity_tags(entities(tags), len(tags), scheme)


@dataclass(frozen=True)
class EntityScore:
    """Counts of entities. An entity is correct if its type, first word and last word are correct. Scores are fractions, or 0 if
    they are undefined."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """The fraction of the predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The fraction of the gold entities that are found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0


def entity_scores(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> tuple[EntityScore, dict[str, EntityScore]]:
    """Returns the overall score, and the scores of all types in predictions or labels, in alphabetical order.

    predictions, labels: the tags of every sentence. The two may use different schemes. No entity crosses the end of a sentence.
    Raises ValueError if predictions and labels differ in the number of sentences or words.
    """
    if len(predictions) != len(labels):
        raise ValueError(f"there are predictions for {len(predictions)} sentences, but labels for {len(labels)}")
    correct, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for i, (own, true) in enumerate(zip(predictions, labels, strict=True)):
        if len(own) != len(true):
            raise ValueError(f"sentence {i} has {len(own)} predictions and {len(true)} labels")
        ours, theirs = set(entities(own)), set(entities(true))
        for counter, found in ((correct, ours & theirs), (predicted, ours), (gold, theirs)):
            counter.update(kind for kind, _, _ in found)
    types = {kind: EntityScore(correct[kind], predicted[kind], gold[kind]) for kind in sorted(predicted | gold)}
    return EntityScore(correct.total(), predicted.total(), gold.total()), types
