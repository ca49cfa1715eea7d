from __future__ import annotations

import json
import pathlib
import random
from collections import Counter

import pytest

from bert_jax.tasks.entity_scores import SCHEMES, EntityScore, as_tags, convert, entities, entity_scores, entity_tags, is_tag

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "scores_golden.json").read_text())["tags"]
TYPES = ("PER", "LOC")

# PER PER | PER | O | LOC | PER | O | PER PER PER
SENTENCE = [("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4), ("PER", 5, 5), ("PER", 7, 9)]
WRITTEN = {
    "IOB1": "I-PER I-PER B-PER O I-LOC I-PER O I-PER I-PER I-PER",
    "IOB2": "B-PER I-PER B-PER O B-LOC B-PER O B-PER I-PER I-PER",
    "IOE1": "I-PER E-PER I-PER O I-LOC I-PER O I-PER I-PER I-PER",
    "IOE2": "I-PER E-PER E-PER O E-LOC E-PER O I-PER I-PER E-PER",
    "BIOES": "B-PER E-PER S-PER O S-LOC S-PER O B-PER I-PER E-PER",
}


def spread(draw: random.Random) -> tuple[list[tuple[str, int, int]], int]:
    """Returns entities with and without gaps, and the length of their sentence."""
    found, i = [], 0
    for _ in range(draw.randint(0, 5)):
        first = i + draw.choice((0, 0, 1, 2))
        last = first + draw.choice((0, 0, 1, 2))
        found.append((draw.choice(TYPES), first, last))
        i = last + 1
    return found, i + draw.choice((0, 1))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_written_by_its_definition(scheme):
    assert entity_tags(SENTENCE, 10, scheme) == WRITTEN[scheme].split()
    assert entities(WRITTEN[scheme].split()) == SENTENCE
    assert {other: convert(WRITTEN[scheme].split(), other) for other in SCHEMES} == {o: w.split() for o, w in WRITTEN.items()}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_survives_a_round_trip(scheme):
    draw = random.Random(0)
    for _ in range(500):
        found, length = spread(draw)
        tags = entity_tags(found, length, scheme)
        assert len(tags) == length
        assert entities(tags) == found
        assert entity_tags(reversed(found), length, scheme) == tags


def test_entities_of_any_tags_equal_seqeval():
    assert any(kind == "GEO-POL" for case in GOLDEN for own in case["entities"] for kind, *_ in own)
    for case in GOLDEN:
        assert [entities(tags) for tags in case["labels"]] == [[tuple(e) for e in own] for own in case["entities"]]


def test_scores_equal_seqeval():
    for case in GOLDEN:
        overall, types = entity_scores(case["predictions"], case["labels"])
        for score, row in ((overall, case["overall"]), *((types[kind], row) for kind, row in case["types"].items())):
            assert [score.precision, score.recall, score.f1, score.gold] == pytest.approx(row, abs=1e-12)
        assert list(types) == sorted(case["types"])


def conlleval(said: list[str], true: list[str]) -> tuple[Counter, Counter, Counter]:
    """Counts (correct, predicted, gold) by type as conlleval.pl does: word after word, in one pass over both columns, with its
    tables for B, I, E and O; an O in both columns separates sentences."""

    def ends(p: str, p_type: str, t: str, t_type: str) -> bool:
        return p + t in {"BB", "BO", "IB", "IO", "EE", "EI", "EO"} or (p != "O" and p_type != t_type)

    def begins(p: str, p_type: str, t: str, t_type: str) -> bool:
        return p + t in {"BB", "IB", "OB", "OI", "EE", "EI", "OE"} or (t != "O" and p_type != t_type)

    correct, predicted, gold = Counter(), Counter(), Counter()
    running = False
    before = (("O", ""), ("O", ""))
    for pair in zip([*said, "O"], [*true, "O"], strict=True):
        now = tuple((tag[0], tag[2:]) for tag in pair)
        (own, own_before), (other, other_before) = zip(now, before, strict=True)
        ended = [ends(*own_before, *own), ends(*other_before, *other)]
        begun = [begins(*own_before, *own), begins(*other_before, *other)]
        if running and all(ended) and own_before[1] == other_before[1]:
            correct[other_before[1]] += 1
            running = False
        elif ended[0] != ended[1] or own[1] != other[1]:
            running = False
        running |= all(begun) and own[1] == other[1]
        predicted[own[1]] += begun[0]
        gold[other[1]] += begun[1]
        before = now
    return correct, predicted, gold


@pytest.mark.parametrize("prefixes", ["BI", "IE"])
def test_scores_equal_conlleval_for_any_tags(prefixes):
    draw = random.Random(1)
    names = ["O", "O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in TYPES)]
    for _ in range(400):
        true = [draw.choices(names, k=draw.randint(0, 8)) for _ in range(3)]
        said = [[tag if draw.random() < 0.7 else draw.choice(names) for tag in sentence] for sentence in true]
        columns = ([tag for sentence in part for tag in [*sentence, "O"]] for part in (said, true))
        correct, predicted, gold = conlleval(*columns)
        overall, types = entity_scores(said, true)
        assert overall == EntityScore(correct.total(), predicted.total(), gold.total())
        met = [kind for kind in TYPES if predicted[kind] + gold[kind]]
        assert types == {kind: EntityScore(correct[kind], predicted[kind], gold[kind]) for kind in met}


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("I-PER I-PER O I-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),  # without a B, I begins it
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),  # another type begins
        ("O E-PER E-PER", [("PER", 1, 1), ("PER", 2, 2)]),
        ("B-PER B-PER E-PER I-PER", [("PER", 0, 0), ("PER", 1, 2), ("PER", 3, 3)]),
        ("S-PER I-PER S-PER", [("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 2)]),
        ("B I O S", [("", 0, 1), ("", 3, 3)]),  # of one kind only, without types
        ("", []),
    ],
)
def test_broken_rules_are_read_as_conlleval_reads_them(tags, found):
    assert entities(tags.split()) == found
    for scheme in SCHEMES:
        assert entities(convert(tags.split(), scheme)) == found


def test_scores_equal_counts_by_hand():
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG"]]
    said = [["S-PER", "O", "O", "S-LOC"], ["S-PER"]]  # another scheme; PER is too short, LOC is right, ORG is labelled PER
    overall, types = entity_scores(said, labels)
    assert overall == EntityScore(correct=1, predicted=3, gold=3)
    assert (overall.precision, overall.recall, overall.f1) == (1 / 3, 1 / 3, 1 / 3)
    assert types == {"LOC": EntityScore(1, 1, 1), "ORG": EntityScore(0, 0, 1), "PER": EntityScore(0, 2, 1)}
    assert (types["ORG"].precision, types["ORG"].recall, types["ORG"].f1) == (0.0, 0.0, 0.0)
    nothing, none = entity_scores([["O"]], [["O"]])
    assert (nothing.precision, nothing.recall, nothing.f1, none) == (0.0, 0.0, 0.0, {})


def test_an_entity_ends_with_its_sentence():
    separate, _ = entity_scores([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]])
    assert separate == EntityScore(2, 2, 2)


def test_only_valid_tags_are_accepted():
    for label in ("O", "B-PER", "I-GEO-POL", "E-x", "S-x", "B"):
        assert is_tag(label)
    for label in ("", "NOUN", "X-PER", "B-", "-PER", "b-PER", "BI-PER", "OB", "O-PER", "LABEL_0"):
        assert not is_tag(label)
        with pytest.raises(ValueError, match="is not a tag"):
            entities(["O", label])


@pytest.mark.parametrize(
    "written",
    [
        "B-PER L-PER U-PER O U-LOC U-PER O B-PER I-PER L-PER",  # BILOU
        "B-PER E-PER W-PER O W-LOC W-PER O B-PER M-PER E-PER",  # BMEWO
        "B-PER E-PER S-PER O S-LOC S-PER O B-PER M-PER E-PER",  # BMES
        "PER-B PER-I PER-B O LOC-B PER-B O PER-B PER-I PER-I",
        "PER_B PER_L PER_U O LOC_U PER_U O PER_B PER_I PER_L",
        "B_PER I_PER B_PER O B_LOC B_PER O B_PER I_PER I_PER",
        "b-PER i-PER b-PER o b-LOC b-PER o b-PER i-PER i-PER",
    ],
)
def test_tags_of_other_schemes_are_renamed(written: str):
    tags = as_tags(written.split())
    assert entities([tags[tag] for tag in written.split()]) == SENTENCE


def test_tags_may_lack_types_and_other_letters_are_not_tags():
    assert as_tags("BMES") == {"B": "B", "M": "I", "E": "E", "S": "S"}
    assert as_tags(["B-X", "I-X"]) == {"B-X": "B-X", "I-X": "I-X"}
    for labels in (
        ["S", "M", "L"],
        ["NN", "VB"],
        ["B-X", "L-X", "E-X"],
        ["B-X", "X-I", "O"],
        ["B-X", "B_X", "L-X"],
        ["s-x", "b-y"],
        ["o"],
    ):
        assert as_tags(labels) == {}


def test_numbers_of_sentences_must_match():
    with pytest.raises(ValueError, match="2 sentences, but labels for 1"):
        entity_scores([["O"], ["O"]], [["O"]])
    with pytest.raises(ValueError, match="sentence 1 has 2 predictions and 1 labels"):
        entity_scores([["O"], ["O", "O"]], [["O"], ["O"]])


@pytest.mark.parametrize("found", [[("PER", 0, 2), ("LOC", 2, 3)], [("PER", 3, 4)], [("PER", -1, 0)], [("PER", 2, 1)]])
def test_entities_that_do_not_fit_have_no_tags(found):
    with pytest.raises(ValueError, match="overlaps"):
        entity_tags(found, 4, "IOB2")


def test_an_unknown_scheme_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'BILOU'; the schemes are IOB1, "):
        entity_tags([], 1, "BILOU")
