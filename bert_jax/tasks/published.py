"""Published scores of other systems, which results of the same task and split stand beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.tasks.scores import accuracy, macro_precision, macro_recall


@dataclasses.dataclass(frozen=True)
class Published:
    """The scores of a system on a split, as fractions, and the table or file that they are from."""

    system: str
    split: str
    source: str
    scores: Mapping[str, float]


def of_prover(system: str, source: str, counts: Sequence[Sequence[int]]) -> Published:
    """The scores of a prover of entailment on the test set, from its confusion matrix `counts`.

    `counts` is [3, 3]: a row for each true label, a column for each answer, both in the order entailment, contradiction, neutral.
    Precision and recall are means over the three labels, as ours are. LangPro and ccg2lambda count them over the pairs for which
    a proof was found, those answered with entailment or contradiction: these go into the source, to be found again there.
    """
    table = np.array(counts)
    labels, answers = (np.repeat(side.ravel(), table.ravel()) for side in np.indices(table.shape))
    proved = np.trace(table[:2, :2])
    precision, recall = proved / table[:, :2].sum(), proved / table[:2].sum()
    means = {"precision": macro_precision(answers, labels), "recall": macro_recall(answers, labels)}
    return Published(
        system,
        "test",
        f"{source}; over proofs precision {precision:.4f}, recall {recall:.4f}",
        {name: round(value, 4) for name, value in (means | {"accuracy": accuracy(answers, labels)}).items()},
    )


_NEURALLOG = "Chen et al. 2021, arXiv:2105.14167, Table 3"

PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "sick/entailment": (
        of_prover(
            "LangPro",
            "Abzianidze 2015, doi:10.18653/v1/D15-1296; answers in its repository, kovvalsky/LangPro",
            ((760, 0, 654), (1, 480, 239), (20, 5, 2_768)),
        ),
        of_prover(
            "ccg2lambda",
            "Martínez-Gómez et al. 2017, EACL; counts in its repository, mynlp/ccg2lambda, errors taken as neutral",
            ((838, 6, 570), (3, 500, 217), (22, 13, 2_758)),
        ),
        of_prover(
            "ccg2lambda, learned phrases",
            "Yanaka et al. 2018, arXiv:1804.07656; counts in its repository, verypluming/ccg2lambda, errors taken as neutral",
            ((1_082, 3, 329), (18, 566, 136), (247, 44, 2_502)),
        ),
        of_prover(
            "MonaLog",
            "Hu et al. 2020, arXiv:1910.08772; its answers to 4,906 of the pairs in the repository huhailinguist/curing-SICK",
            ((577, 0, 827), (0, 461, 251), (13, 108, 2_669)),
        ),
        of_prover(
            "LangPro, learned relations",
            "Abzianidze 2020, arXiv:2010.15909; answers in its repository, kovvalsky/LangPro",
            ((919, 1, 494), (2, 529, 189), (57, 28, 2_708)),
        ),
        Published("BERT base", "test", _NEURALLOG, {"precision": 0.868, "recall": 0.854, "accuracy": 0.867}),
        Published("NeuralLog", "test", _NEURALLOG, {"precision": 0.880, "recall": 0.876, "accuracy": 0.903}),
    ),
}
"""By the name of the task. NeuralLog's paper does not state how it averages precision and recall over the labels; the counts of
provers are those of their authors' files, against the labels of the test set."""
