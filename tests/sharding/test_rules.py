from __future__ import annotations

import dataclasses
import json
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.sharding import rules
from bert_jax.sharding.config import AXES, MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import (
    ACTIVATION_RULES,
    automatic_axes,
    check_batch_size,
    data_dimension,
    drop_indivisible_axes,
    parameter_shardings,
    parameter_shards,
    state_shardings,
    supports_zero,
    zero_shardings,
)
from tests.golden.make_partition_specs import GOLDEN, LAYOUTS, partition_specs
from tests.random_rows import TINY


@pytest.mark.parametrize("layout", LAYOUTS)
def test_partition_specs_of_bert_base_equal_the_golden_file(layout: str):
    found, golden = partition_specs(layout), json.loads(GOLDEN.read_text())[layout]
    assert json.loads(json.dumps(found)) == golden


@pytest.mark.parametrize(
    ("layout", "axis"),
    [("bert_adam", "fsdp"), ("bert_adam on 8x1x1", "data"), ("bert_adam on 4x2x1", "data"), ("bert_adam on 4x1x2", "data")],
)
def test_every_large_array_of_bert_base_is_sharded(layout: str, axis: str):
    """No array of a megabyte or more may be whole on every device, except for the rows of the two small embedding tables."""
    specs = partition_specs(layout)
    boxed = abstract_parameters(ModelConfig(**published("base"), vocab_multiple=128))
    for path, leaf in jax.tree_util.tree_flatten_with_path(boxed)[0]:
        name = "params/" + jax.tree_util.keystr(path[:-1], simple=True, separator="/")
        if leaf.size * 4 >= 1 << 20:
            assert axis in specs[name], name


@pytest.mark.parametrize(
    ("config", "devices", "shape"),
    [
        (MeshConfig(), 8, (8, 1, 1)),
        (MeshConfig(), 1, (1, 1, 1)),
        (MeshConfig(tensor=2), 8, (4, 1, 2)),
        (MeshConfig(data=2, fsdp=-1, tensor=2), 8, (2, 2, 2)),
        (MeshConfig(data=1, tensor=-1), 8, (1, 1, 8)),
    ],
)
def test_minus_one_takes_the_remaining_devices(config: MeshConfig, devices: int, shape: tuple[int, int, int]):
    mesh = make_mesh(config, jax.devices()[:devices])
    assert tuple(mesh.shape[axis] for axis in ("data", "fsdp", "tensor")) == shape


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": 3}, "mesh data=3 x fsdp=1 x tensor=1 needs 3 devices, but there are 8; set one axis to -1"),
        ({"tensor": 3}, "mesh data=-1 x fsdp=1 x tensor=3 needs a multiple of 3 devices, but there are 8"),
        ({"data": 2, "fsdp": 2}, "needs 4 devices, but there are 8"),
        ({"data": 16}, "needs 16 devices, but there are 8"),
        ({"tensor": 16}, "needs a multiple of 16 devices, but there are 8"),
        ({"fsdp": -1}, "only one of mesh.data, mesh.fsdp and mesh.tensor can be -1"),
        ({"fsdp": 0}, "mesh.fsdp=0 must be at least 1, or -1"),
        ({"data": -2}, "mesh.data=-2 must be at least -1"),
        ({"data": 2**20}, "needs 1,048,576 devices, but there are 8"),
        ({"data": 2**20 + 1}, "mesh.data=1048577 must be at least -1 and at most 1,048,576"),
    ],
)
def test_a_mesh_that_does_not_fit_is_an_error(fields: dict[str, int], message: str):
    with pytest.raises(UserError) as error:
        make_mesh(MeshConfig(**fields))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("model", "mesh", "message"),
    [
        ({"vocab_size": 63}, {"tensor": 2}, "parameter embeddings/word_embeddings/embedding has a dimension of 63"),
        ({"vocab_size": 63}, {"tensor": 2}, "mesh.tensor=2; set model.vocab_multiple=128"),
        ({"num_heads": 2}, {"tensor": 4}, r"attention/key/bias has a dimension of 2, which is not divisible by mesh.tensor=4; "),
        ({"num_heads": 2}, {"tensor": 4}, "choose a mesh.tensor that divides it"),
        ({"intermediate_size": 33}, {"tensor": 2}, "feed_forward/intermediate/bias has a dimension of 33"),
        ({"hidden_size": 12, "num_heads": 2}, {"data": 1, "fsdp": 8}, "a dimension of 12, which is not divisible by mesh.fsdp=8"),
    ],
)
def test_a_dimension_that_does_not_divide_is_named_with_the_remedy(model: dict[str, int], mesh: dict[str, int], message: str):
    boxed = abstract_parameters(dataclasses.replace(TINY, **model))
    with pytest.raises(UserError) as error:
        parameter_shardings(boxed, make_mesh(MeshConfig(**mesh)))
    assert message in str(error.value)


def test_the_remedy_for_a_vocabulary_also_divides_over_an_odd_number_of_devices():
    mesh = make_mesh(MeshConfig(tensor=3), jax.devices()[:3])
    padded = dataclasses.replace(TINY, hidden_size=12, num_heads=3, intermediate_size=24, vocab_size=128, vocab_multiple=128)
    with pytest.raises(UserError, match=r"a dimension of 128, .*; set model\.vocab_multiple=384$"):
        parameter_shardings(abstract_parameters(padded), mesh)
    parameter_shardings(abstract_parameters(dataclasses.replace(padded, vocab_multiple=384)), mesh)


def test_a_padded_vocabulary_divides_and_unsplit_dimensions_may_be_odd():
    boxed = abstract_parameters(dataclasses.replace(TINY, vocab_size=63, vocab_multiple=16, num_layers=3, max_position=33))
    shardings = parameter_shardings(boxed, make_mesh(MeshConfig(tensor=2)))
    assert shardings["embeddings"]["word_embeddings"]["embedding"].shard_shape((64, TINY.hidden_size))[0] == 32


@pytest.mark.parametrize("sizes", [(8, 1, 1, 1), (2, 2, 2, 1), (1, 4, 1, 2), (1, 2, 2, 2)])
def test_the_number_of_parts_of_parameters_counts_every_axis_of_the_rules(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    """The last axis is a new one, which splits the width of the heads."""
    monkeypatch.setattr(rules, "RULES", tuple({**dict(rules.RULES), "head_width": "new"}.items()))
    mesh = Mesh(np.reshape(jax.devices(), sizes), (*AXES, "new"))
    boxed = abstract_parameters(TINY)
    shapes = [leaf.shape for leaf in jax.tree.leaves(boxed)]
    shardings = jax.tree.leaves(parameter_shardings(boxed, mesh))
    parts = [math.prod(shape) // math.prod(s.shard_shape(shape)) for shape, s in zip(shapes, shardings, strict=True)]
    assert parameter_shards(mesh) == max(parts) == math.prod(sizes[1:])


def test_shardings_of_parameters_do_not_depend_on_the_ambient_mesh():
    boxed, mesh = abstract_parameters(TINY), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        inside = parameter_shardings(boxed, mesh)
    assert inside == parameter_shardings(boxed, mesh)


def test_an_array_of_a_state_is_split_like_the_parameter_at_its_path_or_else_the_first_of_its_shape():
    mesh, shape = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), jax.ShapeDtypeStruct((4, 2), jnp.float32)
    params = {"a": {"kernel": shape}, "b": {"kernel": shape}}
    rows, columns, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), (None, "tensor"), ()))
    shardings = {"a": {"kernel": rows}, "b": {"kernel": columns}}
    state = {"mu": params, "other": shape, "step": jax.ShapeDtypeStruct((), jnp.int32)}
    assert state_shardings(state, params, shardings, mesh) == {"mu": shardings, "other": rows, "step": whole}


@pytest.mark.parametrize(
    ("rows", "accumulation", "message"),
    [
        (22, 1, "x.batch_size=22 is not divisible by 4 devices along data x fsdp; nearest: 20 or 24"),
        (18, 1, "nearest: 16 or 20"),
        (2, 1, "nearest: 4"),
        (24, 4, "is not divisible by 4 devices along data x fsdp times 4 microbatches; nearest: 16 or 32"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(rows: int, accumulation: int, message: str):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    for fits in (4 * accumulation, 32):
        check_batch_size("x.batch_size", fits, accumulation, mesh)
    with pytest.raises(UserError) as error:
        check_batch_size("x.batch_size", rows, accumulation, mesh)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("shape", "supported"),
    [((2, 1, 1), True), ((2, 2, 1), True), ((2, 1, 2), True), ((2, 2, 2), False), ((1, 2, 1), False), ((1, 1, 1), False)],
)
def test_the_optimizer_state_is_sharded_over_data_unless_fsdp_and_tensor_split_arrays(
    shape: tuple[int, int, int], supported: bool
):
    data, fsdp, tensor = shape
    mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: data * fsdp * tensor])
    assert supports_zero(mesh) == supported


def test_arrays_from_32768_elements_per_layer_are_sharded():
    mesh = make_mesh(MeshConfig(data=8))
    shapes = {"alone": (4_096, 8), "small": (4_095, 8), "layers": {"large": (8, 4_096, 8), "small": (8, 4_095, 8)}}
    shapes = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=lambda x: isinstance(x, tuple))
    whole = jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(*[None] * x.ndim)), shapes)
    found = jax.tree.map(lambda sharding: data_dimension(sharding.spec), zero_shardings(whole, shapes, mesh))
    assert found == {"alone": 0, "small": -1, "layers": {"large": 1, "small": -1}}


def test_a_kernel_is_split_only_on_a_mesh_of_two_or_more_devices():
    assert automatic_axes() == set()
    for devices, axes in ((1, set()), (2, set(AXES))):
        with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:devices])):
            assert automatic_axes() == axes


@pytest.mark.parametrize(
    ("sizes", "split"),
    [
        ((8, 5, 2), (("data", "fsdp"), None, ("tensor",))),
        ((4, 5, 3), (("data", "fsdp"), None, None)),
        ((5, 4, 4), (None, None, ("tensor",))),
        ((2, 4, 1), (None, None, None)),
    ],
)
def test_a_dimension_is_split_only_over_axes_that_divide_it(sizes: tuple[int, int, int], split: tuple):
    spec = PartitionSpec(("data", "fsdp"), None, "tensor")
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        assert drop_indivisible_axes(spec, sizes) == PartitionSpec(*split)
