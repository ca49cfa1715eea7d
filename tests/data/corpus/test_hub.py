"""Where a vocabulary is looked for; `tests/interop/test_locate.py` tests what is fetched from the hub."""

from __future__ import annotations

import os
import pathlib

import pytest

from bert_jax.data.corpus import hub
from bert_jax.data.corpus.hub import find_vocabulary, is_hub_name
from bert_jax.errors import UserError
from bert_jax.storage import objects


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


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("", ["vocab.txt"]),
        ("", ["source.spm", "target.spm", "vocab.json"]),
        ("/model", ["config.json", "vocab.txt"]),
        ("/tokenizer", ["spiece.model"]),
    ],
)
def test_a_vocabulary_in_a_bucket_is_fetched_from_a_model_a_workdir_or_a_corpus(place: str, there: list[str], bucket: str):
    for name in [*there, "weights.safetensors", "model/config.json", "tokenizer/deep/vocab.txt"]:
        objects.write(f"{bucket}/x{place}/{name}", name.encode())
    found = find_vocabulary(f"{bucket}/x/")
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {name: name.encode() for name in there}


def test_the_settings_next_to_a_vocabulary_file_in_a_bucket_are_fetched_to_compare_them(bucket: str):
    for name in ("vocab.txt", "tokenizer_config.json", "large.json", "other.txt"):
        objects.write(f"{bucket}/m/{name}", name.encode())
    found = find_vocabulary(f"{bucket}/m/vocab.txt")
    assert found.read_bytes() == b"vocab.txt"
    assert {path.name for path in found.parent.iterdir()} == {"vocab.txt", "tokenizer_config.json"}
    assert find_vocabulary(f"{bucket}/m/other.txt").read_bytes() == b"other.txt"
    with pytest.raises(UserError, match="does not exist in the bucket"):
        find_vocabulary(f"{bucket}/n/vocab.txt")


def test_a_hub_that_does_not_answer_is_asked_once_and_cached_files_are_used(monkeypatch: pytest.MonkeyPatch):
    import httpx2
    import huggingface_hub

    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "")  # restored afterwards
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY")
    asked: list[object] = []

    def downloaded(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((name, allow_patterns, local_files_only))
        return "there"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)
    for error, only_local in ((httpx2.TimeoutException("no answer"), True), (OSError("no network"), False)):

        def model_info(api: object, name: str, timeout: float, error: Exception = error) -> None:
            asked.append((name, timeout))
            raise error

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        asked.clear()
        with hub.hub_fetcher("lab/model") as fetch:
            assert fetch("*.json", "a") == pathlib.Path("there")
        assert asked == [("lab/model", 5.0), ("lab/model", ["*.json", "a"], only_local)]
        cause = "no answer" if only_local else "not there"
        with (
            pytest.raises(
                UserError, match=f"no directory lab/model .*, and no model of that name could .*: {cause}; check the net"
            ),
            hub.hub_fetcher("lab/model"),
        ):
            raise ValueError("not there")
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
