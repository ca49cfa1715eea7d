"""The paths of the parameters of a model that is no Transformer, with their axes, for the table of `names.py`."""

from __future__ import annotations

from bert_jax.model.characters import BYTES, character_shapes
from bert_jax.model.config import ModelConfig


def predecessor_axes(config: ModelConfig) -> dict[str, str]:
    """Path -> axes of every parameter of a biLM or static model, without the axis of the stacked layers.

    Letters: V vocabulary, A width of a word, B directions, G = 4 gates, F width of a cell, D and E width of a hidden state; the
    axes of the convolutions over characters are numbered.
    """
    axes = {"embeddings/word_embeddings/embedding": "V A"}
    if config.character_cnn:
        axes = {"embeddings/characters/symbols": "V bytes"}
        shapes = character_shapes(config.word_width)
        axes |= {f"embeddings/characters/{path}": " ".join(_numbered(shape)) for path, shape in shapes.items()}
    axes |= {"pooler/dense/kernel": "D E", "pooler/dense/bias": "E"}
    if config.encoder == "static":
        return axes | {"skip_gram_head/context_embeddings/embedding": "V A", "skip_gram_head/counts": "V"}
    axes |= {f"encoder/layers/{name}/kernel": "B A G F" for name in ("input", "recurrence")}
    axes |= {"encoder/layers/input/bias": "B G F"}
    axes |= {} if config.intermediate_size == config.word_width else {"encoder/layers/projection/kernel": "B F A"}
    return axes | {"softmax/bias": "V"} | ({} if config.tied_decoder else {"softmax/decoder": "V A"})


def predecessor_sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes of the axes of `predecessor_axes` that BERT does not have."""
    if config.encoder == "transformer":
        return {}
    sizes = {"A": config.word_width, "B": config.hidden_size // config.word_width, "bytes": BYTES}
    if config.character_cnn:
        for shape in character_shapes(config.word_width).values():
            sizes |= _numbered(shape)
    return sizes


def _numbered(shape: tuple[int, ...]) -> dict[str, int]:
    """The name of each axis of `shape`, its number and size such as "1:256", with the size."""
    return {f"{n}:{size}": size for n, size in enumerate(shape)}
