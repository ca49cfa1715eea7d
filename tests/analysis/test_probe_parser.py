"""Parsers on attention: on heads that are known, and compared with a loop."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.analysis.probe import parser
from bert_jax.analysis.probe.annotated import Annotated
from bert_jax.analysis.probe.parser import (
    PARSERS,
    REACH,
    distance_maps,
    initial_weights,
    log_probabilities,
    offset_counts,
    parser_accuracy,
    parser_inputs,
    parser_items,
    parser_loss,
    train_parsers,
)
from bert_jax.analysis.windows import word_windows
from bert_jax.prediction.engine import Engine
from tests.analysis.reference import in_words, weights_of
from tests.prediction.reference import first_devices, mixed_texts

WORDS = ("the", "river", "of", "Paris", "is", "dry")


def test_parsers_on_words_have_word_parts_and_a_weight_for_each_map():
    shapes = {name: {part: x.shape for part, x in own.items()} for name, own in initial_weights(3, 5).items()}
    attention, distance = 3, 21  # heads; distances from -10 to 10
    assert shapes == {
        "attention and words": {"bias": (2, attention), "head": (2, 5, attention), "dependent": (2, 5, attention)},
        "attention": {"bias": (2, attention)},
        "distance and words": {"bias": (2, distance), "head": (2, 5, distance), "dependent": (2, 5, distance)},
        "distance": {"bias": (2, distance)},
    }


def test_words_beyond_the_reach_share_the_weight_of_the_farthest_distance():
    n = REACH + 4
    maps = np.asarray(distance_maps(np.arange(n)[None]))[0]
    for i in range(n):
        for j in range(n):
            assert np.flatnonzero(maps[:, i, j]).tolist() == [REACH + min(max(j - i, -REACH), REACH)]


def treebank(count: int, rng: np.random.Generator) -> list[Annotated]:
    """Returns sentences in which the head of each word is the word after it, and the last word is the root; the first word is
    punctuation."""
    sizes = rng.integers(3, 10, count)
    return [
        Annotated(tuple(rng.choice(WORDS, n)), {}, (*range(1, n), -1), (True, *[False] * (n - 1)))
        for n in sizes
    ]  # fmt: skip


@pytest.fixture(scope="module")
def engine(pointing) -> Engine:
    """Returns the model of `pointing` with batches of eight rows, which are two steps."""
    with first_devices():
        engine = Engine(pointing.engine.model)
    engine.tokens = 8 * engine.config.max_position
    return engine


def test_a_head_that_attends_to_the_word_after_is_found(engine, monkeypatch):
    monkeypatch.setattr(parser, "LEARNING_RATES", dict.fromkeys(parser.LEARNING_RATES, 0.3))
    rng = np.random.default_rng(1)
    training, held_out = treebank(18, rng), treebank(20, rng)  # a batch each
    said: list[tuple[int, int]] = []

    def say(done: int, of: int) -> None:
        said.append((done, of))

    weights = train_parsers(engine, training, passes=9, seed=0, say=say)
    total = 9 * sum(len(sentence.words) for sentence in training)
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert {of for _, of in said} == {total}
    assert [said[-2], said[-1]] == [(total, total)] * 2
    said.clear()
    accuracy, n = parser_accuracy(engine, weights, held_out, say)
    every = sum(len(sentence.words) for sentence in held_out)
    assert said[-2:] == [(every, every)] * 2
    assert n == sum(len(sentence.words) - 2 for sentence in held_out)
    assert accuracy == dict.fromkeys(PARSERS, 1.0)
    w, u = np.asarray(weights["attention"]["bias"])
    assert max(abs(w).argmax(), u.argmax()) == 1  # from the dependent (u) to the head: 1-2 attends to the word after
    assert w[0] > 0  # from the head to the dependent: 1-1 attends to the word before
    assert offset_counts(engine, held_out) == {1: n}


@pytest.mark.parametrize(("passes", "steps"), [(1, [1.0, 1.0]), (2, [1.0, 1.0, 0.5, 0.5])])
def test_learning_rates_decay_over_all_passes_and_a_step_reads_four_rows(engine, passes, steps):
    words = ("the", "river", "of", "Paris", "is", *("the",) * 5)  # two sentences fill a row
    sentence = Annotated(words, {}, (*range(1, len(words)), -1), (False,) * len(words))
    weights = train_parsers(engine, [sentence] * 16, passes, seed=0)
    moved = np.abs(weights["distance"]["bias"]).max()  # Adam moves a weight by about the learning rate in each of a few steps
    assert moved == pytest.approx(sum(steps) * parser.LEARNING_RATES["bias"], rel=0.05)


def test_probabilities_and_their_loss_equal_a_loop(analyser):
    rng = np.random.default_rng(2)
    engine = analyser.engine
    words = [tuple(text.split()) for text in mixed_texts(3, longest=7, seed=4, blank="Apfelapfel")]
    sentences = [Annotated(own, {}, (-1, *[0] * (len(own) - 1)), (False,) * len(own)) for own in words]
    layers, heads, width = engine.config.num_layers, engine.config.num_heads, engine.config.hidden_size
    shapes = {"bias": (2,), "head": (2, width), "dependent": (2, width)}
    counts = {"attention": layers * heads, "distance": 2 * REACH + 1}
    weights = {
        name: {
            part: rng.standard_normal((*shape, counts[name.partition(" ")[0]])).astype(np.float32)
            for part, shape in shapes.items()
            if part == "bias" or name.endswith("words")
        }
        for name in PARSERS
    }
    table = engine.model.params["embeddings"]["word_embeddings"]["embedding"].astype(np.float64)
    losses = dict.fromkeys(PARSERS, 0.0)
    asked = 0
    for sentence in sentences:
        (window,) = word_windows(engine, sentence.words)
        n = len(sentence.words)
        found = in_words(weights_of(engine.model, window), window)[:, :, 1:-1, 1:-1]
        maps = {"attention": found.reshape(-1, n, n), "distance": np.zeros((counts["distance"], n, n))}
        for i in range(n):
            for j in range(n):
                maps["distance"][REACH + np.clip(j - i, -REACH, REACH), i, j] = 1
        vectors = np.stack([table[list(word.ids)].mean(0) for word in window.words[1:-1]])
        vectors /= np.sqrt((vectors**2).mean(-1, keepdims=True))
        for name, own in weights.items():
            a = maps[name.partition(" ")[0]]
            for j in range(1, n):
                score = np.full(n, -np.inf)
                for i in range(n):
                    w, u = own["bias"].astype(np.float64)
                    if "head" in own:
                        w, u = (
                            bias + vectors[i] @ head + vectors[j] @ dependent
                            for bias, head, dependent in zip((w, u), own["head"], own["dependent"], strict=True)
                        )
                    if i != j:
                        score[i] = w @ a[:, i, j] + u @ a[:, j, i]
                losses[name] -= score[0] - np.log(np.exp(score - score.max()).sum()) - score.max()
        asked += n - 1
    total = dict.fromkeys(PARSERS, 0.0)
    answers = jax.jit(lambda read: (log_probabilities(weights, read), parser.is_head(read), parser_loss(weights, read)))
    summed = count = 0.0
    for read in engine.batches(parser_inputs, parser_items(engine, sentences)):
        own_count = int(((read["heads"] > 0) & (read["sequence"] > 0)).sum())
        likelihoods, is_head, loss = jax.device_get(answers(read))
        assert is_head.sum() == own_count
        for name, found in likelihoods.items():
            total[name] -= float((found * is_head).sum())
        summed += float(loss) * own_count
        count += own_count
    assert count == asked
    for name in PARSERS:
        assert total[name] == pytest.approx(losses[name], rel=1e-3), name
    assert summed == pytest.approx(sum(losses.values()), rel=1e-3)


def test_sentences_without_a_tree_and_those_longer_than_the_position_table_are_left_out(analyser):
    n = 60
    sentences = [Annotated(("the",), {}), Annotated(("the",) * n, {}, (-1, *range(n - 1)), (False,) * n)]
    assert list(parser_items(analyser.engine, sentences)) == []
