"""Makes controls: models and texts with little or no structure to find. Measurements are repeated on the controls for
comparison."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int64

from bert_jax.interop.huggingface import Model, NewParts, with_new_parts, without_parts
from bert_jax.prediction.engine import Engine
from bert_jax.tasks.readers.conllu import Sentence


def random_weights(model: Model, seed: int) -> Model:
    """Returns the model without its task heads and with random embeddings and layers. They are initialised as at the start of
    pretraining."""
    bare = dataclasses.replace(without_parts(model, model.parts), source=f"{model.source} with random weights")
    drawn = tuple(part for part in ("embeddings", "encoder") if part in model.params)  # a static model has no layers
    return with_new_parts(bare, NewParts(drawn, seed=seed))


def engine_with_random_weights(engine: Engine, seed: int) -> Engine:
    """Returns an engine for `random_weights` of the engine's model, with batches of the same size."""
    control = Engine(random_weights(engine.model, seed))
    control.tokens = engine.tokens
    return control


def shuffled_words(sentence: Sentence, rng: np.random.Generator) -> Sentence:
    """Returns the sentence with its words and their annotation in a random order. Every word keeps its head."""
    order = rng.permutation(len(sentence.words))
    place = np.argsort(order)
    heads = tuple(int(place[h]) if (h := sentence.heads[i]) >= 0 else -1 for i in order) if sentence.heads else ()
    columns = ("words", "lemmas", "upos", "xpos", "features", "relations", "misc")
    moved: dict[str, Any] = {name: tuple(getattr(sentence, name)[i] for i in order) for name in columns}
    return dataclasses.replace(sentence, heads=heads, **moved)


def permuted_heads(sentence: Sentence, rng: np.random.Generator) -> Sentence:
    """Returns the sentence with the heads of its words in a random order. The root stays the root, and no word is its own head.
    The result is usually not a tree."""
    heads = np.array(sentence.heads, np.int64)
    words = np.flatnonzero(heads >= 0)
    heads[words] = _none_at_home(words, rng.permutation(heads[words]), rng)
    return dataclasses.replace(sentence, heads=tuple(heads.tolist()))


def _none_at_home(
    words: Int64[np.ndarray, " words"], heads: Int64[np.ndarray, " words"], rng: np.random.Generator
) -> Int64[np.ndarray, " words"]:
    """Returns the heads, changed so that no word is its own head. If a word is its own head, its head is swapped with the head
    of another word. This is always possible because `heads` also contains the head of the word in the tree, which is a
    different word."""
    heads = heads.copy()
    for i in np.flatnonzero(heads == words):
        (others,) = np.nonzero((heads != words[i]) & (words != heads[i]))
        j = rng.choice(others)
        heads[i], heads[j] = heads[j], heads[i]
    return heads
