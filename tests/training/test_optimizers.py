from __future__ import annotations

import dataclasses
import functools
import json
import operator
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.errors import UserError
from bert_jax.heads.bert_with_head import initial_label_parameters
from bert_jax.heads.sequence import SequenceHead
from bert_jax.heads.token import TokenHead
from bert_jax.interop.names import rows
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.training.optimizers import OptimizerConfig, decayed, make_optimizer
from tests.random_features import HEADS, LABELS
from tests.random_rows import TINY, largest_difference, random_parameters

STEPS = 5


def gradients(params, step):
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), params)


def run(optimizer, params, rate=0.1):
    """Parameters after a few updates with random gradients."""

    @jax.jit
    def update(params, state, grads):
        direction, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, d: p - rate * d, params, direction), state

    state = jax.jit(optimizer.init)(params)
    for step in range(STEPS):
        params, state = update(params, state, gradients(params, step))
    return params


def run_optax(optimizer, params, split=lambda tree: tree):
    """The same with an optimizer of optax, whose updates have their rate in them, on `split(params)`."""

    @jax.jit
    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    expected = split(params)
    state = jax.jit(optimizer.init)(expected)
    for step in range(STEPS):
        expected, state = update(expected, state, split(gradients(params, step)))
    return expected


def test_bert_adam_is_the_originals_update_written_out_in_numpy():
    params = {"layer": {"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3, np.float32)}}
    ours = run(make_optimizer(OptimizerConfig(), params), jax.tree.map(jnp.asarray, params))
    for name, decay in (("kernel", 0.01), ("bias", 0.0)):
        p, m, v = params["layer"][name].astype(np.float64), 0.0, 0.0
        for step in range(STEPS):
            g = np.asarray(gradients(params, step)["layer"][name], np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - 0.1 * (m / (np.sqrt(v) + 1e-6) + decay * p)  # no bias correction, decoupled decay
        np.testing.assert_allclose(ours["layer"][name], p, rtol=1e-5)


def test_adamw_is_optax_adamw_with_decay_on_kernels_and_embeddings_only():
    params = random_parameters()
    config = OptimizerConfig(name="adamw", epsilon=1e-8, weight_decay=0.1)
    theirs = optax.adamw(0.1, eps=1e-8, weight_decay=0.1, mask=decayed(params))
    assert largest_difference(run_optax(theirs, params), run(make_optimizer(config, params), params)) < 1e-5


def test_lamb_is_optax_lamb_applied_to_every_layer_apart():
    params = random_parameters()
    ours = run(make_optimizer(OptimizerConfig(name="lamb"), params), params)

    def split(tree):
        """Stacked layers as separate arrays, so that optax takes one norm per layer."""
        layers = tree["encoder"]["layers"]
        number = jax.tree.leaves(layers)[0].shape[0]
        return {**tree, "encoder": [jax.tree.map(operator.itemgetter(n), layers) for n in range(number)]}

    mask = split(jax.tree.map(lambda p, d: np.full(p.shape[:1], d), params, decayed(params)))
    mask = jax.tree.map(lambda x: bool(np.asarray(x).reshape(-1)[0]), mask)
    theirs = optax.lamb(0.1, eps=1e-6, weight_decay=0.01, mask=mask)
    assert largest_difference(run_optax(theirs, params, split), split(ours)) < 1e-5


EXCLUDED = ("LayerNorm", "layer_norm", "bias")
"""`exclude_from_weight_decay` of google-research/bert `optimization.py`, which searches names for these patterns."""

DECAYED = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "weight_decay.json").read_text())
"""Whether it decays, by the path of every parameter of every head."""


def every_parameter():
    """(our path, the name of its tensor in the Hugging Face format, which has the original's words) of every head."""
    untied = dataclasses.replace(TINY, tied_decoder=False, num_layers=4)
    heads = {
        **HEADS,
        "scalar_mix": TokenHead(labels=LABELS, layers="scalar_mix", lstm=8),
        "concat": SequenceHead(labels=LABELS, pooling="concat"),
    }
    for head in (None, *heads.values()):
        if head is None:
            tree = abstract_parameters(untied)
        else:
            tree = jax.eval_shape(functools.partial(initial_label_parameters, untied, head), jax.random.key(0))
        foreign = {row.ours: row.theirs for row in rows(untied, head)}
        flags = jax.tree_util.tree_leaves_with_path(decayed(nn.unbox(tree)))
        yield {"/".join(key.key for key in path): flag for path, flag in flags}, foreign


def test_every_parameter_of_every_head_decays_as_the_golden_list_says():
    found = {}
    for flags, _ in every_parameter():
        found |= flags
    assert {path: flag for path, flag in found.items() if path in DECAYED} == DECAYED  # of heads added since, the test below


def test_what_decays_is_what_the_originals_exclusion_list_leaves():
    for flags, foreign in every_parameter():
        assert flags == {path: not any(re.search(name, foreign[path]) for name in EXCLUDED) for path in flags}


@pytest.mark.parametrize(("field", "value"), [("name", "adm"), ("b1", 1.0), ("weight_decay", -0.1)])
def test_an_impossible_optimizer_is_an_error_naming_the_key(field, value):
    with pytest.raises(UserError, match=f"optimizer.{field}"):
        OptimizerConfig(**{field: value})
