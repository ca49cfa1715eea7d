"""The head word, the kind and the agreement of mentions, and the rules that use them."""

from __future__ import annotations

import pytest

from bert_jax.analysis.coreference.mentions import (
    EVERY_GENDER,
    PRONOUNS,
    Mention,
    Phrase,
    Traits,
    find,
    find_traits,
    guesses,
    is_coordinated,
    last_noun,
    mention_kind,
    phrase_head,
    pronoun_groups,
    read_parse,
    tree_head,
)

PEOPLE = {"masculine", "feminine"}


@pytest.mark.parametrize(
    ("word", "number", "person", "genders"),
    [
        ("myself", "singular", "1", PEOPLE),
        ("us", "plural", "1", PEOPLE),
        ("you", "", "2", PEOPLE),
        ("his", "singular", "3", {"masculine"}),
        ("hers", "singular", "3", {"feminine"}),
        ("its", "singular", "3", {"neuter"}),
        ("them", "plural", "3", EVERY_GENDER),
        ("whose", "", "3", PEOPLE),
    ],
)
def test_a_pronoun_has_its_number_person_and_genders(word: str, number: str, person: str, genders: set[str]):
    assert PRONOUNS[word] == Traits(number, person, frozenset(genders))
    assert find_traits([word], word.title(), "pronoun", ("PRP", "_"), "person") == PRONOUNS[word]


@pytest.mark.parametrize(
    ("words", "head", "kind", "tags", "entity_type", "traits"),
    [
        (["the", "house"], "house", "common", ("NN", "_"), "", Traits("singular", "3")),
        (["Paris"], "Paris", "proper", ("NNP", "_"), "place", Traits("singular", "3", frozenset({"neuter"}))),
        (["Alps"], "Alps", "proper", ("NNPS", "_"), "Animal", Traits("plural", "3")),
        (["houses"], "houses", "common", ("NNS", "_"), "PERSON", Traits("plural", "3", frozenset(PEOPLE))),
        (["two"], "two", "other", ("CD", "Number=Plur"), "", Traits("plural", "3")),
        (
            ["sheep"],
            "sheep",
            "common",
            ("NN", "Case=Nom|Number=Plur|Gender=Fem"),
            "",
            Traits("plural", "3", frozenset({"feminine"})),
        ),
        (["Lady", "Ada"], "Ada", "proper", ("NNP", "_"), "person", Traits("singular", "3", frozenset({"feminine"}))),
        (["his", "mother"], "Mother", "common", ("NN", "_"), "person", Traits("singular", "3", frozenset({"feminine"}))),
        (["mr", "house"], "house", "common", ("NN", "_"), "", Traits("singular", "3")),  # a title counts only in names
        (["qui"], "qui", "pronoun", ("NN", "_"), "", Traits()),
        (["nous"], "nous", "pronoun", ("_", "Person=1|Number=Plur"), "", Traits("plural", "1")),
    ],
)
def test_agreement_comes_from_features_then_words_then_types(words, head, kind, tags, entity_type, traits):
    assert find_traits(words, head, kind, tags, entity_type) == traits


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (Traits("singular"), Traits("plural"), False),
        (Traits("singular"), Traits("singular"), True),
        (Traits("singular"), Traits(), True),
        (Traits("", "1"), Traits("", "3"), False),
        (Traits("", "1"), Traits("", "1"), True),
        (Traits("", "1"), Traits(), True),
        (Traits(genders=frozenset({"neuter"})), Traits(genders=frozenset(PEOPLE)), False),
        (Traits(genders=frozenset({"feminine"})), Traits(genders=frozenset(PEOPLE)), True),
    ],
)
def test_mentions_agree_unless_a_known_trait_differs(one: Traits, other: Traits, agree: bool):
    assert (one.agree(other), other.agree(one)) == (agree, agree)


def test_the_kind_follows_the_universal_tag_or_else_the_other_tag():
    kinds = {
        "pronoun": [("PRON", "_"), ("PRON", "NN"), ("DET", "WDT"), ("_", "PRP")],
        "proper": [("PROPN", "_"), ("_", "NNP"), ("_", "NNPS")],
        "common": [("NOUN", "_"), ("NOUN", "PRP"), ("_", "NN"), ("_", "NNS")],
        "other": [("VERB", "PRP"), ("DET", "JJ"), ("X", "NNP"), ("X", "NN"), ("_", "VB"), ("_", "_")],
    }
    assert {kind: [mention_kind(*tags) for tags in some] for kind, some in kinds.items()} == {
        kind: [kind] * len(some) for kind, some in kinds.items()
    }


def test_the_third_person_and_it_are_groups_of_pronouns():
    assert pronoun_groups("Its", "pronoun") == ("he, she, it, they", "it")
    assert pronoun_groups("They", "pronoun") == ("he, she, it, they",)
    for word, kind in (("you", "pronoun"), ("this", "pronoun"), ("who", "pronoun"), ("it", "common")):
        assert pronoun_groups(word, kind) == ()


@pytest.mark.parametrize(
    ("words", "heads", "head"),
    [
        ((1, 2), (-1, 2, 0), 2),  # the word whose head is not one of the words
        ((1, 2), (3, 0, 4, 4, -1), 2),  # of two such words, the one nearer to the root
        ((2, 3), (-1, 0, 1, 0), 3),
        ((1, 2), (-1, 0, 0), 1),  # of two words at the same depth, the first
        ((0,), (-1, 0), 0),
    ],
)
def test_the_head_of_words_in_a_tree_is_the_nearest_to_the_root(words, heads, head):
    assert tree_head(words, heads) == head


def mention(entity: str, *words: int, traits: Traits = Traits(), head: int | None = None) -> Mention:  # noqa: B008
    return Mention(entity, words, words[-1] if head is None else head, "common", traits)


def test_a_rule_takes_the_nearest_match_and_the_sieve_the_first_test_with_a_match():
    words = ["The", "old", "king", "the", "king", "a", "man", "She", "the", "King", "sat"]
    plural, man, she = (
        Traits("plural"),
        Traits("singular", "3", frozenset({"masculine"})),
        Traits("singular", "3", frozenset({"feminine"})),
    )
    first, king, someone, her = (
        mention("1", 0, 1, 2),
        mention("2", 3, 4),
        mention("3", 5, 6, traits=man),
        mention("4", 7, traits=plural),
    )
    own = mention("2", 8, 9, traits=man)
    assert guesses(own, [her, someone, first, king], words) == (7, 2, 4)  # the same words win over the same head word
    assert guesses(own, [her, someone, first], words) == (7, 2, 2)
    assert guesses(own, [her, someone], words) == (7, 7, 6)
    assert guesses(mention("5", 9, traits=she), [someone, her], words) == (6, 6, 6)


# ------------------------------------------------------------------------------------------------------------------------ phrases


def test_a_parse_is_the_tree_of_its_brackets():
    assert read_parse(["(S(NP-SBJ*", "*)", "(VP*))"]) == Phrase(
        "", 0, 2, [Phrase("S", 0, 2, [Phrase("NP-SBJ", 0, 1, [0, 1]), Phrase("VP", 2, 2, [2])])]
    )


def head_of(bits: str, tags: str) -> int:
    tree = read_parse(bits.split())
    assert tree is not None
    return phrase_head(find(tree, 0, len(tags.split()) - 1), tags.split())


@pytest.mark.parametrize(
    ("bits", "tags", "head"),
    [
        ("(NP* * * *)", "NN DT NNS RB", 2),  # the last noun
        ("(NP-SBJ(NP* *) (PP* *) (NP*))", "DT RB IN IN DT", 1),  # the last word of the first noun phrase
        ("(NP* (ADJP*) * (PRN*) *)", "DT RB CD RB CD", 3),  # the last of ADJP, PRN and $, before a number
        ("(NP* * * *)", "DT CD CD JJ", 2),
        ("(NP* * * *)", "DT JJ JJS DT", 2),
        ("(NP* * *)", "DT DT UH", 2),
        ("(NP* *)", "DT .", 0),  # but no punctuation
        ("(NP* *)", ", .", 1),
        ("(S(NP*) (VP* *))", "NN VBD NN", 1),
        ("(SINV* * *)", "VBD NN UH", 0),
        ("(S* *)", "NN UH", 1),  # a clause without a verb
    ],
)
def test_the_head_of_a_phrase_follows_collins_rules(bits: str, tags: str, head: int):
    assert head_of(bits, tags) == head


def test_words_that_are_not_a_constituent_split_into_parts_of_a_larger_one():
    tree = read_parse(["(S(NP(NP*", "*)", "(PP*", "*))", "(VP*", "*", "*)", "*)"])
    assert tree is not None
    verb = Phrase("VP", 4, 6, [4, 5, 6])
    assert find(tree, 4, 7) == Phrase("NP", 4, 7, [verb, 7])
    assert find(tree, 2, 7) == Phrase("NP", 2, 7, [verb, 7])
    assert find(tree, 3, 6) == Phrase("NP", 3, 6, [verb])
    assert find(tree, 3, 5) == Phrase("NP", 3, 5, [])
    assert phrase_head(find(tree, 3, 5), ["DT"] * 8) == 5
    assert find(tree, 2, 3) == Phrase("PP", 2, 3, [2, 3])
    assert find(tree, 5, 6) == Phrase("NP", 5, 6, [5, 6])


@pytest.mark.parametrize(
    ("tags", "first", "last", "head"),
    [
        ("NNP , NN", 0, 2, 0),
        ("NN NN NN", 0, 2, 2),
        (", NN IN NNP", 1, 3, 1),
        ("NN IN NNP", 0, 2, 0),
        ("NN NN", 0, 0, 0),
        ("DT NN NN", 0, 1, 1),
        ("DT IN NN NN", 0, 2, 2),  # no noun before the preposition
        ("DT IN NN DT", 0, 3, 2),
        ("IN NN", 0, 1, 1),  # a preposition at the beginning does not end the phrase
        ("DT RB", 0, 1, 1),
    ],
)
def test_without_a_parse_the_head_is_the_last_noun_before_its_modifier(tags: str, first: int, last: int, head: int):
    assert last_noun(first, last, tags.split()) == head


def test_a_phrase_is_coordinated_by_a_conjunction_among_its_own_parts():
    tags = ["NN", "CC", "NN"]
    for bits, coordinated in (("(NP* * *)", True), ("(NP(NP* * *))", False), ("(NP* (X*) *)", False)):
        tree = read_parse(bits.split())
        assert tree is not None
        assert isinstance(tree.parts[0], Phrase)
        assert is_coordinated(tree.parts[0], tags) == coordinated
