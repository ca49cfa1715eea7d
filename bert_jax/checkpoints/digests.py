"""A number for the contents of each array of a state: what is read is what was written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.model.layers import mix

Array = jax.Array


def digests(state: PyTree[jax.Array]) -> tuple[dict[str, int], list[str]]:
    """(the digest of every array by its name, the names of those that hold NaN or infinity).

    A digest is the sum, modulo 2**32, of a mixture of each element's bits with the element's place in the whole array. So it is
    the same however the array is spread over devices and processes; each device reads its own part once, and nothing is copied
    to the host. An error in a single element always changes it, others do but for one in 2**32. Collective: every process calls
    it.
    """
    groups: dict[NamedSharding | None, dict[str, Array]] = {}
    for name, array in by_name(state).items():
        sharding = array.sharding
        whole = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
        groups.setdefault(whole, {})[name] = array
    found, nonfinite = {}, []
    for whole, members in groups.items():  # one, but for scalars that are on no mesh
        for name, (total, bad) in jax.device_get(_compiled(whole)(members)).items():
            found[name] = int(total)
            if bad:
                nonfinite.append(name)
    return found, nonfinite


def by_name(tree: PyTree[Array]) -> dict[str, Array]:
    """The leaves of a tree by the keys that lead to them: `params.pooler.dense.bias`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def differing(found: Mapping[str, int], written: Mapping[str, int]) -> list[str]:
    """The names of arrays that have another digest than was written, or that only one side has."""
    return sorted(name for name in {*found, *written} if found.get(name) != written.get(name))


@functools.cache
def _compiled(whole: NamedSharding | None) -> Callable[[dict[str, Array]], dict[str, tuple[Array, Array]]]:
    """`_sum_and_nonfinite` of all arrays on one mesh, as one program."""
    return jax.jit(lambda arrays: {name: _sum_and_nonfinite(x) for name, x in arrays.items()}, out_shardings=whole)


def _sum_and_nonfinite(x: Array) -> tuple[Array, Array]:
    """(uint32 digest, whether an element is not finite)."""
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = (x if x.dtype == bool else jax.lax.bitcast_convert_type(x, unsigned)).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    words = mix(bits + place * np.uint32(0x9E3779B9))
    bad = ~jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)
    start = (np.uint32(0), np.False_)
    # One reduction of both: on a CPU, XLA runs it in a fifteenth of the time of two.
    total, any_bad = jax.lax.reduce((words, bad), start, lambda a, b: (a[0] + b[0], a[1] | b[1]), tuple(range(x.ndim)))
    return total, any_bad
