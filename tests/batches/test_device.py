from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.batches.device import check_batch_size, process_shard, to_device
from bert_jax.terminal import UserError

BATCH = {"input_ids": np.arange(16 * 4, dtype=np.int32).reshape(16, 4), "nsp_labels": np.arange(16, dtype=np.int32).reshape(16, 1)}


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec(("data", "fsdp")), PartitionSpec(None), PartitionSpec()])
def test_rows_are_laid_over_the_batch_axes_and_keep_their_values(spec):
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    arrays = to_device(BATCH, mesh, spec)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array), BATCH[name])
        assert array.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), array.ndim)
    ways = {PartitionSpec("data"): 2, PartitionSpec(("data", "fsdp")): 4}.get(spec, 1)
    assert arrays["input_ids"].addressable_shards[0].data.shape == (16 // ways, 4)


def test_a_batch_that_does_not_divide_over_the_mesh_is_an_error_that_names_sizes_that_do():
    mesh = mesh_of(data=4, fsdp=2)
    with pytest.raises(UserError, match=r"batch_size=20 .* data=4, fsdp=2 split it 8 ways; 16 and 24 would do"):
        check_batch_size(20, mesh, PartitionSpec(("data", "fsdp")))
    with pytest.raises(UserError, match="batch_size=6 .*; 8 would do"):
        to_device({"input_ids": np.zeros((6, 3), np.int32)}, mesh, PartitionSpec(("data", "fsdp")))


def test_one_process_holds_the_whole_batch():
    assert process_shard(mesh_of(data=4, fsdp=2), PartitionSpec(("data", "fsdp"))) == (0, 1)
