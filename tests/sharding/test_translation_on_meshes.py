"""An encoder-decoder trains on a mesh as on one device: encoder and decoder have different depths, and dropout is on."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from bert_jax.data.batches import to_device
from bert_jax.objectives.losses import IGNORED
from bert_jax.objectives.model import Model
from bert_jax.objectives.translation import Translation
from bert_jax.sharding import rules
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.steps import Program
from tests.model.test_encoder_decoder import TINY, pairs
from tests.random_rows import largest_difference, random_parameters
from tests.sharding.training import moved, state_with

CONFIG = dataclasses.replace(
    TINY, hidden_size=16, num_layers=1, decoder_layers=2, num_heads=4, vocab_size=64, intermediate_size=32, hidden_dropout=0.1,
)  # fmt: skip


def trained(mesh_config: MeshConfig, devices: int, config: Any) -> tuple[Any, Any, dict[str, float]]:
    """Returns (the state after a step, how far it moves each parameter, its sums)."""
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    objective = Translation().for_model(Model(resolve(config, mesh)))
    parameters = objective.abstract_parameters()
    program = Program(
        objective=objective, parameters=parameters, mesh=mesh, optimizer=optax.identity(), learning_rate=lambda *_: 1.0,
        clip_norm=1.0, zero_sharding=mesh_config.zero_sharding, reduce_dtype=mesh_config.reduce_dtype,
    )  # fmt: skip
    batch = {name: np.tile(np.asarray(x), (4, 1)) for name, x in pairs(CONFIG, (9, 8, 7, 6), (7, 5, 3, 1)).items()}
    ids, real = batch["decoder_input_ids"], batch["decoder_sequence_ids"]
    batch["targets"] = np.where(np.roll(real, -1, 1) * real, np.roll(ids, -1, 1), IGNORED).astype(np.int32)
    first = state_with(random_parameters(config), program)
    with nn.logical_axis_rules(rules.ACTIVATION_RULES), jax.set_mesh(mesh):
        state = jax.device_put(first, program.shardings)
        arguments = program.arguments(state, to_device(batch, mesh, rules.BATCH), {"seed": np.uint32(4)})
        state, sums = program.training_step(1)(*arguments)
    return state, moved(first, state), {key: float(value) for key, value in sums.items()}


def test_a_translation_step_on_eight_devices_equals_one_device(small_arrays_are_spread_too: None):
    """The mesh gathers each layer when it is needed, since it has no loop over the layers; the one device has a loop, and
    computes activations again."""
    _, alone, sums_of_one = trained(MeshConfig(), 1, dataclasses.replace(CONFIG, scan_layers=True, remat="full"))
    state, spread, sums = trained(MeshConfig(data=4, tensor=2), 8, CONFIG)
    assert sums == pytest.approx(sums_of_one, rel=2e-6)
    assert sums["skipped"] == 0
    kernel = state.params["decoder"]["layers"]["cross_attention"]["query"]["kernel"]
    assert {*kernel.sharding.spec} >= {"data", "tensor"}
    assert largest_difference(alone, spread) < 2e-4
    assert max(np.abs(x).max() for x in jax.tree.leaves(alone)) > 1e-3, "the step must move the parameters"
