"""Modern encoders compared with transformers' PyTorch on random weights: `tests/golden/modernbert_golden.npz`; and the effect of
each of their settings.

Agreement is measured per tensor as max |ours - theirs| / max |theirs|, ours in float32 and theirs in float64. Errors in the
biases of queries and keys are relative to the bias of values, as in ModernBERT, where the three are one tensor: the key biases
hardly change the scores, and PyTorch's own float32 is off by 2.4e-6 there, elsewhere by 1e-6.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig, modern_block, published
from bert_jax.model.encoder import Encoder, Loop, layer_kinds, layer_seeds, loop_over
from bert_jax.model.layers import Dropout, dropout, parameter, with_leading_axes
from bert_jax.model.positions import rotate
from bert_jax.model.pretraining import abstract_parameters, count_parameters, initial_parameters, pretraining_model
from bert_jax.model.tokens import Layer, Tokens
from tests.golden.make_modernbert import CASES, make_batch, sampled, without_padding
from tests.model.modern_cases import architecture, as_theirs, parameters
from tests.random_rows import drawn_parameters, random_parameters

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "modernbert_golden.npz"
TOLERANCE, OF_GRADIENTS = 1e-6, 2e-6
"""The largest difference from PyTorch's float64, as a share of the largest value. Gradients of scales are sums over all tokens.
Their rounding depends on the width of the CPU's vectors: it is up to 1.25e-6 with SSE4.2."""


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def our_batch(case: str) -> dict[str, np.ndarray]:
    batch = make_batch(CASES[case][1].get("type_vocab_size", 0))
    rows, length = batch["input_ids"].shape
    columns = np.broadcast_to(np.arange(length), (rows, length))
    inputs = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch.get("token_type_ids", np.zeros_like(columns)),
        "position_ids": columns,
        "sequence_ids": batch["attention_mask"],
        "masked_positions": columns,
        "cls_positions": np.zeros((rows, 1)),
    }
    return {name: np.asarray(x, np.int32) for name, x in inputs.items()}


def loss_of(logits: Any, case: str) -> Any:
    labels = make_batch()["labels"]
    rows, columns = np.nonzero(labels >= 0)
    return -jax.nn.log_softmax(logits)[rows, columns, labels[rows, columns]].mean()


def trees(case: str, golden: dict[str, np.ndarray], config: ModelConfig) -> Any:
    shapes = nn.unbox(abstract_parameters(config, next_sentence=False))
    return parameters(case, {"golden": golden[f"{case}/shapes"], "ours": shapes})


SCANNED = ("all_biases", "eurobert_biases", "nomic_bert")
"""The cases that are compared in a loop over their layers, which compiles faster: one over periods of three layers after another
layer, and two over single layers."""
COMPUTED = ("all_biases", "no_decoder_bias", "eurobert_biases", "nomic_bert")
"""The cases whose outputs and gradients are compared. ModernBERT's have every bias, and none. The others have some of these
parameters."""


@pytest.mark.parametrize("case", CASES)
def test_each_bias_is_where_transformers_has_it(case, golden):
    names = json.loads(str(golden[f"{case}/shapes"]))
    theirs = as_theirs(case, trees(case, golden, architecture(case, scan_layers=True)), names)
    assert {name: list(x.shape) for name, x in theirs.items()} == names


@pytest.mark.parametrize("case", COMPUTED)
def test_layers_logits_loss_and_gradients_equal_transformers(case, golden):
    config = architecture(case, scan_layers=case in SCANNED)
    params, batch = trees(case, golden, config), our_batch(case)
    model = pretraining_model(config, next_sentence=False)

    def compute(params: Any) -> Any:
        outputs: Any = model.apply({"params": params}, batch)
        return loss_of(outputs["mlm_logits"], case), outputs

    names = json.loads(str(golden[f"{case}/shapes"]))
    wanted = {name.removeprefix(f"{case}/"): x for name, x in golden.items() if name.startswith(f"{case}/")}
    (loss, outputs), gradients = jax.jit(jax.value_and_grad(compute, has_aux=True))(params)
    found = {f"gradient/{name}": x for name, x in as_theirs(case, gradients, names).items()}
    found |= {f"hidden/{n}": x for n, x in enumerate(outputs["hidden_states"])} | {"logits": outputs["mlm_logits"]}
    found = {name: without_padding(name, np.asarray(x)) for name, x in found.items()} | {"loss": np.asarray(loss)}
    assert found.keys() == wanted.keys() - {"shapes"}
    errors = {}
    for name, x in found.items():
        *entries, _ = wanted[name]
        largest = wanted[re.sub("[qk]_proj.bias", "v_proj.bias", name)][-1]
        errors[name] = np.abs(sampled(name, x) - np.array(entries)).max() / largest
    for name, error in errors.items():
        limit = OF_GRADIENTS if name.startswith("gradient/") else TOLERANCE
        assert error < limit, f"{name} is off by {error:.2e} of its largest value"


SMALL = ModelConfig(
    **modern_block(6, every=2, radius=4), num_layers=6, vocab_size=67, hidden_size=32, num_heads=2, intermediate_size=24,
    max_position=64, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
"""Its loop has two layers, twice, with a layer before and one behind it."""
TWO = dataclasses.replace(SMALL, num_layers=2, layer_types=("full", "sliding"))


def tokens_of(ids: Any, sequence_ids: Any = None, positions: Any = None) -> Tokens:
    ids = np.asarray(ids, np.int32)
    columns = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    ones = np.ones_like(ids) if sequence_ids is None else np.asarray(sequence_ids, np.int32)
    return Tokens(ids, np.zeros_like(ids), columns if positions is None else np.asarray(positions, np.int32), ones)


@functools.partial(jax.jit, static_argnums=0)
def encoded(config: ModelConfig, params: Any, tokens: Tokens) -> Any:
    return Bert(config).apply({"params": params}, tokens, method="encode")[0]


def last_layer(config: ModelConfig, tokens: Tokens) -> np.ndarray:
    return np.asarray(encoded(config, drawn_parameters(config), tokens))


@pytest.mark.parametrize("window", [7, 128])
def test_a_sliding_layer_sees_exactly_half_its_window_on_each_side(window: int):
    radius, length = window // 2, window + 8
    config = dataclasses.replace(SMALL, num_layers=1, layer_types=("sliding",), sliding_radius=radius, max_position=256)
    ids = np.random.default_rng(0).integers(5, 67, (1, length))
    before = last_layer(config, tokens_of(ids))
    changed = ids.copy()
    at = length // 2
    changed[0, at] = ids[0, at] % 60 + 6
    moved = np.abs(last_layer(config, tokens_of(changed)) - before).max(-1)[0] > 0
    distance = np.abs(np.arange(length) - at)
    np.testing.assert_array_equal(moved, distance <= radius)


def test_packed_rows_equal_separate_rows():
    rng = np.random.default_rng(1)
    first, second = (rng.integers(5, 67, (1, n)) for n in (13, 19))
    together = tokens_of(
        np.concatenate([first, second, np.zeros((1, 4), int)], axis=1),
        [[1] * 13 + [2] * 19 + [0] * 4],
        [[*range(13), *range(19), *[0] * 4]],
    )
    packed = last_layer(TWO, together)[0]
    for part, ids in ((packed[:13], first), (packed[13:32], second)):
        n, room = ids.shape[1], 36 - ids.shape[1]  # as wide as the packed row, so that both are one program
        alone = last_layer(TWO, tokens_of(np.pad(ids, ((0, 0), (0, room))), [[1] * n + [0] * room]))
        np.testing.assert_allclose(part, alone[0, :n], atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "prefix", "period", "repeats"),
    [
        ({"num_layers": 22}, 1, 3, 7),
        ({"num_layers": 28}, 1, 3, 9),
        ({"num_layers": 22, "first_attention_norm": True}, 0, 3, 7),
        ({"num_layers": 12, "layer_types": ()}, 1, 1, 11),
        ({"num_layers": 12, "layer_types": (), "first_attention_norm": True}, 0, 1, 12),
        ({"num_layers": 3, "layer_types": ("full", "sliding", "full")}, 0, 1, 1),
    ],
)
def test_mixed_layers_split_into_a_prefix_a_period_and_a_remainder(changes, prefix, period, repeats):
    layers = changes["num_layers"]
    config = dataclasses.replace(SMALL, **{"layer_types": modern_block(layers)["layer_types"], **changes})
    assert loop_over(layer_kinds(config)) == Loop(prefix, period, repeats)


class Small(nn.Module):
    """A layer with one vector as its parameter, whose output depends on everything that differs between layers."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Any, tokens: Tokens, seed: Any, layer: Layer) -> Any:
        scale = parameter(self, "scale", nn.initializers.ones, ("embed",), (x.shape[-1],))
        x = dropout(x * with_leading_axes(scale, x.ndim - 1), Dropout(0.3, layer_seeds(seed, layer, 1)[0]))
        x = jnp.sin(x) if layer.kind == "sliding" else x + 1
        return x if layer.has_attention_norm else 2 * x


class OfSmallLayers(Encoder):
    block = Small


def test_an_own_block_may_return_float32_in_a_bfloat16_model():
    config = dataclasses.replace(SMALL, num_layers=2, layer_types=(), dtype="bfloat16", scan_layers=True)
    params = {"layers": {"scale": np.ones((2, 32), np.float32)}, "final_layer_norm": {"scale": np.ones(32, np.float32)}}
    x, tokens = jnp.ones((2, 5, 32), jnp.bfloat16), tokens_of(np.ones((2, 5)))
    found = jax.eval_shape(lambda: OfSmallLayers(config).apply({"params": params}, x, tokens, None))
    assert [state.dtype for state in found] == [jnp.bfloat16] * 2


class Shifted(OfSmallLayers):
    """Overrides the encoder, not only its layers."""

    def __call__(self, x: Any, tokens: Tokens, seed: Any) -> Any:
        last, layers = super().__call__(x + 1, tokens, seed)
        return 3 * last, layers


@pytest.mark.parametrize("kind", [OfSmallLayers, Shifted])
@pytest.mark.parametrize("read", [2, 5])
def test_an_own_encoder_or_block_is_read_at_the_queried_columns(kind: type[Encoder], read: int):
    config = dataclasses.replace(SMALL, num_layers=1, layer_types=())
    params = {"layers": {"scale": np.ones((1, 32), np.float32)}, "final_layer_norm": {"scale": np.ones(32, np.float32)}}
    x, tokens = np.random.default_rng(0).standard_normal((2, 5, 32), np.float32), tokens_of(np.ones((2, 5)))
    columns = jnp.array([[3, 0, 4, 1, 2][:read]] * 2)
    whole, _ = kind(config).apply({"params": params}, x, tokens, None)
    some = kind(config).apply({"params": params}, x, tokens.reading(columns), None, method="queried")
    np.testing.assert_allclose(some, np.asarray(whole)[:, columns[0]], atol=1e-6)


def loss_and_gradients(**scan: Any) -> Any:
    """Returns a loss on the outputs of all layers, and its gradients."""
    rng, encoder = np.random.default_rng(0), OfSmallLayers(dataclasses.replace(SMALL, final_norm=False, **scan))
    params = {"layers": {"scale": 1 + 0.1 * rng.standard_normal((SMALL.num_layers, 32)).astype(np.float32)}}
    x, weights = (rng.standard_normal(shape, np.float32) for shape in ((2, 5, 32), (SMALL.num_layers, 2, 5, 32)))

    def loss(params: Any) -> Any:
        last, layers = encoder.apply({"params": params}, x, tokens_of(np.ones((2, 5))), jnp.uint32(3))
        return (layers * weights).sum() + last.sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    return value, gradients["layers"]["scale"]


def test_scanning_mixed_layers_equals_applying_them_one_by_one():
    """With three layers per step, the loop of two layers is unrolled."""
    one = loss_and_gradients()
    for per_step, remat in ((1, "none"), (3, "dots")):
        other = loss_and_gradients(scan_layers=True, layers_per_scan_step=per_step, remat=remat)
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(a).max()))


def test_the_attention_norm_of_the_first_layer_is_neither_read_nor_counted():
    params = random_parameters(TWO)
    moved = flatten_dict(params, sep="/")
    moved["encoder/layers/attention_layer_norm/scale"] = moved["encoder/layers/attention_layer_norm/scale"].at[0].set(9.0)
    both = (params, unflatten_dict(moved, sep="/"))
    outputs = [encoded(TWO, p, tokens_of([[7, 8, 9] * 12])) for p in both]
    np.testing.assert_array_equal(*outputs)
    other = dataclasses.replace(SMALL, first_attention_norm=True)
    assert count_parameters(other).trained - count_parameters(SMALL).trained == SMALL.hidden_size


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_rotary_scores_depend_only_on_the_distance_and_rotate_the_documented_pairs(pairing: str):
    rng, interleaved = np.random.default_rng(0), pairing == "interleaved"
    query, key = (rng.standard_normal(8, np.float32) for _ in range(2))
    one = np.eye(8, dtype=np.float32)[0]
    x, at = np.stack([query, key, query, key, key, one])[None, :, None], jnp.array([[5, 2, 13, 10, 3, 1]])
    rotated = np.asarray(jax.jit(rotate, static_argnums=(2, 3))(x, at, 100.0, interleaved))
    query, key, other_query, other_key, nearer, turned = rotated[0, :, 0]
    assert query @ key == pytest.approx(other_query @ other_key, rel=1e-5)
    assert query @ key != pytest.approx(query @ nearer, rel=1e-3)
    np.testing.assert_allclose(turned[[0, 1 if interleaved else 4]], [np.cos(1.0), np.sin(1.0)], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "whole", "bare"),
    [
        ("modernbert-base", 149_655_232, 149_014_272),
        ("modernbert-large", 395_881_664, 394_781_696),
        ("mmbert-base", 307_786_240, None),
        ("mmbert-small", 140_897_536, None),
    ],
)
def test_published_models_have_their_published_parameter_counts(name: str, whole: int, bare: int | None):
    config = ModelConfig(**published(name))
    every = abstract_parameters(config, next_sentence=False)
    assert count_parameters(config, every).trained == whole
    if bare is not None:
        assert count_parameters(config, {part: every[part] for part in ("embeddings", "encoder")}).trained == bare


def test_parameters_start_within_the_range_of_their_initializer():
    bounds = {"bert": 0.04, "modernbert": 0.04 / 12**0.5, "uniform": 0.02}

    @jax.jit
    def draw(key: Any) -> Any:
        configs = (dataclasses.replace(SMALL, initializer=kind, scan_layers=True) for kind in (*bounds, "normal"))
        layers = [nn.unbox(initial_parameters(config, key)["encoder"]["layers"]["feed_forward"]) for config in configs]
        return [(layer["output"]["kernel"], layer["intermediate"]["kernel"]) for layer in layers]

    *bounded, (normal, _) = jax.device_get(draw(jax.random.key(0)))
    for (kind, bound), (outputs, inputs) in zip(bounds.items(), bounded, strict=True):
        assert 0.95 * bound < np.abs(outputs).max() <= bound * (1 + 1e-6), kind
        assert np.abs(inputs).max() > 0.95 * (0.02 if kind == "uniform" else 0.04), kind
    assert np.abs(normal).max() > 0.05
    assert normal.std() == pytest.approx(0.02, rel=0.05)
