"""`python -m bert_jax.corpus` as a user sees it: flags, errors, output."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
import re
import shutil

import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import trainers

from bert_jax.corpus import _parser, main
from bert_jax.data.corpus.cleaning import RULES, CleaningConfig
from bert_jax.data.corpus.hub import find_vocabulary
from bert_jax.data.corpus.parallel import PairRules
from bert_jax.data.corpus.sentences import LAYOUTS
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.ranges import MAX_COUNT
from bert_jax.storage import objects
from tests.data.conftest import english


@pytest.fixture
def run_corpus(capsys):
    """Runs the command in this process and returns its output."""

    def run(*flags: str) -> str:
        main([*flags, "--workers=1"])
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("flags", "lowercase"), [((), False), (("--cased",), False), (("--lowercase",), True)])
def test_contradictory_casing_is_reported_unless_a_flag_decides(
    tmp_path, text_file, tiny_vocabulary, run_corpus, flags, lowercase
):
    words = tmp_path / "words"
    load_tokenizer(tiny_vocabulary, lowercase=True).save(words)
    settings = json.loads((words / "tokenizer_config.json").read_text())
    (words / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))
    printed = run_corpus(f"--source=text:{text_file}", f"--vocab={words}", f"--output={tmp_path}/corpus", *flags)
    says = f"--vocab={words}: tokenizer_config.json has do_lower_case=false, but tokenizer.json differs; tokenizer_config.json"
    assert (says in printed) is (not flags)
    assert load_tokenizer(tmp_path / "corpus" / "tokenizer").vocabulary.lowercase is lowercase


def test_several_sources_are_built_into_one_corpus_with_a_report(tmp_path, text_file, tiny_vocabulary, run_corpus):
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in english(50, seed=1))
    printed = run_corpus(
        f"--source=text:{text_file}",
        f"--source=jsonl:{tmp_path}/*.jsonl.gz",
        "--text-field=body",
        "--layout=sentences",
        f"--vocab={tiny_vocabulary}",
        f"--output={tmp_path}/corpus",
    )
    assert "read         350 documents" in printed
    assert "of the documents are held out: 1.0% would be too few to evaluate on" in printed  # the default fraction
    settings = json.loads((tmp_path / "corpus" / "settings.json").read_text())
    assert (settings["text_field"], settings["layout"]) == ("body", "sentences")
    command = settings["command"]
    assert command.startswith(f"python -m bert_jax.corpus --source=text:{text_file} '--source=jsonl:{tmp_path}/*.jsonl.gz' ")
    assert printed == (tmp_path / "corpus" / "report.txt").read_text()
    assert open_corpus(tmp_path / "corpus").num_documents + open_corpus(tmp_path / "corpus", "eval").num_documents == 350


def test_a_vocabulary_is_trained_once_and_stored_with_the_corpus(tmp_path, text_file, run_corpus):
    corpus = tmp_path / "new" / "corpus"
    flags = [f"--source=text:{text_file}", "--train-vocab=wordpiece", "--vocab-size=120", f"--output={corpus}"]
    run_corpus(*flags)
    tokenizer = load_tokenizer(corpus / "tokenizer")
    assert tokenizer.vocabulary == open_corpus(corpus).vocabulary
    assert tokenizer.vocabulary.lowercase
    assert tokenizer.size <= 120
    run_corpus(*flags)
    with pytest.raises(UserError, match=r"was trained with other settings: megabytes was 200, and now is 3\. Choose"):
        run_corpus(*flags, "--vocab-megabytes=3")
    for other, says in (
        ("text-field=body", "text_field was text, and now is body"),
        ("pair-fields=2,1", "pair_fields was None, and now is 2,1"),
        ("layout=lines", "layout was auto, and now is lines"),
        ("keep=symbol-lines", r"keep was \[\], and now is \['symbol-lines'\]"),
        ("max-sentence-characters=70", "max_sentence_characters was 5000, and now is 70"),
        ("min-document-characters=7", "min_document_characters was 20, and now is 7"),
    ):
        with pytest.raises(UserError, match=f"was trained with other settings: {says}. Choose"):
            run_corpus(*flags, f"--{other}")
    assert "vocabulary of " in run_corpus(*flags, "--vocab-only", "--keep=duplicate-documents", "--on-bad-bytes=replace")
    flags[2] = "--vocab-size=130"
    with pytest.raises(
        UserError, match=r"tokenizer was trained with other settings: size was 120, and now is 130\. Choose another --output"
    ):
        run_corpus(*flags)


def test_the_column_of_the_text_is_printed_once_before_a_vocabulary_is_trained(tmp_path, capsys):
    texts = english(20)
    parquet.write_table(pyarrow.table({"text": texts, "body": texts}), tmp_path / "a.parquet")
    main([f"--source=parquet:{tmp_path}/a.parquet", "--train-vocab=wordpiece", f"--output={tmp_path}/new", "--workers=1"])
    first, second, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("the text is the column 'text' of text, body; --text-field=NAME chooses another")
    assert second.startswith("reading for the vocabulary")
    assert first not in others


def test_another_machine_continues_a_corpus_in_a_bucket(bucket, tmp_path, run_corpus, monkeypatch):
    for seed, language in enumerate(("en", "de")):
        lines = (text.replace("\n", " ") for text in english(60, seed=seed))
        objects.write(f"{bucket}/text/a.{language}", "\n".join(lines).encode())
    source = f"--source=parallel:{bucket}/text/*.en:{bucket}/text/*.de"
    flags = [source, "--train-vocab=wordpiece", "--vocab-size=120", f"--output={bucket}/corpus", "--keep=long-pairs"]
    run_corpus(*flags)
    (file,) = json.loads(objects.read(f"{bucket}/corpus/settings.json").data)["files"]
    assert (file[0], file[-1]) == (f"{bucket}/text/a.en", f"{bucket}/text/a.de")
    moved = "documents move between the splits without being tokenised again"
    assert moved in run_corpus(*flags, "--eval-fraction=0.2")
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "other"))
    assert moved in run_corpus(*flags, "--eval-fraction=0.3")


def test_interrupted_vocabulary_training_can_restart_with_other_flags(tmp_path, text_file, run_corpus, monkeypatch):
    def interrupted(**settings):
        raise KeyboardInterrupt

    flags = [f"--source=text:{text_file}", "--train-vocab=wordpiece", f"--output={tmp_path}/corpus", "--vocab-only"]
    with monkeypatch.context() as patch:
        patch.setattr(trainers, "WordPieceTrainer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_corpus(*flags, "--vocab-megabytes=3")
    assert not (tmp_path / "corpus").exists()
    assert f"pieces in {tmp_path}/corpus/tokenizer" in run_corpus(*flags)
    with pytest.raises(UserError, match=r"was trained with other settings: megabytes was 200, and now is 3\. Choose"):
        run_corpus(*flags, "--vocab-megabytes=3")
    (tmp_path / "corpus" / "vocabulary_recipe.json").unlink()
    with pytest.raises(
        UserError, match=r"was trained with other settings: kind was set by another command, and now is wordpiece\. Choose"
    ):
        run_corpus(*flags, "--vocab-megabytes=3")


def test_a_vocabulary_can_be_trained_separately_and_given_to_hosts(tmp_path, text_file, run_corpus):
    train = ["--train-vocab=sentencepiece", "--vocab-size=89", "--cased"]
    run_corpus(f"--source=text:{text_file}", *train, f"--output={tmp_path}/vocab", "--vocab-only")
    build = [f"--source=text:{text_file}", f"--vocab={tmp_path}/vocab/tokenizer", f"--output={tmp_path}/corpus", "--shards=2"]
    assert "done: 1 of 2 shards" in run_corpus(*build, "--shard=0/2")
    assert "sentencepiece, 89 pieces, cased" in run_corpus(*build, "--shard=1/2")
    with pytest.raises(
        UserError,
        match=r"--train-vocab does not work with --shard; train the vocabulary once with --vocab-only, then give "
        r"all hosts --vocab=",
    ):
        run_corpus(f"--source=text:{text_file}", *train, f"--output={tmp_path}/other", "--shard=0/2")


NUMBERS = ("vocab-size", "vocab-megabytes", "max-word-characters", "max-sentence-characters", "min-document-characters")


@pytest.mark.parametrize("flag", [*NUMBERS, "shards", "workers", "eval-fraction"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "10000000000000", "", "9" * 5000])
def test_every_number_has_a_range(tmp_path, flag, value):
    with pytest.raises(UserError, match=rf"--{flag}={value[:20]}.* must be"):
        _parser().parse_args(["--source=embedded", f"--output={tmp_path}", f"--{flag}={value}"])
    if flag != "eval-fraction":
        with pytest.raises(UserError, match=rf"--{flag}=0 must be at least 1"):
            _parser().parse_args([f"--{flag}=0"])


@pytest.mark.parametrize(
    ("flag", "most"),
    [
        ("shards", 99_999),
        ("workers", 4_096),
        ("vocab-size", 10_000_000),
        ("alphabet", 10_000_000),
        ("vocab-megabytes", 100_000_000),
        ("max-word-characters", MAX_COUNT),
        ("max-sentence-characters", MAX_COUNT),
        ("min-document-characters", MAX_COUNT),
    ],
)
def test_ranges_include_their_ends(flag, most):
    for value in (1, most):
        assert getattr(_parser().parse_args([f"--{flag}={value}"]), flag.replace("-", "_")) == value
    with pytest.raises(UserError, match=rf"--{flag}={most + 1} must be at least 1 and at most"):
        _parser().parse_args([f"--{flag}={most + 1}"])


def test_a_fraction_is_at_least_0_and_below_1_and_hosts_are_at_most_99_999():
    assert _parser().parse_args(["--eval-fraction=0"]).eval_fraction == 0.0
    assert _parser().parse_args(["--eval-fraction=0.999"]).eval_fraction == 0.999
    assert _parser().parse_args(["--shard=99998/99999"]).shard == (99_998, 99_999)
    assert [_parser().parse_args([f"--unused-tokens={number}"]).unused_tokens for number in (0, 10**6)] == [0, 10**6]
    with pytest.raises(UserError, match="--unused-tokens=1000001 must be at least 0 and at most 1,000,000"):
        _parser().parse_args(["--unused-tokens=1000001"])
    with pytest.raises(UserError, match="--shard=0/100000 must be I/N with N at most 99,999"):
        _parser().parse_args(["--shard=0/100000"])


@pytest.mark.parametrize("flag", ["output", "verify"])
def test_an_empty_directory_name_is_refused(flag):
    with pytest.raises(UserError, match=f"--{flag}= is empty; give a name"):
        _parser().parse_args([f"--{flag}="])


@pytest.mark.parametrize("place", [".", "model", "tokenizer"])
def test_a_vocabulary_may_come_from_a_model_a_workdir_or_a_corpus(tmp_path, tiny, place):
    tiny.save(tmp_path / "given" / place)
    (tmp_path / "given" / "checkpoints").mkdir()
    assert load_tokenizer(find_vocabulary(str(tmp_path / "given"))).vocabulary == tiny.vocabulary
    tiny.save(tmp_path / "given" / "tokenizer")  # it counts only if there is no other
    assert find_vocabulary(str(tmp_path / "given")) == tmp_path / "given" / place


def test_a_path_without_a_vocabulary_is_refused_with_what_it_is(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="is a workdir that has no exported model yet; name the corpus of this run instead"):
        find_vocabulary(str(tmp_path))
    with pytest.raises(UserError, match="the name of the vocabulary is empty"):
        find_vocabulary("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds neither vocab.txt nor spiece.model nor tokenizer.json; copy the model's"):
        load_tokenizer(find_vocabulary(str(tmp_path / "empty")))


def test_verify_checks_a_corpus_without_other_flags(tmp_path, text_file, tiny_vocabulary, run_corpus, monkeypatch):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    run_corpus(f"--source=text:{text_file}", f"--vocab={tiny_vocabulary}", f"--output={tmp_path}/corpus", "--shards=1")
    size = sum(path.stat().st_size for path in tmp_path.glob("corpus/shard-*/*") if path.name != "shard.json")
    assert f"corpus is intact: 8 files, {size / 1e3:,.1f} kB, and its vocabulary" in run_corpus(f"--verify={tmp_path}/corpus")
    vocabulary = tmp_path / "corpus" / "tokenizer" / "vocab.txt"
    text = vocabulary.read_text()
    vocabulary.write_text(text + "another\n")
    with pytest.raises(UserError, match="tokenizer does not hold the vocabulary that the text was tokenised with"):
        run_corpus(f"--verify={tmp_path}/corpus")
    vocabulary.write_text(text)
    file = next(tmp_path.glob("corpus/*/train.tokens.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(UserError, match=rf"corrupted corpus: {file} has changed since it was written"):
        run_corpus(f"--verify={tmp_path}/corpus")
    with pytest.raises(UserError, match="only verifies a corpus; leave out"):
        run_corpus(f"--verify={tmp_path}/corpus", "--source=embedded")


def test_an_uncertain_vocabulary_is_reported_although_its_casing_is_stated(tmp_path, text_file, run_corpus):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n.\n")
    flags = [f"--source=text:{text_file}", f"--vocab={tmp_path}/vocab.txt"]
    assert "WARNING" in run_corpus(*flags, f"--output={tmp_path}/corpus", "--lowercase")


def test_help_explains_every_layout_and_rule(run_corpus, capsys):
    with pytest.raises(SystemExit) as ended:
        run_corpus("--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in [*LAYOUTS, *RULES])


@pytest.mark.parametrize("vocabulary", ["--vocab", "--train-vocab=wordpiece"])
def test_a_refused_build_does_not_block_its_output_directory(tmp_path, text_file, tiny_vocabulary, run_corpus, vocabulary):
    flags = [f"--output={tmp_path}/corpus", f"--vocab={tiny_vocabulary}" if vocabulary == "--vocab" else vocabulary]
    (tmp_path / "bad.txt").write_bytes(b"A line.\n" * 40_000 + b"\xff\n")
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04")
    (tmp_path / "numbers.txt").write_text("1 2 3\n")
    wrong = (
        (f"--source=text:{tmp_path}/bad.txt", "is not UTF-8"),
        (f"--source=jsonl:{text_file}", "is bad: it is not JSON"),
        (f"--source=text:{tmp_path}/a.parquet", "write --source=parquet:"),
        (f"--source=text:{tmp_path}/numbers.txt", "the corpus is empty: 1 document|there is no text to train a vocabulary on"),
    )
    for source, message in wrong:
        with pytest.raises(UserError, match=message):
            run_corpus(*flags, source)
    assert "train " in run_corpus(*flags, f"--source=text:{text_file}")
    other = text_file.with_name("other.txt")
    other.write_text("The bird was not there.\n")
    with pytest.raises(UserError, match=r"was (trained|started) with other settings: sources was"):
        run_corpus(*flags, f"--source=text:{other}")


@pytest.mark.parametrize("vocabulary", ["--vocab", "--train-vocab=characters"])
def test_a_build_continues_without_files_that_were_added_to_its_sources(
    tmp_path, text_file, tiny_vocabulary, run_corpus, vocabulary
):
    flags = [f"--output={tmp_path}/corpus", f"--vocab={tiny_vocabulary}" if vocabulary == "--vocab" else vocabulary]
    report = run_corpus(*flags, f"--source=text:{text_file.parent}/*.txt")
    added = [text_file.with_name(f"{name}.txt") for name in "bcdefg"]
    for number, names in ((1, added[0]), (6, f"{added[0]}, {added[1]}, {added[2]} and 3 more")):
        for path in added[:number]:
            path.write_text("The bird was not there.\n")
        what = "1 file was" if number == 1 else "6 files were"
        says = (
            f"{tmp_path}/corpus was started with other settings: {what} added ({names}). Choose another --output, or remove that "
            "directory, or leave the added files out with another pattern"
        )
        with pytest.raises(UserError, match=f"^{re.escape(says)}$"):
            run_corpus(*flags, f"--source=text:{text_file.parent}/*.txt")
    for pattern in ("a*.txt", "a.*", "*.txt"):
        if pattern == "*.txt":
            for path in added:
                path.unlink()
        assert run_corpus(*flags, f"--source=text:{text_file.parent}/{pattern}") == report
    text_file.write_text("The cat sat there.\n")
    with pytest.raises(UserError, match=r"files differ|files was"):
        run_corpus(*flags, f"--source=text:{text_file.parent}/a.*")


def test_a_file_that_becomes_held_out_is_noticed_and_other_patterns_of_the_same_files_are_not(
    tmp_path, text_file, tiny_vocabulary, run_corpus
):
    for name in "bc":
        text_file.with_name(f"{name}.txt").write_text(f"The bird was not there.\nThe cat sat {name} times.\n")
    command = [f"--output={tmp_path}/corpus", f"--vocab={tiny_vocabulary}"]
    text = f"text:{text_file.parent}"
    report = run_corpus(*command, f"--source={text}/[ab].txt", f"--eval-source={text}/c.txt")
    assert run_corpus(*command, f"--source={text}/a.txt", f"--source={text}/b.txt", f"--eval-source={text}/c*") == report
    with pytest.raises(UserError, match=r"with other settings: .*eval_files was 1, is 2\. Choose"):
        run_corpus(*command, f"--source={text}/a.txt", f"--eval-source={text}/[bc].txt")


def test_a_file_whose_name_is_not_utf8_is_read_and_reported(tmp_path, text_file, tiny_vocabulary, run_corpus):
    file = tmp_path / os.fsdecode(b"caf\xe9.txt")
    shutil.copy(text_file, file)
    with contextlib.redirect_stdout(io.StringIO()):  # pytest's stream is stricter than a command's
        run_corpus(f"--source=text:{file}", f"--vocab={tiny_vocabulary}", f"--output={tmp_path}/corpus")
    assert "caf\\udce9.txt" in (tmp_path / "corpus" / "report.txt").read_text()


def test_a_source_given_twice_is_reported(tmp_path, text_file, tiny_vocabulary, run_corpus):
    source = f"--source=text:{text_file}"
    run_corpus(source, f"--source=text:{text_file.parent}/*", f"--vocab={tiny_vocabulary}", f"--output={tmp_path}/corpus")
    said = f"WARNING: {text_file} is matched by more than one --source or --eval-source. Repeated documents were dropped"
    assert said in (tmp_path / "corpus" / "report.txt").read_text()
    assert open_corpus(tmp_path / "corpus").num_documents < 300


@pytest.mark.parametrize(
    ("flags", "recipe", "tokens"),
    [
        ("wordpiece --lowercase", {"size": 30_522, "lowercase": True}, "the cafe has 12345"),
        (
            "wordpiece --cased --vocab-size=99 --alphabet=7 --max-word-characters=8 --vocab-megabytes=3",
            {"size": 99, "lowercase": False, "alphabet": 7, "max_word_characters": 8, "megabytes": 3},
            "The [UNK] has [UNK]",
        ),
        ("sentencepiece --lowercase --vocab-size=60", {"size": 60, "lowercase": True}, "▁t h e ▁ c a f é ▁ h a s ▁ 1 2 3 4 5"),
        ("characters", {"size": 30_522, "lowercase": False}, "▁ T h e ▁ c a f é ▁ h a s ▁ 1 2 3 4 5"),
        ("characters --lowercase", {"size": 30_522, "lowercase": True}, "▁ t h e ▁ c a f é ▁ h a s ▁ 1 2 3 4 5"),
        (
            "bpe",
            {"size": 30_522, "lowercase": False, "splitting": "gpt2", "nfc": False, "unused": 0},
            "T he ▁cafe \u0301 ▁has ▁12345",
        ),
        (
            "bpe --lowercase --splitting=gpt4 --nfc --unused-tokens=70 --vocab-size=384",
            {"size": 384, "lowercase": True, "splitting": "gpt4", "nfc": True, "unused": 70},
            "t he ▁café ▁has ▁ 123 45",
        ),
    ],
)
def test_each_kind_of_vocabulary_is_trained_and_recorded_with_its_settings(tmp_path, run_corpus, flags, recipe, tokens):
    (tmp_path / "a.txt").write_text("".join(f"The cafe\u0301 has 12345 Tables{' or so' * k}.\n" for k in range(50)))
    kind, *given = flags.split()
    source = f"text:{tmp_path}/a.txt"
    printed = run_corpus(f"--source={source}", f"--train-vocab={kind}", *given, f"--output={tmp_path}/new", "--vocab-only")
    tokenizer = load_tokenizer(tmp_path / "new" / "tokenizer")
    assert printed == f"vocabulary of {tokenizer.size} pieces in {tmp_path}/new/tokenizer\n"
    assert " ".join(tokenizer.tokens(tokenizer.encode("The cafe\u0301 has 12345"))) == tokens
    assert (sum(piece.startswith("[unused") for piece in tokenizer.pieces) >= 70) is ("unused-tokens" in flags)
    if kind == "wordpiece":
        assert tokenizer.max_word_characters == recipe.get("max_word_characters", 200)
    plain = {"megabytes": 200, "max_word_characters": None, "alphabet": None, "sources": [source]}
    plain |= {"text_field": "text", "pair_fields": None, "layout": "auto", **dataclasses.asdict(CleaningConfig()), "keep": []}
    assert json.loads((tmp_path / "new" / "vocabulary_recipe.json").read_text()) == {"kind": kind, **plain, **recipe}


def test_a_vocabulary_is_trained_on_the_given_megabytes(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("It rained again, and again, and again it rained.\n" * 22_500)  # 1.1 MB
    flags = [f"--source=text:{tmp_path}/a.txt", "--train-vocab=wordpiece", "--layout=sentences", f"--output={tmp_path}/corpus"]
    main([*flags, "--vocab-only", "--vocab-megabytes=1"])
    assert re.fullmatch(r"reading for the vocabulary: \d+/1,000 kB of text", capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("bpe --alphabet=7", "--alphabet applies to WordPiece, but byte-level BPE has all bytes; leave it out"),
        ("bpe --max-word-characters=7", "--max-word-characters applies to WordPiece, but byte-level BPE has no such limit"),
        ("wordpiece --nfc", "--nfc applies to --train-vocab=bpe, not to wordpiece; leave it out"),
        ("characters --splitting=gpt2", "--splitting applies to --train-vocab=bpe, not to characters; leave it out"),
        ("sentencepiece --unused-tokens=3", "--unused-tokens applies to --train-vocab=bpe, not to sentencepiece; leave it out"),
    ],
)
def test_a_setting_of_another_kind_of_vocabulary_is_refused(tmp_path, run_corpus, flags, says):
    with pytest.raises(UserError, match=f"^{says}"):
        run_corpus("--source=text:a.txt", *f"--train-vocab={flags}".split(), f"--output={tmp_path}/new")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("", "--output is missing, for example --output=corpora/books; see"),
        ("--output=o --keep=nothing", "--keep=nothing names no cleaning rule; "),
        ("--output=o --eval-source=text:b.txt --eval-fraction=0", "--eval-source=text:b.txt and --eval-fraction=0 both select"),
        ("--output=gs://bucket/corpus --shard=1/2", "--shard=1/2 does not work with --output=gs://bucket/corpus, because"),
        ("--output=o", "give either --vocab=PATH for an existing vocabulary or --train-vocab=wordpiece for a new one"),
        ("--output=o --vocab=a --train-vocab=bpe", "give either --vocab=PATH for an existing vocabulary or"),
        ("--output=o --vocab=a --vocab-only", "--vocab-only trains a new vocabulary; give --train-vocab instead of --vocab"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(tmp_path, run_corpus, monkeypatch, flags, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{re.escape(says)}"):
        run_corpus("--source=text:a.txt", *flags.split())
    with pytest.raises(UserError, match=r"^--source is missing, for example --source=text:books/\*\.txt; see"):
        run_corpus(*flags.split())


def test_the_flags_of_a_build_reach_its_settings(tmp_path, tiny_vocabulary, run_corpus):
    (tmp_path / "a.tsv").write_text("".join(f"{text}\tthe {text}\n" for text in ("cat sat", "dog ran", "bird flew")))
    flags = "--on-bad-bytes=replace --on-bad-records=skip --tfds-directory=there"
    flags += " --pair-fields=2,1 --keep=long-pairs --keep=duplicate-documents --max-length-ratio=2.5 --max-pair-tokens=9"
    flags += " --shards=3 --max-sentence-characters=77 --min-document-characters=5 --eval-fraction=0.25"
    source = f"--source=parallel:{tmp_path}/a.tsv"
    run_corpus(source, f"--vocab={tiny_vocabulary}", f"--output={tmp_path}/corpus", *flags.split())
    settings = json.loads((tmp_path / "corpus" / "settings.json").read_text())
    expected = {
        **{"on_bad_bytes": "replace", "on_bad_records": "skip"},
        **{"tfds_directory": "there", "pair_fields": "2,1", "keep": ["duplicate-documents", "long-pairs"]},
        **{"max_length_ratio": 2.5, "max_pair_tokens": 9, "shards": 3, "max_sentence_characters": 77},
        **{"min_document_characters": 5, "eval_fraction": 0.25},
    }
    assert {name: settings[name] for name in expected} == expected
    run_corpus(source, f"--vocab={tiny_vocabulary}", f"--output={tmp_path}/plain")
    settings = json.loads((tmp_path / "plain" / "settings.json").read_text())
    expected = {
        **{"text_field": "text", "layout": "auto", "on_bad_bytes": "error", "on_bad_records": "error"},
        **{"tfds_directory": None, "pair_fields": None, "keep": [], "shards": 1, "eval_fraction": 0.01},
        **dataclasses.asdict(PairRules()),
        **{name: value for name, value in dataclasses.asdict(CleaningConfig()).items() if name != "keep"},
    }
    assert {name: settings[name] for name in expected} == expected


def test_documents_are_held_out_by_a_default_or_given_fraction_or_from_a_source(tmp_path, text_file, tiny_vocabulary, run_corpus):
    (tmp_path / "b.txt").write_text("The bird was not there then.\nIt flew.\n")
    for flags, fraction in ([], 0.049), (["--eval-fraction=0.02"], 0.02), ([f"--eval-source=text:{tmp_path}/b.txt"], 0.0):
        output = tmp_path / str(fraction)
        printed = run_corpus(f"--source=text:{text_file}", f"--vocab={tiny_vocabulary}", f"--output={output}", *flags)
        assert json.loads((output / "manifest.json").read_text())["eval_fraction"] == fraction
    assert "WARNING: 1 document is held out, too few to evaluate on; give more text with --eval-source, and another" in printed
    assert open_corpus(tmp_path / "0.0", "eval").num_documents == 1
    assert open_corpus(tmp_path / "0.0").num_documents == 300
