"""Calibrates the estimates: applies the same method to two programs of known speed, a matrix product and an addition."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from bert_jax.files import parse_json, write_json
from bert_jax.storage.paths import cache_directory
from bert_jax.tpu.costs.compiling import Compiler

SIDE = 8_192
"""Rows of the square bfloat16 matrices of the product: 1.1e12 operations, arrays of 134 MB; real chips reach over 90 % of
peak."""
STREAMED = 2**28
"""Elements of the two float32 arrays of the addition: 2.1 GB read, 1.1 GB written; real chips reach over 80 % of the
bandwidth."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The fractions of the data sheet's rates that the method estimates for two programs that come close to them on real
    chips."""

    matmul: float
    """Of the matrix product, as a fraction of the peak FLOP/s."""
    stream: float
    """Of the addition, as a fraction of the memory bandwidth."""


def calibrate(compiler: Compiler, cache: pathlib.Path | None = None) -> Calibration:
    """The calibration of a chip, kept on disk for each version of the compiler and of the method."""
    chip = compiler.topology.chip
    cache = cache or cache_directory() / "calibration"
    kept = cache / f"{chip.name}-{compiler.version}-2.json"
    if kept.exists():
        return Calibration(**parse_json(kept.read_text()))
    matrix, row = ((SIDE, SIDE), jnp.bfloat16), ((STREAMED,), jnp.float32)
    product = _seconds(compiler, lambda a, b: a @ b, matrix, matrix)
    stream = _seconds(compiler, lambda a, b: a + b, row, row)
    found = Calibration(
        2 * SIDE**3 / product / (chip.peak_flops / chip.devices), 12 * STREAMED / stream / (chip.bandwidth / chip.devices)
    )
    cache.mkdir(parents=True, exist_ok=True)
    write_json(kept, dataclasses.asdict(found))
    return found


def _seconds(compiler: Compiler, function: Callable[..., jax.Array], *arrays: tuple[tuple[int, ...], DTypeLike]) -> float:
    """The estimated seconds of `function` on one device."""
    one = NamedSharding(Mesh(np.array(compiler.devices[:1]), ("x",)), PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=one) for shape, dtype in arrays]
    return compiler.estimate(compiler.compile(jax.jit(function).lower(*arguments))).seconds
