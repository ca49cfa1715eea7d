from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.data.batches import _find_shard, process_rows, process_shard, to_device
from bert_jax.errors import UserError

BATCH = {"input_ids": np.arange(64, dtype=np.int32).reshape(16, 4), "nsp_labels": np.arange(16, dtype=np.int32).reshape(16, 1)}


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec(("data", "fsdp")), PartitionSpec(None), PartitionSpec()])
def test_rows_are_sharded_over_the_batch_axes_with_their_values(spec):
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    arrays = to_device(BATCH, mesh, spec)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array), BATCH[name])
        assert array.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), array.ndim)
    ways = {PartitionSpec("data"): 2, PartitionSpec(("data", "fsdp")): 4}.get(spec, 1)
    assert arrays["input_ids"].addressable_shards[0].data.shape == (16 // ways, 4)


def test_one_process_holds_the_whole_batch():
    assert process_shard(mesh_of(data=4, fsdp=2), PartitionSpec(("data", "fsdp"))) == (0, 1)


def test_one_process_holds_every_row_once_for_any_sharding():
    for spec in (PartitionSpec("data"), PartitionSpec(("data", "fsdp")), PartitionSpec()):
        assert process_rows(mesh_of(data=2, fsdp=2, tensor=2), spec, 8).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("pieces", "parts"),
    [
        ({0: {0, 1}, 1: {2, 3}}, [(0, 2), (1, 2)]),
        ({0: {2, 3}, 1: {0, 1}}, [(1, 2), (0, 2)]),
        ({0: {0, 2}, 1: {1, 3}}, [(0, 2), (1, 2)]),  # scattered like the wiring of a TPU
        ({0: {0}, 1: {0}, 2: {1}, 3: {1}}, [(0, 2), (0, 2), (1, 2), (1, 2)]),  # a tensor group spans two hosts
        ({0: {0}, 1: {0}}, [(0, 1), (0, 1)]),
    ],
)
def test_processes_that_share_rows_make_the_same_part_of_the_batch(pieces, parts):
    assert [_find_shard(process, pieces) for process in pieces] == parts


@pytest.mark.parametrize("pieces", [{0: {0, 1}, 1: {1, 2}}, {0: {0}, 1: {1, 2}}])
def test_a_mesh_that_divides_the_batch_unevenly_over_hosts_is_an_error(pieces):
    with pytest.raises(UserError, match="overlapping or unequal parts"):
        _find_shard(0, pieces)
