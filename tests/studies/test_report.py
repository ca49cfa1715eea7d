"""The text of a study's report, word for word."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bert_jax.studies import report
from bert_jax.studies.report import expected_rows

GAIN = {"mean": 0.05, "low": 0.02, "high": 0.08, "n": 3}
NONE = {"mean": -0.01, "low": -0.04, "high": 0.02, "n": 3}
ONE_SEED = {"mean": 0.5, "low": None, "high": None, "n": 1}
NOTHING = {"mean": None, "low": None, "high": None, "n": 0}


def scored(mean: float | None, deviation: float | None = None) -> dict[str, Any]:
    return {"mean": mean, "deviation": deviation, "seeds": {}}


def pair(higher: str, lower: str, verdict: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"higher": higher, "lower": lower, "verdict": verdict, **found}


def order(order: str, task: str, came_out: list[str], *pairs: dict[str, Any], holds: bool = False) -> dict[str, Any]:
    return {"order": order, "task": task, "holds": holds, "came_out": came_out, "pairs": list(pairs)}


COMMON = {"one_answer": {"stsb": 0, "sick": 0}, "failed": {"stsb": 0, "sick": 0}, "paper": {}}
BERT = {
    "name": "bert", "title": "BERT", "tokens": 1_000_000, "flops": 2e12, "parameters": 11_300_000, "steps": 10,
    "eval": {"unigram_loss": 7.0, "mlm_accuracy": 0.5, "mlm_loss": 3.25, "nsp_loss": 0.6},
    "scores": {"stsb": scored(0.8, 0.01), "sick": scored(0.75), "average": scored(0.775, 0.02)},
    "minus_reference": {}, **COMMON, "paper": {"MNLI": 84.4, "SQuAD F1": 88.5},
}  # fmt: skip
OTHER = {
    "name": "ltr", "title": "left to right", "tokens": 2_500_000, "flops": 3e12, "parameters": None, "steps": 10,
    "eval": {"lm_loss": 4.5}, "scores": {"stsb": scored(0.85, 0.03), "sick": scored(None), "average": scored(None)},
    "minus_reference": {"stsb": GAIN, "sick": NOTHING, "average": ONE_SEED}, **COMMON, "one_answer": {"stsb": 2, "sick": 0},
    "failed": {"stsb": 0, "sick": 1}, "paper": {"MNLI": 82.1},
}  # fmt: skip
RANDOM = {
    "name": "random", "title": "random", "tokens": 0, "flops": 0.0, "parameters": 11_300_000, "steps": 0, "eval": {},
    "scores": {"stsb": scored(0.3), "sick": scored(0.2), "average": scored(0.25)},
    "minus_reference": {"stsb": NONE, "sick": GAIN, "average": NONE}, **COMMON,
}  # fmt: skip
TABLE: dict[str, Any] = {
    "title": "T", "setting": "laptop", "equal": "tokens", "amount": 1e6, "seeds": [0, 1, 2], "restarts": 5, "reference": "bert",
    "tasks": {"stsb": "dev/spearman", "sick": "dev/accuracy"}, "baselines": {"stsb": None, "sick": 0.4}, "paper": "Table 5",
    "arms": [BERT, OTHER, RANDOM],
    "expected": [
        order("bert > random", "stsb", ["bert", "random"], pair("bert", "random", "as expected", GAIN), holds=True),
        order(
            "bert > ltr > random", "sick", ["ltr", "bert", "random"],
            pair("bert", "ltr", "opposite", NONE), pair("ltr", "random", "as expected", GAIN),
        ),
        order("bert > ltr", "average", [], pair("bert", "ltr", "not measured", NOTHING)),
    ],
}  # fmt: skip
MEASURED = {"bert": {"training_seconds": 65.0}, "ltr": {"training_seconds": 3_725.0}, "random": {}}
CONTENT = {"table": TABLE, "measured": MEASURED}

MARKDOWN = """\
# T (laptop)

Equal tokens: every pretraining from random weights reads 1 M tokens (including padding), however long this takes.

| arm | tokens | time | FLOPs | parameters | held-out loss | stsb, spearman | sick, accuracy | average |
|---|---|---|---|---|---|---|---|---|
| BERT | 1 M | 1m05s | 2 T | 11.3 M | 3.250 (mlm) | 0.800 ± 0.010 | 0.750 | 0.775 ± 0.020 |
| left to right | 2.5 M | 1h02m | 3 T | - | 4.500 (lm) | 0.850 ± 0.030 | - | - |
| random | 0 | - | 0 | 11.3 M | - | 0.300 | 0.200 | 0.250 |
| best single answer | - | - | - | - | - | - | 0.400 | - |

## Differences to BERT

| arm | stsb | sick | average |
|---|---|---|---|
| left to right | +0.050 (+0.020 to +0.080) | - | +0.500 |
| random | -0.010 (-0.040 to +0.020) | +0.050 (+0.020 to +0.080) | -0.010 (-0.040 to +0.020) |

Means over seeds of paired differences, with their 95 % intervals.

## The paper's rows

| arm | MNLI | SQuAD F1 |
|---|---|---|
| BERT | 84.4 | 88.5 |
| left to right | 82.1 | - |

Table 5

## Expected before the study ran, and what came out

| expected | on | came out | means | pairs beyond chance |
|---|---|---|---|---|
| bert > random | stsb | bert > random | as expected | 1 of 1 |
| bert > ltr > random | sick | ltr > bert > random | missed | 1 of 2, 1 opposite |
| bert > ltr | average | - | not measured yet | 0 of 1 |

## What the numbers show, and what they do not

- Of 4 differences from BERT, 2 have a paired 95 % interval that excludes 0: left to right on stsb (+0.050), random on sick (+0.0\
50); by chance alone, 0.2 would be expected.
- Half of the intervals are wider than ±0.030: smaller differences cannot be detected with so few seeds.
- Expected on stsb: bert > random; the means are in this order; 1 of 1 pair beyond chance.
- Expected on sick: bert > ltr > random; missed; the measured order is ltr > bert > random; 1 of 2 pairs beyond chance; the oppos\
ite of bert > ltr is also beyond chance.
- Expected on average: bert > ltr; not measured yet.
- Runs that gave the same answer, or nearly the same, to every example: left to right on stsb (2 of 15).
- Runs that failed, and are not included in any mean: left to right on sick (1 of 15).
- Each score is the mean over 3 pretrained models, each fine-tuned 5 times. The interval is over seeds of this procedure on these\
 tasks, not over tasks or corpora.
- Models of at most 11.3 M parameters read at most 2.5 M tokens. The paper's BERT-Base has 110 M parameters and read 128 G tokens\
, so an order found here may not hold at that size.
- The held-out losses (lm, mlm) belong to different predictions, so they cannot be compared between arms.
"""


def test_a_report_has_every_number_and_its_conclusion():
    assert report.markdown(CONTENT) == MARKDOWN


def test_a_report_on_a_terminal_has_aligned_columns():
    blocks = report.plain(CONTENT).split("\n\n")
    sections = [section.split("\n") for section in MARKDOWN.split("\n\n")]
    tables = [[line.strip("| ").split(" | ") for line in lines if "---" not in line] for lines in sections if lines[0][0] == "|"]
    assert blocks[0] == report.budget_sentence(TABLE)
    assert len(tables) == len(blocks) - 2 == 4
    for rows, block in zip(tables, blocks[1:-1], strict=True):
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        padded = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        assert block.split("\n") == padded
    assert blocks[-1].split("\n") == report.findings(TABLE)


def test_missing_parts_are_left_out_of_the_report():
    """The study has a single arm, no paper, no order, no baseline, no setting."""
    bare = TABLE | {"arms": [{**BERT, "paper": {}}], "expected": [], "setting": "", "baselines": {"stsb": None, "sick": None}}
    bare |= {"restarts": 1, "equal": "steps", "amount": None, "tasks": {"stsb": "dev/spearman"}}
    text = report.markdown({"table": bare, "measured": MEASURED})
    assert text.startswith(
        "# T\n\nEvery arm takes the steps of its own experiment: neither the tokens nor the times are equal.\n\n|"
    )
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# T",
        "## " + MARKDOWN.split("## ")[-1].split("\n")[0],
    ]
    sentence = report.budget_sentence(bare)
    assert sentence == "Every arm takes the steps of its own experiment: neither the tokens nor the times are equal."
    assert "best single answer" not in text
    assert "| arm | tokens | time | FLOPs | parameters | held-out loss | stsb, spearman | sick | average |" in text
    assert report.findings(bare) == [
        "Each score is the mean over 3 pretrained models. The interval is over seeds of this procedure on this task, not over "
        "tasks or corpora.",
        "Models of at most 11.3 M parameters read at most 1 M tokens. The paper's BERT-Base has 110 M parameters and read "
        "128 G tokens, so an order found here may not hold at that size.",
    ]
    assert len(report.plain({"table": bare, "measured": MEASURED}).split("\n\n")) == 3


def test_two_arms_have_one_row_of_differences_and_one_row_of_the_paper():
    pair_of = TABLE | {"arms": [BERT, RANDOM], "restarts": 2, "expected": TABLE["expected"][:1]}
    content = {"table": pair_of, "measured": MEASURED}
    headings = [line for line in MARKDOWN.splitlines() if line.startswith("#")]
    assert [line for line in report.markdown(content).splitlines() if line.startswith("#")] == headings
    assert [len(block.split("\n")) for block in report.plain(content).split("\n\n")[1:5]] == [4, 2, 2, 2]
    assert "3 pretrained models, each fine-tuned 2 times." in report.findings(pair_of)[3]


def test_differences_of_one_seed_and_intervals_that_touch_0_may_be_chance():
    one = copy.deepcopy(TABLE) | {"seeds": [0]}
    for arm in one["arms"][1:]:
        arm["minus_reference"] = {"stsb": ONE_SEED}
    no_interval = "With one seed there is no interval, so no difference from BERT can be distinguished from chance."
    assert report.findings(one)[0] == no_interval
    edges = {"a": (0.0, 0.1), "b": (-0.1, 0.0), "c": (-0.4, -0.1)}
    one["arms"][1]["minus_reference"] = {name: {"mean": 0.5, "low": low, "high": high} for name, (low, high) in edges.items()}
    one["arms"][2]["minus_reference"] = {}
    assert report.findings(one)[:2] == [
        "Of 3 differences from BERT, 1 has a paired 95 % interval that excludes 0: left to right on c (+0.500); by chance alone, "
        "0.15 would be expected.",
        "Half of the intervals are wider than ±0.050: smaller differences cannot be detected with so few seeds.",
    ]


def test_chance_is_described_in_plain_numbers():
    many = TABLE | {"arms": [BERT, {**OTHER, "minus_reference": {f"task {i}": GAIN for i in range(240)}}]}
    assert report.findings(many)[0].endswith("by chance alone, 12 would be expected.")


@pytest.mark.parametrize(
    ("parameters", "tokens", "small"),
    [(55e6, 64e9, False), (54.9e6, 64e9, True), (55e6, 63.9e9, True), (55e6, 0, False), (None, 1, False)],
)
def test_models_from_half_of_the_papers_size_are_not_called_small(parameters: float, tokens: float, small: bool):
    table = TABLE | {"arms": [{**BERT, "parameters": parameters, "tokens": tokens}]}
    assert any("may not hold at that size" in line for line in report.findings(table)) == small


def test_equal_seconds_are_shown_as_a_duration():
    assert report.budget_sentence(TABLE | {"equal": "seconds", "amount": 1_800}) == (
        "Equal wall-clock time: every arm trains for 30m00s, converted to steps by its speed on this machine, which was measured "
        "once. Arms therefore read different numbers of tokens."
    )


def test_an_order_whose_arms_are_not_all_measured_is_not_called_missed():
    pairs = [pair("a", "b", "not measured", NOTHING), pair("b", "c", "undecided", NONE)]
    rows = expected_rows({"expected": [order("a > b > c", "stsb", ["a"], *pairs), order("b > c", "stsb", ["c"], pairs[1])]})
    assert [row[3] for row in rows[1:]] == ["not measured yet", "missed"]
