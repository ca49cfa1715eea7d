"""Compares words in context: the nearest words of a text by layer, the occurrences of a word, and the mean cosine of any two
words.

The text is read as a stream. Word vectors are computed in batches on all devices, and only the nearest words of each batch
leave the devices. Memory therefore does not grow with the text.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.cluster.hierarchy
from jaxtyping import Array, Float, Float32, Float64, Int

from bert_jax.analysis.heads.measure import WINDOWS
from bert_jax.analysis.maps import Batch, Params, word_slots, word_vectors
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.neighbours.flags import Neighbouring
from bert_jax.analysis.windows import Window, Word, grouped, marked_window, text_words
from bert_jax.data.tokenizers.tokenizer import Tokenizer, is_mark
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import NOT_FINITE, shortened

Vectors = Float[np.ndarray, "words D"]


def unit(vectors: Float[np.ndarray, "*shape D"]) -> Float64[np.ndarray, "*shape D"]:
    """Scales the vectors to length 1. Zero vectors stay zero."""
    exact = np.asarray(vectors, np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), 1e-12))


def principal_plane(
    vectors: Vectors, marked: Float[np.ndarray, "_ D"]
) -> tuple[Float64[np.ndarray, "words 2"], Float64[np.ndarray, "_ 2"], float]:
    """Projects the vectors, scaled to length 1, to their first two principal components. Returns (the points of the vectors,
    the points of `marked` in the same plane, the fraction of the variance that the plane explains). The fraction is NaN if
    there is no variance.

    Distances between vectors of length 1 are sqrt(2 - 2 cosine).
    """
    points = unit(vectors)
    middle = points.mean(0, keepdims=True)
    _, sizes, axes = np.linalg.svd(points - middle, full_matrices=False)
    axes = axes[:2]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(1)]
    axes = np.pad(axes * np.sign(largest)[:, None], ((0, 2 - len(axes)), (0, 0)))  # the direction of an axis is arbitrary
    total = float((sizes**2).sum())
    share = float((sizes[:2] ** 2).sum()) / total if total > 1e-12 else float("nan")
    return (points - middle) @ axes.T, (unit(marked) - middle) @ axes.T, share


def clusters(vectors: Vectors, count: int) -> Int[np.ndarray, " words"]:
    """Returns the index of the cluster of each vector. The largest cluster has index 1. Ward's method makes at most `count`
    clusters of the vectors scaled to length 1 (Ward 1963, as in scipy's `linkage`)."""
    if len(vectors) < 2:
        return np.ones(len(vectors), np.int64)
    joined = scipy.cluster.hierarchy.linkage(unit(vectors), "ward")
    labels = scipy.cluster.hierarchy.fcluster(joined, count, "maxclust")
    names, sizes = np.unique(labels, return_counts=True)
    order = {int(name): place for place, name in enumerate(names[np.argsort(-sizes, kind="stable")], 1)}
    return np.array([order[int(label)] for label in labels], np.int64)


def cohesion(vectors: Vectors, labels: Int[np.ndarray, " words"]) -> dict[str, tuple[float, int]]:
    """Returns (mean cosine, number of pairs) over pairs of different vectors. "any" is over all pairs, "same" over pairs in the
    same cluster, and "other" over pairs in different clusters. The mean is NaN if there are no pairs."""
    points = unit(vectors)
    upper = np.triu_indices(len(points), 1)
    cosines, same = (points @ points.T)[upper], labels[upper[0]] == labels[upper[1]]
    chosen = {"any": np.ones_like(same), "same": same, "other": ~same}
    return {name: (float(cosines[some].mean()) if some.any() else float("nan"), int(some.sum())) for name, some in chosen.items()}


def middles(vectors: Vectors, labels: Int[np.ndarray, " words"]) -> dict[int, int]:
    """Returns the central vector of each cluster, by index. It has the largest cosine to the mean of the cluster."""
    points = unit(vectors)
    found = {}
    for label in np.unique(labels).tolist():
        own = np.flatnonzero(labels == label)
        found[label] = int(own[np.argmax(points[own] @ points[own].mean(0))])
    return found


@dataclasses.dataclass(frozen=True)
class NearPiece:
    """A piece that is near to a word."""

    piece: str
    cosine: float
    """The cosine between the input embeddings of the piece and the word."""
    norm: float
    """The length of the input embedding of the piece."""


@dataclasses.dataclass(frozen=True)
class WordPieces:
    """A word with its nearest pieces, the nearest first."""

    word: str
    pieces: tuple[str, ...]
    """The word's own pieces. The embedding of the word is the mean of their embeddings."""
    norm: float
    """The length of the embedding of the word."""
    nearest: tuple[NearPiece, ...]
    n: int
    """The number of pieces that were compared: all except the word's own pieces."""


def one_word(tokenizer: Tokenizer, text: str) -> Word:
    """Returns the only word of `text`, with its pieces after a space, as most words in a text are. Raises UserError if the text
    has no words or several."""
    words = text_words(tokenizer, _after_space(tokenizer, text))
    if len(words) != 1:
        raise UserError(
            f"{shortened(text)} is {counted(len(words), 'word')}; give one word, or a sentence with one word in brackets: "
            "'the [bank] of the river'"
        )
    return words[0]


def _after_space(tokenizer: Tokenizer, text: str) -> str:
    return f" {text}" if tokenizer.distinguishes_spaces and text[:1].isalnum() else text


def word_key(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Returns what the occurrences of a word have in common: the pieces that its text, without marks at the ends, has after a
    space. In the text, the pieces may differ after a bracket and at the start."""
    bare = text
    if text not in tokenizer.specials.values() and not tokenizer.is_added(text):
        letters = [i for i, letter in enumerate(text) if not is_mark(letter)]
        bare = text[letters[0] : letters[-1] + 1] if letters else text
    return tuple(tokenizer.encode_with_specials(_after_space(tokenizer, bare)))


def nearest_pieces(model: Model, words: Sequence[str], count: int = 10) -> list[WordPieces]:
    """Returns the `count` pieces nearest to each word by the cosine of their input embeddings, before position and LayerNorm.

    A word of several pieces is represented by the mean of the embeddings of these pieces. A word's own pieces are not among its
    neighbours. Raises UserError if a text is not exactly one word.
    """
    tokenizer = model.tokenizer
    if model.config.spells_words:
        raise UserError(
            f"{model.source} computes word vectors from characters, so it has no table of them; name another model, or compare "
            "the words of a text with --input=FILE"
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
        best = np.argsort(-cosines, kind="stable")[: min(count, tokenizer.size - len(own))].tolist()
        shown = zip(tokenizer.tokens(best), best, strict=True)
        nearest = tuple(NearPiece(piece, float(cosines[i]), float(norms[i])) for piece, i in shown)
        found.append(WordPieces(text, tuple(tokenizer.tokens(ids)), norm, nearest, tokenizer.size - len(own)))
    return found


_KEYS = 1 << 17
"""The maximum number of words whose `word_key` is kept in memory."""
Key = tuple[int, int]
"""A word of the text, as (index of the window, index of the word in the window)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Occurrences:
    """The occurrences of a word in a text."""

    word: str
    n: int
    """How often the word occurs."""
    contexts: tuple[str, ...]
    """The contexts of the occurrences that are kept, in the order of the text."""
    vectors: NamedArray
    """[layer, occurrence, dimension], float32."""
    marked: tuple[int, ...]
    """The indices in `Neighbours.marked` of the words in context that are occurrences of this word."""


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbours:
    """Words in context, and the words of a text that are nearest to these words."""

    marked: tuple[str, ...]
    """The words in context: sentences with one word in brackets, as given."""
    vectors: NamedArray
    """[layer, marked, dimension]: the vectors of the words in context, float32."""
    cosines: NamedArray
    """[layer, marked, rank]: the cosines of the nearest words of the text, float32. NaN if the text has fewer words than the
    rank."""
    contexts: Mapping[tuple[int, int, int], str]
    """The nearest words, shown in their context, with the same indices as `cosines`."""
    random: NamedArray
    """[layer]: the mean cosine of any two words of the text (Ethayarajh 2019, arXiv:1909.00512), for comparison with the other
    cosines."""
    words: int
    """The number of words in the text."""
    windows: int
    occurrences: tuple[Occurrences, ...]
    """The occurrences of every requested word, whether it was given with a context or not."""


@compiled
def marked_vectors(params: Params, batch: Batch, *, config: ModelConfig, layers: tuple[int, ...]) -> Float[Array, "X S D"]:
    """Returns the vectors of the words at the query positions, for each of `layers`."""
    found = word_vectors(params, batch, word_slots(batch), config, layers)
    return jnp.moveaxis(found.reshape(len(layers), -1, found.shape[-1])[:, batch["query_positions"]], 1, 0)


@compiled
def nearest_words(
    params: Params,
    batch: Batch,
    queries: Float[Array, "S Q D"],
    *,
    config: ModelConfig,
    layers: tuple[int, ...],
    count: int,
) -> dict[str, Array]:
    """Compares the words of a batch with the queries, and returns these arrays.

        cosines, window, number [S, Q, count]  the words nearest to each query; the cosine of a missing word is -inf
        total [S, D], words []                 the sum of the word vectors scaled to length 1, and the number of words
        occurrences [S, X, D]                  the vectors of the words at the query positions
        occurrence_window [X]                  the index of the window of each of these words; -1 if there is no word
        occurrence_number [X]                  the index of each word in its window
    """
    slots = word_slots(batch)
    found = word_vectors(params, batch, slots, config, layers)
    flat = found.reshape(len(layers), -1, found.shape[-1])
    real = slots.is_word.reshape(-1)
    lengths = jnp.linalg.norm(flat, axis=-1, keepdims=True)
    points = jnp.where(real[None, :, None], flat / jnp.maximum(lengths, 1e-12), 0.0)
    cosines = jnp.einsum("SQD,SRD->SQR", queries, points, precision=jax.lax.Precision.HIGHEST)
    best, at = jax.lax.top_k(jnp.where(real[None, None], cosines, -jnp.inf), min(count, real.size))
    windows, numbers, asked = batch["windows"].reshape(-1), slots.number.reshape(-1), batch["query_positions"]
    return {
        "cosines": best,
        "window": windows[at],
        "number": numbers[at],
        "total": points.sum(1),
        "words": real.sum(),
        "occurrences": flat[:, asked],
        "occurrence_window": jnp.where(real[asked], windows[asked], -1),
        "occurrence_number": numbers[asked],
    }


class Nearest:
    """A selection of the nearest words read so far, `count` for each query and layer. Among equally near words, the first in the
    text is kept."""

    def __init__(self, layers: int, queries: int, count: int):
        self._count = count
        self.cosines = np.full((layers, queries, count), -np.inf, np.float32)
        self.windows = np.zeros((layers, queries, count), np.int64)
        self.numbers = np.zeros((layers, queries, count), np.int64)
        self.contexts: dict[Key, str] = {}

    def add(
        self, cosines: Float[np.ndarray, "S Q _"], windows: Int[np.ndarray, "S Q _"], numbers: Int[np.ndarray, "S Q _"]
    ) -> None:
        """Adds neighbours, and keeps only the nearest of all neighbours so far."""
        pairs = ((self.cosines, cosines), (self.windows, windows), (self.numbers, numbers))
        joined = [np.concatenate(pair, axis=-1) for pair in pairs]
        order = np.lexsort((joined[2], joined[1], -joined[0]))[..., : self._count]
        self.cosines, self.windows, self.numbers = (np.take_along_axis(values, order, axis=-1) for values in joined)

    def keys(self) -> dict[tuple[int, int, int], Key]:
        """Returns the words that are kept, by layer, query and rank."""
        there = np.argwhere(np.isfinite(self.cosines)).tolist()
        return {(s, q, r): (int(self.windows[s, q, r]), int(self.numbers[s, q, r])) for s, q, r in there}

    def describe(self, context: Callable[[Key], str]) -> None:
        """Stores the contexts of all words that are kept, and drops all other contexts."""
        self.contexts = {key: self.contexts[key] if key in self.contexts else context(key) for key in {*self.keys().values()}}


class Sample:
    """A random sample of `most` occurrences of a word. The occurrences are read in the order of the text (reservoir sampling,
    Vitter's algorithm R)."""

    def __init__(self, most: int):
        self._most = most
        self._rng = np.random.default_rng(0)
        self.n = 0
        self.chosen: list[Key] = []
        self.vectors: dict[Key, Float32[np.ndarray, "S D"]] = {}
        self.contexts: dict[Key, str] = {}

    def offer(self, key: Key, context: Callable[[Key], str]) -> bool:
        """Reads the next occurrence, and returns whether it is kept. A later occurrence may replace it."""
        self.n += 1
        if len(self.chosen) < self._most:
            self.chosen.append(key)
        else:
            place = int(self._rng.integers(self.n))
            if place >= self._most:
                return False
            for kept in (self.vectors, self.contexts):
                kept.pop(self.chosen[place], None)
            self.chosen[place] = key
        self.contexts[key] = context(key)
        return True


def checked_layers(layers: Sequence[int], last: int) -> tuple[int, ...]:
    """Returns `layers` in order, or all layers if none are named. Raises UserError for a layer that does not exist."""
    for layer in layers:
        if not 0 <= layer <= last:
            raise UserError(f"--layer={layer} does not exist: the model has layers 0 (the embeddings) to {last}")
    return tuple(sorted(set(layers))) or tuple(range(last + 1))


def find_neighbours(
    engine: Engine,
    words: Sequence[str],
    windows: Iterable[Window],
    options: Neighbouring,
    say: Callable[[str], None] = lambda note: None,
) -> Neighbours:
    """Returns the words of `windows` that are nearest to words in context, and the occurrences of all `words` in the windows.

    Each of `words` is a word, or a sentence with one word in brackets. `say` is called with the number of words so far. Cosines
    are computed between word vectors, which are means over the pieces of a word. Two words count as the same if they have the
    same `word_key`. Raises UserError if the text in brackets is not one word, if a layer does not exist, or if there are no
    windows.
    """
    engine.require_encoder()
    layers, width = checked_layers(options.layers, engine.config.num_layers), engine.config.hidden_size

    def as_item(window: Window, numbers: Sequence[int], place: int = 0) -> Item:
        item = window.item(engine.config.has_segments)
        first = {number: position for position, number in reversed([*enumerate(item.columns["words"])])}
        columns = {**item.columns, "windows": [place] * len(item.ids)}
        return dataclasses.replace(item, columns=columns, query_positions=tuple(first[number] for number in numbers))

    marked = {word: with_place for word in words if (with_place := marked_window(engine, word))}
    items = [as_item(window, [number]) for window, number in marked.values()]
    vectors = [np.zeros((0, len(layers), width), np.float32), *engine.run(marked_vectors, items, "position", layers=layers)]
    queries = np.moveaxis(np.concatenate(vectors), 0, 1)  # [S, Q, D]
    tokenizer = engine.model.tokenizer
    key_of = functools.lru_cache(_KEYS)(functools.partial(word_key, tokenizer))
    of_marked = [key_of(window.words[number].text) for window, number in marked.values()]
    names = {key_of(window.words[number].text): window.words[number].text for window, number in marked.values()}
    names |= {key_of(one_word(tokenizer, word).text): word for word in words if word not in marked}
    samples = {own: Sample(options.occurrences) for own in names}
    nearest = Nearest(len(layers), len(marked), options.count)
    total: Float64[np.ndarray, "S D"] = np.zeros((len(layers), width))
    n = done = 0
    points, static = unit(queries).astype(np.float32), {"layers": layers, "count": options.count}
    for group in grouped(windows, WINDOWS * engine.mesh.size):
        read = dict(enumerate(group, done))

        def context(key: Key, read: Mapping[int, Window] = read) -> str:
            return read[key[0]].context(key[1])

        items = []
        for place, window in read.items():
            numbers = [number for number, word in enumerate(window.words) if key_of(word.text) in samples]
            chosen = [i for i in numbers if samples[key_of(window.words[i].text)].offer((place, i), context)]
            items.append(as_item(window, chosen, place))
        for found in engine.batches(nearest_words, items, queries=points, **static):
            nearest.add(found["cosines"], found["window"], found["number"])
            total += found["total"]
            n += int(found["words"])
            keys = zip(found["occurrence_window"].tolist(), found["occurrence_number"].tolist(), strict=True)
            for x, key in enumerate(keys):
                if key[0] >= 0 and key in (sample := samples[key_of(read[key[0]].words[key[1]].text)]).contexts:
                    sample.vectors[key] = found["occurrences"][:, x].copy()
        nearest.describe(context)
        done += len(group)
        say(counted(n, "word"))
    if not n:
        raise UserError("there is no word to compare with; give text")
    if not (np.isfinite(total).all() and np.isfinite(queries).all()):
        raise UserError(f"{engine.name} returns {NOT_FINITE}")

    by_layer, dimension = {"layer": list(layers)}, {"dimension": range(1, width + 1)}
    occurrences = []
    for common, name in names.items():
        sample, own = samples[common], sorted(samples[common].vectors)
        kept = np.stack([sample.vectors[key] for key in own], axis=1) if own else np.zeros((len(layers), 0, width), np.float32)
        array = NamedArray(kept, {**by_layer, "occurrence": range(1, len(own) + 1), **dimension})
        is_marked = tuple(i for i, other in enumerate(of_marked) if other == common)
        occurrences.append(Occurrences(name, sample.n, tuple(sample.contexts[key] for key in own), array, is_marked))
    cosines = np.where(np.isfinite(nearest.cosines), nearest.cosines, np.float32(np.nan))
    asked = {**by_layer, "marked": range(1, len(marked) + 1)}
    random = ((total**2).sum(-1) - n) / (n * (n - 1)) if n > 1 else np.full(len(layers), np.nan)
    return Neighbours(
        marked=tuple(marked),
        vectors=NamedArray(queries, {**asked, **dimension}),
        cosines=NamedArray(cosines, {**asked, "rank": range(1, options.count + 1)}),
        contexts={place: nearest.contexts[key] for place, key in nearest.keys().items()},
        random=NamedArray(random, by_layer),
        words=n,
        windows=done,
        occurrences=tuple(occurrences),
    )
