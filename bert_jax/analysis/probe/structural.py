"""Structural probes (Hewitt and Manning 2019, section 2). They predict tree distances and depths as norms of linearly mapped
vectors.

One matrix B with `rank` rows is trained so that the squared distance |B(h_i - h_j)|^2 is the number of edges between two words.
A second matrix is trained so that |B h_i|^2 is the depth of a word. Unlike in the paper, the vectors are standardised, so
depths are measured from the mean vector."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph
import scipy.stats
from jaxtyping import Array, Bool, Float, Float32, Float64, Int64

from bert_jax.analysis.probe.linear import Probe, initial_mix, probe_step, standardised, with_mix
from bert_jax.analysis.probe.word_vectors import Features, Say, Scale, silent
from bert_jax.prediction.packing import power_of_two

LENGTHS = range(5, 51)
"""Rank correlations are averaged over the sentences of each length. These averages are averaged again over the lengths from 5
to 50."""


def tree_distances(heads: Sequence[int]) -> Float64[np.ndarray, "words words"]:
    """Returns the number of edges between any two words of a tree with one root."""
    ancestors = np.zeros((len(heads), len(heads)))  # [word, ancestor]; a word counts as its own ancestor
    for word in range(len(heads)):
        at = word
        while at >= 0:
            ancestors[word, at] = 1
            at = heads[at]
    sizes = ancestors.sum(1)
    return np.asarray(sizes[:, None] + sizes[None] - 2 * ancestors @ ancestors.T)


def spanning_tree(distances: Float[np.ndarray, "words words"]) -> set[tuple[int, int]]:
    """Returns the edges (a, b), a < b, of the minimum spanning tree over all words."""
    # The solver skips edges of weight 0. A constant is added to all weights, which does not change the tree.
    positive = np.triu(distances - distances.min() + 1.0, 1)
    a, b = scipy.sparse.csgraph.minimum_spanning_tree(positive).nonzero()
    return {(int(i), int(j)) for i, j in zip(a, b, strict=True)}


def found_edges(
    distances: Float[np.ndarray, "A words words"], heads: Sequence[int], punctuation: Sequence[bool]
) -> tuple[Int64[np.ndarray, " A"], int]:
    """Returns two counts for UUAS, without punctuation. The first is the number of edges of the tree that each spanning tree
    contains. The second is the number of all edges of the tree."""
    kept = [word for word, mark in enumerate(punctuation) if not mark]
    places = {word: place for place, word in enumerate(kept)}
    pairs = ((places[word], places[heads[word]]) for word in kept if heads[word] in places)
    edges = {(min(pair), max(pair)) for pair in pairs}
    if not edges:
        return np.zeros(len(distances), np.int64), 0
    trees = (spanning_tree(own) for own in distances[:, kept][:, :, kept])
    return np.array([len(edges & tree) for tree in trees]), len(edges)


def rank_correlations(
    a: Float[np.ndarray, "*shape words"], b: Float[np.ndarray, "*#shape words"]
) -> Float64[np.ndarray, "*shape"]:
    """Returns Spearman's correlations over the last axis, or NaN if one of the two arrays is constant."""
    ranks = [scipy.stats.rankdata(x, axis=-1) for x in (a, b)]
    x, y = (rank - rank.mean(-1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):
        return np.asarray((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def root_is_found(
    depths: Float[np.ndarray, "A words"], heads: Sequence[int], punctuation: Sequence[bool]
) -> Bool[np.ndarray, " A"]:
    """Returns whether the root is the word with the smallest depth, ignoring punctuation."""
    least = np.where(np.asarray(punctuation)[None], np.inf, depths).argmin(-1)
    return least == heads.index(-1)


def mean_over_lengths(
    lengths: Sequence[int], correlations: Sequence[Float[np.ndarray, " A"]]
) -> tuple[Float64[np.ndarray, " A"], int]:
    """Averages the correlations over the sentences of each length, and these averages over LENGTHS. Returns (the mean, the
    number of sentences of these lengths)."""
    chosen = [length for length in LENGTHS if length in lengths]
    if not chosen:
        return np.full(correlations[0].shape if len(correlations) else 1, np.nan), 0
    own = np.array(lengths)
    every = np.stack(correlations)
    means = [every[own == length].mean(0) for length in chosen]
    return np.mean(means, axis=0), int(np.isin(own, chosen).sum())


class TreeScores:
    """Accumulates the scores of several probes, sentence by sentence. The scores compare the predicted distances and depths
    with the tree."""

    def __init__(self) -> None:
        self._found: list[Int64[np.ndarray, " A"]] = []
        self._roots: list[Bool[np.ndarray, " A"]] = []
        self._distances: list[Float64[np.ndarray, " A"]] = []
        self._depths: list[Float64[np.ndarray, " A"]] = []
        self._lengths: list[int] = []
        self._edges = 0

    def add(
        self,
        distances: Float[np.ndarray, "A words words"],
        depths: Float[np.ndarray, "A words"],
        heads: Sequence[int],
        punctuation: Sequence[bool],
    ) -> None:
        """Adds a sentence with the distances and depths that each probe predicts, and with its tree."""
        true = tree_distances(heads)
        found, edges = found_edges(distances, heads, punctuation)
        self._found.append(found)
        self._edges += edges
        self._roots.append(root_is_found(depths, heads, punctuation))
        self._lengths.append(len(heads))
        # if a probe predicts equal distances, its correlation is NaN and counts as 0
        self._distances.append(np.nan_to_num(rank_correlations(distances, true[None])).mean(-1))
        self._depths.append(np.nan_to_num(rank_correlations(depths, true[None, heads.index(-1)])))

    def results(self) -> dict[str, tuple[Float64[np.ndarray, " A"], int]]:
        """Returns (the value for each probe, n) for each score. n is the number of edges for UUAS, and the number of sentences
        for the other scores. Values are NaN if n is 0."""
        with np.errstate(invalid="ignore"):
            uuas = np.sum(self._found, axis=0) / np.float64(self._edges)
        return {
            "uuas": (uuas, self._edges),
            "distance correlation": mean_over_lengths(self._lengths, self._distances),
            "root accuracy": (np.mean(self._roots, axis=0), len(self._roots)),
            "depth correlation": mean_over_lengths(self._lengths, self._depths),
        }


def chain(count: int) -> tuple[Float64[np.ndarray, "words words"], Float64[np.ndarray, " words"]]:
    """Returns the distances and depths of a right-branching tree, in which the head of each word is the word before."""
    places = np.arange(count, dtype=np.float64)
    return np.abs(places[:, None] - places[None]), places


WORDS = 512
"""The maximum number of words in a step. A step reads as many sentences of similar length as fit."""
SHORTEST = 16
"""The minimum length of the rows of a step."""
LEARNING_RATE = 1e-3
"""The learning rate of Adam. It decays to 0 over all steps, as a cosine."""
Measured = dict[str, jax.Array]


def tree_sentences(features: Features) -> list[int]:
    """Returns the indices of the sentences that were read as a whole and have a tree. The tree must have two or more words,
    which are not all punctuation."""
    numbered = enumerate(zip(features.sentences, features.cut, strict=True))
    return [i for i, (own, cut) in numbered if len(own.heads) > 1 and not all(own.punctuation) and not cut]


def structural_initial(layers: int, width: int, rank: int, seed: int) -> Probe:
    """Returns the initial maps of distances and depths. Squared distances of standardised vectors start at about 2."""
    names = ("distance", "depth")
    deviation = (width * rank) ** -0.5
    keys = jax.random.split(jax.random.key(seed), len(names))
    return {
        name: {"map": deviation * jax.random.normal(key, (layers + 1, width, rank)), "mix": initial_mix(layers)}
        for name, key in zip(names, keys, strict=True)
    }


def measured(probe: Probe, vectors: Float[Array, "S R D"], rows: int) -> Measured:
    """Returns the predictions of the probes on all hidden states and on the mix: "distance" [A, B, Z, Z] and "depth" [A, B, Z].
    The R word vectors belong to B = `rows` sentences of Z words each."""
    exact = jax.lax.Precision.HIGHEST
    mapped = {
        name: jnp.einsum("ARD,ADO->ARO", with_mix(own["mix"], vectors), own["map"], precision=exact)
        for name, own in probe.items()
    }
    squares = {name: (x * x).sum(-1).reshape(len(x), rows, -1) for name, x in mapped.items()}
    x = mapped["distance"].reshape(*squares["distance"].shape, -1)
    products = jnp.einsum("ABZO,ABQO->ABZQ", x, x, precision=exact)
    distance = squares["distance"][..., :, None] + squares["distance"][..., None, :] - 2 * products
    return {"distance": jnp.maximum(distance, 0.0), "depth": squares["depth"]}


def structural_loss(
    probe: Probe, vectors: Float[Array, "S R D"], trees: Mapping[str, Float[Array, "B Z *_"]]
) -> Float[Array, ""]:
    """Returns the losses of distance and depth, summed over all probes. The loss of distance is the mean absolute difference
    over the pairs of words of a sentence, averaged over the sentences. The loss of depth is the mean absolute difference over
    the words of a sentence, averaged in the same way.

    `trees` has the targets "distance" [B, Z, Z] and "depth" [B, Z]. They are -1 for missing words.
    """
    total = jnp.zeros(())
    for name, found in measured(probe, vectors, len(trees["depth"])).items():
        true = trees[name][None]
        known = (true >= 0).astype(jnp.float32)
        axes = tuple(range(2, true.ndim))
        sums = (jnp.abs(found - true) * known).sum(axes)
        sentences = (trees["depth"][:, 0] >= 0).sum()
        total += (sums / jnp.maximum(known.sum(axes), 1.0)).sum() / jnp.maximum(sentences, 1)
    return total


@dataclasses.dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of similar length, as the rows of a step."""

    numbers: list[int]
    vectors: Float32[np.ndarray, "R S D"]
    """The vectors of the words of all rows."""
    trees: dict[str, Float32[np.ndarray, "B Z *_"]]
    """The trees in the form that `structural_loss` reads."""


def batches(features: Features, numbers: Sequence[int]) -> Iterator[Sentences]:
    """Yields the sentences with the indices `numbers` in batches. All rows of a batch have the same length, a power of two of
    at least SHORTEST. Sentences with the same row length keep their order."""
    waiting: dict[int, list[int]] = {}
    for i in numbers:
        length = _row_length(features, i)
        own = waiting.setdefault(length, [])
        own.append(i)
        if len(own) == _rows(length):
            yield _sentences(features, waiting.pop(length), length)
    for length, own in sorted(waiting.items()):
        yield _sentences(features, own, length)


def batch_count(features: Features, numbers: Sequence[int]) -> int:
    """Returns the number of batches of the sentences with the indices `numbers`, which does not depend on their order."""
    lengths = Counter(_row_length(features, i) for i in numbers)
    return sum(-(-count // _rows(length)) for length, count in lengths.items())


def _row_length(features: Features, i: int) -> int:
    return max(SHORTEST, power_of_two(len(features.sentences[i].words)))


def _rows(length: int) -> int:
    return max(1, WORDS // length)


def _sentences(features: Features, numbers: list[int], length: int) -> Sentences:
    rows = _rows(length)
    vectors = np.zeros((rows, length, *features.vectors.shape[1:]), np.float32)
    trees = {"distance": np.full((rows, length, length), -1, np.float32), "depth": np.full((rows, length), -1, np.float32)}
    for row, i in enumerate(numbers):
        heads = features.sentences[i].heads
        n, distances = len(heads), tree_distances(heads)
        vectors[row, :n] = features.vectors[features.starts[i] : features.starts[i + 1]]
        trees["distance"][row, :n, :n] = distances
        trees["depth"][row, :n] = distances[heads.index(-1)]
    return Sentences(numbers, vectors.reshape(rows * length, *vectors.shape[2:]), trees)


def train_structural(
    features: Features,
    scale: Scale,
    rank: int,
    epochs: int,
    seed: int,
    say: Say = silent,
) -> Probe:
    """Returns the maps of distances and depths for all hidden states and the mix. The maps are trained with Adam on the
    sentences with a tree.

    `say` is called with the number of finished sentences, and the total over all epochs.
    """
    numbers = tree_sentences(features)
    _, layers, width = features.vectors.shape
    probe = structural_initial(layers, width, rank, seed)
    total = epochs * len(numbers)
    step, optimizer = probe_step(structural_loss, epochs * batch_count(features, numbers), LEARNING_RATE)
    state = (probe, optimizer.init(probe))
    rng, done = np.random.default_rng(seed), 0
    for _ in range(epochs):
        for batch in batches(features, rng.permutation(numbers).tolist()):
            state = step(state, batch.vectors, batch.trees, (scale.mean, scale.deviation))
            done += len(batch.numbers)
            say(done, total)
    return state[0]


def structural_scores(probe: Probe, features: Features, scale: Scale) -> TreeScores:
    """Returns the scores of the probes on all hidden states and on the mix, in this order."""
    scores = TreeScores()
    for batch in batches(features, tree_sentences(features)):
        answers = _measured(probe, batch.vectors, (scale.mean, scale.deviation), len(batch.trees["depth"]))
        distances, depths = (np.asarray(answers[name]) for name in ("distance", "depth"))
        for row, i in enumerate(batch.numbers):
            sentence = features.sentences[i]
            n = len(sentence.words)
            scores.add(distances[:, row, :n, :n], depths[:, row, :n], sentence.heads, sentence.punctuation)
    return scores


@functools.partial(jax.jit, static_argnums=3)
def _measured(probe: Probe, vectors: Array, scale: tuple[Array, Array], rows: int) -> Measured:
    return measured(probe, standardised(vectors, scale), rows)


def chain_scores(features: Features) -> TreeScores:
    """Returns the scores of right-branching trees."""
    scores = TreeScores()
    for i in tree_sentences(features):
        sentence = features.sentences[i]
        distances, depths = chain(len(sentence.words))
        scores.add(distances[None], depths[None], sentence.heads, sentence.punctuation)
    return scores
