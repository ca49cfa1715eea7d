"""Chooses between a kernel and plain XLA operations for attention and LayerNorm(x + dropout(y)), and returns the reason.

The choice depends on `Execution.attention`, on `Execution.residual_norm`, and on the kind of device that a program is compiled
for. The device need not be attached. When a run starts, the run changes "auto" to "plain" for each kernel that disagrees with
the plain path on that kind of chip (`self_test.compare_kernels_once`, `Execution.without_kernels`). Then `resolve` stores the
choice in `config.Target`, with the reason for each operation that has no kernel. The model and the log read it there; only the
length of the rows is checked later, when it is known. `sharding.kernels.resolve` calls `resolve` with the mesh.

    operation        plain                                  fused                            kernels
    attention        model/attention.py                     fused_attention.py               attention_tpu.py, attention_gpu.py
    residual norm    model/layers.py                        residual_norm.py                 residual_norm_tpu.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from bert_jax.errors import UserError
from bert_jax.hardware import vector_memory
from bert_jax.interface.words import counted
from bert_jax.model.config import NO_MESH, ModelConfig, Resolved, Target
from bert_jax.model.kernels import Spread
from bert_jax.model.layers import Dropout, NormParameters
from bert_jax.model.positions import Angles, Rotary, acts_on, positions_class

if TYPE_CHECKING:  # kernels are only loaded for devices that have them
    from bert_jax.model.kernels.fused_attention import QKV

Chip: TypeAlias = jax.Device | AbstractDevice
"""An attached device, or the description of a device."""

LONGEST = 8_192
"""The length of the longest rows for which the TPU attention kernels have been compiled (bfloat16 on v5e, v5p and v6e)."""

SELECTED_FROM = 1_024
"""If only some tokens of a layer are queries, the TPU kernel is used for rows of at least this many tokens. The plain path is
faster for shorter rows."""

WIDEST = 2_048
"""The largest supported radius of a sliding layer. The TPU kernel unrolls the blocks of 512 keys that a window reaches."""

CAPABILITY = 8.0
"""The lowest NVIDIA compute capability with bfloat16 matrix products (Ampere)."""

NO_LEFT_TO_RIGHT = "the fused attention kernels do not support left-to-right masks"
NO_VISIBLE = "the fused attention kernels do not support the mask Tokens.visible"


@dataclasses.dataclass(frozen=True)
class _Attention:
    """The attention kernel that a model calls. It implements `AttentionKernel`."""

    platform: str
    kind: str
    spread: Spread

    def computes(self, model: ModelConfig, length: int, selects: bool = False, masks: bool = False) -> bool:
        """Returns whether the kernel computes the attention of `model`. It returns False if the kernel does not support the
        model, if rows of `length` tokens do not fit on the chip, or if `Tokens.visible` `masks` columns. It also returns False
        if the layer `selects` only some tokens as queries and the plain path is faster. Raises UserError if the model requires
        the kernel and the kernel does not support the model, its rows or the mask."""
        is_faster = not selects or (self.platform == "tpu" and length >= SELECTED_FROM)
        return not self.why_plain(model, length, masks) and is_faster

    def why_plain(self, model: ModelConfig, length: int, masks: bool = False) -> str:
        """Returns the reason, as a clause, if the kernel does not compute the attention of every token in rows of `length`
        tokens, otherwise "". Raises the error of `computes`."""
        reason = _unsupported_function(model) or (NO_VISIBLE if masks else None)
        reason = reason or unsupported_rows(self.platform, self.kind, length, model.head_width, model.dtype)
        return _why_plain("attention", model, reason)

    def rotates(self, model: ModelConfig) -> bool:
        """Returns whether the kernel rotates the queries and keys of `model` if it is called with the angles."""
        if self.platform != "tpu" or positions_class(model) is not Rotary:
            return False
        from bert_jax.model.kernels.attention_plan import rotates_heads

        return rotates_heads(model.head_width)

    def __call__(
        self,
        qkv: QKV,
        sequence_ids: Int[Array, "B L"],
        *,
        num_heads: int,
        dropout: Dropout,
        radius: int | None = None,
        queried: Int[Array, "B Q"] | None = None,
        angles: Angles | None = None,
    ) -> Float[Array, "B Q D"]:
        from bert_jax.model.kernels.fused_attention import fused_attention

        settings: Any = {"platform": self.platform, "spread": self.spread, "radius": radius, "queried": queried}
        settings["angles"] = angles
        return fused_attention(qkv, sequence_ids, num_heads=num_heads, dropout=dropout, **settings)


@dataclasses.dataclass(frozen=True)
class _ResidualNorm:
    """The LayerNorm(x + dropout(y)) kernel that a model calls. It implements `ResidualNormKernel`."""

    spread: Spread

    def computes(self, model: ModelConfig) -> bool:
        """Returns whether the kernel supports the norm and the width of `model`. Raises UserError if the model requires the
        kernel and the kernel does not support it."""
        from bert_jax.model.kernels.residual_norm import unsupported_width

        reason = _unsupported_norm(model) or unsupported_width(model.hidden_size, model.dtype)
        return not _why_plain("residual_norm", model, reason)

    def __call__(
        self, x: Float[Array, "B L D"], y: Float[Array, "B L D"], norm: NormParameters, dropout: Dropout
    ) -> Float[Array, "B L D"]:
        from bert_jax.model.kernels.residual_norm import fused_residual_norm

        return fused_residual_norm(x, y, norm, dropout, spread=self.spread)

    def before(
        self, x: Float[Array, "B L D"], y: Float[Array, "B L D"] | None, norm: NormParameters, dropout: Dropout
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
        from bert_jax.model.kernels.residual_norm import fused_pre_norm

        return fused_pre_norm(x, y, norm, dropout, spread=self.spread)


def resolve(config: ModelConfig, chip: Chip, devices: int = 1, spread: Spread | None = None) -> Resolved:
    """Returns `config` with the kernels that it uses in a program on `devices` devices of the same kind as `chip`. `spread`
    distributes the kernel calls over the devices. Without `spread`, no kernels are used.

    The model later checks, from static shapes, whether a kernel supports the length and width of the rows. One program may
    therefore use both implementations. Raises UserError if `config` requires a kernel that cannot run.
    """
    attention, norm, reasons = None, None, (NO_MESH, NO_MESH)
    if spread is None:
        for operation in ("attention", "residual_norm"):
            if getattr(config, operation) == "fused":
                raise _refusal(operation, "it needs a mesh, and none is set")
    elif config.has_attention:
        no_attention = _why_plain("attention", config, _no_attention(config, chip))
        no_norm = _why_plain("residual_norm", config, _no_residual_norm(config, chip))
        attention = None if no_attention else _Attention(chip.platform, chip.device_kind, spread)
        norm = None if no_norm else _ResidualNorm(spread)
        reasons = (no_attention, no_norm)
    one_cpu = chip.platform == "cpu" and devices == 1
    target = Target(chip.platform, one_cpu, attention, norm, chip.device_kind, *reasons)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(ModelConfig)}
    return Resolved(**fields, target=target)


def _no_attention(config: ModelConfig, chip: Chip) -> str | None:
    """Returns the reason, as a clause, if the attention of `config` has no kernel on `chip`, or if `config` does not require
    the kernel and the kernel is slower. Otherwise returns None."""
    reason = _unsupported_function(config)
    reason = reason or no_attention_kernel(chip.platform, chip.device_kind, config.head_width, config.dtype)
    if reason is None and config.attention == "auto" and chip.platform == "gpu" and config.dtype == "float32":
        return "fused attention on a GPU supports bfloat16 only; in float32 it takes 3.7 times as long as the plain path (H200)"
    return reason


def _no_residual_norm(config: ModelConfig, chip: Chip) -> str | None:
    """Returns the reason, as a clause, if LayerNorm(x + dropout(y)) of `config` has no kernel on `chip`. Otherwise returns
    None."""
    return _unsupported_norm(config) or no_residual_norm_kernel(chip.platform, config.hidden_size, config.dtype)


def _why_plain(operation: str, config: ModelConfig, reason: str | None) -> str:
    """Returns why `operation` is computed by plain operations, as a clause, or "" if it is computed by the kernel. `reason`
    explains why the kernel cannot be used. It is None if the kernel can be used.

    Raises UserError if `config` requires the kernel and it cannot be used."""
    asked = getattr(config, operation)
    if asked == "plain":
        return f"as set by model.{operation}=plain"
    if reason and asked == "fused":
        raise _refusal(operation, reason)
    return f"since {reason}" if reason else ""


def require_possible(config: ModelConfig) -> None:
    """Raises UserError if `config` requires a kernel that no device supports. The current device is not considered."""
    if config.attention == "fused" and (reason := _unsupported_function(config)):
        raise _refusal("attention", reason)
    if config.residual_norm == "fused" and (reason := _unsupported_norm(config)):
        raise _refusal("residual_norm", reason)


def _unsupported_function(config: ModelConfig) -> str | None:
    """Returns the reason, as a clause, if no device has a kernel that supports the model's attention. Otherwise returns
    None."""
    if config.direction == "left_to_right":
        return NO_LEFT_TO_RIGHT
    if "sliding" in config.layer_types and config.sliding_radius > WIDEST:
        return f"fused attention supports windows of up to {counted(WIDEST, 'token')} per side, not {config.sliding_radius:,}"
    if acts_on(config, "scores"):
        return f"model.positions={config.positions} changes the scores, which the fused attention kernels keep on the chip"
    return None


def _unsupported_norm(config: ModelConfig) -> str | None:
    """Returns the reason, as a clause, if no device has a LayerNorm(x + dropout(y)) kernel that supports the model. Otherwise
    returns None."""
    if not (config.norm_kind.has_kernel and config.norm_scale):
        return "the fused residual norm is a LayerNorm with a scale, and the model has a different norm"
    return None


def _refusal(key: str, reason: str) -> UserError:
    return UserError(f"model.{key}='fused' is not available: {reason}; set model.{key} to 'plain' or 'auto'")


def why_plain_attention(config: ModelConfig, length: int) -> str:
    """Returns why attention is computed by plain operations in rows of `length` tokens, as a clause, or "" if it is computed by
    the kernel. `config` is resolved. Raises UserError if it requires the kernel and the kernel does not support the rows."""
    kernel = config.target.attention
    return config.target.no_attention if kernel is None else kernel.why_plain(config, length)


def in_words(config: ModelConfig, lengths: Sequence[int], rejected: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns a log line with the implementations of attention and of the residual norm in the resolved `config`, and the
    reasons for them. Attention is reported for rows of these `lengths`. `rejected` maps a kernel to the reason why it was
    changed from "auto" to "plain" in `config`.

    Raises the errors of `why_plain_attention`.
    """
    target, since = config.target, {operation: f"since {reason}" for operation, reason in rejected.items()}
    found = {length: since.get("attention") or why_plain_attention(config, length) for length in sorted(set(lengths))}
    where = " and ".join(f"{length:,}" for length, why in found.items() if not why)
    fused = f"fused, scores stay on the chip (model.attention={config.attention}, {target.kind}, length {where})"
    parts = [fused] * bool(where) + [f"plain, {why}" for why in sorted({*found.values()} - {""})]
    why = since.get("residual_norm") or ("" if target.residual_norm else target.no_residual_norm)
    of_norm = f"plain, {why}" if why else f"fused (model.residual_norm={config.residual_norm}, {target.kind})"
    return f"attention: {'; '.join(parts)}; residual norm: {of_norm}"


def no_attention_kernel(platform: str, kind: str, head_width: int, dtype: DTypeLike) -> str | None:
    """Returns the reason, as a clause, if a device of this platform and kind has no attention kernel for heads of this width.
    Otherwise returns None. The kernel may still not support long rows (`unsupported_rows`)."""
    if platform not in ("tpu", "gpu"):
        return f"fused attention needs a TPU or GPU, and this is a {platform}"
    from bert_jax.model.kernels.fused_attention import unsupported_heads

    reason = unsupported_heads(platform, head_width, dtype)
    return _too_old(kind) if reason is None and platform == "gpu" else reason


def unsupported_rows(platform: str, kind: str, length: int, head_width: int, dtype: DTypeLike) -> str | None:
    """Returns the reason, as a clause, if the kernel of the platform ("tpu" or "gpu") does not support these rows. Otherwise
    returns None. This function assumes that the device can run the kernel."""
    from bert_jax.model.kernels.fused_attention import unsupported_heads

    if (reason := unsupported_heads(platform, head_width, dtype)) or platform == "gpu":
        return reason
    if length > LONGEST:
        return f"fused attention supports lengths up to {LONGEST:,}, not {length:,}"
    from bert_jax.model.kernels.attention_plan import TpuPlan, padded_length, vmem_bytes

    has = vector_memory(kind)
    rows = 64  # enough rows to fill a grid step
    plan = TpuPlan(rows, padded_length(length), groups=1, head_width=head_width, rate=0.5, radius=None, interpret=False)
    needs = vmem_bytes(plan, dtype) / 2**20
    if needs <= has:
        return None
    return (
        f"fused attention keeps the keys and values of a row on the chip: {needs:.0f} MiB at length {length:,} and head "
        f"width {head_width} in {jnp.dtype(dtype).name}, but a core of {kind} has {has}"
    )


def no_residual_norm_kernel(platform: str, width: int, dtype: DTypeLike) -> str | None:
    """Returns the reason, as a clause, if the platform has no kernel that supports LayerNorm(x + dropout(y)) on rows of this
    `width`. Otherwise returns None."""
    if platform != "tpu":
        return f"the fused residual norm needs a TPU, and this is a {platform}"
    from bert_jax.model.kernels.residual_norm import unsupported_width

    return unsupported_width(width, dtype)


def _too_old(kind: str) -> str | None:
    """Returns the reason if GPUs of this kind are too old for the kernel. Otherwise returns None.

    If this machine has no GPU of this kind, the compute capability is unknown. The result is then None, and the compiler
    rejects the kernel if the GPU is too old.
    """
    has = compute_capability(kind)
    if has is None or _number(has) >= CAPABILITY:
        return None
    return (
        f"fused attention needs an NVIDIA GPU with compute capability {CAPABILITY} (Ampere) or later, and {kind} has {has}"
    )


def compute_capability(kind: str) -> str | None:
    """Returns the compute capability of this machine's GPUs with this `device_kind`, e.g. "8.0" (NVIDIA) or "gfx942" (AMD).
    Returns None if this machine has no such GPU."""
    here = (device for device in jax.local_devices() if device.device_kind == kind)
    return next((device.compute_capability for device in here), None)


def _number(capability: str) -> float:
    """Returns a compute capability as a number, or NaN if it is not numeric. NaN counts as lower than any limit."""
    try:
        return float(capability)
    except ValueError:
        return math.nan
