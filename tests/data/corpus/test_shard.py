"""One shard: what is held in memory, how its progress is reported, and what remains if it fails."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections import Counter

import numpy as np
import pytest

from bert_jax import files
from bert_jax.data.corpus import shard
from bert_jax.data.corpus.cleaning import CleaningConfig
from bert_jax.data.corpus.parallel import PairRules
from bert_jax.data.corpus.shard import ShardWork, TextConfig, write_shard
from bert_jax.data.corpus.sources import Item, ReadOptions, Span
from bert_jax.data.tokenizers.json_tokenizer import BEGINS
from bert_jax.errors import UserError


class Letters:
    """A tokenizer with letters as tokens."""

    size = 200
    strips = False
    distinguishes_spaces = marks_words = False

    def append(self, text, out) -> None:
        out.extend(ord(c) for c in text if c.isalpha())


def written(path) -> list[int]:
    return np.load(path).tolist()


def test_sentences_and_documents_without_tokens_are_left_out(tmp_path):
    with contextlib.ExitStack() as opened:
        writer = shard._SplitWriter(tmp_path, "train", np.dtype(np.uint16), opened)
        added = [writer.add(document, Letters()) for document in (["ab", "1", "c"], ["2", "3"], ["def"], ["g"], ["hi"])]
        writer.flush()
    assert added == [True, False, True, True, True]
    assert writer.counts() == {"documents": 4, "sentences": 5, "tokens": 9}
    assert written(tmp_path / "train.tokens.npy") == [ord(c) for c in "abcdefghi"]
    assert written(tmp_path / "train.sentences.npy") == [0, 2, 3, 6, 7, 9]
    assert written(tmp_path / "train.documents.npy") == [0, 2, 3, 4, 5]


def work_in(directory: pathlib.Path, *files: tuple[bytes, int, float]) -> ShardWork:
    """Returns the work of a shard in `directory` of files with this (content, number of bytes that belong to the shard, weight).
    The files are next to the directory, which is made."""
    spans = []
    directory.mkdir()
    for k, (content, size, weight) in enumerate(files):
        path = directory.with_name(f"{directory.name} {k}.txt")
        path.write_bytes(content)
        spans.append(Span(Item("text", str(path), "bytes", size, weight, "sentences"), 0, size))
    config = TextConfig(ReadOptions(), CleaningConfig(keep=frozenset({"short-documents"})), eval_fraction=0.0)
    return ShardWork(directory, 1, 3, tuple(spans), config, "")


def test_the_progress_of_a_shard_is_the_fraction_of_its_spans_that_was_read(tmp_path):
    store = tmp_path / "store"  # the second document of the first span begins after its end
    work = work_in(store, (b"abc.\n     \nabc.\n", 6, 30.0), (b"bbc.\n\nbbc.\n", 12, 10.0), (b"cbc.\n", 5, 10.0))
    left = store / f".shard-00001-of-00003.{files.HOST}.{os.getpid()}.bert_jax.directory"
    left.mkdir()
    (left / "other.npy").touch()
    told = []
    write_shard(work, Letters(), lambda *progress: told.append(progress))
    assert told == [(0.0, 0), (0.0, 3), (30 / 50, 6), (30 / 50, 9), (35 / 50, 12), (40 / 50, 15)]
    assert [path.name for path in store.iterdir()] == ["shard-00001-of-00003"]
    content = files.read_json(store / "shard-00001-of-00003" / "shard.json")
    assert content["read"] == {"documents": 5, "characters": 20}
    assert content["splits"]["train"] == {"documents": 5, "sentences": 5, "tokens": 15}
    assert content["kept_characters"] == 20
    assert len(content["files"]) == 8


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path):
    work = work_in(tmp_path / "store", (b"abc.\n\ncaf\xe9.\n", 12, 1.0))
    with pytest.raises(UserError, match="is not UTF-8"):
        write_shard(work, Letters(), lambda *_: None)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_worker_that_is_stopped_at_its_start_writes_nothing(tmp_path):
    work = work_in(tmp_path / "store", (b"abc.\n", 5, 1.0))

    def stop(fraction: float, tokens: int) -> None:
        assert list((tmp_path / "store").iterdir()) == []
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_shard(work, Letters(), stop)


def test_a_shard_finished_by_another_process_is_kept(tmp_path):
    work = work_in(tmp_path / "store", (b"abc.\n", 5, 1.0))
    final = work.store / "shard-00001-of-00003"
    final.mkdir()
    (final / "other").touch()
    with pytest.raises(FileExistsError):
        write_shard(work, Letters(), lambda *_: None)
    (final / "shard.json").write_text("of the first")
    write_shard(work, Letters(), lambda *_: None)
    assert sorted(path.name for path in work.store.rglob("*")) == ["other", "shard-00001-of-00003", "shard.json"]
    assert (final / "shard.json").read_text() == "of the first"


class Pieces(Letters):
    """A tokenizer with letters as tokens, of which "x" is unknown."""

    unk_id = ord("x")

    def append(self, text, out, *, target=False) -> None:
        super().append(text, out)


@pytest.mark.parametrize(
    ("pair", "rules", "keep", "dropped"),
    [
        (("ab", "abcd"), {"max_length_ratio": 2.0, "max_pair_tokens": 4}, (), None),
        (("abcd", "ab"), {"max_length_ratio": 1.9}, (), "unlike-lengths"),
        (("abcd", "ab"), {"max_length_ratio": 1.9}, ("unlike-lengths",), None),
        (("ab", "abcd"), {"max_pair_tokens": 3}, (), "long-pairs"),
        (("ab", "abcd"), {"max_pair_tokens": 3}, ("long-pairs",), None),
        (("ab", "1"), {}, ("unlike-lengths",), "empty-sides"),
        (("a", "b" * 9), {}, (), None),  # the default limits
        (("a", "b" * 10), {}, (), "unlike-lengths"),
        (("a" * 250, "b" * 250), {}, (), None),
        (("a" * 250, "b" * 251), {}, (), "long-pairs"),
    ],
)
def test_a_pair_is_kept_up_to_the_limits_and_its_sides_are_counted(tmp_path, pair, rules, keep, dropped):
    config = TextConfig(ReadOptions(), CleaningConfig(keep=frozenset(keep)), 0.0, PairRules(**rules))
    counts = Counter[str]()
    with contextlib.ExitStack() as opened:
        writer = shard._SplitWriter(tmp_path, "train", np.dtype(np.uint16), opened)
        assert writer.add_pair(pair, Pieces(), config, counts) is (dropped is None)
        tokens = sum(map(len, pair)) if dropped is None else 0
        assert writer.tokens == tokens
        assert writer.add_pair(("xx", "1xa"), Pieces(), config, Counter())
        documents = 1 + (dropped is None)
        assert writer.counts() == {"documents": documents, "sentences": 2 * documents, "tokens": tokens + 4}
    sizes = {f"{side} {name}": 0 for side in shard.SIDES for name in ("characters", "tokens", "unknown")}
    for side, text in zip(shard.SIDES, pair, strict=True):
        sizes |= {f"{side} characters": len(text), f"{side} tokens": sum(map(str.isalpha, text))}
    assert counts == sizes | ({dropped: 1} if dropped else {})


@pytest.mark.parametrize("marks_words", [False, True])
def test_unknown_tokens_of_each_side_are_counted(tmp_path, marks_words):
    class Marking(Pieces):
        def append(self, text, out, *, target=False) -> None:
            out.extend(ord(c) | (BEGINS if marks_words and i == 0 else 0) for i, c in enumerate(text))

    counts = Counter[str]()
    config = TextConfig(ReadOptions(), CleaningConfig(), 0.0)
    with contextlib.ExitStack() as opened:
        writer = shard._SplitWriter(tmp_path, "train", np.dtype(np.uint16), opened, marks_words=marks_words)
        writer.add_pair(("xax", "xa"), Marking(), config, counts)
        writer.flush(last=True)
    assert (counts["source unknown"], counts["target unknown"]) == (2, 1)


def test_characters_are_counted_in_the_first_hundred_documents_and_in_a_sixteenth_of_the_others(tmp_path):
    class One(Letters):
        def append(self, text, out) -> None:
            out.append(5)

    texts = [f"{chr(0x4E00 + number)}bc." for number in range(300)]
    content = "\n\n".join(texts).encode()
    tokenizer = One()
    for strips in (True, False):
        tokenizer.strips = strips
        store = tmp_path / str(strips)
        write_shard(work_in(store, (content, len(content), 1.0)), tokenizer, lambda *_: None)
        found = files.read_json(store / "shard-00001-of-00003" / "shard.json")
        counted = [text for k, text in enumerate(texts) if k < 100 or shard.content_hash([text]) % 16 == 0]
        assert found["letters"] == (dict(Counter("".join(counted))) if strips else {})
    assert 100 < len(counted) < 130
