"""A corpus in a bucket: copied, verified where anything was new, and refused by its name in the bucket."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from bert_jax.data.corpus import staging
from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.errors import UserError
from bert_jax.storage.objects import Item

REMOTE, KEY = "gs://bucket/corpus", "config.corpus.directory"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[object]:
    """What is done, in a list that grows; a bucket that holds a manifest, of which everything is new."""
    done: list[object] = []
    objects = {"manifest.json": Item(5, "1")}

    @contextlib.contextmanager
    def measured():
        done.append("begins")
        yield
        done.append("ends")

    monkeypatch.setattr(staging, "staging", measured)
    monkeypatch.setattr(staging, "listed", lambda path: objects if path == REMOTE else {})
    monkeypatch.setattr(staging, "copy_place", lambda path: tmp_path / path.rpartition("/")[2])
    monkeypatch.setattr(staging, "fetch", lambda remote, directory, found: done.append((remote, directory, found)) or True)
    monkeypatch.setattr(staging, "verify", lambda directory: done.append(("verified", directory)))
    monkeypatch.setattr(staging, "forget", lambda directory: done.append(("forgotten", directory)))
    return done


def test_a_corpus_on_a_disk_is_where_it_is(done):
    assert staging.staged("corpora/a") == pathlib.Path("corpora/a")
    assert staging.staged(pathlib.Path("corpora/a"), "--verify") == pathlib.Path("corpora/a")
    assert done == []


def test_a_copy_is_verified_where_anything_in_it_is_new(done, tmp_path, monkeypatch):
    fetched = (REMOTE, tmp_path / "corpus", {"manifest.json": Item(5, "1")})
    assert staging.staged(f"{REMOTE}/") == tmp_path / "corpus"
    assert done == ["begins", fetched, ("verified", tmp_path / "corpus"), "ends"]
    monkeypatch.setattr(staging, "fetch", lambda *_: False)
    done.clear()
    assert staging.staged(REMOTE) == tmp_path / "corpus"
    assert done == ["begins", "ends"]


def test_a_damaged_copy_is_named_by_its_place_in_the_bucket_and_fetched_again_the_next_time(done, tmp_path, monkeypatch):
    def damaged(directory: pathlib.Path) -> None:
        raise CorruptedCorpus(f"corrupted corpus: {directory}/a.npy is missing; remove it")

    monkeypatch.setattr(staging, "verify", damaged)
    says = rf"^the corpus {REMOTE} is damaged \({REMOTE}/a.npy is missing\); upload it again .* DIR {REMOTE}`$"
    with pytest.raises(UserError, match=says):
        staging.staged(REMOTE, "--verify")
    assert done[-1] == ("forgotten", tmp_path / "corpus")


@pytest.mark.parametrize("name", [KEY, "--verify"])
def test_what_is_no_corpus_is_named_with_its_flag_or_key(done, name):
    with pytest.raises(UserError, match=rf"^{name}=gs://bucket/other is no corpus: the bucket has no manifest.json there; build"):
        staging.staged("gs://bucket/other", name)
    with pytest.raises(UserError, match=rf"^{name}=gs:/bucket/x: a path in a bucket begins with gs://"):
        staging.staged("gs:/bucket/x", name)
    with pytest.raises(UserError, match=rf"^{KEY}=gs:/bucket/x: a path in a bucket"):
        staging.staged("gs:/bucket/x")
