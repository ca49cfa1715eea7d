"""BERT's predecessors train on a mesh as on one device: a left-to-right Transformer (with a modern block), the biLM, CoVe, static
vectors (in microbatches, with a step of Adam). Flair's language model is the biLM's."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import to_device
from bert_jax.model.config import modern_block
from bert_jax.pretraining.program import pretraining_program, step_scalars
from bert_jax.sharding import rules
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.model.test_bilm import rows
from tests.model.test_cove import batch_of
from tests.random_rows import TINY, largest_difference, with_centres
from tests.sharding.training import by_gradient, moved, state_with

SHAPE = dataclasses.asdict(dataclasses.replace(TINY, num_layers=1, hidden_dropout=0.1, scan_layers=True, initializer_range=0.3))
MODELS: dict[str, dict[str, Any]] = {
    "left_to_right": modern_block(1)
    | {"direction": "left_to_right", "layer_types": ("sliding",), "sliding_radius": 2, "type_vocab_size": 2}
    | {"num_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1, "attention_output_dropout": 0.1},
    "bilm": {"encoder": "bilm", "intermediate_size": 16},
    "cove": {"encoder": "cove", "decoder_layers": 1, "intermediate_size": 8},
    "static": {"encoder": "static", "num_layers": 0},
}
MICROBATCHES = {"static": 2}
ROWS, LENGTH = 16, 8
TEXTS = ((5, 3), (8,), (3, 2), (4, 4)) * 4
pytestmark = pytest.mark.usefixtures("small_arrays_are_spread_too")


def experiment_on(name: str, mesh: MeshConfig, scan: bool) -> PretrainingExperiment:
    phase = {"steps": 10, "length": LENGTH, "batch_size": ROWS, "max_predictions": LENGTH - 1, "learning_rate": 1.0}
    model = SHAPE | MODELS[name] | {"scan_layers": scan}
    values = {"model": model, "examples": {"pairs": "none"}, "phases": [phase], "mesh": dataclasses.asdict(mesh)}
    return PretrainingExperiment.from_dict(values)


def trained(name: str, mesh_config: MeshConfig, devices: int, scan: bool) -> tuple[Any, Any, dict[str, float]]:
    """Returns (how far a step moves each parameter, the norms of its gradients and Adam's moments with static vectors, its
    sums)."""
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    experiment = experiment_on(name, mesh_config, scan)
    program = pretraining_program(experiment, mesh)
    program = program if name == "static" else by_gradient(program)
    first = with_moments(with_counts(state_with(drawn(program.state.params), program)))
    with nn.logical_axis_rules(rules.ACTIVATION_RULES), jax.set_mesh(mesh):
        state = jax.device_put(first, program.shardings)
        batch = rows(TEXTS, LENGTH)
        if name == "cove":
            batch = {array: np.tile(x, (6, 1))[:ROWS] for array, x in batch_of().items()}
        batch = to_device(with_centres(batch) if name == "static" else batch, mesh, rules.BATCH)
        arguments, microbatches = program.arguments(state, batch, step_scalars(experiment)), MICROBATCHES.get(name, 1)
        norms = jax.device_get(program.norms_step(microbatches)(*arguments)[0]) if name == "static" else {}
        state, sums = program.training_step(microbatches)(*arguments)
    return moved(first, state), (norms, state.opt_state), {key: float(value) for key, value in sums.items()}


def drawn(shapes: Any) -> Any:
    """Returns random parameters, without compiling anything for them."""
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.3 * rng.standard_normal(x.shape, np.float32), shapes
    )


def with_counts(state: Any) -> Any:
    """Returns a state whose counts of words differ, as in a corpus, and whose context vectors are not zero."""
    if "skip_gram_head" not in state.params:
        return state
    contexts = state.params["embeddings"]["word_embeddings"]["embedding"][::-1]
    counts = np.where(np.arange(len(contexts)) < 5, 0, np.arange(len(contexts)) % 7 + 1).astype(np.float32)
    head = {"counts": counts, "context_embeddings": {"embedding": contexts}}
    return dataclasses.replace(state, params={**state.params, "skip_gram_head": head})


def with_moments(state: Any) -> Any:
    """Returns a state whose moments of Adam are not zero, so that rounding does not decide the sign of a step."""
    rng = np.random.default_rng(1)
    moments = jax.tree.map(lambda x: rng.uniform(0.001, 0.003, x.shape).astype(x.dtype) if x.ndim else x, state.opt_state)
    return dataclasses.replace(state, opt_state=moments)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("left_to_right", MeshConfig(data=4, tensor=2)),
        ("bilm", MeshConfig(data=8, zero_sharding=False)),  # the state is repeated on every device
        ("cove", MeshConfig(data=4, fsdp=2)),
        ("static", MeshConfig(data=4, fsdp=2)),
    ],
)
def test_a_predecessor_trains_on_a_mesh_as_on_one_device_with_dropout_and_negatives(name: str, mesh: MeshConfig):
    """The mesh gathers each layer when it is needed, since it has no loop over the layers; the one device has a loop."""
    alone, of_one, sums_of_one = trained(name, MeshConfig(), 1, scan=True)
    spread, (norms, moments), sums = trained(name, mesh, 8, scan=False)
    assert sums == pytest.approx(sums_of_one, rel=2e-6)
    assert sums["skipped"] == 0
    assert largest_difference((alone, of_one), (spread, (norms, moments))) < 2e-4
    assert max(np.abs(x).max() for x in jax.tree.leaves(alone)) > 1e-3, "the step must move the parameters"
    assert {shard for x in jax.tree.leaves(moments) if x.ndim > 1 for shard in x.sharding.spec} == (
        {"data", "fsdp"} if name == "static" else set()
    )
