"""Builds a corpus for pretraining from raw text.

    python -m bert_jax.corpus --source='text:books/*.txt' --vocab=vocab.txt --output=corpora/books

Reads text, cleans it, splits it into sentences, tokenises it, and writes a memory-mapped corpus. After an interruption, the
same command continues with the missing shards.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.corpus")

import argparse
import dataclasses
import functools
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from annotated_types import Interval

from bert_jax import files
from bert_jax.data.corpus import sources, store
from bert_jax.data.corpus.build import (
    RECIPE_FILE,
    BuildConfig,
    began_with,
    build_corpus,
    find_text,
    refuse_other_files,
    refuse_other_names,
    write_or_check_tokenizer,
)
from bert_jax.data.corpus.cleaning import RULES, CleaningConfig
from bert_jax.data.corpus.corpus_report import format_report
from bert_jax.data.corpus.hub import find_vocabulary
from bert_jax.data.corpus.parallel import PairRules
from bert_jax.data.corpus.sentences import LAYOUTS
from bert_jax.data.corpus.shard import TextConfig
from bert_jax.data.corpus.store import MANIFEST, SETTINGS, TOKENIZER, open_splits
from bert_jax.data.corpus.verification import local_corpus, verify
from bert_jax.data.tokenizers import vocabulary_training as training
from bert_jax.data.tokenizers.tokenizer import CONFIG_FILE, Tokenizer, load_tokenizer
from bert_jax.errors import UserError, nearest
from bert_jax.hardware import available_cores
from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.interface.words import byte_unit, counted
from bert_jax.storage.mirror import uploaded
from bert_jax.storage.paths import checked, is_remote

_TRAINERS: Mapping[str, Callable[..., Tokenizer]] = {
    "wordpiece": training.train_wordpiece,
    "sentencepiece": training.train_sentencepiece,
    "bpe": training.train_bpe,
    "characters": functools.partial(training.train_sentencepiece, characters=True),
}
_OF_A_NEW_VOCABULARY = ("vocab_size", "vocab_megabytes", "alphabet", "splitting", "nfc", "unused_tokens")
_RULES_OF_TOKENS = {"duplicate-documents", "unlike-lengths", "long-pairs"}
"""The cleaning rules that are applied to tokens. They do not change the text on which a vocabulary is trained."""

_MOST_SHARDS = 99_999  # shard names have five digits
_SHARDS, _WORKERS = Interval(ge=1, le=_MOST_SHARDS), Interval(ge=1, le=4_096)
_SPARE = Interval(ge=0, le=1_000_000)
_PIECES, _MEGABYTES = Interval(ge=1, le=10_000_000), Interval(ge=1, le=100_000_000)
_CHARACTERS = Interval(ge=1, le=MAX_COUNT)
_FRACTION = Interval(ge=0, lt=1)
_RATIO = Interval(ge=1, le=1_000)
_DEFAULT_FRACTION = 0.01
_DEFAULT_PIECES, _DEFAULT_MEGABYTES = 30522, 200

_EXAMPLES = r"""examples:
  python -m bert_jax.corpus --source=embedded --train-vocab=wordpiece --output=corpora/embedded
  python -m bert_jax.corpus --source='jsonl:wiki/*.gz' --source='text:books/*.txt' \
      --vocab=vocab.txt --output=corpora/books
  python -m bert_jax.corpus --source='text:books/*.txt' --train-vocab=bpe --output=corpora/bytes
  python -m bert_jax.corpus --source='parquet:wikipedia/20231101.en' --vocab=vocab.txt \
      --output=corpora/wiki
  python -m bert_jax.corpus --source=tfds:wikipedia/20230601.en --vocab=models/base \
      --output=corpora/wiki --shard=0/8
  python -m bert_jax.corpus --vocab=models/base --output=corpora/talks \
      --source='experiments/extensions/transcripts.py:transcripts:talks/*.srt'
  python -m bert_jax.corpus --source='parallel:wmt/train.*.en:wmt/train.*.de' --train-vocab=bpe \
      --eval-source=parallel:wmt/dev.en:wmt/dev.de --output=corpora/en-de
  python -m bert_jax.corpus --verify=corpora/wiki
"""


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m bert_jax.corpus",
        usage="python -m bert_jax.corpus --source=SOURCE (--vocab=MODEL | --train-vocab=KIND) --output=DIR [--FLAG=VALUE ...]",
        description=__doc__,
        epilog=_EXAMPLES
        + "\nlayouts of text files:\n"
        + "".join(f"  {name:<20} {meaning}\n" for name, meaning in LAYOUTS.items())
        + "\ncleaning rules, each switched off by --keep=RULE:\n"
        + "".join(f"  {name:<20} {meaning}\n" for name, meaning in RULES.items()),
    )
    parser.may_be_in_bucket = ("--output", "--vocab", "--verify")  # --source is checked where it is read
    _add_text_flags(parser)
    _add_vocabulary_flags(parser)
    _add_cleaning_flags(parser)
    _add_output_flags(parser)
    return parser


def _add_text_flags(parser: FlagParser) -> None:
    text = parser.add_argument_group("text")
    text.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="embedded | text:GLOB | jsonl:GLOB | parquet:GLOB | parquet:DIR[:SPLIT] | arrow:DIR[:SPLIT] | "
        "tfds:NAME[:SPLIT][@FEATURE] | FILE.py:NAME[:ARGUMENT] (your own function that yields documents); for texts and their "
        "translations: parallel:GLOB.en:GLOB.de | parallel:GLOB.tsv | parallel:GLOB.jsonl | tfds:wmt14_translate/de-en; text, "
        "JSON lines and tables of pairs may be compressed (.gz, .bz2, .xz, .zst); the flag may be repeated",
    )
    text.add_argument(
        "--eval-source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="the held-out documents, in the form of --source; without this flag, a fraction of the documents of --source is "
        "held out (--eval-fraction)",
    )
    text.add_argument(
        "--pair-fields",
        type=nonempty,
        metavar="SOURCE,TARGET",
        help="where parallel text has the text and its translation: two fields of JSON records, two features of a tfds data set, "
        "or two column numbers from 1 (default: the only two fields, or columns 1,2)",
    )
    text.add_argument(
        "--text-field",
        type=nonempty,
        metavar="NAME",
        help="the field of a JSON record, or the column of a table, that holds the text (default: text; if a table has no such "
        "column, the most likely column is used and printed)",
    )
    text.add_argument(
        "--layout",
        default="auto",
        choices=["auto", *LAYOUTS],
        help="what line breaks mean in text: files (default: auto, which detects the layout of each file and reports it)",
    )
    of_bytes = "what to do with bytes that are not UTF-8"
    text.add_argument("--on-bad-bytes", default="error", choices=["error", "replace"], help=of_bytes)
    text.add_argument(
        "--on-bad-records",
        default="error",
        choices=["error", "skip"],
        help="what to do with lines that are not JSON or have no text, and with rows without text",
    )
    text.add_argument(
        "--tfds-directory",
        type=nonempty,
        metavar="DIR",
        help="the directory of prepared data sets (default: the directory of tfds; for embedded, the cache directory)",
    )


def _add_vocabulary_flags(parser: FlagParser) -> None:
    vocabulary = parser.add_argument_group("vocabulary")
    vocabulary.add_argument(
        "--vocab",
        metavar="MODEL",
        help="a vocab.txt, a spiece.model, a tokenizer.json, a model (a directory, a workdir, OWNER/NAME on the hub), "
        "or a corpus",
    )
    vocabulary.add_argument(
        "--train-vocab",
        choices=list(_TRAINERS),
        help="train a new vocabulary on the sources instead; bpe is byte-level and cased, as in GPT-2 and ModernBERT; characters "
        "is a cased vocabulary of single characters, as in Flair",
    )
    vocabulary.add_argument(
        "--vocab-size",
        type=InRange(int, _PIECES),
        metavar="N",
        help="the number of pieces of a new vocabulary, including special tokens; bpe rounds the number up to a multiple of 64 "
        f"(default: {_DEFAULT_PIECES})",
    )
    vocabulary.add_argument(
        "--vocab-megabytes",
        type=InRange(int, _MEGABYTES),
        metavar="N",
        help="megabytes of text to train a new vocabulary on, sampled evenly over the sources "
        f"(default: {_DEFAULT_MEGABYTES})",
    )
    vocabulary.add_argument(
        "--alphabet",
        type=InRange(int, _PIECES),
        metavar="N",
        help="the number of characters in a new vocabulary; words with other characters are unknown (default: "
        "the characters that cover 99.99%% of the text)",
    )
    vocabulary.add_argument(
        "--splitting",
        choices=list(training.SPLITTINGS),
        help="how bpe splits text into words: gpt2 (default), or gpt4, which also splits numbers into groups of up to three "
        "digits",
    )
    vocabulary.add_argument(
        "--nfc", action="store_true", help="for bpe: compose accents first (Unicode's NFC), as ModernBERT does"
    )
    vocabulary.add_argument(
        "--unused-tokens",
        type=InRange(int, _SPARE),
        metavar="N",
        help="for bpe: the number of pieces [unused0], [unused1], ... for tokens that are added later (default: 0); more are "
        "added when the size is rounded up to a multiple of 64",
    )
    vocabulary.add_argument("--vocab-only", action="store_true", help="write the new vocabulary to --output/tokenizer and stop")
    casing = vocabulary.add_mutually_exclusive_group()
    casing.add_argument(
        "--lowercase",
        action="store_true",
        default=None,
        help="lower-case text and, except for a new SentencePiece vocabulary, strip accents (default for a new vocabulary; if "
        "the text has many accents or marks, you must choose); an existing vocabulary needs this flag only if its files do not "
        "show the casing",
    )
    casing.add_argument("--cased", dest="lowercase", action="store_false", help="keep case and accents")
    vocabulary.add_argument(
        "--max-word-characters",
        type=InRange(int, _CHARACTERS),
        metavar="N",
        help="words with more characters are unknown (default: 200, as in the original BERT; transformers uses 100)",
    )


def _add_cleaning_flags(parser: FlagParser) -> None:
    cleaning = parser.add_argument_group("cleaning")
    cleaning.add_argument(
        "--keep", action="append", default=[], metavar="RULE", help="switch off a cleaning rule (see below); may be repeated"
    )
    of_ratio = "(default: %(default)g, as in Moses; fairseq uses 1.5 for WMT14)"
    count, ratio, rules, pairs = InRange(int, _CHARACTERS), InRange(float, _RATIO), CleaningConfig, PairRules
    for name, kind, default, metavar, rule in (
        ("--max-sentence-characters", count, rules.max_sentence_characters, "N", "long-sentences"),
        ("--min-document-characters", count, rules.min_document_characters, "N", "short-documents"),
        ("--max-length-ratio", ratio, pairs.max_length_ratio, "R", f"unlike-lengths {of_ratio}"),
        ("--max-pair-tokens", count, pairs.max_pair_tokens, "N", "long-pairs (default: %(default)s)"),
    ):
        limit = f"the limit of the rule {rule}"
        cleaning.add_argument(name, type=kind, default=default, metavar=metavar, help=limit)


def _add_output_flags(parser: FlagParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--output", type=nonempty, metavar="DIR", help="the corpus directory, or gs://BUCKET/PATH")
    output.add_argument(
        "--eval-fraction",
        type=InRange(float, _FRACTION),
        metavar="F",
        help="the fraction of documents held out for evaluation, chosen by a hash of the text (default: 0.01, more for a small "
        "corpus); changing it re-splits a finished corpus without tokenising it again",
    )
    output.add_argument(
        "--shards",
        type=InRange(int, _SHARDS),
        metavar="N",
        help="the number of independent parts of the corpus (default: by the amount of text)",
    )
    output.add_argument(
        "--shard",
        type=_host,
        default=(0, 1),
        metavar="I/N",
        help="build only the part of this host, with the index I of N hosts; the last host to finish completes the corpus "
        "(default: 0/1)",
    )
    output.add_argument(
        "--workers",
        type=InRange(int, _WORKERS),
        default=available_cores(),
        metavar="N",
        help="worker processes (default: all cores, here %(default)s)",
    )
    output.add_argument(
        "--verify",
        type=nonempty,
        metavar="DIR",
        help="only verify the checksums of the finished corpus in DIR",
    )


def _host(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or not int(match[1]) < int(match[2]) <= _MOST_SHARDS:
        raise argparse.ArgumentTypeError(
            f"={text} must be I/N with N at most {_MOST_SHARDS:,} and I from 0 to N-1, for example 0/8"
        )
    return int(match[1]), int(match[2])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments `argv` (default: sys.argv)."""
    arguments = sys.argv[1:] if argv is None else argv
    flags = _parser().parse_args(arguments)
    flags.command = shlex.join(["python", "-m", "bert_jax.corpus", *arguments])
    if flags.verify is not None:
        _verify(flags)
        return
    for name, example in (("source", "text:books/*.txt"), ("output", "corpora/books")):
        if not getattr(flags, name):
            raise UserError(f"--{name} is missing, for example --{name}={example}; see python -m bert_jax.corpus --help")
    for rule in flags.keep:
        if rule not in RULES:
            raise UserError(f"--keep={rule} names no cleaning rule; {nearest(rule, RULES)}")
    if flags.eval_source and flags.eval_fraction is not None:
        raise UserError(
            f"--eval-source={flags.eval_source[0]} and --eval-fraction={flags.eval_fraction:g} both select the held-out "
            "documents; give only one of them"
        )
    fraction = 0.0 if flags.eval_source else _DEFAULT_FRACTION if flags.eval_fraction is None else flags.eval_fraction
    config = BuildConfig(
        sources=tuple(map(sources.parse_source, flags.source)),
        text=TextConfig(
            options=sources.ReadOptions(
                flags.text_field,
                flags.layout,
                flags.on_bad_bytes,
                flags.on_bad_records,
                flags.tfds_directory,
                flags.pair_fields,
            ),
            cleaning=CleaningConfig(frozenset(flags.keep), flags.max_sentence_characters, flags.min_document_characters),
            eval_fraction=fraction,
            pairs=PairRules(flags.max_length_ratio, flags.max_pair_tokens),
        ),
        shards=flags.shards,
        enough_eval=flags.eval_fraction is None and not flags.eval_source,
        eval_sources=tuple(sources.parse_source(source, "--eval-source") for source in flags.eval_source),
    )
    output = checked(flags.output, "--output")
    if is_remote(output) and flags.shard != (0, 1):
        raise UserError(
            f"--shard={flags.shard[0]}/{flags.shard[1]} does not work with --output={output}, because several hosts can only "
            "build in a directory that all of them mount; give such a directory, and upload the whole corpus later: `gcloud "
            f"storage rsync --recursive DIR {output}`"
        )

    def check(local: pathlib.Path, names: Collection[str]) -> None:
        if not flags.vocab_only and not (local / SETTINGS).is_file():  # a local file: its upload was interrupted
            refuse_other_names(output, names)

    def is_needed(name: str) -> bool:
        return not flags.vocab_only or name.partition("/")[0] in (TOKENIZER, RECIPE_FILE)

    with uploaded(output, "--output", is_needed, last=(MANIFEST,), check=check) as local:
        flags.output = pathlib.Path(local)
        _build(flags, config, shown=output)


def _build(flags: argparse.Namespace, config: BuildConfig, shown: str) -> None:
    """Builds the corpus in the directory --output and prints its report. Messages use the name `shown` for the directory."""
    with store.disk_errors(flags.output):
        say = _say_once()
        tokenizer = _tokenizer(flags, config, say)
    if flags.vocab_only:
        print(f"vocabulary of {counted(tokenizer.size, 'piece')} in {shown}/{TOKENIZER}")
        return
    report = build_corpus(
        config, tokenizer, flags.output, workers=flags.workers, host=flags.shard, command=flags.command, say=say
    )
    if report is not None:
        print(format_report(report), end="")


def _say_once() -> Callable[[str], None]:
    """Returns a function that prints a note the first time. The sources are found for the vocabulary, and again for the
    corpus."""
    said = set[str]()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            print(line, file=sys.stderr)

    return say


def _verify(flags: argparse.Namespace) -> None:
    if flags.source or flags.output:
        raise UserError(f"--verify={flags.verify} only verifies a corpus; leave out --source and --output")
    directory = local_corpus(flags.verify, "--verify")
    open_splits(directory)
    count, size = verify(directory)
    scale, unit = byte_unit(size)
    print(f"{flags.verify} is intact: {counted(count, 'file')}, {size / scale:,.1f} {unit}, and its vocabulary")


def _first_given(flags: argparse.Namespace, names: Sequence[str]) -> str | None:
    """Returns the first flag of `names` that was given, e.g. "--vocab-size" for "vocab_size", or None."""
    given = (name for name in names if getattr(flags, name) is not None and getattr(flags, name) is not False)
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def _tokenizer(flags: argparse.Namespace, config: BuildConfig, say: Callable[[str], None]) -> Tokenizer:
    """Returns the vocabulary of --vocab, or a new vocabulary. A new vocabulary is trained once, and then read from the output
    directory."""
    if (flags.vocab is None) == (flags.train_vocab is None):
        raise UserError("give either --vocab=PATH for an existing vocabulary or --train-vocab=wordpiece for a new one")
    if flags.vocab is not None:
        if flags.vocab_only:
            raise UserError("--vocab-only trains a new vocabulary; give --train-vocab instead of --vocab")
        if given := _first_given(flags, _OF_A_NEW_VOCABULARY):
            raise UserError(
                f"{given} is a setting of a new vocabulary, but --vocab={flags.vocab} gives an existing one; "
                "leave it out, or train a new vocabulary (--train-vocab)"
            )
        tokenizer = load_tokenizer(
            find_vocabulary(flags.vocab), lowercase=flags.lowercase, max_word_characters=flags.max_word_characters
        )
        for note in tokenizer.notes:
            print(f"--vocab={flags.vocab}: {note}")
        return tokenizer
    if flags.shard != (0, 1):
        raise UserError(
            "--train-vocab does not work with --shard; train the vocabulary once with --vocab-only, then give all hosts "
            f"--vocab={flags.output / TOKENIZER}"
        )
    size, megabytes = flags.vocab_size or _DEFAULT_PIECES, flags.vocab_megabytes or _DEFAULT_MEGABYTES
    recipe = {"kind": flags.train_vocab, "size": size, "lowercase": flags.lowercase is not False}
    recipe |= {"megabytes": megabytes, "max_word_characters": flags.max_word_characters}
    recipe |= {"alphabet": flags.alphabet, "sources": [str(source) for source in config.sources]}
    recipe |= {"text_field": flags.text_field or "text", "pair_fields": flags.pair_fields, "layout": flags.layout}
    recipe |= dataclasses.asdict(config.text.cleaning) | {"keep": sorted(config.text.cleaning.keep - _RULES_OF_TOKENS)}
    is_bpe, are_characters = (flags.train_vocab == kind for kind in ("bpe", "characters"))
    recipe |= {"lowercase": bool(flags.lowercase)} if are_characters else {}
    if is_bpe:
        if flags.alphabet or flags.max_word_characters:
            name, why = ("--alphabet", "has all bytes") if flags.alphabet else ("--max-word-characters", "has no such limit")
            raise UserError(f"{name} applies to WordPiece, but byte-level BPE {why}; leave it out")
        recipe |= {"lowercase": bool(flags.lowercase), "splitting": flags.splitting or training.SPLITTINGS[0]}
        recipe |= {"nfc": flags.nfc, "unused": flags.unused_tokens or 0}
    elif given := _first_given(flags, ("splitting", "nfc", "unused_tokens")):
        raise UserError(f"{given} applies to --train-vocab=bpe, not to {flags.train_vocab}; leave it out")
    path, directory = flags.output / RECIPE_FILE, flags.output / TOKENIZER
    if (directory / CONFIG_FILE).is_file():
        before = files.read_object(path) if path.is_file() else {"kind": "set by another command"}
        changed = [key for key in recipe if key in before and before[key] != recipe[key]]
        if changed == ["sources"] and not flags.vocab_only and began_with(flags.output, before["sources"]):
            changed = []
        if changed:
            differences = "; ".join(f"{key} was {before[key]}, and now is {recipe[key]}" for key in changed)
            raise UserError(
                f"{directory} was trained with other settings: {differences}. Choose another --output, remove this "
                f"directory, or keep its vocabulary with --vocab={directory}"
            )
        return load_tokenizer(directory)
    if not flags.vocab_only:
        refuse_other_files(flags.output)
    items, _, _ = find_text(config, say)
    documents = training.training_text(items, config.text, megabytes * 1_000_000)
    if is_bpe:
        settings = {name: recipe[name] for name in ("lowercase", "splitting", "nfc", "unused")}
    else:
        settings = {name: getattr(flags, name) for name in ("lowercase", "max_word_characters", "alphabet")}
    trained = _TRAINERS[flags.train_vocab](documents, size, **settings)
    flags.output.mkdir(parents=True, exist_ok=True)
    if not (directory / CONFIG_FILE).is_file():  # another process may have written it first
        files.write_json(path, recipe, indent=1)
    write_or_check_tokenizer(trained, directory)
    return load_tokenizer(directory)
