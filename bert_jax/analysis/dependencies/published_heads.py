"""The attention heads of BERT-Base as published by Clark et al., with the names of their relations in Universal Dependencies.

The accuracies are printed by the notebook of the paper's code for table 1 (arXiv:1906.04341; Syntax_Analysis.ipynb of
github.com/clarkkev/attention-analysis). They were measured on the development set of the Penn Treebank in Stanford
Dependencies. Heads are counted from 1 as in the paper. Head and offset were chosen on the same sentences on which the accuracy
is measured. The relation "all" of the paper also counts punctuation and roots. The relation "poss" of the paper predicts the
head of a possessive noun from its "'s"."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bert_jax.analysis.dependencies.measure import DIRECTIONS, DependencyScores

TABLE = """
all 0 34.7 26.7 +1 7-6 > | all | near | Clark et al. count punctuation and roots too
prep 3760 66.7 61.8 -1 7-4 > | | other | a preposition depends on its object: see pobj
pobj 3720 76.3 34.6 -2 9-6 < | case | other | the same pair of words, but the preposition is the dependent
det 3337 94.3 51.7 +1 8-11 > | det | same |
nn 3192 70.4 70.2 +1 4-10 > | compound | near | names are flat
nsubj 2804 58.5 45.5 +1 8-2 > | nsubj | same |
amod 2505 75.6 68.3 +1 4-10 > | amod | same |
dobj 1591 86.8 40.0 -2 8-10 > | obj | same |
advmod 1241 48.8 40.2 +1 7-6 > | advmod | near | with negation, which is neg
aux 1237 81.1 71.5 +1 4-10 > | aux | near | without the infinitive's to, which is mark
num 1091 67.4 56.4 +1 8-11 > | nummod | near | also after its noun
cc 995 47.8 41.2 -1 7-5 > | cc | other | depends on the conjunct after it, not on the first
conj 995 53.3 26.8 -2 7-1 > | conj | same |
poss 708 80.5 47.7 +1 7-6 > | nmod:poss | near | a noun before 's is predicted by itself, not by the 's
dep 617 18.3 15.9 -2 11-11 > | dep | same |
ccomp 557 48.8 12.4 -2 8-1 > | ccomp | same |
number 481 74.8 73.2 +1 7-4 < | | other | is nummod, compound or flat
xcomp 433 57.3 47.1 -2 5-7 > | xcomp | near | with predicates of the object
possessive 424 98.8 98.8 -1 7-12 > | | other | is case
mark 420 50.7 14.5 +2 8-2 > | mark | near | with the infinitive's to, which is aux
cop 353 72.2 40.5 +1 7-6 > | cop | near | also of predicates with a preposition
auxpass 286 94.1 82.5 +1 4-10 > | aux:pass | same |
rcmod 286 40.9 26.6 -3 9-11 > | acl:relcl | same |
advcl 285 29.5 4.6 -3 5-4 > | advcl | same |
appos 272 30.5 28.3 -3 7-1 > | appos | same |
nsubjpass 254 57.5 43.7 +2 7-6 > | nsubj:pass | same |
tmod 243 45.7 29.2 -1 8-6 > | obl:tmod obl:unmarked | near | obl:unmarked are noun phrases as adverbs, of time and others
partmod 216 59.3 56.5 -1 8-5 > | acl | near | with infinitives
pcomp 207 79.7 79.2 -1 6-10 < | | other | is advcl or acl, and depends on what the preposition depends on
quantmod 203 68.0 60.6 +1 1-4 < | | other | is advmod of the number
npadvmod 186 44.6 34.9 -2 2-6 < | obl:npmod obl:unmarked | near | obl:unmarked are noun phrases as adverbs, of time and others
neg 167 72.5 68.3 +1 4-10 > | | other | is advmod
prt 116 99.1 91.4 -1 6-7 > | compound:prt | same |
"""
"""The columns before the first "|" are the relation, the number of dependents (0: not published), the accuracy in percent, the
accuracy of the best offset, this offset, the head, and the direction. The direction ">" is dependent -> head, and "<" is head
-> dependent. The other columns have the relation in Universal Dependencies 2 (or several relations, one of which occurs in a
treebank), how close the two relations are, and how they differ."""
PUBLISHED_COLUMNS = (
    "stanford", "published_accuracy", "published_head", "published_direction", "published_baseline", "published_offset",
    "published_n", "relation", "nearness", "difference", "accuracy", "low", "high", "head", "direction", "baseline", "offset",
    "n",
)  # fmt: skip


def counterpart(relation: str, columns: tuple[str, str, str], names: Collection[str]) -> tuple[str, str, str]:
    """Returns (counterpart, nearness, difference) of the Stanford relation `relation`. The counterpart is the nearest relation
    in a treebank's `names`, or "" if there is none. The nearness is "same", "near" or "other". `columns` are the last three
    columns of the table.

    A treebank with "pobj", "dobj" or "nn" is in Stanford Dependencies, so the counterpart is the relation itself."""
    if relation != "all" and {"pobj", "dobj", "nn"} & {*names}:
        columns = relation, "same", ""
    candidates, near, difference = columns
    return next((name for name in candidates.split() if name in names), ""), near, difference


def published_rows(found: DependencyScores) -> Iterator[tuple[object, ...]]:
    """Yields a row of PUBLISHED_COLUMNS for each relation of the table. The row has the published head, and the head in `found`
    for the nearest relation."""
    heads = {row.relation: row for row in found.best}
    for line in TABLE.strip().splitlines():
        theirs, *nearest = (column.strip() for column in line.split("|"))
        relation, n, accuracy, baseline, offset, head, direction = theirs.split()
        name, near, difference = counterpart(relation, (nearest[0], nearest[1], nearest[2]), heads.keys())
        ours: tuple[object, ...] = ("", near, difference, *[""] * 7, 0)
        if best := heads.get(name):
            numbers = best.accuracy, best.low, best.high, best.name, best.direction, best.baseline, f"{best.offset:+}", best.n
            ours = (best.relation, near, difference, *numbers)
        shares = float(accuracy) / 100, head, DIRECTIONS[direction == "<"], float(baseline) / 100
        yield relation, *shares, f"{int(offset):+}", int(n) or "", *ours
