"""Parallel text: every way to give pairs reads the same pairs, files that do not belong together are rejected, and the corpus
keeps the two sides of a pair together."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import itertools
import json
import pathlib

import numpy as np
import pytest

from bert_jax import files
from bert_jax.data.corpus import tfds_text
from bert_jax.data.corpus.build import BuildConfig, build_corpus, find_text
from bert_jax.data.corpus.cleaning import CleaningConfig
from bert_jax.data.corpus.parallel import PairRules
from bert_jax.data.corpus.shard import TextConfig
from bert_jax.data.corpus.sources import ReadOptions, parse_source
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.data.tokenizers import vocabulary_training as training
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from tests.compressed import zstd
from tests.data.corpus.test_build import contents
from tests.data.tokenizers.test_marian_tokenizer import write_marian

WORDS = ["the", "cat", "dog", "bird", "sat", "ran", "flew", "under", "mat", "tree"]
WORTE = ["die", "Katze", "Hund", "Vogel", "saß", "lief", "flog", "unter", "Matte", "Baum"]


def pairs(count: int, first: int = 0) -> list[tuple[str, str]]:
    """Returns made-up pairs, all of them different: the words of a pair are the digits of its number."""
    digits = [f"{first + k:04d}" for k in range(count)]
    return [tuple(" ".join(words[int(d)] for d in number) for words in (WORDS, WORTE)) for number in digits]  # type: ignore[misc]


PAIRS = pairs(300)


def write_lines(directory: pathlib.Path, name: str, some: list[tuple[str, str]], end: str = "\n") -> str:
    for language, side in zip(("en", "de"), zip(*some, strict=True), strict=True):
        (directory / f"{name}.{language}").write_bytes("".join(text + end for text in side).encode())
    return f"parallel:{directory}/{name}.en:{directory}/{name}.de"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return training.train_bpe(([text] for pair in PAIRS for text in pair), 384, None)


def build(directory: pathlib.Path, source: str, tokenizer: Tokenizer, **changes) -> list[Corpus]:
    options = ReadOptions(**changes.pop("options", {}))
    text = TextConfig(options, CleaningConfig(frozenset(changes.pop("keep", ()))), changes.pop("eval_fraction", 0.0))
    text = dataclasses.replace(text, pairs=PairRules(**changes.pop("pairs", {})))
    held_out = tuple(map(parse_source, changes.pop("eval_source", ())))
    config = BuildConfig((parse_source(source),), text, changes.pop("shards", 3), enough_eval=False, eval_sources=held_out)
    build_corpus(config, tokenizer, directory, workers=changes.pop("workers", 1), host=(0, 1), command="the command")
    return open_splits(directory)


def stored(corpus: Corpus) -> list[tuple[str, str]]:
    """Returns the pairs of a corpus as text."""
    sentences, documents = corpus.joined_offsets()
    assert (np.diff(documents) == 2).all()
    assert corpus.tokenizer is not None
    texts = [corpus.tokenizer.decode(corpus.tokens[start:stop].tolist()) for start, stop in itertools.pairwise(sentences)]
    return list(zip(texts[::2], texts[1::2], strict=True))


def given(form: str, directory: pathlib.Path) -> tuple[str, dict[str, str]]:
    """Returns (the source, options) for PAIRS in the given form."""
    table = "".join(f"{number}\t{target}\t{source}\n" for number, (source, target) in enumerate(PAIRS)).encode()
    records = [json.dumps({"de": target, "en": source, "id": number}) for number, (source, target) in enumerate(PAIRS)]
    nested = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in PAIRS]
    match form:
        case "lines":
            return write_lines(directory, "a", PAIRS), {}
        case "lines that end in CR LF":
            return write_lines(directory, "a", PAIRS, "\r\n"), {}
        case "several files":
            for k in range(0, 300, 100):
                write_lines(directory, f"part{k}", PAIRS[k : k + 100])
            return f"parallel:{directory}/part*.en:{directory}/part*.de", {}
        case "compressed lines":
            write_lines(directory, "a", PAIRS)
            (directory / "b.en.gz").write_bytes(gzip.compress((directory / "a.en").read_bytes()))
            (directory / "b.de.zst").write_bytes(zstd((directory / "a.de").read_bytes()))
            return f"parallel:{directory}/b.en.gz:{directory}/b.de.zst", {}
        case "columns":
            (directory / "a.tsv").write_bytes(table)
            return f"parallel:{directory}/a.tsv", {"pair_fields": "3,2"}
        case "compressed columns":
            (directory / "a.tsv.bz2").write_bytes(bz2.compress(table))
            return f"parallel:{directory}/a.tsv.bz2", {"pair_fields": "3,2"}
        case "fields":
            (directory / "a.jsonl").write_text("\n".join(records) + "\n")
            return f"parallel:{directory}/a.jsonl", {"pair_fields": "en,de"}
        case "fields of an object":
            (directory / "a.jsonl").write_text("\n".join(nested) + "\n")
            return f"parallel:{directory}/a.jsonl", {}
    raise ValueError(form)


FORMS = [
    "lines", "lines that end in CR LF", "several files", "compressed lines", "columns", "compressed columns", "fields",
    "fields of an object",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs_in_order_for_any_number_of_shards(form, tmp_path, tokenizer):
    source, options = given(form, tmp_path)
    for shards in (1, 4):
        train, held_out = build(tmp_path / f"corpus{shards}", source, tokenizer, options=options, shards=shards)
        assert stored(train) == PAIRS
        assert stored(held_out) == []
    named = ("source", "target") if "columns" in form else ("en", "de")
    assert train.languages == named


def test_a_first_row_of_two_equal_words_is_a_pair(tmp_path, tokenizer):
    (tmp_path / "a.tsv").write_text("".join(f"{text}\t{text}\n" for text in ("Text", "the", "Original")))
    train, _ = build(tmp_path / "corpus", f"parallel:{tmp_path}/a.tsv", tokenizer)
    assert stored(train) == [("Text", "Text"), ("the", "the"), ("Original", "Original")]


def test_only_line_feeds_end_lines(tmp_path, tokenizer):
    some = [(f"the cat{mark}sat", f"die Katze{mark}saß {n}") for n, mark in enumerate("\u2028\u0085\x0b\r\x0c")]
    train, _ = build(tmp_path / "corpus", write_lines(tmp_path, "a", [*some, *PAIRS]), tokenizer, keep=["duplicate-documents"])
    assert train.num_documents == 305


class Wmt14Translate(tfds_text._tfds().core.GeneratorBasedBuilder, skip_registration=True):
    """A small data set with the name, the configuration and the features of WMT14's."""

    VERSION = "1.0.0"
    BUILDER_CONFIGS = [tfds_text._tfds().core.BuilderConfig(name="de-en")]  # noqa: RUF012

    def _info(self):
        features = tfds_text._tfds().features.Translation(languages=("de", "en"))
        return self.dataset_info_from_configs(features=features, supervised_keys=("de", "en"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(PAIRS[:40]), "validation": self._generate_examples(PAIRS[40:50])}

    def _generate_examples(self, some):
        for k, (source, target) in enumerate(some):
            yield k, {"en": source, "de": target}


def test_a_translation_data_set_gives_pairs_or_the_text_of_one_language(tmp_path, tokenizer):
    """Without --pair-fields, the direction is the data set's own."""
    Wmt14Translate(config="de-en", data_dir=tmp_path / "tfds", file_format="array_record").download_and_prepare()
    options, name = {"tfds_directory": str(tmp_path / "tfds")}, "tfds:wmt14_translate/de-en"
    fields = options | {"pair_fields": "en,de"}
    train, held_out = build(tmp_path / "corpus", name, tokenizer, options=fields, eval_source=[f"{name}:validation"])
    assert sorted(stored(train)) == sorted(PAIRS[:40])
    assert sorted(stored(held_out)) == sorted(PAIRS[40:50])
    assert train.languages == held_out.languages == ("en", "de")
    assert files.read_json(tmp_path / "corpus" / "settings.json")["sources"][0].startswith("tfds:wmt14_translate/")
    back, _ = build(tmp_path / "back", name, tokenizer, options=options)
    assert sorted(stored(back)) == sorted((target, source) for source, target in PAIRS[:40])
    assert back.languages == ("de", "en")
    alone, _ = build(tmp_path / "alone", f"{name}@de", tokenizer, options=options, keep=["short-documents"])
    assert alone.languages is None
    assert alone.num_sentences == 40


def test_pairs_of_unlike_lengths_long_ones_and_empty_ones_are_dropped_and_counted(tmp_path, tokenizer):
    bad = [("the cat", "die Katze " * 40), ("cat " * 30, "Katze " * 30), ("the cat", " "), ("\x07", "die Katze")]
    source = write_lines(tmp_path, "a", [*PAIRS, *bad])
    train, _ = build(tmp_path / "corpus", source, tokenizer, pairs={"max_length_ratio": 3.0, "max_pair_tokens": 20})
    assert stored(train) == PAIRS
    report = files.read_json(tmp_path / "corpus" / "report.json")
    dropped = {"control-characters": 1, "empty-sides": 2, "long-pairs": 2}
    assert {name: count for name, count in report["dropped"].items() if count} == dropped
    some = {"max_length_ratio": 3.0, "max_pair_tokens": 1_000}
    build(tmp_path / "short", source, tokenizer, pairs=some)
    assert files.read_json(tmp_path / "short" / "report.json")["dropped"]["unlike-lengths"] == 1
    train, _ = build(tmp_path / "kept", source, tokenizer, pairs=some, keep=["unlike-lengths"])
    assert train.num_documents == 302


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
def test_the_length_ratio_limit_is_inclusive(ratio, tmp_path, tokenizer):
    sizes = [[len(tokenizer.encode(text)) for text in pair] for pair in PAIRS]
    train, _ = build(tmp_path / "corpus", write_lines(tmp_path, "a", PAIRS), tokenizer, pairs={"max_length_ratio": ratio})
    assert stored(train) == [pair for pair, (a, b) in zip(PAIRS, sizes, strict=True) if max(a, b) <= ratio * min(a, b)]


def test_the_pairs_of_an_eval_source_are_held_out_and_no_others(tmp_path, tokenizer):
    dev = pairs(30, first=5_000)
    source, held_out = write_lines(tmp_path, "a", PAIRS), write_lines(tmp_path, "dev", [*dev, PAIRS[7]])
    train, evaluation = build(tmp_path / "corpus", source, tokenizer, eval_source=[held_out])
    assert stored(train) == PAIRS
    assert stored(evaluation) == dev, "a pair of the training text is not held out"
    assert evaluation.languages == ("en", "de")
    report = files.read_json(tmp_path / "corpus" / "report.json")
    assert report["dropped"]["duplicate-documents"] == 1
    again, _ = build(tmp_path / "corpus", source, tokenizer, eval_source=[held_out])  # a finished corpus is found again
    assert stored(again) == PAIRS
    with pytest.raises(UserError, match=r"was started with other settings: .*the entries of eval_sources differ;"):
        build(tmp_path / "corpus", source, tokenizer, eval_source=[source])


@pytest.mark.parametrize("unnamed", ["train", "eval"])
def test_pairs_without_languages_get_those_of_the_other_source(unnamed, tmp_path, tokenizer):
    named = write_lines(tmp_path, "named", PAIRS[:150])
    (tmp_path / "other.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS[150:]))
    train, held_out = (f"parallel:{tmp_path}/other.tsv", named)[:: 1 if unnamed == "train" else -1]
    splits = build(tmp_path / "corpus", train, tokenizer, eval_source=[held_out])
    assert [split.num_documents for split in splits] == [150, 150]
    assert splits[0].languages == splits[1].languages == ("en", "de")


def test_a_fraction_of_pairs_is_held_out_by_their_texts(tmp_path, tokenizer):
    train, evaluation = build(tmp_path / "corpus", write_lines(tmp_path, "a", PAIRS), tokenizer, eval_fraction=0.2)
    assert sorted(stored(train) + stored(evaluation)) == sorted(PAIRS)
    assert 30 < evaluation.num_documents < 90


def test_the_number_of_workers_changes_no_byte(tmp_path, tokenizer):
    source = write_lines(tmp_path, "a", PAIRS)
    for workers in (1, 2):
        build(tmp_path / f"{workers}", source, tokenizer, workers=workers, eval_fraction=0.1)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_vocabulary_is_trained_on_both_sides(tmp_path):
    items_of = write_lines(tmp_path, "a", PAIRS)
    config = TextConfig(ReadOptions(), CleaningConfig(), 0.0)
    from bert_jax.data.corpus.sources import find_items

    documents = list(training.training_text(find_items([parse_source(items_of)], config.options), config, 10**9))
    assert documents == [[text] for pair in PAIRS for text in pair]


def test_the_report_shows_each_language(tmp_path, tokenizer):
    build(tmp_path / "corpus", write_lines(tmp_path, "a", PAIRS), tokenizer)
    report = files.read_json(tmp_path / "corpus" / "report.json")
    assert report["dropped_share"] == 0.0
    sides = report["sides"]
    for side, texts in zip(sides, zip(*PAIRS, strict=True), strict=True):
        assert side["characters"] == sum(map(len, texts))
        assert side["tokens"] == sum(len(tokenizer.encode(text)) for text in texts)
        assert side["unknown"] == 0
    assert f"languages    en: {sides[0]['tokens']:,} tokens" in (tmp_path / "corpus" / "report.txt").read_text()


def test_a_vocabulary_made_for_one_language_gives_a_warning(tmp_path, tokenizer):
    greek = [(source, "".join(chr(0x3B1 + ord(c) % 20) for c in target)) for source, target in PAIRS]
    build(tmp_path / "corpus", write_lines(tmp_path, "a", greek), tokenizer, pairs={"max_length_ratio": 100.0})
    (warning,) = (x for x in files.read_json(tmp_path / "corpus" / "report.json")["warnings"] if "made for only one" in x)
    assert warning.startswith("the vocabulary needs ")


def test_each_side_is_tokenised_by_the_tokenizer_of_its_language(tmp_path):
    marian = load_tokenizer(write_marian(tmp_path, separate=False))
    train, _ = build(tmp_path / "corpus", write_lines(tmp_path, "a", PAIRS[:20]), marian, pairs={"max_length_ratio": 99.0})
    sentences, _ = train.joined_offsets()
    found = [train.tokens[start:stop].tolist() for start, stop in itertools.pairwise(sentences)]
    sides = [marian.encode(text, target=side == 1) for pair in PAIRS[:20] for side, text in enumerate(pair)]
    assert sorted(found) == sorted(sides)
    assert any(marian.encode(target) != marian.encode(target, target=True) for _, target in PAIRS[:20])


def test_a_tokenizer_with_two_vocabularies_is_refused(tmp_path):
    marian = load_tokenizer(write_marian(tmp_path, separate=True))
    with pytest.raises(UserError, match="Marian model with one vocabulary per language, but a corpus has a single vocabulary"):
        build(tmp_path / "corpus", write_lines(tmp_path, "a", PAIRS), marian)


def test_pairs_and_documents_are_not_mixed(tmp_path, tokenizer):
    source = write_lines(tmp_path, "a", PAIRS)
    (tmp_path / "b.txt").write_text("A text of its own.\n")
    text = TextConfig(ReadOptions(), CleaningConfig(), 0.0)
    both = tuple(map(parse_source, (source, f"text:{tmp_path}/b.txt")))
    with pytest.raises(
        UserError,
        match=r"a.en holds pairs of a text and its translation, but .*b.txt holds documents; build "
        r"one corpus",
    ):
        build_corpus(
            BuildConfig(both, text, 1, enough_eval=False), tokenizer, tmp_path / "corpus", workers=1, host=(0, 1), command=""
        )
    held_out = (parse_source(f"text:{tmp_path}/b.txt"),)
    with pytest.raises(UserError, match="--eval-source has documents, but --source has pairs, en to de; give an --eval-source"):
        build_corpus(
            BuildConfig(both[:1], text, 1, enough_eval=False, eval_sources=held_out),
            tokenizer,
            tmp_path / "corpus",
            workers=1,
            host=(0, 1),
            command="",
        )


def test_options_of_one_source_do_not_concern_the_others(tmp_path):
    table, options = given("columns", tmp_path)
    lines = write_lines(tmp_path, "dev", PAIRS[:9])
    text = TextConfig(ReadOptions(**options), CleaningConfig(), 0.0)

    def find(*names: str, options: ReadOptions = text.options, held_out: str = lines):
        sources = tuple(map(parse_source, names))
        changed = dataclasses.replace(text, options=options)
        return find_text(BuildConfig(sources, changed, 1, enough_eval=False, eval_sources=(parse_source(held_out),)), print)

    (item,), (other,), languages = find(table)
    assert (item.pairs.fields, other.pairs.fields, languages) == (("3", "2"), ("en", "de"), ("en", "de"))
    find(lines, held_out=table)
    with pytest.raises(UserError, match=r"^--pair-fields=3,2 would have no effect"):
        find(lines)
    (tmp_path / "a.jsonl").write_text('{"body": "A cat sat."}\n')
    (tmp_path / "a.txt").write_text("A dog ran.\n")
    records, prose = f"jsonl:{tmp_path}/a.jsonl", f"text:{tmp_path}/a.txt"
    for option in (ReadOptions(text_field="body"), ReadOptions(layout="lines")):
        find(records, options=option, held_out=prose)
        find(prose, options=option, held_out=records)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not JSON", r"the first record of .*a.jsonl is not JSON \(.*\); correct it, or name the fields with --pair-fi"),
        ("[1, 2]", "the first record of .*a.jsonl is a JSON list, not an object; correct it"),
        ('{"en": "a dog"}', r"the first record of .*a.jsonl has 1 field with text \(en\); choose two fields with --pair-fields"),
    ],
)
def test_a_first_record_without_two_texts_is_refused_unless_fields_are_named(line, says, tmp_path, tokenizer):
    source, options = given("fields", tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(UserError, match=says):
        build(tmp_path / "corpus", source, tokenizer)
    train, _ = build(tmp_path / "named", source, tokenizer, options=options | {"on_bad_records": "skip"})
    assert stored(train) == PAIRS


def test_a_truncated_file_is_named(tmp_path, tokenizer):
    source = write_lines(tmp_path, "a", PAIRS)
    for language in ("en", "de"):
        whole = gzip.compress((tmp_path / f"a.{language}").read_bytes())
        (tmp_path / f"a.{language}.gz").write_bytes(whole if language == "de" else whole[:-20])
    with pytest.raises(UserError, match=r"a\.en\.gz is not a whole gzip file \(.*\); fetch it again, or unpack the part that is"):
        build(tmp_path / "corpus", source.replace(".en", ".en.gz").replace(".de", ".de.gz"), tokenizer)


@pytest.mark.parametrize("form", ["columns", "fields"])
def test_blank_lines_of_a_table_and_of_json_lines_are_no_pairs(form, tmp_path, tokenizer):
    source, options = given(form, tmp_path)
    path = tmp_path / {"columns": "a.tsv", "fields": "a.jsonl"}[form]
    lines = path.read_text().split("\n")
    path.write_text("\n".join(["", *lines[:41], " ", "\r", *lines[41:], "", ""]))
    train, _ = build(tmp_path / "corpus", source, tokenizer, options=options)
    assert stored(train) == PAIRS


@pytest.mark.parametrize("form", ["lines", "columns", "fields"])
def test_a_bad_line_is_named_or_skipped(form, tmp_path, tokenizer):
    source, options = given(form, tmp_path)
    path = tmp_path / {"lines": "a.de", "columns": "a.tsv", "fields": "a.jsonl"}[form]
    lines = path.read_bytes().split(b"\n")
    lines[41] = {"lines": b"caf\xe9", "columns": b"one", "fields": b'{"en": 1}'}[form]
    path.write_bytes(b"\n".join(lines))
    says = {
        "lines": r"a.de is not UTF-8 in line 42 \(0xe9\); convert it",
        "columns": "a.tsv: line 42 has 1 column, but --pair-fields=3,2 needs 3 columns; correct it, or pass",
        "fields": "a.jsonl: line 42 has 1 instead of a text in the field 'en'; correct it, or pass --on-bad-records=skip",
    }[form]
    with pytest.raises(UserError, match=says):
        build(tmp_path / "corpus", source, tokenizer, options=options)
    if form == "lines":
        train, _ = build(tmp_path / "skipped", source, tokenizer, options=options | {"on_bad_bytes": "replace"})
        assert train.num_documents == 300
    else:
        train, _ = build(tmp_path / "skipped", source, tokenizer, options=options | {"on_bad_records": "skip"})
        assert stored(train) == [pair for n, pair in enumerate(PAIRS) if n != 41]
