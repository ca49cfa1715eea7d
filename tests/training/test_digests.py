"""The digests of arrays: which changes they detect."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.model.layers import hash_word
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.checkpoints import by_name, differing, digests

WEIGHTS = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def digest(array: Any) -> int:
    return digests({"x": jnp.asarray(array)})[0]["x"]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, jnp.bfloat16, bool])
def test_a_digest_is_the_sum_of_hashes_of_elements_and_positions(dtype: Any):
    array = np.asarray((10 * WEIGHTS).astype(dtype))
    bits = array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize]).astype(np.uint32).reshape(-1)
    places = np.arange(array.size, dtype=np.uint32) * np.uint32(0x9E3779B9)
    wanted = int(np.asarray(hash_word(jnp.asarray(bits + places)), np.uint64).sum() % 2**32)
    assert digest(array) == wanted


def test_a_digest_does_not_depend_on_the_sharding():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    spread = jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec("data", "fsdp")))
    found, nonfinite = digests({"params": {"w": spread}, "step": jnp.int32(7)})
    assert found == {"params.w": digest(WEIGHTS), "step": digest(np.int32(7))}
    assert nonfinite == []


@pytest.mark.parametrize(("backend", "waits"), [("cpu", 2), ("tpu", 0)])
def test_digests_on_a_cpu_are_computed_one_after_another(backend: str, waits: int, monkeypatch: pytest.MonkeyPatch):
    """Concurrent programs with collectives can deadlock on a CPU."""
    waited: list[Any] = []
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    digests({"a": jnp.asarray(WEIGHTS), "b": jnp.asarray(WEIGHTS)})
    assert len(waited) == waits


def test_changed_and_swapped_elements_change_the_digest():
    changed, swapped = WEIGHTS.copy(), WEIGHTS.copy()
    changed[2, 3] = np.nextafter(changed[2, 3], np.float32(9))
    swapped[0, 1], swapped[1, 0] = WEIGHTS[1, 0], WEIGHTS[0, 1]
    assert len({digest(array) for array in (WEIGHTS, changed, swapped, WEIGHTS.T)}) == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_with_nan_and_parameters_with_infinity_are_named(value: float):
    broken = WEIGHTS.copy()
    broken[3, 5] = value
    whole, broken = jnp.asarray(WEIGHTS), jnp.asarray(broken)
    state = {"a": whole, "b": [broken], "c": jnp.array([True]), "d": jnp.int32(1), "params": {"a": whole, "b": broken}}
    assert digests(state)[1] == ([] if np.isinf(value) else ["b.0"]) + ["params.b"]


def test_an_array_with_nan_and_infinity_has_nan():
    assert digests({"x": jnp.float32([np.nan, np.inf, 1])})[1] == ["x"]


def test_differing_names_changed_and_missing_arrays():
    assert differing({"a": 1, "b": 2, "d": 4}, {"a": 1, "b": 3, "c": 0}) == ["b", "c", "d"]
    assert list(by_name({"x": {"y": 1}, "z": [2, 3]})) == ["x.y", "z.0", "z.1"]
