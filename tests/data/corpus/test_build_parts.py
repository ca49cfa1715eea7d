"""The parts of a build: locks, workers, the tokenizer's files, and the messages about changed settings."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib

import pytest

from bert_jax import files
from bert_jax.data.corpus import build as build_module
from bert_jax.data.corpus.build import _difference, _layouts, write_or_check_tokenizer
from bert_jax.data.corpus.sources import Item
from tests.data.conftest import english


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


def test_a_second_build_of_a_part_ends_and_the_last_step_waits(tmp_path, text_file, build, monkeypatch):
    asked: dict[str, bool] = {}

    @contextlib.contextmanager
    def locked(path, refusal=None):
        asked[path.name] = refusal is not None
        yield

    monkeypatch.setattr(files, "locked", locked)
    build(tmp_path / "corpus", f"text:{text_file}", shards=1)
    assert asked == {".build-0-of-1.lock": True, ".finish.lock": False}


def test_only_a_large_corpus_is_finished_by_all_workers(tmp_path, build, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join([*english(40), *english(10)]))
    source, options = f"text:{tmp_path}/a.txt", {"shards": 2, "layout": "sentences", "eval_fraction": 0.0}
    report = build(tmp_path / "all", source, keep={"duplicate-documents"}, **options)
    tokens = sum(split["tokens"] for split in report["splits"].values())
    asked, run_jobs = set(), build_module.run_jobs

    def alone(function, jobs, workers, tick):
        asked.add((function.__name__, workers))
        return run_jobs(function, jobs, 1, tick)

    monkeypatch.setattr(build_module, "run_jobs", alone)
    for limit, workers in ((tokens, 3), (tokens + 1, 1)):
        monkeypatch.setattr(build_module, "_TOKENS_WORTH_PROCESSES", limit)
        asked.clear()
        build(tmp_path / str(limit), source, workers=3, enough_eval=True, **options)
        assert asked == {("_write_one", 3), ("_survey_one", workers), ("_drop_one", workers), ("_split_one", workers)}


def test_leftovers_of_a_killed_process_are_not_part_of_a_tokenizer(tmp_path, tiny):
    part = tmp_path / f".tokenizer.{os.getpid()}.part"
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
    with pytest.raises(OSError, match="not empty"):
        write_or_check_tokenizer(tiny, directory)
