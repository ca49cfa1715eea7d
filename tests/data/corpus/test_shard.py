"""One shard: what is held in memory, how its progress is reported, and what remains if it fails."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest

from bert_jax import files
from bert_jax.data.corpus import arrays, shard
from bert_jax.data.corpus.cleaning import CleaningConfig
from bert_jax.data.corpus.parallel import PairRules
from bert_jax.data.corpus.reading import Document
from bert_jax.data.corpus.shard import ShardWork, TextConfig, finish_shard, temporary_name, write_shard
from bert_jax.data.corpus.sources import Item, ReadOptions, Span
from bert_jax.data.tokenizers.json_tokenizer import BEGINS


class Letters:
    """A tokenizer with letters as tokens."""

    size = 200
    strips = False
    distinguishes_spaces = marks_words = False

    def append(self, text, out) -> None:
        out.extend(ord(c) for c in text if c.isalpha())


def written(path) -> list[int]:
    return np.load(path).tolist()


def test_tokens_are_flushed_in_blocks_and_empty_sentences_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "_FLUSH_TOKENS", 6)
    append, sizes = arrays.ArrayWriter.append, []

    def noted(self, values) -> None:
        if self._dtype == np.uint16:
            sizes.append(len(values))
        append(self, values)

    monkeypatch.setattr(arrays.ArrayWriter, "append", noted)
    with contextlib.ExitStack() as opened:
        writer = shard._SplitWriter(tmp_path, "train", np.dtype(np.uint16), opened)
        added = [writer.add(document, Letters()) for document in (["ab", "1", "c"], ["2", "3"], ["def"], ["g"], ["hi"])]
        writer.flush()
    assert added == [True, False, True, True, True]
    assert sizes == [6, 3]
    assert writer.counts() == {"documents": 4, "sentences": 5, "tokens": 9}
    assert written(tmp_path / "train.tokens.npy") == [ord(c) for c in "abcdefghi"]
    assert written(tmp_path / "train.sentences.npy") == [0, 2, 3, 6, 7, 9]
    assert written(tmp_path / "train.documents.npy") == [0, 2, 3, 4, 5]


def work_in(directory) -> ShardWork:
    spans = tuple(Span(Item("text", name, "bytes", 10, weight), 0, 10) for name, weight in (("a", 30.0), ("b", 10.0)))
    config = TextConfig(ReadOptions(), CleaningConfig(keep=frozenset({"short-documents"})), eval_fraction=0.0)
    return ShardWork(directory, 1, 3, spans, config, "")


def test_the_progress_of_a_shard_is_the_fraction_of_its_spans_that_was_read(tmp_path, monkeypatch):
    def documents(span, options, counts):
        for fraction in (0.5, 1.5) if span.item.path == "a" else (0.5, 1.0):  # a book's last part may begin after its span
            yield Document([f"{span.item.path}bc."], True, fraction)

    monkeypatch.setattr(shard, "read_span", documents)
    (tmp_path / temporary_name(1, 3)).mkdir()
    (tmp_path / temporary_name(1, 3) / "other.npy").touch()  # left by a killed process with the same number
    told = []
    write_shard(work_in(tmp_path), Letters(), lambda *progress: told.append(progress))
    assert told == [(15 / 40, 3), (30 / 40, 6), (35 / 40, 9), (40 / 40, 12)]
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00001-of-00003"]
    content = files.read_json(tmp_path / "shard-00001-of-00003" / "shard.json")
    assert content["read"] == {"documents": 4, "characters": 16}
    assert content["splits"]["train"] == {"documents": 4, "sentences": 4, "tokens": 12}
    assert content["kept_characters"] == 16
    assert len(content["files"]) == 8


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(shard, "read_span", fails)
    with pytest.raises(ZeroDivisionError):
        write_shard(work_in(tmp_path), Letters(), lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_finished_by_another_process_is_kept(tmp_path):
    part, final = tmp_path / "part", tmp_path / "final"

    def finish() -> None:
        part.mkdir()
        arrays.write_array(part / "train.tokens.npy", np.arange(3), np.dtype(np.uint16))
        finish_shard(part, final, 5, {})

    final.mkdir()
    (final / "other").touch()
    with pytest.raises(OSError, match="not empty"):
        finish()
    files.remove_tree(part)
    (final / "shard.json").write_text("of the first")
    finish()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["final", "other", "shard.json"]
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
def test_a_pair_is_kept_up_to_the_limits_and_its_sides_are_counted(tmp_path, monkeypatch, pair, rules, keep, dropped):
    monkeypatch.setattr(shard, "_FLUSH_TOKENS", 6)
    config = TextConfig(ReadOptions(), CleaningConfig(keep=frozenset(keep)), 0.0, PairRules(**rules))
    counts = Counter[str]()
    with contextlib.ExitStack() as opened:
        writer = shard._SplitWriter(tmp_path, "train", np.dtype(np.uint16), opened)
        assert writer.add_pair(pair, Pieces(), config, counts) is (dropped is None)
        tokens = sum(map(len, pair)) if dropped is None else 0
        assert (len(writer._held), writer.tokens) == (0 if tokens >= 6 else tokens, tokens)
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


def test_characters_are_counted_in_the_first_hundred_documents_and_in_a_sixteenth_of_the_others(tmp_path, monkeypatch):
    texts = [f"{chr(0x4E00 + number)}bc." for number in range(300)]
    documents = [Document([text], True, 1.0) for text in texts]
    monkeypatch.setattr(shard, "read_span", lambda span, *_: iter(documents if span.item.path == "a" else []))
    tokenizer = Letters()
    tokenizer.append = lambda text, out: out.extend([5])
    for strips in (True, False):
        tokenizer.strips = strips
        (tmp_path / str(strips)).mkdir()
        write_shard(work_in(tmp_path / str(strips)), tokenizer, lambda *_: None)
        content = files.read_json(tmp_path / str(strips) / "shard-00001-of-00003" / "shard.json")
        counted = [text for k, text in enumerate(texts) if k < 100 or shard.content_hash([text]) % 16 == 0]
        assert content["letters"] == (dict(Counter("".join(counted))) if strips else {})
    assert 100 < len(counted) < 130
