"""Converts the lines of a document to sentences. Lines, sentences and documents that are not text are dropped, and counted for
each rule.

Every rule has a name. `--keep=NAME` switches the rule off.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable

from bert_jax.data.corpus.sentences import split_sentences

#: rule -> description of the dropped text, for the report and `--help`
RULES = {
    "markup-lines": "lines of markup: HTML or XML tags, wiki tables and templates, bare URLs",
    "symbol-lines": "lines without letters",
    "repeated-lines": "lines equal to an earlier line of the same document",
    "long-sentences": "sentences of more than --max-sentence-characters",
    "short-documents": "documents of fewer than --min-document-characters",
    "duplicate-documents": "documents with the same tokens as an earlier document of the corpus",
    "unlike-lengths": "pairs whose lengths differ by more than a factor of --max-length-ratio",
    "long-pairs": "pairs in which a text has more than --max-pair-tokens tokens",
}
#: description of the text that is always dropped and counted
ALWAYS = {
    "control-characters": "control characters, U+FFFD and lone surrogates, which the tokenizer drops too",
    "empty-documents": "documents without a sentence after cleaning",
    "empty-sides": "pairs in which a text is empty",
}

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ud800-\udfff]")
_MARKUP = re.compile(r"</?[A-Za-z!][^<>]*>|\{\{|\}\}|\{\||\|\}|\|[-+]|\[\[(?:File|Image|Category):|https?://\S+\Z")
_TAG = re.compile(r"<[^<>]*>")
_LETTER = re.compile(r"[^\W\d_]")


@dataclasses.dataclass(frozen=True)
class CleaningConfig:
    """The disabled rules, and the limits of two rules."""

    keep: frozenset[str] = frozenset()  # the rules that are switched off
    max_sentence_characters: int = 5000
    min_document_characters: int = 20


def clean_document(lines: Iterable[str], *, is_sentence: bool, config: CleaningConfig, counts: Counter[str]) -> list[str]:
    """Returns the sentences of a document, or [] if the document is dropped. For each rule, adds the number of dropped lines,
    sentences or documents to `counts`.

    `lines` are paragraphs of prose, or sentences if `is_sentence` is True.
    """
    rules = RULES.keys() - config.keep
    sentences: list[str] = []
    seen: set[str] = set()
    for line in lines:
        line = without_controls(line, counts).strip()
        if not line:
            continue
        if "markup-lines" in rules and _is_markup(line):
            counts["markup-lines"] += 1
        elif "symbol-lines" in rules and not _LETTER.search(line):
            counts["symbol-lines"] += 1
        elif "repeated-lines" in rules and line in seen:
            counts["repeated-lines"] += 1
        else:
            seen.add(line)
            sentences += [line] if is_sentence else split_sentences(line)
    if "long-sentences" in rules:
        before = len(sentences)
        sentences = [s for s in sentences if len(s) <= config.max_sentence_characters]
        counts["long-sentences"] += before - len(sentences)
    if not sentences:
        counts["empty-documents"] += 1
    elif "short-documents" in rules and sum(map(len, sentences)) < config.min_document_characters:
        counts["short-documents"] += 1
        return []
    return sentences


def without_controls(text: str, counts: Counter[str]) -> str:
    """Returns `text` without control characters. Adds the number of removed characters to `counts`."""
    if not _CONTROLS.search(text):
        return text
    text, removed = _CONTROLS.subn("", text)
    counts["control-characters"] += removed
    return text


def _is_markup(line: str) -> bool:
    """Returns whether a line is markup, i.e. whether it starts with markup. A line that starts with a tag but has five or more
    words outside of tags (`<p>Some words ...`) is prose."""
    if line[0] not in "<{|}[h" or not _MARKUP.match(line):
        return False
    return line[0] != "<" or len(_TAG.sub("", line).split()) < 5
