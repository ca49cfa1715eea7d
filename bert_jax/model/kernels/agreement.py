"""Compares each kernel with the plain path on the current device. The comparison covers values, gradients, packed and padded
rows, windows and dropout.

A kernel may be wrong on a kind of chip on which it was never run. `compare` runs the kernel on small arrays and returns the
differences as `Figure`s. Each figure has a limit, above which the kernel counts as wrong. The reference is the plain path on
the same inputs in the same dtype. (The TPU compiler needs four times as long to compile a float32 reference for a long row.)
The TPU attention kernel draws its own dropout masks, so no reference has the same mask. Instead, the rate, the scale and the
independence of the masks are measured, and a finite difference along the gradient shows whether the backward pass drops the
same elements as the forward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.interface.words import counted
from bert_jax.model.attention import attention_mask, dot_product_attention, near
from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.kernels.residual_norm import fused_pre_norm, fused_residual_norm
from bert_jax.model.layers import Dropout, NormParameters, gather_positions, plain_pre_norm, plain_residual_norm
from bert_jax.model.positions import Angles, rotary_angles, rotate

LIMITS = {"float32": 1e-4, "bfloat16": 0.05}
"""The largest accepted difference of a token's vector, relative to its norm. On a CPU, where the kernels are interpreted, the
difference is 1e-6 in float32. It is 0.016 in bfloat16, because both paths round to bfloat16. The limits leave a margin for the
exponentials and sums of other chips."""
SLOPE_LIMIT = 0.03
"""The largest accepted relative difference between a slope and its finite difference. If the mask is wrong, they differ by
about the dropout rate."""
DEVIATIONS = 6
"""A mean over random masks may differ from its expectation by this many standard deviations."""
RATE = 0.25
"""The dropout rate of the cases with dropout."""
EPSILON = 1e-12
THETA = 10_000.0
"""The base of rotary positions."""
SEEDS = tuple(range(7, 15))
"""The dropout seeds whose masks are compared. The other figures use the first seed."""

Attend = Callable[[Float[Array, "B L D"], Float[Array, "B L D"], Float[Array, "B L D"]], Float[Array, "B Q D"]]
"""(query, key, value) -> context, with fixed sequence ids, heads and dropout."""
Kernel = Callable[..., Array]
"""A function with the arguments of `fused_attention` or `fused_residual_norm`."""


@dataclasses.dataclass(frozen=True)
class Case:
    """The shapes and settings of one comparison."""

    rows: int
    length: int
    heads: int
    head_width: int
    """The width of one head. A residual norm has 1 head, so this is the width of the rows."""
    dtype: str
    rate: float = 0.0
    radius: int | None = None
    """The largest distance at which a query sees a key in a sliding layer. None: no limit."""
    queries: int | None = None
    """The number of queries if only some tokens are queries (TPU only). None: every token is a query."""
    rotated: bool = False
    """Whether the kernel rotates queries and keys (TPU only)."""
    pre: bool = False
    """Whether the pre-norm form of a residual norm is compared too. The pre-norm form also returns the sum."""

    def __str__(self) -> str:
        of = f"{self.heads} x {self.head_width}" if self.heads > 1 else f"{self.head_width}"
        dropout = f", dropout {self.rate:g}" if self.rate else ""
        window = "" if self.radius is None else f", window of {2 * self.radius + 1}"
        some = "" if self.queries is None else f", {counted(self.queries, 'query')}"
        rotated = ", rotary positions" if self.rotated else ""
        return f"{self.rows} x {counted(self.length, 'token')}, width {of}, {self.dtype}{dropout}{window}{some}{rotated}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One difference between a kernel and its reference."""

    case: str
    quantity: str
    error: float
    """The error as a fraction: 0.01 is a difference of 1 %."""
    limit: float

    @property
    def agrees(self) -> bool:
        """Whether the error is within the limit. False if the error is NaN."""
        return self.error <= self.limit

    def __str__(self) -> str:
        return f"{self.quantity} off by {100 * self.error:.2g} %, at most {100 * self.limit:.2g} %, in {self.case}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All figures of one kernel on one device."""

    figures: tuple[Figure, ...]
    failure: str = ""
    """The error and the case, if the kernel does not compile or run. Otherwise ""."""

    @property
    def faults(self) -> list[Figure]:
        """The figures whose errors are above their limits, or NaN."""
        return [figure for figure in self.figures if not figure.agrees]

    @property
    def reason(self) -> str:
        """The reason not to use the kernel, as a clause with the figures. "" if the kernel agrees."""
        if self.failure:
            return f"the kernel does not run here: {self.failure}"
        if not self.faults:
            return ""
        shown = "; ".join(map(str, self.faults[:3]))
        more = f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else ""
        return f"the kernel disagrees with the plain path here: {shown}{more}"

    @property
    def worst(self) -> Figure | None:
        """The figure that is closest to its limit. If figures are above their limits, this is the first of them. None if there
        are no figures."""
        return max(self.figures, key=lambda figure: figure.error / figure.limit if figure.agrees else np.inf, default=None)


ATTENTION_CASES = (
    Case(2, 51, 2, 64, "float32"),  # a length that fits no tile
    Case(2, 300, 4, 32, "bfloat16"),
    Case(1, 700, 1, 128, "bfloat16"),  # several blocks of the TPU's kernel
    Case(2, 128, 2, 64, "float32", RATE),
    Case(2, 90, 2, 64, "bfloat16", RATE),
    Case(2, 1100, 1, 64, "bfloat16", radius=64),  # a window that reaches into the blocks on both sides
    Case(1, 600, 1, 128, "bfloat16", RATE, radius=100),
    Case(2, 1100, 2, 64, "bfloat16", queries=330),
    Case(2, 300, 2, 64, "bfloat16", rotated=True),
)
NORM_CASES = (
    Case(2, 51, 1, 256, "float32"),  # rows that do not fill a block
    Case(2, 70, 1, 768, "float32", RATE),
    Case(2, 128, 1, 1024, "bfloat16", RATE, pre=True),
)


def compare(
    operation: str,
    platform: str,
    cases: Sequence[Case] = (),
    *,
    interpret: bool = False,
    device: jax.Device | None = None,
    kernel: Kernel | None = None,
) -> Comparison:
    """Compares the kernel of `operation` ("attention" or "residual_norm") with the plain path on `device` (default: the first
    device of this process). `platform` is "tpu" or "gpu". If the kernel does not compile or run, the `Comparison` holds the
    error.

    `interpret` is for tests. It runs the kernel on any platform, but slowly. `kernel` is the function to compare, with the
    arguments of the default (`fused_attention` or `fused_residual_norm`).
    """
    of_case = {
        "attention": functools.partial(_attention_figures, kernel or fused_attention),
        "residual_norm": functools.partial(_norm_figures, kernel or fused_residual_norm),
    }[operation]
    cases = cases or {"attention": ATTENTION_CASES, "residual_norm": NORM_CASES}[operation]
    figures: list[Figure] = []
    with jax.default_device(jax.local_devices()[0] if device is None else device):
        for case in cases:
            try:
                figures += of_case(case, platform, interpret)
            except Exception as error:  # kernel compilers raise exceptions of many types
                first = (str(error).splitlines() or [""])[0]
                return Comparison(tuple(figures), f"{type(error).__name__}: {first[:300]} ({case})")
    return Comparison(tuple(figures))


# ---------------------------------------------------------------------------------------------------------------------- attention
def _attention_figures(kernel: Kernel, case: Case, platform: str, interpret: bool) -> Iterator[Figure]:
    if (case.queries is not None or case.rotated) and platform != "tpu":
        return
    ids, arrays = packed_ids(case.rows, case.length), _normal(case, 4)
    dropout, queried = _dropout(case), None
    if case.queries is not None:
        queried = jnp.broadcast_to(jnp.linspace(0, case.length - 1, case.queries).astype(jnp.int32), (case.rows, case.queries))
        arrays[3] = arrays[3][:, : case.queries]

    places = jnp.broadcast_to(jnp.arange(case.length, dtype=jnp.int32), (case.rows, case.length))
    angles = None
    if case.rotated:
        of_tokens = rotary_angles(places, THETA, case.head_width)
        angles = Angles(of_tokens, of_tokens, interleaved=False)

    def fused(ids: Int[Array, "B L"], dropout: Dropout) -> Attend:
        settings: Any = {"platform": platform, "interpret": interpret, "radius": case.radius, "queried": queried}
        settings["angles"] = angles

        def attend(query: Array, key: Array, value: Array) -> Float[Array, "B Q D"]:
            query = query if queried is None else gather_positions(query, queried)
            return kernel((query, key, value), ids, num_heads=case.heads, dropout=dropout, **settings)

        return attend

    def plain(query: Array, key: Array, value: Array) -> Float[Array, "B Q D"]:
        if case.rotated:
            heads = (x.reshape(*x.shape[:2], case.heads, case.head_width) for x in (query, key))
            query, key = (rotate(x, places, THETA).reshape(query.shape) for x in heads)
        context = plain_attention((query, key, value), ids, case.heads, dropout, case.radius)
        return context if queried is None else gather_positions(context, queried)

    names, ours = ("values", "gradient of query", "gradient of key", "gradient of value"), _with_gradients(fused(ids, dropout))
    if not case.rate or platform == "gpu":  # the GPU kernel draws the masks of the plain path
        yield from _differences(case, names, ours, plain, arrays)
    if case.rate:
        yield from _mask_figures(case, functools.partial(fused, jnp.ones_like(ids)))
        where = ("query", "key", "value") if case.dtype == "float32" else ("value",)  # bfloat16 rounds small differences away
        yield from _slope_figures(case, ours, arrays, ("query", "key", "value"), where, linear="value")


def plain_attention(
    qkv: tuple[Float[Array, "B L D"], ...], ids: Int[Array, "B L"], heads: int, dropout: Dropout, radius: int | None = None
) -> Float[Array, "B L D"]:
    """Computes the result of `fused_attention` with `dot_product_attention`."""
    b, length, width = qkv[0].shape
    query, key, value = (x.reshape(b, length, heads, width // heads).swapaxes(1, 2) for x in qkv)
    mask = attention_mask(ids, ids)
    if radius is not None:
        mask &= near(jnp.arange(length)[None], length, radius)
    context = dot_product_attention(query, key, value, mask, dropout)
    return context.swapaxes(1, 2).reshape(b, length, width)


def _mask_figures(case: Case, attend: Callable[[Dropout], Attend]) -> Iterator[Figure]:
    """Yields figures for the mean, the spread and the independence of dropout masks.

    All scores are equal and all values are 1. Suppose a query sees N keys (all L keys, or the keys in its window). The context
    of the query is then (number of kept keys) / (N (1 - rate)). Over L x B x H queries, the context has mean 1 and variance
    rate / ((1 - rate) N).
    """
    shape = (case.rows, case.length, case.heads * case.head_width)
    zeros, ones = jnp.zeros(shape, case.dtype), jnp.ones(shape, case.dtype)

    @jax.jit
    def contexts(seed: Array) -> Float[Array, "B L D"]:
        return attend(Dropout(case.rate, seed))(zeros, zeros, ones)

    found = [np.asarray(contexts(jnp.uint32(seed)).astype(jnp.float32)) for seed in SEEDS]
    heads = np.concatenate([x.reshape(*shape[:2], case.heads, -1)[..., 0].transpose(0, 2, 1) for x in found])
    places, radius = np.arange(case.length), case.length if case.radius is None else case.radius
    sees = np.minimum(places + radius, case.length - 1) - np.maximum(places - radius, 0) + 1
    units = (heads.reshape(-1, case.length) - 1.0) * (sees / case.length) ** 0.5  # scaled as if each query saw L keys
    wanted = (case.rate / ((1 - case.rate) * case.length)) ** 0.5
    count, unit = units.size, 2**-8 if case.dtype == "bfloat16" else 0.0
    yield Figure(str(case), "scale of dropout", abs(float(units.mean())), DEVIATIONS * wanted / count**0.5 + unit)
    spread = float(np.sqrt(np.square(units).mean()))
    yield Figure(str(case), "spread of dropout", abs(spread / wanted - 1), DEVIATIONS / (2 * count) ** 0.5 + 2 * unit)
    alike = np.abs(np.corrcoef(units)) - np.eye(len(units)) if spread else np.ones(1)
    yield Figure(str(case), "equal masks of two rows, heads or seeds", float(alike.max()), DEVIATIONS / case.length**0.5)


# ------------------------------------------------------------------------------------------------------------------ residual norm
def _norm_figures(kernel: Kernel, case: Case, platform: str, interpret: bool) -> Iterator[Figure]:
    x, y, gradient = _normal(case, 3)
    random = np.random.default_rng(case.length)
    vectors = [jnp.asarray(random.normal(size=case.head_width), jnp.float32) for _ in range(2)]
    arrays = [x + 1, y, *vectors, gradient]  # residuals may be far from zero
    dropout = _dropout(case)

    def fused(x: Array, y: Array, scale: Array, bias: Array) -> Float[Array, "B L D"]:
        return kernel(x, y, NormParameters(scale, bias, EPSILON), dropout, interpret=interpret)

    def plain(x: Array, y: Array, scale: Array, bias: Array) -> Float[Array, "B L D"]:
        return plain_residual_norm(x, y, NormParameters(scale, bias, EPSILON), dropout)

    def before(compute: Callable[..., tuple[Array, Array]], adds: bool, **settings: Any) -> Callable[..., Array]:
        def total(x: Array, y: Array, scale: Array, bias: Array) -> Float[Array, "B L D"]:
            z, out = compute(x, y if adds else None, NormParameters(scale, bias, EPSILON), dropout, **settings)
            return z + out if adds else z + out + y

        return total

    names, ours = ("values", "gradient of x", "gradient of y", "gradient of scale", "gradient of bias"), _with_gradients(fused)
    yield from _differences(case, names, ours, plain, arrays)
    if case.rate and case.dtype == "float32":
        yield from _slope_figures(case, ours, arrays, ("x", "y", "scale", "bias"), ("y",))
    if case.pre:
        for adds in (True, False):
            both = _with_gradients(before(fused_pre_norm, adds, interpret=interpret)), before(plain_pre_norm, adds)
            yield from _differences(case, [f"{name} (with the sum)" for name in names], *both, arrays)


# ------------------------------------------------------------------------------------------------------------------------ figures
def packed_ids(rows: int, length: int) -> Int[Array, "B L"]:
    """Returns the sequence ids of rows with up to three examples of random lengths. One seventh of each row is padding, but the
    last row has no padding unless it is the only row."""
    ids = np.sort(np.random.default_rng(length).integers(1, 4, (rows, length)), axis=1)
    ids[: max(1, rows - 1), length - length // 7 :] = 0
    return jnp.asarray(ids, jnp.int32)


def _normal(case: Case, count: int) -> list[Float[Array, "B L D"]]:
    random, width = np.random.default_rng(case.length + case.head_width), case.heads * case.head_width
    return [jnp.asarray(random.normal(size=(case.rows, case.length, width)), case.dtype) for _ in range(count)]


def _dropout(case: Case) -> Dropout:
    return Dropout(case.rate, jnp.uint32(SEEDS[0]) if case.rate else None)


Run = Callable[[Sequence[Float[Array, " ..."]]], list[np.ndarray]]
"""A compiled function, with its gradients. See `_with_gradients`."""


def _with_gradients(function: Callable[..., Array]) -> Run:
    """Returns a function of arrays. It returns the result of function(*arrays[:-1]) and the gradients of its arguments, in
    float32. arrays[-1] is the gradient of the result. Only the first call compiles a program."""

    @jax.jit
    def run(*arrays: Float[Array, " ..."]) -> tuple[Float[Array, " ..."], ...]:
        found, backward = jax.vjp(function, *arrays[:-1])
        return (found, *backward(arrays[-1].astype(found.dtype)))

    return lambda arrays: [np.asarray(x, np.float32) for x in run(*arrays)]


def _differences(
    case: Case, names: Sequence[str], fused: Run, plain: Callable[..., Array], arrays: Sequence[Float[Array, " ..."]]
) -> Iterator[Figure]:
    """Compares `fused` with `plain`. Yields one figure for the result and one for each gradient."""
    for name, found, wanted in zip(names, fused(arrays), _with_gradients(plain)(arrays), strict=True):
        yield Figure(str(case), name, _worst_vector(found, wanted), LIMITS[case.dtype])


def _worst_vector(found: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the largest relative difference of a vector (the last axis). The difference is divided by the norm of the vector
    or by the root mean square of all norms, whichever is larger."""
    size = np.maximum(np.sqrt(np.square(wanted).mean(-1)), np.sqrt(np.square(wanted).mean()))
    return float((np.sqrt(np.square(found - wanted).mean(-1)) / size).max())


def _slope_figures(
    case: Case,
    fused: Run,
    arrays: Sequence[Float[Array, " ..."]],
    names: Sequence[str],
    measured: Sequence[str],
    linear: str = "",
) -> Iterator[Figure]:
    """Yields figures that compare the slopes of the loss <result, gradient> with finite differences of two forward passes.

    For a fixed mask, the loss is a smooth function of each argument, and its slope is the gradient. If the backward pass uses a
    different mask, it returns a different vector. The loss is linear in the argument `linear`, so the finite difference of this
    argument is exact for a step of any size."""
    *inputs, gradient = arrays
    slopes = dict(zip(names, fused(arrays)[1:], strict=True))
    for name in measured:
        at, slope = names.index(name), slopes[name]
        step = slope / np.sqrt(np.square(slope).mean()) * (1.0 if name == linear else 3e-3)
        losses = []
        for sign in (1, -1):
            moved = sign * step if name == linear else np.asarray(inputs[at].astype(jnp.float32)) + sign * step
            some = [jnp.asarray(moved, x.dtype) if i == at else x for i, x in enumerate(inputs)]
            losses.append(float((np.asarray(fused([*some, gradient])[0], np.float64) * np.asarray(gradient, np.float64)).sum()))
        expected = float((slope.astype(np.float64) * step).sum())
        error = abs((losses[0] - losses[1]) / 2 / expected - 1)
        yield Figure(str(case), f"dropout of the backward pass (slope along {name})", error, SLOPE_LIMIT)
