"""Turns the path of JAX's names of an operation into a readable place in the model."""

from __future__ import annotations

import re

_CALL = re.compile(r"^(?:[a-z_]+\()*([^()]*)\)*$")
_MERGED = re.compile(r"/\(([^:]+):.*\)$")
"""The names of operations that the compiler has made into one: `(optimizer/reduce_sum:optimizer/reduce_sum)`."""
NOISE = {
    "closed_call", "while", "body", "cond", "checkpoint", "rematted_computation", "remat", "remat2", "scan", "pjit", "shard_map",
    "shmap_body",
    "custom_vjp_call", "custom_jvp_call", "pallas_call", "Block", "layers", "encoder", "transpose", "loss", "optimizer",
}  # fmt: skip
UNNAMED = "(unnamed)"
HEADS = ("embeddings", "pooler", "mlm_head", "nsp_head", "classifier")


def place(op_name: str) -> str:
    """`jit(train_step)/transpose(jvp(M))/M.encode/encoder/closed_call/layers/attention/output/dot_general` ->
    `layers/attention/output backward`. Operations outside of the model's modules are `loss`, or `update` outside of the
    differentiated function (gradient norm, optimizer). `layers/saved` is the saving and loading of activations by the loop over
    layers. Operations without a name of JAX's, which the compiler has added, are `(unnamed)`."""
    op_name = _MERGED.sub(r"/\1", op_name.split(";")[0])
    if not op_name.startswith(("jit(", "pjit(")):
        return f"parameters/{op_name.split('[')[0]}" if op_name.startswith(("state", "params")) else UNNAMED
    path = op_name.split("/")[1:]
    backward = any("transpose(" in part for part in path)
    again = "rematted_computation" in path
    names = [name for part in path[:-1] if (name := _plain(part))]
    inside = [name for name in names if name not in NOISE]
    in_layers = "layers" in names
    if inside and inside[0] in HEADS:
        where = "/".join(inside[:2])
    elif in_layers or inside:
        where = "/".join(["layers", *inside[:2]]) if in_layers else "/".join(inside[:2])
    elif "encoder" in names:
        where = "layers/saved" if "while" in path else "encoder"
    else:
        where = "loss" if any("jvp(" in part for part in path) else "update"
    return where + (" recomputed" if again else " backward" if backward else "")


def _plain(part: str) -> str:
    """A part of the path without the wrappers of transformations; "" for a part that names no module."""
    if re.match(r"(jit|pjit|vmap|cond|branch_\w*|custom_\w+)\b", part):
        return ""
    found = _CALL.match(part)
    name = found[1] if found else part
    return "" if not name or "." in name or name[0].isupper() or name.startswith("_") else name
