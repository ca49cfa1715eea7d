"""Linear probes: softmax regressions of labels on word vectors. There is one probe for each layer, and one for the mix, which
is a learned weighted average of the layers (ELMo's scalar mix).

The mixes are trained with Adam. Then all regressions are trained to convergence with L-BFGS. A probe that stops early would
underfit the control task, and the selectivity would be too large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jaxtyping import Array, Float, Float16, Float32, Float64, Int, PyTree

from bert_jax.analysis.probe.annotated import NONE, Labels
from bert_jax.analysis.probe.word_vectors import Say, Scale, fit_scale, in_batches, in_epochs, silent
from bert_jax.model.features import LayerMix

BATCH = 256
"""The number of words in a step."""
LEARNING_RATE = 2e-3
"""The learning rate of Adam on standardised vectors. It decays to 0 over all steps, as a cosine."""
PENALTY = 2.5e-3
"""The weight of the squared norm of the kernel in the loss, where it is added to the mean cross-entropy. The penalty makes the
best probe unique. Without it, the kernel would grow without bound if the labels are separable, which is common with few words
and many entries."""
ITERATIONS, TOLERANCE = 500, 1e-5
"""L-BFGS stops after this many iterations, or when the loss decreases by less than this fraction."""
Probe = dict[str, PyTree[jax.Array]]
State = tuple[Any, Any]


def standardised(vectors: Float32[Array, "R S D"], scale: tuple[Array, Array]) -> Float[Array, "S R D"]:
    """Returns the vectors of all layers, standardised so that each entry of each layer has mean 0 and deviation 1.

    The vectors must be float32. NumPy converts the stored float16 vectors, since XLA cannot compile float16 for CPUs without
    float16 instructions."""
    mean, deviation = scale
    return (jnp.moveaxis(vectors, 1, 0) - mean[:, None]) / deviation[:, None]


def with_mix(mix: Mapping[str, Array], vectors: Float[Array, "S R D"]) -> Float[Array, "A R D"]:
    """Returns the vectors of all hidden states, followed by the learned mix of these vectors. A is S + 1."""
    mixed: Any = LayerMix(len(vectors)).apply({"params": mix}, vectors[:, None])
    return jnp.concatenate([vectors, mixed])


def initial_mix(layers: int) -> dict[str, jax.Array]:
    """Returns the mix in which all hidden states have the same weight."""
    return {"weights": jnp.zeros(layers), "gamma": jnp.ones(())}


def linear_logits(probe: Probe, vectors: Float[Array, "S R D"]) -> Float[Array, "A R C"]:
    """Returns the logits of the probes on all hidden states and on the mix."""
    inputs = with_mix(probe["mix"], vectors)
    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("ARD,ADC->ARC", inputs, probe["kernel"], precision=exact) + probe["bias"][:, None]


def mix_loss(
    probes: Mapping[str, Probe], vectors: Float[Array, "S R D"], labels: Mapping[str, Int[Array, " R"]]
) -> Float[Array, ""]:
    """Returns the cross-entropy of the probes on the mix, averaged over the words with a label and summed over the kinds of
    labels."""
    exact = jax.lax.Precision.HIGHEST
    total = jnp.zeros(())
    for name, own in labels.items():
        mixed = with_mix(probes[name]["mix"], vectors)[-1]
        logits = jnp.matmul(mixed, probes[name]["kernel"], precision=exact) + probes[name]["bias"][None]
        total += _mean_loss(logits, own)
    return total


def _mean_loss(logits: Float[Array, "R C"], labels: Int[Array, " R"]) -> Float[Array, ""]:
    """Returns the mean cross-entropy over the words with a label."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    counts = (labels != NONE).astype(jnp.float32)
    return (losses * counts).sum() / jnp.maximum(counts.sum(), 1.0)


def initial_probes(layers: int, width: int, classes: Mapping[str, int], seed: int) -> dict[str, Probe]:
    """Returns a mix and a probe on the mix for each kind of label. `classes` has the number of classes of each kind. Kernels
    are drawn from a normal distribution with deviation 0.01."""
    keys = dict(zip(classes, jax.random.split(jax.random.key(seed), len(classes)), strict=True))
    return {
        name: {
            "kernel": 0.01 * jax.random.normal(keys[name], (width, count)),
            "bias": jnp.zeros(count),
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
    layers: Mapping[str, Probe] | None = None,
) -> dict[str, Probe]:
    """Returns the converged probes of all kinds of labels by name. Only the mixes and the probes on the mixes depend on `seed`.
    The mixes are trained with Adam for `epochs` epochs. They start with random probes and read the words in random order.

    `layers` is the result for another seed. Its probes on single layers are reused for the kinds of labels that it contains.
    `say` is called with the number of finished probes and the number of all probes."""
    known = {} if layers is None else layers
    mixes = train_mixes(vectors, labels, scale, epochs, seed)
    _, hidden, width = vectors.shape
    found: dict[str, Any] = {
        kind.name: {
            "kernel": np.zeros((hidden + 1, width, len(kind.classes)), np.float32),
            "bias": np.zeros((hidden + 1, len(kind.classes)), np.float32),
            "mix": mixes[kind.name],
        }
        for kind in labels
    }
    done, total = 0, sum(1 if kind.name in known else hidden + 1 for kind in labels)
    for layer in range(hidden + 1):
        read = None
        for kind in labels:
            probe = found[kind.name]
            if layer < hidden and kind.name in known:
                probe["kernel"][layer], probe["bias"][layer] = known[kind.name]["kernel"][layer], known[kind.name]["bias"][layer]
                continue
            if layer == hidden:
                read, mean, deviation = _mixed(vectors, scale, probe["mix"])
            elif read is None:
                mean, deviation = np.zeros(width, np.float32), np.ones(width, np.float32)
                read = jnp.asarray((vectors[:, layer].astype(np.float32) - scale.mean[layer]) / scale.deviation[layer])
            kernel, bias = converged(read, kind.training, len(kind.classes))
            kernel = kernel / deviation[:, None]
            probe["kernel"][layer], probe["bias"][layer] = kernel, bias - mean @ kernel
            done += 1
            say(done, total)
    trained: dict[str, Probe] = jax.tree.map(jnp.asarray, found)
    return trained


def _mixed(
    vectors: Float16[np.ndarray, "R S D"], scale: Scale, mix: Mapping[str, Array]
) -> tuple[jax.Array, Float32[np.ndarray, " D"], Float32[np.ndarray, " D"]]:
    """Returns the mix of the standardised vectors, standardised again. Also returns the mean and the deviation of the entries
    before the second standardisation."""
    parts = []
    for chosen in in_batches(range(len(vectors)), BATCH):
        parts.append(np.asarray(_mix(mix, vectors[chosen].astype(np.float32), (scale.mean, scale.deviation))))
    mixed = np.concatenate(parts)[: len(vectors)]
    own = fit_scale(mixed[:, None])
    return jnp.asarray((mixed - own.mean[0]) / own.deviation[0]), own.mean[0], own.deviation[0]


@jax.jit
def _mix(mix: Mapping[str, Array], vectors: Array, scale: tuple[Array, Array]) -> Array:
    return with_mix(mix, standardised(vectors, scale))[-1]


def converged(
    read: Float[Array, "R D"], labels: Int[np.ndarray, " R"], classes: int
) -> tuple[Float32[np.ndarray, "D C"], Float32[np.ndarray, " C"]]:
    """Returns the kernel and the bias that minimise the loss. The loss is the mean cross-entropy over the words with a label,
    plus PENALTY times the sum of the squares of the kernel."""
    width, own = read.shape[1], jnp.asarray(labels)

    def loss(flat: Float64[np.ndarray, " _"]) -> tuple[float, Float64[np.ndarray, " _"]]:
        value, gradient = _penalised(jnp.asarray(flat, jnp.float32).reshape(width + 1, classes), read, own)
        return float(value), np.asarray(gradient, np.float64).ravel()

    settings = {"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "ftol": TOLERANCE, "gtol": 0.0}
    best = scipy.optimize.minimize(loss, np.zeros((width + 1) * classes), jac=True, method="L-BFGS-B", options=settings).x
    return best.reshape(width + 1, classes)[:-1].astype(np.float32), best.reshape(width + 1, classes)[-1].astype(np.float32)


@jax.jit
@jax.value_and_grad
def _penalised(probe: Float[Array, "_ C"], read: Float[Array, "R D"], labels: Int[Array, " R"]) -> Float[Array, ""]:
    """Returns the loss of `converged`. The last row of `probe` is the bias."""
    logits = jnp.matmul(read, probe[:-1], precision=jax.lax.Precision.HIGHEST) + probe[-1:]
    return _mean_loss(logits, labels) + PENALTY * jnp.square(probe[:-1]).sum()


def train_mixes(
    vectors: Float16[np.ndarray, "R S D"], labels: Sequence[Labels], scale: Scale, epochs: int, seed: int
) -> dict[str, Any]:
    """Returns the mix for each kind of label. Adam trains each mix together with a probe on this mix."""
    count, layers, width = vectors.shape
    probes = initial_probes(layers, width, {kind.name: len(kind.classes) for kind in labels}, seed)
    steps = epochs * -(-count // BATCH)
    step, optimizer = probe_step(mix_loss, steps, LEARNING_RATE)
    state = (probes, optimizer.init(probes))
    for chosen in in_epochs(count, epochs, BATCH, seed):
        own = {kind.name: np.where(chosen >= 0, kind.training[chosen], NONE) for kind in labels}
        state = step(state, vectors[chosen].astype(np.float32), own, (scale.mean, scale.deviation))
    return {name: probe["mix"] for name, probe in state[0].items()}


@functools.lru_cache(maxsize=4)
def probe_step(loss: Callable[..., Array], steps: int, rate: float) -> tuple[Callable[..., State], optax.GradientTransformation]:
    """Returns the compiled training step and its optimizer. The step is a function (state, vectors, targets, scale) -> state.
    The optimizer is Adam with a learning rate that decays to 0 as a cosine over `steps`. `loss` is a function of the probes,
    the standardised vectors and the targets."""
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
    """Returns the fraction of labelled words whose most likely class is correct, for the probes on all hidden states and on the
    mix."""
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
    """Returns the weights of the hidden states in a mix. The weights sum to 1."""
    return np.asarray(jax.nn.softmax(mix["weights"]), np.float64)
