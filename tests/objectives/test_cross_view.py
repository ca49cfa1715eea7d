"""Cross-view training: what each view sees, and its loss compared with a loop over words in numpy."""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.objectives.cross_view import VIEWS, WEIGHTS, CrossView, check_views, next_words
from bert_jax.objectives.labels import Labels
from tests.model.test_bilm import BILM, STATIC, log_softmax, states_in_numpy

HEAD = TokenHead(labels=("a", "b", "c"))
PLAIN = dataclasses.replace(BILM, vocab_multiple=1)
WORDS = ((1, 3, 4, 7, 10, 11), (1, 2, 6))
"""The columns where words start: the first row has texts of 6 and 7 tokens, [CLS] at 0 and 6, [SEP] at 5 and 12."""
LENGTHS = ((6, 7), (9,))
CASES = [(PLAIN, HEAD), (STATIC, dataclasses.replace(HEAD, lstm=4))]


def batch_of() -> dict[str, np.ndarray]:
    """Returns a batch without labels."""
    ids = np.zeros((2, 13), np.int32)
    starts = np.zeros_like(ids)
    for row, lengths in enumerate(LENGTHS):
        ids[row, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        starts[row, list(WORDS[row])] = 1
    tokens = np.where(ids > 0, np.random.default_rng(0).integers(5, 20, ids.shape), 0).astype(np.int32)
    zeros = np.zeros_like(ids)
    return {
        "input_ids": tokens, "token_type_ids": zeros, "position_ids": zeros, "sequence_ids": ids, "word_starts": starts,
        "cls_positions": zeros[:, :2], "labels": zeros, "label_weights": zeros.astype(np.float32),
        WEIGHTS: starts.astype(np.float32),
    }  # fmt: skip


@functools.cache
def shapes_of(objective: CrossView) -> dict:
    return nn.unbox(jax.eval_shape(objective.initial_parameters, jax.random.key(0)))


def random_of(objective: CrossView) -> dict:
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: (0.5 * rng.standard_normal(x.shape)).astype(np.float32), shapes_of(objective))


@functools.cache
def differentiated(objective: CrossView) -> tuple[dict, dict]:
    """Returns (the gradient of the loss of the views, the sums) of `batch_of()`."""

    def loss(params, batch):
        sums = objective.sums(params, batch, None)
        return sums["view_loss"], sums

    return jax.jit(jax.grad(loss, has_aux=True))(random_of(objective), batch_of())


def test_the_loss_equals_a_loop_over_words_and_views():
    objective = CrossView(PLAIN, HEAD)
    params, batch, w = random_of(objective), batch_of(), PLAIN.word_width
    dense = params["token_head"]["dense"]
    sums = differentiated(objective)[1]
    wanted, words = 0.0, 0
    for row, lengths in enumerate(LENGTHS):
        for text in range(1, len(lengths) + 1):
            (columns,) = np.nonzero(batch["sequence_ids"][row] == text)
            _, lowest, *_, last = states_in_numpy(PLAIN, params, batch["input_ids"][row, columns])
            begins = [n for n, column in enumerate(columns) if column in WORDS[row]]
            for at, following in zip(begins, [*begins[1:], len(columns) - 1], strict=True):
                p = log_softmax(last[at] @ dense["kernel"] + dense["bias"])
                read = {
                    "forward": lowest[following - 1, :w],
                    "backward": lowest[at, w:],
                    "future": lowest[at - 1, :w],
                    "past": lowest[following, w:],
                }
                for view, states in read.items():
                    own = params["cross_view"][view]
                    hidden = np.maximum(states @ own["hidden"]["kernel"] + own["hidden"]["bias"], 0)
                    q = log_softmax(np.float64(hidden @ own["output"]["kernel"] + own["output"]["bias"]))
                    wanted += (np.exp(p) * (p - q)).sum()
                words += 1
    counts = objective.counts(batch)
    assert counts["view_words"] == words == 9
    np.testing.assert_allclose(sums["view_loss"], wanted, rtol=2e-5)
    np.testing.assert_allclose(objective.loss(sums, counts), wanted / words, rtol=2e-5)
    assert (sums["loss"], sums["correct"], counts["weight"]) == (0, 0, 0)


@pytest.mark.parametrize(("config", "head"), CASES, ids=["biLM", "static vectors"])
def test_a_view_sees_only_its_part_of_the_sentence(config: ModelConfig, head: TaskHead):
    objective = CrossView(config, head)
    params, batch = random_of(objective), batch_of()
    views = jax.jit(lambda p, b: objective.views(p, b, None))
    before, row, columns = views(params, batch), 0, range(6)
    begins = [1, 3, 4]
    seen: dict[str, set[tuple[int, int]]] = {view: set() for view in VIEWS}
    for column in columns:
        changed = {**batch, "input_ids": batch["input_ids"].copy()}
        changed["input_ids"][row, column] = 5 + (changed["input_ids"][row, column] - 4) % 15
        for view, states in views(params, changed).items():
            for word, at in enumerate(begins):
                if not np.array_equal(states[row, at], before[view][row, at]):
                    seen[view].add((word, column))
            assert np.array_equal(states[row, 7], before[view][row, 7]), "the other text of the row"
    ends = [3, 4, 5]  # the column after the end of each word
    parts = {
        "forward": lambda word, column: column < ends[word],
        "backward": lambda word, column: column >= begins[word],
        "future": lambda word, column: column < begins[word],
        "past": lambda word, column: column >= ends[word],
    }
    for view, sees in parts.items():
        assert seen[view] == {(word, column) for word in range(3) for column in columns if sees(word, column)}, view


@pytest.mark.parametrize(("config", "head"), CASES, ids=["biLM", "static vectors"])
def test_views_train_their_modules_and_layers_and_not_the_prediction(config, head):
    gradient, _ = differentiated(CrossView(config, head))
    assert not np.any(gradient["token_head"]["dense"]["kernel"])
    assert all(np.any(x) for x in jax.tree.leaves(gradient["cross_view"]))
    assert np.any(gradient["embeddings"]["word_embeddings"]["embedding"])
    if config.encoder == "static":
        lstm = gradient["token_head"]["lstm"]
        assert np.any(lstm["lower_input"]["kernel"])
        assert not np.any(lstm["upper_input"]["kernel"])
    else:
        kernels = gradient["encoder"]["layers"]["input"]["kernel"]
        assert np.any(kernels[0])
        assert not np.any(kernels[1])


def test_a_labelled_batch_has_only_the_loss_of_its_labels():
    objective, plain = CrossView(*CASES[1]), Labels(*CASES[1])
    params, batch = random_of(objective), batch_of()
    batch["label_weights"] = batch.pop(WEIGHTS)
    sums, counts = jax.jit(objective.sums)(params, batch, jnp.uint32(3)), objective.counts(batch)
    wanted = jax.jit(plain.sums)(params, batch, jnp.uint32(3)), plain.counts(batch)
    assert sums == wanted[0] | {"view_loss": 0.0}
    assert counts == wanted[1] | {"view_words": 0.0}
    assert objective.loss(sums, counts) == plain.loss(*wanted)
    of_one_word = {"loss": np.float32(0), "view_loss": np.float32(3)}, {"weight": np.float32(0), "view_words": np.float32(1)}
    assert objective.loss(*of_one_word) == 3
    names = {"view loss": "view_loss"}
    assert {title: name for name, score in objective.shown_scores().items() if (title := score.title) in names} == names


def test_the_last_word_of_a_text_is_followed_by_its_end():
    batch = batch_of()
    found = jax.jit(next_words)(batch["word_starts"], batch["sequence_ids"])
    assert found[0].tolist() == [1, 3, 3, 4, 5, 7, 7, 10, 10, 10, 11, 12, 12]
    assert found[1, :8].tolist() == [1, 2, 6, 6, 6, 6, 8, 8]


@pytest.mark.parametrize(
    ("config", "head", "frozen", "message"),
    [
        (ModelConfig(), HEAD, False, "needs two independent LSTM directions, which a Transformer does not have"),
        (dataclasses.replace(PLAIN, direction="left_to_right"), HEAD, False, "which an LSTM of one direction does not have"),
        (PLAIN, HEAD, True, "config.training.freeze_encoder keeps the encoder unchanged; leave one of them out"),
        (STATIC, HEAD, False, "set config.head.lstm"),
        (
            PLAIN,
            dataclasses.replace(HEAD, crf="free"),
            False,
            "does not support a CRF .head.crf=free., because its modules predict each word on its own",
        ),
        (PLAIN, SequenceHead(labels=("a", "b")), False, "is for tagging, not for a sequence head"),
    ],
)
def test_models_and_heads_without_views_are_refused(config, head, frozen, message):
    with pytest.raises(UserError, match=message):
        check_views(config, head, frozen=frozen)


def test_static_vectors_may_be_frozen():
    check_views(*CASES[1], frozen=True)
