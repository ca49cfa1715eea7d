"""Linear probes: softmax regressions of labels on the vectors of words, of all layers and a learned mix together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float16, Float32, Float64, Int, PyTree

from bert_jax.analysis.probing.control import NONE, Labels
from bert_jax.analysis.probing.features import Say, Scale, in_batches, silent
from bert_jax.model.features import LayerMix

BATCH = 256
"""Words of a step."""
LEARNING_RATE = 2e-3
"""Of Adam on standardised vectors, with a cosine to 0 over all steps."""
Probe = dict[str, PyTree[jax.Array]]
State = tuple[Any, Any]


def standardised(vectors: Float32[Array, "R S D"], scale: tuple[Array, Array]) -> Float[Array, "S R D"]:
    """The vectors, layer by layer, with mean 0 and deviation 1 in each entry of each layer.

    They are read in float32, to which NumPy converts those that are held in float16: XLA compiles no float16 for CPUs without
    instructions for it.
    """
    mean, deviation = scale
    return (jnp.moveaxis(vectors, 1, 0) - mean[:, None]) / deviation[:, None]


def with_mix(mix: Mapping[str, Array], vectors: Float[Array, "S R D"]) -> Float[Array, "A R D"]:
    """The vectors of all hidden states, and last their learned mix; A = S + 1."""
    mixed: Any = LayerMix(len(vectors)).apply({"params": mix}, vectors[:, None])
    return jnp.concatenate([vectors, mixed])


def initial_mix(layers: int) -> dict[str, jax.Array]:
    """The mean of all hidden states."""
    return {"weights": jnp.zeros(layers), "gamma": jnp.ones(())}


def linear_logits(probe: Probe, vectors: Float[Array, "S R D"]) -> Float[Array, "A R C"]:
    """The logits of the probes of all hidden states and of the mix."""
    inputs = with_mix(probe["mix"], vectors)
    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("ARD,ADC->ARC", inputs, probe["kernel"], precision=exact) + probe["bias"][:, None]


def linear_loss(
    probes: Mapping[str, Probe], vectors: Float[Array, "S R D"], labels: Mapping[str, Int[Array, " R"]]
) -> Float[Array, ""]:
    """The sum over all probes of the mean cross-entropy over the words with a label."""
    total = jnp.zeros(())
    for name, own in labels.items():
        losses = optax.softmax_cross_entropy_with_integer_labels(
            linear_logits(probes[name], vectors), jnp.maximum(own, 0)[None]
        )
        counts = (own != NONE).astype(jnp.float32)
        total += (losses.sum(0) * counts).sum() / jnp.maximum(counts.sum(), 1.0)
    return total


def initial_probes(layers: int, width: int, classes: Mapping[str, int], seed: int) -> dict[str, Probe]:
    """Probes of `classes` labels each, whose kernels are normal with deviation 0.01."""
    keys = dict(zip(classes, jax.random.split(jax.random.key(seed), len(classes)), strict=True))
    return {
        name: {
            "kernel": 0.01 * jax.random.normal(keys[name], (layers + 1, width, count)),
            "bias": jnp.zeros((layers + 1, count)),
            "mix": initial_mix(layers),
        }
        for name, count in classes.items()
    }


def train_linear(
    vectors: Float16[np.ndarray, "R S D"],
    labels: Sequence[Labels],
    scale: Scale,
    epochs: int,
    seed: int,
    say: Say = silent,
) -> dict[str, Probe]:
    """The probes of all kinds of labels by name, trained with Adam; every epoch reads the words in another order.

    `say` is told the number of steps that are done, and of all steps.
    """
    count, layers, width = vectors.shape
    probes = initial_probes(layers, width, {kind.name: len(kind.classes) for kind in labels}, seed)
    steps = epochs * -(-count // BATCH)
    step, optimizer = probe_step(linear_loss, steps, LEARNING_RATE)
    state = (probes, optimizer.init(probes))
    rng = np.random.default_rng(seed)
    done = 0
    for _ in range(epochs):
        for chosen in in_batches(rng.permutation(count), BATCH):
            own = {kind.name: np.where(chosen >= 0, kind.training[chosen], NONE) for kind in labels}
            state = step(state, vectors[chosen].astype(np.float32), own, (scale.mean, scale.deviation))
            done += 1
            say(done, steps)
    return state[0]


@functools.lru_cache(maxsize=4)
def probe_step(
    loss: Callable[..., Array], steps: int, rate: float
) -> tuple[Callable[..., State], optax.GradientTransformation]:
    """(the compiled step of training, (state, vectors, targets, scale) -> state; its optimizer: Adam with a cosine decay to 0 in
    `steps`). `loss` is a function of the probes, the standardised vectors and the targets."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    @jax.jit
    def step(state: State, vectors: Array, targets: Mapping[str, Array], scale: tuple[Array, Array]) -> State:
        probes, moments = state
        gradients = jax.grad(loss)(probes, standardised(vectors, scale), targets)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(probes, updates), moments

    return step, optimizer


def linear_accuracy(
    probes: Mapping[str, Probe], vectors: Float16[np.ndarray, "R S D"], labels: Sequence[Labels], scale: Scale
) -> dict[str, Float64[np.ndarray, " A"]]:
    """The share of the words with a label whose most likely class is theirs: for all hidden states and the mix."""
    right: dict[str, Any] = {kind.name: 0 for kind in labels}
    for chosen in in_batches(range(len(vectors)), BATCH):
        own = {kind.name: np.where(chosen >= 0, kind.evaluation[chosen], NONE) for kind in labels}
        found = _right(probes, vectors[chosen].astype(np.float32), own, (scale.mean, scale.deviation))
        right = {name: right[name] + np.asarray(found[name], np.float64) for name in right}
    return {kind.name: right[kind.name] / kind.n for kind in labels}


@jax.jit
def _right(
    probes: Mapping[str, Probe], vectors: Array, labels: Mapping[str, Array], scale: tuple[Array, Array]
) -> dict[str, Array]:
    read = standardised(vectors, scale)
    return {name: (linear_logits(probes[name], read).argmax(-1) == own[None]).sum(1) for name, own in labels.items()}


def mix_shares(mix: Mapping[str, Array]) -> Float64[np.ndarray, " S"]:
    """The weights of the hidden states in a mix; they sum to 1."""
    return np.asarray(jax.nn.softmax(mix["weights"]), np.float64)
