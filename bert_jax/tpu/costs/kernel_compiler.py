"""Compiles Pallas kernels one at a time, with the dumps of the compiler enabled. It runs as a separate process, because the
compiler reads this setting only once.

    python -m bert_jax.tpu.costs.kernel_compiler TOPOLOGY < calls.json

The input is the list of the values of `kernel_cycles.kernel_calls`. The last line of the output is a JSON list. For each kernel,
it has the text of the final schedule, or null if the kernel could not be compiled.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.files import JsonObject, parse_json
from bert_jax.tpu.costs.topologies import parse_topology, prepare_compiler, silence, topology_devices

DTYPES = {"pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "u8": "uint8", "s16": "int16",
          "u16": "uint16", "s32": "int32", "u32": "uint32"}  # fmt: skip


def schedule_text(call: JsonObject, devices: list[jax.Device], dumps: pathlib.Path) -> str | None:
    """Compiles one kernel and returns the text of its schedule. Returns None if the kernel could not be compiled."""
    for path in dumps.glob("*"):
        path.unlink()
    results, operands = ([_shape(*array) for array in call[name]] for name in ("results", "operands"))
    kernel = jax.ffi.ffi_call("tpu_custom_call", results, custom_call_api_version=1, legacy_backend_config=call["config"])
    everywhere = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere) for x in operands]
    try:
        with silence():
            jax.jit(lambda *xs: kernel(*xs)).lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return None
    for analysis in sorted(dumps.glob("*-schedule-analysis_final_bundles.txt")):
        if "-TLP-" not in analysis.name and '"tpu_custom_call"' in analysis.read_text(errors="replace"):
            number, _, _ = analysis.name.removesuffix("-schedule-analysis_final_bundles.txt").rpartition("-")
            for text in dumps.glob(f"{number}-*-final_bundles.txt"):
                if "schedule-analysis" not in text.name:
                    return text.read_text(errors="replace")
    return None


def _shape(dtype: str, shape: list[int]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(DTYPES[dtype]))


def main() -> None:
    """Reads kernel calls as JSON from standard input, and prints their schedules. The first argument is the name of the
    topology."""
    calls = parse_json(sys.stdin.read())
    with tempfile.TemporaryDirectory(prefix="bert_jax_schedules_") as dumps:
        prepare_compiler(os.fspath(dumps))
        devices = topology_devices(parse_topology(sys.argv[1]))
        jax.config.update("jax_enable_compilation_cache", False)
        print(json.dumps([schedule_text(call, devices, pathlib.Path(dumps)) for call in calls]))


if __name__ == "__main__":
    main()
