"""The head word, the kind and the agreement of a mention, by tags, morphological features and English pronouns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bert_jax.analysis.coreference.mentions import EVERY_GENDER, Traits

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
"""English pronouns, in small letters."""
_IT = frozenset(("it", "its", "itself"))
_THIRD_PERSON = frozenset(word for word, traits in PRONOUNS.items() if traits.person == "3") - {
    "this", "that", "these", "those", "who", "whom", "whose",
}  # fmt: skip
_OF_ONE_GENDER = {
    **_row("man boy father son brother husband uncle king mr mr. sir lord gentleman guy dad", "", "3", ("masculine",)),
    **_row("woman girl mother daughter sister wife aunt queen mrs mrs. ms ms. lady mom mum", "", "3", ("feminine",)),
}


def kind_of(upos: str, xpos: str) -> str:
    """The kind of a mention with a head word of these tags ("_" where there is none): one of KINDS."""
    if upos == "PRON" or (upos in ("DET", "_") and xpos in _PRONOUN_TAGS):
        return "pronoun"
    if upos == "PROPN" or (upos == "_" and xpos in ("NNP", "NNPS")):
        return "proper"
    return "common" if upos == "NOUN" or (upos == "_" and xpos in ("NN", "NNS")) else "other"


def traits_of(words: Sequence[str], head: str, kind: str, tags: tuple[str, str], entity_type: str) -> Traits:
    """The traits of a mention of these words.

    tags: (XPOS, features) of its head word. entity_type: as annotated, such as "person"; "" where it is not.
    """
    xpos, features = tags
    given = dict(feature.partition("=")[::2] for feature in features.split("|"))
    if kind == "pronoun":
        known = PRONOUNS.get(head.lower(), Traits())
    else:  # a title says the gender of a name
        known = Traits(person="3", genders=_noun((words[0], head) if kind == "proper" else (head,), entity_type))
    number = _NUMBERS.get(given.get("Number", ""), known.number)
    if kind != "pronoun" and not number:
        number = {"NN": "singular", "NNP": "singular", "NNS": "plural", "NNPS": "plural"}.get(xpos, "")
    gender = _GENDERS.get(given.get("Gender", ""))
    return Traits(number, given.get("Person", known.person), frozenset((gender,)) if gender else known.genders)


def _noun(words: Sequence[str], entity_type: str) -> frozenset[str]:
    """The genders that a noun phrase may have: by one of these words, else by its annotated type."""
    for word in words:
        if word.lower() in _OF_ONE_GENDER:
            return _OF_ONE_GENDER[word.lower()].genders
    if entity_type.lower() == "person":
        return _PEOPLE
    return EVERY_GENDER if entity_type.lower() in _TYPES_OF_ANY_GENDER else frozenset(("neuter",))


def pronoun_groups(word: str, kind: str) -> tuple[str, ...]:
    """The groups of English pronouns that a mention with this head word is of."""
    if kind != "pronoun" or word.lower() not in _THIRD_PERSON:
        return ()
    return ("he, she, it, they", "it") if word.lower() in _IT else ("he, she, it, they",)


def tree_head(words: Sequence[int], heads: Sequence[int]) -> int:
    """The word of a mention whose head is outside the mention; of several the nearest to the root, then the first.

    words: their numbers in the sentence. heads: for each word of the sentence the number of its head, -1 for the root.
    """
    inside = set(words)

    def depth(word: int) -> int:
        path = []
        while word >= 0:
            path.append(word)
            word = heads[word]
        return len(path)

    return min((word for word in words if heads[word] not in inside), key=lambda word: (depth(word), word))
