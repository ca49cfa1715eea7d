"""Verifies the contents of a corpus against its manifest: once per machine, during the training, with no save before it has
finished."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable

import pytest

from bert_jax import files
from bert_jax.data.corpus import verification
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.corpus.verification import Verification, verify
from bert_jax.errors import UserError
from tests.data.conftest import english

DAMAGED = r"corrupted corpus: .*{} has changed since it was written: its sha256 is [0-9a-f]{{12}}\.\.\., expected .*; remove "


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "_TICK", 0.02)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verified"


@pytest.fixture(scope="module")
def built(tmp_path_factory, build):
    """Builds a corpus, next to its text."""
    directory = tmp_path_factory.mktemp("built")
    (directory / "a.txt").write_text("\n\n".join(english(300)) + "\n")
    build(directory / "corpus", f"text:{directory}/a.txt", shards=2)
    return directory


@pytest.fixture
def text_file(built):
    return built / "a.txt"


@pytest.fixture
def directory(tmp_path, built):
    """Copies the corpus."""
    return shutil.copytree(built / "corpus", tmp_path / "corpus")


def flip(directory, name="train.tokens.npy", *, keep_time=False):
    """Flips one bit of a file and returns the file. `keep_time`: keeps its modification time, as a faulty disk does."""
    path = directory / "shard-00001-of-00002" / name
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + (0 if keep_time else 1)))
    return path


@pytest.mark.parametrize("name", ["train.tokens.npy", "eval.tokens.npy"])
def test_a_flipped_bit_is_detected_and_the_remedy_works(directory, text_file, build, name, caplog):
    caplog.set_level(logging.INFO, "bert_jax")
    flip(directory, name)
    open_corpus(directory)
    with Verification(directory) as running, pytest.raises(UserError, match=DAMAGED.format(name)) as raised:
        running.wait()
    assert f"remove {directory / 'shard-00001-of-00002'} and {directory / 'manifest.json'}, and rerun" in str(raised.value)
    with pytest.raises(UserError, match=DAMAGED.format(name)):
        running.check()
    assert "the corpus is verified: 16" not in caplog.text
    files.remove_tree(directory / "shard-00001-of-00002")
    (directory / "manifest.json").unlink()
    build(directory, f"text:{text_file}", shards=2)
    assert verify(directory)[0] == 16


def test_verified_files_are_not_read_again_until_size_or_time_changes(directory, monkeypatch):
    with Verification(directory) as first:
        first.wait()
    assert first.bytes > 0
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started for nothing"))
        with Verification(directory) as second:
            second.wait()
        assert second.bytes == 0
    path = flip(directory)
    with Verification(directory) as third, pytest.raises(UserError, match=DAMAGED.format("train.tokens.npy")):
        third.wait()
    assert third.bytes == path.stat().st_size


def test_verify_reads_already_verified_files_again(directory):
    verify(directory)
    flip(directory, keep_time=True)
    with Verification(directory) as remembered:
        remembered.wait()
    with pytest.raises(UserError, match=DAMAGED.format("train.tokens.npy")):
        verify(directory)


def test_a_corpus_with_a_changed_manifest_is_verified_again(directory):
    verify(directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["shards"][0]["files"]["train.tokens.npy"]["sha256"] = "0" * 64
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with Verification(directory) as running, pytest.raises(UserError, match=r"expected 000000000000\.\.\."):
        running.wait()


@pytest.mark.parametrize(
    "content", [None, "", "[" * 100_000, '{"files": 7}', '{"files": {"shard-00000-of-00002/train.tokens.npy": 7}}']
)
def test_a_missing_or_damaged_record_only_causes_another_verification(directory, cache, content):
    verify(directory)
    (record,) = cache.iterdir()
    if content is None:  # a home that is full or read-only
        shutil.rmtree(cache)
        cache.touch()
    else:
        record.write_text(content)
    with Verification(directory) as running:
        running.wait()
    assert running.bytes == sum(path.stat().st_size for path in directory.glob("shard-*/*.npy"))
    assert (Verification(directory).bytes == 0) is (content is not None)
    assert record.name == f"{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}.json"  # later versions find it again


def before_opening(monkeypatch: pytest.MonkeyPatch, action: Callable[[pathlib.Path], object]) -> None:
    """Calls `action` with every array of a corpus before it is opened, so that the disk is slow or faulty."""
    opened = pathlib.Path.open

    def acting(path: pathlib.Path, *arguments, **named):
        if path.suffix == ".npy":
            action(path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr(pathlib.Path, "open", acting)


def use_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)), raising=False)


def test_training_continues_during_verification_and_a_save_waits_for_it(directory, monkeypatch, caplog):
    begun, go, beats = threading.Event(), threading.Event(), []
    caplog.set_level(logging.INFO, "bert_jax")
    before_opening(monkeypatch, lambda file: begun.set() or go.wait(30))
    with Verification(directory) as running:
        assert begun.wait(30)
        running.check()  # a step: it does not wait

        def alive():
            beats.append(1)
            go.set()

        # it does not delay the end of a program
        assert [thread.daemon for thread in threading.enumerate() if thread.name == "verification"] == [True]
        running.wait(alive)  # a save
        running.wait(alive)
    assert beats
    assert caplog.text.count("waiting until") == 1
    assert running.done == running.bytes
    size = sum(path.stat().st_size for path in directory.glob("shard-*/*") if path.name != "shard.json")
    assert size < 1e6  # less than a MB
    assert f"waiting until the corpus is verified: 0 of {size / 1e3:,.0f} kB" in caplog.text
    (seconds,) = re.findall(rf"the corpus is verified: 16 files, {size / 1e3:,.0f} kB, (\d+\.\d)s", caplog.text)
    assert float(seconds) < 100


def test_the_next_step_ends_the_run_once_damage_is_found(directory):
    flip(directory)

    def steps(running):
        for _ in range(3000):
            running.check()
            time.sleep(0.01)

    with Verification(directory) as running, pytest.raises(UserError, match=DAMAGED.format("train.tokens.npy")):
        steps(running)


def test_a_run_that_ends_early_leaves_no_thread_and_the_next_continues_the_verification(directory, monkeypatch, caplog):
    opened, fourth = [], threading.Event()

    def wait_at_the_fourth(file):
        opened.append(file)
        if len(opened) == 4:
            fourth.set()
            assert running._stopped.wait(30)

    caplog.set_level(logging.INFO, "bert_jax")
    use_cores(monkeypatch, 1)
    before_opening(monkeypatch, wait_at_the_fourth)
    with Verification(directory) as running:
        assert fourth.wait(30)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("verification")]
    assert "the corpus is verified" not in caplog.text
    with Verification(directory) as rest:
        rest.wait()
    assert len(opened) == 4 + 16 - 3


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (7, 1), (8, 2), (100, 8)])
def test_a_few_threads_of_low_priority_read_the_largest_files_first(directory, monkeypatch, cores, threads):
    sizes, lowered, all_threads = [], {}, threading.Barrier(threads, timeout=30)

    def meet(file):
        sizes.append(file.stat().st_size)
        all_threads.wait()

    use_cores(monkeypatch, cores)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: lowered.update({who: niceness}), raising=False)
    before_opening(monkeypatch, meet)
    with Verification(directory) as running:
        running.wait()
    assert list(lowered.values()) == [10] * threads
    assert os.getpid() not in lowered
    in_turns = [size for k in range(0, 16, threads) for size in sorted(sizes[k : k + threads], reverse=True)]
    assert (in_turns, len(sizes)) == (sorted(sizes, reverse=True), 16)


@pytest.mark.parametrize(("seconds", "recorded"), [(0.3, [0] * 16), (5.0, [k // 2 * 2 for k in range(16)]), (5.1, [*range(16)])])
def test_verified_files_are_recorded_every_five_seconds_and_at_the_end(directory, cache, monkeypatch, seconds, recorded):
    clock, found = [0.0], []

    def count() -> int:
        return sum(len(json.loads(record.read_text())["files"]) for record in cache.glob("*.json"))

    def pass_time(file):
        clock[0] += seconds
        found.append(count())

    use_cores(monkeypatch, 1)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    before_opening(monkeypatch, pass_time)
    with Verification(directory) as running:
        running.wait()
    assert (found, count()) == (recorded, 16)


def test_a_bug_ends_the_run_too(directory, monkeypatch):
    before_opening(monkeypatch, lambda file: {}["x"])
    with Verification(directory) as running, pytest.raises(UserError, match=r"corpus could not be verified: KeyError\('x'\)"):
        running.wait()


def test_a_wrong_file_size_is_found_before_reading(directory):
    path = directory / "shard-00001-of-00002" / "train.tokens.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train\.tokens\.npy has .* bytes instead of"):
        Verification(directory)


def test_progress_is_shown_in_the_unit_of_the_corpus(directory, monkeypatch):
    shown = io.StringIO()

    def wait_for_progress(file):
        for _ in range(3000):
            if shown.getvalue():
                return
            time.sleep(0.01)

    before_opening(monkeypatch, wait_for_progress)
    monkeypatch.setattr(sys, "stderr", shown)
    _, size = verify(directory)
    first, *others = shown.getvalue().splitlines()
    assert first == f"verifying the corpus: 0/{size / 1e3:.0f} kB"
    assert all(re.match(rf"verifying the corpus: \d+/{size / 1e3:.0f} kB", line) for line in others)


def test_an_unreadable_file_is_named(directory, monkeypatch):
    def fail(file):
        raise OSError(5, "Input/output error")

    before_opening(monkeypatch, fail)
    with Verification(directory) as running, pytest.raises(UserError, match=r"\.npy cannot be read: Input/output error; remove"):
        running.wait()
