"""Sentences about the numbers of a study, by rule: the differences that are shown, the orders that held, and the limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bert_jax.files import JsonObject
from bert_jax.interface.words import counted, duration, prefixed

PAPERS_BASE = (110e6, 128e9)
"""The parameters of the paper's BERT-Base, and the tokens that it read: 1,000,000 steps of 128,000 (appendix A.2)."""
NOT_LOSSES = ("unigram_loss", "nsp_loss")


def score(value: float | None) -> str:
    """A score with three decimals; "-" for None."""
    return "-" if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    """A difference of scores with its sign."""
    return "-" if value is None else f"{value:+.3f}"


def heldout_loss(arm: JsonObject) -> tuple[str, float] | None:
    """(the name of the arm's held-out loss without "_loss", its value): "mlm" for masked words; None without one."""
    losses = [(name, value) for name, value in arm["heldout"].items() if name.endswith("_loss") and name not in NOT_LOSSES]
    return (losses[0][0].removesuffix("_loss"), losses[0][1]) if losses else None


def budget(table: JsonObject) -> str:
    """The sentence about the amount of pretraining."""
    amount = table["amount"]
    match table["equal"]:
        case "tokens":
            return f"Equal tokens: every arm reads {prefixed(amount)} tokens (places in rows), however long that takes."
        case "seconds":
            return (
                f"Equal wall-clock: every arm trains for {duration(amount)}, by its speed on this machine, measured once; so "
                "arms read different numbers of tokens."
            )
    return "Every arm takes the steps of its own experiment: neither tokens nor times are made equal."


def findings(table: JsonObject) -> list[str]:
    """Sentences about what the numbers show, and what they do not."""
    return [*_differences(table), *_orders(table), *_limits(table)]


def _differences(table: JsonObject) -> Iterator[str]:
    titles = {arm["name"]: arm["title"] for arm in table["arms"]}
    reference = titles[table["reference"]]
    found = [(arm["title"], task, one) for arm in table["arms"] for task, one in arm["minus_reference"].items()]
    judged = [(title, task, one) for title, task, one in found if one["low"] is not None]
    if not found:
        return
    if not judged:
        yield f"With one seed there is no interval: no difference to {reference} can be told from chance."
        return
    clear = [(title, task, one) for title, task, one in judged if one["low"] > 0 or one["high"] < 0]
    listed = ", ".join(f"{title} on {task} ({signed(one['mean'])})" for title, task, one in clear)
    yield (
        f"Of {counted(len(judged), 'difference')} to {reference}, {len(clear)} {'has' if len(clear) == 1 else 'have'} a paired "
        f"95 % interval that excludes 0{': ' + listed if listed else ''}; by chance alone {len(judged) / 20:.2g} would."
    )
    half = statistics.median((one["high"] - one["low"]) / 2 for _, _, one in judged)
    yield f"Half of the intervals are wider than ±{score(half)}: differences smaller than that are not seen with so few seeds."


def _orders(table: JsonObject) -> Iterator[str]:
    for one in table["expected"]:
        measured = [pair for pair in one["pairs"] if pair["mean"] is not None]
        if len(measured) < len(one["pairs"]):
            yield f"Expected on {one['task']}: {one['order']}; not measured yet."
            continue
        shown = [pair for pair in measured if pair["verdict"] == "as expected"]
        opposite = [pair for pair in measured if pair["verdict"] == "opposite"]
        said = "the means are in this order" if one["holds"] else f"missed, it came out as {' > '.join(one['came_out'])}"
        said += f"; {len(shown)} of {counted(len(measured), 'pair')} beyond chance"
        if opposite:
            said += ", and the opposite for " + ", ".join(f"{pair['higher']} > {pair['lower']}" for pair in opposite)
        yield f"Expected on {one['task']}: {one['order']}; {said}."


def _limits(table: JsonObject) -> Iterator[str]:
    runs = len(table["seeds"]) * table["restarts"]
    alike = "gave every example the same, or nearly the same, answer"
    for key, what in (("one_answer", alike), ("failed", "failed, and count in no mean")):
        listed = [f"{arm['title']} on {task} ({n} of {runs})" for arm in table["arms"] for task, n in arm[key].items() if n]
        if listed:
            yield f"Runs that {what}: {', '.join(listed)}."
    seeds, tasks = len(table["seeds"]), len(table["tasks"])
    restarts = f", each fine-tuned {table['restarts']} times" if table["restarts"] > 1 else ""
    yield (
        f"Each score is the mean over {counted(seeds, 'pretrained model')}{restarts}; the interval is over seeds of this "
        f"procedure on {'this task' if tasks == 1 else 'these tasks'}, not over tasks or corpora."
    )
    sizes = [arm["parameters"] for arm in table["arms"] if arm["parameters"]]
    read = [arm["tokens"] for arm in table["arms"] if arm["tokens"]]
    if sizes and read and (max(sizes) < PAPERS_BASE[0] / 2 or max(read) < PAPERS_BASE[1] / 2):
        yield (
            f"Models of at most {prefixed(max(sizes))} parameters read at most {prefixed(max(read))} tokens; the paper's "
            f"BERT-Base has {prefixed(PAPERS_BASE[0])} and read {prefixed(PAPERS_BASE[1])}, so an order here does not say what "
            "it is there."
        )
    kinds = {found[0] for arm in table["arms"] if (found := heldout_loss(arm))}
    if len(kinds) > 1:
        yield f"The held-out losses ({', '.join(sorted(kinds))}) are of different predictions: they do not compare between arms."
