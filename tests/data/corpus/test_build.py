"""Building a corpus store gives the same result for any number of workers, hosts and interruptions, and never leaves it
half-written."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import gzip
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bert_jax import files
from bert_jax.data.corpus import corpus_report as report_module
from bert_jax.data.corpus import shard
from bert_jax.data.corpus.build import _difference, _layouts, write_or_check_tokenizer
from bert_jax.data.corpus.sources import Item, ReadOptions
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.data.conftest import english

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    """Returns every file of the corpus with its content."""
    paths = [*directory.glob("shard-*/*"), directory / "manifest.json", directory / "report.json", directory / "report.txt"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def documents_of(directory: pathlib.Path) -> dict[str, list[tuple[int, ...]]]:
    """Returns split -> the tokens of each document."""
    result = {}
    for split in ("train", "eval"):
        corpus = open_corpus(directory, split)
        ends = corpus.sentence_offsets[corpus.document_offsets]
        result[split] = [tuple(corpus.tokens[a:b].tolist()) for a, b in itertools.pairwise(ends)]
    return result


def test_a_corpus_holds_the_tokens_of_its_text_in_order(tmp_path, text_file, build, tiny):
    build(tmp_path / "corpus", f"text:{text_file}")
    found = documents_of(tmp_path / "corpus")
    documents = [tuple(tiny.encode(text)) for text in english(300)]
    assert sorted(found["train"] + found["eval"]) == sorted(documents)
    assert [d for d in documents if d in set(found["train"])] == found["train"]
    assert 10 < len(found["eval"]) < 60
    train, eval_split = open_corpus(tmp_path / "corpus"), open_corpus(tmp_path / "corpus", "eval")
    sentence = english(300)[documents.index(found["train"][0])].split("\n")[0]
    assert train.tokens[: train.sentence_offsets[1]].tolist() == tiny.encode(sentence)
    assert train.num_sentences + eval_split.num_sentences == sum(text.count("\n") + 1 for text in english(300))


def test_the_manifest_has_the_texts_of_the_user_files_of_a_source(tmp_path, text_file, build):
    (other := tmp_path / "words.py").write_text(f"TEXTS = {english(40)!r}\n")
    (own := tmp_path / "own.py").write_text("from words import TEXTS\ndef texts():\n    return TEXTS\n")
    build(tmp_path / "corpus", f"{own}:texts", shards=1)
    settings, manifest = (files.read_json(tmp_path / "corpus" / name) for name in ("settings.json", "manifest.json"))
    assert manifest["own_files"] == settings["own_files"]
    assert [path for path, _ in manifest["own_files"]] == [str(own)]
    assert manifest["own_texts"] == {str(path): path.read_text() for path in (own, other)}
    assert "own_texts" not in settings, "a build that an older version began continues"
    build(tmp_path / "plain", f"text:{text_file}", shards=1)
    assert not [key for key in files.read_json(tmp_path / "plain" / "manifest.json") if key.startswith("own")]


def test_hosts_that_share_a_build_make_the_same_corpus_and_the_last_one_completes_it(tmp_path, text_file, build, capsys):
    build(tmp_path / "one", f"text:{text_file}", shards=5)
    shared = tmp_path / "shared"
    assert build(shared, f"text:{text_file}", shards=5, host=(1, 3)) is None
    assert "done: 2 of 5 shards" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"unfinished \(2 of 5 shards are done\)"):
        open_corpus(shared)
    assert build(shared, f"text:{text_file}", shards=5, host=(2, 3)) is None
    assert build(shared, f"text:{text_file}", shards=5, host=(0, 3)) is not None
    assert contents(tmp_path / "one") == contents(shared)


def test_the_held_out_documents_do_not_depend_on_the_shards(tmp_path, text_file, build):
    eval_split = []
    for shards in (1, 3, 20):
        build(tmp_path / str(shards), f"text:{text_file}", shards=shards)
        eval_split.append(sorted(documents_of(tmp_path / str(shards))["eval"]))
    assert eval_split[0] == eval_split[1] == eval_split[2]


def test_the_held_out_fraction_is_kept(tmp_path, text_file, build):
    report = build(tmp_path / "half", f"text:{text_file}", eval_fraction=0.5)
    share = report["splits"]["eval"]["documents"] / 300
    assert abs(share - 0.5) < 4 * (0.25 / 300) ** 0.5  # four standard deviations of a fair draw of 300
    assert build(tmp_path / "none", f"text:{text_file}", eval_fraction=0.0)["splits"]["eval"]["documents"] == 0


def test_a_finished_corpus_is_not_built_again(tmp_path, text_file, build):
    report = build(tmp_path / "corpus", f"text:{text_file}")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*.npy")}
    assert build(tmp_path / "corpus", f"text:{text_file}") == report
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*.npy")} == before


def test_only_missing_shards_are_built(tmp_path, text_file, build, capsys, monkeypatch):
    directory = tmp_path / "new" / "corpus"
    build(directory, f"text:{text_file}")
    whole = contents(directory)
    files.remove_tree(directory / "shard-00002-of-00004")
    (directory / "manifest.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in directory.glob("shard-*/*")}
    (directory / ".shard-00002-of-00004.1.bert_jax.directory").mkdir()  # left by a killed process
    capsys.readouterr()
    looked_at, take_away = [], files.take_away_unfinished  # looks through the whole directory for each shard
    monkeypatch.setattr(files, "take_away_unfinished", lambda path: looked_at.append(path.name) or take_away(path))
    build(directory, f"text:{text_file}")
    assert looked_at == ["shard-00002-of-00004"]
    assert contents(directory) == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(directory.glob(".shard*"))
    size = text_file.stat().st_size / 4e3
    begun, ended, *_, surveyed = capsys.readouterr().err.splitlines()
    assert begun == f"building the corpus: 0/{size:.0f} kB of text, 0.0 M tokens, 3/4 shards"
    assert re.fullmatch(rf"building the corpus: \d+/{size:.0f} kB of text, 0.0 M tokens, 4/4 shards.*", ended)
    assert int(ended.split()[3].partition("/")[0]) > 0.9 * size
    assert surveyed == "surveying: 4/4 shards"


COMMAND = [sys.executable, "-m", "bert_jax.corpus", "--layout=sentences", "--shards=40", "--workers=2"]


def test_a_killed_build_resumes_without_redoing_shards_or_using_partial_ones(tmp_path, tiny_vocabulary, build):
    (tmp_path / "a.txt").write_text("\n\n".join(english(8_000)))
    directory = tmp_path / "corpus"
    command = [*COMMAND, f"--source=text:{tmp_path}/a.txt", f"--vocab={tiny_vocabulary}", f"--output={directory}"]
    command.append("--eval-fraction=0.1")
    command = ["nice", "-n", "19", *command]  # on a busy machine, this test still sees the fifth shard before the last one
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(list(directory.glob("shard-*"))) < 5:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    part = directory / ".shard-00039-of-00040.1.bert_jax.directory"
    part.mkdir()  # as if killed while writing this one too
    (part / "train.tokens.npy").write_bytes(b"half")
    done = {path: path.stat().st_mtime_ns for path in directory.glob("shard-*/*")}
    complete = min(directory.glob("shard-*"))
    complete.rename(directory / f".{complete.name}.replaced")  # as if killed while replacing this one
    assert len(list(directory.glob("shard-*"))) < 40
    with pytest.raises(UserError, match=r"unfinished \(\d+ of 40 shards are done\); .*: python -m bert_jax.corpus .*--shards=40"):
        open_corpus(directory)
    build(directory, f"text:{tmp_path}/a.txt", layout="sentences", shards=40)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert not list(directory.glob(".shard*"))
    build(tmp_path / "uninterrupted", f"text:{tmp_path}/a.txt", layout="sentences", shards=40)
    assert contents(directory) == contents(tmp_path / "uninterrupted")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_fraction": 0.2, "enough_eval": True}, "eval_fraction was 0.1, is 0.2"),
        ({"keep": {"symbol-lines"}}, r"keep was \[\], is \['symbol-lines'\]"),
        ({"shards": 7}, "shards was 4, is 7"),
        ({"layout": "lines"}, "layout was auto, is lines"),
    ],
)
def test_other_settings_for_the_same_directory_are_an_error_that_lists_them(tmp_path, text_file, build, changes, message):
    build(tmp_path / "corpus", f"text:{text_file}")
    whole = contents(tmp_path / "corpus")
    with pytest.raises(UserError, match=rf"started with other settings: .*{message}.*Choose another --output"):
        build(tmp_path / "corpus", f"text:{text_file}", **changes)
    assert contents(tmp_path / "corpus") == whole


def test_another_vocabulary_or_changed_text_for_the_same_directory_is_an_error(tmp_path, text_file, build, tiny_cased_vocabulary):
    build(tmp_path / "corpus", f"text:{text_file}")
    cased = load_tokenizer(tiny_cased_vocabulary)
    with pytest.raises(UserError, match=rf"vocabulary size was \d+, is {cased.size}, .*lowercase was True, is False") as told:
        build(tmp_path / "corpus", f"text:{text_file}", tokenizer=cased)
    for part in ("{", "kind"):  # only the properties that differ are named
        assert part not in str(told.value)
    text_file.write_text(text_file.read_text() + "\n\nOne more document, with words.")
    with pytest.raises(UserError, match=r"files (was|differ; the first difference was) .*a\.txt"):
        build(tmp_path / "corpus", f"text:{text_file}")


def test_a_changed_compressed_file_or_table_of_the_same_length_is_an_error(tmp_path, build):
    texts, archive, table = english(30), tmp_path / "a.txt.gz", tmp_path / "b.parquet"
    sources = f"text:{archive}", f"parquet:{table}"

    def write(first: list[str], second: list[str]) -> None:
        archive.write_bytes(gzip.compress("\n\n".join(first).encode()))
        parquet.write_table(pyarrow.table({"text": second}), table)

    write(texts[:15], texts[15:])
    report = build(tmp_path / "corpus", *sources)
    assert build(tmp_path / "corpus", *sources) == report
    for name, changed in ((archive, (texts[:14], texts[15:])), (table, (texts[:15], texts[14:29]))):
        write(*changed)
        with pytest.raises(UserError, match=rf"started with other settings: sizes {name} was \d+, is \d+\. Choose"):
            build(tmp_path / "corpus", *sources)


def test_a_changed_tokenizer_is_refused_with_the_properties_that_differ(tmp_path, tiny, tiny_vocabulary):
    write_or_check_tokenizer(tiny, tmp_path / "tokenizer")
    write_or_check_tokenizer(tiny, tmp_path / "tokenizer")
    shorter_words = load_tokenizer(tiny_vocabulary, max_word_characters=7)
    with pytest.raises(UserError) as told:
        write_or_check_tokenizer(shorter_words, tmp_path / "tokenizer")
    assert str(told.value) == (
        f"{tmp_path}/tokenizer holds a different vocabulary (its max_word_characters was "
        f"{tiny.max_word_characters}, is 7); choose another --output, or remove this directory"
    )


def test_a_directory_with_other_files_is_refused(tmp_path, text_file, build):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        build(tmp_path / "home", f"text:{text_file}")
    with pytest.raises(UserError, match=r"a\.txt.* cannot be written|cannot be written: Not a directory|File exists"):
        build(text_file, f"text:{text_file}")


def test_a_tokenizer_that_no_build_wrote_is_kept_and_another_vocabulary_refused(
    tmp_path, text_file, build, tiny, tiny_cased_vocabulary
):
    own = tmp_path / "corpus" / "tokenizer"
    tiny.save(own)
    (own / "notes.txt").touch()
    before = {path: path.read_bytes() for path in own.iterdir()}
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{own} holds a different vocabulary .*; choose another --output"):
            build(tmp_path / "corpus", f"text:{text_file}", tokenizer=load_tokenizer(tiny_cased_vocabulary))
    assert {path: path.read_bytes() for path in (tmp_path / "corpus").rglob("*") if path.is_file()} == before
    build(tmp_path / "corpus", f"text:{text_file}", shards=1)
    assert before.items() <= {path: path.read_bytes() for path in own.iterdir()}.items()


def test_a_full_disk_is_one_sentence_and_leaves_finished_shards_intact(tmp_path, text_file, build, monkeypatch):
    opened = pathlib.Path.open

    def full(path, *arguments, **named):
        if path.match(".shard-00002-of-00004.*/train.tokens.npy"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "open", full)
        with pytest.raises(UserError, match=r"no space left for .*corpus; free space and run the same command again"):
            build(tmp_path / "corpus", f"text:{text_file}")
    done = sorted(path.name for path in (tmp_path / "corpus").glob("*shard-*"))
    assert done == ["shard-00000-of-00004", "shard-00001-of-00004"]
    build(tmp_path / "corpus", f"text:{text_file}")
    build(tmp_path / "clean", f"text:{text_file}")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "clean")


def test_a_bad_file_stops_the_build_and_leaves_finished_shards_intact(tmp_path, text_file, build):
    (text_file.parent / "b.txt").write_bytes(b"caf\xe9 au lait\n" * 3000)
    with pytest.raises(UserError, match=r"b\.txt is not UTF-8 at byte 3 "):
        build(tmp_path / "corpus", f"text:{text_file.parent}/*.txt")
    assert not (tmp_path / "corpus" / "manifest.json").exists()
    with pytest.raises(UserError, match=r"unfinished \(\d of 4 shards"):
        open_corpus(tmp_path / "corpus")


def test_a_build_that_bad_text_stopped_continues_when_told_to_accept_it(tmp_path, build):
    directory = tmp_path / "corpus"
    texts = [text.encode() for text in english(60)]
    lines = [b'{"text": "%s"}' % text.replace(b"\n", b" ") for text in texts]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:40], b'{"text": "A caf\xe9."}', *lines[40:], b'{"text": null}']))
    source, accepted = f"jsonl:{tmp_path}/a.jsonl", {}
    for message, change in (("is not UTF-8", {"on_bad_bytes": "replace"}), ("is null", {"on_bad_records": "skip"})):
        with pytest.raises(UserError, match=message):
            build(directory, source, options=ReadOptions(**accepted))
        accepted |= change
    before = {path: path.stat().st_mtime_ns for path in directory.glob("shard-*/*.npy")}
    report = build(directory, source, options=ReadOptions(**accepted))
    assert before.items() <= {path: path.stat().st_mtime_ns for path in directory.glob("shard-*/*.npy")}.items()
    assert {path.parent.name[:11] for path in before} == {"shard-00000", "shard-00001", "shard-00002"}
    assert (report["read"]["documents"], report["dropped"]["bad-records"]) == (61, 1)
    with pytest.raises(UserError, match="other settings: on_bad_bytes was replace, is error; on_bad_records was skip, is error"):
        build(directory, source)


def test_two_builds_of_the_same_part_at_once_are_refused(tmp_path, text_file, build):
    directory = tmp_path / "corpus"
    build(directory, f"text:{text_file}")
    with (directory / ".build-0-of-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is building"):
            build(directory, f"text:{text_file}")


def test_a_host_waits_while_another_completes_the_corpus(tmp_path, text_file, build):
    directory = tmp_path / "corpus"
    directory.mkdir()
    with concurrent.futures.ThreadPoolExecutor(1) as pool, (directory / ".finish.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = pool.submit(build, directory, f"text:{text_file}", shards=1)
        while not (directory / "shard-00000-of-00001").exists():
            assert not built.done()
            time.sleep(0.01)
        time.sleep(0.05)
        assert not built.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert built.result() is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n \n", r"0 documents read, none kept \(the sources hold no text\); switch off"),
        ("***\n\n---\n", r"2 documents read, none kept \(2 empty-documents, 2 symbol-lines\); switch off"),
    ],
)
def test_an_empty_corpus_is_refused_with_what_was_dropped(tmp_path, build, text, message, capsys):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=rf"the corpus is empty: {message}"):
        build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert capsys.readouterr().err.startswith("building the corpus: 0/1 kB of text, 0.0 M tokens, 0/4 shards\n")
    assert not list((tmp_path / "corpus").glob("shard-*")), "another corpus can be built there"


def test_a_build_that_stored_nothing_may_be_repeated_with_another_vocabulary(
    tmp_path, text_file, build, tiny, tiny_cased_vocabulary
):
    (tmp_path / "a.txt").write_text("***\n")
    with pytest.raises(UserError, match="the corpus is empty"):
        build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", shards=1)
    assert load_tokenizer(tmp_path / "corpus" / "tokenizer").vocabulary == tiny.vocabulary
    cased = load_tokenizer(tiny_cased_vocabulary)
    build(tmp_path / "corpus", f"text:{text_file}", shards=1, tokenizer=cased)
    assert open_corpus(tmp_path / "corpus").vocabulary == cased.vocabulary


def test_an_empty_file_is_an_empty_corpus(tmp_path, build):
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="the corpus is empty"):
        build(tmp_path / "corpus", f"text:{tmp_path}/a.txt")


def test_the_corpus_does_not_depend_on_the_size_of_the_buffers(tmp_path, build, monkeypatch):
    """A real shard is flushed, counted and surveyed in many pieces; with these small buffers, a small shard is too."""
    texts = [*english(120), *english(30), *(" ".join(english(1)) * 40 for _ in range(2))]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    expected = build(tmp_path / "whole", f"text:{tmp_path}/a.txt", shards=2, layout="sentences")
    for tokens in (1, 97, 4096):
        monkeypatch.setattr(shard, "_FLUSH_TOKENS", tokens)
        monkeypatch.setattr(report_module, "_CHUNK_TOKENS", tokens)
        report = build(tmp_path / f"{tokens}", f"text:{tmp_path}/a.txt", shards=2, layout="sentences")
        assert report == expected
        assert contents(tmp_path / f"{tokens}") == contents(tmp_path / "whole")
    corpus = open_corpus(tmp_path / "whole")
    assert np.array_equal(corpus.token_counts, np.bincount(corpus.tokens[:], minlength=corpus.vocabulary.size))
    assert corpus.num_tokens > 4096


def test_duplicate_documents_are_kept_once(tmp_path, build):
    originals = english(200)
    texts = [*originals, *originals[50:90], *(text.upper() for text in originals[:10])]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    report = build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", shards=6, layout="sentences")
    (tmp_path / "b.txt").write_text("\n\n".join(originals))
    build(tmp_path / "originals", f"text:{tmp_path}/b.txt", shards=6, layout="sentences")
    assert report["dropped"]["duplicate-documents"] == 50
    assert not list((tmp_path / "corpus").glob(".shard*"))
    found, expected = documents_of(tmp_path / "corpus"), documents_of(tmp_path / "originals")
    assert sorted(found["train"] + found["eval"]) == sorted(expected["train"] + expected["eval"])
    corpus = open_corpus(tmp_path / "corpus")
    assert np.array_equal(corpus.token_counts, np.bincount(np.concatenate(found["train"]), minlength=corpus.vocabulary.size))
    kept = build(tmp_path / "kept", f"text:{tmp_path}/a.txt", shards=6, layout="sentences", keep={"duplicate-documents"})
    assert sum(split["documents"] for split in kept["splits"].values()) == 250


def test_a_kill_during_deduplication_loses_nothing(tmp_path, build, monkeypatch):
    texts = [*english(100), *english(100)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    build(tmp_path / "whole", f"text:{tmp_path}/a.txt", layout="sentences")
    rename, calls = pathlib.Path.rename, []

    def killed(self, target):
        calls.append(target)
        if len(calls) >= 7:  # tokenizer, four shards, the old shard moved away; then the new one in its place
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    monkeypatch.undo()
    assert len(list((tmp_path / "corpus").glob("shard-*"))) == 3
    build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", layout="sentences")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (3, 4, "files was 3, is 4"),
        (None, {"a": 1}, "files was None, is {'a': 1}"),
        ({"a": 1}, None, "files was {'a': 1}, is None"),
        (
            {"a": 1, "b": 2, "c": 3},
            {"b": 5, "c": 3, "d": 4},
            "files a was 1, is None, files b was 2, is 5, files d was None, is 4",
        ),
        (
            dict.fromkeys("abcdefghijkl", 1),
            {},
            ", ".join([*(f"files {name} was 1, is None" for name in "abcdefghij"), "and 2 more"]),
        ),
        (["a" * 96, 1], ["a" * 96, 2], "the entries of files differ; the first difference was [1], now is [2]"),
        (["a" * 96, 1, 2], ["a" * 96, 1], "files had 3 entries, now has 2; the first difference was [2], now is []"),
        (["a" * 96, 1], ["a" * 96, 1, 2, 3], "files had 2 entries, now has 4; the first difference was [], now is [2]"),
        (["a" * 96, 1], ["b"], f"files had 2 entries, now has 1; the first difference was {['a' * 96]}, now is ['b']"),
        (["b"], ["a" * 96, 1], f"files was ['b'], is {['a' * 96, 1]}"),
        ("a" * 101, ["b"], f"files was {'a' * 101}, is ['b']"),
        (None, ["a" * 99], f"files was None, is {['a' * 99]}"),
        (["a" * 99], None, f"files was {['a' * 99]}, is None"),
    ],
)
def test_a_difference_is_described_briefly(before, now, says):
    assert _difference("files", before, now) == says


def test_a_list_of_up_to_100_characters_is_shown_in_full():
    assert len(str(["a" * 96])) == 100
    assert _difference("files", ["a" * 96], ["b"]) == f"files was {['a' * 96]}, is ['b']"
    assert _difference("files", ["a" * 97], ["b"]).startswith("the entries of files differ; the first")


def test_three_files_of_a_layout_are_named_and_the_others_counted():
    layouts = dict.fromkeys("abcde", "book") | dict.fromkeys("xyz", "lines")
    items = [Item("text", f"some/{name}", "bytes", 1, 1.0, layout) for name, layout in layouts.items()]
    named = {"book": ["a", "b", "c", "and 2 more"], "lines": ["x", "y", "z"]}
    assert _layouts([*items, Item("jsonl", "some/w", "bytes", 1, 1.0)]) == named


def test_leftovers_of_a_killed_process_are_not_part_of_a_tokenizer(tmp_path, tiny):
    part = tmp_path / f".tokenizer.{files.HOST}.{os.getpid()}.bert_jax.directory"
    part.mkdir()
    (part / "added_tokens.json").write_text("{}")
    write_or_check_tokenizer(tiny, tmp_path / "tokenizer")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]
    assert not (tmp_path / "tokenizer" / "added_tokens.json").exists()


def test_a_tokenizer_just_written_by_another_host_is_compared(tmp_path, tiny, monkeypatch):
    directory = tmp_path / "tokenizer"

    def too_late(self, target):
        tiny.save(target)
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", too_late)
        write_or_check_tokenizer(tiny, directory)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"holds files, but no tokenizer_config\.json, .*; choose another --output, or move this"):
        write_or_check_tokenizer(tiny, directory)
