"""Draws random batches with the shapes of real ones, and a model small enough to differentiate quickly."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.interface.named import load_named
from bert_jax.model import natural_objective
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import BertForPreTraining, abstract_parameters, initial_parameters
from bert_jax.model.tokens import Tokens
from bert_jax.objectives import OBJECTIVES
from bert_jax.objectives.model import Model
from bert_jax.objectives.objective import Teacher
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.steps import Program, StepSeed, gradients


def objective_for(config: ModelConfig, next_sentence: bool = True, **settings: Any) -> Any:
    """Returns the objective that trains a model with this configuration."""
    return load_named(natural_objective(config), OBJECTIVES, "")(**settings).for_model(Model(config, next_sentence))


def program_for(objective: Any, optimizer: Any, learning_rate: Any = lambda step, scalars: 1e-3, **further: Any) -> Program:
    """Returns the program of such an objective on one device, or on another `mesh`."""
    wanted = {"parameters": {}, "clip_norm": 1.0, "mesh": make_mesh(MeshConfig(), jax.devices()[:1])} | further
    return Program(objective=objective, optimizer=optimizer, learning_rate=learning_rate, **wanted)


def teacher_of(config: ModelConfig, params: Any, *, next_sentence: bool = False, **settings: Any) -> Teacher:
    """Returns the teacher of a student in pretraining, with the parameters that a run loads."""
    objective = objective_for(config, next_sentence, **settings)
    return Teacher(objective, {part: params[part] for part in objective.model_parameters()})


def forward(config: ModelConfig, params: Any, batch: Any, seed: Any, next_sentence: bool = True) -> Any:
    """Returns the logits of the pretraining model for a batch; a `seed` of None is evaluation."""
    return Model(config, next_sentence).logits(params, batch, seed)


TINY = ModelConfig(
    vocab_size=64,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_position=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


def random_batch(
    seed: int = 0, *, rows: int = 8, length: int = 16, predictions: int = 4, config: ModelConfig = TINY, padding: bool = True
) -> dict[str, jax.Array]:
    """Returns one example per row: with `padding`, of random lengths and numbers of predicted positions; without it, all full."""
    rng = np.random.default_rng(seed)
    columns = np.arange(length)[None, :]
    lengths = rng.integers(length // 2, length + 1, (rows, 1)) if padding else np.full((rows, 1), length)
    real = columns < lengths
    fewest = 1 if padding else predictions
    used = np.arange(predictions)[None, :] < rng.integers(fewest, predictions + 1, (rows, 1))
    positions = np.sort(np.argsort(rng.random((rows, length // 2 - 1)), axis=1)[:, :predictions] + 1, axis=1)
    batch = {
        "input_ids": np.where(real, rng.integers(5, config.vocab_size, (rows, length)), 0),
        "token_type_ids": np.where(real, columns >= lengths // 2, 0),
        "sequence_ids": real,
        "position_ids": np.where(real, columns, 0),
        "masked_positions": np.where(used, positions, 0),
        "masked_targets": np.where(used, rng.integers(5, config.vocab_size, (rows, predictions)), -1),
        "cls_positions": np.zeros((rows, 1)),
        "nsp_labels": rng.integers(0, 2, (rows, 1)),
    }
    return {name: jnp.asarray(value.astype(np.int32), jnp.int32) for name, value in batch.items()}


def with_centres(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of skip-gram, made from rows of next tokens; only the positions change."""
    others = {name: x for name, x in batch.items() if not name.startswith("masked_")}
    return others | {"centres": np.where(np.asarray(batch["masked_targets"]) < 0, -1, np.asarray(batch["masked_positions"]))}


def initial_parameters_of(config: ModelConfig, seed: int = 0) -> Any:
    """Returns parameters as at the start of training."""
    return nn.unbox(jax.jit(initial_parameters, static_argnums=0)(config, jax.random.key(seed)))


def drawn_parameters(config: ModelConfig, seed: int = 0) -> Any:
    """Returns parameters like those at the start of training, without compiling anything for them."""
    return random_parameters(config, seed, scale=1.0, noise=0.0)


def tokens_of(sequence_ids: Any) -> Tokens:
    """Returns tokens that are 0 in everything but their sequence ids [B, L]."""
    ids = jnp.asarray(sequence_ids, jnp.int32)
    return Tokens(*(jnp.zeros_like(ids) for _ in range(3)), ids)


@functools.cache
def shapes_of(config: ModelConfig) -> Any:
    """Returns the shape and type of every parameter; tracing the model for them takes longer than drawing the parameters."""
    quick = dataclasses.replace(config, scan_layers=True) if config.has_attention else config
    return nn.unbox(abstract_parameters(quick))


def random_parameters(config: ModelConfig = TINY, seed: int = 0, scale: float = 5.0, noise: float = 0.1) -> Any:
    """Returns random values for all parameters, including biases and LayerNorms, so that no term of a gradient is hidden by a
    zero.

    Each array is `scale` times its initial values, plus noise with the standard deviation `noise`. NumPy draws them, since JAX
    would compile a program for each shape. It also does so for `jnp.asarray` without a type or from another type.
    """
    rng = np.random.default_rng(seed)

    def draw(path: Any, x: Any) -> jax.Array:
        name, added = path[-1].key, noise * rng.standard_normal(x.shape)
        if name == "scale":
            initial = np.ones(x.shape)
        elif name == "bias":
            initial = np.zeros(x.shape)
        else:
            initial = np.clip(rng.standard_normal(x.shape), -2, 2) * config.initializer_range
        return jnp.asarray((scale * initial + added).astype(np.float32), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes_of(config))


def boxed(params: Any) -> Any:
    """Returns parameters (arrays or shapes) boxed like a model's, in which only the axis of stacked layers has a name."""

    def box(path: Any, x: Any) -> nn.Partitioned:
        names: list[str | None] = [None] * len(x.shape)
        if any(key.key == "layers" for key in path):
            names[0] = "layers"
        return nn.LogicallyPartitioned(x, tuple(names))

    return jax.tree_util.tree_map_with_path(box, params)


def largest_difference(a: Any, b: Any) -> float:
    """Returns the largest |a - b| over all leaves, each relative to the largest |a| of its leaf.

    The gradient of a key's bias is left out: that bias shifts all scores of a query equally, so its gradient is only rounding.
    """

    def relative(path: Any, x: Any, y: Any) -> float:
        if [getattr(key, "key", None) for key in path[-2:]] == ["key", "bias"]:
            return 0.0
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return float(np.abs(x - y).max() / max(np.abs(x).max(), 1e-30)) if x.size else 0.0

    return max(jax.tree.leaves(jax.tree_util.tree_map_with_path(relative, a, b)))


@functools.partial(jax.jit, static_argnums=0)
def outputs_of(config, params, batch, seed):
    """Returns all outputs of the pretraining model for a batch."""
    return BertForPreTraining(config).apply({"params": params}, batch, seed)


logits_of = jax.jit(forward, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 3, 5))
def gradients_of(config, params, batch, seed, step, accumulation):
    """Returns the `gradients` of the pretraining objective, and all sums of a step."""
    objective = objective_for(config)
    counts = objective.counts(batch)
    grads, sums = gradients(objective, params, batch, counts, StepSeed(seed, step), accumulation)
    return grads, sums | counts
