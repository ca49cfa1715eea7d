"""The predictions of two models for the same masked words."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from bert_jax.analysis.compare.aligned import Other, WindowPair, other_batch, own_batch, with_column
from bert_jax.analysis.maps import Batch, Params
from bert_jax.analysis.vocabulary.measure import read_piece
from bert_jax.analysis.windows import Kind
from bert_jax.data.counter_rng import bernoulli, make_key, random_bits
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import word_head
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.forwards import masked_logits


@dataclasses.dataclass(frozen=True)
class Difference:
    """A masked word that two models predict differently."""

    context: str
    own: str
    """The most probable piece of the first model."""
    other: str
    kl: float
    """The Kullback-Leibler divergence KL(first | second) of the two distributions, in nats."""


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of two models for the same masked words."""

    n: int
    accuracy: float
    """The fraction of words that the first model predicts correctly."""
    other_accuracy: float
    agreement: float
    """The fraction of words for which both models predict the same piece."""
    kl: float
    """The mean KL(first | second) in nats, or NaN if the vocabularies differ."""
    other_kl: float
    """The mean KL(second | first)."""
    differences: tuple[Difference, ...]
    """The words with the largest KL(first | second), the largest first. Empty if the vocabularies differ."""


@functools.partial(jax.jit, static_argnames=("config", "sizes", "same"))
def predictions(
    params: Params, batch: Batch, *, config: ModelConfig, other: Other, sizes: tuple[int, int], same: bool
) -> dict[str, Array]:
    """Returns arrays [X] for the query positions.

        own, other            the most probable piece of each model
        target, other_target  the word's piece in each vocabulary
        kl, other_kl          KL(first || second) and KL(second || first); 0 unless the vocabularies are the `same`
        window, number        identify the word
        masked                False for queries that only fill the batch

    `sizes` are the sizes of the two vocabularies. Logits beyond a size do not belong to a piece."""
    at = batch["query_positions"]

    def column(name: str) -> Array:
        return batch[name].reshape(-1)[at]

    there = at - column("position_ids") + column("other_position")
    own = masked_logits(params, own_batch(batch), config)[:, : sizes[0]]
    second = {**other_batch(batch), "query_positions": there}
    others = masked_logits(other.params, second, other.config)[:, : sizes[1]]
    p, q = jax.nn.log_softmax(own), jax.nn.log_softmax(others)
    none = jnp.zeros(at.shape)
    return {
        "own": own.argmax(-1),
        "other": others.argmax(-1),
        "target": column("target"),
        "other_target": column("other_target"),
        "kl": (jnp.exp(p) * (p - q)).sum(-1) if same else none,
        "other_kl": (jnp.exp(q) * (q - p)).sum(-1) if same else none,
        "window": column("windows"),
        "number": column("words"),
        "masked": column("masked") == 1,
    }


def twins(tokenizer: Tokenizer, other: Tokenizer) -> Int32[np.ndarray, " _"]:
    """Returns, for each piece of the second vocabulary, the id of the same piece in the first vocabulary, or -1 if there is
    none. Two pieces are the same if they have the same letters and both start a word or both continue a word. If the
    vocabularies are of the same kind, the pieces of the same spelling come first: in a byte-level vocabulary, "." and " ." have
    the same letters, and neither continues a word."""
    known, others = ([read_piece(t, i) for i in range(t.size)] for t in (tokenizer, other))
    ids = {(piece.text, piece.continues): piece.id for piece in reversed(known)}
    spelled = {piece: i for i, piece in enumerate(tokenizer.pieces)} if tokenizer.vocabulary.kind == other.vocabulary.kind else {}
    found = [spelled.get(other.pieces[piece.id], ids.get((piece.text, piece.continues), -1)) for piece in others]
    return np.array(found, np.int32)


class MaskedWords:
    """Masks the same words for both models in a stream of windows, and sums up how both models predict these words."""

    def __init__(self, engines: tuple[Engine, Engine], share: float, seed: int, most: int):
        """`share` is the fraction of words to mask, among the words that are one known piece in both models. `most` is the
        number of differences to keep. Raises UserError if a model has no trained head that predicts masked words."""
        for engine in engines:
            engine.require_direction("both", "predict masked words")
            engine.require(word_head(engine.config), "predict masked words")
        first, second = self._tokenizers = tuple(engine.model.tokenizer for engine in engines)
        self._engine, self._share, self._most, self._key = engines[0], share, most, make_key(seed)
        self._other = Other(engines[1].params, engines[1].config)
        self._pads, self._masks = (first.pad_id, second.pad_id), (first.mask_id, second.mask_id)
        self._same = first.vocabulary == second.vocabulary
        self._twins = twins(first, second)
        self._seen = self._n = 0
        self._sums = np.zeros(5)
        self._differences: list[tuple[float, tuple[int, int], Difference]] = []

    def choose(self, pair: WindowPair) -> list[int]:
        """Returns the indices of the words to mask in the next window. They are a random share of the words that are one known
        piece in both models. The choice depends only on the seed and on the words read so far."""
        unknown = [tokenizer.unk_id for tokenizer in self._tokenizers]
        fit = [
            number
            for number, (own, other) in enumerate(zip(pair.own.words, pair.other.words, strict=True))
            if own.kind == Kind.WORD
            and all(len(word.ids) == 1 and word.ids[0] != unk for word, unk in zip((own, other), unknown, strict=True))
        ]
        bits = random_bits(self._key, np.arange(self._seen, self._seen + len(fit)))
        self._seen += len(fit)
        return [number for number, chosen in zip(fit, bernoulli(self._share, bits), strict=True) if chosen]

    def read(self, pairs: Sequence[WindowPair], start: int) -> None:
        """Predicts the masked words of the next windows. `start` is the index of the first of these windows."""
        chosen = [self.choose(pair) for pair in pairs]
        items = [
            with_column(pair.item(self._pads, masked, self._masks), "windows", place)
            for place, (pair, masked) in enumerate(zip(pairs, chosen, strict=True), start)
            if masked
        ]
        sizes = (self._tokenizers[0].size, self._tokenizers[1].size)
        for found in self._engine.batches(predictions, items, other=self._other, sizes=sizes, same=self._same):
            self._add({name: values[found["masked"]] for name, values in found.items()}, pairs, start)

    def _add(self, found: Mapping[str, np.ndarray], pairs: Sequence[WindowPair], start: int) -> None:
        right, other_right = (found[name] == found[target] for name, target in (("own", "target"), ("other", "other_target")))
        agree = self._twins[found["other"]] == found["own"]
        kl = found["kl"].astype(np.float64)
        self._n += len(kl)
        self._sums += [right.sum(), other_right.sum(), agree.sum(), kl.sum(), found["other_kl"].astype(np.float64).sum()]
        if not self._same:
            return
        for x in np.argsort(-kl, kind="stable")[: self._most].tolist():
            key = int(found["window"][x]), int(found["number"][x])
            pieces = [t.tokens([int(found[name][x])])[0] for t, name in zip(self._tokenizers, ("own", "other"), strict=True)]
            context = pairs[key[0] - start].own.context(key[1])
            self._differences.append((-float(kl[x]), key, Difference(context, pieces[0], pieces[1], float(kl[x]))))
        self._differences = sorted(self._differences)[: self._most]  # keys are unique, so differences are never compared

    def result(self) -> Predictions:
        """Returns the means. Raises UserError if no word was masked."""
        if not self._n:
            raise UserError("no masked word is a single piece in both vocabularies")
        means = (self._sums / self._n).tolist()
        nan = float("nan")
        kl, other_kl = means[3:] if self._same else (nan, nan)
        differences = tuple(each for _, _, each in self._differences)
        return Predictions(self._n, means[0], means[1], means[2], kl, other_kl, differences)
