"""The corpus report: statistics of a corpus, and warnings about properties that harm pretraining."""

from __future__ import annotations

import numpy as np

from bert_jax.corpus.cleaning import ALWAYS, RULES
from bert_jax.corpus.files import JsonObject
from bert_jax.corpus.heldout import min_heldout_documents
from bert_jax.corpus.survey import ShardSurvey, duplicate_lines
from bert_jax.corpus.tokenizer import Tokenizer
from bert_jax.interface.words import counted

DUPLICATE_LINES_LIMIT = 0.10
UNKNOWN_LIMIT = 0.01
_SKIPPED = {
    "replaced-bytes": "bytes that are not UTF-8, read as U+FFFD",
    "bad-records": "records without a text, skipped",
}


def corpus_report(
    manifest: JsonObject, surveys: list[ShardSurvey], tokenizer: Tokenizer, sampled: int, fractions: dict[str, float]
) -> JsonObject:
    """The content of report.json.

    sampled: duplicate lines were counted in one of this many hash classes. fractions: held-out fractions, "asked" (requested),
    "used", and "least" (the smallest that holds out enough documents to evaluate on).
    """
    rate, repeated = duplicate_lines(surveys)
    splits = {}
    for split, counts in manifest["splits"].items():
        unknown = sum(survey.unknown[split] for survey in surveys)
        splits[split] = counts | {"unknown_tokens": unknown, "unknown_rate": unknown / max(1, counts["tokens"])}
    report: JsonObject = {
        "splits": splits,
        "duplicate_line_rate": rate,
        "duplicate_lines_sampled": sampled,
        "most_repeated_lines": [{"occurrences": count, "text": tokenizer.decode(ids)[:100]} for count, ids in repeated],
        "one_sentence_documents": sum(survey.one_sentence_documents for survey in surveys),
        "sentence_length_histogram": _histogram(np.sum([survey.sentence_lengths for survey in surveys], axis=0)),
        "document_length_histogram": _histogram(np.sum([survey.document_lengths for survey in surveys], axis=0)),
        "read": manifest["read"],
        "dropped": manifest["dropped"],
        "layouts": manifest["layouts"],
        "vocabulary": manifest["vocabulary"],
        "heldout_fractions": fractions,
    }
    return report | {"warnings": _warnings(report)}


def _histogram(bins: np.ndarray) -> list[list[int]]:
    """[[shortest, longest, count]] of the bins, in tokens, from the first to the last that is not empty."""
    used = np.flatnonzero(bins)
    return [[1 << k, (2 << k) - 1, int(bins[k])] for k in range(used[0], used[-1] + 1)] if len(used) else []


def _warnings(report: JsonObject) -> list[str]:
    """Warnings about properties of the corpus that harm pretraining."""
    train, heldout = report["splits"]["train"], report["splits"]["heldout"]
    documents = train["documents"] + heldout["documents"]
    found = []
    if report["duplicate_line_rate"] > DUPLICATE_LINES_LIMIT:
        found.append(
            f"{report['duplicate_line_rate']:.0%} of the lines repeat an earlier line (more than {DUPLICATE_LINES_LIMIT:.0%}). "
            "The model memorises these lines, its training loss is misleading, and on such text losses have stayed at 7-8. "
            "Remove the boilerplate listed above."
        )
    if train["unknown_rate"] > UNKNOWN_LIMIT:
        found.append(
            f"{train['unknown_rate']:.1%} of the tokens are unknown (more than {UNKNOWN_LIMIT:.0%}): this vocabulary does "
            "not fit the text, and the model cannot learn unknown words. Train one with --train-vocab=wordpiece, or check "
            "--lowercase/--cased."
        )
    if train["documents"] == 1:
        found.append(
            "there is only one document: a random next segment must come from another document, so NSP pairs are impossible."
        )
    elif report["one_sentence_documents"] > documents / 2:
        found.append(
            f"{report['one_sentence_documents']:,} of {counted(documents, 'document')} have a single sentence, which gives no "
            "next segment; train without NSP, or check --layout."
        )
    if heldout["documents"] < min_heldout_documents(documents):
        count = heldout["documents"]
        held = f"{counted(count, 'document')} {'is' if count == 1 else 'are'}" if count else "no document is"
        least = report["heldout_fractions"]["least"]
        found.append(
            f"{held} held out, too few to evaluate on; run the same command with --heldout-fraction={least:.3g}: nothing is "
            "tokenised again."
        )
    return found


def format_report(report: JsonObject) -> str:
    """The text of report.txt."""
    vocabulary = report["vocabulary"]
    casing = "uncased" if vocabulary["lowercase"] else "cased"
    lines = [
        f"vocabulary   {vocabulary['kind']}, {counted(vocabulary['size'], 'piece')}, {casing}",
        f"read         {counted(report['read'].get('documents', 0), 'document')}, "
        f"{counted(report['read'].get('characters', 0), 'character')}",
    ]
    lines += [f"             layout {layout}: {', '.join(names)}" for layout, names in report["layouts"].items()]
    for split, counts in report["splits"].items():
        lines.append(
            f"{split:<12} {counted(counts['documents'], 'document')}, {counted(counts['sentences'], 'sentence')}, "
            f"{counted(counts['tokens'], 'token')}, "
            f"{counts['unknown_rate']:.3%} unknown"
        )
    fractions = report["heldout_fractions"]
    if fractions["used"] != fractions["asked"]:
        why = f"{fractions['asked']:.1%} would be too few to evaluate on; set --heldout-fraction to override"
        lines.append(f"             {fractions['used']:.1%} of the documents are held out: {why}")
    estimated = "" if report["duplicate_lines_sampled"] == 1 else f" (estimated from one in {report['duplicate_lines_sampled']})"
    lines.append(f"repeats      {report['duplicate_line_rate']:.2%} of the lines equal an earlier one{estimated}")
    lines += [f"             {line['occurrences']:,} x {line['text']}" for line in report["most_repeated_lines"]]
    dropped = {name: count for name, count in report["dropped"].items() if count}
    explained = RULES | ALWAYS | _SKIPPED
    shown = [f"{count:>9,} {name}: {explained[name]}" for name, count in sorted(dropped.items())] or ["nothing"]
    lines += [f"{title:<13}{line}" for title, line in zip(["dropped", *[""] * len(shown)], shown, strict=False)]
    for title, bins in (("sentences", report["sentence_length_histogram"]), ("documents", report["document_length_histogram"])):
        lines.append(f"length of {title} in tokens")
        counts = [count for _, _, count in bins]
        lines += [f"  {low:>9,} - {high:<9,} {count:>12,} {'#' * round(40 * count / max(counts))}" for low, high, count in bins]
    lines += [f"WARNING: {warning}" for warning in report["warnings"]]
    return "\n".join(lines) + "\n"
