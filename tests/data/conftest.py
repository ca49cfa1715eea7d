"""Fixtures that the corpus tests share: hostile strings, a made-up vocabulary, and a small corpus of plain English."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from typing import Any

import pytest

from bert_jax.data.corpus.build import BuildConfig, build_corpus
from bert_jax.data.corpus.cleaning import CleaningConfig
from bert_jax.data.corpus.shard import TextConfig
from bert_jax.data.corpus.sources import ReadOptions, parse_source
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def hostile_strings() -> list[str]:
    lines = (HERE / "hostile_strings.txt").read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def tiny_vocabulary() -> pathlib.Path:
    """Returns an uncased vocabulary: letters, a few words and a few characters of other scripts."""
    return HERE / "tiny_vocab.txt"


@pytest.fixture(scope="session")
def tiny_cased_vocabulary() -> pathlib.Path:
    return HERE / "tiny_cased_vocab.txt"


@pytest.fixture(scope="session")
def tiny(tiny_vocabulary: pathlib.Path) -> Tokenizer:
    return load_tokenizer(tiny_vocabulary)


_WORDS = "the a cat dog bird sat ran flew on under mat tree house and then it was not here there old new red blue"


def english(documents: int, seed: int = 0) -> list[str]:
    """Returns documents of 2 to 12 made-up sentences, one per line."""
    draw = random.Random(seed)
    return [
        "\n".join(
            " ".join(draw.choices(_WORDS.split(), k=draw.randint(4, 14))).capitalize() + "." for _ in range(draw.randint(2, 12))
        )
        for _ in range(documents)
    ]


@pytest.fixture
def text_file(tmp_path: pathlib.Path) -> pathlib.Path:
    """Writes a file of 300 documents, one sentence per line."""
    path = tmp_path / "text" / "a.txt"
    path.parent.mkdir()
    path.write_text("\n\n".join(english(300)) + "\n")
    return path


@pytest.fixture(scope="session")
def build(tiny: Tokenizer):
    """Returns a function that builds a corpus in this process and returns its report: `build(directory, "text:...", shards=4,
    keep={"..."}, ...)`."""

    def run(
        directory: pathlib.Path,
        *names: str,
        shards: int | None = 4,
        workers: int = 1,
        host: tuple[int, int] = (0, 1),
        **changes: Any,
    ):
        config = BuildConfig(
            sources=tuple(map(parse_source, names)),
            text=TextConfig(
                options=ReadOptions(layout=changes.pop("layout", "auto")),
                cleaning=CleaningConfig(keep=frozenset(changes.pop("keep", ()))),
                eval_fraction=0.1,
            ),
            shards=shards,
            enough_eval=changes.pop("enough_eval", False),
        )
        tokenizer = changes.pop("tokenizer", tiny)
        config = dataclasses.replace(config, text=dataclasses.replace(config.text, **changes))
        return build_corpus(config, tokenizer, directory, workers=workers, host=host, command="the command")

    return run
