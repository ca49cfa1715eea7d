"""Where a vocabulary is looked for; `tests/interop/test_locate.py` tests what is fetched from the hub."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.data.corpus import hub
from bert_jax.data.corpus.hub import find_vocabulary, is_hub_name
from bert_jax.errors import UserError


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("lab/model-1.0", True),
        ("./model", False),
        ("-x/model", False),
        ("lab/model/x", False),
        ("model", False),
        ("tests/data/corpus", False),
    ],
)
def test_a_hub_name_is_owner_slash_name_and_not_a_path(name: str, is_one: bool):
    assert is_hub_name(name) is is_one


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("bert-large-cased-whole-word-masking", "google-bert/bert-large-cased-whole-word-masking"),
        ("distilbert-base-cased", "distilbert/distilbert-base-cased"),
        ("bert-of-mine", "OWNER/NAME"),
        ("runs/bert-base-uncased/x", "OWNER/NAME"),
    ],
)
def test_a_hub_name_without_owner_is_suggested_with_its_owner(name: str, full: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"does not exist; .*or a model of the hub as {full}$"):
        find_vocabulary(name)


def test_the_reason_is_the_first_line_of_the_innermost_cause():
    outer, inner = RuntimeError("outer"), ValueError("the reason.\nmore")
    outer.__cause__ = inner
    assert hub._cause(outer) == "the reason"
    assert hub._cause(KeyError()) == "KeyError"
    assert hub._cause(ValueError("  one\ntwo")) == "one"


@pytest.mark.parametrize(("place", "there"), [("", ["vocab.txt"]), ("/model", ["config.json"]), ("/tokenizer", ["spiece.model"])])
def test_a_vocabulary_in_a_bucket_is_fetched_from_a_model_a_workdir_or_a_corpus(
    place: str, there: list[str], monkeypatch: pytest.MonkeyPatch
):
    directories = {f"gs://bkt/x{place}": dict.fromkeys([*there, "weights.safetensors"])}
    asked = []

    def listed(path: str, *, deep: bool) -> dict[str, None]:
        assert not deep
        return directories.get(path, {})

    def fetched(path: str, name: str, *, deep: bool, wanted) -> pathlib.Path:
        asked.append((path, name, deep, [file for file in directories[path] if wanted(file)]))
        return pathlib.Path("copy")

    monkeypatch.setattr(hub, "listed", listed)
    monkeypatch.setattr(hub, "fetched", fetched)
    assert find_vocabulary("gs://bkt/x/") == pathlib.Path("copy")
    assert asked == [(f"gs://bkt/x{place}", "--vocab", False, there)]
