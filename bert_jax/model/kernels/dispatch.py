"""Kernel or plain: what `ModelConfig.attention` and `.residual_norm` come to on the devices a program is meant for, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import attention_gpu
from bert_jax.model.kernels.attention_plan import Plan, padded_length, unfit, vmem_bytes
from bert_jax.model.residual_norm import why_plain

VMEM = {"TPU v2": 16, "TPU v3": 16, "TPU v4": 16, "TPU v5 lite": 128, "TPU v5": 64, "TPU v6 lite": 128, "TPU7x": 64}
"""MiB of a core's vector memory, by `device_kind`; an unknown kind is taken for the smallest."""

LONGEST = 8_192
"""The longest rows that were compiled, for v5e, v5p and v6e in bfloat16."""

CAPABILITY = 8.0
"""The compute capability from which NVIDIA's GPUs multiply bfloat16 matrices: Ampere's."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which kernel computes something, and the reason in words."""

    platform: str | None
    """Whose kernel, "tpu" or "gpu"; None is plain, XLA's own program."""
    why: str
    """Why not fused."""

    @property
    def fused(self) -> bool:
        """Whether a kernel computes it."""
        return self.platform is not None


def choose(config: ModelConfig, length: int) -> Choice:
    """What computes attention in rows of `length` on the ambient mesh (`jax.set_mesh`), by `config.attention`.

    The mesh says for which devices the program is meant; they need not be there. Raises UserError where "fused" is asked for
    and cannot be had.
    """
    if config.attention == "plain":
        return Choice(None, "as model.attention=plain asks")
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        reason: str | None = "fused attention is spread over a mesh, and none is set"
    else:
        reason = unsupported(device.platform, device.device_kind, length, config.head_width, config.dtype)
    if reason and config.attention == "fused":
        raise UserError(f"model.attention='fused' cannot be had: {reason}; set model.attention to 'plain' or 'auto'")
    if not reason and device.platform == "gpu" and config.attention == "auto":
        reason = "fused attention has not been timed on a GPU yet, and runs there only where model.attention=fused asks for it"
    return Choice(None, f"since {reason}") if reason else Choice(device.platform, "")


def choose_residual_norm(config: ModelConfig) -> Choice:
    """What computes residual and LayerNorm on the ambient mesh, by `config.residual_norm`.

    Raises UserError where "fused" is asked for and cannot be had.
    """
    if config.residual_norm == "plain":
        return Choice(None, "as model.residual_norm=plain asks")
    reason = why_plain(config.hidden_size, config.dtype)
    if reason and config.residual_norm == "fused":
        raise UserError(
            f"model.residual_norm='fused' cannot be had: {reason}; set model.residual_norm to 'plain' or 'auto'"
        )
    return Choice(None, f"since {reason}") if reason else Choice("tpu", "")


def in_words(config: ModelConfig, lengths: Sequence[int], mesh: Mesh) -> str:
    """What computes attention in rows of such lengths on `mesh`, what residual and LayerNorm, and why: a line for the log. Raises
    what `choose` and `choose_residual_norm` do."""
    asked, kind = f"model.attention={config.attention}", mesh.devices.flat[0].device_kind
    with jax.set_mesh(mesh):
        choices = {length: choose(config, length) for length in sorted(set(lengths))}
        norm = choose_residual_norm(config)
    plain = sorted({choice.why for choice in choices.values() if not choice.fused})
    where = " and ".join(f"{length:,}" for length, choice in choices.items() if choice.fused)
    fused = f"fused, scores stay on the chip ({asked}, {kind}, length {where})"
    parts = [fused] * bool(where) + [f"plain, {why}" for why in plain]
    of_norm = f"fused (model.residual_norm={config.residual_norm}, {kind})" if norm.fused else f"plain, {norm.why}"
    return f"attention: {'; '.join(parts)}; residual and LayerNorm: {of_norm}"


def unsupported(platform: str, kind: str, length: int, head_width: int, dtype: Any) -> str | None:
    """Why `fused_attention` cannot run on a device of that platform and kind, as a clause, or None where it can."""
    if platform == "gpu":
        return attention_gpu.unfit(head_width, dtype) or _too_old(kind)
    if platform != "tpu":
        return f"fused attention is for TPUs and GPUs, and this is a {platform}"
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


def _too_old(kind: str) -> str | None:
    """Why GPUs of that kind cannot run the kernel, or None; one that is not here is not known, and the compiler will say."""
    has = compute_capability(kind)
    if has is None or (_number(has) or 0.0) >= CAPABILITY:
        return None
    return (
        f"fused attention on a GPU needs one by NVIDIA of compute capability {CAPABILITY} (Ampere) or later, and {kind} has {has}"
    )


def compute_capability(kind: str) -> str | None:
    """What a GPU of that `device_kind` here says it has, as "8.0" (NVIDIA's) or "gfx942" (AMD's); None where there is none."""
    here = (device for device in jax.local_devices() if device.device_kind == kind)
    return next((device.compute_capability for device in here), None)


def _number(capability: str) -> float | None:
    try:
        return float(capability)
    except ValueError:
        return None
