"""experiments/extensions/muon.py, and the contract of any optimizer in a user's own file: what it gets, what it returns, and why
it is rejected."""

from __future__ import annotations

import dataclasses
import functools
import operator
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.model.heads.bert_with_head import initial_label_parameters
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import projection_parameters
from bert_jax.objectives.model import dense
from bert_jax.pretraining.program import pretraining_program
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import Parameter, described, make_optimizer
from tests.random_features import HEADS
from tests.random_rows import TINY, random_parameters

MUON = str(pathlib.Path(__file__).parents[2] / "experiments" / "extensions" / "muon.py") + ":muon"
CONFIG = OptimizerConfig(name=MUON, weight_decay=0.1)


def axes(tree):
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def test_an_optimizer_gets_the_input_and_output_dimensions_of_kernels():
    found = {path: p.axes for path, p in axes(described(abstract_parameters(TINY))).items()}
    layer = "encoder/layers"
    assert found[f"{layer}/attention/query/kernel"] == ("layer", "in", "out", "out")
    assert found[f"{layer}/attention/output/kernel"] == ("layer", "in", "in", "out")
    assert found[f"{layer}/feed_forward/intermediate/kernel"] == ("layer", "in", "out")
    assert found[f"{layer}/feed_forward/intermediate/bias"] == ("layer", "mlp")
    assert found[f"{layer}/attention_layer_norm/scale"] == ("layer", "norm")
    assert found["embeddings/word_embeddings/embedding"] == ("vocab", "embed")
    assert found["pooler/dense/kernel"] == ("in", "out")


@pytest.mark.parametrize("name", ["bilm", "left_to_right", "lstm_head"])
def test_every_kernel_of_an_lstm_is_a_matrix_for_each_direction(name: str):
    if name == "lstm_head":
        head = dataclasses.replace(HEADS["token"], lstm=8)
        boxed = jax.eval_shape(functools.partial(initial_label_parameters, TINY, head), jax.random.key(0))
    else:
        config = dataclasses.replace(TINY, encoder="bilm", direction="both" if name == "bilm" else name, tied_decoder=False)
        boxed = abstract_parameters(config, next_sentence=False)
    kernels = {path: p for path, p in axes(described(boxed)).items() if path.endswith("kernel")}
    assert all({"in", "out"} <= set(p.axes) and len(p.axes) == len(p.shape) for p in kernels.values())
    outputs = {"recurrence": 2, "input": 2, "projection": 1}  # gates and their width
    outputs |= {"lower_input": 3, "upper_input": 3, "lower_recurrence": 2, "upper_recurrence": 2}  # both directions
    found = {path.split("/")[-2]: kernel.axes for path, kernel in kernels.items() if path.split("/")[-2] in outputs}
    assert len(found) == (4 if name == "lstm_head" else 3)
    for kind, names in found.items():
        assert [axis for axis in names if axis in ("in", "out")] == ["in", *["out"] * outputs[kind]], kind


def test_the_kernels_of_a_decoder_of_a_projection_and_of_an_objectives_own_layer_are_matrices():
    cove = dataclasses.replace(TINY, encoder="cove", decoder_layers=1)
    found = axes(described(abstract_parameters(cove)))
    assert found["decoder/feed"].axes == ("in", "out", "out")
    assert found["decoder/query/kernel"].axes == found["decoder/output/kernel"].axes == ("in", "out")
    settings = PretrainingDistillation(hidden_weight=1.0, teacher_width=24)
    boxed = jax.eval_shape(lambda: projection_parameters(settings, 16, jax.random.key(0)))
    assert [p.axes for p in axes(described(boxed)).values()] == [("in", "out")]
    own = jax.eval_shape(lambda: dense(16, 2, jax.random.key(0)))
    assert {name: p.axes for name, p in axes(described(own)).items()} == {"kernel": ("in", "out"), "bias": ("",)}
    assert (own["kernel"].names, own["kernel"].value.shape) == (("embed", None), (16, 2)), "the sharding stays the same"


def few(tree):
    """Returns a table, and of each kind of array in stacked layers and outside of them: every array costs compiling."""
    layers = {name: tree["encoder"]["layers"][name] for name in ("attention", "attention_layer_norm", "feed_forward")}
    layers["attention"] = {name: layers["attention"][name] for name in ("query", "output")}
    layers["feed_forward"] = {"intermediate": layers["feed_forward"]["intermediate"]}
    words = {"word_embeddings": tree["embeddings"]["word_embeddings"]}
    return {"embeddings": words, "encoder": {"layers": layers}, "pooler": tree["pooler"]}


def directions(config, boxed, params, steps=3):
    """Returns the direction after a few steps, whose gradients are random functions of the path and the step alone."""
    optimizer = make_optimizer(config, boxed)
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for step in range(steps):
        grads = few(random_parameters(seed=step + 1))
        direction, state = update(grads if "layers" in params["encoder"] else unstacked(grads), state, params)
    return direction


@functools.cache
def directions_of_stacks():
    return directions(CONFIG, few(abstract_parameters(TINY)), few(random_parameters()))


def unstacked(tree, take=operator.itemgetter):
    """Returns the layers of an encoder as separate trees."""
    layers = tree["encoder"]["layers"]
    return {**tree, "encoder": {f"layer_{n}": jax.tree.map(take(n), layers) for n in range(TINY.num_layers)}}


def test_stacked_layers_are_orthogonalised_like_separate_layers():
    boxed, params = few(abstract_parameters(TINY)), few(random_parameters())

    def layer(n):
        def take(box):
            return box.replace(value=jax.ShapeDtypeStruct(box.value.shape[1:], box.value.dtype), names=box.names[1:])

        return take

    is_box = lambda x: isinstance(x, nn.Partitioned)  # noqa: E731
    layers = boxed["encoder"]["layers"]
    apart = {f"layer_{n}": jax.tree.map(layer(n), layers, is_leaf=is_box) for n in range(TINY.num_layers)}
    stacked = unstacked(directions_of_stacks())
    alone = directions(CONFIG, {**boxed, "encoder": apart}, unstacked(params))
    for path, x in axes(alone).items():
        np.testing.assert_allclose(axes(stacked)[path], x, rtol=0, atol=1e-6, err_msg=path)
    kernel = np.asarray(alone["encoder"]["layer_1"]["attention"]["query"]["kernel"], np.float64)
    weights = np.asarray(params["encoder"]["layers"]["attention"]["query"]["kernel"][1], np.float64)
    singular = np.linalg.svd((kernel - 0.1 * weights).reshape(16, 16), compute_uv=False) / (0.2 * 16**0.5)
    np.testing.assert_allclose(singular, 1.0, atol=0.5)  # Newton-Schulz brings them near 1


def test_other_parameters_get_adam_and_biases_and_layer_norms_do_not_decay():
    found, boxed = directions_of_stacks(), few(abstract_parameters(TINY))
    wanted = directions(OptimizerConfig(name="adamw", weight_decay=0.1), boxed, few(random_parameters()))
    for path, p in axes(described(boxed)).items():
        same = np.allclose(axes(found)[path], axes(wanted)[path], rtol=1e-5, atol=1e-7)
        assert same != ({"in", "out"} <= set(p.axes)), path


@pytest.mark.parametrize("mesh", [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)], ids=["zero", "2x2x2"])
def test_the_state_of_any_optimizer_is_sharded_like_its_parameters(mesh: MeshConfig):
    model = dataclasses.replace(TINY, vocab_size=4096, num_heads=4, hidden_size=256, intermediate_size=512)
    experiment = PretrainingExperiment(model=model, optimizer=CONFIG, mesh=mesh, phases=(PhaseConfig(steps=1),))
    shardings = pretraining_program(experiment, make_mesh(mesh)).shardings
    state = axes(shardings.opt_state)
    for path, sharding in axes(shardings.params).items():
        own = [x.spec for name, x in state.items() if name.endswith(path)]
        assert own, path
        assert all(spec == sharding.spec for spec in own), path
    split = [x.spec for name, x in state.items() if name.endswith(("query/kernel", "word_embeddings/embedding"))]
    assert all(any(axis is not None for axis in spec) for spec in split)
    assert not any(state[name].spec for name in state if name.endswith(("count", "ns_coeffs")))


OWN = """
import dataclasses
import jax
import jax.numpy as jnp
import optax
@dataclasses.dataclass
class Signs:
    def __call__(self, config, parameters): return optax.scale_by_sign()
signs = Signs()
def secant(config, parameters):
    def update(g, s, p): return jax.tree.map(lambda x, old: x / jnp.linalg.norm(x - old), g, s), g
    return optax.GradientTransformation(lambda p: jax.tree.map(jnp.zeros_like, p), update)
def large(config, parameters): return optax.scale(1e6)
def sign(config, parameters): return optax.scale_by_sign()
def whole(config, parameters): return optax.adamw(optax.linear_schedule(0.0, 1e-3, 100))
def of_biases(config, parameters):
    labels = jax.tree.map(lambda p: "matrix" if "in" in p.axes else "other", parameters)
    return optax.partition({"matrix": optax.scale_by_adam(), "other": optax.sgd(1e-3)}, labels)
def divides(config, parameters): return optax.stateless(lambda g, p: jax.tree.map(lambda x: x / (x - x), g))
def number(config, parameters): return 3
def fails(config, parameters): return parameters["nowhere"]
def fails_later(config, parameters): return optax.GradientTransformation(lambda p: (), lambda g, s, p: g["nowhere"])
def one(config, parameters): return optax.GradientTransformation(lambda p: (), lambda g, s, p: (3.0, s))
def sums(config, parameters): return optax.stateless(lambda g, p: jax.tree.map(lambda x: x.sum(), g))
def noisy(config, parameters): return optax.add_noise(0.1, 0.5, key=3)
def partition(config, parameters): return optax.partition({"a": optax.identity()}, lambda p: jax.tree.map(lambda x: "b", p))
def plateau(config, parameters): return optax.contrib.reduce_on_plateau()
def free(config, parameters): return optax.chain(optax.contrib.schedule_free(optax.sgd(1.0), 1.0))
def more(config, parameters): return optax.GradientTransformation(lambda p: (0,), lambda g, s, p: (g, (*s, 0)))
def half(config, parameters): return optax.GradientTransformation(lambda p: {"n": 0}, lambda g, s, p: (g, {"n": s["n"] / 2}))
"""


def boxed_vector():
    return nn.LogicallyPartitioned(jax.ShapeDtypeStruct((3,), jnp.float32), (None,))


@pytest.fixture
def own(tmp_path: pathlib.Path) -> str:
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path}/mine.py"


def test_weight_decay_is_added_to_the_directions_of_any_optimizer(own: str):
    params, boxed = ({"pooler": tree["pooler"]} for tree in (random_parameters(), abstract_parameters(TINY)))
    optimizer = make_optimizer(OptimizerConfig(name=f"{own}:sign", weight_decay=0.5), boxed)
    direction, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    kernel, bias = (direction["pooler"]["dense"][name] for name in ("kernel", "bias"))
    dense = params["pooler"]["dense"]
    np.testing.assert_allclose(kernel, np.sign(dense["kernel"]) + 0.5 * dense["kernel"], rtol=1e-6)
    np.testing.assert_array_equal(bias, np.sign(dense["bias"]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("number", r"mine.py:number returns int; it must return an optax.GradientTransformation from gradients to directions"),
        ("whole", r"mine.py:whole returns updates, which point against the gradient, .*; return directions, .*scale_by_adam"),
        ("of_biases", r"mine.py:of_biases returns updates, which point against the gradient"),
        ("divides", r"mine.py:divides returns directions that are not finite for finite gradients and weights; correct the tr"),
        ("fails", r"config.optimizer.name=.*mine.py raises KeyError; correct the file here:"),
        ("sing", r"mine.py has no 'sing'; did you mean 'sign'"),
        ("", r"does not name an object in the file"),
    ],
)
def test_an_unusable_optimizer_is_refused_in_one_sentence(own: str, name: str, says: str):
    with pytest.raises(UserError, match=says), file_errors_explained():
        make_optimizer(OptimizerConfig(name=f"{own}:{name}"), abstract_parameters(TINY))


@pytest.mark.parametrize("name", ["signs", "secant", "large"])
def test_an_optimizer_may_be_an_unhashable_object_or_divide_by_changes_or_return_large_directions(own: str, name: str):
    optimizer = make_optimizer(OptimizerConfig(name=f"{own}:{name}"), {"a": boxed_vector()})
    weights, gradient = {"a": jnp.ones(3)}, {"a": jnp.float32([1, -2, 3])}
    direction, _ = optimizer.update(gradient, optimizer.init(weights), weights)
    assert jnp.vdot(direction["a"], gradient["a"]) > 0


def test_an_exception_of_an_optimizer_keeps_its_traceback(own: str):
    optimizer = make_optimizer(OptimizerConfig(name=f"{own}:fails_later"), abstract_parameters(TINY))
    params = random_parameters()
    with pytest.raises(UserError, match=r"mine.py raises KeyError; correct the file here:"), file_errors_explained():
        jax.jit(optimizer.update)(params, optimizer.init(params), params)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one", r"mine.py:one: update must return a direction for each parameter, in the same tree as the gradients"),
        ("sums", r"mine.py:sums: the direction of .*/bias has the shape \(\), but its gradient has \(\d+"),
        ("more", r"mine.py:more: update must return a state with the same tree as the state that init returns"),
        ("half", r"mine.py:half: update returns float32 \[\] as n of the state; it must stay int32 \[\]"),
        ("free", r"mine.py:free: the weights for use are those of optax's schedule_free_eval_params, but a run evaluates and"),
        ("partition", r"mine.py:partition: init raises ValueError: .*\['a'\]; correct the transformation"),
        ("plateau", r"mine.py:plateau: update\(gradients, state, params\) raises TypeError: .*'value'; correct"),
    ],
)
def test_transformations_that_a_training_step_cannot_use_are_refused(own: str, name: str, says: str):
    optimizer = make_optimizer(OptimizerConfig(name=f"{own}:{name}"), abstract_parameters(TINY))
    params = random_parameters()
    with pytest.raises(UserError, match=says):
        jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params), params)


def test_a_key_in_the_state_of_an_optimizer_is_kept_as_numbers(own: str):
    optimizer = make_optimizer(OptimizerConfig(name=f"{own}:noisy", weight_decay=0.0), {"a": boxed_vector()})
    params, theirs = {"a": jnp.ones(3)}, optax.add_noise(0.1, 0.5, key=3)
    state, wanted = jax.jit(optimizer.init)(params), theirs.init(params)
    assert {x.dtype.name for x in jax.tree.leaves(state)} == {"int32", "uint32"}
    for _ in range(2):
        found, state = jax.jit(optimizer.update)(params, state, params)
        expected, wanted = theirs.update(params, wanted)
        np.testing.assert_allclose(found["a"], expected["a"], rtol=1e-6)


def test_parameters_without_axes_are_refused_by_name():
    boxed = abstract_parameters(TINY) | {"mine": {"kernel": jnp.ones((2, 2))}}
    with pytest.raises(UserError, match=r"the parameter mine/kernel has no axis names, .*; make it with .*layers\.parameter"):
        make_optimizer(OptimizerConfig(), boxed)


def test_boxed_parameters_have_the_axes_of_their_names():
    assert described({"a": nn.LogicallyPartitioned(jnp.ones((2, 3)), ("layers", None))}) == {
        "a": Parameter((2, 3), ("layer", ""))
    }
    assert isinstance(make_optimizer(OptimizerConfig(), abstract_parameters(TINY)), optax.GradientTransformation)
