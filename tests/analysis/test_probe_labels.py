"""Labels, control tasks, word types and linear probes."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
import scipy.optimize

from bert_jax.analysis.probe import linear, parser, structural, word_vectors
from bert_jax.analysis.probe.annotated import NONE, Annotated, Labels, control_task, majority_accuracy, numbered, spread
from bert_jax.analysis.probe.linear import linear_accuracy, mix_shares, train_linear
from bert_jax.analysis.probe.measure import label_kinds
from bert_jax.analysis.probe.word_vectors import fit_scale


def tagged(*sentences: str) -> list[Annotated]:
    """Returns sentences from words written as "word/label"."""
    pairs = [[pair.split("/") for pair in sentence.split()] for sentence in sentences]
    return [Annotated(tuple(w for w, _ in own), {"tag": tuple(t for _, t in own)}) for own in pairs]


def types_of(sentences: list[Annotated]) -> list[tuple[int, ...]]:
    return [tuple(map(ord, word)) for sentence in sentences for word in sentence.words]


TRAINING = tagged("a/X b/Y a/X", "a/Y c/_")
EVALUATION = tagged("a/X b/Y d/X d/Z a/_")


def test_labels_that_the_training_part_lacks_cannot_be_predicted():
    labels = numbered("tag", TRAINING, EVALUATION)
    assert labels.classes == ("X", "Y")
    assert labels.training.tolist() == [0, 1, 0, 1, NONE]
    assert labels.evaluation.tolist() == [0, 1, 0, 2, NONE]
    assert (labels.n, labels.unseen) == (4, 1)


def test_the_accuracy_of_usual_labels_equals_a_count_by_hand():
    labels = numbered("tag", TRAINING, EVALUATION)
    # a is X, b is Y; the unknown d gets the most frequent label, or the first of X and Y, which are equally frequent
    assert majority_accuracy(labels, types_of(TRAINING), types_of(EVALUATION)) == 3 / 4


def test_without_a_label_in_both_parts_there_is_no_usual_label_baseline():
    one = np.array([0, NONE], np.int32)
    none = np.array([NONE, NONE], np.int32)
    words = [(1,), (2,)]
    assert majority_accuracy(Labels("tag", ("A",), one, one), words, words) == 1.0
    for training, evaluation in ((one, none), (none, one), (none, none)):
        assert np.isnan(majority_accuracy(Labels("tag", ("A",), training, evaluation), words, words))


def test_a_kind_of_label_has_two_classes_or_more_and_a_word_to_score():
    def kinds(training: list[Annotated], evaluation: list[Annotated]) -> list[str]:
        return [labels.name for labels in label_kinds(training, evaluation)]

    both = [Annotated(("a", "b"), {"one": ("X", "X"), "two": ("X", "Y"), "other": ("X", "Y")})]
    held_out = [Annotated(("a",), {"one": ("X",), "two": ("Y",)})]
    assert kinds(both, held_out) == ["two"]
    assert kinds(both, [Annotated(("a",), {"one": ("X",), "two": ("_",)})]) == []
    assert kinds([], held_out) == kinds(both, []) == []


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


def test_a_word_limit_takes_whole_sentences_from_all_parts_of_a_file():
    lengths = np.random.default_rng(5).integers(1, 40, 900)
    sentences = [Annotated(("w",) * int(n), {}) for n in lengths]
    assert list(spread(sentences, int(lengths.sum()))) == sentences
    chosen = {id(sentence) for sentence in spread(sentences, 3000)}
    taken = [i for i, sentence in enumerate(sentences) if id(sentence) in chosen]
    assert 2700 < lengths[taken].sum() <= 3000
    assert abs(lengths[taken].mean() - lengths.mean()) < 3
    assert min(np.histogram(taken, 3, (0, 900))[0]) > 35


def test_a_limit_of_words_is_reached_and_not_passed():
    sentences = [Annotated(("w",) * n, {}) for n in (2, 2, 2, 2)]
    assert [sentences.index(one) for one in spread(sentences, 4)] == [0, 0]  # every other sentence; they are alike
    different = [Annotated((str(i),) * 2, {}) for i in range(4)]
    assert [one.words[0] for one in spread(different, 4)] == ["1", "3"]
    assert [one.words[0] for one in spread(different, 3)] == ["2"]
    assert list(spread(different, 1)) == []


# ------------------------------------------------------------------------------------------------------------------------ probes
def test_the_scale_comes_from_all_words_and_constant_entries_have_none():
    vectors = (np.random.default_rng(4).standard_normal((2 * word_vectors.CHUNK + 3, 2, 3)) * 0.25 + 1.5).astype(np.float16)
    vectors[:, 1, 2] = 0.5
    scale = fit_scale(vectors)
    exact = vectors.astype(np.float64)
    np.testing.assert_allclose(scale.mean, exact.mean(0), rtol=1e-6)
    expected = exact.std(0)
    expected[1, 2] = 1.0
    np.testing.assert_allclose(scale.deviation, expected, rtol=1e-6)


def test_an_entry_that_varies_only_by_rounding_is_constant():
    rng = np.random.default_rng(7)
    constants = np.array([0.3, 40.0, 2e-6], np.float16)
    rounded = np.where(rng.random((500, 1, 3)) < 0.5, constants, np.nextafter(constants, np.float16(0)))
    assert fit_scale(rounded).deviation.tolist() == [[1.0, 1.0, 1.0]]
    small = (0.3 + 3e-3 * rng.standard_normal((500, 1, 1))).astype(np.float16)
    assert fit_scale(small).deviation[0, 0] == pytest.approx(3e-3, rel=0.1)


def test_words_are_read_in_batches_and_the_last_one_is_padded():
    assert [batch.tolist() for batch in word_vectors.in_batches(range(5), 2)] == [[0, 1], [2, 3], [4, -1]]
    assert [batch.tolist() for batch in word_vectors.in_batches(np.array([7, 3]), 2)] == [[7, 3]]


def test_probes_start_small_and_distinct_and_the_mix_with_the_mean():
    first, other = (linear.initial_probes(2, 50, {"tag": 4, "control": 4}, seed) for seed in (0, 1))
    kernel = np.asarray(first["tag"]["kernel"])
    assert kernel.shape == (50, 4)
    assert 0.008 < kernel.std() < 0.012
    for same in (first["control"], other["tag"]):
        assert abs(np.corrcoef(kernel.ravel(), np.asarray(same["kernel"]).ravel())[0, 1]) < 0.25
    assert np.asarray(first["tag"]["bias"]).tolist() == np.zeros(4).tolist()
    assert np.asarray(first["tag"]["mix"]["weights"]).tolist() == [0.0, 0.0]
    assert float(first["tag"]["mix"]["gamma"]) == 1.0


def test_the_loss_of_mixes_sums_the_means_over_labelled_words_of_each_kind():
    rng = np.random.default_rng(6)
    vectors = rng.standard_normal((2, 3, 2)).astype(np.float32)
    kinds = {"a": [2, NONE, 0], "b": [NONE, 1, NONE], "c": [NONE] * 3}
    mix = {"weights": np.log([1.0, 3.0]).astype(np.float32), "gamma": np.float32(2.0)}
    probes = {name: {"kernel": rng.standard_normal((2, 3)), "bias": rng.standard_normal(3), "mix": mix} for name in kinds}
    mixed = 2.0 * (0.25 * vectors[0] + 0.75 * vectors[1]).astype(np.float64)
    expected = 0.0
    for name, labels in kinds.items():
        logits = mixed @ probes[name]["kernel"] + probes[name]["bias"]
        losses = [np.log(np.exp(own).sum()) - own[label] for own, label in zip(logits, labels, strict=True) if label != NONE]
        expected += np.mean(losses) if losses else 0.0
    numbers = {name: np.array(labels) for name, labels in kinds.items()}
    found = jax.jit(linear.mix_loss)(jax.tree.map(np.float32, probes), vectors, numbers)
    assert float(found) == pytest.approx(expected, rel=1e-5)


COUNT, WIDTH, CLASSES = 400, 3, 3


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, Labels]:
    """Returns vectors of two layers, and labels that depend on the second layer, with some noise."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((COUNT, 2, WIDTH)) * [[[1.0], [5.0]]] + 2.0
    own = (vectors[:, 1] + 2.0 * rng.standard_normal((COUNT, WIDTH))).argmax(-1).astype(np.int32)
    own[1:8] = NONE
    return vectors.astype(np.float16), Labels("tag", ("A", "B", "C"), own, own)


def best_probe(vectors: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Returns the kernel, with the bias in the last row, of a penalised logistic regression, computed by L-BFGS in float64 to
    full precision."""
    x = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, classes)
        logits = x @ weights
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        right = np.eye(classes)[labels]
        penalised = weights * (np.arange(len(weights)) < len(weights) - 1)[:, None]
        value = -np.log((p * right).sum(1)).mean() + linear.PENALTY * (penalised**2).sum()
        return value, (x.T @ (p - right) / len(x) + 2 * linear.PENALTY * penalised).ravel()

    settings = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 0.0, "gtol": 1e-9}
    found = scipy.optimize.minimize(loss, np.zeros(x.shape[1] * classes), jac=True, method="L-BFGS-B", options=settings)
    return found.x.reshape(-1, classes)


def test_probes_converge_and_the_mix_selects_the_layer_with_the_label(data, monkeypatch):
    monkeypatch.setattr(linear, "LEARNING_RATE", 0.05)
    vectors, labels = data
    scale = fit_scale(vectors)
    said: list[tuple[int, int]] = []
    probes = train_linear(vectors, [labels], scale, 150, seed=1, say=lambda done, total: said.append((done, total)))
    assert said == [(1, 3), (2, 3), (3, 3)]
    read = (vectors.astype(np.float64) - scale.mean) / scale.deviation
    known = labels.training != NONE
    for layer in range(2):
        best = best_probe(read[known, layer], labels.training[known], CLASSES)
        np.testing.assert_allclose(probes["tag"]["kernel"][layer], best[:-1], atol=0.02)
        spread = probes["tag"]["bias"][layer] - best[-1]
        np.testing.assert_allclose(spread - spread.mean(), 0.0, atol=0.02)  # adding a constant to all biases changes nothing
    assert mix_shares(probes["tag"]["mix"])[1] > 0.8
    accuracy = linear_accuracy(probes, vectors, [labels], scale)["tag"]
    logits = jax.jit(lambda probe, x, scales: linear.linear_logits(probe, linear.standardised(x, scales)))(
        probes["tag"], vectors.astype(np.float32), (scale.mean, scale.deviation)
    )
    np.testing.assert_allclose(accuracy, (np.asarray(logits)[:, known].argmax(-1) == labels.training[known]).mean(-1), atol=1e-6)
    assert accuracy[1] > accuracy[0] + 0.2
    assert accuracy[2] == pytest.approx(accuracy[1], abs=0.02)


def test_the_settings_of_probes_are_those_of_the_published_results():
    assert (linear.BATCH, linear.LEARNING_RATE, linear.PENALTY) == (256, 2e-3, 2.5e-3)
    assert (linear.ITERATIONS, linear.TOLERANCE) == (500, 1e-5)
    assert (parser.ROWS, parser.LEARNING_RATES) == (4, {"bias": 0.2, "head": 0.02, "dependent": 0.02})
    assert (structural.WORDS, structural.LEARNING_RATE) == (512, 1e-3)


def test_each_epoch_reads_every_word_once_in_a_new_order():
    first, second, again = (list(word_vectors.in_epochs(7, epochs, 3, seed=1)) for epochs in (1, 2, 2))
    assert [len(batch) for batch in second] == [3] * 6
    np.testing.assert_array_equal(second[:3], first)
    np.testing.assert_array_equal(second, again)
    orders = np.array(second).reshape(2, 9)
    for order in orders:
        assert sorted(order.tolist()) == [-1, -1, *range(7)]
    other = next(word_vectors.in_epochs(7, 1, 9, seed=2))
    assert orders[0].tolist() not in (orders[1].tolist(), other.tolist())


def test_a_mix_is_trained_on_the_labelled_words_alone(data):
    vectors, labels = data
    scale, known = fit_scale(vectors), np.flatnonzero(labels.training != NONE)[:5]
    other = np.array([1])  # a word without a label
    mixes = []
    for words in (known, np.append(known, other)):
        some = dataclasses.replace(labels, training=labels.training[words])
        mixes.append(linear.train_mixes(vectors[words], [some], scale, 3, seed=1)["tag"])
    for name in ("weights", "gamma"):
        np.testing.assert_allclose(mixes[0][name], mixes[1][name], rtol=1e-5)
    assert (mixes[0]["weights"] != 0).all()


def test_the_bias_of_a_probe_is_not_penalised():
    """A probe on uninformative vectors predicts the frequencies of the labels."""
    labels = np.array([0] * 30 + [1] * 9 + [2] + [NONE] * 5)
    kernel, bias = linear.converged(np.zeros((len(labels), 2), np.float32), labels, 3)
    np.testing.assert_allclose(jax.nn.softmax(bias), [0.75, 0.225, 0.025], atol=1e-3)
    assert not kernel.any()


def test_the_probe_on_the_mix_converges(data):
    vectors, labels = data
    scale = fit_scale(vectors)
    probe = train_linear(vectors, [labels], scale, 3, seed=1)["tag"]
    read = (vectors.astype(np.float64) - scale.mean) / scale.deviation
    mixed = float(probe["mix"]["gamma"]) * (read * mix_shares(probe["mix"])[None, :, None]).sum(1)
    known = labels.training != NONE
    best = best_probe((mixed[known] - mixed.mean(0)) / mixed.std(0), labels.training[known], CLASSES)
    np.testing.assert_allclose(probe["kernel"][2] * mixed.std(0)[:, None], best[:-1], atol=0.02)


def test_selectivity_comes_from_converged_probes_and_seeds_share_label_probes():
    """There are few words and many entries with very different variances: if training ends early, the control task is not
    learned."""
    rng = np.random.default_rng(11)
    words, width, classes = 1_000, 40, 8
    kinds = rng.integers(0, 300, 4 * words)
    of_type = rng.standard_normal((300, width)) * np.geomspace(1.0, 0.03, width)
    vectors = (of_type[kinds] + 0.1 * rng.standard_normal((4 * words, width)))[:, None].astype(np.float16)
    own = (of_type[kinds] @ rng.standard_normal((width, classes))).argmax(-1).astype(np.int32)
    drawn = rng.integers(0, classes, 300)[kinds].astype(np.int32)
    tasks = [Labels(name, tuple("ABCDEFGH"), y[:words], y[words:]) for name, y in (("label", own), ("control", drawn))]
    training, held_out = vectors[:words], vectors[words:]
    scale = fit_scale(training)
    probes = train_linear(training, tasks, scale, 2, seed=0)
    accuracy = linear_accuracy(probes, held_out, tasks, scale)
    read = (vectors[:, 0].astype(np.float64) - scale.mean[0]) / scale.deviation[0]
    best = {}
    for task in tasks:
        weights = best_probe(read[:words], task.training, classes)
        best[task.name] = ((read[words:] @ weights[:-1] + weights[-1]).argmax(1) == task.evaluation).mean()
    assert best["control"] > 0.25
    for name, value in best.items():
        assert accuracy[name][0] == pytest.approx(value, abs=0.002)
    assert accuracy["label"][0] - accuracy["control"][0] == pytest.approx(best["label"] - best["control"], abs=0.002)
    said: list[int] = []
    again = train_linear(training, tasks, scale, 2, 1, lambda done, total: said.append(total), {"label": probes["label"]})
    assert said == [3, 3, 3]  # the mix of the labels, and two of the control
    np.testing.assert_array_equal(again["label"]["kernel"][0], probes["label"]["kernel"][0])
    assert (again["label"]["kernel"][1] != probes["label"]["kernel"][1]).any()
