"""A linear-chain conditional random field over the words of each text (Lafferty et al. 2001). arXiv:1508.01991 uses it on top
of an LSTM.

The score of a label sequence is the sum of the scores of its labels, the scores of the transitions between adjacent labels, and
the scores of its first and its last label. p(labels | text) is the softmax over all sequences. Only the first subword of a word
has a label. Here, the words of a text are therefore the tokens at which `words` is 1. Texts packed into a row are independent.

`conditional_logits` applies the chain rule. The log-softmax of its logits at a word is log p(label | previous labels, text).
The sum of the usual cross-entropy over the words of a text is therefore -log p(labels | text). The function runs the forward
algorithm from right to left."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.layers import parameter


class Transitions(NamedTuple):
    """The transition scores between labels, float32."""

    between: Float[Array, "C C"]
    """The score of each label (second axis) after each label (first axis)."""
    start: Float[Array, " C"]
    """The score of each label at the first word of a text."""
    end: Float[Array, " C"]
    """The score of each label at the last word of a text."""


class Chain(NamedTuple):
    """The inputs of a CRF: the scores of the labels at each token, and which tokens are words."""

    scores: Float[Array, "B L C"]
    """float32."""
    words: Int[Array, "B L"]
    """1 on the first subword of each word, otherwise 0."""
    sequence_ids: Int[Array, "B L"]
    """The index of each token's text in the row, from 1, or 0 at padding. The tokens of a text are adjacent."""


class Crf(nn.Module):
    """The parameters of a CRF over C labels. Parameters start at 0, so at first the labels of words are independent."""

    labels: int

    @nn.compact
    def __call__(self) -> Transitions:
        """Returns the transitions."""
        c = self.labels
        between = parameter(self, "between", nn.initializers.zeros, (None, None), (c, c))
        start, end = (parameter(self, name, nn.initializers.zeros, (None,), (c,)) for name in ("start", "end"))
        return Transitions(between, start, end)


def conditional_logits(chain: Chain, transitions: Transitions, labels: Int[Array, "B L"]) -> Float[Array, "B L C"]:
    """Returns the logits of every word's label given the `labels` of the words before it, float32. The logits of tokens that
    are not words are meaningless."""
    column = jnp.arange(labels.shape[1], dtype=jnp.int32)[None]
    latest = jax.lax.cummax(jnp.where(chain.words > 0, column, -1), axis=1)
    before = jnp.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-1)  # the column of the word before each token
    at = jnp.maximum(before, 0)
    same_text = jnp.take_along_axis(chain.sequence_ids, at, axis=1) == chain.sequence_ids
    follows = ((before >= 0) & same_text)[..., None]
    arriving = jnp.where(follows, transitions.between[jnp.take_along_axis(labels, at, axis=1)], transitions.start)
    return chain.scores + arriving + _from_the_right(chain, transitions, jax.nn.logsumexp)


def best_labels(chain: Chain, transitions: Transitions) -> tuple[Int[Array, "B L"], Float[Array, "B L C"]]:
    """Returns (labels, logits) of the best label sequence, by the Viterbi algorithm. The labels are the argmax of the logits.

    The logit of a label at a word is the score of the best sequence of labels for this word and all later words that begins
    with this label. The previous word has its best label. The labels and logits of tokens that are not words are meaningless."""
    behind = _from_the_right(chain, transitions, jnp.max)

    def step(
        carry: tuple[Int[Array, " B"], Int[Array, " B"]], x: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (label, text), (scores, word, own_text) = carry, x
        logits = scores + jnp.where((text == own_text)[:, None], transitions.between[label], transitions.start[None])
        best = logits.argmax(-1).astype(jnp.int32)
        return (jnp.where(word > 0, best, label), jnp.where(word > 0, own_text, text)), (best, logits)

    none = jnp.zeros_like(chain.words[:, 0])
    _, (labels, logits) = jax.lax.scan(step, (none, none - 1), _by_token(chain._replace(scores=chain.scores + behind)))
    return labels.swapaxes(0, 1), logits.swapaxes(0, 1)


def log_marginals(chain: Chain, transitions: Transitions) -> Float[Array, "B L C"]:
    """Returns log p(label | text) of every word, float32. The forward-backward algorithm sums over all labels of the other
    words. The values of tokens that are not words are meaningless."""
    backwards = Transitions(transitions.between.T, transitions.end, transitions.start)
    turned = Chain(*(x[:, ::-1] for x in chain))
    before = _from_the_right(turned, backwards, jax.nn.logsumexp)[:, ::-1]
    return jax.nn.log_softmax(chain.scores + before + _from_the_right(chain, transitions, jax.nn.logsumexp), axis=-1)


def _from_the_right(chain: Chain, transitions: Transitions, reduce: Callable[..., Array]) -> Float[Array, "B L C"]:
    """For each label of a token, scores all label sequences of the words to its right, and returns `reduce` of these scores.
    `reduce` is logsumexp or maximum."""

    def step(
        carry: tuple[Float[Array, "B C"], Int[Array, " B"]], x: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        (right, text), (scores, word, own_text) = carry, x
        right = jnp.where((text == own_text)[:, None], right, transitions.end[None])
        with_own = reduce(transitions.between[None] + (scores + right)[:, None], axis=-1)
        return (jnp.where((word > 0)[:, None], with_own, right), own_text), right

    outside = jnp.zeros_like(chain.scores[:, 0]), jnp.full_like(chain.words[:, 0], -1)
    _, right = jax.lax.scan(step, outside, _by_token(chain), reverse=True)
    return right.swapaxes(0, 1)


def _by_token(chain: Chain) -> tuple[Array, Array, Array]:
    """Returns the arrays of `chain` with the tokens on the leading axis."""
    return chain.scores.swapaxes(0, 1), chain.words.swapaxes(0, 1), chain.sequence_ids.swapaxes(0, 1)
