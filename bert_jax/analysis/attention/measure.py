"""The attention weights of every layer and head for one text or pair."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.maps import first_row
from bert_jax.analysis.named import NamedArray
from bert_jax.analysis.windows import Kind, Window
from bert_jax.errors import UserError, nearest
from bert_jax.interface.numbers import whole_number
from bert_jax.interface.words import cut
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.questions import NOT_FINITE


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """The weights between the pieces and between the words of a text. The weights of each piece, and of each word, sum to 1."""

    model: str
    pieces: NamedArray
    """float32 [layer, head, from, to]; the labels of `from` and `to` are the numbers of `tokens`, from 0."""
    words: NamedArray
    """float32 [layer, head, from, to], for the entries of `word_texts`: the sum over the pieces of the attended word, and the
    mean over the pieces of the attending word."""
    tokens: tuple[str, ...]
    """The pieces, including [CLS] and [SEP]."""
    word_texts: tuple[str, ...]
    word_of_token: tuple[int, ...]
    """For each piece, the number of its word."""
    kinds: tuple[Kind, ...]
    """The kind of each word."""
    segments: tuple[int, ...]
    """For each word, 0 if it is in the first text and 1 if it is in the second."""


def read_attention(engine: Engine, window: Window) -> Attention:
    """Returns the weights of all layers and heads for one window. Raises UserError if they are not finite, or if the model has no
    attention."""
    engine.require_attention("to show")
    config, item = engine.config, window.item(engine.config.has_segments)
    ((pieces, words),) = engine.batches(first_row, [item])
    numbers = np.array(item.columns["words"])
    _, starts = np.unique(numbers, return_index=True)
    n = len(numbers)
    pieces, words = pieces[:, :, :n, :n], words[:, :, starts[:, None], starts]
    if not np.isfinite(words).all():  # each word's sum over the weights of its pieces
        raise UserError(f"{engine.name} returns {NOT_FINITE}")
    every = {"layer": range(1, config.num_layers + 1), "head": range(1, config.num_heads + 1)}
    second = window.segment_b or len(window.words)
    return Attention(
        model=engine.name,
        pieces=NamedArray(pieces, {**every, "from": range(n), "to": range(n)}),
        words=NamedArray(words, {**every, "from": range(len(starts)), "to": range(len(starts))}),
        tokens=tuple(engine.model.tokenizer.tokens(item.ids)),
        word_texts=tuple(word.text for word in window.words),
        word_of_token=tuple(numbers.tolist()),
        kinds=tuple(word.kind for word in window.words),
        segments=tuple(int(i >= second) for i in range(len(window.words))),
    )


def read_head(name: str, layers: int, heads: int) -> tuple[int, int]:
    """Parses the name of a head such as "8-10" and returns (layer, head). Raises UserError if the model has no such head."""
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", name)
    if found is None:
        raise UserError(f"--head={cut(name)} is not the name of a head: LAYER-HEAD, such as 1-{min(2, heads)}")
    layer, head = whole_number(found[1], 1, layers), whole_number(found[2], 1, heads)
    if layer is None or head is None:
        hint = nearest(name, head_names(layers, heads)) if layers * heads <= 400 else ""
        hint = f"; {hint}" if hint.startswith("did") else ""
        raise UserError(f"--head={cut(name)} does not exist: the model has layers 1 to {layers} with heads 1 to {heads}{hint}")
    return layer, head


def attention_arrays(found: Attention) -> dict[str, np.ndarray]:
    """Returns all fields as arrays for an .npz file. Weights have the axes [layer, head, from, to]."""
    return {
        "pieces": found.pieces.values,
        "words": found.words.values,
        "tokens": np.array(found.tokens),
        "word_texts": np.array(found.word_texts),
        "word_of_token": np.array(found.word_of_token, np.int32),
        "segments": np.array(found.segments, np.int32),
        "kinds": np.array([kind.name for kind in found.kinds]),
    }
