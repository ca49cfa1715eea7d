"""The words of a corpus that a vocabulary splits."""

from __future__ import annotations

import collections
import dataclasses
import re

import numpy as np
import pytest

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.vocabulary import measure as splits
from bert_jax.analysis.vocabulary.figures import FILES, write_splits
from bert_jax.analysis.vocabulary.measure import find_splits
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.surgery import extended
from tests.data.corpora import corpus_from_arrays
from tests.interop.tiny import make_vocabulary

TEXTS = ["the gradient of the tensor is a gradient, gradients", "tensor of paris: tensor, 42 gradient"] * 4 + [
    "rare is it of",
    "x y",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_vocabulary(tmp_path_factory.mktemp("splits") / "vocabulary", cased=False))


def corpus_of_texts(tokenizer: Tokenizer, texts: list[str], shards: int = 1):
    ids = [tokenizer.encode(text) for text in texts]
    ends = np.cumsum([0, *map(len, ids)])
    corpus = corpus_from_arrays(np.concatenate(ids).astype(np.uint16), ends, np.arange(len(ids) + 1), tokenizer.vocabulary)
    if shards > 1:
        middle = int(ends[len(ends) // 2])
        (whole,) = corpus.tokens.shards
        tokens = dataclasses.replace(
            corpus.tokens, shards=(whole[:middle], whole[middle:]), bounds=np.array([0, middle, len(whole)])
        )
        corpus = dataclasses.replace(corpus, tokens=tokens)
    return corpus


@pytest.mark.parametrize("shards", [1, 2])
def test_counts_of_split_words_equal_a_loop_over_the_texts(tokenizer, shards):
    found = find_splits(corpus_of_texts(tokenizer, TEXTS, shards), tokenizer)
    words = [word.strip(",:") for text in TEXTS for word in text.split()]
    counts = collections.Counter(word for word in words if len(word) > 2 and len(tokenizer.encode(word)) > 1)
    expected = {word: count for word, count in counts.items() if count >= 5 and word.isalpha()}
    assert {one.word: one.count for one in found.split} == expected == {"gradient": 12, "tensor": 12}
    assert "".join(found.split[0].pieces).replace("##", "") == "gradient"
    assert found.pieces == sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert found.words == sum(len(re.findall(r"\w+|[^\w\s]", text)) for text in TEXTS)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_file_of_new_words_lists_the_most_frequent_split_words(tokenizer, tmp_path, count):
    """Words with equal counts are in alphabetical order; words of one piece and rare words are left out."""
    texts = ["tensor gradient the"] * 7 + ["matrix of"] * 9 + ["seldom is paris xy"] * 4 + ["vector thes zog xy"] * 5
    folder = Folder(str(tmp_path), FILES)
    write_splits(folder, find_splits(corpus_of_texts(tokenizer, texts), tokenizer), count)
    words = ["matrix", "gradient", "tensor", "thes", "vector", "zog"]
    assert (tmp_path / "words.txt").read_text() == "".join(f"{word}\n" for word in words[:count])
    rows = [line.split("\t") for line in (tmp_path / "splits.tsv").read_text().splitlines()]
    assert [row[1] for row in rows[1:] if row[0] == "thes"] == ["the ##s"]
    assert [(row[0], row[2]) for row in rows[1:]] == list(zip(words, ["9", "7", "7", "5", "5", "5"], strict=True)), "all of them"


def test_an_added_word_is_no_longer_split(tokenizer):
    before = find_splits(corpus_of_texts(tokenizer, TEXTS), tokenizer)
    more = extended(tokenizer, [one.word for one in before.split])
    after = find_splits(corpus_of_texts(more, TEXTS), more)
    assert after.split == ()
    assert after.words == before.words
    assert after.pieces_per_word < before.pieces_per_word


def test_pieces_of_words_in_the_vocabulary_and_rare_words_are_not_listed(tokenizer, monkeypatch):
    corpus = corpus_of_texts(tokenizer, ["the capital of paris"] * 9 + ["seldom"])
    assert find_splits(corpus, tokenizer).split == ()
    divided = corpus_of_texts(tokenizer, ["the capital of paris"] * 9 + ["seldom"], shards=2)
    first, _ = (len(shard) for shard in divided.tokens.shards)
    for read in (8, first - 1, first, first + 1, first + 3):
        monkeypatch.setattr(splits, "READ", read)
        assert find_splits(divided, tokenizer).pieces == read


def test_the_hash_depends_on_the_pieces_and_their_order():
    long = list(range(70))
    words = [[5], [5, 0], [0, 5], [1, 2], [2, 1], long, [*long[:-1], 0]]
    cut = [7, 7]  # the rest of a word without its beginning
    ids = np.concatenate([cut, *words]).astype(np.uint16)
    sizes = np.array([len(word) for word in words])
    starts = len(cut) + np.cumsum([0, *sizes[:-1]])
    found = splits._hashes(ids, starts, sizes)
    assert len(np.unique(found)) == len(words)
    assert splits._hashes(ids[len(cut) :], starts - len(cut), sizes).tolist() == found.tolist()
    nothing = np.zeros(0, np.int64)
    assert splits._hashes(ids[: len(cut)], nothing, nothing).tolist() == []


def test_pieces_per_word_are_a_mean_over_words():
    assert splits.Splits(4, 6, ()).pieces_per_word == 1.5
    assert splits.Splits(1, 3, ()).pieces_per_word == 3.0
    assert splits.Splits(0, 0, ()).pieces_per_word == 0.0


def test_a_vocabulary_without_continuation_marks_is_refused(tokenizer):
    class Other:
        vocabulary = dataclasses.replace(tokenizer.vocabulary, kind="sentencepiece")

    with pytest.raises(UserError, match="words cannot be added to a sentencepiece vocabulary"):
        find_splits(None, Other())
