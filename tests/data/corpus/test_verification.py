"""Verifies the contents of a corpus against its manifest: once per machine, during the training, with no save before it has
finished."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import logging
import os
import re
import shutil
import threading

import pytest

from bert_jax import files
from bert_jax.data.corpus import verification
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.corpus.verification import Verification, verify
from bert_jax.errors import UserError
from bert_jax.interface import progress
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


class Slow:
    """A `Path.open` whose files wait at every block until `go` is set; `begun` is set when a file is being read."""

    def __init__(self, monkeypatch):
        self.begun, self.go = threading.Event(), threading.Event()
        digest = verification.Verification._sha256

        def waiting(running, file):
            self.begun.set()
            assert self.go.wait(30) or running._stopped.is_set()
            return digest(running, file)

        monkeypatch.setattr(verification.Verification, "_sha256", waiting)


def test_training_continues_during_verification_and_a_save_waits_for_it(directory, monkeypatch, caplog):
    slow, beats = Slow(monkeypatch), []
    caplog.set_level(logging.INFO, "bert_jax")
    with Verification(directory) as running:
        assert slow.begun.wait(30)
        running.check()  # a step: it does not wait

        def alive():
            beats.append(1)
            slow.go.set()

        assert running._thread.daemon  # it does not delay the end of a program
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
            running._finished.wait(0.01)

    with Verification(directory) as running, pytest.raises(UserError, match=DAMAGED.format("train.tokens.npy")):
        steps(running)


def test_a_run_that_ends_early_leaves_no_thread_and_the_next_continues_the_verification(directory, monkeypatch):
    monkeypatch.setattr(verification, "_BLOCK", 64)
    hashed, digest = [], verification.Verification._sha256

    def some(running, file):
        hashed.append(file.name)
        if len(hashed) == 4:
            running._stopped.set()
        return digest(running, file)

    monkeypatch.setattr(verification.Verification, "_sha256", some)
    with Verification(directory) as running:
        running._thread.join(30)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("verification")]
    assert not running._finished.is_set()
    with Verification(directory) as rest:
        rest.wait()
    assert len(hashed) == 4 + 16 - 3


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (7, 1), (8, 2), (100, 8)])
def test_a_few_threads_of_low_priority_read_the_largest_files_first(directory, monkeypatch, cores, threads):
    made, read = [], []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, count, name, initializer):
            made.append(count)
            initializer()
            super().__init__(1, name)

    monkeypatch.setattr(verification, "available_cores", lambda: cores)
    monkeypatch.setattr(verification.concurrent.futures, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "setpriority", lambda *arguments: made.append(arguments[2]))
    sha256 = Verification._sha256
    monkeypatch.setattr(Verification, "_sha256", lambda self, file: read.append(file.stat().st_size) or sha256(self, file))
    with Verification(directory) as running:
        running.wait()
    assert made == [threads, 10]
    assert (read, len(read)) == (sorted(read, reverse=True), 16)


@pytest.mark.parametrize(("seconds", "saves"), [(0.0, 1), (-1.0, 17)])
def test_verified_files_are_recorded_every_few_seconds_and_at_the_end(directory, monkeypatch, seconds, saves):
    saved, remember = [], Verification._remember
    monkeypatch.setattr(verification, "_SAVE_SECONDS", seconds)
    monkeypatch.setattr(verification.time, "monotonic", lambda: 7.0)
    monkeypatch.setattr(Verification, "_remember", lambda self: saved.append(1) or remember(self))
    running = Verification(directory)
    running._run()
    running.wait()
    assert len(saved) == saves


def test_a_bug_ends_the_run_too(directory, monkeypatch):
    monkeypatch.setattr(Verification, "_sha256", lambda self, file: {}["x"])
    with Verification(directory) as running, pytest.raises(UserError, match=r"corpus could not be verified: KeyError\('x'\)"):
        running.wait()


def test_a_wrong_file_size_is_found_before_reading(directory):
    path = directory / "shard-00001-of-00002" / "train.tokens.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train\.tokens\.npy has .* bytes instead of"):
        Verification(directory)


def test_progress_is_shown_in_the_unit_of_the_corpus(directory, monkeypatch):
    told = []

    class Progress(progress.Progress):
        def __init__(self, title, total, unit):
            told.append((title, total, unit))

        def update(self, done):  # called only if hashing takes more than half a second, as it may on a busy machine
            assert 0 <= done <= told[0][1]

        def close(self):
            told.append("closed")

    monkeypatch.setattr(verification, "Progress", Progress)
    _, size = verify(directory)
    assert told == [("verifying the corpus:", round(size / 1e3), "kB"), "closed"]


def test_an_unreadable_file_is_named(directory, monkeypatch):
    def fail(running, file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(verification.Verification, "_sha256", fail)
    with Verification(directory) as running, pytest.raises(UserError, match=r"\.npy cannot be read: Input/output error; remove"):
        running.wait()
