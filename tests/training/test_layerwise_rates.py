from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.data.rows import assemble_features, pack_features, row_shape
from bert_jax.errors import UserError
from bert_jax.objectives.labels import LabelLoss, Labels
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.layerwise_rates import depths, learning_rate_multipliers
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import new_state
from tests.random_features import HEADS, LAYOUTS, random_features, random_label_parameters
from tests.random_rows import TINY, boxed, program_for

HEAD = HEADS["sequence"]
LAYERS = 3
CONFIG = dataclasses.replace(TINY, num_layers=LAYERS, scan_layers=True)
RATE = 1e-2


@functools.cache
def parameters():
    return random_label_parameters(HEAD, CONFIG)


@functools.cache
def compiled_step():
    """Returns ((state, batch, factors of the rates) -> (state, sums), compiled, with weight decay and clipped gradients; the
    first state)."""
    optimizer = make_optimizer(OptimizerConfig(weight_decay=0.3), boxed(parameters()))
    objective = Labels(CONFIG, HEAD, LabelLoss())

    @jax.jit
    def step(state, batch, factors):
        program = program_for(objective, optimizer, lambda *_: jnp.float32(RATE), learning_rate_multipliers=lambda _: factors)
        return program.train_step(state, batch, {"seed": np.uint32(0)})

    return step, jax.jit(new_state, static_argnums=1)(parameters(), optimizer)


@functools.cache
def batch():
    features = random_features("sequence", 12)
    shape = row_shape(features, LAYOUTS["sequence"])
    return assemble_features(features, pack_features(features, shape), 6, shape, 0)


def neutral():
    return jax.tree.map(np.ones_like, depths(parameters()))


def updates(before, after) -> dict[str, np.ndarray]:
    """Returns what a step has added to every parameter: float64 by path, with separate layers ("encoder/2/...", counted from 1 at
    the bottom)."""
    found = {}
    for path, x in flatten_dict(jax.tree.map(lambda a, b: np.float64(b) - np.float64(a), before, after), sep="/").items():
        if path.startswith("encoder/layers/"):
            found |= {path.replace("layers", str(i + 1), 1): x[i] for i in range(LAYERS)}
        else:
            found[path] = x
    return found


def depth_of(path: str) -> int:
    """Returns how far below the head a parameter is, from its name alone."""
    part, layer, *_ = path.split("/")
    return {"embeddings": LAYERS + 1, "encoder": LAYERS + 1 - int(layer) if layer.isdigit() else 0}.get(part, 0)


def test_depths_count_from_the_head_down_to_the_embeddings():
    below, params = depths(parameters()), parameters()
    spread = updates(jax.tree.map(np.zeros_like, params), jax.tree.map(lambda d, x: np.broadcast_to(d, x.shape), below, params))
    assert all((x == depth_of(path)).all() for path, x in spread.items())
    assert {depth_of(path) for path in spread} == {0, 1, 2, 3, 4}


def test_static_vectors_have_depth_one():
    found = depths({"embeddings": {"words": np.zeros((3, 2))}, "skip_gram_head": {"bias": np.zeros(3)}})
    assert found["embeddings"]["words"].tolist() == [[1.0]]
    assert found["skip_gram_head"]["bias"].tolist() == [0.0]


@pytest.mark.parametrize("setting", [{"decay": 0.5}, {"unfreeze_every": 3}])
def test_depths_of_an_encoder_without_stacked_layers_are_refused(setting):
    own = {**parameters(), "encoder": {"mixing_0": parameters()["encoder"]["layers"]}}
    with pytest.raises(UserError, match=r"not stacked over layers in encoder/layers \(the first one is encoder/mixing_0/"):
        learning_rate_multipliers(own, **setting)
    assert learning_rate_multipliers(own, frozen=("encoder",)) is not None
    assert learning_rate_multipliers({"embeddings": own["embeddings"]}, **setting) is not None


def test_every_factor_has_as_many_axes_as_its_parameter():
    factors = learning_rate_multipliers(parameters(), decay=0.5, unfreeze_every=3)(jnp.int32(4))
    assert all(jax.tree.leaves(jax.tree.map(lambda f, x: jnp.ndim(f) == x.ndim, factors, parameters())))


def test_neutral_settings_add_no_factors():
    assert learning_rate_multipliers(parameters()) is None


def test_layer_decay_scales_the_update_of_each_layer():
    """Weight decay is a part of the update."""
    step, first = compiled_step()
    whole, _ = step(first, batch(), neutral())
    less, _ = step(first, batch(), learning_rate_multipliers(parameters(), decay=0.5)(jnp.int32(0)))
    full, decayed = updates(parameters(), whole.params), updates(parameters(), less.params)
    for path, x in full.items():
        np.testing.assert_allclose(decayed[path], 0.5 ** depth_of(path) * x, atol=1e-6, err_msg=path)
        assert np.abs(x).max() > 1e-4 or path.endswith("key/bias"), path  # a key's bias has no gradient


def test_only_frozen_parts_do_not_change():
    step, first = compiled_step()
    factors = learning_rate_multipliers(parameters(), frozen=("embeddings", "encoder"))(jnp.int32(0))
    state = first
    for _ in range(2):
        state, sums = step(state, batch(), factors)
    moved = {path: bool(np.any(x)) for path, x in updates(parameters(), state.params).items()}
    assert moved == {path: path.split("/")[0] in ("pooler", "sequence_head") for path in moved}
    assert float(sums["grad_norm"]) > 0


def test_the_gradient_norm_covers_only_trained_parameters():
    """Otherwise clipping would depend on layers that do not move."""
    step, first = compiled_step()
    _, whole = step(first, batch(), neutral())
    factors = learning_rate_multipliers(parameters(), frozen=("embeddings", "encoder"))(jnp.int32(0))
    state, sums = step(first, batch(), factors)
    first_moments = {part: state.opt_state[0].mu[part] for part in ("pooler", "sequence_head")}
    clipped = np.sqrt(sum((np.float64(m) ** 2).sum() for m in jax.tree.leaves(first_moments))) / 0.1  # 1 - b1
    assert 0 < float(sums["grad_norm"]) < float(whole["grad_norm"])
    assert clipped == pytest.approx(min(1.0, float(sums["grad_norm"])), rel=1e-4)


def test_lstm_layers_have_depths_like_transformer_layers():
    """ULMFiT's rates and its gradual unfreezing therefore apply to either encoder."""
    lstm = dataclasses.replace(CONFIG, encoder="bilm", direction="left_to_right", scan_layers=False)
    params = random_label_parameters(dataclasses.replace(HEAD, pooling="concat"), lstm)
    found = flatten_dict(depths(params), sep="/")
    layers = [x for path, x in found.items() if path.startswith("encoder/layers/")]
    assert layers
    assert all(np.ravel(x).tolist() == [3.0, 2.0, 1.0] for x in layers)
    assert {float(x.max()) for path, x in found.items() if path.startswith("embeddings/")} == {4.0}
    assert {float(x.max()) for path, x in found.items() if path.startswith("sequence_head/")} == {0.0}


def test_crf_transitions_have_their_own_rate():
    params = random_label_parameters(dataclasses.replace(HEADS["token"], crf="free"), CONFIG)
    factors = learning_rate_multipliers(params, decay=0.5, crf_multiplier=100.0)
    assert factors is not None
    found = flatten_dict(factors(jnp.int32(0))["token_head"], sep="/")
    assert {path: float(x.max()) for path, x in found.items()} == {
        path: 100.0 if path.startswith("crf/") else 1.0 for path in found
    }


def test_gradual_unfreezing_thaws_one_layer_per_epoch_from_the_top():
    step, first = compiled_step()
    steps_per_epoch = 2
    factors = learning_rate_multipliers(parameters(), unfreeze_every=steps_per_epoch)
    state = first
    for number in range(steps_per_epoch * (LAYERS + 2)):
        before = state.params
        state, _ = step(state, batch(), factors(jnp.int32(number)))
        epoch = number // steps_per_epoch
        moved = {path: bool(np.any(x)) for path, x in updates(before, state.params).items() if not path.endswith("key/bias")}
        assert moved == {path: depth_of(path) <= epoch for path in moved}, number


def test_unfreezing_and_decay_can_be_combined():
    factors = learning_rate_multipliers(parameters(), decay=0.5, unfreeze_every=10)(jnp.int32(25))
    kernel = factors["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    np.testing.assert_array_equal(np.ravel(kernel), [0.0, 0.25, 0.5])  # the first layer is frozen until step 30
    assert float(factors["sequence_head"]["dense"]["bias"][0]) == 1.0
    assert not np.any(factors["embeddings"]["word_embeddings"]["embedding"])
