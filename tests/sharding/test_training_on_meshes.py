"""Every mesh gives the results of one device, and really shards what it claims to shard."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.objectives.objective import Objective
from bert_jax.sharding.config import AXES, MeshConfig
from bert_jax.sharding.mesh import device_grid, make_mesh
from bert_jax.training import data_parallel
from bert_jax.training.data_parallel import gradients_over_data
from bert_jax.training.steps import StepSeed
from tests.random_rows import largest_difference
from tests.sharding.test_mesh import chips
from tests.sharding.training import DROPPING, begun, experiment_on, few_arrays_on, program_of, train_by_a_teacher

MESHES = {
    "data 4 x fsdp 2": MeshConfig(data=4, fsdp=2),
    "data 2 x fsdp 2 x tensor 2": MeshConfig(data=2, fsdp=2, tensor=2),
}
COLUMNS, ROWS = [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]  # of eight chips, two by four
pytestmark = pytest.mark.usefixtures("small_arrays_are_spread_too")


@functools.cache
def on_one_device() -> tuple[Any, Any, dict[str, float]]:
    return train_by_a_teacher(MeshConfig(), devices=1)


@functools.cache
def on_mesh(name: str) -> tuple[Any, Any, dict[str, float]]:
    return train_by_a_teacher(MESHES[name])


@pytest.mark.parametrize("name", MESHES)
def test_distillation_on_a_mesh_equals_one_device_with_dropout(name: str):
    """The teacher is split over fsdp and tensor; the student's state is sharded over data too, unless both are above 1. Steps of
    Adam are in `test_finetuning_on_meshes.py`, and with moments sharded over data in `test_predecessors_on_meshes.py`."""
    (_, alone, sums_of_one), (state, spread, sums) = on_one_device(), on_mesh(name)
    assert sums == pytest.approx(sums_of_one, rel=2e-6)
    assert sums["soft_loss"] > 0
    assert sums["skipped"] == 0
    assert int(state.step) == 1
    assert largest_difference(alone, spread) < 2e-5
    assert max(np.abs(x).max() for x in jax.tree.leaves(alone)) > 1e-3, "the step must move the parameters"


@pytest.mark.parametrize(
    ("topology", "config", "sides"),
    [
        ("v5e:8x8", MeshConfig(), (8, 8)),
        ("v6e:8x16", MeshConfig(), (8, 16)),
        ("v5e:7x9", MeshConfig(), None),  # too few chips
        ("v5p:4x4x4", MeshConfig(), None),
        ("v5e:1x64", MeshConfig(), None),
        ("v5e:8x8", MeshConfig(tensor=2), None),
    ],
)
def test_collectives_go_along_one_dimension_at_a_time_from_64_chips_on(topology: str, config: MeshConfig, sides: Any):
    found = data_parallel.rings_along_data(Mesh(device_grid(config, chips(topology)), AXES))
    if sides is None:
        assert found == [None]
    else:
        places = np.arange(math.prod(sides)).reshape(sides)
        assert found == [places.T.tolist(), places.tolist()]


class Total(Objective):
    """The sum of the vectors of all words, and of all other arrays."""

    def sums(self, params: Any, batch: Any, seed: Any) -> dict[str, jax.Array]:
        others = sum(array.sum() for name, array in params.items() if name != "embedding")
        return {"total": params["embedding"][batch["input_ids"]].sum() + others}

    def loss(self, sums: Any, counts: Any) -> jax.Array:
        return sums["total"]


@pytest.mark.parametrize("rings", [None, [COLUMNS, ROWS]], ids=["at once", "by dimension"])
def test_gradients_exchanged_in_bfloat16_differ_only_by_rounding(rings: Any):
    """There are 8 summands, each rounded to 2**-9 of its size, and so are their sums."""

    class Products(Total):
        def sums(self, params: Any, batch: Any, seed: Any) -> dict[str, jax.Array]:
            return {"total": (batch["input_ids"] @ params["kernel"]).sum()}

    narrow = MeshConfig(data=8, reduce_dtype="bfloat16")
    assert program_of(experiment_on(narrow)).reduce_dtype == "bfloat16"
    mesh, (rows, kernel) = make_mesh(narrow), np.random.default_rng(0).random((2, 8, 64), np.float32)
    shardings = {"kernel": NamedSharding(mesh, PartitionSpec("data"))}
    with jax.set_mesh(mesh):
        params = jax.device_put({"kernel": kernel.reshape(64, 8)}, shardings)
        run = jax.jit(gradients_over_data(shardings, mesh, DROPPING, "bfloat16", rings), static_argnums=(0, 5))
        grads, sums = run(Products(), params, {"input_ids": rows}, {}, StepSeed(0, np.int32(0)), 1)
    wanted = np.repeat(rows.sum(0, dtype=np.float64)[:, None], 8, 1)
    assert 2**-12 < largest_difference(wanted, grads["kernel"]) < 8 * 2**-8
    assert float(sums["total"]) == pytest.approx((rows.astype(np.float64) @ kernel.reshape(64, 8)).sum(), rel=1e-6)


def test_word_tables_are_gathered_in_the_compute_dtype_and_other_arrays_in_float32():
    mesh = make_mesh(MeshConfig())
    shardings = {name: NamedSharding(mesh, PartitionSpec("data")) for name in ("embedding", "counts")}
    differentiate = gradients_over_data(shardings, mesh, dataclasses.replace(DROPPING, dtype="bfloat16"), "float32")
    params = {"embedding": np.zeros((8, 2), np.float32), "counts": np.zeros((8, 3), np.float32)}
    batch = {"input_ids": np.zeros((8, 1), np.int32)}
    with jax.set_mesh(mesh):
        made = jax.make_jaxpr(lambda p: differentiate(Total(), p, batch, {}, StepSeed(0, np.int32(0)), 1))(params)
    gathered = re.findall(r"(\w+)\[(\d+,\d+)\] = all_gather", str(made))
    assert {*gathered} == {("bf16", "8,2"), ("f32", "8,3")}


def test_gradients_of_a_word_add_up_in_float32_for_any_compute_dtype():
    """In bfloat16, a sum of ones stops at 256."""
    mesh, places = make_mesh(MeshConfig()), 8 * 1_000
    shardings = {"embedding": NamedSharding(mesh, PartitionSpec("data"))}
    differentiate = gradients_over_data(shardings, mesh, dataclasses.replace(DROPPING, dtype="bfloat16"), "float32")
    batch = {"input_ids": np.zeros((places, 1), np.int32)}
    with jax.set_mesh(mesh):
        params = jax.device_put({"embedding": np.zeros((8, 2), np.float32)}, shardings)
        run = jax.jit(functools.partial(differentiate, Total()), static_argnums=4)
        grads, _ = run(params, batch, {}, StepSeed(0, np.int32(0)), 1)
    np.testing.assert_array_equal(grads["embedding"][0], places)


def test_each_data_device_holds_its_shard_of_every_large_array():
    (state, *_), m = on_mesh("data 4 x fsdp 2"), DROPPING
    layers = state.params["encoder"]["layers"]
    wanted = [
        (layers["feed_forward"]["output"]["kernel"], (m.num_layers, m.intermediate_size // 4, m.hidden_size // 2)),
        (layers["attention"]["query"]["kernel"], (m.num_layers, m.hidden_size // 2, m.num_heads // 4, m.head_width)),
        (layers["feed_forward_layer_norm"]["scale"], (m.num_layers, m.hidden_size)),
    ]
    for array, shape in wanted:
        assert {shard.data.shape for shard in array.addressable_shards} == {shape}


def test_initial_weights_do_not_depend_on_the_mesh():
    experiments = {1: few_arrays_on(MeshConfig()), 8: few_arrays_on(MeshConfig(data=1, fsdp=2, tensor=4))}
    alone, spread = (jax.device_get(begun(one, program_of(one, n))) for n, one in experiments.items())
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, alone, spread)))


def test_each_device_holds_only_its_shard_of_parameters_and_optimizer_state():
    name = "data 2 x fsdp 2 x tensor 2"
    (state, *_), m = on_mesh(name), DROPPING
    adam = program_of(experiment_on(MESHES[name])).state.opt_state[0]
    wanted = {
        ("embeddings", "word_embeddings", "embedding"): (m.vocab_size // 2, m.hidden_size // 2),
        ("encoder", "layers", "attention", "query", "kernel"): (
            m.num_layers,
            m.hidden_size // 2,
            m.num_heads // 2,
            m.head_width,
        ),
        ("encoder", "layers", "feed_forward", "output", "kernel"): (
            m.num_layers,
            m.intermediate_size // 2,
            m.hidden_size // 2,
        ),
        ("encoder", "layers", "feed_forward_layer_norm", "scale"): (m.num_layers, m.hidden_size),
    }
    for path, shape in wanted.items():
        array, *slots = (functools.reduce(lambda node, key: node[key], path, tree) for tree in (state.params, adam.mu, adam.nu))
        assert {shard.data.shape for shard in array.addressable_shards} == {shape}, path
        assert len(array.addressable_shards) == 8
        assert {slot.sharding.shard_shape(slot.shape) for slot in slots} == {shape}, path


def test_fsdp_8_divides_device_memory_by_nearly_eight():
    def bytes_of_a_device(mesh: MeshConfig) -> int:
        state = program_of(experiment_on(mesh)).state
        sizes = jax.tree.map(lambda x: 4 * math.prod(x.sharding.shard_shape(x.shape)), state)
        return sum(jax.tree.leaves(sizes))

    # at width 16 the LayerNorms and some biases, which stay whole, are a visible fraction; for Base they are 0.1 %
    assert bytes_of_a_device(MeshConfig(data=1, fsdp=8)) < bytes_of_a_device(MeshConfig(data=8, zero_sharding=False)) / 4
