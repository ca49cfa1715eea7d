"""The published scores of other systems, from `published.json`: for `results.json`, log lines and the page of results.

    python -m bert_jax.tasks.published > experiments/results/published.md

Each table in the file has a row for each system, with the numbers as printed in the source. Multiplying by `scale` converts
them to the units of our scores. `note` is the reason why the rows are not comparable with our scores, such as hidden test
labels or a different formula. Each column names its task. `examples` has the number of training examples of each column's task.
Tables with `counts` hold confusion matrices instead of scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.files import read_json
from bert_jax.interface.flags import FlagParser
from bert_jax.interface.words import counted
from bert_jax.tasks.scores import accuracy, macro_precision, macro_recall

FILE = pathlib.Path(__file__).with_suffix(".json")
_WIDTH = 127  # width of a line of text
_PAGE = """# Published rows

The published scores of other systems on these tasks. A run writes the rows of its task to `published` in `results.json`, and
logs them after its own scores. A translation run that is trained on `tfds:wmt14_translate` has published rows too. Each table
states what its scores were measured on. Scores that come from a test server or use a different formula are shown but not
ranked. All numbers are printed as in their sources.

## The tables

The tables are made from `bert_jax/tasks/published.json`:

    python -m bert_jax.tasks.published > experiments/results/published.md
"""


@dataclasses.dataclass(frozen=True)
class Published:
    """The scores of a system on a split, in the units of our scores. `source` is the table or file that the scores come from.
    `note` is the reason why they are not comparable with our scores, or "" if they are comparable."""

    system: str
    split: str
    source: str
    note: str
    scores: Mapping[str, float]


@functools.cache
def published(task: str) -> tuple[Published, ...]:
    """Returns the published rows of a task, in the order of the file, or () if there are none. For a translation run on WMT14,
    the task is "newstest2014" and the languages, e.g. "newstest2014 en-de"."""
    return tuple(row for table in _tables() for row in _rows(table, task))


def score_lines(rows: Sequence[Published], metric: str) -> Iterator[str]:
    """Yields a line for each row, and a heading whenever the split or the note changes. The main `metric` is the first score in
    a line."""
    heading = ""
    for row in rows:
        before, heading = heading, f"published, {row.split}" + (f" ({row.note})" if row.note else "")
        if heading != before:
            yield heading
        names = sorted(row.scores, key=lambda name: name != metric)
        yield f"  {row.system}: {'  '.join(f'{name} {row.scores[name]:.4g}' for name in names)} ({row.source})"


def prover_scores(counts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Returns the scores of an entailment prover from its confusion matrix `counts`.

    `counts` is [3, 3], with a row for each true label and a column for each answer. Both are in the order entailment,
    contradiction, neutral. Precision and recall are means over the three labels, as in our scores. LangPro and ccg2lambda count
    only the pairs for which they found a proof, i.e. the pairs answered with entailment or contradiction. The scores over these
    pairs have separate names."""
    table = np.array(counts)
    labels, answers = (np.repeat(side.ravel(), table.ravel()) for side in np.indices(table.shape))
    proved = np.trace(table[:2, :2])
    scores = {
        "precision": macro_precision(answers, labels),
        "recall": macro_recall(answers, labels),
        "accuracy": accuracy(answers, labels),
        "precision over proofs": proved / table[:, :2].sum(),
        "recall over proofs": proved / table[:2].sum(),
    }
    return {name: round(float(value), 4) for name, value in scores.items()}


def page() -> str:
    """Returns the page of all tables, in Markdown."""
    parts = [_PAGE]
    for table in _tables():
        rows = len(table.get("rows", ())) or len(table["counts"])
        about = f"Source: {table['source']}; {counted(rows, 'row')}.{_sentence(table['note'])}"
        parts.append(f"\n### {table['title']}\n\n{textwrap.fill(about, _WIDTH)}")
        if "counts" in table:
            names = list(prover_scores(table["counts"][0][2]))
            lines = [
                (system, *(f"{100 * score:.2f}" for score in prover_scores(counts).values()))
                for system, _, counts in table["counts"]
            ]
        else:
            tasks = {task for task, _ in table["columns"]}
            names = [score if len(tasks) == 1 else f"{task.removeprefix('glue/')}: {score}" for task, score in table["columns"]]
            lines = [(system, *("" if v is None else str(v) for v in values)) for system, *values in table["rows"]]
        if "examples" in table:
            lines.insert(0, ("(training examples)", *table["examples"]))
        cells = [("system", *names), ("---",) * (len(names) + 1), *lines]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
        if "counts" in table:
            sources = (f"- {system}: {source}." for system, source, _ in table["counts"])
            parts.append("\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in sources))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sentence(note: str) -> str:
    return f" {note[:1].upper()}{note[1:]}." if note else ""


@functools.cache
def _tables() -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = read_json(FILE)
    return tables


def _rows(table: Mapping[str, Any], task: str) -> Iterator[Published]:
    split, note, scale = table["split"], table["note"], table["scale"]
    if "counts" in table:
        for system, source, counts in table["counts"] if task == "sick/entailment" else ():
            yield Published(system, split, source, note, prover_scores(counts))
        return
    for system, *values in table["rows"]:
        of_task = zip(table["columns"], values, strict=True)
        scores = {score: round(scale * v, 6) for (name, score), v in of_task if name == task and v is not None}
        if scores:
            yield Published(system, split, table["source"], note, scores)


if __name__ == "__main__":
    FlagParser(prog="python -m bert_jax.tasks.published", description=__doc__).parse_args()
    print(page(), end="")
