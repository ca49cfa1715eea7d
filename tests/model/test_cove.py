"""CoVe: its encoder, and its decoder with attention, compared with numpy on single pairs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.data import DECODER
from bert_jax.errors import UserError
from bert_jax.interop.names import our_shapes, params_from_tensors, tensors_from_params
from bert_jax.model.config import ModelConfig
from bert_jax.model.cove import CoveTranslator
from bert_jax.model.encoder import unstacked_layers
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.layers import Dropout, dropout, hash_word
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.model.tokens import Tokens
from tests.model.head_in_numpy import head_logits, sigmoid
from tests.model.test_bilm import log_softmax, lstm_in_numpy
from tests.random_rows import objective_for

COVE = ModelConfig(
    vocab_size=20, vocab_multiple=8, hidden_size=8, num_layers=2, decoder_layers=2, intermediate_size=5, encoder="cove",
)  # fmt: skip
UNTIED = dataclasses.replace(COVE, tied_decoder=False, intermediate_size=4, num_layers=1, decoder_layers=1)
CONFIGS = pytest.mark.parametrize("config", [COVE, UNTIED], ids=["two layers", "one layer, untied"])
PAIRS = (((5, 4), (3, 6)), ((6, 7),), ((2, 2), (4, 1), (3, 3)))
"""The (source, target) lengths of the pairs in each row of 12 tokens."""
ROUNDING = 2e-6


def random_params(config: ModelConfig) -> dict:
    rng = np.random.default_rng(0)
    shapes = nn.unbox(abstract_parameters(config))
    return jax.tree.map(lambda x: (0.5 * rng.standard_normal(x.shape)).astype(np.float32), shapes)


def batch_of(length: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found: dict[str, np.ndarray] = {}
    for side, prefix in enumerate(("", DECODER)):
        ids = np.zeros((len(PAIRS), length), np.int32)
        for row, pairs in enumerate(PAIRS):
            lengths = [pair[side] for pair in pairs]
            ids[row, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        tokens = np.where(ids > 0, rng.integers(5, 20, ids.shape), 0).astype(np.int32)
        zeros = np.zeros_like(ids)
        arrays = {"input_ids": tokens, "token_type_ids": zeros, "position_ids": zeros, "sequence_ids": ids}
        found |= {prefix + name: array for name, array in arrays.items()}
    follows = found["decoder_sequence_ids"] > 0
    return found | {"targets": np.where(follows, rng.integers(5, 20, follows.shape), -1).astype(np.int32)}


def pairs_of(batch: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns (row, columns of the source, columns of the target) of each pair."""
    slots = [(row, n + 1) for row, pairs in enumerate(PAIRS) for n in range(len(pairs))]
    return [(row, *(np.nonzero(batch[f"{prefix}sequence_ids"][row] == n)[0] for prefix in ("", DECODER))) for row, n in slots]


def encoded_in_numpy(config: ModelConfig, params: dict, tokens: np.ndarray) -> np.ndarray:
    """Returns the hidden states [S, n, D] of one text."""
    states = [np.float64(params["embeddings"]["word_embeddings"]["embedding"])[tokens]]
    for n in range(config.num_layers):
        layer = jax.tree.map(lambda stack, n=n: stack[n], params["encoder"]["layers"])
        states.append(np.concatenate([lstm_in_numpy(states[-1], layer, direction) for direction in (0, 1)], axis=-1))
    return np.array(states)


def decoded_in_numpy(config: ModelConfig, params: dict, tokens: np.ndarray, encoded: np.ndarray) -> np.ndarray:
    """Returns the outputs [n, D] of the decoder for one translation."""
    decoder = jax.tree.map(np.float64, params["decoder"])
    d, count = config.hidden_size, config.decoder_layers
    states, fed, outputs = [(np.zeros(d), np.zeros(d))] * count, np.zeros(d), []
    for z in np.float64(params["embeddings"]["word_embeddings"]["embedding"])[tokens]:
        x, extra = z, np.einsum("d,dgf->gf", fed, decoder["feed"])
        for n in range(count):
            h, memory = states[n]
            own = {name: tree["kernel"][n, 0] for name, tree in decoder["layers"].items()}
            gates = np.einsum("d,dgf->gf", x, own["input"]) + np.einsum("d,dgf->gf", h, own["recurrence"]) + extra
            i, f, g, o = gates + decoder["layers"]["input"]["bias"][n, 0]
            memory = sigmoid(f + 1) * memory + sigmoid(i) * np.tanh(g)
            x, extra = sigmoid(o) * np.tanh(memory), 0.0
            states = [*states[:n], (x, memory), *states[n + 1 :]]
        scores = encoded @ (x @ decoder["query"]["kernel"] + decoder["query"]["bias"])
        weights = np.exp(log_softmax(scores))
        context = weights @ encoded
        fed = np.tanh(np.concatenate([context, x]) @ decoder["output"]["kernel"] + decoder["output"]["bias"])
        outputs.append(fed)
    return np.array(outputs)


def outputs_of(config: ModelConfig, params: dict, batch: dict) -> dict[str, np.ndarray]:
    return jax.device_get(_outputs(config, params, batch))


@functools.partial(jax.jit, static_argnums=0)
def _outputs(config: ModelConfig, params: dict, batch: dict) -> Any:
    return CoveTranslator(config).apply({"params": params}, batch, None)


@CONFIGS
def test_states_and_logits_of_packed_pairs_equal_single_pairs(config):
    params, batch = random_params(config), batch_of()
    outputs = outputs_of(config, params, batch)
    table = np.float64(params["lm_head"].get("decoder", params["embeddings"]["word_embeddings"]["embedding"]))[:20]
    loss, targets = 0.0, 0
    for row, source, target in pairs_of(batch):
        wanted = encoded_in_numpy(config, params, batch["input_ids"][row, source])
        np.testing.assert_allclose(outputs["hidden_states"][:, row, source], wanted, rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(outputs["last"][row, source], wanted[-1], rtol=0, atol=ROUNDING)
        decoded = decoded_in_numpy(config, params, batch["decoder_input_ids"][row, target], wanted[-1])
        np.testing.assert_allclose(outputs["decoder_last"][row, target], decoded, rtol=0, atol=ROUNDING)
        logits = decoded @ table.T + np.float64(params["lm_head"]["bias"])[:20]
        np.testing.assert_allclose(outputs["logits"][row, target, :20], logits, rtol=0, atol=1e-5)
        for own, column in zip(logits, target, strict=True):
            loss -= log_softmax(own)[batch["targets"][row, column]]
        targets += len(target)
    objective = objective_for(config, False)
    sums, counts = jax.jit(objective.sums)(params, batch, None), objective.counts(batch)
    assert counts["translation_targets"] == targets
    np.testing.assert_allclose(sums["translation_loss"], loss, rtol=1e-5)
    assert np.isfinite(outputs["logits"][..., :20]).all(), "padding too"


def test_the_second_layer_reads_both_directions_of_the_first():
    params, batch = random_params(COVE), batch_of()
    before, row, column = outputs_of(COVE, params, batch)["hidden_states"], 1, 3
    changed = {**batch, "input_ids": batch["input_ids"].copy()}
    changed["input_ids"][row, column] = 5 + (changed["input_ids"][row, column] - 4) % 15
    moved = (outputs_of(COVE, params, changed)["hidden_states"] != before)[:, row, :6]
    assert moved[1, :, :4].any(-1).tolist() == [False] * 3 + [True] * 3, "forward"
    assert moved[1, :, 4:].any(-1).tolist() == [True] * 4 + [False] * 2, "backward"
    assert moved[2, :, :4].any(-1).all()
    assert moved[2, :, 4:].any(-1).all()


def test_a_classifier_reads_the_word_vectors_and_the_encoder():
    """As in the paper: the features of a token are its word vector and the output of the last layer. `test_features.py` compares
    every kind of features."""
    head = SequenceHead(labels=("a", "b", "c"), layers="embeddings_and_last", lstm=3, pooling="concat")
    rng, whole, batch = np.random.default_rng(3), random_params(COVE), batch_of()
    own = {path: shape for path, shape in our_shapes(COVE, head).items() if path.startswith(head.subtree)}
    drawn = unflatten_dict({path: (0.5 * rng.standard_normal(shape)).astype(np.float32) for path, shape in own.items()}, sep="/")
    params = {part: whole[part] for part in ("embeddings", "encoder")} | drawn
    starts = np.zeros((len(PAIRS), 3), np.int32)
    slots = [(row, n) for row, pairs in enumerate(PAIRS) for n in range(len(pairs))]
    for (row, n), (_, source, _) in zip(slots, pairs_of(batch), strict=True):
        starts[row, n] = source[0]
    logits = np.asarray(jax.jit(BertWithHead(COVE, head).apply)({"params": params}, batch | {"cls_positions": starts})["logits"])
    for (row, n), (_, source, _) in zip(slots, pairs_of(batch), strict=True):
        states = encoded_in_numpy(COVE, whole, batch["input_ids"][row, source])
        np.testing.assert_allclose(logits[row, n], head_logits(head, params, states), rtol=0, atol=1e-5)


def test_the_gradient_of_the_decoder_equals_finite_differences():
    params, batch = random_params(UNTIED), batch_of()
    rng = np.random.default_rng(2)
    encoded, weights = rng.standard_normal((2, 3, 12, 8), np.float32)
    tokens = Tokens.for_decoder(batch), Tokens.of(batch)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        found = CoveTranslator(UNTIED).apply({"params": params}, tokens[0], encoded, tokens[1], method="decode")
        return (found * weights).sum()

    gradient = jax.device_get(loss(params)[1])
    direction = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), params)
    size = 1e-3

    def moved(sign: int) -> float:
        shifted = jax.tree.map(lambda x, d: x + np.float32(sign * size) * d, params, direction)
        return float(loss(shifted)[0])

    wanted = (moved(1) - moved(-1)) / (2 * size)
    found = sum(float((g * d).sum()) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    assert found == pytest.approx(wanted, rel=2e-2)
    assert all(np.any(x) for x in jax.tree.leaves(gradient["decoder"]))


@CONFIGS
def test_parameters_survive_a_round_trip(config):
    params = random_params(config)
    back = params_from_tensors(tensors_from_params(params, config), config, "a file")
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(back), strict=True):
        rows = config.vocab_size if x.shape[0] == config.padded_vocab_size else len(x)
        assert np.array_equal(x[:rows], y[:rows]), path


def test_layers_may_be_a_list():
    params, batch = random_params(COVE), batch_of()
    stacked, listed = (outputs_of(COVE, p, batch)["logits"] for p in (params, unstacked_layers(params)))
    np.testing.assert_array_equal(stacked, listed)


def test_dropout_follows_the_seed_in_encoder_and_decoder_whose_words_and_outputs_have_seeds_of_their_own():
    config = dataclasses.replace(COVE, hidden_dropout=0.5)
    params, batch = random_params(config), batch_of()

    @jax.jit
    def computed(params: Any, batch: Any, seed: Any) -> tuple[Any, Any]:
        model = CoveTranslator(config).bind({"params": params})
        outputs, source, target = model(batch, seed), Tokens.of(batch), Tokens.for_decoder(batch)
        of_words, of_output = (Dropout(0.5, hash_word((seed ^ int.from_bytes(b"cove", "big")) + n)) for n in (0, 1))
        words = dropout(model.embeddings(target, None), of_words)
        return outputs, dropout(model.decoder(words, target, outputs["last"], source), of_output)

    (first, decoded), (again, _), (other, _) = (computed(params, batch, jnp.uint32(seed)) for seed in (1, 1, 2))
    for name in ("last", "decoder_last"):
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert 0.3 < np.mean(np.asarray(first["decoder_last"])[batch["decoder_sequence_ids"] > 0] == 0) < 0.7
    np.testing.assert_allclose(first["decoder_last"], decoded, atol=ROUNDING)


def test_targets_outside_of_their_table_are_refused():
    source = Tokens.of(batch_of())
    target = dataclasses.replace(source, ids=np.full_like(source.ids, COVE.vocab_size))
    with pytest.raises(UserError, match="input_ids holds 20, outside"):
        CoveTranslator(COVE).apply({"params": random_params(COVE)}, target, np.zeros((3, 12, 8)), source, method="decode")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_layers": 0}, "model.decoder_layers=0 is too small for model.encoder=cove; set it to at least 1"),
        ({"direction": "left_to_right"}, r"direction=left_to_right does not apply to model.encoder=cove; leave it out \(both\)"),
        ({"hidden_size": 7}, "each direction of model.encoder=cove uses half of it; set 8$"),
        ({"decoder_vocab_size": 9}, r"model.decoder_vocab_size=9 does not apply to model.encoder=cove; leave it out \(0\)"),
        ({"encoder": "bilm"}, r"model.decoder_layers=2 does not apply to model.encoder=bilm; leave it out \(0\)"),
        ({"character_cnn": True, "tied_decoder": False}, "model.character_cnn=True requires model.encoder=bilm"),
    ],
)
def test_unsupported_settings_of_cove_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(**{"encoder": "cove", "hidden_size": 8, "num_layers": 2, "decoder_layers": 2} | fields)
