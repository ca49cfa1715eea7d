"""The optimizers: optax transformations that return a *direction*, which the training step multiplies by -rate.

An optimizer is a function `name(config, parameters)`, where `config` is an `OptimizerConfig` and `parameters` is a tree of
`Parameter`. It returns an `optax.GradientTransformation` from gradients to directions. The training step applies the sign, the
learning rate and the layer multipliers. `make_optimizer` adds the weight decay. `OPTIMIZERS` in `training/__init__.py` lists
the built-in optimizers. Users can define other optimizers in their own files (`config.optimizer.name=FILE.py:NAME`, e.g.
experiments/extensions/muon.py).

The parameters of all layers are stacked along a leading axis named "layer". A quantity that is defined per layer is therefore
computed for each index of this axis.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file, load_named, require_call
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.model.layers import VOCABULARY_ARRAYS, Matrix
from bert_jax.training import OPTIMIZERS
from bert_jax.training.config import OptimizerConfig

Params: TypeAlias = PyTree
"""A tree of parameters, or of their gradients, moments or shapes."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Describes a parameter, so that an optimizer knows how to treat the parameter. Each `Parameter` is a leaf of a tree."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """A name for each dimension. "layer" is the dimension of the stacked layers. In a kernel, "in" are the dimensions that the
    matrix product sums over, and "out" are the dimensions of the result. For example, an attention kernel [layers, D, H, K] has
    ("layer", "in", "out", "out"). Dimensions of other arrays have the names that the model gives them ("vocab", "embed",
    "norm", ...), or ""."""


def described(boxed: Params) -> PyTree[Parameter]:
    """Returns the tree of `Parameter` for parameters boxed with their axis names by the model's initialisers.

    Raises UserError for a parameter without axis names.
    """

    def describe(path: tuple[Any, ...], box: Any) -> Parameter:
        if not isinstance(box, nn.Partitioned):
            name = "/".join(key.key for key in path)
            raise UserError(
                f"the parameter {name} has no axis names, which sharding and optimizers need; make it with "
                "bert_jax.model.layers.parameter, or give its initialiser to flax.linen.with_logical_partitioning"
            )
        axes = ["layer" if name == "layers" else name or "" for name in box.names]
        if isinstance(box, Matrix):
            inputs, outputs = box.product
            axes[len(axes) - inputs - outputs :] = ["in"] * inputs + ["out"] * outputs
        return Parameter(tuple(box.value.shape), tuple(axes))

    return jax.tree_util.tree_map_with_path(describe, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))


def decayed(parameters: PyTree[Parameter]) -> PyTree[bool]:
    """Returns a mask for weight decay. It is True for every parameter except biases, the parameters of norms and the
    `VOCABULARY_ARRAYS`, which are not trained. google-research/bert `optimization.py` excludes biases and LayerNorm by the names
    LayerNorm, layer_norm and bias. Norms are also recognised by their axes, since those of a user's encoder may have other
    names."""

    def decays(path: tuple[Any, ...], leaf: Parameter) -> bool:
        axes = [axis for axis in leaf.axes if axis != "layer"]
        of_norm = axes == ["norm"] or any(key.key.endswith("layer_norm") for key in path)
        return not of_norm and path[-1].key not in ("bias", *VOCABULARY_ARRAYS)

    return jax.tree_util.tree_map_with_path(decays, parameters)


def stacked(params: Params) -> PyTree[bool]:
    """Returns a mask that is True for arrays whose leading axis is the layer."""
    return jax.tree_util.tree_map_with_path(lambda path, _: any(key.key == "layers" for key in path), params)


def bert_adam_moments(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Returns m / (sqrt(v) + epsilon) without bias correction, as in the original. With warmup the difference is small."""

    def init(params: Params) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zeros, nu=jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Params, state: optax.ScaleByAdamState, params: Params | None = None
    ) -> tuple[Params, optax.ScaleByAdamState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return direction, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def layerwise_trust_ratio(parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Multiplies updates by LAMB's trust ratio |w| / |update|. Each layer of each array has its own ratio. The ratio is 1 if
    either norm is 0."""

    def scale(update: Float[Array, "*shape"], weight: Float[Array, "*shape"], parameter: Parameter) -> Float[Array, "*shape"]:
        axes = tuple(axis for axis, name in enumerate(parameter.axes) if name != "layer")
        weight_norm = jnp.sqrt(jnp.sum(jnp.square(weight), axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
        usable = (weight_norm > 0) & (update_norm > 0)
        return update * jnp.where(usable, weight_norm / jnp.where(usable, update_norm, 1.0), 1.0)

    def update(updates: Params, state: optax.EmptyState, params: Params | None = None) -> tuple[Params, optax.EmptyState]:
        return jax.tree.map(scale, updates, params, parameters), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class Decayed(optax.GradientTransformation):
    """A transformation whose directions already include the weight decay, so that `make_optimizer` adds none."""


def bert_adam(config: OptimizerConfig, parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Returns the original's Adam, without bias correction."""
    return bert_adam_moments(config.b1, config.b2, config.epsilon)


def adamw(config: OptimizerConfig, parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Returns Adam with bias correction."""
    return optax.scale_by_adam(config.b1, config.b2, config.epsilon)


def lamb(config: OptimizerConfig, parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Returns LAMB (arXiv:1904.00962). Its direction is the sum of Adam's direction and the weight decay, scaled by the trust
    ratio of each layer."""
    moments = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
    return Decayed(*optax.chain(moments, weight_decay(config, parameters), layerwise_trust_ratio(parameters)))


FUSED = (("query", "key", "value"), ("intermediate", "gate"))
"""Groups of modules. `stable_adamw` treats the arrays of a group as one array, since ModernBERT stores each group in one tensor
(Wqkv, Wi)."""


def stable_adamw(config: OptimizerConfig, parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Returns StableAdamW (arXiv:2304.13013) as in optimi 0.3.3, with which ModernBERT was trained. It is AdamW with one
    change: if the root mean square of g / sqrt(v) over an array exceeds 1, the array's learning rate is divided by this value.

    v is the bias-corrected average of g^2 including this step, and at least epsilon^2. The root mean square of a stacked array
    is computed per layer, and the arrays of a group in `FUSED` count as one array. The weight decay is multiplied by the
    learning rate, so a lower rate also lowers the decay.
    """
    adamw = optax.chain(optax.scale_by_adam(config.b1, config.b2, config.epsilon), weight_decay(config, parameters))
    least = max(config.epsilon**2, float(jnp.finfo(jnp.float32).tiny))
    together = {module: "+".join(modules) for modules in FUSED for module in modules}

    def name(path: tuple[Any, ...], _: Parameter) -> str:
        return "/".join(together.get(key.key, key.key) for key in path)

    names = jax.tree_util.tree_map_with_path(name, parameters)
    elements: dict[str, int] = collections.defaultdict(int)  # name of an array -> number of elements per layer
    for array, parameter in zip(jax.tree.leaves(names), jax.tree.leaves(parameters), strict=True):
        elements[array] += math.prod(size for size, axis in zip(parameter.shape, parameter.axes, strict=True) if axis != "layer")

    def update(grads: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        directions, state = adamw.update(grads, state, params)
        corrected = 1 - config.b2 ** state[0].count
        sums: dict[str, Any] = collections.defaultdict(float)  # name -> sum of g^2 / v, [N] for stacked layers

        def add(name: str, parameter: Parameter, gradient: Float[Array, "*shape"], v: Float[Array, "*shape"]) -> None:
            within = tuple(axis for axis, of in enumerate(parameter.axes) if of != "layer")
            sums[name] += jnp.sum(jnp.square(gradient) / jnp.maximum(v / corrected, least), within)

        def clipped(name: str, direction: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
            factor = 1 / jnp.maximum(1.0, jnp.sqrt(sums[name] / elements[name]))
            return direction * factor.reshape(factor.shape + (1,) * (direction.ndim - factor.ndim))

        jax.tree.map(add, names, parameters, grads, state[0].nu)
        return jax.tree.map(clipped, names, directions), state

    return Decayed(adamw.init, update)


def weight_decay(config: OptimizerConfig, parameters: PyTree[Parameter]) -> optax.GradientTransformation:
    """Adds decoupled weight decay to a direction, for the parameters that are `decayed`."""
    return optax.add_decayed_weights(config.weight_decay, mask=decayed(parameters))


def make_optimizer(config: OptimizerConfig, boxed: Params) -> optax.GradientTransformation:
    """Returns the transformation from gradients to a direction for parameters (arrays or shapes) boxed with their axis names.

    The order is the same as in the original code. The moments come first, then the decoupled weight decay, and LAMB then
    applies the trust ratio to the sum. The training step clips the gradients, since it computes the norm of the gradients for
    the log. Raises UserError for parameters without axis names, or if a user's optimizer does not return an optax
    transformation, or returns one whose directions are not finite or point against the gradient."""
    parameters, key = described(boxed), "config.optimizer.name"
    optimizer = load_named(config.name, OPTIMIZERS, key)
    if is_in_file(config.name):
        require_call(optimizer, "config, parameters", f"{key}={config.name}")
    direction = optimizer(config, parameters)
    if not isinstance(direction, optax.GradientTransformation):
        raise UserError(
            f"{key}={config.name} returns {type(direction).__name__}; it must return an "
            "optax.GradientTransformation from gradients to directions"
        )
    if is_in_file(config.name):
        direction = _checked(direction, f"{key}={config.name}")
        _require_directions(config)
    return direction if isinstance(direction, Decayed) else optax.chain(direction, weight_decay(config, parameters))


def _checked(direction: optax.GradientTransformation, key: str) -> optax.GradientTransformation:
    """Wraps a user's transformation, so that it raises UserError if an exception occurs in optax, if the directions do not fit
    the parameters, if the new state does not fit the old one, or if the weights for use are in the state. JAX keys in the state
    are kept as their data (uint32), since checkpoints hold only numbers."""
    implementations: list[Any] = []  # of the keys in the state, None for other leaves

    def init(params: Params) -> Any:
        state = _explained(f"{key}: init", lambda: direction.init(params))
        if any(map(_is_schedule_free, jax.tree.leaves(state, is_leaf=_is_schedule_free))):
            raise UserError(
                f"{key}: the weights for use are those of optax's schedule_free_eval_params, but a run evaluates and exports "
                "the parameters themselves; use another optimizer, and average its checkpoints with `convert --last`"
            )
        leaves, structure = jax.tree.flatten(state)
        implementations[:] = [jax.random.key_impl(x) if _is_key(x) else None for x in leaves]
        return jax.tree.unflatten(structure, [jax.random.key_data(x) if _is_key(x) else x for x in leaves])

    def update(grads: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        leaves, structure = jax.tree.flatten(state)
        of_leaves = zip(leaves, implementations, strict=True)
        typed = jax.tree.unflatten(structure, [jax.random.wrap_key_data(x, impl=own) if own else x for x, own in of_leaves])
        found, new = _explained(f"{key}: update(gradients, state, params)", lambda: direction.update(grads, typed, params))
        if not jax.tree.structure(found) == jax.tree.structure(grads):  # type: ignore[operator]
            raise UserError(f"{key}: update must return a direction for each parameter, in the same tree as the gradients")
        for (path, one), gradient in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(grads), strict=True):
            if jnp.shape(one) != gradient.shape:
                shapes = f"has the shape {jnp.shape(one)}, but its gradient has {gradient.shape}"
                raise UserError(f"{key}: the direction of {_path_name(path)} {shapes}")
        new = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, new)
        if not jax.tree.structure(new) == structure:  # type: ignore[operator]
            raise UserError(f"{key}: update must return a state with the same tree as the state that init returns")
        for (path, one), old in zip(jax.tree_util.tree_leaves_with_path(new), leaves, strict=True):
            if (jnp.shape(one), jnp.result_type(one)) != (jnp.shape(old), jnp.result_type(old)):
                kinds = [f"{jnp.result_type(x)} {list(jnp.shape(x))}" for x in (one, old)]
                raise UserError(f"{key}: update returns {kinds[0]} as {_path_name(path)} of the state; it must stay {kinds[1]}")
        return found, new

    return type(direction)(init, update)


SMALL = {
    "embedding": Parameter((16, 8), ("vocab", "embed")),
    "layers": {"kernel": Parameter((2, 8, 8), ("layer", "in", "out")), "bias": Parameter((2, 64), ("layer", "mlp"))},
}
"""The parameters with which a user's optimizer is tried."""


@functools.cache
def _require_directions(config: OptimizerConfig) -> None:
    """Raises UserError if a user's optimizer returns updates, which point against the gradient, as optax.adam does, or
    directions that are not finite.

    The optimizer is tried with the `SMALL` parameters in a few updates, since a rate may be 0 in the first ones. The
    function to minimise is quadratic, since some methods divide by the change of the gradient. The steps are short, so that the
    gradients hardly change. The weights are orthogonal to the gradients, so that a decay has no part in the result. Nothing
    is checked if the optimizer cannot be used with these parameters."""
    key = f"config.optimizer.name={config.name}"
    optimizer = load_named(config.name, OPTIMIZERS, key)
    draw = np.random.default_rng(0)
    grads = jax.tree.map(lambda p: draw.standard_normal(p.shape, np.float32), SMALL)
    params = start = jax.tree.map(lambda g: np.stack([g[..., 1::2], -g[..., ::2]], -1).reshape(g.shape), grads)
    total = jax.tree.map(np.zeros_like, grads)
    with contextlib.suppress(Exception), np.errstate(all="ignore"):
        direction = _checked(optimizer(config, SMALL), key)
        state, update = jax.jit(direction.init)(params), jax.jit(direction.update)
        for _ in range(8):
            found, state = update(jax.tree.map(lambda g, p, p0: g + (p - p0), grads, params, start), state, params)
            found = jax.tree.map(lambda d: np.asarray(d, np.float32), found)
            total = jax.tree.map(np.add, total, found)
            params = jax.tree.map(lambda p, d: p - np.float32(1e-3) * d / (np.abs(d).mean() or np.float32(1)), params, found)

    if not all(np.isfinite(x).all() for x in jax.tree.leaves(total)):
        raise UserError(
            f"{key} returns directions that are not finite for finite gradients and weights; correct the transformation (it may "
            "divide by 0 in its first update)"
        )

    def points_against(total: np.ndarray, gradient: np.ndarray) -> bool:
        return bool(np.vdot(total, gradient) < -0.5 * np.linalg.norm(total) * np.linalg.norm(gradient))

    if any(jax.tree.leaves(jax.tree.map(points_against, total, grads))):
        raise UserError(
            f"{key} returns updates, which point against the gradient, but the training step applies the sign and the learning "
            "rate itself; return directions, for example with optax.scale_by_adam() instead of optax.adam(rate)"
        )


def _explained(what: str, call: Callable[[], Any]) -> Any:
    """Calls a user's transformation. An exception that does not pass through the user's file becomes a UserError as well."""
    try:
        with file_errors_explained():
            return call()
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        says = " ".join(str(error).split())
        raise UserError(f"{what} raises {type(error).__name__}: {says}; correct the transformation") from error


def _is_schedule_free(x: Any) -> bool:
    return type(x).__name__ == "ScheduleFreeState"


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _path_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
