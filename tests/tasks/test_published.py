from __future__ import annotations

import numpy as np
import pytest

from bert_jax.tasks.scores import PUBLISHED, accuracy, macro_precision, macro_recall, of_prover

# Accuracy, precision and recall over proofs, in percent, as the authors' evaluation scripts print them: of LangPro in
# results/EMNLP_2015/README.md of its repository (two parsers together), of ccg2lambda in en/sick.md and, on the branch naacl,
# en/naacl2018.md (cut off, not rounded).
AS_PRINTED = {
    "LangPro": (81.35, 97.95, 58.11),
    "ccg2lambda": (83.13, 96.81, 62.69),
    "ccg2lambda, learned phrases": (84.22, 84.08, 77.22),
}


@pytest.mark.parametrize("system", AS_PRINTED)
def test_a_provers_scores_over_proofs_are_those_that_its_authors_print(system):
    (row,) = (row for row in PUBLISHED["sick/entailment"] if row.system == system)
    precision, recall = (float(part.split()[-1]) for part in row.source.split("; ")[-1].split(", "))
    assert (100 * row.scores["accuracy"], 100 * precision, 100 * recall) == pytest.approx(AS_PRINTED[system], abs=0.0101)


def test_a_provers_scores_are_those_of_the_pairs_that_its_counts_stand_for():
    labels, answers = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]), np.array([0, 2, 2, 1, 0, 2, 2, 1, 2])
    counts = [[sum((labels == i) & (answers == j)) for j in range(3)] for i in range(3)]
    row = of_prover("p", "s", counts)
    assert row.scores == pytest.approx(
        {
            "precision": macro_precision(answers, labels),
            "recall": macro_recall(answers, labels),
            "accuracy": accuracy(answers, labels),
        },
        abs=5e-5,
    )
    assert row.source == "s; over proofs precision 0.5000, recall 0.4000"  # of 4 proofs and of 5 pairs to prove, 2 are right
