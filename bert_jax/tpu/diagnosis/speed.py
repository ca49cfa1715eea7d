"""Measures the FLOP/s and the memory bandwidth of one device at a time, and the bandwidth of the links between devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

SECONDS = 0.15
"""The approximate duration of one measurement, in seconds. The best of `TRIES` measurements counts."""
TRIES = 3
CPU_SIDE, SIDE = 1024, 8192
"""The side of the square matrices that are multiplied. They are float32 on a CPU, and bfloat16 elsewhere (1.1e12
operations)."""
CPU_STREAMED, STREAMED = 2**25, 2**27
"""The number of elements of each of the two float32 arrays that are added. The arrays are larger than any cache."""
CPU_SENT, SENT = 2**20, 2**24
"""The number of elements of the float32 array of each device, in a sum over all devices."""


def flops(device: jax.Device) -> float:
    """Measures the operations per second of a product of two square matrices on `device`."""
    side, dtype = (CPU_SIDE, jnp.float32) if device.platform == "cpu" else (SIDE, jnp.bfloat16)
    with jax.default_device(device):  # random matrices; the scale of y keeps the elements of every product at the same size
        x = jax.random.normal(jax.random.key(0), (side, side), dtype)
        y = x * jnp.asarray(side**-0.5, dtype)
    x, y = jax.device_put((x, y), device)  # without arrays that are bound to a device, a program runs on the first device

    @jax.jit
    def multiply(x: Float[Array, "_ _"], y: Float[Array, "_ _"], times: Int[Array, ""]) -> Float[Array, ""]:
        return jax.lax.fori_loop(0, times, lambda _, x: (x @ y).astype(x.dtype), x)[0, 0]

    return 2 * side**3 / _seconds(lambda times: multiply(x, y, times))


def bandwidth(device: jax.Device) -> float:
    """Measures the bytes per second that an addition of two long arrays reads and writes on `device`."""
    count = CPU_STREAMED if device.platform == "cpu" else STREAMED

    @jax.jit
    def add(x: Float[Array, " _"], y: Float[Array, " _"], times: Int[Array, ""]) -> Float[Array, ""]:
        return jax.lax.fori_loop(0, times, lambda _, x: x + y, x)[0]

    with jax.default_device(device):
        x, y = jnp.zeros(count, jnp.float32), jnp.ones(count, jnp.float32)
    x, y = jax.device_put((x, y), device)
    return 12 * count / _seconds(lambda times: add(x, y, times))


def links(devices: Sequence[jax.Device]) -> float | None:
    """Measures the bytes per second that each device sends in a sum over `devices`. Returns None for a single device. All
    processes of these devices have to call this function. In a ring of n devices, each device sends its array 2 (n - 1) / n
    times."""
    n = len(devices)
    if n == 1:
        return None
    count = CPU_SENT if devices[0].platform == "cpu" else SENT
    mesh = Mesh(np.array(devices), ("all",))
    split = PartitionSpec("all")

    def local(x: Float[Array, " _"], times: Int[Array, ""]) -> Float[Array, " _"]:
        return jax.lax.fori_loop(0, times, lambda _, x: jax.lax.psum(x, "all") * np.float32(1 / n), x)

    summed = jax.shard_map(local, mesh=mesh, in_specs=(split, PartitionSpec()), out_specs=split, check_vma=False)
    every = jax.jit(summed, out_shardings=NamedSharding(mesh, split))
    ones = jax.jit(lambda: jnp.ones(n * count, jnp.float32), out_shardings=NamedSharding(mesh, split))()

    def run(times: int) -> Array:
        return every(ones, np.int32(times)).addressable_data(0)[:1]

    return 4 * count * 2 * (n - 1) / n / _seconds(run, times=4)


def _seconds(run: Callable[[int], Array], times: int = 0) -> float:
    """Returns the seconds of one repetition inside the compiled program `run`. The shortest of `TRIES` measurements counts.

    If `times` is 0, the number of repetitions is chosen so that they take `SECONDS`. Processes that wait for each other must
    pass the same `times`."""

    def spent(times: int) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(times))
        return time.perf_counter() - start

    spent(1)  # the first call compiles
    one = min(spent(1), spent(1))
    times = times or int(min(1000, max(2, SECONDS / one if one else math.inf)))
    start, counted = (one, times - 1) if times > 4 else (0.0, times)
    return max(min(spent(times) for _ in range(TRIES)) - start, 1e-9) / counted
