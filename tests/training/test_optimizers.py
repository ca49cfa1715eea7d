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
from flax.traverse_util import unflatten_dict

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.interop.names import rows
from bert_jax.model.characters import CharacterCnn, piece_symbols
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.layers import VOCABULARY_ARRAYS
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training import OPTIMIZERS
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import Parameter, decayed, described, layerwise_trust_ratio, make_optimizer
from tests.golden import make_stable_adamw
from tests.random_features import HEADS, LABELS
from tests.random_rows import TINY, boxed, largest_difference, random_parameters

STEPS = 5


def gradients(params, step):
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), params)


def run(optimizer, params, rate=0.1, place=lambda tree: tree):
    """Returns parameters after a few updates with random gradients. `place` puts all arrays on their devices."""

    @jax.jit
    def update(params, state, grads):
        direction, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, d: p - rate * d, params, direction), state

    state = jax.jit(optimizer.init)(params)
    params = place(params)
    for step in range(STEPS):
        params, state = update(params, state, place(gradients(params, step)))
    assert int(state[0].count) == STEPS
    return params


def run_optax(optimizer, params, split=lambda tree: tree):
    """Returns the parameters after the same steps with an optimizer of optax, which applies the learning rate itself. `split` is
    applied to the parameters first."""

    @jax.jit
    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    expected = split(params)
    state = jax.jit(optimizer.init)(expected)
    for step in range(STEPS):
        expected, state = update(expected, state, split(gradients(params, step)))
    return expected


def few_parameters():
    """Returns a table, and kernels, biases and LayerNorms in stacked layers and outside of them: each array costs compiling."""
    whole = random_parameters()
    layers = {name: whole["encoder"]["layers"][name] for name in ("feed_forward", "feed_forward_layer_norm")}
    words = {"word_embeddings": whole["embeddings"]["word_embeddings"]}
    return {"embeddings": words, "encoder": {"layers": layers}, "pooler": whole["pooler"]}


def test_bert_adam_equals_the_original_update_in_numpy():
    params = {"layer": {"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3, np.float32)}}
    ours = run(make_optimizer(OptimizerConfig(), boxed(params)), jax.tree.map(jnp.asarray, params))
    for name, decay in (("kernel", 0.01), ("bias", 0.0)):
        p, m, v = params["layer"][name].astype(np.float64), 0.0, 0.0
        for step in range(STEPS):
            g = np.asarray(gradients(params, step)["layer"][name], np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - 0.1 * (m / (np.sqrt(v) + 1e-6) + decay * p)  # no bias correction, decoupled decay
        np.testing.assert_allclose(ours["layer"][name], p, rtol=1e-5)


def test_adamw_equals_optax_with_decay_on_kernels_and_embeddings_only():
    params = few_parameters()
    config = OptimizerConfig(name="adamw", epsilon=1e-8, weight_decay=0.1)
    theirs = optax.adamw(0.1, eps=1e-8, weight_decay=0.1, mask=decayed(described(boxed(params))))
    assert largest_difference(run_optax(theirs, params), run(make_optimizer(config, boxed(params)), params)) < 1e-5


def test_lamb_equals_optax_applied_to_each_layer():
    params = few_parameters()
    ours = run(make_optimizer(OptimizerConfig(name="lamb"), boxed(params)), params)

    def split(tree):
        """Returns stacked layers as separate arrays, so that optax takes one norm per layer."""
        layers = tree["encoder"]["layers"]
        number = jax.tree.leaves(layers)[0].shape[0]
        return {**tree, "encoder": [jax.tree.map(operator.itemgetter(n), layers) for n in range(number)]}

    mask = split(jax.tree.map(lambda p, d: np.full(p.shape[:1], d), params, decayed(described(boxed(params)))))
    mask = jax.tree.map(lambda x: bool(np.asarray(x).reshape(-1)[0]), mask)
    theirs = optax.lamb(0.1, eps=1e-6, weight_decay=0.01, mask=mask)
    assert largest_difference(run_optax(theirs, params, split), split(ours)) < 1e-5


def test_the_trust_ratio_uses_the_norms_of_each_layer_and_is_one_if_either_is_zero():
    weights = {"layers": {"kernel": np.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]], np.float32)}, "bias": np.float32([0.06, 0.08])}
    updates = {"layers": {"kernel": np.array([[0.0, 0.5], [0.6, 0.8], [0.0, 0.0]], np.float32)}, "bias": np.float32([0.5, 0.0])}
    scale = layerwise_trust_ratio(described(boxed(weights))).update
    found, _ = jax.jit(scale)(updates, optax.EmptyState(), weights)
    np.testing.assert_allclose(found["layers"]["kernel"], [[0.0, 5.0], [0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(found["bias"], [0.1, 0.0], rtol=1e-6)


AUTHORS = np.load(make_stable_adamw.GOLDEN)


def stacked_tree(arrays):
    numbers = range(make_stable_adamw.LAYERS)
    layers = {path: np.stack([arrays[f"{n}/{path}"] for n in numbers]) for path in make_stable_adamw.SHAPES}
    return {
        "embeddings": {"word_embeddings": {"embedding": arrays["table"]}},
        "encoder": {"layers": unflatten_dict(layers, sep="/")},
    }


def unstacked_tree(arrays):
    tree = stacked_tree(arrays)
    layers = range(make_stable_adamw.LAYERS)
    return tree | {"encoder": {f"layer_{n}": jax.tree.map(operator.itemgetter(n), tree["encoder"]["layers"]) for n in layers}}


def stable(tree_of, run):
    """Returns the parameters after the authors' 50 steps, as float64."""
    decay, decoupled = make_stable_adamw.RUNS[run]
    b1, b2 = make_stable_adamw.BETAS
    phase = {"steps": make_stable_adamw.STEPS, "learning_rate": make_stable_adamw.PEAK}
    settings = {"name": "stable_adamw", "b1": b1, "b2": b2, "epsilon": make_stable_adamw.EPSILON, "weight_decay": decay}
    experiment = PretrainingExperiment.from_dict({"optimizer": settings | {"decouple_rate": decoupled}, "phases": [phase]})
    params = tree_of(make_stable_adamw.random_arrays(0))
    optimizer = make_optimizer(experiment.for_phase(0).optimizer, boxed(params))

    @jax.jit
    def update(params, state, grads, rate):
        direction, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, d: p - rate * d, params, direction), state

    state = jax.jit(optimizer.init)(params)
    for step in range(make_stable_adamw.STEPS):
        params, state = update(params, state, tree_of(make_stable_adamw.gradients(step)), make_stable_adamw.rate(step))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


@pytest.mark.parametrize(
    ("tree_of", "run"), [*((stacked_tree, run) for run in make_stable_adamw.RUNS), (unstacked_tree, "decoupled")]
)
def test_stable_adamw_equals_its_authors_with_and_without_stacked_layers(tree_of, run):
    """The authors have query, key and value, and the halves of the gated feed-forward, in one tensor each."""
    authors = tree_of({name: AUTHORS[f"{run}/{name}"].astype(np.float64) for name in make_stable_adamw.random_arrays(0)})
    assert largest_difference(authors, stable(tree_of, run)) < 1e-6


def test_stable_adamw_does_not_clip_gradients_below_its_epsilon():
    """A first gradient of 0 makes g^2 / v about 2 in the second step, but v counts as at least epsilon^2."""
    params = {"kernel": np.ones(4, np.float32)}
    optimizer = make_optimizer(OptimizerConfig(name="stable_adamw", weight_decay=0.0), boxed(params))

    @jax.jit
    def last(gradients):
        _, state = optimizer.update({"kernel": gradients[0]}, optimizer.init(params), params)
        return optimizer.update({"kernel": gradients[1]}, state, params)[0]

    direction = last(np.full((2, 4), [[0.0], [1e-7]], np.float32))
    mean, square = 0.1 * 1e-7 / (1 - 0.9**2), 0.001 * 1e-14 / (1 - 0.999**2)
    np.testing.assert_allclose(direction["kernel"], np.full(4, mean / (np.sqrt(square) + 1e-6)), rtol=1e-3)


def test_the_norms_of_optimizers_are_the_same_with_sharded_arrays():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))

    def place(tree):
        def spread(x):
            axes, free = [None] * x.ndim, ["data", "fsdp", "tensor"]
            for d, size in enumerate(x.shape):
                if free and size % 2 == 0:
                    axes[d] = free.pop()
            return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes)))

        return jax.tree.map(spread, tree)

    tree = stacked_tree(make_stable_adamw.random_arrays(0))
    layers = {"attention": {name: tree["encoder"]["layers"]["attention"][name] for name in ("query", "key")}}
    params = tree | {"encoder": {"layers": layers}}  # an array, and a group that StableAdamW treats as one
    for name in ("lamb", "stable_adamw"):
        optimizer = make_optimizer(OptimizerConfig(name=name), boxed(params))
        assert largest_difference(run(optimizer, params), run(optimizer, params, place=place)) < 1e-6


EXCLUDED = ("LayerNorm", "layer_norm", "bias")
"""`exclude_from_weight_decay` in google-research/bert `optimization.py`, which searches names for these patterns."""

DECAYED = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "weight_decay.json").read_text())
"""Whether weight decay applies, by the path of every parameter of every head."""


def other_models():
    """Returns the models other than BERT, with every parameter that any of them has."""
    bilm = dataclasses.replace(TINY, encoder="bilm", tied_decoder=False, character_cnn=True)
    flair = dataclasses.replace(bilm, encoder="flair", character_cnn=False)
    cove = dataclasses.replace(TINY, encoder="cove", decoder_layers=2, tied_decoder=False)
    static = dataclasses.replace(TINY, encoder="static", num_layers=0)
    translator = ModelConfig(**published("transformer_base") | {"num_layers": 1, "decoder_layers": 1, "tied_decoder": False})
    return bilm, flair, cove, static, translator


@functools.cache
def every_parameter():
    """Returns two mappings for each head and encoder from our path of every parameter: whether it decays, and the name of its
    tensor in the Hugging Face format, which contains the original's words. Models with heads have a tensor for every parameter,
    so they are not traced."""
    found = []
    untied = dataclasses.replace(TINY, tied_decoder=False, num_layers=4)
    heads = {
        **HEADS,
        "scalar_mix": TokenHead(labels=LABELS, layers="scalar_mix", lstm=8),
        "concat": SequenceHead(labels=LABELS, pooling="concat"),
        "crf": TokenHead(labels=("O", "B-X", "I-X"), crf="iob2"),
    }
    for config, head in [(untied, None), *((untied, head) for head in heads.values()), *((c, None) for c in other_models())]:
        foreign = {row.ours: row.theirs for row in rows(config, head)}
        if config is untied:
            tree = jax.tree.map(lambda _: Parameter((), ()), unflatten_dict(foreign, sep="/"))
        else:
            tree = described(abstract_parameters(config, next_sentence=False))
        flags = jax.tree_util.tree_leaves_with_path(decayed(tree))
        found.append(({"/".join(key.key for key in path): flag for path, flag in flags}, foreign))
    return found


def test_weight_decay_of_every_parameter_equals_the_golden_list():
    found = {}
    for flags, _ in every_parameter():
        found |= flags
    # the test below covers heads that are not in the golden list
    assert {path: flag for path, flag in found.items() if path in DECAYED} == DECAYED


def test_norms_of_a_user_encoder_do_not_decay_whatever_their_names():
    config = dataclasses.replace(TINY, encoder="experiments/extensions/fourier.py:Fourier")
    flags = jax.tree_util.tree_leaves_with_path(decayed(described(abstract_parameters(config))))
    own = {path[-2].key + "/" + path[-1].key: flag for path, flag in flags if "mixing_norm" in str(path)}
    assert {*own} == {f"mixing_norm_{n}/{name}" for n in range(TINY.num_layers) for name in ("scale", "bias")}
    assert not any(own.values())
    assert {path[-1].key for path, flag in flags if flag} == {"kernel", "embedding"}


def test_weight_decay_equals_the_exclusion_list_of_the_original():
    for flags, foreign in every_parameter():
        trained = {path: flag for path, flag in flags.items() if path.split("/")[-1] not in VOCABULARY_ARRAYS}
        assert trained == {path: not any(re.search(name, foreign[path]) for name in EXCLUDED) for path in trained}


def test_arrays_derived_from_the_vocabulary_never_decay():
    found = [(path, flag) for flags, _ in every_parameter() for path, flag in flags.items()]
    facts = [(path, flag) for path, flag in found if path.split("/")[-1] in VOCABULARY_ARRAYS]
    assert [path for path, _ in facts] == [
        "embeddings/characters/symbols",
        "encoder/word_starts",
        "skip_gram_head/counts",
        "lm_head/final_logits_bias",
    ]
    assert not any(flag for _, flag in facts)


def test_no_optimizer_changes_arrays_without_gradients_and_decay():
    params = {name: np.full((2, 3), 0.01, np.float32) for name in (*VOCABULARY_ARRAYS, "kernel")}
    gradients = jax.tree.map(np.zeros_like, params) | {"kernel": params["kernel"]}

    @jax.jit
    def directions(gradients):
        optimizers = (make_optimizer(OptimizerConfig(name=name), boxed(params)) for name in OPTIMIZERS)
        return [optimizer.update(gradients, optimizer.init(params), params)[0] for optimizer in optimizers]

    for direction in directions(gradients):
        assert {name for name, x in direction.items() if np.any(x)} == {"kernel"}


def test_the_characters_of_words_have_no_gradient():
    config = dataclasses.replace(TINY, encoder="bilm", tied_decoder=False, character_cnn=True)
    shapes = nn.unbox(abstract_parameters(config, next_sentence=False))["embeddings"]["characters"]
    params = jax.tree.map(lambda x: np.full(x.shape, 0.01, x.dtype), shapes)
    symbols = piece_symbols(["the", "river"], len(shapes["symbols"]))
    ids = np.arange(2, dtype=np.int32)[None]
    vectors = jax.grad(lambda x, params, ids: CharacterCnn(config).apply({"params": params | {"symbols": x}}, ids).sum())
    assert not np.any(jax.jit(vectors)(symbols, params, ids))


@pytest.mark.parametrize(("field", "value"), [("name", "adm"), ("b1", 1.0), ("weight_decay", -0.1)])
def test_an_impossible_optimizer_is_refused_with_the_key(field, value):
    with pytest.raises(UserError, match=f"optimizer.{field}"):
        OptimizerConfig(**{field: value})
