"""The Transformer of 2017: what its decoder may attend to; packing, loops over layers and meshes do not change its outputs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data import DECODER, INPUTS
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.encoder_decoder import EncoderDecoder, attention_maps, encode
from bert_jax.model.pretraining import abstract_parameters, count_parameters
from bert_jax.model.tokens import Tokens
from tests.random_rows import drawn_parameters

TINY = ModelConfig(
    **published("transformer_base")
    | {
        "vocab_size": 61, "hidden_size": 20, "num_layers": 1, "decoder_layers": 2, "num_heads": 4, "intermediate_size": 28,
        "max_position": 24, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    }
)  # fmt: skip
MODERN = {
    "norm": "rms_norm", "norm_placement": "pre", "final_norm": True, "gate": "first", "positions": "rotary",
    "num_heads": 2, "num_key_value_heads": 1, "activation": "silu", "attention_bias": False, "scale_embeddings": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "modern": MODERN | {"decoder_layers": 1, "tied_decoder": False, "vocab_multiple": 16},
    "loop": {"scan_layers": True, "remat": "dots", "decoder_vocab_size": 47},
}


@functools.cache
def parameters(config: ModelConfig = TINY) -> Any:
    return drawn_parameters(config, 3)


def side(ids: Any, prefix: str, lengths: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of one side of a batch, with one sequence per row."""
    ids = np.asarray(ids, np.int32)
    columns = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    real = (columns < np.array(lengths)[:, None]).astype(np.int32)
    return {f"{prefix}{name}": x for name, x in zip(INPUTS, (ids, np.zeros_like(ids), columns, real), strict=True)}


def pairs(config: ModelConfig = TINY, sources: Any = (9, 8, 7), targets: Any = (7, 5, 3)) -> dict[str, np.ndarray]:
    """Returns sources and targets of these lengths."""
    rng, rows = np.random.default_rng(5), len(sources)
    ids = rng.integers(1, config.vocab_size, (rows, 9)), rng.integers(1, config.decoder_config.vocab_size, (rows, 7))
    return side(ids[0], "", sources) | side(ids[1], DECODER, targets)


def changed(batch: dict[str, np.ndarray], name: str, row: int | slice, column: int) -> dict[str, np.ndarray]:
    """Returns the batch with other tokens there."""
    ids = batch[name].copy()
    ids[row, column] -= 1
    return batch | {name: ids}


def outputs(config: ModelConfig, params: Any, batch: dict[str, np.ndarray], seed: Any = None) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in _applied(config, params, batch, seed).items()}


@functools.partial(jax.jit, static_argnums=0)
def _applied(config: ModelConfig, params: Any, batch: dict[str, np.ndarray], seed: Any) -> Any:
    return EncoderDecoder(config).apply({"params": params}, batch, seed)


@pytest.mark.parametrize(("name", "expected"), [("transformer_base", 63_082_496), ("transformer_big", 214_245_376)])
def test_published_sizes_have_the_parameter_counts_of_their_widths(name, expected):
    config = ModelConfig(**published(name))
    width, wide, words = config.hidden_size, config.intermediate_size, config.vocab_size
    attention, norm = 4 * width * (width + 1), 2 * width
    feed_forward = 2 * width * wide + wide + width
    layers = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    counts = count_parameters(config)
    assert counts.trained == words * width + layers == expected
    assert counts.fixed == words  # final_logits_bias


def test_rows_of_padding_are_counted_for_each_vocabulary():
    config = dataclasses.replace(TINY, decoder_vocab_size=47)
    plain, padded = (count_parameters(dataclasses.replace(config, vocab_multiple=n)) for n in (1, 16))
    assert (plain.fixed, plain.padded) == (47, 0)
    assert (padded.trained, padded.fixed, padded.padded) == (plain.trained, 48, (3 + 1) * TINY.hidden_size)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_target_token_reads_the_source_and_the_targets_up_to_it(name):
    config = dataclasses.replace(TINY, **VARIANTS[name])
    batch = pairs(config)
    before = outputs(config, parameters(config), batch)["logits"]
    assert before.shape == (3, 7, config.decoder_config.padded_vocab_size)
    later = changed(batch, "decoder_input_ids", slice(None), 4)
    after = outputs(config, parameters(config), later)["logits"]
    np.testing.assert_allclose(after[:, :4], before[:, :4], atol=1e-6)
    assert np.abs(after - before)[0, 4:].max(-1).min() > 1e-5
    other = changed(batch, "input_ids", slice(None), 3)
    assert np.abs(outputs(config, parameters(config), other)["logits"] - before)[0].max(-1).min() > 1e-5
    padded = changed(batch, "input_ids", 2, 8)
    after = outputs(config, parameters(config), padded)["logits"]
    np.testing.assert_allclose(after[2, :3], before[2, :3], atol=1e-6)
    np.testing.assert_allclose(after[:2], before[:2], atol=1e-6)


def test_encoding_a_source_alone_equals_encoding_it_with_its_target():
    batch = pairs()
    alone = jax.jit(encode, static_argnums=1)(parameters(), TINY, Tokens.of(batch))
    np.testing.assert_array_equal(alone, outputs(TINY, parameters(), batch)["last"])


@pytest.mark.parametrize("name", ["paper", "modern"])
def test_packed_targets_read_only_their_own_source(name):
    config = dataclasses.replace(TINY, **VARIANTS[name])
    batch = pairs(config, (5, 4, 1), (4, 3, 1))
    packed = {name: np.zeros_like(x) for name, x in batch.items()}
    for prefix, lengths in (("", (5, 4)), (DECODER, (4, 3))):
        for field in INPUTS:
            packed[prefix + field][0] = np.concatenate([batch[prefix + field][row, :n] for row, n in enumerate(lengths)])
        packed[f"{prefix}sequence_ids"][0] = np.repeat([1, 2], lengths)
    alone, together = (outputs(config, parameters(config), rows)["logits"] for rows in (batch, packed))
    np.testing.assert_allclose(together[0, :4], alone[0, :4], atol=2e-5)
    np.testing.assert_allclose(together[0, 4:7], alone[1, :3], atol=2e-5)


def test_targets_outside_of_their_tables_are_refused():
    source, model, params = Tokens.of(pairs()), EncoderDecoder(TINY), {"params": parameters()}
    for name, value in (("ids", TINY.vocab_size), ("positions", TINY.max_position)):
        target = dataclasses.replace(source, **{name: np.full_like(source.ids, value)})
        with pytest.raises(UserError, match=f"holds {value}, outside"):
            jax.eval_shape(lambda p, of=target: model.apply(p, of, np.zeros((3, 9, 20)), source, method="decode"), params)


def test_dropout_differs_between_steps_and_sides():
    """`tests/sharding/test_translation_on_meshes.py` compares a loop over layers with single layers."""
    config, batch = dataclasses.replace(TINY, hidden_dropout=0.3, scan_layers=True), pairs()
    first, other = (outputs(config, parameters(), batch, jnp.uint32(seed)) for seed in (1, 2))
    assert np.abs(first["logits"] - other["logits"]).max() > 0.01
    source, target = (first[f"{side}hidden_states"][0, 0, :7] == 0 for side in ("", DECODER))
    assert (source != target).any()


def test_evaluation_has_no_dropout():
    with_rate = dataclasses.replace(TINY, hidden_dropout=0.3, attention_dropout=0.3)
    programs = (jax.make_jaxpr(_applied, static_argnums=0)(config, parameters(), pairs(), None) for config in (TINY, with_rate))
    assert len({str(program) for program in programs}) == 1


def test_the_start_token_and_the_logits_bias_are_not_trained():
    batch = side([[5, 6]], "", [2]) | side([[7]], DECODER, [1])
    config = dataclasses.replace(TINY, tied_decoder=False, decoder_layers=1, scan_layers=True)

    params = dict(parameters(config))
    tables = {part: params.pop(part) for part in ("embeddings", "lm_head")}

    def loss(tables: Any, others: Any, batch: Any) -> jax.Array:
        found: Any = EncoderDecoder(config).apply({"params": others | tables}, batch)
        return jnp.square(found["logits"]).sum()

    found = jax.jit(jax.grad(loss))(tables, params, batch)
    table = np.asarray(found["embeddings"]["word_embeddings"]["embedding"])
    assert np.abs(table[[5, 6]]).max(-1).min() > 0
    assert not table[7].any()
    assert not np.asarray(found["lm_head"]["final_logits_bias"]).any()
    assert np.asarray(found["lm_head"]["decoder"]).any()


def test_attention_maps_of_both_sides_and_between_them():
    maps = jax.jit(attention_maps, static_argnums=1)(parameters(), dataclasses.replace(TINY, scan_layers=True), pairs())
    assert [len(part) for part in maps] == [1, 2, 2]
    assert [part[0].shape for part in maps] == [(3, 4, 9, 9), (3, 4, 7, 7), (3, 4, 7, 9)]
    for part in maps:
        np.testing.assert_allclose(np.asarray(part[0])[0].sum(-1), 1, atol=1e-6)
    assert not np.triu(np.asarray(maps.decoder[1])[0], 1).any(), "no token attends to a later one"
    assert not np.asarray(maps.cross[1])[2, :, :3, 7:].any(), "nor to the padding of its source"


def test_parameter_axes_are_named_for_sharding():
    names = nn.get_partition_spec(abstract_parameters(dataclasses.replace(TINY, decoder_vocab_size=47)))
    layers = names["decoder"]["layers"]
    assert tuple(layers["cross_attention"]["query"]["kernel"]) == ("layers", "embed", "heads", "head_width")
    assert tuple(names["decoder"]["embeddings"]["word_embeddings"]["embedding"]) == ("vocab", "embed")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_layers": 0}, "set it to at least 1"),
        ({"type_vocab_size": 2}, "set 0"),
        ({"direction": "left_to_right"}, "set both"),
        ({"encoder": "transformer"}, "leave it out"),
    ],
)
def test_unsupported_settings_of_an_encoder_decoder_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(TINY, **fields)


def test_the_sinusoids_equal_marian():
    """sin and cos of position / 10000^(2 i / width), all sines first (modeling_marian.py, create_weight)."""
    from bert_jax.model.positions import SinusoidalHalves

    for width in (20, 7):
        found = SinusoidalHalves(dataclasses.replace(TINY, hidden_size=width, num_heads=1)).table()
        angles = np.array([[place / np.power(10_000, 2 * (j // 2) / width) for j in range(width)] for place in range(24)])
        expected = np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1)
        np.testing.assert_array_equal(found, expected.astype(np.float32))
