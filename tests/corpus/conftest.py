"""What the corpus tests share: hostile strings, a made-up vocabulary, and a small corpus of plain English."""

from __future__ import annotations

import json
import pathlib

import pytest

from bert_jax.corpus.tokenizer import Tokenizer, load_tokenizer

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def hostile_strings() -> list[str]:
    lines = (HERE / "hostile_strings.txt").read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def tiny_vocabulary() -> pathlib.Path:
    """Uncased; letters, a few words and a few characters of other scripts."""
    return HERE / "tiny_vocab.txt"


@pytest.fixture(scope="session")
def tiny_cased_vocabulary() -> pathlib.Path:
    return HERE / "tiny_cased_vocab.txt"


@pytest.fixture(scope="session")
def tiny(tiny_vocabulary: pathlib.Path) -> Tokenizer:
    return load_tokenizer(tiny_vocabulary)
