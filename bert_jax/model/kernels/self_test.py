"""The kernel self-test. It compares the kernels with the plain path once per kind of chip, and caches the verdict on disk.

`dispatch` chooses a kernel by the shapes of the arrays, but only a comparison on the device shows that the kernel is correct on
that device. The comparison takes seconds. It is repeated only if the kind of chip, the version of JAX or its compilers, or a
source file of the kernels changes. The comparison runs programs, so it cannot happen inside a trace or in `dispatch`. Instead,
a run compares the kernels when it starts, before the first step is traced."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import logging
import math
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from bert_jax.files import JsonObject, locked, read_record, write_json
from bert_jax.interface.words import duration
from bert_jax.model import kernels
from bert_jax.model.kernels import agreement
from bert_jax.model.kernels.agreement import Comparison
from bert_jax.storage.paths import cache_directory

log = logging.getLogger(__name__)

KERNELS = {"tpu": ("attention", "residual_norm"), "gpu": ("attention",)}
"""Platform -> the operations that have a kernel. Each operation is a field of `ModelConfig`."""
COMPILERS = ("jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
"""The packages that compile kernels."""
SOURCES = ("attention.py", "positions.py", "layers.py")
"""The files in bert_jax/model that the comparison depends on, in addition to the folder `kernels`."""
UNFINISHED = "its comparison with the plain path did not finish in an earlier run"

Gather = Callable[[JsonObject], Sequence[JsonObject]]
"""(this process's JSON value) -> the values of all processes."""


def compare_kernels_once(asked: Mapping[str, str] | None = None, gather: Gather | None = None) -> dict[str, str]:
    """Compares the kernels with the plain path, unless this kind of chip already has a verdict. Kernels set to "plain" are not
    compared.

    Returns {kernel: reason} for each kernel that disagrees and that `model.attention=auto` or `model.residual_norm=auto` might
    choose. Pass the result to `Execution.without_kernels`.

    `asked` holds these two settings (default: "auto"). If a required kernel ("fused") disagrees, it is used anyway, and a
    warning is logged. Only the first device of the process is tested (`doctor` tests each device). Processes that run the same
    programs must all pass `gather`. If a kernel disagrees in one process, then no process uses the kernel.
    """
    device = jax.local_devices()[0]
    settings = {operation: (asked or {}).get(operation, "auto") for operation in KERNELS.get(device.platform, ())}
    operations = [operation for operation, setting in settings.items() if setting != "plain"]
    if not operations:
        return {}
    own = verdicts([device], operations)
    reasons = {operation: own[operation]["reason"] for operation in operations}
    found = gather(reasons) if gather else [reasons]
    rejected: dict[str, str] = {}
    for operation in operations:
        of_all = [(f"process {i}: " if len(found) > 1 else "", str(of_one[operation])) for i, of_one in enumerate(found)]
        reason = next((where + reason for where, reason in of_all if reason), "")
        if reason and settings[operation] == "fused":
            message = "model.%s=fused uses a kernel that may be wrong: %s; set it to auto or plain"
            log.warning(message, operation, reason)
        elif reason:
            log.warning("model.%s=auto uses the plain path: %s", operation, reason)
            rejected[operation] = reason
    return rejected


def verdicts(devices: Sequence[jax.Device], operations: Sequence[str], *, anew: bool = False) -> dict[str, JsonObject]:
    """Returns the record of each operation on devices of one kind. A record is read from the cache, or the kernel is compared
    now on each of `devices`. In a record, "reason" is why the kernel should not be used, or "" if the kernel agrees on all
    devices. "seconds" and "figures" describe the comparison.

    A kernel compiler may abort the process during a comparison. The next run then finds that the comparison is unfinished and
    counts it as a disagreement. With `anew`, the kernels are compared again even if there is a verdict.
    """
    path = verdict_file(devices[0].device_kind)
    with _one_process_at_a_time(path):
        known = {} if anew else remembered(path)
        for operation in operations:
            if operation not in known:
                known[operation] = _compared(devices, operation, path, known)
    return {operation: known[operation] for operation in operations}


def _compared(devices: Sequence[jax.Device], operation: str, path: pathlib.Path, known: Mapping[str, JsonObject]) -> JsonObject:
    """Compares the kernel now and returns the record. Writes the record to `path`, together with the `known` records."""
    start, others = time.monotonic(), dict(known)
    _write(path, others | {operation: {"reason": f"{UNFINISHED} ({path}; remove it to compare again)"}})
    try:
        found = [agreement.compare(operation, device.platform, device=device) for device in devices]
    except BaseException:  # e.g. after Ctrl-C, which says nothing about the kernel
        _write(path, others)
        raise
    record = verdict(operation, devices, found, time.monotonic() - start)
    _write(path, others | {operation: record})
    return record


def verdict(operation: str, devices: Sequence[jax.Device], found: Sequence[Comparison], seconds: float) -> JsonObject:
    """Returns the record of comparisons on `devices` (of one kind) that took this time. Logs it if the kernel agrees on all."""
    reasons = [
        f"device {device.id}: {one.reason}" if len(devices) > 1 else one.reason
        for device, one in zip(devices, found, strict=True)
        if one.reason
    ]
    if not reasons:
        worst = max((one.worst for one in found if one.worst), key=lambda figure: figure.error / figure.limit, default=None)
        closest = f" (closest to its limit: {worst})" if worst else ""
        where = devices[0].device_kind if len(devices) == 1 else f"{len(devices)} x {devices[0].device_kind}"
        message = "kernel of %s: agrees with the plain path on %s, compared in %s%s"
        log.info(message, operation, where, duration(seconds), closest)
    return {
        "reason": "; ".join(reasons[:2]) + (f"; and on {len(reasons) - 2} more" if len(reasons) > 2 else ""),
        "seconds": round(seconds, 1),
        "figures": [
            dataclasses.asdict(figure) | {"error": figure.error if math.isfinite(figure.error) else None}
            for one in found
            for figure in one.figures
        ],
    }


def verdict_file(kind: str) -> pathlib.Path:
    """Returns the path of the verdicts for a `device_kind` and the current versions of JAX, the compilers and the kernels."""
    code = hashlib.sha256()
    folder = pathlib.Path(str(kernels.__file__)).parent
    for path in [*sorted(folder.glob("*.py")), *(folder.parent / name for name in SOURCES)]:
        code.update(path.read_bytes())
    for package in COMPILERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            code.update(f"{package} {importlib.metadata.version(package)}".encode())
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{kind} jax {jax.__version__}")
    return cache_directory() / "kernels" / f"{name}-{code.hexdigest()[:8]}.json"


def remembered(path: pathlib.Path) -> dict[str, JsonObject]:
    """Returns the records in `path` by operation. Returns {} if the file is missing or damaged."""
    try:
        found = read_record(path) or {}
        return {name: record for name, record in found.items() if isinstance(record["reason"], str)}
    except (OSError, TypeError, KeyError):
        return {}


def _write(path: pathlib.Path, records: Mapping[str, JsonObject]) -> None:
    try:
        write_json(path, dict(records), indent=1)
    except OSError as error:
        log.warning("%s cannot be written (%s), so the next run will compare the kernels again", path, error.strerror)


@contextlib.contextmanager
def _one_process_at_a_time(path: pathlib.Path) -> Iterator[None]:
    """Waits until no other process on this machine compares kernels. All processes then share the verdict of the first
    process."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # if the directory cannot be made, or if the file system has no locks
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_suffix(".lock")))
        yield
