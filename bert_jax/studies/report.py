"""Writes `table.md`, and the same table as plain text for a terminal. Both end with sentences that fixed rules derive from the
numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bert_jax.files import JsonObject
from bert_jax.interface.words import counted, duration, prefixed

PAPERS_BASE = (110e6, 128e9)
"""(the number of parameters of the paper's BERT-Base, the number of tokens that it was trained on). The model was trained for
1,000,000 steps of 128,000 tokens (appendix A.2)."""
NOT_LOSSES = ("unigram_loss", "nsp_loss")


def score(value: float | None) -> str:
    """Formats a score with three decimals. Returns "-" for None."""
    return "-" if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    """Formats the difference of two scores with its sign."""
    return "-" if value is None else f"{value:+.3f}"


def eval_loss(arm: JsonObject) -> tuple[str, float] | None:
    """Returns (the name of the arm's held-out loss without "_loss", the value of the loss). The name is e.g. "mlm" for masked
    words. Returns None if the arm has no held-out loss."""
    losses = [(name, value) for name, value in arm["eval"].items() if name.endswith("_loss") and name not in NOT_LOSSES]
    return (losses[0][0].removesuffix("_loss"), losses[0][1]) if losses else None


def budget_sentence(table: JsonObject) -> str:
    """Returns the sentence that describes how much every arm pretrains."""
    amount = table["amount"]
    match table["equal"]:
        case "tokens":
            return (
                f"Equal tokens: every pretraining from random weights reads {prefixed(amount)} tokens (including padding), "
                "however long this takes."
            )
        case "seconds":
            return (
                f"Equal wall-clock time: every arm trains for {duration(amount)}, converted to steps by its speed on this "
                "machine, which was measured once. Arms therefore read different numbers of tokens."
            )
    return "Every arm takes the steps of its own experiment: neither the tokens nor the times are equal."


def findings(table: JsonObject) -> list[str]:
    """Returns sentences that state the findings of a study and the limits of these findings."""
    return [*_differences(table), *_orders(table), *_limits(table)]


def _differences(table: JsonObject) -> Iterator[str]:
    titles = {arm["name"]: arm["title"] for arm in table["arms"]}
    reference = titles[table["reference"]]
    found = [(arm["title"], task, one) for arm in table["arms"] for task, one in arm["minus_reference"].items()]
    judged = [(title, task, one) for title, task, one in found if one["low"] is not None]
    if not found:
        return
    if not judged:
        yield f"With one seed there is no interval, so no difference from {reference} can be distinguished from chance."
        return
    clear = [(title, task, one) for title, task, one in judged if one["low"] > 0 or one["high"] < 0]
    listed = ", ".join(f"{title} on {task} ({signed(one['mean'])})" for title, task, one in clear)
    yield (
        f"Of {counted(len(judged), 'difference')} from {reference}, {len(clear)} {'has' if len(clear) == 1 else 'have'} a paired "
        f"95 % interval that excludes 0{': ' + listed if listed else ''}; by chance alone, {len(judged) / 20:.2g} would be "
        "expected."
    )
    half = statistics.median((one["high"] - one["low"]) / 2 for _, _, one in judged)
    yield f"Half of the intervals are wider than ±{score(half)}: smaller differences cannot be detected with so few seeds."


def _orders(table: JsonObject) -> Iterator[str]:
    for one in table["expected"]:
        measured = [pair for pair in one["pairs"] if pair["mean"] is not None]
        if len(measured) < len(one["pairs"]):
            yield f"Expected on {one['task']}: {one['order']}; not measured yet."
            continue
        shown = [pair for pair in measured if pair["verdict"] == "as expected"]
        opposite = [pair for pair in measured if pair["verdict"] == "opposite"]
        said = "the means are in this order" if one["holds"] else f"missed; the measured order is {' > '.join(one['came_out'])}"
        said += f"; {len(shown)} of {counted(len(measured), 'pair')} beyond chance"
        if opposite:
            pairs = ", ".join(f"{pair['higher']} > {pair['lower']}" for pair in opposite)
            said += f"; the opposite of {pairs} is also beyond chance"
        yield f"Expected on {one['task']}: {one['order']}; {said}."


def _limits(table: JsonObject) -> Iterator[str]:
    runs = len(table["seeds"]) * table["restarts"]
    alike = "gave the same answer, or nearly the same, to every example"
    for key, what in (("one_answer", alike), ("failed", "failed, and are not included in any mean")):
        listed = [f"{arm['title']} on {task} ({n} of {runs})" for arm in table["arms"] for task, n in arm[key].items() if n]
        if listed:
            yield f"Runs that {what}: {', '.join(listed)}."
    seeds, tasks = len(table["seeds"]), len(table["tasks"])
    restarts = f", each fine-tuned {table['restarts']} times" if table["restarts"] > 1 else ""
    yield (
        f"Each score is the mean over {counted(seeds, 'pretrained model')}{restarts}. The interval is over seeds of this "
        f"procedure on {'this task' if tasks == 1 else 'these tasks'}, not over tasks or corpora."
    )
    sizes = [arm["parameters"] for arm in table["arms"] if arm["parameters"]]
    read = [arm["tokens"] for arm in table["arms"] if arm["tokens"]]
    if sizes and read and (max(sizes) < PAPERS_BASE[0] / 2 or max(read) < PAPERS_BASE[1] / 2):
        yield (
            f"Models of at most {prefixed(max(sizes))} parameters read at most {prefixed(max(read))} tokens. The paper's "
            f"BERT-Base has {prefixed(PAPERS_BASE[0])} parameters and read {prefixed(PAPERS_BASE[1])} tokens, so an order found "
            "here may not hold at that size."
        )
    kinds = {found[0] for arm in table["arms"] if (found := eval_loss(arm))}
    if len(kinds) > 1:
        names = ", ".join(sorted(kinds))
        yield f"The held-out losses ({names}) belong to different predictions, so they cannot be compared between arms."


Rows = Sequence[Sequence[str]]


def markdown(content: JsonObject) -> str:
    """Returns the text of `table.md`. `content` is the content of `table.json`."""
    table = content["table"]
    parts = [f"# {table['title']}" + (f" ({table['setting']})" if table["setting"] else ""), budget_sentence(table)]
    parts.append(_markdown_table(main_rows(content)))
    if len(differences := difference_rows(table)) > 1:
        parts += [f"## Differences to {_title(table, table['reference'])}", _markdown_table(differences)]
        parts.append("Means over seeds of paired differences, with their 95 % intervals.")
    if len(paper := paper_rows(table)) > 1:
        parts += ["## The paper's rows", _markdown_table(paper), table["paper"]]
    if table["expected"]:
        parts += ["## Expected before the study ran, and what came out", _markdown_table(expected_rows(table))]
    parts += ["## What the numbers show, and what they do not", "\n".join(f"- {line}" for line in findings(table))]
    return "\n\n".join(filter(None, parts)) + "\n"


def plain(content: JsonObject) -> str:
    """Returns the tables and sentences for a terminal."""
    table = content["table"]
    parts = [budget_sentence(table), _plain_table(main_rows(content))]
    parts += [_plain_table(rows) for rows in (difference_rows(table), paper_rows(table), expected_rows(table)) if len(rows) > 1]
    return "\n\n".join([*parts, "\n".join(findings(table))])


def main_rows(content: JsonObject) -> Rows:
    """Returns the header and one row per arm. A row has the arm's costs, the held-out loss, and the scores as mean ±
    deviation."""
    table, measured = content["table"], content["measured"]
    columns = _columns(table)
    baselines = table["baselines"]
    header = ["arm", "tokens", "time", "FLOPs", "parameters", "held-out loss"]
    header += [
        f"{column}, {table['tasks'][column].partition('/')[2]}" if column in table["tasks"] else column for column in columns
    ]
    rows = [header]
    for arm in table["arms"]:
        loss = eval_loss(arm)
        seconds = measured[arm["name"]].get("training_seconds")
        row = [arm["title"], prefixed(arm["tokens"]), "-" if seconds is None else duration(seconds), prefixed(arm["flops"])]
        row += ["-" if arm["parameters"] is None else prefixed(arm["parameters"])]
        row += [f"{loss[1]:.3f} ({loss[0]})" if loss else "-"]
        rows.append([*row, *(_with_deviation(arm["scores"][column]) for column in columns)])
    if any(value is not None for value in baselines.values()):
        rows.append(["best single answer", *["-"] * 5, *(score(baselines.get(column)) for column in columns)])
    return rows


def difference_rows(table: JsonObject) -> Rows:
    """Returns the header and one row per arm except the reference. A row has the paired differences with their intervals."""
    columns = _columns(table)
    rows = [["arm", *columns]]
    for arm in table["arms"]:
        if arm["minus_reference"]:
            rows.append([arm["title"], *(_with_interval(arm["minus_reference"][column]) for column in columns)])
    return rows


def paper_rows(table: JsonObject) -> Rows:
    """Returns the header and one row with the paper's scores for each arm that has such scores."""
    columns = list(dict.fromkeys(column for arm in table["arms"] for column in arm["paper"]))
    rows = [["arm", *columns]]
    rows += [
        [arm["title"], *(f"{arm['paper'][column]:g}" if column in arm["paper"] else "-" for column in columns)]
        for arm in table["arms"]
        if arm["paper"]
    ]
    return rows


def expected_rows(table: JsonObject) -> Rows:
    """Returns the header and one row for each combination of an expected order and a task."""
    rows = [["expected", "on", "came out", "means", "pairs beyond chance"]]
    for one in table["expected"]:
        shown = sum(pair["verdict"] == "as expected" for pair in one["pairs"])
        opposite = sum(pair["verdict"] == "opposite" for pair in one["pairs"])
        against = f", {opposite} opposite" if opposite else ""
        measured = all(pair["mean"] is not None for pair in one["pairs"])
        verdict = ("as expected" if one["holds"] else "missed") if measured else "not measured yet"
        rows.append(
            [one["order"], one["task"], " > ".join(one["came_out"]) or "-", verdict, f"{shown} of {len(one['pairs'])}{against}"]
        )
    return rows


def _columns(table: JsonObject) -> list[str]:
    return list(table["arms"][0]["scores"])


def _title(table: JsonObject, name: str) -> str:
    return next(arm["title"] for arm in table["arms"] if arm["name"] == name)


def _with_deviation(found: JsonObject) -> str:
    if found["deviation"] is None:
        return score(found["mean"])
    return f"{score(found['mean'])} ± {score(found['deviation'])}"


def _with_interval(found: JsonObject) -> str:
    if found["low"] is None:
        return signed(found["mean"])
    return f"{signed(found['mean'])} ({signed(found['low'])} to {signed(found['high'])})"


def _markdown_table(rows: Rows) -> str:
    header, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([header, "|" + "---|" * len(rows[0]), *others])


def _plain_table(rows: Rows) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
