from __future__ import annotations

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import MaskingTables
from bert_jax.data.plan import plan_epoch
from bert_jax.data.rows import assemble_rows
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.model.bert import Bert
from bert_jax.model.characters import BYTES
from bert_jax.model.config import MINIATURE_LAYERS, MINIATURE_WIDTHS, ModelConfig, published, published_sizes
from bert_jax.model.embeddings import check_ids
from bert_jax.model.encoder import unstacked_layers
from bert_jax.model.layers import Dropout, activation, dropout, gelu, random_words
from bert_jax.model.pretraining import ParameterCounts, abstract_parameters, count_parameters, initial_parameters
from bert_jax.model.tokens import Tokens
from tests.data.corpora import corpus_from_arrays
from tests.random_rows import (
    TINY,
    forward,
    gradients_of,
    largest_difference,
    logits_of,
    outputs_of,
    random_batch,
    random_parameters,
)


@pytest.mark.parametrize(
    ("name", "parameters"), [("base", 109_482_240), ("large", 335_141_888), ("tiny", 4_385_920), ("mini", 11_170_560)]
)
def test_encoder_with_pooler_has_the_published_parameter_count(name, parameters):
    assert count_parameters(ModelConfig(**published(name))) == ParameterCounts(parameters)


@pytest.mark.parametrize(
    ("fields", "fixed"),
    [
        ({"encoder": "transformer"}, 0),
        ({"encoder": "transformer", "tied_decoder": False}, 0),
        ({"encoder": "static", "num_layers": 0}, 100),
        ({"encoder": "bilm", "character_cnn": True, "tied_decoder": False}, 100 * BYTES),
    ],
    ids=str,
)
def test_untrained_tables_and_padding_rows_are_counted_separately(fields, fixed):
    sizes = {"vocab_size": 100, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "num_layers": 2} | fields
    configs = (ModelConfig(**sizes, vocab_multiple=n) for n in (1, 64))
    plain, padded = (count_parameters(config, abstract_parameters(config)) for config in configs)
    assert (plain.fixed, plain.padded) == (fixed, 0)
    assert padded.trained == plain.trained
    assert padded.fixed == fixed // 100 * 128
    for counts, multiple in ((plain, 1), (padded, 64)):
        arrays = nn.unbox(abstract_parameters(ModelConfig(**sizes, vocab_multiple=multiple)))
        assert counts.trained + counts.fixed + counts.padded == sum(x.size for x in jax.tree.leaves(arrays))


def test_parameter_counts_in_words_name_only_existing_parts():
    assert ParameterCounts(1234).in_words == "1,234 parameters"
    assert ParameterCounts(1234, 56, 7).in_words == "1,234 parameters, 56 fixed numbers, 7 in rows of padding"


def test_the_table_has_the_24_miniatures_base_and_large():
    assert {(n, d) for n in MINIATURE_LAYERS for d in MINIATURE_WIDTHS} | {(12, 768), (24, 1024)} == set(
        published_sizes().values()
    )
    assert len(MINIATURE_LAYERS) * len(MINIATURE_WIDTHS) == 24
    assert published("L-4_H-256_A-4") == published("mini")
    with pytest.raises(UserError, match="called 'L-4_H-256_A-8', because L-4_H-256 has 4 heads; write L-4_H-256, and"):
        published("L-4_H-256_A-8")
    with pytest.raises(UserError, match="did you mean 'small'"):
        published("smal")


def test_parameters_start_truncated_at_two_deviations_with_zero_biases():
    config = ModelConfig(**published("tiny"), vocab_size=5000)

    def draw(key):
        params = nn.unbox(initial_parameters(config, key))
        layers = params["encoder"]["layers"]
        words, scale = params["embeddings"]["word_embeddings"]["embedding"], layers["attention_layer_norm"]["scale"]
        return words, params["mlm_head"]["bias"], scale, layers["attention"]["query"]["kernel"]

    words, bias, scale, kernels = jax.device_get(jax.jit(draw)(jax.random.key(0)))
    assert np.abs(words).max() <= 0.04 + 1e-7
    assert words.std() == pytest.approx(0.02 * 0.8796, rel=0.01)  # a normal truncated at 2 deviations, not rescaled
    assert not bias.any()
    assert (scale == 1).all()
    assert not np.allclose(kernels[0], kernels[1]), "layers have to start with different weights"


@pytest.mark.parametrize("scan_layers", [False, True])
def test_only_stacked_layers_are_scanned_and_only_on_request(scan_layers: bool):
    config, params = dataclasses.replace(TINY, scan_layers=scan_layers), random_parameters()
    tokens = Tokens.of(random_batch(rows=1))
    methods = {"encode": tokens, "encode_queried": tokens.reading(jnp.array([[1, 2]]))}
    for own, scanned in ((params, scan_layers), (unstacked_layers(params), False)):
        for method, given in methods.items():
            program = jax.make_jaxpr(functools.partial(Bert(config).apply, method=method))({"params": own}, given)
            assert ("scan[" in str(program)) == scanned


def test_recomputed_layers_in_a_loop_have_the_gradients_of_stored_ones_with_dropout():
    config = dataclasses.replace(TINY, hidden_dropout=0.1, attention_dropout=0.1, scan_layers=True)
    params, batch = random_parameters(), random_batch()
    plain, _ = gradients_of(config, params, batch, 0, jnp.int32(5), 1)
    other, _ = gradients_of(dataclasses.replace(config, remat="full"), params, batch, 0, jnp.int32(5), 1)
    assert largest_difference(plain, other) < 1e-5


def test_training_logits_equal_the_full_model_in_a_loop_with_dropout():
    config = dataclasses.replace(TINY, hidden_dropout=0.1, attention_dropout=0.1)
    params, batch = random_parameters(), packed(random_batch())
    whole = outputs_of(dataclasses.replace(config, scan_layers=True), params, batch, jnp.uint32(7))
    few = logits_of(config, params, batch, jnp.uint32(7))
    assert few.keys() == {"mlm_logits", "nsp_logits"}
    for name, logits in few.items():
        np.testing.assert_allclose(logits, whole[name], rtol=1e-5, atol=1e-5 * np.abs(whole[name]).max())


def test_padding_does_not_affect_real_tokens():
    params, batch = random_parameters(), random_batch()
    other = batch | {"input_ids": np.where(batch["sequence_ids"] == 0, np.int32(63), batch["input_ids"])}
    real = np.asarray(batch["sequence_ids"]) == 1
    a, b = (np.asarray(outputs_of(TINY, params, x, None)["last"]) for x in (batch, other))
    assert (a[real] == b[real]).all()
    assert (a[~real] != b[~real]).any()


def packed(batch):
    """Returns rows 2k and 2k+1 of an unpacked batch of even length side by side in one row of twice the length."""
    rows, length = batch["input_ids"].shape
    pairs = {name: np.asarray(value).reshape(rows // 2, 2, -1) for name, value in batch.items()}
    shift = np.array([0, length])[None, :, None]
    pairs["masked_positions"] = np.where(pairs["masked_targets"] >= 0, pairs["masked_positions"] + shift, 0)
    pairs["cls_positions"] = pairs["cls_positions"] + shift
    pairs["sequence_ids"] = np.where(pairs["sequence_ids"] > 0, np.array([1, 2])[None, :, None], 0)
    return {name: value.reshape(rows // 2, -1).astype(np.int32) for name, value in pairs.items()}


def test_packed_examples_have_the_logits_of_separate_rows():
    params, batch = random_parameters(), random_batch()
    alone, together = (outputs_of(TINY, params, x, None) for x in (batch, packed(batch)))
    valid = np.asarray(batch["masked_targets"]) >= 0
    assert (
        largest_difference(
            np.asarray(alone["mlm_logits"])[valid], np.asarray(together["mlm_logits"]).reshape(alone["mlm_logits"].shape)[valid]
        )
        < 1e-5
    )
    assert largest_difference(alone["nsp_logits"], together["nsp_logits"].reshape(alone["nsp_logits"].shape)) < 1e-5


def test_changing_one_packed_example_does_not_change_its_neighbour():
    params, rows = random_parameters(), packed(random_batch())
    changed = rows | {"input_ids": np.where(rows["sequence_ids"] == 2, np.int32(7), rows["input_ids"])}
    first = np.asarray(rows["sequence_ids"]) == 1
    a, b = (np.asarray(outputs_of(TINY, params, x, None)["last"]) for x in (rows, changed))
    assert (a[first] == b[first]).all()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("input_ids", 64, "a different vocabulary"),
        ("input_ids", -1, "a different vocabulary"),
        ("position_ids", 32, "max_position"),
        ("token_type_ids", 2, "token types"),
    ],
)
def test_an_id_outside_of_its_table_is_refused_by_name(name, value, says):
    batch = random_batch()
    batch[name] = np.array(batch[name])
    batch[name][0, 0] = value
    with pytest.raises(UserError, match=rf"{name} holds {value}.*{says}"):
        forward(TINY, random_parameters(), batch, None)
    with pytest.raises(UserError, match=name):
        check_ids(TINY, **{name: np.asarray(batch[name])})


@pytest.mark.parametrize(("positions", "ends"), [("learned", "model.max_position"), ("none", "--max-position=N)")])
def test_too_long_rows_are_refused_with_the_remedy_for_computed_positions(positions: str, ends: str):
    with pytest.raises(UserError) as error:
        check_ids(dataclasses.replace(TINY, positions=positions), position_ids=np.array([0, TINY.max_position]))
    assert str(error.value).endswith(ends)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_heads", 3, "nearest number of heads"),
        ("activation", "gelus", "did you mean 'gelu'"),
        ("hidden_dropout", 1.0, "hidden_dropout=1.0"),
        ("vocab_size", 0, "vocab_size=0"),
    ],
)
def test_an_impossible_model_is_refused_with_the_key(field, value, says):
    with pytest.raises(UserError, match=says):
        dataclasses.replace(TINY, **{field: value})


def test_bfloat16_is_close_to_float32_with_float32_parameters_and_logits():
    params, batch = random_parameters(scale=1.0), random_batch()
    exact = outputs_of(TINY, params, batch, None)
    rough = outputs_of(dataclasses.replace(TINY, dtype="bfloat16"), params, batch, None)
    assert rough["mlm_logits"].dtype == jnp.float32
    assert rough["last"].dtype == jnp.bfloat16
    assert largest_difference(exact["mlm_logits"], rough["mlm_logits"]) < 0.05
    shapes = jax.tree.leaves(abstract_parameters(dataclasses.replace(TINY, dtype="bfloat16")))
    assert {leaf.dtype for leaf in shapes} == {jnp.dtype(jnp.float32)}


def test_dropout_scales_kept_elements_and_masks_gradients_equally():
    x = np.ones((64, 8, 32, 32), np.float32)

    @jax.jit
    def both(x):
        dropped, pull = jax.vjp(lambda x: dropout(x, Dropout(0.1, jnp.uint32(7))), x)
        return dropped, *pull(x)

    values, gradient = jax.device_get(both(x))
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1 / 0.9)}
    kept = values != 0
    assert kept.mean() == pytest.approx(0.9, abs=5 * (0.09 / x.size) ** 0.5)
    assert ((gradient != 0) == kept).all()


words_of = jax.jit(random_words, static_argnums=1)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_dropout_masks_are_independent_between_neighbours_on_every_axis(axis):
    words = np.asarray(words_of(jnp.uint32(1), (32, 4, 64, 64)))
    dropped = (words < 0.1 * 2**32).astype(np.float64)
    a, b = np.delete(dropped, 0, axis), np.delete(dropped, -1, axis)
    correlation = ((a - 0.1) * (b - 0.1)).mean() / 0.09
    assert abs(correlation) < 5 / a.size**0.5
    rates = dropped.mean(axis=tuple(i for i in range(4) if i != axis))
    assert np.abs(rates - 0.1).max() < 5.5 * (0.09 / (dropped.size / dropped.shape[axis])) ** 0.5


def test_dropout_masks_of_consecutive_seeds_are_independent():
    dropped = [(np.asarray(words_of(jnp.uint32(seed), (256, 256))) < 0.1 * 2**32).astype(np.float64) - 0.1 for seed in range(6)]
    for i in range(6):
        for j in range(i):
            assert abs((dropped[i] * dropped[j]).mean() / 0.09) < 5 / 256


def test_every_bit_of_the_random_words_is_fair():
    words = np.asarray(words_of(jnp.uint32(3), (512, 512)))
    for bit in range(32):
        assert ((words >> bit) & 1).mean() == pytest.approx(0.5, abs=5 * 0.5 / 512)


def test_gelu_and_its_gradient_are_exact():
    x = jnp.linspace(-6, 6, 241)
    exact, ours = (
        jax.jit(jax.vmap(jax.value_and_grad(of)))(x) for of in (functools.partial(jax.nn.gelu, approximate=False), gelu)
    )
    assert largest_difference(exact[0], ours[0]) < 1e-6
    assert largest_difference(exact[1], ours[1]) < 1e-6


def gelu_by_hand(name: str, x: float) -> tuple[float, float]:
    """Returns GELU and its derivative in float64, in forms without cancellation."""
    if name == "gelu":
        share, slope = 0.5 * math.erfc(-x / math.sqrt(2)), math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    else:
        c = math.sqrt(2 / math.pi)
        share = 1 / (1 + math.exp(-2 * c * (x + 0.044715 * x**3)))
        slope = 2 * c * (1 + 3 * 0.044715 * x * x) * share * (1 - share)
    return x * share, share + x * slope


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_in_bfloat16_keeps_its_negative_tail(name):
    x = jnp.arange(-6, 6, 1 / 32).astype(jnp.bfloat16)
    expected = np.array([gelu_by_hand(name, float(value)) for value in x])
    for compile_it in (jax.jit, lambda function: function):
        value, pull = compile_it(lambda x: jax.vjp(activation(name), x))(x)
        found = np.stack([value, pull(jnp.ones_like(x))[0]], axis=1).astype(np.float64)
        # half a unit in the last place of bfloat16; for float32 times 50, since 1 + erf and 1 + tanh still cancel at -6
        np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=5e-6)


def test_no_masked_prediction_depends_on_the_token_that_it_predicts():
    """All chosen positions are [MASK], so replacing their original tokens changes neither the inputs nor the logits."""
    masked = {"max_predictions": 4, "masked_fraction": 0.25, "mask_probability": 1.0, "random_probability": 0.0}
    settings = ExampleConfig(length=16, pairs="none", **masked)
    tokens = np.random.default_rng(0).integers(10, 64, 600).astype(np.uint16)
    special = VocabularyInfo(
        size=64, sha256="", lowercase=True, kind="wordpiece", pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4
    )
    offsets = np.arange(0, 601, 6), np.arange(0, 101, 10)
    plan = plan_epoch(corpus_from_arrays(tokens, *offsets, special), settings, seed=1, epoch=0)

    def rows_and_logits(tokens: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        tables = MaskingTables(mask_id=4, legal_ids=np.arange(10, 64, dtype=np.int32))
        batch = assemble_rows(corpus_from_arrays(tokens, *offsets, special), plan, np.arange(8), tables)
        return batch, np.asarray(logits_of(TINY, random_parameters(), batch, None)["mlm_logits"])

    batch, logits = rows_and_logits(tokens)
    row, slot = np.nonzero(batch["masked_targets"] >= 0)
    chosen = plan.pairs.a_start[plan.rows[row, 0]] + batch["masked_positions"][row, slot] - 1  # after [CLS]
    np.testing.assert_array_equal(tokens[chosen], batch["masked_targets"][row, slot])
    other = tokens.copy()
    other[chosen] = 10 + (tokens[chosen] - 9) % 54
    found, logits_of_other = rows_and_logits(other)
    assert (found["masked_targets"] != batch["masked_targets"])[row, slot].all()
    np.testing.assert_array_equal(found["input_ids"], batch["input_ids"])
    np.testing.assert_array_equal(logits_of_other, logits)
    unchosen = np.where(np.isin(np.arange(600), chosen), tokens, 10 + (tokens - 9) % 54).astype(np.uint16)
    assert (np.abs(rows_and_logits(unchosen)[1] - logits).max((1, 2)) > 1e-3).all(), "the input has to change the prediction"
