"""Small corpora for tests. Each token encodes its position in the corpus, so a row shows where every token came from."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.data.corpus.store import Corpus, TokenStore
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo

FIRST = 1000  # smaller ids are free for special tokens and placeholders


def vocabulary(size: int) -> VocabularyInfo:
    """Returns a vocabulary with the special ids of the published uncased one."""
    return VocabularyInfo(
        size=size, sha256="", lowercase=True, kind="wordpiece", pad_id=0, unk_id=100, cls_id=101, sep_id=102, mask_id=103
    )


def corpus_from_arrays(
    tokens: np.ndarray, sentence_offsets: np.ndarray, document_offsets: np.ndarray, vocabulary: VocabularyInfo
) -> Corpus:
    """Returns a training corpus in memory, with one shard."""
    counts = np.bincount(tokens, minlength=vocabulary.size).astype(np.int64)
    store = TokenStore((tokens,), np.array([0, len(tokens)], np.int64))
    sentences, documents = sentence_offsets.astype(np.int64), document_offsets.astype(np.int64)
    assert (sentences[-1], documents[-1]) == (len(tokens), len(sentences) - 1)
    return Corpus(store, sentences, documents, counts, vocabulary, "train", None)


def corpus_of(documents: list[list[int]], shards: int = 1) -> Corpus:
    """Returns a corpus in which `documents[d][s]` is the number of tokens of sentence s of document d; token i of the corpus has
    the id FIRST + i."""
    sentence_offsets = np.concatenate([[0], np.cumsum([n for document in documents for n in document])]).astype(np.int64)
    document_offsets = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
    tokens = np.arange(FIRST, FIRST + sentence_offsets[-1], dtype=np.uint32)
    corpus = corpus_from_arrays(tokens, sentence_offsets, document_offsets, vocabulary(FIRST + len(tokens)))
    bounds = sentence_offsets[document_offsets[np.linspace(0, len(documents), shards + 1).astype(int)]]
    return dataclasses.replace(corpus, tokens=TokenStore(tuple(np.split(tokens, bounds[1:-1])), bounds))


def random_documents(count: int, seed: int, sentences: float = 12, tokens: float = 15) -> list[list[int]]:
    """Returns documents and sentences with skewed lengths; some have only one sentence, some only one token."""
    rng = np.random.default_rng(seed)
    return [(1 + rng.gamma(1.5, tokens / 1.5, size).astype(int)).tolist() for size in rng.geometric(1 / sentences, count)]
