"""Scheduled bundles per head and row of the fused attention kernels, from the TPU compiler, on a machine without a TPU.

    python tests/benchmarks/benchmark_attention_kernel.py --topology=v5e:2x2 --topology=v6e:2x2 --lengths=128,512

Needs the libtpu that matches jax (`pip install "jax[tpu]==VERSION"`). Both kernels are compiled for one chip, with 16 heads of
width 64 in bfloat16, and the compiler writes its final schedule. A bundle is the set of instructions that a core issues in one
cycle, so the bundles divided by the clock rate are the time of a head, not counting waits for transfers. All figures go to
--json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give

HEADS, HEAD_WIDTH = 16, 64
ROWS = {64: 64, 128: 64, 256: 32, 384: 16, 512: 16}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--topology", action="append", help="a topology such as v5e:2x2; may be given several times")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--compile", nargs=3, metavar=("TOPOLOGY", "LENGTH", "RATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_kernels(options.compile[0], int(options.compile[1]), float(options.compile[2]))
        return
    found = []
    for topology in options.topology or ["v5e:2x2"]:
        for length in map(int, options.lengths.split(",")):
            for rate in (0.0, 0.1):
                forward, backward = bundles(topology, length, rate)
                found.append({"topology": topology, "length": length, "dropout": rate, "forward": forward, "backward": backward})
                print(f"{topology}, length {length}, dropout {rate}: compiled", file=sys.stderr, flush=True)
    report(found, options.json)


def report(found: list[dict[str, Any]], file: pathlib.Path | None) -> None:
    """Prints a table of bundles per head and row."""
    rows = [
        [one["topology"], str(one["length"]), str(one["dropout"]), f"{one['forward']:.0f}", f"{one['backward']:.0f}"]
        for one in found
    ]
    give(["topology", "length", "dropout", "bundles forward", "backward"], rows, {"figures": found}, file)


def bundles(topology: str, length: int, rate: float) -> tuple[float, float]:
    """Returns the bundles per head of one row, forward and backward. Each compilation runs in its own process, since libtpu reads
    its flags only once."""
    with tempfile.TemporaryDirectory() as dump:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, __file__, "--compile", topology, str(length), str(rate)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        heads_of_a_step = json.loads(done.stdout.splitlines()[-1])
        kernels = [
            int(total.group(1))
            for file in pathlib.Path(dump).glob("*jvp*schedule-analysis_final_bundles.txt")
            if "tpu_custom_call" in (text := file.read_text()) and (total := re.search(r"total scheduled bundles:\s+(\d+)", text))
        ]
    forward, backward = sorted(kernels)
    return forward / heads_of_a_step, backward / heads_of_a_step


def compile_kernels(topology: str, length: int, rate: float) -> None:
    """Compiles attention and its gradient for one chip and prints how many heads one grid step covers, for rows of one block
    only."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from bert_jax.model.kernels.attention_plan import BLOCK, TpuPlan
    from bert_jax.model.kernels.fused_attention import fused_attention
    from bert_jax.model.layers import Dropout

    if length > BLOCK:
        raise SystemExit(f"length {length} is done in a loop, whose trips the schedule does not count; choose up to {BLOCK}")
    chip = SingleDeviceSharding(topologies.get_topology_desc(topology, "tpu").devices[0])
    rows = ROWS.get(length, 16)

    def both(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array, seed: jax.Array, gradient: jax.Array) -> tuple:
        def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            dropout = Dropout(rate, seed if rate else None)
            return fused_attention((query, key, value), ids, num_heads=HEADS, dropout=dropout)

        context, backward = jax.vjp(attend, query, key, value)
        return context, backward(gradient)

    wide = jax.ShapeDtypeStruct((rows, length, HEADS * HEAD_WIDTH), jnp.bfloat16, sharding=chip)
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=chip)
    jax.jit(both).lower(wide, wide, wide, ids, jax.ShapeDtypeStruct((), jnp.uint32, sharding=chip), wide).compile()
    plan = TpuPlan.of(wide.shape, HEADS, rate, interpret=False)
    print(plan.step[0] * plan.step[1] * plan.heads)


if __name__ == "__main__":
    main()
