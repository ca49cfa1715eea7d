"""The report: its numbers counted anew from the text, and its warnings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.corpus import survey
from bert_jax.corpus.cleaning import RULES
from bert_jax.corpus.report import format_report
from bert_jax.corpus.store import open_corpus
from tests.corpus.conftest import english


def test_the_numbers_are_those_of_the_text(tmp_path, build, tiny):
    documents = [*english(100), "A 中 line with ꙮ in it.\n" + english(1, seed=9)[0]]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    lines = [tuple(tiny.encode(line)) for text in documents for line in text.split("\n")]
    totals = {
        name: sum(split[name] for split in report["splits"].values())
        for name in ("documents", "sentences", "tokens", "unknown_tokens")
    }
    assert totals == {"documents": 101, "sentences": len(lines), "tokens": sum(map(len, lines)), "unknown_tokens": 1}
    assert report["duplicate_line_rate"] == pytest.approx(1 - len(set(lines)) / len(lines))
    bins = dict.fromkeys(range(24), 0)
    for line in lines:
        bins[len(line).bit_length() - 1] += 1
    assert report["sentence_length_histogram"] == [[2**k, 2 ** (k + 1) - 1, count] for k, count in bins.items() if count]
    assert sum(count for _, _, count in report["document_length_histogram"]) == 101
    assert report["read"]["documents"] == 101
    assert report["layouts"] == {"sentences": ["a.txt"]}


def test_repeated_lines_are_counted_shown_and_warned_of(tmp_path, build):
    texts = [f"All rights reserved by the cat.\n{text}" for text in english(200)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert report["most_repeated_lines"][0]["occurrences"] == 200
    assert report["most_repeated_lines"][0]["text"].startswith("all rights")
    assert report["duplicate_line_rate"] > 0.1
    assert any("repeat an earlier line" in warning and "stayed at 7-8" in warning for warning in report["warnings"])
    assert "200 x all rights" in format_report(report)


def test_a_vocabulary_that_does_not_fit_is_warned_of(tmp_path, build):
    (tmp_path / "a.txt").write_text("\n\n".join(["Эта фраза не для этого словаря.\nИ эта тоже, увы.", *english(3)]))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences", heldout_fraction=0.0)
    assert report["splits"]["train"]["unknown_rate"] > 0.01
    assert any("does not fit the text" in warning for warning in report["warnings"])
    assert any("no document is held out" in warning for warning in report["warnings"])


def test_one_document_and_documents_of_one_sentence_are_warned_of(tmp_path, build):
    (tmp_path / "a.txt").write_text(english(1)[0])
    report = build(tmp_path / "one", f"text:{tmp_path}/a.txt", layout="sentences", heldout_fraction=0.0)
    assert any("only one document" in warning for warning in report["warnings"])
    (tmp_path / "a.txt").write_text("\n".join(line for text in english(30) for line in text.split("\n")))
    report = build(tmp_path / "lines", f"text:{tmp_path}/a.txt", layout="lines")
    assert any("have a single sentence" in warning for warning in report["warnings"])


def test_good_text_gives_no_warning(tmp_path, text_file, build):
    report = build(tmp_path / "corpus", f"text:{text_file}")
    assert report["warnings"] == []
    assert (tmp_path / "corpus" / "report.txt").read_text() == format_report(report)


def test_what_was_dropped_is_counted_by_its_rule_and_nothing_is_said_of_rules_that_dropped_nothing(tmp_path, build):
    """The first rule stands beside the title; where no rule dropped anything, "nothing" does."""
    documents = english(30)
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    clean = format_report(build(tmp_path / "clean", f"text:{tmp_path}/a.txt", layout="sentences"))
    assert dropped_lines(clean) == ["dropped      nothing"]
    (tmp_path / "a.txt").write_text("\n\n".join([*documents, documents[0], f"***\n{english(1, seed=9)[0]}"]))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert {name: count for name, count in report["dropped"].items() if count} == {"duplicate-documents": 1, "symbol-lines": 1}
    assert dropped_lines(format_report(report)) == [
        f"dropped              1 duplicate-documents: {RULES['duplicate-documents']}",
        f"                     1 symbol-lines: {RULES['symbol-lines']}",
    ]


def dropped_lines(text: str) -> list[str]:
    """The line of a report that begins with "dropped", and the indented lines behind it."""
    _, behind = text.split("\ndropped ", 1)
    first, *others = f"dropped {behind}".splitlines()
    return [first, *itertools.takewhile(lambda line: line.startswith("    "), others)]


def test_a_sample_of_lines_estimates_the_rate_of_repeats(tmp_path, build, monkeypatch):
    texts = [*english(400), *english(400)[:200]]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    keep = {"duplicate-documents"}
    exact = build(tmp_path / "exact", f"text:{tmp_path}/a.txt", layout="sentences", keep=keep)
    monkeypatch.setattr(survey, "_EXACT_SENTENCES", 800)
    sampled = build(tmp_path / "sampled", f"text:{tmp_path}/a.txt", layout="sentences", keep=keep)
    assert exact["duplicate_lines_sampled"] == 1
    assert sampled["duplicate_lines_sampled"] > 3
    assert sampled["duplicate_line_rate"] == pytest.approx(exact["duplicate_line_rate"], abs=0.06)
    assert "estimated from one in" in format_report(sampled)


def test_hashes_do_not_depend_on_how_tokens_are_chunked(tmp_path, text_file, build, monkeypatch):
    build(tmp_path / "corpus", f"text:{text_file}")
    corpus = open_corpus(tmp_path / "corpus")
    tokens, offsets = corpus.tokens[:], corpus.sentence_offsets
    whole = survey._sentence_hashes(tokens, offsets, corpus.vocabulary.size)
    monkeypatch.setattr(survey, "_CHUNK_TOKENS", 7)
    assert np.array_equal(survey._sentence_hashes(tokens, offsets, corpus.vocabulary.size), whole)
    lines = [tuple(tokens[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
    assert len(set(whole.tolist())) == len(set(lines))
