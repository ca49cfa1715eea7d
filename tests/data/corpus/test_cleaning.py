"""Cleaning: what is dropped and what is kept; every drop is counted under its rule."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

import pytest

from bert_jax.data.corpus.cleaning import RULES, CleaningConfig, clean_document
from bert_jax.data.corpus.sentences import detect_layout, is_wrapped, unwrap

PROSE = ["The first line has two sentences. This is the second.", "And another line follows it."]


def clean(lines: list[str], keep: frozenset[str] = frozenset(), **limits: int) -> tuple[list[str], dict[str, int]]:
    counts: Counter[str] = Counter()
    config = dataclasses.replace(CleaningConfig(keep=keep), **limits)
    sentences = clean_document(lines, is_sentence=False, config=config, counts=counts)
    return sentences, {name: count for name, count in counts.items() if count}


def test_prose_is_not_changed_or_counted():
    assert clean(PROSE) == ([*PROSE[0].replace(". T", ".|T").split("|"), PROSE[1]], {})


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("markup-lines", "<div class='x'>"),
        ("markup-lines", "</p><br/>Menu"),
        ("markup-lines", "<b>A menu of four</b>"),
        ("markup-lines", "{{Infobox settlement"),
        ("markup-lines", "{| class='wikitable'"),
        ("markup-lines", "|- style=bold"),
        ("markup-lines", "[[Category:Cats]]"),
        ("markup-lines", "https://example.com/a/b?c=d"),
        ("symbol-lines", "* * *"),
        ("symbol-lines", "------ 12.5 % ------"),
        ("repeated-lines", PROSE[1]),
        ("long-sentences", "word " * 1100),
    ],
)
def test_each_rule_drops_and_counts_its_lines_and_can_be_disabled(rule, line):
    plain, _ = clean(PROSE)
    assert clean([*PROSE, line]) == (plain, {rule: 1})
    kept, counts = clean([*PROSE, line], keep=frozenset({rule}))
    assert kept == [*plain, line.strip()]
    assert counts == {}


@pytest.mark.parametrize(
    "line",
    [
        "<p>This paragraph has its words between two tags.</p>",
        "<p>It has five words altogether.</p>",
        "| But this?",
        "See https://example.com for it.",
        "{x} is a set.",
    ],
)
def test_prose_with_some_markup_is_kept(line):
    assert clean([*PROSE, line])[1] == {}


def test_control_characters_are_removed_and_counted():
    sentences, counts = clean(["A bell\x07 and a nul\x00 and \ufffd and a lone \ud800 surrogate."])
    assert sentences == ["A bell and a nul and  and a lone  surrogate."]
    assert counts == {"control-characters": 4}


@pytest.mark.parametrize("lines", [[], [""], ["  ", "\t"], ["***"]])
def test_an_empty_document_is_counted(lines):
    sentences, counts = clean(lines)
    assert sentences == []
    assert counts["empty-documents"] == 1


def test_a_short_document_is_dropped_unless_kept():
    assert clean(["Too short."]) == ([], {"short-documents": 1})
    assert clean(["Too short."], keep=frozenset({"short-documents"})) == (["Too short."], {})
    assert clean(["Too short."], min_document_characters=10) == (["Too short."], {})


def test_the_limit_on_sentences_can_be_moved():
    assert clean(["Long " * 30 + "enough."], max_sentence_characters=100)[1] == {"long-sentences": 1, "empty-documents": 1}


def test_the_longest_sentence_and_the_shortest_document_are_kept():
    text = "Just so long."
    for limits in ({"max_sentence_characters": len(text)}, {"min_document_characters": len(text)}):
        assert clean([text], **{"min_document_characters": 1, **limits}) == ([text], {})
    for given in ("a" * 5000, "b" * 20):  # the default limits
        assert clean([given]) == ([given], {})
    assert clean(["a" * 5001, "b" * 19]) == ([], {"long-sentences": 1, "short-documents": 1})
    assert clean([text], max_sentence_characters=len(text) - 1, min_document_characters=1)[0] == []
    assert clean([text], min_document_characters=len(text) + 1)[0] == []


def test_lines_that_are_sentences_are_not_split():
    counts: Counter[str] = Counter()
    assert clean_document(PROSE, is_sentence=True, config=CleaningConfig(), counts=counts) == PROSE


def test_every_rule_is_described():
    assert all(RULES.values())


@pytest.mark.parametrize(
    "piece", ["<", "<a ", "</a", "<a b", "{{", "{|", "|-", "[[File:", "https://a", "\x00", "\ufffd", "_", "&", "é"]
)
def test_cleaning_takes_linear_time(piece):
    """Quadratic time would be minutes."""
    began = time.process_time()
    for line in (piece * 100_000, "<" + piece * 100_000, piece * 100_000 + "x", "https://" + piece * 100_000 + " x"):
        clean_document([line], is_sentence=False, config=CleaningConfig(), counts=Counter())
        detect_layout(line)
        is_wrapped([line] * 5)
        unwrap(line + "\n" * 50_000 + " \t" * 50_000 + line)
    assert time.process_time() - began < 10
