from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.tasks import TASKS
from bert_jax.tasks.published import page, prover_scores, published, score_lines
from bert_jax.tasks.scores import GLUE, accuracy, macro_precision, macro_recall

# Accuracy, precision and recall over proofs, in percent, as the authors' evaluation scripts print them: of LangPro in
# results/EMNLP_2015/README.md of its repository (two parsers together), of ccg2lambda in en/sick.md and, on the branch naacl,
# en/naacl2018.md (cut off, not rounded).
AS_PRINTED = {
    "LangPro": (81.35, 97.95, 58.11),
    "ccg2lambda": (83.13, 96.81, 62.69),
    "ccg2lambda, learned phrases": (84.22, 84.08, 77.22),
}
OF_PROOFS = ("precision over proofs", "recall over proofs")


@pytest.mark.parametrize("system", AS_PRINTED)
def test_prover_scores_over_proofs_equal_those_of_the_authors(system: str) -> None:
    (row,) = (row for row in published("sick/entailment") if row.system == system)
    found = [100 * row.scores[name] for name in ("accuracy", *OF_PROOFS)]
    assert found == pytest.approx(AS_PRINTED[system], abs=0.0101)


def test_prover_scores_equal_scores_of_the_counted_pairs() -> None:
    labels, answers = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]), np.array([0, 2, 2, 1, 0, 2, 2, 1, 2])
    counts = [[sum((labels == i) & (answers == j)) for j in range(3)] for i in range(3)]
    assert prover_scores(counts) == pytest.approx(
        {
            "precision": macro_precision(answers, labels),
            "recall": macro_recall(answers, labels),
            "accuracy": accuracy(answers, labels),
            "precision over proofs": 2 / 4,
            "recall over proofs": 2 / 5,
        },
        abs=5e-5,
    )


def test_every_conll_2003_system_is_listed_in_our_units() -> None:
    rows = published("conll2003")
    assert len(rows) == 12
    assert {row.split for row in rows} == {"test"}
    assert max(rows, key=lambda row: row.scores["f1"]).system.startswith("Flair")
    assert next(row for row in rows if row.system.startswith("TagLM")).scores == {"f1": pytest.approx(0.9193)}


@pytest.mark.parametrize(
    ("task", "system", "split", "scores"),
    [
        ("glue/mrpc", "BERT large", "test server", {"f1": 0.893}),
        ("glue/stsb", "OpenAI GPT", "test server", {"spearman": 0.8}),
        ("glue/mnli", "BERT base", "test server", {"accuracy, matched": 0.846, "accuracy, mismatched": 0.834}),
        ("squad/v1.1", "BERT base, single", "dev", {"exact_match": 80.8, "f1": 88.5}),
        ("squad/v1.1", "BiDAF + ELMo, single", "test server", {"f1": 85.8}),
        ("squad/v2.0", "human", "test server", {"exact": 86.831, "f1": 89.452}),
        ("sick/entailment", "NeuralLog", "test", {"precision": 0.88, "recall": 0.876, "accuracy": 0.903}),
        ("sick/entailment", "Yin and Schütze 2017", "test", {"accuracy": 0.871}),
        ("newstest2014 en-de", "Transformer base", "test", {"bleu": 27.3}),
        ("imdb", "ULMFiT", "test", {"error": 4.6}),
    ],
)
def test_a_row_has_its_split_and_scores(task: str, system: str, split: str, scores: dict[str, float]) -> None:
    assert [row.scores for row in published(task) if (row.system, row.split) == (system, split)] == [pytest.approx(scores)]


def test_incomparable_rows_have_a_note() -> None:
    for task in TASKS:
        for row in published(task):
            assert ("not comparable" in row.note) == (row.split == "test server"), row
            if any(name in row.scores for name in OF_PROOFS):
                assert "proof" in row.note


def test_published_scores_have_our_names() -> None:
    for name in TASKS:
        ours = {"f1", "precision", "recall", "accuracy", *OF_PROOFS}
        if name.startswith("squad/"):
            ours = {"exact_match", "exact", "f1"}
        if name.startswith("glue/"):
            ours = {*GLUE[name.removeprefix("glue/")], "accuracy, matched", "accuracy, mismatched"}
        for row in published(name):
            assert row.scores.keys() <= ours, row
    assert published("own/sequence") == ()


def test_the_log_groups_rows_by_their_notes_with_the_main_score_first() -> None:
    lines = list(score_lines(published("sick/entailment"), "accuracy"))
    assert lines[0].startswith("published, test (precision and recall are means over the three labels, as in results.json; ")
    assert lines[1].startswith("  LangPro: accuracy 0.8135  precision 0.")
    assert lines[1].endswith("(Abzianidze 2015, doi:10.18653/v1/D15-1296; answers in its repository, kovvalsky/LangPro)")
    assert [line[:15] for line in lines].count("published, test") == 3, "each note needs a heading"
    assert next(score_lines(published("conll2003"), "f1")) == "published, test"
    assert list(score_lines((), "f1")) == []


def test_the_page_has_the_numbers_of_training_examples_of_glue() -> None:
    lines = page().splitlines()
    heads, _, examples = (lines[lines.index(next(line for line in lines if "| rte: accuracy |" in line)) + n] for n in range(3))
    of_task = dict(zip(heads.split(" | "), examples.split(" | "), strict=True))
    names = ("mnli: accuracy, mismatched", "stsb: spearman", "rte: accuracy")
    assert [of_task[name] for name in names] == ["392k", "5.7k", "2.5k"]


def test_the_page_of_results_is_made_from_the_file() -> None:
    written = pathlib.Path(__file__).parents[2] / "experiments" / "results" / "published.md"
    assert written.read_text(encoding="utf-8") == page(), "python -m bert_jax.tasks.published > experiments/results/published.md"
