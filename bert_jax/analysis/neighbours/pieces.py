"""The pieces whose input embeddings are nearest to a word's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.analysis.windows import Word, text_words
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.prediction.questions import shortened


@dataclasses.dataclass(frozen=True)
class NearPiece:
    """A piece beside a word."""

    piece: str
    cosine: float
    """Between its input embedding and the word's."""
    norm: float
    """The length of its input embedding."""


@dataclasses.dataclass(frozen=True)
class WordPieces:
    """A word with its nearest pieces, the nearest first."""

    word: str
    pieces: tuple[str, ...]
    """Its own pieces; the word's embedding is the mean of theirs."""
    norm: float
    """The length of that mean."""
    nearest: tuple[NearPiece, ...]
    n: int
    """The number of pieces that were compared: all but its own."""


def one_word(tokenizer: Tokenizer, text: str) -> Word:
    """The one word that `text` is. Raises UserError where it is none, or several."""
    words = text_words(tokenizer, text)
    if len(words) != 1:
        raise UserError(
            f"{shortened(text)} is {counted(len(words), 'word')}; give one word, or a sentence with one word in brackets: "
            "'the [bank] of the river'"
        )
    return words[0]


def nearest_pieces(model: Model, words: Sequence[str], count: int = 10) -> list[WordPieces]:
    """The `count` pieces nearest to each word by the cosine of their input embeddings, before position and LayerNorm.

    A word of several pieces has the mean of their embeddings; its own pieces are left out. Raises UserError for what is not one
    word.
    """
    tokenizer = model.tokenizer
    if model.config.character_cnn:
        raise UserError(
            f"{model.source} computes word vectors from characters, so it has no table of them; name another model, or a text "
            "with --input=FILE, in which words are compared"
        )
    table = np.asarray(model.params["embeddings"]["word_embeddings"]["embedding"], np.float32)[: tokenizer.size]
    norms = np.linalg.norm(table, axis=1)
    found = []
    for text in words:
        ids = list(one_word(tokenizer, text).ids)
        own = sorted(set(ids))
        vector = table[ids].mean(0)
        norm = float(np.linalg.norm(vector))
        cosines = (table @ vector) / np.maximum(norms * np.float32(norm), np.float32(1e-12))
        cosines[own] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(count, tokenizer.size - len(own))]
        nearest = tuple(NearPiece(tokenizer.pieces[i], float(cosines[i]), float(norms[i])) for i in best.tolist())
        found.append(WordPieces(text, tuple(tokenizer.tokens(ids)), norm, nearest, tokenizer.size - len(own)))
    return found
