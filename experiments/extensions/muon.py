"""An optimizer: Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for matrices, Adam for the rest.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/muon \
        --config.optimizer.name=experiments/extensions/muon.py:muon

The momentum of every kernel is orthogonalised, separately for each layer, and scaled to the size of an Adam update
(arXiv:2502.16982). This allows Muon and Adam to share one learning rate. Embeddings, biases and LayerNorms are updated by
Adam."""

import math

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon


def muon(config, parameters):
    """Returns the transformation of gradients to directions. The training step applies sign, learning rate and weight decay."""
    labels = jax.tree.map(lambda p: "matrix" if {"in", "out"} <= set(p.axes) else "other", parameters)
    matrices, sizes = jax.tree.map(dimensions, parameters), jax.tree.map(size, parameters)
    orthogonalised = optax.chain(
        scale_by_muon(beta=0.95, nesterov=True, weight_dimension_numbers=matrices),
        optax.stateless(lambda updates, _: jax.tree.map(lambda update, size: update * size, updates, sizes)),
    )
    adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
    return optax.partition({"matrix": orthogonalised, "other": adam}, labels)


def dimensions(parameter):
    """Returns the input dimensions of a kernel, over which its product sums, and its output dimensions. For example, [layers, D,
    H, K] is a matrix from D to H * K for every layer."""
    if not {"in", "out"} <= set(parameter.axes):
        return optax.MaskedNode()
    of = {name: [i for i, axis in enumerate(parameter.axes) if axis == name] for name in ("in", "out")}
    return MuonDimensionNumbers(reduction_axis=of["in"], output_axis=of["out"])


def size(parameter):
    """Returns the factor that gives an orthogonal matrix the root mean square of an Adam update, 0.2."""
    if not {"in", "out"} <= set(parameter.axes):
        return optax.MaskedNode()
    named = list(zip(parameter.axes, parameter.shape, strict=True))
    return 0.2 * max(math.prod(n for axis, n in named if axis == side) for side in ("in", "out")) ** 0.5
