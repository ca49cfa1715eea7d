"""Which texts are paths in a bucket, and where caches are; `test_objects.py` tests misspelt names."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.storage.paths import cache_directory, checked, is_url


@pytest.mark.parametrize("path", ["gs://bucket/a", "s3://bucket/a", "https://x/y", "gs:/bucket/a", "gs//bucket", "/gs:/bucket"])
def test_bucket_paths_and_refused_schemes_are_urls(path: str):
    assert is_url(path)


def test_the_cache_is_in_the_given_directory_or_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.setenv("BERT_JAX_CACHE", "/large/disk")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == pathlib.Path("/large/disk")
    monkeypatch.setenv("BERT_JAX_CACHE", "")
    assert cache_directory() == pathlib.Path("/xdg/bert_jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "bert_jax"
    monkeypatch.setenv("HOME", "/at/ada")
    monkeypatch.setenv("BERT_JAX_CACHE", "~/disk")
    assert cache_directory() == pathlib.Path("/at/ada/disk")


def test_without_a_home_directory_the_cache_directory_is_required(monkeypatch: pytest.MonkeyPatch):
    def no_home() -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", no_home)
    for name in ("BERT_JAX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="set BERT_JAX_CACHE to a directory"):
        cache_directory()


def test_a_tilde_in_a_local_path_is_the_home_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/at/ada")
    assert checked("~/runs/a", "--output") == "/at/ada/runs/a"
    assert checked("gs://bucket/~/a", "--output") == "gs://bucket/~/a"
