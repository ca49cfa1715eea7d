"""Corpora whose pieces do not show where words start: the corpus stores it, from the shards through every change to the masks."""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil

import numpy as np
import pytest

from bert_jax.data.batches import corpus_masking_tables
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus import shard
from bert_jax.data.corpus.store import Corpus, CorruptedCorpus, open_corpus
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import assemble_rows, words_begun
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe
from tests.data.conftest import english
from tests.data.corpus.test_build import contents


def lines(documents: int) -> list[str]:
    """Returns documents in which some words start without a space."""
    return [document.replace(" a", " don't-(a)").replace(" t", " é.日本t") for document in english(documents)]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return train_bpe([document.split("\n") for document in lines(100)], 320, None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_text("\n\n".join([*lines(150), *lines(20)]) + "\n")
    return f"text:{file}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, build, byte_level: Tokenizer, source: str) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("built") / "c"
    build(directory, source, layout="sentences", tokenizer=byte_level)
    return directory


def starts_of(corpus: Corpus) -> np.ndarray:
    assert corpus.word_starts is not None
    return corpus.word_starts.at(np.arange(corpus.num_tokens))


def expected(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """Computes the expected word starts from the text of each document, which byte-level pieces restore."""
    found = []
    for first, last in itertools.pairwise(corpus.document_offsets.tolist()):
        sentences = [
            tokenizer.decode(corpus.tokens[a:b].tolist())
            for a, b in itertools.pairwise(corpus.sentence_offsets[first : last + 1].tolist())
        ]
        assert all(sentence.startswith(" ") == (n > 0) for n, sentence in enumerate(sentences)), "as in running text"
        found += [np.array(tokenizer._model.encode_with_words(sentence)[2]) for sentence in sentences]
    return np.concatenate(found)


def test_word_starts_equal_the_library_through_all_changes_of_shards(tmp_path, build, byte_level, source, monkeypatch):
    monkeypatch.setattr(shard, "_FLUSH_TOKENS", 333)
    settings = {"layout": "sentences", "tokenizer": byte_level}
    report = build(tmp_path / "c", source, eval_fraction=0.1, **settings)
    assert report["dropped"]["duplicate-documents"] == 20
    build(tmp_path / "c", source, eval_fraction=0.3, **settings)
    build(tmp_path / "directly", source, eval_fraction=0.3, **settings)
    assert contents(tmp_path / "c") == contents(tmp_path / "directly")
    for split in ("train", "eval"):
        corpus = open_corpus(tmp_path / "c", split)
        wanted = expected(corpus, byte_level)
        assert 0.2 < wanted.mean() < 0.9
        np.testing.assert_array_equal(starts_of(corpus), wanted)
        part = corpus.part([(7, 9), (2, 6), (0, corpus.num_documents)])
        again = part.part([(1, 4)])
        for some in (part, again):
            np.testing.assert_array_equal(starts_of(some), expected(some, byte_level))


@pytest.mark.parametrize("changes", [{}, {"packed_examples": 3}, {"pairs": "none"}, {"masking": "spans"}, {"masking": "words"}])
def test_whole_words_are_masked_together(built, changes):
    corpus = open_corpus(built)
    config = ExampleConfig(**{"length": 64, "max_predictions": 20, "masked_fraction": 0.3, "masking": "whole_words"} | changes)
    plan = plan_epoch(corpus, config, seed=0, epoch=0)
    tables = corpus_masking_tables(corpus)
    assert tables.continuation is None
    batch = assemble_rows(corpus, plan, np.arange(plan.num_rows), tables)
    starts, begun = starts_of(corpus), words_begun(corpus, plan, np.arange(plan.num_rows), batch, tables)
    several = 0
    for row in range(plan.num_rows):
        chosen = {*batch["masked_positions"][row][batch["masked_targets"][row] >= 0].tolist()}
        column, counted = 0, set()
        for e in plan.rows[row][plan.rows[row] >= 0]:
            column += 1
            for start, length in (
                (plan.pairs.a_start[e], plan.pairs.a_length[e]),
                (plan.pairs.b_start[e], plan.pairs.b_length[e]),
            ):
                begins = starts[start : start + length].copy()
                counted |= {column + int(i) for i in np.flatnonzero(begins)} & chosen
                begins[:1] = True
                bounds = [*np.flatnonzero(begins).tolist(), int(length)]
                for first, last in itertools.pairwise(bounds if length else []):
                    word = set(range(column + first, column + last))
                    assert not word & chosen or word <= chosen
                    several += len(word & chosen) > 1
                column += int(length) + (1 if length or config.pairs != "none" else 0)
        assert {*batch["masked_positions"][row][begun[row]].tolist()} == counted, "of the words of an evaluation"
    assert several > 50


def test_a_corpus_without_its_word_starts_is_refused(tmp_path, built):
    shutil.copytree(built, tmp_path / "c")
    file = next(iter(sorted((tmp_path / "c").glob("shard-*/train.words.npy"))))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"")
    with pytest.raises(CorruptedCorpus, match=r"train.words.npy has [\d,]+ bytes instead of"):
        open_corpus(tmp_path / "c")
    file.unlink()
    with pytest.raises(CorruptedCorpus, match=r"train.words.npy is missing"):
        open_corpus(tmp_path / "c")


def test_word_starts_truncated_while_mapped_are_named(tmp_path, built):
    """Without the check the process ends with "Bus error"."""
    shutil.copytree(built, tmp_path / "c")
    corpus = open_corpus(tmp_path / "c")
    for file in (tmp_path / "c").glob("shard-*/train.words.npy"):
        os.truncate(file, 100)
    with pytest.raises(CorruptedCorpus, match=r"train\.words\.npy was cut from [\d,]+ to 100 bytes while it was in use"):
        starts_of(corpus)
