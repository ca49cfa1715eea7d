"""Milliseconds of attention in long rows on a TPU, ours compared with the library's kernel, from the TPU compiler's schedules.

    python tests/benchmarks/benchmark_long_attention.py [--topology=v5e:2x2] [--lengths=1024,8192] [--blocks=256,512,1024]
    python tests/benchmarks/benchmark_long_attention.py --last [--topology=v5e:2x2] [--lengths=1024,8192]

It needs no TPU: both kernels, forward and backward, are compiled for one chip and estimated by the method of `python -m
bert_jax.aot` (regions under a condition count as executed, waiting for memory does not count). The input is 8,192 tokens of
packed rows, 12 heads of width 64 in bfloat16, without dropout, for a layer that sees all keys and one that sees 64 on each side.
The peer is `jax.experimental.pallas.ops.tpu.splash_attention` with a mask of the layer's type and segment ids
(`plain_modernbert.py`), in blocks of each size; the column "others" is the time of operations around the kernels. With --last:
the last layer, whose queries are the tokens of the MLM head, by XLA, by our kernel, and by our kernel for all tokens. Needs
libtpu (`requirements.txt`, extra `tpu`). All figures go to --json=FILE.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.model.attention import attention_mask, dot_product_attention
from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.layers import Dropout, gather_positions
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.topologies import parse_topology
from tests.benchmarks import plain_modernbert
from tests.benchmarks.figures import flag_parser, give

TOKENS = 8_192
SIZE = plain_modernbert.Size()
PREDICTIONS = {1_024: 315, 8_192: 2_489}
"""Tokens of a row that the MLM head reads in experiments/pretrain/modern_base.py."""


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--lengths", default="1024,8192")
    parser.add_argument("--blocks", default="256,512,1024", help="the block sizes of the library's kernel")
    parser.add_argument("--last", action="store_true", help="only the last layer, with queries for only some of the tokens")
    options = parser.parse_args()
    compiler = Compiler(parse_topology(options.topology))
    found = []
    if options.last:
        for length in map(int, options.lengths.split(",")):
            for kind, side in (("full", "XLA"), ("full", "some"), ("full", "all"), ("sliding", "all")):
                found.append({"length": length, "layer": kind, "queries": side, "ms": last(compiler, length, kind, side)})
        rows = [[f"{x['length']}", x["layer"], x["queries"], f"{x['ms']:.2f}"] for x in found]
        about = {"topology": options.topology, "libtpu": compiler.version, "figures": found}
        give(["tokens of a row", "layer", "computed by", "ms"], rows, about, options.json)
        return
    for length in map(int, options.lengths.split(",")):
        for kind in ("full", "sliding"):
            for block in (0, *map(int, options.blocks.split(","))):
                kernel, other = milliseconds(compiler, length, kind, block)
                found.append({"length": length, "layer": kind, "block": block, "kernel": kernel, "other": other})
                print(f"{length} tokens, {kind}, {block or 'ours'}: {kernel:.3f} ms", file=sys.stderr, flush=True)
    report(found, {"topology": options.topology, "libtpu": compiler.version}, options.json)


def report(found: list[dict[str, Any]], where: dict[str, str], file: pathlib.Path | None) -> None:
    """Prints a table of milliseconds, and of the ratio of each time to ours."""
    rows = []
    for one in found:
        ours = next(x for x in found if (x["length"], x["layer"], x["block"]) == (one["length"], one["layer"], 0))
        side = f"the library's, blocks of {one['block']}" if one["block"] else "ours"
        ratio = (one["kernel"] + one["other"]) / (ours["kernel"] + ours["other"])
        rows.append([f"{one['length']}", one["layer"], side, f"{one['kernel']:.2f}", f"{one['other']:.2f}", f"{ratio:.2f}"])
    give(["tokens per row", "layer", "kernel", "ms in kernels", "others", "times ours"], rows, where | {"figures": found}, file)


def milliseconds(compiler: Compiler, length: int, kind: str, block: int) -> tuple[float, float]:
    """Returns (ms in kernels, ms in other operations) of a forward and a backward pass; `block` 0 is our kernel."""
    mesh, rows, width = Mesh(np.asarray(compiler.devices[:1]), ("data",)), TOKENS // length, SIZE.width
    spread = NamedSharding(mesh, PartitionSpec("data"))
    shape = (rows, SIZE.heads, length, width // SIZE.heads) if block else (rows, length, width)
    wide = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=spread)
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=spread)
    attend: Callable[..., Any] = (
        functools.partial(plain_modernbert.attention, SIZE, kind, mesh, block=block) if block else ours(kind)
    )

    def both(q: Any, k: Any, v: Any, ids: Any, gradient: Any) -> Any:
        context, backward = jax.vjp(lambda *qkv: attend(*qkv, ids), q, k, v)
        return context, backward(gradient)

    compiled = compiler.compile(jax.jit(both).lower(wide, wide, wide, ids, wide))
    by_kind = compiler.estimate(compiled, compiler.devices[:1]).by_kind
    kernel = by_kind.get("kernel", 0.0)
    return 1e3 * kernel, 1e3 * (sum(by_kind.values()) - kernel)


def last(compiler: Compiler, length: int, kind: str, side: str) -> float:
    """Returns the milliseconds of a forward and a backward pass of the last layer's attention: by "XLA", by our kernel for
    "some" tokens, or by our kernel for "all" tokens."""
    mesh, rows, width = Mesh(np.asarray(compiler.devices[:1]), ("data",)), TOKENS // length, SIZE.width
    some = -(-PREDICTIONS[length] // 8) * 8  # in whole tiles

    def array(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=NamedSharding(mesh, PartitionSpec("data")))

    def attend(q: Any, k: Any, v: Any, ids: Any, read: Any) -> Any:
        if side == "some":
            return fused_attention((q, k, v), ids, num_heads=SIZE.heads, dropout=Dropout(0.0, None), queried=read)
        if side == "all":
            return gather_positions(ours(kind)(q, k, v, ids), read)
        q, k, v = (x.reshape(*x.shape[:2], SIZE.heads, -1).swapaxes(1, 2) for x in (q, k, v))
        mask = attention_mask(jnp.take_along_axis(ids, read, axis=1), ids)
        return dot_product_attention(q, k, v, mask, Dropout(0.0, None)).swapaxes(1, 2).reshape(rows, some, width)

    def both(q: Any, k: Any, v: Any, ids: Any, read: Any, gradient: Any) -> Any:
        context, backward = jax.vjp(lambda *qkv: attend(*qkv, ids, read), q, k, v)
        return context, backward(gradient)

    keys, ids, read = array(length, width), array(length, dtype=jnp.int32), array(some, dtype=jnp.int32)
    lowered = jax.jit(both).lower(keys if side == "all" else array(some, width), keys, keys, ids, read, array(some, width))
    return 1e3 * compiler.estimate(compiler.compile(lowered), compiler.devices[:1]).seconds


def ours(kind: str) -> Callable[..., Any]:
    """Returns our kernel for the layers of a type."""
    radius = SIZE.radius if kind == "sliding" else None
    return lambda *x: fused_attention(x[:3], x[3], num_heads=SIZE.heads, dropout=Dropout(0.0, None), radius=radius)


if __name__ == "__main__":
    main()
