"""Labels, control tasks, word types and linear probes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from bert_jax.analysis.probing import linear
from bert_jax.analysis.probing.annotated import Annotated, spread
from bert_jax.analysis.probing.control import NONE, Labels, control_task, majority_accuracy, numbered
from bert_jax.analysis.probing.features import scale_of
from bert_jax.analysis.probing.linear import linear_accuracy, mix_shares, train_linear


def tagged(*sentences: str) -> list[Annotated]:
    """Sentences of "word/label"."""
    pairs = [[pair.split("/") for pair in sentence.split()] for sentence in sentences]
    return [Annotated(tuple(w for w, _ in own), {"tag": tuple(t for _, t in own)}) for own in pairs]


def types(sentences: list[Annotated]) -> list[tuple[int, ...]]:
    return [tuple(map(ord, word)) for sentence in sentences for word in sentence.words]


TRAINING = tagged("a/X b/Y a/X", "a/Y c/_")
EVALUATION = tagged("a/X b/Y d/X d/Z a/_")


def test_labels_are_numbered_by_the_training_part_and_new_ones_are_beyond_reach():
    labels = numbered("tag", TRAINING, EVALUATION)
    assert labels.classes == ("X", "Y")
    assert labels.training.tolist() == [0, 1, 0, 1, NONE]
    assert labels.evaluation.tolist() == [0, 1, 0, 2, NONE]
    assert labels.n == 4


def test_the_usual_label_of_each_word_type_is_right_as_often_as_counted_by_hand():
    labels = numbered("tag", TRAINING, EVALUATION)
    # a is X, b is Y, the unknown d is X or Y, which are as frequent: the first of them
    assert majority_accuracy(labels, types(TRAINING), types(EVALUATION)) == 3 / 4


def test_the_control_task_gives_each_word_type_one_label_of_the_same_distribution():
    words = [(i % 1000, 7) for i in range(4000)]
    shares = np.array([0.6, 0.3, 0.1])
    own = np.random.default_rng(0).choice(3, 4000, p=shares).astype(np.int32)
    own[::10] = NONE
    labels = Labels("tag", ("A", "B", "C"), own, own[:1000])
    control = control_task(labels, words, words[:1000], seed=1)
    given = {}
    for word, label in zip([*words, *words[:1000]], [*control.training.tolist(), *control.evaluation.tolist()], strict=True):
        assert label == NONE or given.setdefault(word, label) == label
    np.testing.assert_allclose(np.bincount(list(given.values())) / len(given), shares, atol=0.06)
    assert ((control.training == NONE) == (own == NONE)).all()
    again, other = (control_task(labels, words, words[:1000], seed) for seed in (1, 2))
    assert (again.training == control.training).all()
    assert (other.training != control.training).any()


def test_a_limit_of_words_takes_whole_sentences_of_all_lengths_from_all_parts_of_a_file():
    lengths = np.random.default_rng(5).integers(1, 40, 900)
    sentences = [Annotated(("w",) * int(n), {}) for n in lengths]
    assert list(spread(sentences, int(lengths.sum()))) == sentences
    chosen = {id(sentence) for sentence in spread(sentences, 3000)}
    taken = [i for i, sentence in enumerate(sentences) if id(sentence) in chosen]
    assert 2700 < lengths[taken].sum() <= 3000
    assert abs(lengths[taken].mean() - lengths.mean()) < 3
    assert min(np.histogram(taken, 3, (0, 900))[0]) > 35


# ------------------------------------------------------------------------------------------------------------------------ probes
COUNT, WIDTH, CLASSES = 400, 3, 3


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, Labels]:
    """Vectors of two layers, and labels that depend on the second, with some noise."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((COUNT, 2, WIDTH)) * [[[1.0], [5.0]]] + 2.0
    own = (vectors[:, 1] + 2.0 * rng.standard_normal((COUNT, WIDTH))).argmax(-1).astype(np.int32)
    own[:7] = NONE
    return vectors.astype(np.float16), Labels("tag", ("A", "B", "C"), own, own)


def best_loss(vectors: np.ndarray, labels: np.ndarray) -> float:
    """The least mean cross-entropy of a softmax regression, by L-BFGS."""
    x = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ flat.reshape(-1, CLASSES)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        right = np.eye(CLASSES)[labels]
        return -np.log((p * right).sum(1)).mean(), (x.T @ (p - right) / len(x)).ravel()

    return float(scipy.optimize.minimize(loss, np.zeros(x.shape[1] * CLASSES), jac=True).fun)


def test_probes_reach_the_least_loss_of_each_layer_and_the_mix_reads_the_layer_that_holds_the_label(data, monkeypatch):
    monkeypatch.setattr(linear, "LEARNING_RATE", 0.05)
    vectors, labels = data
    scale = scale_of(vectors)
    probes = train_linear(vectors, [labels], scale, 150, seed=1)
    read = (vectors.astype(np.float64) - scale.mean) / scale.deviation
    logits = linear.linear_logits(probes["tag"], linear.standardised(vectors.astype(np.float32), (scale.mean, scale.deviation)))
    known = labels.training != NONE
    logits = np.asarray(logits, np.float64)[:, known]
    picked = np.take_along_axis(logits, labels.training[known][None, :, None], axis=-1)[..., 0]
    losses = (np.log(np.exp(logits).sum(-1)) - picked).mean(-1)
    best = [best_loss(read[known, layer], labels.training[known]) for layer in range(2)]
    assert losses[:2].tolist() == pytest.approx(best, abs=5e-3)
    assert best[1] < best[0] - 0.3
    assert losses[2] == pytest.approx(best[1], abs=0.02)
    assert mix_shares(probes["tag"]["mix"])[1] > 0.8
    accuracy = linear_accuracy(probes, vectors, [labels], scale)["tag"]
    np.testing.assert_allclose(accuracy, (logits.argmax(-1) == labels.training[known]).mean(-1), atol=1e-6)
    assert accuracy[1] > accuracy[0] + 0.2
