"""Structural probes (Hewitt and Manning 2019, section 2): distances and depths of a tree under a linear map of the vectors.

The squared distance |B(h_i - h_j)|^2 is to be the number of edges between two words, and |B h_i|^2 the depth of a word, where B
has `rank` rows. Unlike in the paper the vectors are standardised, so that depths are measured from the mean vector.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from bert_jax.analysis.probe.features import Features, Say, Scale, silent
from bert_jax.analysis.probe.linear import Probe, initial_mix, probe_step, standardised, with_mix
from bert_jax.analysis.probe.trees import TreeScores, chain, tree_distances
from bert_jax.prediction.packing import power_of_two

WORDS = 512
"""Words of a step: sentences of about one length, as many as fit."""
SHORTEST = 16
"""The least length of the rows of a step."""
LEARNING_RATE = 1e-3
"""Of Adam, with a cosine to 0 over all steps."""
Measured = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Structural:
    """The options of the structural probes."""

    rank: int
    epochs: int


def tree_sentences(features: Features) -> list[int]:
    """The numbers of the sentences with a tree of two words or more, not all of them punctuation, that were read as a whole."""
    numbered = enumerate(zip(features.sentences, features.cut, strict=True))
    return [i for i, (own, cut) in numbered if len(own.heads) > 1 and not all(own.punctuation) and not cut]


def structural_initial(layers: int, width: int, rank: int, seed: int) -> Probe:
    """The maps of distances and depths. A squared distance of standardised vectors begins at about 2."""
    names = ("distance", "depth")
    deviation = (width * rank) ** -0.5
    keys = jax.random.split(jax.random.key(seed), len(names))
    return {
        name: {"map": deviation * jax.random.normal(key, (layers + 1, width, rank)), "mix": initial_mix(layers)}
        for name, key in zip(names, keys, strict=True)
    }


def measured(probe: Probe, vectors: Float[Array, "S R D"], rows: int) -> Measured:
    """"distance" [A, B, Z, Z] and "depth" [A, B, Z] between and of the R words of B = `rows` sentences of Z words each, by the
    probes of all hidden states and the mix."""
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
    """The sum over all probes of the losses of distance and of depth: the mean absolute difference over the pairs of words, and
    over the words, of each sentence, averaged over the sentences.

    trees: "distance" [B, Z, Z] and "depth" [B, Z] as they are to be, -1 where there is no word.
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
    """Sentences of about one length as the rows of a step."""

    numbers: list[int]
    vectors: Float32[np.ndarray, "R S D"]
    """Of the words of all rows."""
    trees: dict[str, Float32[np.ndarray, "B Z *_"]]
    """As `structural_loss` reads them."""


def batches(features: Features, numbers: Sequence[int]) -> Iterator[Sentences]:
    """The sentences of these numbers in their order, in rows of few lengths."""
    waiting: dict[int, list[int]] = {}
    for i in numbers:
        length = max(SHORTEST, power_of_two(len(features.sentences[i].words)))
        own = waiting.setdefault(length, [])
        own.append(i)
        if len(own) == _rows(length):
            yield _sentences(features, waiting.pop(length), length)
    for length, own in sorted(waiting.items()):
        yield _sentences(features, own, length)


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
    options: Structural,
    seed: int,
    say: Say = silent,
) -> Probe:
    """The maps of distances and depths of all hidden states and the mix, trained with Adam on the sentences with a tree.

    `say` is told the number of sentences that are done, and of all over all epochs.
    """
    numbers = tree_sentences(features)
    _, layers, width = features.vectors.shape
    probe = structural_initial(layers, width, options.rank, seed)
    total = options.epochs * len(numbers)
    steps = options.epochs * max(1, round(sum(len(features.sentences[i].words) for i in numbers) / WORDS))
    step, optimizer = probe_step(structural_loss, steps, LEARNING_RATE)
    state = (probe, optimizer.init(probe))
    rng, done = np.random.default_rng(seed), 0
    for _ in range(options.epochs):
        for batch in batches(features, rng.permutation(numbers).tolist()):
            state = step(state, batch.vectors, batch.trees, (scale.mean, scale.deviation))
            done += len(batch.numbers)
            say(done, total)
    return state[0]


def structural_scores(probe: Probe, features: Features, scale: Scale) -> TreeScores:
    """The scores of the probes of all hidden states and the mix, in this order."""
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
    """The scores of right-branching trees."""
    scores = TreeScores()
    for i in tree_sentences(features):
        sentence = features.sentences[i]
        distances, depths = chain(len(sentence.words))
        scores.add(distances[None], depths[None], sentence.heads, sentence.punctuation)
    return scores
