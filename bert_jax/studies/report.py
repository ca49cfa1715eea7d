"""`table.md`, and the same as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.files import JsonObject
from bert_jax.interface.words import duration, prefixed
from bert_jax.studies import words
from bert_jax.studies.words import score, signed

Rows = Sequence[Sequence[str]]


def markdown(content: JsonObject) -> str:
    """The text of `table.md`; `content` is that of `table.json`."""
    table = content["table"]
    parts = [f"# {table['title']}" + (f" ({table['setting']})" if table["setting"] else ""), words.budget(table)]
    parts.append(_markdown_table(main_rows(content)))
    if len(differences := difference_rows(table)) > 1:
        parts += [f"## Differences to {_title(table, table['reference'])}", _markdown_table(differences)]
        parts.append("The mean over seeds of paired differences, and its 95 % interval.")
    if len(paper := paper_rows(table)) > 1:
        parts += ["## The paper's rows", _markdown_table(paper), table["paper"]]
    if table["expected"]:
        parts += ["## Expected before the study ran, and what came out", _markdown_table(expected_rows(table))]
    parts += ["## What the numbers show, and what they do not", "\n".join(f"- {line}" for line in words.findings(table))]
    return "\n\n".join(filter(None, parts)) + "\n"


def plain(content: JsonObject) -> str:
    """The tables and sentences for a terminal."""
    table = content["table"]
    parts = [words.budget(table), _plain_table(main_rows(content))]
    parts += [_plain_table(rows) for rows in (difference_rows(table), paper_rows(table), expected_rows(table)) if len(rows) > 1]
    return "\n\n".join([*parts, "\n".join(words.findings(table))])


def main_rows(content: JsonObject) -> Rows:
    """The header and a row for each arm: its costs, its held-out loss, and its scores as mean ± deviation."""
    table, measured = content["table"], content["measured"]
    columns = _columns(table)
    baselines = table["baselines"]
    header = ["arm", "tokens", "time", "FLOPs", "parameters", "held-out loss"]
    header += [
        f"{column}, {table['tasks'][column].partition('/')[2]}" if column in table["tasks"] else column for column in columns
    ]
    rows = [header]
    for arm in table["arms"]:
        loss = words.heldout_loss(arm)
        seconds = measured[arm["name"]].get("training_seconds")
        row = [arm["title"], prefixed(arm["tokens"]), "-" if seconds is None else duration(seconds), prefixed(arm["flops"])]
        row += ["-" if arm["parameters"] is None else prefixed(arm["parameters"])]
        row += [f"{loss[1]:.3f} ({loss[0]})" if loss else "-"]
        rows.append([*row, *(_with_deviation(arm["scores"][column]) for column in columns)])
    if any(value is not None for value in baselines.values()):
        rows.append(["best single answer", *["-"] * 5, *(score(baselines.get(column)) for column in columns)])
    return rows


def difference_rows(table: JsonObject) -> Rows:
    """The header and a row for each arm but the reference: paired differences with their intervals."""
    columns = _columns(table)
    rows = [["arm", *columns]]
    for arm in table["arms"]:
        if arm["minus_reference"]:
            rows.append([arm["title"], *(_with_interval(arm["minus_reference"][column]) for column in columns)])
    return rows


def paper_rows(table: JsonObject) -> Rows:
    """The header and the paper's row of each arm that has one."""
    columns = list(dict.fromkeys(column for arm in table["arms"] for column in arm["paper"]))
    rows = [["arm", *columns]]
    rows += [
        [arm["title"], *(f"{arm['paper'][column]:g}" if column in arm["paper"] else "-" for column in columns)]
        for arm in table["arms"]
        if arm["paper"]
    ]
    return rows


def expected_rows(table: JsonObject) -> Rows:
    """The header and a row for each expected order on each task."""
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
