"""The choice of the implementation of attention and of LayerNorm(x + dropout(y)), a kernel or XLA's program, with its reason.

This module alone chooses, from `Execution.attention` and `.residual_norm` and from the devices that a program is compiled for:
those of the ambient mesh (`jax.set_mesh`), which need not be attached. Whoever starts a run or loads a model turns "auto" into
"plain" for a kernel that disagreed with the plain path on that kind of chip (`first_contact.compare_kernels_once`,
`Execution.without_kernels`).

    operation        plain                                  fused                            kernels
    attention        model/attention.py                     attention.py                     attention_tpu.py, attention_gpu.py
    residual norm    model/residual_norm.py                 residual_norm.py                 residual_norm_tpu.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, Mesh
from jax.typing import DTypeLike

from bert_jax.errors import UserError
from bert_jax.hardware import VMEM
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import attention_gpu, attention_plan, residual_norm_tpu
from bert_jax.model.kernels.attention_plan import TpuPlan, padded_length, vmem_bytes
from bert_jax.model.positions import acts_on

LONGEST = 8_192
"""The longest rows for which the TPU kernels of attention were compiled, for v5e, v5p and v6e in bfloat16."""

CAPABILITY = 8.0
"""The lowest compute capability of NVIDIA's GPUs with products of bfloat16 matrices: Ampere's."""

DTYPES = ("bfloat16", "float32")
"""The dtypes of the kernels' inputs."""


NO_LEFT_TO_RIGHT = "the kernels of fused attention have no left-to-right mask"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation of one operation, and the reason in words."""

    platform: str | None
    """The platform of the chosen kernel, "tpu" or "gpu"; None is the plain implementation, XLA's program."""
    why: str
    """The reason for the plain implementation, as the end of a sentence; "" for a kernel."""

    @property
    def fused(self) -> bool:
        """True for a kernel."""
        return self.platform is not None


def choose_attention(config: ModelConfig, length: int, *, every_query: bool = True) -> Choice:
    """The implementation of attention in rows of `length` tokens, by `config.attention`.

    `every_query` is False if only selected tokens of a row are queries, which the kernels do not support. Raises UserError if
    `config.attention` is "fused" and no kernel can run.
    """
    if not every_query:
        return Choice(None, "since the kernels compute every query of a row")

    def reason(device: AbstractDevice) -> str | None:
        if reason := _unsupported_function(config):
            return reason
        return no_attention_kernel(device.platform, device.device_kind, length, config.head_width, config.dtype)

    return _choose("attention", config.attention, "fused attention", reason, untimed=("gpu",))


def require_possible(config: ModelConfig) -> None:
    """Raises UserError for a kernel that `config` asks for and that no device has; the device at hand is not asked."""
    if config.attention == "fused" and (reason := _unsupported_function(config)):
        raise _refusal("attention", reason)


def _unsupported_function(config: ModelConfig) -> str | None:
    """The reason why no kernel computes the attention of the model on any device, as a clause; None if one may."""
    if config.direction == "left_to_right":
        return NO_LEFT_TO_RIGHT
    if acts_on(config, "scores"):
        return f"model.positions={config.positions} changes the scores, which the kernels of fused attention keep on the chip"
    return None


def choose_residual_norm(config: ModelConfig) -> Choice:
    """The implementation of LayerNorm(x + dropout(y)), by `config.residual_norm`.

    Raises UserError if `config.residual_norm` is "fused" and no kernel can run.
    """

    def reason(device: AbstractDevice) -> str | None:
        return no_residual_norm_kernel(device.platform, config.hidden_size, config.dtype)

    return _choose("residual_norm", config.residual_norm, "the fused residual norm", reason)


def _choose(
    key: str, asked: str, operation: str, reason_on: Callable[[AbstractDevice], str | None], untimed: Sequence[str] = ()
) -> Choice:
    """The choice for `operation` when model.`key` is `asked`.

    `reason_on` returns the reason why its kernel cannot run on a device, or None. On the platforms `untimed`, "auto" does not
    choose the kernel.
    """
    if asked == "plain":
        return Choice(None, f"as model.{key}=plain asks")
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        reason: str | None = f"{operation} is spread over a mesh, and none is set"
    else:
        reason = reason_on(device)
    if reason and asked == "fused":
        raise _refusal(key, reason)
    if reason is None and asked == "auto" and device.platform in untimed:
        reason = f"{operation} has not been timed on a GPU yet, and runs there only where model.{key}=fused asks for it"
    return Choice(device.platform, "") if reason is None else Choice(None, f"since {reason}")


def _refusal(key: str, reason: str) -> UserError:
    return UserError(f"model.{key}='fused' cannot be had: {reason}; set model.{key} to 'plain' or 'auto'")


def plain(config: ModelConfig) -> ModelConfig:
    """`config` with the plain implementations, which run on any device: for initialisation, whose outputs are not used and which
    may run without a mesh."""
    return dataclasses.replace(config, attention="plain", residual_norm="plain")


def in_words(config: ModelConfig, lengths: Sequence[int], mesh: Mesh, rejected: Mapping[str, str] = MappingProxyType({})) -> str:
    """A line for the log: the implementations of attention in rows of these lengths and of the residual norm on `mesh`, and why.
    `rejected` holds the reasons why "auto" has become "plain" in `config`.

    Raises what `choose_attention` and `choose_residual_norm` raise.
    """
    asked, kind = f"model.attention={config.attention}", mesh.devices.flat[0].device_kind
    with jax.set_mesh(mesh):
        choices = {length: choose_attention(config, length) for length in sorted(set(lengths))}
        norm = choose_residual_norm(config)
    if reason := rejected.get("attention"):
        choices = {length: Choice(None, f"since {reason}") for length in choices}
    if reason := rejected.get("residual_norm"):
        norm = Choice(None, f"since {reason}")
    plain = sorted({choice.why for choice in choices.values() if not choice.fused})
    where = " and ".join(f"{length:,}" for length, choice in choices.items() if choice.fused)
    fused = f"fused, scores stay on the chip ({asked}, {kind}, length {where})"
    parts = [fused] * bool(where) + [f"plain, {why}" for why in plain]
    of_norm = f"fused (model.residual_norm={config.residual_norm}, {kind})" if norm.fused else f"plain, {norm.why}"
    return f"attention: {'; '.join(parts)}; residual norm: {of_norm}"


def no_attention_kernel(platform: str, kind: str, length: int, head_width: int, dtype: DTypeLike) -> str | None:
    """The reason why no kernel computes attention on a device of that platform and kind, as a clause; None if one does."""
    if platform not in ("tpu", "gpu"):
        return f"fused attention is for TPUs and GPUs, and this is a {platform}"
    if reason := unsupported_heads(platform, head_width, dtype):
        return reason
    if platform == "gpu":
        return _too_old(kind)
    if length > LONGEST:
        return f"fused attention is compiled up to length {LONGEST:,}, and {length:,} is longer"
    has = VMEM.get(kind, min(VMEM.values()))
    rows = 64  # enough to fill a grid step
    plan = TpuPlan(rows, padded_length(length), groups=1, head_width=head_width, rate=0.5, interpret=False)
    needs = vmem_bytes(plan, dtype) / 2**20
    if needs <= has:
        return None
    return (
        f"fused attention keeps keys and values of a row on the chip, which takes {needs:.0f} MiB at length {length:,} and head "
        f"width {head_width} in {jnp.dtype(dtype).name}, and a core of {kind} has {has}"
    )


def no_residual_norm_kernel(platform: str, width: int, dtype: DTypeLike) -> str | None:
    """The reason why no kernel computes LayerNorm(x + dropout(y)) of rows of `width` on a device of that platform, as a clause;
    None if one does."""
    if platform != "tpu":
        return f"the fused residual norm is for TPUs, and this is a {platform}"
    return unsupported_width(width, dtype)


def unsupported_heads(platform: str, head_width: int, dtype: DTypeLike) -> str | None:
    """The reason why the kernel of attention for "tpu" or "gpu" does not support heads of that width and dtype, as a clause; None
    if it does."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"fused attention computes in bfloat16 or float32, not in {jnp.dtype(dtype).name}"
    if platform == "gpu" and head_width not in attention_gpu.HEAD_WIDTHS:
        return f"fused attention on a GPU needs a head width of 16, 32, 64 or 128, not {head_width}"
    if platform == "tpu" and not attention_plan.divides_lanes(head_width):
        return f"fused attention needs a head width of 16, 32, 64 or a multiple of 128, not {head_width}"
    return None


def unsupported_width(width: int, dtype: DTypeLike) -> str | None:
    """The reason why the fused residual norm does not support rows of that width and dtype, as a clause; None if it does."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"the fused residual norm computes in bfloat16 or float32, not in {jnp.dtype(dtype).name}"
    lanes, widest = residual_norm_tpu.LANES, residual_norm_tpu.WIDEST
    if width % lanes or width > widest:
        return f"the fused residual norm needs a width that is a multiple of {lanes} up to {widest:,}, not {width:,}"
    return None


def _too_old(kind: str) -> str | None:
    """The reason why GPUs of that kind cannot run the kernel, or None.

    Also None if this machine has no such GPU: its capability is unknown here, and the compiler will refuse the kernel.
    """
    has = compute_capability(kind)
    if has is None or _number(has) >= CAPABILITY:
        return None
    return (
        f"fused attention on a GPU needs one by NVIDIA of compute capability {CAPABILITY} (Ampere) or later, and {kind} has {has}"
    )


def compute_capability(kind: str) -> str | None:
    """The compute capability of the GPUs of that `device_kind` on this machine, such as "8.0" (NVIDIA) or "gfx942" (AMD); None if
    it has no such GPU."""
    here = (device for device in jax.local_devices() if device.device_kind == kind)
    return next((device.compute_capability for device in here), None)


def _number(capability: str) -> float:
    """A compute capability as a number; NaN, which reaches no other, for one that is none."""
    try:
        return float(capability)
    except ValueError:
        return math.nan
