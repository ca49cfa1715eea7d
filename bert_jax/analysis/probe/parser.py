"""Parsers that predict the syntactic head of each word from the attention of all heads (Clark et al. 2019, arXiv:1906.04341,
section 5).

The probability that word i is the head of word j is the softmax over i of

    sum_k w_k a_k(i, j) + u_k a_k(j, i)

where a_k(i, j) is the attention of head k from word i to word j. In the parsers with words, w_k and u_k are linear in the input
embeddings of the words i and j. Input embeddings (the mean over a word's pieces) replace the paper's GloVe vectors. The parsers
on distance have the same form, with an indicator for each distance between i and j instead of attention. All parsers are
log-linear in their weights. The weights start at 0, so only the order of the sentences is random.

Parsers predict the heads of all words except the root and punctuation. The candidates are all other words of the sentence. The
attention of a batch is computed, used for training and discarded, so memory does not grow with the treebank."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bert_jax.analysis.maps import Batch, Params, layer_maps, word_slots
from bert_jax.analysis.probe.annotated import Annotated
from bert_jax.analysis.probe.linear import State
from bert_jax.analysis.probe.word_vectors import Say, silent
from bert_jax.analysis.windows import word_windows
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.packing import Item

PARSERS = ("attention and words", "attention", "distance and words", "distance")
REACH = 10
"""The largest distance with an indicator. Longer distances count as this distance."""
ROWS = 4
"""The maximum number of rows in a step."""
LEARNING_RATES = {"bias": 0.2, "head": 0.02, "dependent": 0.02}
"""The learning rates of Adam. They decay to 0 over all steps, as a cosine. Attention to a word is often far below 1, so the
weights of the heads have to be large."""
NO_HEAD = 0
"""The value in "heads" for the root, for punctuation, and for tokens that are not words of the text."""
Weights = Mapping[str, Mapping[str, Array]]


def parser_items(engine: Engine, sentences: Iterable[Annotated]) -> Iterator[Item]:
    """Yields the sentences that have a tree and fit into the position table. The column "heads" has a value for each token: the
    index of the head of the token's word, where [CLS] has index 0. The value is NO_HEAD for words whose head is not
    predicted."""
    for sentence in sentences:
        windows = list(word_windows(engine, sentence.words)) if sentence.heads else []
        if len(windows) != 1:
            continue
        asked = zip(sentence.heads, sentence.punctuation, strict=True)
        heads = [NO_HEAD, *(NO_HEAD if mark else head + 1 for head, mark in asked), NO_HEAD]
        item = windows[0].item()
        column = [heads[number] for number in item.columns["words"]]
        yield dataclasses.replace(item, columns={**item.columns, "heads": column})


@compiled
def parser_inputs(params: Params, batch: Batch, *, config: ModelConfig) -> dict[str, Float[Array, "B *_"] | Int[Array, "B Z"]]:
    """Returns the inputs of parsers. "attention" [B, H, Z, Z] is the attention between words of the heads of all layers.
    "words" [B, Z, D] are the input embeddings. "sequence" [B, Z] is the index of the text from 1, or 0 for columns without a
    word of a text. "number" [B, Z] is the index of the word in its text. "heads" [B, Z] is the index of the head of the
    word."""
    slots = word_slots(batch)
    table = params["embeddings"]["word_embeddings"]["embedding"]
    shares = slots.members / jnp.maximum(slots.members.sum(1, keepdims=True), 1.0)
    embedded = jnp.take(table, batch["input_ids"], axis=0).astype(jnp.float32)
    return {
        "attention": jnp.concatenate(layer_maps(params, batch, slots, config, True), axis=1),
        "words": jnp.einsum("BLZ,BLD->BZD", shares, embedded, precision=jax.lax.Precision.HIGHEST),
        "sequence": jnp.where(slots.is_word, slots.sequence, 0),
        "number": slots.number,
        "heads": jnp.where(slots.is_word, batch["heads"], NO_HEAD),
    }


def distance_maps(number: Int[Array, "B Z"]) -> Float[Array, "B H Z Z"]:
    """Returns one map for each distance from -REACH to REACH. An entry is 1 if the second word is at this distance from the
    first word, otherwise 0. The first and the last map also cover all longer distances."""
    distance = jnp.clip(number[:, None, :] - number[:, :, None], -REACH, REACH)
    distances = jnp.arange(-REACH, REACH + 1, dtype=distance.dtype)
    return (distance[:, None] == distances[None, :, None, None]).astype(jnp.float32)


def initial_weights(heads: int, width: int) -> dict[str, dict[str, jax.Array]]:
    """Returns weights of 0. Each parser has "bias" [2, H] for w and u. The parsers on words also have "head" and "dependent"
    [2, D, H], the parts of w and u that are linear in the words i and j."""
    weights = {}
    for name in PARSERS:
        count = heads if name.startswith("attention") else 2 * REACH + 1
        weights[name] = {"bias": jnp.zeros((2, count))}
        if name.endswith("words"):
            weights[name] |= {part: jnp.zeros((2, width, count)) for part in ("head", "dependent")}
    return weights


def scores(weights: Mapping[str, Array], maps: Float[Array, "B H Z Z"], words: Float[Array, "B Z D"]) -> Float[Array, "B Z Z"]:
    """Returns the score of each word i [.., i, ..] as the head of each word j [.., j]. The score is the sum in the docstring of
    this module."""
    exact = jax.lax.Precision.HIGHEST
    total = jnp.zeros(maps.shape[:1] + maps.shape[2:])
    for direction, pairs in enumerate((maps, maps.swapaxes(2, 3))):
        total += jnp.einsum("H,BHZQ->BZQ", weights["bias"][direction], pairs, precision=exact)
        if "head" in weights:
            of_head, of_dependent = (
                jnp.einsum("BZD,DH->BHZ", words, weights[part][direction], precision=exact) for part in ("head", "dependent")
            )
            total += jnp.einsum("BHZ,BHZQ->BZQ", of_head, pairs, precision=exact)
            total += jnp.einsum("BHQ,BHZQ->BZQ", of_dependent, pairs, precision=exact)
    return total


def log_probabilities(weights: Weights, read: Mapping[str, Array]) -> dict[str, Float[Array, "B Z Z"]]:
    """Returns the log probability that word i [.., i, ..] is the head of word j [.., j], for each parser. The candidates are
    the other words of the same text. `read` is the result of `parser_inputs`."""
    sequence = read["sequence"]
    same = (sequence[:, :, None] == sequence[:, None, :]) & (sequence > 0)[:, None, :]
    candidates = same & ~jnp.eye(sequence.shape[1], dtype=bool)[None]
    maps = {"attention": read["attention"], "distance": distance_maps(read["number"])}
    words = read["words"] / jnp.sqrt((read["words"] ** 2).mean(-1, keepdims=True) + 1e-12)
    found = {name: scores(own, maps[name.partition(" ")[0]], words) for name, own in weights.items()}
    return {name: jax.nn.log_softmax(jnp.where(candidates, own, -1e9), axis=1) for name, own in found.items()}


def is_head(read: Mapping[str, Array]) -> Float[Array, "B Z Z"]:
    """Returns 1 if word i [.., i, ..] is the head of word j [.., j] and j is scored, otherwise 0."""
    same = read["sequence"][:, :, None] == read["sequence"][:, None, :]
    asked = (read["heads"] != NO_HEAD) & (read["sequence"] > 0)
    return (same & (read["number"][:, :, None] == read["heads"][:, None, :]) & asked[:, None, :]).astype(jnp.float32)


def parser_loss(weights: Weights, read: Mapping[str, Array]) -> Float[Array, ""]:
    """Returns the mean negative log probability of the heads, summed over the parsers."""
    true = is_head(read)
    likelihoods = [(own * true).sum() for own in log_probabilities(weights, read).values()]
    return -sum(likelihoods, jnp.zeros(())) / jnp.maximum(true.sum(), 1.0)


def train_parsers(
    engine: Engine, sentences: Sequence[Annotated], passes: int, seed: int, say: Say = silent
) -> dict[str, dict[str, jax.Array]]:
    """Returns the weights of PARSERS, trained with Adam in `passes` passes over the sentences. The sentences are shuffled in
    each pass.

    `say` is called with the number of words read so far, and the total over all passes.
    """
    config = engine.config
    weights = initial_weights(config.num_layers * config.num_heads, config.hidden_size)
    total = passes * sum(len(sentence.words) for sentence in sentences)
    state, done = (weights, _optimizer().init(weights)), 0
    rng = np.random.default_rng(seed)
    for _ in range(passes):
        shuffled = (sentences[i] for i in rng.permutation(len(sentences)))
        for read in engine.batches(parser_inputs, parser_items(engine, shuffled)):
            words = int((read["sequence"] > 0).sum())
            share = 0.5 * (1 + np.cos(np.pi * min(1.0, done / total)))
            state = _steps(state, read, {part: np.float32(rate * share) for part, rate in LEARNING_RATES.items()})
            done += words
            say(done, total)
    say(total, total)
    return state[0]


def _optimizer() -> optax.GradientTransformation:
    return optax.scale_by_adam()


@jax.jit
def _steps(state: State, read: Mapping[str, Array], rates: Mapping[str, Float[Array, ""]]) -> State:
    """Returns the state after one step for every ROWS rows of a batch, or for every row if the number of rows is not a multiple
    of ROWS."""
    rows = read["sequence"].shape[0]
    size = ROWS if rows % ROWS == 0 else 1
    parts = {name: x.reshape(rows // size, size, *x.shape[1:]) for name, x in read.items()}

    def step(state: State, part: Mapping[str, Array]) -> tuple[State, None]:
        weights, moments = state
        gradients = jax.grad(parser_loss)(weights, part)
        updates, moments = _optimizer().update(gradients, moments)
        changed = {name: {part: own[part] - rates[part] * updates[name][part] for part in own} for name, own in weights.items()}
        return (changed, moments), None

    return jax.lax.scan(step, state, parts)[0]


def parser_accuracy(
    engine: Engine, weights: Weights, sentences: Sequence[Annotated], say: Say = silent
) -> tuple[dict[str, float], int]:
    """Returns (the unlabelled attachment score of each parser, the number of words). The score is the fraction of words whose
    most likely head is correct."""
    right = dict.fromkeys(weights, 0)
    n = done = 0
    total = sum(len(sentence.words) for sentence in sentences)
    for read in engine.batches(parser_inputs, parser_items(engine, sentences)):
        found, asked = _right(weights, read)
        right = {name: right[name] + int(found[name]) for name in right}
        n += int(asked)
        done += int((read["sequence"] > 0).sum())
        say(done, total)
    say(total, total)
    return {name: count / n if n else float("nan") for name, count in right.items()}, n


@jax.jit
def _right(weights: Weights, read: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
    true = is_head(read)
    found = {name: own.argmax(1) for name, own in log_probabilities(weights, read).items()}
    asked = true.max(1) > 0
    return {name: ((true.argmax(1) == own) & asked).sum() for name, own in found.items()}, asked.sum()


def offset_counts(engine: Engine, sentences: Iterable[Annotated]) -> collections.Counter[int]:
    """Counts the words whose head parsers predict, by the distance to their head. The distance is negative if the head precedes
    the word."""
    offsets: collections.Counter[int] = collections.Counter()
    for item in parser_items(engine, sentences):
        asked = dict(zip(item.columns["words"], item.columns["heads"], strict=True))
        offsets.update(head - number for number, head in asked.items() if head != NO_HEAD)
    return offsets
