"""The corpus report: statistics of a corpus, and warnings about properties that harm pretraining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.data.corpus.cleaning import ALWAYS, RULES
from bert_jax.data.corpus.heldout import min_heldout_documents
from bert_jax.data.corpus.survey import ShardSurvey, duplicate_lines
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.data.tokenizers.vocabulary_training import MARKS_LIMIT, stripped_share
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted

DUPLICATE_LINES_LIMIT = 0.10
UNKNOWN_LIMIT = 0.01
DROPPED_LIMIT = 0.5
RARE = 10
"""A piece that occurs less often in the train split is rare: it is hardly learned."""
_SKIPPED = {
    "replaced-bytes": "bytes that are not UTF-8, read as U+FFFD",
    "bad-records": "records without a text, skipped",
}


def corpus_report(
    manifest: JsonObject,
    surveys: list[ShardSurvey],
    tokenizer: Tokenizer,
    sampled: int,
    fractions: dict[str, float],
    token_counts: np.ndarray,
    letters: Mapping[str, int],
    given_twice: Sequence[str] = (),
) -> JsonObject:
    """The content of report.json.

    sampled: duplicate lines were counted in one of this many hash classes. fractions: held-out fractions, "asked" (requested),
    "used", and "least" (the smallest that holds out enough documents to evaluate on). token_counts: int64 [V], of the train
    split. letters: frequencies of the characters in a sample of the text, if the vocabulary drops
    marks. given_twice: the files that several sources name.
    """
    rate, repeated = duplicate_lines(surveys)
    splits = {}
    for split, counts in manifest["splits"].items():
        unknown = sum(survey.unknown[split] for survey in surveys)
        splits[split] = counts | {"unknown_tokens": unknown, "unknown_rate": unknown / max(1, counts["tokens"])}
    ordinary = np.ones(len(token_counts), bool)
    ordinary[list(tokenizer.special_ids)] = False
    changed, examples = stripped_share(letters)
    report: JsonObject = {
        "splits": splits,
        "rare_pieces": int((token_counts[ordinary] < RARE).sum()),
        "unused_pieces": int((token_counts[ordinary] == 0).sum()),
        "letters_changed": changed,
        "letters_changed_examples": examples,
        "duplicate_line_rate": rate,
        "duplicate_lines_sampled": sampled,
        "most_repeated_lines": [{"occurrences": count, "text": tokenizer.decode(ids)[:100]} for count, ids in repeated],
        "one_sentence_documents": sum(survey.one_sentence_documents for survey in surveys),
        "sentence_length_histogram": _histogram(np.sum([survey.sentence_lengths for survey in surveys], axis=0)),
        "document_length_histogram": _histogram(np.sum([survey.document_lengths for survey in surveys], axis=0)),
        "read": manifest["read"],
        "given_twice": list(given_twice),
        "dropped": manifest["dropped"],
        "dropped_share": _dropped_share(manifest),
        "layouts": manifest["layouts"],
        "vocabulary": manifest["vocabulary"],
        "heldout_fractions": fractions,
    }
    return report | {"warnings": _warnings(report)}


def _dropped_share(manifest: JsonObject) -> float:
    """The share of the text that the cleaning rules dropped: of its characters, or of its documents if more of those repeat."""
    read, dropped = manifest["read"], manifest["dropped"]
    characters = read.get("characters", 0)
    of_text = 1 - manifest["kept_characters"] / characters if characters else 0.0
    repeated = dropped.get("duplicate-documents", 0) / max(1, read.get("documents", 0))
    return max(0.0, of_text, repeated)


def _histogram(bins: np.ndarray) -> list[list[int]]:
    """[[shortest, longest, count]] of the bins, in tokens, from the first to the last that is not empty."""
    used = np.flatnonzero(bins)
    return [[1 << k, (2 << k) - 1, int(bins[k])] for k in range(used[0], used[-1] + 1)] if len(used) else []


def _warnings(report: JsonObject) -> list[str]:
    """Warnings about properties of the corpus that harm pretraining."""
    train, heldout = report["splits"]["train"], report["splits"]["heldout"]
    documents = train["documents"] + heldout["documents"]
    found = []
    if twice := report["given_twice"]:
        more = f" and {counted(len(twice) - 1, 'other file')} are" if len(twice) > 1 else " is"
        found.append(
            f"{twice[0]}{more} given by more than one --source. Documents that repeat were dropped, unless "
            "--keep=duplicate-documents; give each file once."
        )
    if report["letters_changed"] > MARKS_LIMIT:
        found.append(
            f"{report['letters_changed']:.1%} of the letters lose a mark or are taken apart before they are looked up "
            f"({report['letters_changed_examples']}): this vocabulary drops accents and marks. The model cannot tell words "
            "apart that differ in them, and they do not count as unknown. Keep the marks: --cased for a new vocabulary, or a "
            "published one that is cased."
        )
    if report["duplicate_line_rate"] > DUPLICATE_LINES_LIMIT:
        found.append(
            f"{report['duplicate_line_rate']:.0%} of the lines repeat an earlier line (more than {DUPLICATE_LINES_LIMIT:.0%}). "
            "The model memorises these lines, its training loss is misleading, and on such text losses have stayed at 7-8. "
            "Remove the boilerplate listed above."
        )
    if report["dropped_share"] > DROPPED_LIMIT:
        rules = [(count, rule) for rule, count in report["dropped"].items() if rule in RULES]
        count, rule = max(rules, default=(0, "short-documents"))
        found.append(
            f"cleaning dropped {report['dropped_share']:.0%} of the text (more than {DROPPED_LIMIT:.0%}), most often by the rule "
            f"{rule} ({counted(count, 'time')}): {RULES[rule]}. If this is text that you want, such as the lines of a dialogue, "
            f"add --keep={rule}."
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
        f"             {counted(report['rare_pieces'], 'piece')} under {RARE} times in train, {report['unused_pieces']:,} never",
        f"read         {counted(report['read'].get('documents', 0), 'document')}, "
        f"{counted(report['read'].get('characters', 0), 'character')}",
    ]
    lines += [f"             layout {layout}: {', '.join(names)}" for layout, names in report["layouts"].items()]
    lost = report["letters_changed"]
    caveat = f" after {lost:.1%} of the letters lost their marks" if lost > MARKS_LIMIT else ""
    for split, counts in report["splits"].items():
        lines.append(
            f"{split:<12} {counted(counts['documents'], 'document')}, {counted(counts['sentences'], 'sentence')}, "
            f"{counted(counts['tokens'], 'token')}, "
            f"{counts['unknown_rate']:.3%} unknown{caveat}"
        )
    fractions = report["heldout_fractions"]
    if fractions["used"] != fractions["asked"]:
        why = f"{fractions['asked']:.1%} would be too few to evaluate on; set --heldout-fraction to override"
        lines.append(f"             {fractions['used']:.1%} of the documents are held out: {why}")
    estimated = "" if report["duplicate_lines_sampled"] == 1 else f" (estimated from one in {report['duplicate_lines_sampled']})"
    within = report["dropped"].get("repeated-lines", 0)
    after = f", after {within:,} that repeat within a document were dropped" if within else ""
    lines.append(f"repeats      {report['duplicate_line_rate']:.2%} of the lines equal an earlier one{estimated}{after}")
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
