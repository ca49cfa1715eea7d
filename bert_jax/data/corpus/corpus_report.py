"""The corpus report has statistics of a finished corpus, and warnings about properties that harm pretraining.

Equal sentences are found by comparing 64-bit polynomial hashes of their ids. Numpy computes the hashes of many sentences at
once (about 60 million tokens/s on one core). If there are more than `_EXACT_SENTENCES` sentences, only sentences whose hash is
in a fixed residue class are compared. All copies of a sentence are in the same class, so the duplicate rate is unbiased. Memory
is bounded.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_jax.data.corpus.cleaning import ALWAYS, RULES
from bert_jax.data.corpus.shard import SIDES, min_eval_documents
from bert_jax.data.corpus.store import ARRAYS, SPLITS, map_array
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.data.tokenizers.vocabulary_training import MARKS_LIMIT, stripped_share
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted

_EXACT_SENTENCES = 20_000_000
_CHUNK_TOKENS = 1 << 21
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # an odd number, because the powers of an even number become 0 modulo 2^64
_LENGTH_BINS = 24  # a length n is counted in bin floor(log2 n)
_REPEATED = 20  # the number of lines of a shard that are kept as examples; they are the most repeated lines


@dataclasses.dataclass(frozen=True)
class ShardSurvey:
    """The statistics of one shard. They are sums and hashes, which can be combined over shards."""

    document_hashes: dict[str, np.ndarray]  # split -> uint64 [D]
    line_hashes: np.ndarray  # uint64, the distinct hashes of the compared lines
    line_counts: np.ndarray  # int64, how often each of `line_hashes` occurs in this shard
    repeated: dict[int, list[int]]  # hash -> token ids, for lines that are frequent in this shard
    sentence_lengths: np.ndarray  # int64 [bins], a histogram of the lengths in tokens, over both splits
    document_lengths: np.ndarray  # int64 [bins], also in tokens and over both splits
    one_sentence_documents: int
    unknown: dict[str, int]  # split -> number of unknown tokens


def survey_shard(path: pathlib.Path, *, vocabulary_size: int, unk_id: int, every: int) -> ShardSurvey:
    """Computes the statistics of one shard. Lines are divided into `every` hash classes, and only the lines in one of the
    classes are compared (see `sampling`)."""
    hashes: dict[str, np.ndarray] = {}
    sentence_lengths, document_lengths = np.zeros(_LENGTH_BINS, np.int64), np.zeros(_LENGTH_BINS, np.int64)
    unknown, single = {}, 0
    lines, examples = [], {}
    for split in SPLITS:
        tokens, sentences, documents = (map_array(path / f"{split}.{name}.npy") for name in ARRAYS)
        of_sentences = _sentence_hashes(tokens, sentences, vocabulary_size)
        hashes[split] = _hash_runs(of_sentences, documents)
        sentence_lengths += _length_histogram(np.diff(sentences))
        document_lengths += _length_histogram(np.diff(sentences[documents]))
        single += int(np.sum(np.diff(documents) == 1))
        unknown[split] = sum(int(np.sum(chunk == unk_id)) for chunk in _chunks(tokens))
        sampled = np.flatnonzero(of_sentences % np.uint64(every) == 0)
        lines.append(of_sentences[sampled])
        distinct, first, counts = np.unique(lines[-1], return_index=True, return_counts=True)
        for k in np.argsort(-counts, kind="stable")[:_REPEATED]:
            place = sampled[first[k]]
            examples[int(distinct[k])] = tokens[sentences[place] : sentences[place + 1]].tolist()
    distinct, counts = np.unique(np.concatenate(lines), return_counts=True)
    return ShardSurvey(hashes, distinct, counts, examples, sentence_lengths, document_lengths, single, unknown)


def sampling(sentences: int) -> int:
    """Returns the number of hash classes for a corpus of `sentences` sentences. Only the lines in one of the classes are
    compared with each other. The rate of repeated lines is therefore exact if there is one class, and an estimate if there are
    more classes."""
    return max(1, sentences // _EXACT_SENTENCES)


def duplicate_lines(surveys: list[ShardSurvey]) -> tuple[float, list[tuple[int, list[int]]]]:
    """Returns the fraction of sentences that repeat an earlier sentence, and (occurrences, ids) for the most repeated
    sentences."""
    hashes = np.concatenate([survey.line_hashes for survey in surveys])
    counts = np.concatenate([survey.line_counts for survey in surveys])
    distinct, inverse = np.unique(hashes, return_inverse=True)
    totals = np.bincount(inverse, weights=counts, minlength=len(distinct))
    rate = float(1 - len(distinct) / totals.sum()) if len(distinct) else 0.0
    examples = {key: ids for survey in surveys for key, ids in survey.repeated.items()}
    best = sorted(((int(totals[np.searchsorted(distinct, np.uint64(key))]), ids) for key, ids in examples.items()), reverse=True)
    return rate, [(count, ids) for count, ids in best[:5] if count > 1]


def repeated_documents(surveys: list[ShardSurvey]) -> list[dict[str, np.ndarray]]:
    """Returns an array bool [D] for each shard and split. It is True for documents that equal an earlier document. The
    documents are in the order of the shards. Within a shard, train comes before eval."""
    everything = [(shard, split) for shard in range(len(surveys)) for split in SPLITS]
    lengths = [len(surveys[shard].document_hashes[split]) for shard, split in everything]
    hashes = np.concatenate([surveys[shard].document_hashes[split] for shard, split in everything])
    repeated = np.ones(len(hashes), bool)
    repeated[np.unique(hashes, return_index=True)[1]] = False  # `return_index` returns the first occurrences
    parts = dict(zip(everything, np.split(repeated, np.cumsum(lengths)[:-1]), strict=True))
    return [{split: parts[shard, split] for split in SPLITS} for shard in range(len(surveys))]


def _chunks(tokens: np.ndarray) -> Iterator[np.ndarray]:
    return (tokens[start : start + _CHUNK_TOKENS] for start in range(0, len(tokens), _CHUNK_TOKENS))


def _length_histogram(lengths: np.ndarray) -> np.ndarray:
    bins = np.floor(np.log2(lengths)).astype(np.int64) if len(lengths) else np.zeros(0, np.int64)
    return np.bincount(np.minimum(bins, _LENGTH_BINS - 1), minlength=_LENGTH_BINS)


def _sentence_hashes(tokens: np.ndarray, offsets: np.ndarray, vocabulary_size: int) -> np.ndarray:
    """Returns the hash of each sentence, uint64 [S]. The hashes are computed in chunks to bound memory."""
    # Each id has a random number, which is the same in every process.
    values = np.random.default_rng(0).integers(0, 2**64, vocabulary_size, dtype=np.uint64)
    parts, start = [np.zeros(0, np.uint64)], 0
    while start < len(offsets) - 1:
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _CHUNK_TOKENS, side="right")) - 1)
        chunk = np.asarray(offsets[start : stop + 1])
        parts.append(_hash_runs(values[tokens[chunk[0] : chunk[-1]]], chunk - chunk[0]))
        start = stop
    return np.concatenate(parts)


def _hash_runs(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns the hash of each run of values, uint64 [runs]. The hash is the sum of value * multiplier ** (position + 1),
    modulo 2^64, over the run. Runs must not be empty."""
    lengths = np.diff(offsets)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), _MULTIPLIER))
    places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    return np.add.reduceat(values * powers[places], offsets[:-1])


DUPLICATE_LINES_LIMIT = 0.10
UNKNOWN_LIMIT = 0.01
DROPPED_LIMIT = 0.5
RARE = 10
"""A subword with fewer occurrences in the train split counts as rare. A model hardly learns rare subwords."""
_SKIPPED = {
    "replaced-bytes": "bytes that are not UTF-8 and were read as U+FFFD",
    "bad-records": "records that were skipped because they have no text",
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
    sides: Mapping[str, int] | None = None,
) -> JsonObject:
    """Returns the content of report.json.

    sampled: the number of hash classes. Repeated lines were counted in one of the classes. fractions: the held-out fractions
    "asked" (requested), "used", and "least" (the requested fraction, raised if necessary to hold out enough documents to evaluate
    on). All are 0 if the held-out documents come from --eval-source. token_counts: int64 [V], the count of each token id in the
    train split. letters: the counts of the characters in a sample of the text, if the vocabulary drops marks. given_twice: the
    files that several sources name. sides: the numbers of characters, tokens and unknown tokens on each side of the pairs."""
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
        "eval_fractions": fractions,
    }
    if languages := manifest.get("languages"):
        names = ("characters", "tokens", "unknown")
        report["sides"] = [
            {"language": language} | {name: (sides or {}).get(f"{side} {name}", 0) for name in names}
            for side, language in zip(SIDES, languages, strict=True)
        ]
    return report | {"warnings": _warnings(report)}


UNKNOWN_SIDE_LIMIT = 0.1
"""If more than this fraction of the tokens in one language is unknown, the vocabulary does not fit this language."""
UNEQUAL_PIECES = 2.0
"""The report warns if one language has more than this many times the tokens per character of the other language."""


def require_both_languages(languages: Sequence[str], sides: Mapping[str, int]) -> None:
    """Raises UserError if the vocabulary does not fit one of the two languages of a corpus of pairs."""
    unknown = [sides.get(f"{side} unknown", 0) / max(1, sides.get(f"{side} tokens", 0)) for side in SIDES]
    worse = int(unknown[1] > unknown[0])
    if unknown[worse] > UNKNOWN_SIDE_LIMIT:
        raise UserError(
            f"the vocabulary fits only one of the two languages: {unknown[worse]:.0%} of the tokens are unknown in "
            f"{languages[worse]} (more than {UNKNOWN_SIDE_LIMIT:.0%}), {unknown[1 - worse]:.1%} in {languages[1 - worse]}; "
            "train a vocabulary on both sides, with --train-vocab=bpe or --train-vocab=sentencepiece --cased, in another "
            "--output"
        )


def _dropped_share(manifest: JsonObject) -> float:
    """Returns the fraction of the characters that cleaning dropped. If the fraction of documents that were dropped as repeated
    is larger, returns that fraction instead."""
    read, dropped = manifest["read"], manifest["dropped"]
    characters = read.get("characters", 0)
    of_text = 1 - manifest["kept_characters"] / characters if characters else 0.0
    repeated = dropped.get("duplicate-documents", 0) / max(1, read.get("documents", 0))
    return max(0.0, of_text, repeated)


def _histogram(bins: np.ndarray) -> list[list[int]]:
    """Returns [shortest length, longest length, count] for every bin from the first to the last non-empty bin. Lengths are in
    tokens."""
    used = np.flatnonzero(bins)
    return [[1 << k, (2 << k) - 1, int(bins[k])] for k in range(used[0], used[-1] + 1)] if len(used) else []


def _warnings(report: JsonObject) -> list[str]:
    """Returns warnings about properties of the corpus that harm pretraining."""
    train, eval_split = report["splits"]["train"], report["splits"]["eval"]
    documents = train["documents"] + eval_split["documents"]
    found = []
    if twice := report["given_twice"]:
        more = f" and {counted(len(twice) - 1, 'other file')} are" if len(twice) > 1 else " is"
        found.append(
            f"{twice[0]}{more} matched by more than one --source or --eval-source. Repeated documents were dropped, unless "
            "--keep=duplicate-documents; name each file once."
        )
    if report["letters_changed"] > MARKS_LIMIT:
        found.append(
            f"{report['letters_changed']:.1%} of the letters lose a mark or are decomposed before they are looked up "
            f"({report['letters_changed_examples']}), because this vocabulary drops accents and marks. The model cannot "
            "distinguish words that differ only in accents and marks, although no word is reported as unknown. To keep the "
            "marks, train a vocabulary with --cased, or use a published cased vocabulary."
        )
    if report["duplicate_line_rate"] > DUPLICATE_LINES_LIMIT:
        found.append(
            f"{report['duplicate_line_rate']:.0%} of the lines repeat an earlier line (more than "
            f"{DUPLICATE_LINES_LIMIT:.0%}). The model memorises these lines, which makes the training loss misleading. On "
            "such text, losses have stayed at 7-8. Remove the boilerplate listed above."
        )
    if report["dropped_share"] > DROPPED_LIMIT:
        rules = [(count, rule) for rule, count in report["dropped"].items() if rule in RULES]
        count, rule = max(rules, default=(0, "short-documents"))
        found.append(
            f"cleaning dropped {report['dropped_share']:.0%} of the text (more than {DROPPED_LIMIT:.0%}), most often by the "
            f"rule {rule} ({counted(count, 'time')}): {RULES[rule]}. If this is text that you want, such as the lines of a "
            f"dialogue, add --keep={rule}."
        )
    if train["unknown_rate"] > UNKNOWN_LIMIT:
        found.append(
            f"{train['unknown_rate']:.1%} of the tokens are unknown (more than {UNKNOWN_LIMIT:.0%}), so this vocabulary does "
            "not fit the text. The model cannot learn unknown words. Train a vocabulary with "
            "--train-vocab=wordpiece, or check --lowercase/--cased."
        )
    if train["documents"] == 1:
        found.append(
            "there is only one document, so there are no NSP pairs: a random next segment must come from another document."
        )
    elif report["one_sentence_documents"] > documents / 2:
        found.append(
            f"{report['one_sentence_documents']:,} of {counted(documents, 'document')} have a single sentence, so they have "
            "no next segment; train without NSP, or check --layout."
        )
    if sides := report.get("sides"):
        if report["vocabulary"]["lowercase"]:
            found.append(
                "the vocabulary is lower-cased, so all translations will be lower-cased too; build the corpus with a cased "
                "vocabulary (--train-vocab=bpe, or --train-vocab=sentencepiece --cased)."
            )
        rates = [side["tokens"] / max(1, side["characters"]) for side in sides]
        worse = int(rates[1] > rates[0])
        if rates[worse] > UNEQUAL_PIECES * rates[1 - worse]:
            found.append(
                f"the vocabulary needs {100 * rates[worse]:.0f} tokens per 100 characters in {sides[worse]['language']}, but "
                f"{100 * rates[1 - worse]:.0f} in {sides[1 - worse]['language']}, so it was made for only one of the "
                "languages. Train a vocabulary on both sides with --train-vocab."
            )
    if eval_split["documents"] < min_eval_documents(documents):
        count = eval_split["documents"]
        held = f"{counted(count, 'document')} {'is' if count == 1 else 'are'}" if count else "no document is"
        least = report["eval_fractions"]["least"]
        found.append(
            f"{held} held out, too few to evaluate on; "
            + (
                f"run the same command with --eval-fraction={least:.3g} (no text is tokenised again)."
                if least
                else "give more text with --eval-source, and another --output."
            )
        )
    return found


def format_report(report: JsonObject) -> str:
    """Returns the text of report.txt."""
    vocabulary = report["vocabulary"]
    casing = "uncased" if vocabulary["lowercase"] else "cased"
    lines = [
        f"vocabulary   {vocabulary['kind']}, {counted(vocabulary['size'], 'piece')}, {casing}",
        f"             {counted(report['rare_pieces'], 'piece')} used under {RARE} times in train, "
        f"{report['unused_pieces']:,} never used",
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
    for title, side in zip(("languages", ""), report.get("sides", ()), strict=False):
        lines.append(
            f"{title:<12} {side['language']}: {counted(side['tokens'], 'token')}, "
            f"{side['unknown'] / max(1, side['tokens']):.3%} unknown, "
            f"{side['characters'] / max(1, side['tokens']):.1f} characters per token"
        )
    fractions = report["eval_fractions"]
    if fractions["used"] != fractions["asked"]:
        why = f"{fractions['asked']:.1%} would be too few to evaluate on; --eval-fraction sets another fraction"
        lines.append(f"             {fractions['used']:.1%} of the documents are held out: {why}")
    estimated = "" if report["duplicate_lines_sampled"] == 1 else f" (estimated from one in {report['duplicate_lines_sampled']})"
    within = report["dropped"].get("repeated-lines", 0)
    after = f", after {within:,} that repeat within a document were dropped" if within else ""
    lines.append(f"repeats      {report['duplicate_line_rate']:.2%} of the lines equal an earlier line{estimated}{after}")
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
