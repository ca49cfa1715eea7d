"""Numbers agree with their nouns: "1 epoch", not "1 epochs". Texts for users are written with `words.counted`."""

from __future__ import annotations

import ast
import itertools
import pathlib
import re
from collections.abc import Iterator

import pytest

from bert_jax.interface.words import counted

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PLURALS = (
    "answers|batches|bytes|characters|chips|choices|columns|devices|documents|entries|epochs|examples|"
    "files|heads|hosts|labels|layers|lines|numbers|parameters|pieces|positions|predictions|processes|"
    "programs|questions|records|rows|runs|sentences|shards|slices|steps|tensors|texts|times|tokens|"
    "units|windows|words|workers"
)
NEVER_ONE = {
    "{length} tokens",  # at least 8 in a row
    "{room} tokens",  # in such a row
    "{slices} slices",  # one slice always fits
    "{'spans' if len(within) == 1 else 'span'} slices",  # a verb
    "{table['restarts']} times",  # used only for more than one
    "{sum(steps) * factor} steps",  # more than a run can have
    "{prefixed(amount)} tokens",  # millions, as are the next four
    "{prefixed(max(read))} tokens",
    "{prefixed(max(sizes))} parameters",
    "{prefixed(PAPERS_BASE[0])} parameters",
    "{prefixed(PAPERS_BASE[1])} tokens",
    "{curve.corpus_tokens} tokens",
    "{len(_T_95) + 1} runs",  # ten
    "{RARE} times",  # ten
    "{COLUMNAR[kind]} files",  # Parquet or Arrow files
    "{tabs + 1} texts",  # between TABs, so at least two
    "{SIDES[side]} characters",  # of a source or a target, like the next two
    "{SIDES[side]} tokens",
    "{side} tokens",
    "{side['characters'] / max(1, side['tokens'])} characters",  # on average
    "{100 * rates[worse]} tokens",  # per 100 characters
    "{other} documents",  # the name of a source
    "{' and '.join((f'{one:,}' for one in steps))} steps",  # several
    "{len(found)} sentences",  # used only for more than one, like the next
    "{count} sentences",
}
DIRECTLY_AFTER = re.compile(rf" (?:{PLURALS})\b(?!/)")
AFTER_A_PLACE = re.compile(rf"%(?:d|s) (?:{PLURALS})\b(?!/)")


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "epoch", "1 epoch"),
        (0, "epoch", "0 epochs"),
        (1_234, "row", "1,234 rows"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (3, "entry", "3 entries"),
        (2, "day", "2 days"),
        (2, "process", "2 processes"),
        (2, "text feature", "2 text features"),
    ],
)
def test_a_number_and_its_noun_agree(number: int, noun: str, said: str):
    assert counted(number, noun) == said


def bare_counts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Returns (line, text) for every number in a program's texts that is followed by a plural noun. Errors for programmers,
    ValueErrors, do not count, nor do errors about bytes, of which there is never only one."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    theirs = [call for call in calls if call.func.id in ("ValueError", "Damaged")]  # type: ignore[attr-defined]
    inside = {id(node) for call in theirs for node in ast.walk(call)}
    for node in nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            for value, after in itertools.pairwise(node.values):
                if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant) or value.conversion != -1:
                    continue
                if found := DIRECTLY_AFTER.match(after.value):
                    yield node.lineno, f"{{{ast.unparse(value.value)}}}{found[0]}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := AFTER_A_PLACE.search(node.value)):
            yield node.lineno, found[0]


def test_the_search_finds_bare_counts():
    text = """
a = f"{n:,} epochs"; log.info("%d rows of %s", n, x); b = f"{len(x)} rows/s"; c = f"{counted(n, 'row')} lines"; d = f"{n} row"
raise ValueError(f"{n} rows")
"""
    assert [said for _, said in bare_counts(ast.parse(text))] == ["{n} epochs", "{counted(n, 'row')} lines", "%d rows"]


def test_every_count_that_a_person_reads_agrees_with_its_noun():
    found = {
        f"{path.relative_to(REPOSITORY)}:{line}: {said}"
        for path in sorted((REPOSITORY / "bert_jax").rglob("*.py"))
        for line, said in bare_counts(ast.parse(path.read_text()))
        if said not in NEVER_ONE
    }
    assert found == set()
