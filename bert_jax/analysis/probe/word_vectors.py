"""Computes the vectors of words at every layer, and holds the vectors of a file in float16."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float16, Float32, Int64

from bert_jax.analysis.maps import Batch, Params, word_slots, word_vectors
from bert_jax.analysis.probe.annotated import Annotated
from bert_jax.analysis.windows import Kind, Window, grouped, word_windows
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.questions import NOT_FINITE

Say = Callable[[int, int], None]
"""Called with the amount of work done, and the total."""
CHUNK = 4096
"""The number of words whose mean and deviation are computed at once."""


def silent(done: int, total: int) -> None:
    """Ignores progress."""


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """The vectors of the words of some sentences."""

    vectors: Float16[np.ndarray, "R S D"]
    """The embedding and the output of every layer, for each word."""
    starts: Int64[np.ndarray, " sentence_bounds"]
    """The index of the first word of each sentence, followed by the total number of words."""
    sentences: list[Annotated]
    types: list[tuple[int, ...]]
    """The pieces of each word. Words with the same pieces have the same type."""
    cut: list[bool]
    """For each sentence, whether it is longer than the position table and was read in windows."""

    @property
    def size(self) -> int:
        """The size of the vectors in bytes."""
        return self.vectors.nbytes


@compiled
def layer_vectors(params: Params, batch: Batch, *, config: ModelConfig) -> Float32[Array, "B Z S D"]:
    """Returns the embedding and the output of every layer for each word, averaged over its pieces. Each word is at the column
    of its first token."""
    found = word_vectors(params, batch, word_slots(batch), config, range(config.num_layers + 1))
    return jnp.moveaxis(found, 0, 2)


def read_features(
    engine: Engine,
    sentences: Iterable[Annotated],
    words: int,
    say: Say = silent,
) -> Features:
    """Returns the vectors of all words of `sentences`, which must have at most `words` words in total.

    Raises UserError if there are no words, or if the model returns numbers that are not finite.
    """
    config = engine.config
    vectors = np.empty((words, config.num_layers + 1, config.hidden_size), np.float16)
    starts, kept, types, cut, done = [0], [], [], [], 0
    for group in grouped(sentences, engine.group_size):
        windows = [list(word_windows(engine, sentence.words)) for sentence in group]
        items = [window.item() for window in itertools.chain(*windows)]
        answers = engine.stream(layer_vectors, items, "token")
        for sentence, own in zip(group, windows, strict=True):
            for window in own:
                firsts = _first_tokens(window)
                found = next(answers)[firsts]
                with np.errstate(over="ignore"):  # values too large for float16 become infinite and are rejected below
                    vectors[done : done + len(firsts)] = found
                done += len(firsts)
                types += [word.ids for word in window.words[1:-1]]
            kept.append(sentence)
            starts.append(done)
            cut.append(len(own) > 1)
        say(done, words)
    if not done:
        raise UserError(f"the limit of {counted(words, 'word')} is too small for any whole sentence; raise it")
    vectors = vectors[:done]
    if not all(np.isfinite(vectors[i : i + CHUNK]).all() for i in range(0, done, CHUNK)):
        raise UserError(f"{engine.name} returns {NOT_FINITE}")
    return Features(vectors, np.array(starts), kept, types, cut)


def _first_tokens(window: Window) -> list[int]:
    """Returns the column of the first token of each word, without [CLS] and [SEP]."""
    ends = itertools.accumulate(len(word.ids) for word in window.words)
    columns = [0, *ends]
    return [column for column, word in zip(columns, window.words, strict=False) if word.kind in (Kind.WORD, Kind.PUNCTUATION)]


@dataclasses.dataclass(frozen=True, eq=False)
class Scale:
    """The mean and the standard deviation of each entry of the vectors, used to standardise the inputs of probes."""

    mean: Float32[np.ndarray, "S D"]
    deviation: Float32[np.ndarray, "S D"]


ROUNDING, SMALLEST = float(np.finfo(np.float16).eps), float(np.finfo(np.float16).smallest_subnormal)
"""An entry counts as constant if its deviation is at most ROUNDING times its mean, or at most SMALLEST. The vectors are held in
float16, and rounding alone can cause half of this deviation."""


def fit_scale(vectors: Float[np.ndarray, "R S D"]) -> Scale:
    """Returns the scale of these vectors. Entries that are constant up to the rounding of float16 get deviation 1."""
    chunks = [vectors[i : i + CHUNK].astype(np.float64) for i in range(0, len(vectors), CHUNK)]
    mean = sum(chunk.sum(0) for chunk in chunks) / len(vectors)
    variance = sum(((chunk - mean) ** 2).sum(0) for chunk in chunks) / len(vectors)
    varies = np.sqrt(variance) > np.maximum(ROUNDING * np.abs(mean), SMALLEST)
    deviation = np.where(varies, np.sqrt(variance), 1.0)
    return Scale(np.asarray(mean, np.float32), np.asarray(deviation, np.float32))


def in_epochs(count: int, epochs: int, size: int, seed: int) -> Iterator[Int64[np.ndarray, " {size}"]]:
    """Yields the numbers below `count` in batches of `size`, once in each epoch and in a new random order."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        yield from in_batches(rng.permutation(count), size)


def in_batches(order: Sequence[int] | Int64[np.ndarray, " _"], size: int) -> Iterator[Int64[np.ndarray, " {size}"]]:
    """Yields the elements of `order` in batches of `size`. The last batch is padded with -1."""
    for start in range(0, len(order), size):
        batch = np.full(size, -1, np.int64)
        batch[: len(order[start : start + size])] = order[start : start + size]
        yield batch
