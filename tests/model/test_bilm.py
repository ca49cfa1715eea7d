"""The biLM and static vectors: what each prediction depends on, comparisons with numpy on single texts, and files."""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop.names import our_shapes, params_from_tensors, tensors_from_params
from bert_jax.model import natural_objective
from bert_jax.model.bert import Bert
from bert_jax.model.bilm import backward_positions
from bert_jax.model.characters import CharacterCnn, piece_symbols
from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import unstacked_layers
from bert_jax.model.pretraining import abstract_parameters, pretraining_model
from bert_jax.model.tokens import Tokens
from tests.model.head_in_numpy import sigmoid
from tests.random_rows import objective_for

BILM = ModelConfig(
    vocab_size=20, vocab_multiple=8, hidden_size=8, num_layers=2, intermediate_size=6, max_position=12, encoder="bilm",
    initializer_range=0.5,
)  # fmt: skip
LSTM = dataclasses.replace(BILM, direction="left_to_right", tied_decoder=False, intermediate_size=8)
CHARACTERS = dataclasses.replace(BILM, character_cnn=True, tied_decoder=False)
STATIC = ModelConfig(vocab_size=20, hidden_size=8, num_layers=0, max_position=12, encoder="static")
TEXTS = ((5, 7), (4,), (3, 3, 3))
"""The lengths of the texts in each row of 12 tokens."""
ROUNDING = 2e-6


def random_params(config: ModelConfig) -> dict:
    rng = np.random.default_rng(0)
    shapes = nn.unbox(abstract_parameters(config, next_sentence=False))
    return jax.tree.map(lambda x: (0.5 * rng.standard_normal(x.shape)).astype(np.float32), shapes)


def rows(texts=TEXTS, length: int = 12) -> dict[str, np.ndarray]:
    """Returns rows of targets="next" in which every token that has a token before it is predicted."""
    rng = np.random.default_rng(1)
    ids = np.zeros((len(texts), length), np.int32)
    for row, lengths in enumerate(texts):
        ids[row, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    tokens = np.where(ids > 0, rng.integers(5, 20, ids.shape), 0).astype(np.int32)
    positions = np.broadcast_to(np.arange(length - 1, dtype=np.int32), (len(texts), length - 1))
    follows = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0)
    zeros = np.zeros_like(ids)
    return {
        "input_ids": tokens, "token_type_ids": zeros, "position_ids": zeros, "sequence_ids": ids,
        "masked_positions": np.where(follows, positions, 0).astype(np.int32),
        "masked_targets": np.where(follows, tokens[:, 1:], -1).astype(np.int32),
        "cls_positions": zeros[:, :1], "nsp_labels": zeros[:, :1] - 1,
    }  # fmt: skip


def lstm_in_numpy(x: np.ndarray, layer: dict, direction: int) -> np.ndarray:
    """Runs one direction of a layer of the LSTM over x [n, W], in float64."""
    x = x[:: 1 - 2 * direction]
    kernels = {name: np.float64(tree["kernel"][direction]) for name, tree in layer.items()}
    h, c, outputs = np.zeros(kernels["recurrence"].shape[0]), np.zeros(kernels["input"].shape[2]), []
    for token in x:
        gates = np.einsum("w,wgf->gf", token, kernels["input"]) + np.einsum("w,wgf->gf", h, kernels["recurrence"])
        i, f, g, o = gates + layer["input"]["bias"][direction]
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        h = h @ kernels["projection"] if "projection" in kernels else h
        outputs.append(h)
    return np.array(outputs)[:: 1 - 2 * direction]


def states_in_numpy(config: ModelConfig, params: dict, tokens: np.ndarray) -> np.ndarray:
    """Returns the hidden states [S, n, D] of one text."""
    w = config.word_width
    x = np.float64(params["embeddings"]["word_embeddings"]["embedding"])[tokens]
    states = [np.tile(x, config.hidden_size // w)]
    for n in range(config.num_layers):
        layer = jax.tree.map(lambda stack, n=n: stack[n], params["encoder"]["layers"])
        parts = [states[-1][:, d * w : (d + 1) * w] for d in range(config.hidden_size // w)]
        y = np.concatenate([lstm_in_numpy(part, layer, d) for d, part in enumerate(parts)], -1)
        states.append(states[-1] + y if n else y)
    return np.array(states)


@functools.partial(jax.jit, static_argnums=0)
def encoded(config: ModelConfig, params: dict, batch: dict) -> tuple:
    """Returns the last layer and the hidden states."""
    return Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


@pytest.mark.parametrize("config", [BILM, LSTM], ids=["bilm", "left_to_right"])
def test_hidden_states_and_losses_of_packed_rows_equal_single_texts(config):
    params, batch = random_params(config), rows()
    states = np.asarray(encoded(config, params, batch)[1])
    head = params["softmax"]
    table = np.float64(head.get("decoder", params["embeddings"]["word_embeddings"]["embedding"]))[:20]
    loss, predictions = 0.0, 0
    for row, lengths in enumerate(TEXTS):
        for text in range(1, len(lengths) + 1):
            (where,) = np.nonzero(batch["sequence_ids"][row] == text)
            tokens = batch["input_ids"][row, where]
            wanted = states_in_numpy(config, params, tokens)
            np.testing.assert_allclose(states[:, row, where], wanted, rtol=0, atol=ROUNDING * np.abs(wanted).max())
            w, n = config.word_width, len(tokens)
            pairs = [(wanted[-1, t - 1, :w], t) for t in range(1, n)]
            if config.direction == "both":
                pairs += [(wanted[-1, t + 1, w:], t) for t in range(1, n - 1)]  # for tokens that the forward LSTM predicts
            for vector, t in pairs:
                loss -= log_softmax(table @ vector + np.float64(head["bias"])[:20])[tokens[t]]
            predictions += len(pairs)
    objective, measure = objective_for(config, False), natural_objective(config)
    sums, counts = jax.jit(objective.sums)(params, batch, None), objective.counts(batch)
    assert counts[f"{measure}_targets"] == predictions
    np.testing.assert_allclose(sums[f"{measure}_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(objective.loss(sums, counts), loss / predictions, rtol=1e-5)


@pytest.mark.parametrize("config", [BILM, LSTM], ids=["bilm", "left_to_right"])
def test_no_prediction_depends_on_the_token_that_it_predicts(config):
    params, length = random_params(config), 9
    batch = {name: np.repeat(x, length + 1, axis=0) for name, x in rows(((length,),)).items()}
    for t in range(length):
        batch["input_ids"][t + 1, t] = 5 + (batch["input_ids"][0, t] - 4) % 15
    model, positions = pretraining_model(config, next_sentence=False), np.tile(np.arange(1, length - 1), (length + 1, 1))
    ends = np.resize(np.array([0, 11]), positions.shape)  # without a neighbour on one side

    @jax.jit
    def run(params: dict, batch: dict) -> tuple:
        found = model.apply({"params": params}, batch, method="logits")
        if config.direction != "both":
            return (found,)
        last, _ = Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")
        return found, last, *(model.apply({"params": params}, last, at, method="masked_logits") for at in (positions, ends))

    found, *filling = jax.device_get(run(params, batch))
    changed = {name: (x[1:] != x[:1]).any(-1) for name, x in found.items()}  # [token that changed, prediction]
    for t in range(length):
        for predicted in range(1, length):  # column p of the forward LSTM, and of the backward one, predicts token p + 1
            assert changed["mlm_logits"][t, predicted - 1] == (t < predicted)
            if config.direction == "both" and predicted < length - 1:
                assert changed["backward_logits"][t, predicted - 1] == (t > predicted)
    if config.direction == "both":
        last, filled, at_ends = filling
        table = np.float64(params["embeddings"]["word_embeddings"]["embedding"])[:20]
        bias, w = np.float64(params["softmax"]["bias"])[:20], config.word_width
        for n, at in enumerate(positions[0]):
            ends = last[0, at - 1, :w], last[0, at + 1, w:]
            mean = sum(log_softmax(table @ np.float64(end) + bias) for end in ends) / 2
            np.testing.assert_allclose(filled[0, n, :20], mean, rtol=1e-5)
        assert np.isfinite(at_ends[..., :20]).all()
        moved = (filled[1:] != filled[:1]).any(-1)
        assert (moved == (np.arange(length)[:, None] != positions[:1])).all()


def test_the_last_token_of_a_text_has_no_backward_prediction():
    ids = np.array([[1, 1, 1, 2, 2, 0]], np.int32)
    after, exists = backward_positions(jnp.asarray([[0, 1, 2, 3, 4]]), jnp.asarray(ids))
    assert after.tolist() == [[2, 3, 4, 5, 5]]
    assert exists.tolist() == [[True, False, False, False, False]]


def test_hidden_states_of_static_vectors_are_the_vectors():
    params, batch = random_params(STATIC), rows()
    last, states = Bert(STATIC).apply({"params": params}, Tokens.of(jax.tree.map(jnp.asarray, batch)), method="encode")
    wanted = params["embeddings"]["word_embeddings"]["embedding"][batch["input_ids"]]
    assert states.shape[0] == 1
    assert np.array_equal(last, wanted)
    assert np.array_equal(states[0], wanted)


def test_word_vectors_from_characters_equal_a_loop_over_filters():
    rng = np.random.default_rng(0)
    pieces = ["[PAD]", "the", "##ing", "électroencéphalographie"]
    symbols = piece_symbols(pieces, 24)
    assert symbols[1].tolist() == [256, *b"the", 257, *[258] * 15]
    assert symbols[3, 0] == 256
    assert symbols[3, -1] == 257
    params = jax.tree.map(lambda x: (0.3 * rng.standard_normal(x.shape)).astype(np.float32), random_params(CHARACTERS))
    own = params["embeddings"]["characters"] = {**params["embeddings"]["characters"], "symbols": symbols}
    ids = np.array([[1, 3, 2]], np.int32)
    found = jax.jit(lambda p, ids: CharacterCnn(CHARACTERS).apply({"params": p}, ids))(own, ids)
    for n, piece in enumerate(ids[0]):
        x = np.float64(own["embedding"])[symbols[piece].astype(int)]
        y = []
        for width in (1, 2, 3, 4, 5):
            kernel, bias = own[f"filters_{width}"]["kernel"], own[f"filters_{width}"]["bias"]
            values = [np.concatenate(list(x[t : t + width])) @ kernel + bias for t in range(20 - width + 1)]
            y.append(np.maximum(np.max(values, axis=0), 0))
        y = np.concatenate(y)
        for layer in ("highway_0", "highway_1"):
            gate, transformed = np.einsum("i,igo->go", y, own[layer]["kernel"]) + own[layer]["bias"]
            y = sigmoid(gate - 2) * np.maximum(transformed, 0) + (1 - sigmoid(gate - 2)) * y
        wanted = y @ own["projection"]["kernel"] + own["projection"]["bias"]
        np.testing.assert_allclose(found[0, n], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("config", [BILM, LSTM, CHARACTERS, STATIC], ids=["bilm", "left_to_right", "characters", "static"])
def test_parameters_match_the_table_of_names_and_survive_a_round_trip(config):
    params = random_params(config)
    tensors = tensors_from_params(params, config)
    assert {name: shape for name, shape in our_shapes(config).items() if "pooler" not in name} == {
        "/".join(key.key for key in path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(params)
    }
    back = params_from_tensors(tensors, config, "a file")
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(back), strict=True):
        rows = config.vocab_size if x.shape[0] == config.padded_vocab_size else len(x)
        assert np.array_equal(x[:rows], y[:rows]), path


def test_layers_may_be_given_as_a_list_as_in_prediction():
    params, batch = random_params(BILM), rows()
    assert np.array_equal(encoded(BILM, params, batch)[0], encoded(BILM, unstacked_layers(params), batch)[0])
