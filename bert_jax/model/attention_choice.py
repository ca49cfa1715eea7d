"""Fused attention or plain: what `ModelConfig.attention` comes to on the devices a program is meant for, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.model.attention_plan import Plan, padded_length, unfit, vmem_bytes
from bert_jax.model.settings import ModelConfig
from bert_jax.terminal import UserError

VMEM = {"TPU v2": 16, "TPU v3": 16, "TPU v4": 16, "TPU v5 lite": 128, "TPU v5": 64, "TPU v6 lite": 128, "TPU7x": 64}
"""MiB of a core's vector memory, by `device_kind`; an unknown kind is taken for the smallest."""

LONGEST = 8_192
"""The longest rows that were compiled, for v5e, v5p and v6e in bfloat16."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What computes attention, and the reason in words."""

    fused: bool
    why: str
    """Why not fused."""


def choose(config: ModelConfig, length: int) -> Choice:
    """What computes attention in rows of `length` on the ambient mesh (`jax.set_mesh`), by `config.attention`.

    The mesh says for which devices the program is meant; they need not be there. Raises UserError where "fused" is asked for
    and cannot be had.
    """
    if config.attention == "plain":
        return Choice(False, "as model.attention=plain asks")
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        reason: str | None = "fused attention is spread over a mesh, and none is set"
    else:
        reason = unsupported(device.platform, device.device_kind, length, config.head_width, config.dtype)
    if reason and config.attention == "fused":
        raise UserError(f"model.attention='fused' cannot be had: {reason}; set model.attention to 'plain' or 'auto'")
    return Choice(False, f"since {reason}") if reason else Choice(True, "")


def in_words(config: ModelConfig, lengths: Sequence[int], mesh: Mesh) -> str:
    """What computes attention in rows of such lengths on `mesh`, and why: a line for the log. Raises what `choose` does."""
    asked = f"model.attention={config.attention}"
    with jax.set_mesh(mesh):
        choices = {length: choose(config, length) for length in sorted(set(lengths))}
    plain = sorted({choice.why for choice in choices.values() if not choice.fused})
    where = " and ".join(f"{length:,}" for length, choice in choices.items() if choice.fused)
    fused = f"fused, scores stay on the chip ({asked}, {mesh.devices.flat[0].device_kind}, length {where})"
    parts = [fused] * bool(where) + [f"plain, {why}" for why in plain]
    return f"attention: {'; '.join(parts)}"


def unsupported(platform: str, kind: str, length: int, head_width: int, dtype: Any) -> str | None:
    """Why `fused_attention` cannot run on a device of that platform and kind, as a clause, or None where it can."""
    if platform != "tpu":
        return f"fused attention is a TPU kernel, and this is a {platform}"
    reason = unfit(head_width, dtype)
    if reason:
        return reason
    if length > LONGEST:
        return f"fused attention is compiled up to length {LONGEST:,}, and {length:,} is longer"
    has = VMEM.get(kind, min(VMEM.values()))
    plan = Plan(64, padded_length(length), 1, head_width, 0.5, False)  # rows enough to fill a grid step
    needs = vmem_bytes(plan, dtype) / 2**20
    if needs <= has:
        return None
    return (
        f"fused attention keeps keys and values of a row on the chip, which takes {needs:.0f} MiB at length {length:,} and head "
        f"width {head_width} in {jnp.dtype(dtype).name}, and a core of {kind} has {has}"
    )
