"""A corpus in a bucket: it is copied, verified if anything is new, and named by its bucket in errors."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from bert_jax.data.corpus import verification
from bert_jax.data.corpus.store import CorruptedCorpus
from bert_jax.errors import UserError
from bert_jax.storage.objects import Item

REMOTE, KEY = "gs://bucket/corpus", "config.corpus.directory"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[object]:
    """Records the operations in a list, for a bucket with a manifest whose files are all new."""
    done: list[object] = []
    objects = {"manifest.json": Item(5, "1")}

    @contextlib.contextmanager
    def measured():
        done.append("begins")
        yield
        done.append("ends")

    monkeypatch.setattr(verification, "downloading", measured)
    monkeypatch.setattr(verification, "listed", lambda path: objects if path == REMOTE else {})
    monkeypatch.setattr(verification, "cached_path", lambda path: tmp_path / path.rpartition("/")[2])
    monkeypatch.setattr(verification, "fetch", lambda remote, directory, found: done.append((remote, directory, found)) or True)
    monkeypatch.setattr(verification, "verify", lambda directory: done.append(("verified", directory)))
    monkeypatch.setattr(verification, "forget", lambda directory: done.append(("forgotten", directory)))
    return done


def test_a_corpus_on_a_disk_is_not_copied(done):
    assert verification.local_corpus("corpora/a") == pathlib.Path("corpora/a")
    assert verification.local_corpus(pathlib.Path("corpora/a"), "--verify") == pathlib.Path("corpora/a")
    assert done == []


def test_a_copy_is_verified_if_anything_in_it_is_new(done, tmp_path, monkeypatch):
    fetched = (REMOTE, tmp_path / "corpus", {"manifest.json": Item(5, "1")})
    assert verification.local_corpus(f"{REMOTE}/") == tmp_path / "corpus"
    assert done == ["begins", fetched, ("verified", tmp_path / "corpus"), "ends"]
    monkeypatch.setattr(verification, "fetch", lambda *_: False)
    done.clear()
    assert verification.local_corpus(REMOTE) == tmp_path / "corpus"
    assert done == ["begins", "ends"]


def test_a_damaged_copy_is_named_by_its_bucket_path_and_fetched_again(done, tmp_path, monkeypatch):
    def damaged(directory: pathlib.Path) -> None:
        raise CorruptedCorpus(f"corrupted corpus: {directory}/a.npy is missing; remove it")

    monkeypatch.setattr(verification, "verify", damaged)
    says = rf"^the corpus {REMOTE} is damaged \({REMOTE}/a.npy is missing\); upload it again .* DIR {REMOTE}`$"
    with pytest.raises(UserError, match=says):
        verification.local_corpus(REMOTE, "--verify")
    assert done[-1] == ("forgotten", tmp_path / "corpus")


@pytest.mark.parametrize("name", [KEY, "--verify"])
def test_a_path_without_a_corpus_is_named_with_its_flag_or_key(done, name):
    with pytest.raises(
        UserError, match=rf"^{name}=gs://bucket/other is not a corpus, because the bucket has no manifest.json there"
    ):
        verification.local_corpus("gs://bucket/other", name)
    with pytest.raises(UserError, match=rf"^{name}=gs:/bucket/x: a path in a bucket starts with gs://"):
        verification.local_corpus("gs:/bucket/x", name)
    with pytest.raises(UserError, match=rf"^{KEY}=gs:/bucket/x: a path in a bucket"):
        verification.local_corpus("gs:/bucket/x")
