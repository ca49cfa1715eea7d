"""The report of a corpus: its numbers, counted again from the text, and its warnings."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from bert_jax.data.corpus import corpus_report as report_module
from bert_jax.data.corpus.cleaning import ALWAYS, RULES
from bert_jax.data.corpus.corpus_report import ShardSurvey, _warnings, corpus_report, format_report
from bert_jax.errors import UserError
from tests.data.conftest import english


def test_the_numbers_equal_counts_of_the_text(tmp_path, build, tiny):
    documents = [
        *english(97),
        *english(3, seed=8)[:2],
        "The cat sat on the old mat.",
        "A 中 line with ꙮ in it.\n" + english(1, seed=9)[0],
    ]
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
    assert report["read"] == {"documents": 101, "characters": sum(len(text.replace("\n", "")) for text in documents)}
    assert report["one_sentence_documents"] == sum("\n" not in text for text in documents)
    assert report["layouts"] == {"sentences": ["a.txt"]}


def test_repeated_lines_are_counted_shown_and_warned_about(tmp_path, build):
    texts = [f"All rights reserved by the cat.\n{text}" for text in english(200)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert report["most_repeated_lines"][0]["occurrences"] == 200
    assert report["most_repeated_lines"][0]["text"].startswith("all rights")
    assert report["duplicate_line_rate"] > 0.1
    assert any("repeat an earlier line" in warning and "stayed at 7-8" in warning for warning in report["warnings"])
    assert "200 x all rights" in format_report(report)


def test_an_unsuitable_vocabulary_gives_a_warning(tmp_path, build):
    (tmp_path / "a.txt").write_text("\n\n".join(["Эта фраза не для этого словаря.\nИ эта тоже, увы.", *english(3)]))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences", eval_fraction=0.0)
    assert report["splits"]["train"]["unknown_rate"] > 0.01
    assert any("does not fit the text" in warning for warning in report["warnings"])
    assert any("no document is held out" in warning for warning in report["warnings"])


def test_a_single_document_and_single_sentence_documents_give_a_warning(tmp_path, build):
    (tmp_path / "a.txt").write_text(english(1)[0])
    report = build(tmp_path / "one", f"text:{tmp_path}/a.txt", layout="sentences", eval_fraction=0.0)
    assert any("only one document" in warning for warning in report["warnings"])
    (tmp_path / "a.txt").write_text("\n".join(line for text in english(30) for line in text.split("\n")))
    report = build(tmp_path / "lines", f"text:{tmp_path}/a.txt", layout="lines")
    assert any("have a single sentence" in warning for warning in report["warnings"])


def test_mostly_repeated_dialogue_gives_a_warning(tmp_path, build):
    lines = [line for number in range(100) for line in ("Yes.", "No, I do not think so.", f"And what, then, of number {number}?")]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert report["dropped"]["repeated-lines"] == 198
    assert not any("cleaning dropped" in warning for warning in report["warnings"])  # 49 % of the characters
    (tmp_path / "a.txt").write_text("\n".join(line.partition(", then")[0] for line in lines))
    report = build(tmp_path / "less", f"text:{tmp_path}/a.txt", layout="sentences")
    (warning,) = [warning for warning in report["warnings"] if "cleaning dropped" in warning]
    assert re.match(r"cleaning dropped 99% of the text .* repeated-lines \(297 times\): .*--keep=repeated-lines\.$", warning)
    said = "0.00% of the lines equal an earlier line, after 297 that repeat within a document were dropped\n"
    assert f"repeats      {said}" in format_report(report)
    report = build(tmp_path / "kept", f"text:{tmp_path}/a.txt", layout="sentences", keep={"repeated-lines"})
    assert any("99% of the lines repeat an earlier line" in warning for warning in report["warnings"])


def test_mostly_duplicate_documents_give_a_warning(tmp_path, build):
    (tmp_path / "a.txt").write_text("\n\n".join(english(40) * 3))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    (warning,) = [warning for warning in report["warnings"] if "cleaning dropped" in warning]
    assert warning.startswith("cleaning dropped 67% of the text (more than 50%), most often by the rule duplicate-documents (80")


def test_good_text_gives_no_warning(tmp_path, text_file, build):
    report = build(tmp_path / "corpus", f"text:{text_file}")
    assert report["warnings"] == []
    assert (tmp_path / "corpus" / "report.txt").read_text() == format_report(report)


def test_dropped_lines_are_counted_by_rule(tmp_path, build):
    """The first rule is on the line of the title; if no rule dropped anything, the line says "nothing"."""
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
    """Returns the line of a report that begins with "dropped", and the indented lines after it."""
    _, behind = text.split("\ndropped ", 1)
    first, *others = f"dropped {behind}".splitlines()
    return [first, *itertools.takewhile(lambda line: line.startswith("    "), others)]


def test_a_sample_of_lines_estimates_the_rate_of_repeats(tmp_path, build, monkeypatch):
    texts = [*english(400), *english(400)[:200]]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    keep = {"duplicate-documents"}
    exact = build(tmp_path / "exact", f"text:{tmp_path}/a.txt", layout="sentences", keep=keep)
    monkeypatch.setattr(report_module, "_EXACT_SENTENCES", 800)
    sampled = build(tmp_path / "sampled", f"text:{tmp_path}/a.txt", layout="sentences", keep=keep)
    assert exact["duplicate_lines_sampled"] == 1
    assert sampled["duplicate_lines_sampled"] > 3
    assert sampled["duplicate_line_rate"] == pytest.approx(exact["duplicate_line_rate"], abs=0.06)
    assert "estimated from one in" in format_report(sampled)


def a_report(**changes: Any) -> dict[str, Any]:
    """Returns a report on a corpus without problems."""
    split = {"documents": 90, "sentences": 300, "tokens": 4000, "unknown_tokens": 0, "unknown_rate": 0.0}
    report = {
        "splits": {"train": split, "eval": split | {"documents": 10, "sentences": 1, "tokens": 1_500}},
        "duplicate_line_rate": 0.1,
        "duplicate_lines_sampled": 1,
        "most_repeated_lines": [{"occurrences": 1_200, "text": "all rights"}, {"occurrences": 2, "text": "the end"}],
        "one_sentence_documents": 50,
        "given_twice": [],
        "dropped_share": 0.5,
        "rare_pieces": 1_700,
        "unused_pieces": 752,
        "letters_changed": 0.002,
        "letters_changed_examples": "й → и",
        "sentence_length_histogram": [[2, 3, 10], [4, 7, 4_000], [8, 15, 0]],
        "document_length_histogram": [],
        "read": {"documents": 1_001, "characters": 1},
        "dropped": {"symbol-lines": 2, "bad-records": 1, "repeated-lines": 0, "control-characters": 12_345},
        "layouts": {"book": ["a.txt", "b.txt"], "lines": ["c.txt"]},
        "vocabulary": {"kind": "wordpiece", "size": 8_192, "lowercase": True},
        "eval_fractions": {"asked": 0.01, "used": 0.01, "least": 0.01},
        "warnings": [],
    }
    return report | changes


def splits(train: dict[str, float] | None = None, eval_split: dict[str, float] | None = None) -> dict[str, Any]:
    right = a_report()["splits"]
    return {"splits": {"train": right["train"] | (train or {}), "eval": right["eval"] | (eval_split or {})}}


def sides(*counts: tuple[int, int], lowercase: bool = False) -> dict[str, Any]:
    """Returns the part of a report on pairs, given the numbers of tokens and characters on each side."""
    named = zip(("en", "de"), counts, strict=True)
    found = [{"language": name, "tokens": tokens, "characters": characters} for name, (tokens, characters) in named]
    return {"sides": found, "vocabulary": a_report()["vocabulary"] | {"lowercase": lowercase}}


FROM_A_SOURCE = {"eval_fractions": {"asked": 0.0, "used": 0.0, "least": 0.0}}


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ({"letters_changed": 0.002}, {"letters_changed": 0.0021}, r"^0\.2% of the letters lose a mark .*\(й → и\).*--cased"),
        (
            {"dropped_share": 0.5},
            {"dropped_share": 0.51},
            r"^cleaning dropped 51% of the text .*rule symbol-lines \(2 times\): lines without letters\. .*-lines\.$",
        ),
        ({"duplicate_line_rate": 0.1}, {"duplicate_line_rate": 0.101}, r"^10% of the lines repeat .*more than 10%"),
        (splits({"unknown_rate": 0.01}), splits({"unknown_rate": 0.011}), r"^1\.1% of the tokens are unknown \(more than 1%\)"),
        (splits({"documents": 2}, {"documents": 98}), splits({"documents": 1}, {"documents": 98}), "^there is only one document"),
        ({"one_sentence_documents": 50}, {"one_sentence_documents": 51}, "^51 of 100 documents have a single sentence"),
        (
            splits(),
            splits({"documents": 91}, {"documents": 9}),
            r"^9 documents are held out, too few .*--eval-fraction=0\.01 .no text",
        ),
        (
            FROM_A_SOURCE,
            splits({"documents": 91}, {"documents": 9}) | FROM_A_SOURCE,
            "^9 documents are held out, too few to evaluate on; give more text with --eval-source, and another --output.$",
        ),
        (splits({"documents": 14}), splits({"documents": 14}, {"documents": 1}), "^1 document is held out, too few"),
        (splits(), splits(eval_split={"documents": 0}), "^no document is held out, too few"),
        ({"dropped": {}}, {"dropped": {}, "dropped_share": 0.51}, r"most often by the rule short-documents \(0 times\)"),
        ({}, {"given_twice": ["a.txt"]}, "^a.txt is matched by more than one --source"),
        ({}, {"given_twice": ["a.txt", "b", "c"]}, "^a.txt and 2 other files are matched by more than one"),
        (
            sides((2, 1), (2, 2)),
            sides((3, 1), (2, 2)),
            "^the vocabulary needs 300 tokens per 100 characters in en, but 100 in de, so it was made for only one",
        ),
        (sides((2, 2), (4, 2)), sides((2, 2), (5, 2)), "^the vocabulary needs 250 tokens per 100 characters in de, but 100"),
        (sides((2, 2), (2, 2)), sides((2, 2), (2, 2), lowercase=True), "^the vocabulary is lower-cased, so all translations"),
    ],
)
def test_a_warning_starts_above_its_limit(right, wrong, says):
    base = {"one_sentence_documents": 0}
    assert _warnings(a_report(**base | right)) == []
    (warning,) = _warnings(a_report(**base | wrong))
    assert re.search(says, warning)


def test_the_text_of_a_report_equals_the_expected_lines():
    report = a_report(
        duplicate_lines_sampled=2, eval_fractions={"asked": 0.01, "used": 0.125, "least": 0.125}, warnings=["first", "second"]
    )
    assert (
        format_report(report)
        == f"""\
vocabulary   wordpiece, 8,192 pieces, uncased
             1,700 pieces used under 10 times in train, 752 never used
read         1,001 documents, 1 character
             layout book: a.txt, b.txt
             layout lines: c.txt
train        90 documents, 300 sentences, 4,000 tokens, 0.000% unknown
eval         10 documents, 1 sentence, 1,500 tokens, 0.000% unknown
             12.5% of the documents are held out: 1.0% would be too few to evaluate on; --eval-fraction sets another fraction
repeats      10.00% of the lines equal an earlier line (estimated from one in 2)
             1,200 x all rights
             2 x the end
dropped              1 bad-records: records that were skipped because they have no text
                12,345 control-characters: {ALWAYS["control-characters"]}
                     2 symbol-lines: {RULES["symbol-lines"]}
length of sentences in tokens
          2 - 3                   10{" "}
          4 - 7                4,000 {"#" * 40}
          8 - 15                   0{" "}
length of documents in tokens
WARNING: first
WARNING: second
"""
    )
    plain = format_report(a_report(vocabulary={"kind": "wordpiece", "size": 1, "lowercase": False}, read={}))
    assert plain.startswith("vocabulary   wordpiece, 1 piece, cased\n             1,700 pieces used under")
    assert "\nread         0 documents, 0 characters\n" in plain
    stripped = format_report(a_report(letters_changed=0.091))
    assert "4,000 tokens, 0.000% unknown after 9.1% of the letters lost their marks\n" in stripped
    assert "10.00% of the lines equal an earlier line\n" in plain
    assert "--eval-fraction" not in plain


def test_a_report_adds_the_shards_up(tiny):
    def shard(sentences: dict[int, int], documents: dict[int, int], unknown: int) -> ShardSurvey:
        lengths = [np.array([counts.get(k, 0) for k in range(24)]) for counts in (sentences, documents)]
        ids = tiny.encode("the cat sat on " * 20)
        return ShardSurvey({}, np.array([9], np.uint64), np.array([2]), {9: ids}, *lengths, 3, {"train": unknown, "eval": 0})

    counts = {"documents": 3, "sentences": 9, "tokens": 8}
    manifest = {"splits": {"train": counts, "eval": counts | {"tokens": 0}}, "read": {}, "dropped": {}, "layouts": {}}
    manifest |= {"kept_characters": 0}
    shards = [shard({1: 2, 3: 1}, {5: 2}, 1), shard({2: 4, 3: 2}, {}, 3)]
    fractions = {"asked": 0.1, "used": 0.1, "least": 0.1}
    token_counts = np.full(tiny.size, 10)
    token_counts[[tiny.pad_id, *tiny.encode("a b c d")]] = (0, 0, 9, 9, 1)
    letters = {"a": 90, "й": 6, "책": 3, "é": 1, ".": 50}
    report = corpus_report(manifest | {"vocabulary": {}}, shards, tiny, 7, fractions, token_counts, letters)
    assert (report["rare_pieces"], report["unused_pieces"]) == (4, 1)
    assert (report["letters_changed"], report["letters_changed_examples"]) == (0.1, "й → и, 책 → ᄎ ᅢ ᆨ, é → e")
    assert report["splits"]["train"] == counts | {"unknown_tokens": 4, "unknown_rate": 0.5}
    assert report["splits"]["eval"]["unknown_rate"] == 0.0
    assert report["sentence_length_histogram"] == [[2, 3, 2], [4, 7, 4], [8, 15, 3]]
    assert report["document_length_histogram"] == [[32, 63, 2]]
    assert (report["duplicate_line_rate"], report["duplicate_lines_sampled"], report["one_sentence_documents"]) == (0.75, 7, 6)
    assert report["most_repeated_lines"] == [{"occurrences": 4, "text": ("the cat sat on " * 20)[:100]}]
    manifest["splits"]["train"]["tokens"] = 1
    report = corpus_report(manifest | {"vocabulary": {}}, shards, tiny, 7, fractions, token_counts, {})
    assert (report["splits"]["train"]["unknown_rate"], report["letters_changed"]) == (4.0, 0.0)


@pytest.mark.parametrize(
    ("read", "duplicates", "kept", "share"),
    [
        ({}, 0, 0, 0.0),
        ({"characters": 8, "documents": 4}, 1, 7, 0.25),
        ({"characters": 8, "documents": 4}, 1, 2, 0.75),
        ({"characters": 8, "documents": 4}, 0, 9, 0.0),
        ({"documents": 1}, 1, 0, 1.0),
    ],
)
def test_the_dropped_share_is_of_the_characters_or_of_repeated_documents(read, duplicates, kept, share):
    dropped = {"duplicate-documents": duplicates} if duplicates else {}
    assert report_module._dropped_share({"read": read, "dropped": dropped, "kept_characters": kept}) == share


def test_a_vocabulary_must_know_nine_tenths_of_each_language():
    right = {"source unknown": 1, "source tokens": 10, "target tokens": 5}
    report_module.require_both_languages(("en", "el"), right)
    report_module.require_both_languages(("en", "el"), {})
    for side, here, there in (("source", "en", "el"), ("target", "el", "en")):
        found = {"source tokens": 10, "target tokens": 10, f"{side} unknown": 2}
        with pytest.raises(UserError, match=f"20% of the tokens are unknown in {here} .*, 0.0% in {there}; train a vocabulary"):
            report_module.require_both_languages(("en", "el"), found)
    with pytest.raises(UserError, match="100% of the tokens are unknown in en"):
        report_module.require_both_languages(("en", "el"), {"source unknown": 1})
