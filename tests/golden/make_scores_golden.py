"""Makes `scores_golden.json`: metrics of random predictions by scikit-learn, scipy and seqeval.

    PYTHON_WITH_SCIKIT_LEARN_SCIPY_AND_SEQEVAL tests/golden/make_scores_golden.py

Each case has its inputs and the scores of the libraries; `tests/tasks/test_scores.py` and `tests/tasks/test_entity_scores.py`
read them. The inputs include ties, classes that are never predicted or never true, predictions of one class only, and tag
sequences that no scheme allows.
"""

from __future__ import annotations

import json
import pathlib
import random
import warnings
from typing import Any

import numpy as np
from scipy import stats
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from sklearn import metrics

FILE = pathlib.Path(__file__).parent / "scores_golden.json"
PREFIXES = {"IOB": "BI", "IOE": "IE", "BIOES": "BIES"}
TYPES = ("PER", "LOC", "GEO-POL")  # one with a hyphen of its own


def classes(rng: np.random.Generator) -> list[dict[str, Any]]:
    cases = []
    for count in (2, 2, 2, 2, 3, 3, 5):
        n = int(rng.integers(1, 40))
        labels = rng.integers(0, count, n)
        guess = np.where(rng.random(n) < 0.6, labels, rng.integers(0, count, n))
        for said, true in ((guess, labels), (np.full(n, count - 1), labels), (guess, np.zeros(n, int)), (labels, labels)):
            case = {
                "predictions": said.tolist(),
                "labels": true.tolist(),
                "accuracy": metrics.accuracy_score(true, said),
                "macro_f1": metrics.f1_score(true, said, average="macro", zero_division=0),
                "matthews": metrics.matthews_corrcoef(true, said),
            }
            if count == 2:
                case["f1"] = metrics.f1_score(true, said, zero_division=0)
            cases.append(case)
    return cases


def values(rng: np.random.Generator) -> list[dict[str, Any]]:
    cases = []
    for grid in (0.0, 0.2, 1.0, 2.5):
        for scale, noise in ((1.0, 0.5), (1e-6, 0.1), (-1e6, 2.0)):
            labels = rng.uniform(0, 5, 25)
            labels = np.round(labels / grid) * grid if grid else labels
            said = scale * (labels + noise * rng.normal(size=25))
            said = np.round(said / grid) * grid if grid and scale == 1.0 else said
            pearson, spearman = stats.pearsonr(said, labels)[0], stats.spearmanr(said, labels)[0]
            cases.append({"predictions": said.tolist(), "labels": labels.tolist(), "pearson": pearson, "spearman": spearman})
    return cases


def several(rng: np.random.Generator) -> list[dict[str, Any]]:
    cases = []
    for density in (0.0, 0.2, 0.5):
        labels = rng.random((12, 4)) < density
        said = labels ^ (rng.random((12, 4)) < 0.2)
        micro = metrics.f1_score(labels, said, average="micro", zero_division=0)
        cases.append({"predictions": said.astype(int).tolist(), "labels": labels.astype(int).tolist(), "micro_f1": micro})
    return cases


def losses(rng: np.random.Generator) -> list[dict[str, Any]]:
    cases = []
    for count in (2, 3):
        p, labels = rng.dirichlet(np.ones(count), 20), rng.integers(0, count, 20)
        loss = metrics.log_loss(labels, p, labels=range(count))
        cases.append({"probabilities": p.tolist(), "labels": labels.tolist(), "log_loss": loss})
    return cases


def tags(draw: random.Random) -> list[dict[str, Any]]:
    cases = []
    for scheme, prefixes in PREFIXES.items():
        names = ["O", "O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in TYPES)]
        for _ in range(4):
            labels = [draw.choices(names, k=draw.randint(1, 9)) for _ in range(8)]
            said = [[tag if draw.random() < 0.8 else draw.choice(names) for tag in sentence] for sentence in labels]
            kinds = sorted({kind for kind, _, _ in get_entities(labels) + get_entities(said)})
            overall = precision_recall_fscore_support(labels, said, average="micro")
            types = precision_recall_fscore_support(labels, said, average=None)
            cases.append({
                "scheme": scheme,
                "predictions": said,
                "labels": labels,
                "entities": [get_entities(sentence) for sentence in labels],
                "overall": overall,
                "types": {kind: row for kind, *row in zip(kinds, *(part.tolist() for part in types), strict=True)},
            })  # fmt: skip
    return cases


def main() -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    golden = {
        "classes": classes(rng), "values": values(rng), "several": several(rng), "losses": losses(rng),
        "tags": tags(random.Random(0)),
    }  # fmt: skip
    lists = {name: ",\n".join(json.dumps(case, default=float) for case in own) for name, own in golden.items()}
    FILE.write_text("{\n" + ",\n".join(f'"{name}": [\n{lines}\n]' for name, lines in lists.items()) + "\n}\n")


if __name__ == "__main__":
    main()
