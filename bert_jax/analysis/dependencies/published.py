"""The heads of BERT-Base as Clark et al. published them, and what their relations are called in Universal Dependencies.

The figures are those that the notebook of their code prints for table 1 of the paper (arXiv:1906.04341; Syntax_Analysis.ipynb of
github.com/clarkkev/attention-analysis), for the development set of the Penn Treebank in Stanford Dependencies, with heads counted
from 1 as in the paper. Head and offset were chosen on the sentences that they are reported on. Their "all" counts punctuation and
roots as well, and in "poss" a possessive noun is predicted by its "'s".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

from bert_jax.analysis.dependencies.measure import DIRECTIONS, WHOLE, Best, DependencyScores

TABLE = """
all 0 34.7 26.7 +1 7-6 >
prep 3760 66.7 61.8 -1 7-4 >
pobj 3720 76.3 34.6 -2 9-6 <
det 3337 94.3 51.7 +1 8-11 >
nn 3192 70.4 70.2 +1 4-10 >
nsubj 2804 58.5 45.5 +1 8-2 >
amod 2505 75.6 68.3 +1 4-10 >
dobj 1591 86.8 40.0 -2 8-10 >
advmod 1241 48.8 40.2 +1 7-6 >
aux 1237 81.1 71.5 +1 4-10 >
num 1091 67.4 56.4 +1 8-11 >
cc 995 47.8 41.2 -1 7-5 >
conj 995 53.3 26.8 -2 7-1 >
poss 708 80.5 47.7 +1 7-6 >
dep 617 18.3 15.9 -2 11-11 >
ccomp 557 48.8 12.4 -2 8-1 >
number 481 74.8 73.2 +1 7-4 <
xcomp 433 57.3 47.1 -2 5-7 >
possessive 424 98.8 98.8 -1 7-12 >
mark 420 50.7 14.5 +2 8-2 >
cop 353 72.2 40.5 +1 7-6 >
auxpass 286 94.1 82.5 +1 4-10 >
rcmod 286 40.9 26.6 -3 9-11 >
advcl 285 29.5 4.6 -3 5-4 >
appos 272 30.5 28.3 -3 7-1 >
nsubjpass 254 57.5 43.7 +2 7-6 >
tmod 243 45.7 29.2 -1 8-6 >
partmod 216 59.3 56.5 -1 8-5 >
pcomp 207 79.7 79.2 -1 6-10 <
quantmod 203 68.0 60.6 +1 1-4 <
npadvmod 186 44.6 34.9 -2 2-6 <
neg 167 72.5 68.3 +1 4-10 >
prt 116 99.1 91.4 -1 6-7 >
"""
"""Relation, number of dependents (0: not given), accuracy in percent, that of the best offset, this offset, head, direction: ">"
is dependent -> head, "<" head -> dependent."""

SAME, NEAR, OTHER = "same", "near", "other"
IN_UNIVERSAL_DEPENDENCIES = {
    "all": (WHOLE, NEAR, "Clark et al. count punctuation and roots too"),
    "prep": ("", OTHER, "a preposition depends on its object: see pobj"),
    "pobj": ("case", OTHER, "the same pair of words, but the preposition is the dependent"),
    "det": ("det", SAME, ""),
    "nn": ("compound", NEAR, "names are flat"),
    "nsubj": ("nsubj", SAME, ""),
    "amod": ("amod", SAME, ""),
    "dobj": ("obj", SAME, ""),
    "advmod": ("advmod", NEAR, "with negation, which is neg"),
    "aux": ("aux", NEAR, "without the infinitive's to, which is mark"),
    "num": ("nummod", NEAR, "also after its noun"),
    "cc": ("cc", OTHER, "depends on the conjunct after it, not on the first"),
    "conj": ("conj", SAME, ""),
    "poss": ("nmod:poss", NEAR, "a noun before 's is predicted by itself, not by the 's"),
    "dep": ("dep", SAME, ""),
    "ccomp": ("ccomp", SAME, ""),
    "number": ("", OTHER, "is nummod, compound or flat"),
    "xcomp": ("xcomp", NEAR, "with predicates of the object"),
    "possessive": ("", OTHER, "is case"),
    "mark": ("mark", NEAR, "with the infinitive's to, which is aux"),
    "cop": ("cop", NEAR, "also of predicates with a preposition"),
    "auxpass": ("aux:pass", SAME, ""),
    "rcmod": ("acl:relcl", SAME, ""),
    "advcl": ("advcl", SAME, ""),
    "appos": ("appos", SAME, ""),
    "nsubjpass": ("nsubj:pass", SAME, ""),
    "tmod": ("obl:tmod obl:unmarked", NEAR, "obl:unmarked are noun phrases as adverbs, of time and others"),
    "partmod": ("acl", NEAR, "with infinitives"),
    "pcomp": ("", OTHER, "is advcl or acl, and depends on what the preposition depends on"),
    "quantmod": ("", OTHER, "is advmod of the number"),
    "npadvmod": ("obl:npmod obl:unmarked", NEAR, "obl:unmarked are noun phrases as adverbs, of time and others"),
    "neg": ("", OTHER, "is advmod"),
    "prt": ("compound:prt", SAME, ""),
}
"""Stanford relation -> (that of Universal Dependencies 2, or several of which a treebank has one; how near; the difference)."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A row of the published table."""

    relation: str
    n: int | None
    """None where it is not given."""
    accuracy: float
    baseline: float
    offset: int
    head: str
    direction: str


def published() -> Iterator[Published]:
    """The rows of the published table; accuracies from 0 to 1."""
    for line in TABLE.split("\n")[1:-1]:
        relation, n, accuracy, baseline, offset, head, direction = line.split()
        share = float(accuracy) / 100, float(baseline) / 100
        yield Published(relation, int(n) or None, *share, int(offset), head, DIRECTIONS[direction == "<"])


def counterpart(relation: str, names: Collection[str]) -> tuple[str, str, str]:
    """(the relation of a treebank with these `names` that a Stanford relation is nearest to, "" for none; how near; the
    difference).

    A treebank that has "pobj", "dobj" or "nn" is in Stanford Dependencies, and has the relation itself.
    """
    candidates, near, difference = IN_UNIVERSAL_DEPENDENCIES[relation]
    if relation != WHOLE and {"pobj", "dobj", "nn"} & {*names}:
        candidates, near, difference = relation, SAME, ""
    return next((name for name in candidates.split() if name in names), ""), near, difference


def beside_published(found: DependencyScores) -> Iterator[tuple[Published, str, str, Best | None]]:
    """For each published row: (the row, how near the treebank's relation is, the difference, the head found for that relation;
    None where the treebank has none)."""
    best = {row.relation: row for row in found.best}
    for row in published():
        name, near, difference = counterpart(row.relation, best.keys())
        yield row, near, difference, best.get(name)
