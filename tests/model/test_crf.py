"""The CRF over the words of texts, compared with sums over all sequences of labels."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.crf import Chain, Transitions, best_labels, conditional_logits, log_marginals
from bert_jax.model.heads.outputs import EXCLUDED, Outputs, softmax
from bert_jax.model.heads.token import TokenHead

LABELS = 3
SEQUENCE_IDS = np.array([[1, 1, 1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 2, 2, 2, 2, 2, 2, 2, 2]], np.int32)
WORDS = np.array([[0, 1, 1, 0, 1, 0, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0, 1, 1, 1, 0]], np.int32)
"""In the first row, text 3 has no words and text 2 has one; the second row starts with a word."""
WITHIN = 2e-5
"""The tolerance for sums of at most six words' scores, each below 5, in float32 compared with float64."""


@pytest.fixture(scope="module")
def chain() -> Chain:
    scores = np.random.default_rng(0).normal(size=(*WORDS.shape, LABELS)).astype(np.float32)
    return Chain(*map(jnp.asarray, (scores, WORDS, SEQUENCE_IDS)))


@pytest.fixture(scope="module")
def transitions() -> Transitions:
    rng = np.random.default_rng(1)
    shapes = (LABELS, LABELS), (LABELS,), (LABELS,)
    return Transitions(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes))


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(7).integers(0, LABELS, WORDS.shape, np.int32) * WORDS


def texts() -> list[tuple[int, np.ndarray]]:
    """Returns (row, columns of the words) of every text with words."""
    found = [(r, np.flatnonzero((SEQUENCE_IDS[r] == text) & (WORDS[r] > 0))) for r in range(2) for text in (1, 2, 3)]
    return [(r, columns) for r, columns in found if columns.size]


def path_scores(paths: np.ndarray, scores: jax.Array, transitions: Transitions) -> jax.Array:
    """Returns the score of each row of labels, for words with the scores [words, C]."""
    words = scores[np.arange(len(scores)), paths].sum(1) + transitions.start[paths[:, 0]] + transitions.end[paths[:, -1]]
    return words + transitions.between[paths[:, :-1], paths[:, 1:]].sum(1)


def in_numpy(chain: Chain, transitions: Transitions) -> tuple[np.ndarray, Transitions]:
    """Returns the scores and the transitions as numpy arrays, so that sums over them need no compilation."""
    return np.asarray(chain.scores), Transitions(*map(np.asarray, transitions))


def all_paths(words: int) -> np.ndarray:
    """Returns all sequences of labels, [C ** words, words]."""
    return np.array(list(itertools.product(range(LABELS), repeat=words)))


def brute_force_loss(scores: jax.Array, transitions: Transitions, labels: np.ndarray) -> jax.Array:
    """Returns the sum over all texts of -log p(labels)."""
    total = jnp.float32(0)
    for r, columns in texts():
        own = scores[r, columns]
        total += jax.nn.logsumexp(path_scores(all_paths(len(columns)), own, transitions))
        total -= path_scores(labels[r, columns][None], own, transitions)[0]
    return total


def our_loss(chain: Chain, transitions: Transitions, labels: np.ndarray) -> jax.Array:
    losses = Outputs().loss(conditional_logits(chain, transitions, jnp.asarray(labels)), jnp.asarray(labels), 0.0)
    return (losses * WORDS).sum()


def test_the_cross_entropy_is_minus_the_log_likelihood_and_so_is_its_gradient(chain, transitions, labels):
    def ours(scores, transitions):
        return our_loss(chain._replace(scores=scores), transitions, labels)

    def theirs(scores, transitions):
        return brute_force_loss(scores, transitions, labels)

    (mine, my_gradient), (true, gradient) = (
        jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(chain.scores, transitions) for loss in (ours, theirs)
    )
    assert float(mine) == pytest.approx(float(true), rel=1e-5)
    for own, brute in zip(jax.tree.leaves(my_gradient), jax.tree.leaves(gradient), strict=True):
        assert np.any(brute)
        np.testing.assert_allclose(own, brute, atol=WITHIN)


def test_labels_are_the_best_sequence_and_the_argmax_of_their_logits(chain, transitions):
    labels, logits = (np.asarray(x) for x in jax.jit(best_labels)(chain, transitions))
    together, alone, (all_scores, own) = [], [], in_numpy(chain, transitions)
    for r, columns in texts():
        paths = all_paths(len(columns))
        best = paths[path_scores(paths, all_scores[r, columns], own).argmax()].tolist()
        assert labels[r, columns].tolist() == logits[r, columns].argmax(-1).tolist() == best
        together += best
        alone += all_scores[r, columns].argmax(-1).tolist()
    assert together != alone, "the transitions decide"


def test_a_text_does_not_depend_on_the_texts_before_it():
    """Large start scores decide the first label of each text; its [CLS] and the texts before it must not count."""
    search, changed = jax.jit(best_labels), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(*WORDS.shape, LABELS)).astype(np.float32)
        shapes = ((LABELS, LABELS), 3.0), ((LABELS,), 5.0), ((LABELS,), 1.0)
        moves = Transitions(*(jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for shape, scale in shapes))
        chain = Chain(*map(jnp.asarray, (scores, WORDS, SEQUENCE_IDS)))
        labels = np.asarray(search(chain, moves)[0])
        own = Transitions(*map(np.asarray, moves))
        without = own._replace(start=np.zeros(LABELS, np.float32))
        for r, columns in texts():
            paths = all_paths(len(columns))
            assert labels[r, columns].tolist() == paths[path_scores(paths, scores[r, columns], own).argmax()].tolist()
            changed += paths[path_scores(paths, scores[r, columns], without).argmax()].tolist() != labels[r, columns].tolist()
    assert changed > 20, "the starts decide"


def test_marginals_are_sums_over_all_sequences(chain, transitions):
    found, (all_scores, own) = np.exp(jax.jit(log_marginals)(chain, transitions)), in_numpy(chain, transitions)
    for r, columns in texts():
        paths = all_paths(len(columns))
        p = softmax(path_scores(paths, all_scores[r, columns], own))
        for i, column in enumerate(columns):
            expected = [p[paths[:, i] == label].sum() for label in range(LABELS)]
            np.testing.assert_allclose(found[r, column], expected, atol=WITHIN)


def test_a_new_crf_is_the_softmax_of_each_word(chain, labels):
    none = Transitions(*(np.zeros(shape, np.float32) for shape in ((LABELS, LABELS), LABELS, LABELS)))
    logits = jax.jit(conditional_logits)(chain, none, jnp.asarray(labels))
    expected = jax.nn.log_softmax(chain.scores, axis=-1)
    for found in (jax.nn.log_softmax(logits, axis=-1), jax.jit(log_marginals)(chain, none)):
        np.testing.assert_allclose(np.where(WORDS[..., None], found - expected, 0), 0, atol=WITHIN)


def test_other_texts_and_continuation_tokens_do_not_change_a_text(chain, transitions, labels):
    own = (SEQUENCE_IDS == 1) & (WORDS > 0)
    others = jnp.where(own[..., None], chain.scores, chain.scores[:, ::-1] + 1)
    other_labels = np.where(own, labels, (labels + 1) % LABELS)
    readers = (
        lambda chain, _: best_labels(chain, transitions)[1],
        lambda chain, _: log_marginals(chain, transitions),
        lambda chain, labels: conditional_logits(chain, transitions, labels),
    )
    for read in map(jax.jit, readers):
        before, after = (np.asarray(x) for x in (read(chain, labels), read(chain._replace(scores=others), other_labels)))
        np.testing.assert_array_equal(before[own], after[own])


# ------------------------------------------------------------------------------------------------------------------ the scheme

NAMES = ("O", "B-X", "I-X", "B-Y", "I-Y")


def test_iob2_excludes_an_inside_tag_without_an_entity_of_its_type():
    between, start = TokenHead(labels=NAMES, crf="iob2").excluded_transitions()
    assert [name for name, excluded in zip(NAMES, start, strict=True) if excluded] == ["I-X", "I-Y"]
    allowed = {(a, b) for a, b in itertools.product(range(5), repeat=2) if not between[a, b]}
    inside = {(NAMES[a], NAMES[b]) for a, b in allowed if NAMES[b].startswith("I-")}
    assert inside == {("B-X", "I-X"), ("I-X", "I-X"), ("B-Y", "I-Y"), ("I-Y", "I-Y")}
    assert all((a, b) in allowed for a in range(5) for b in (0, 1, 3))
    assert not any(x.any() for x in TokenHead(labels=NAMES, crf="free").excluded_transitions())


def test_excluded_sequences_have_no_probability():
    between, start = TokenHead(labels=NAMES, crf="iob2").excluded_transitions()
    rng = np.random.default_rng(3)
    scores = jnp.asarray(rng.normal(size=(40, 6, 5)) * 3, jnp.float32)
    chain = Chain(scores, *[np.ones((40, 6), np.int32)] * 2)
    allowed = Transitions(jnp.where(between, EXCLUDED, 0.0), jnp.where(start, EXCLUDED, 0.0), jnp.zeros(5))
    labels = np.asarray(jax.jit(best_labels)(chain, allowed)[0])
    free = np.asarray(scores.argmax(-1))
    wrong = [start[path[:, 0]].sum() + between[path[:, :-1], path[:, 1:]].sum() for path in (labels, free)]
    assert wrong[0] == 0 < wrong[1]
    p = np.exp(jax.jit(log_marginals)(chain, allowed))
    np.testing.assert_allclose(p.sum(-1), 1, atol=WITHIN)
    assert (p[:, 0, start] == 0).all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"labels": ("O", "B-X", "E-X"), "crf": "iob2"},
            "'iob2' requires labels O, B-X and I-X, not 'E-X'; set head.crf='free'",
        ),
        ({"labels": ("I-X", "I-Y"), "crf": "iob2"}, "needs a label that may start a text, O or B-X; set head.crf='free'"),
        ({"labels": ("O",), "crf": "yes"}, "head.crf='yes' is not one of none, free, iob2"),
    ],
)
def test_labels_that_are_not_iob2_are_refused(fields, said):
    with pytest.raises(UserError, match=said):
        TokenHead(**fields)
