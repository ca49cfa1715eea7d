"""Sets up a command, with logging to stderr, quiet libraries and the compilation cache."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import platform
import sys
import warnings
import zlib
from collections.abc import Callable

import jax

from bert_jax.storage.paths import cache_directory


def start_logging(index: int) -> None:
    """Sends this package's log messages to stderr. Process 0 logs INFO and above, and the other processes only log warnings and
    errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if index == 0 else f"[process {index}] %(message)s"))
    ours = logging.getLogger("bert_jax")
    ours.handlers = [handler]
    ours.setLevel(logging.INFO if index == 0 else logging.WARNING)
    ours.propagate = False


def quiet_libraries() -> None:
    """Sets the log level of libraries to ERROR or above, since their messages would obscure the loss lines."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the level of XLA's C++ log, read when the first backend starts
    for name in ("jax", "orbax", "etils", "tensorflow_datasets", "grain", "matplotlib"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("absl", "asyncio"):  # if a save fails, Orbax would log a traceback for each file; we report the failure once
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)
    warnings.filterwarnings("ignore", module=r"(orbax|tensorflow_datasets|etils)\b")


@dataclasses.dataclass(frozen=True)
class _WithoutClosedLoops:
    """A `sys.unraisablehook` that ignores the error "Event loop is closed". At the first failed write of a save, Orbax closes the
    event loop that TensorStore's threads use to report their writes. Each of these threads would then print a traceback. The
    failed save itself is reported once."""

    otherwise: Callable[[sys.UnraisableHookArgs], object]

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            self.otherwise(unraisable)


def enable_compilation_cache() -> None:
    """Turns on JAX's persistent compilation cache, so that a second start skips most of the compilation.

    The environment variable JAX_COMPILATION_CACHE_DIR sets the directory, and an empty value turns the cache off. By default,
    there is a separate directory for each kind of CPU below bert_jax/ in the user's cache directory. Different machines may
    share a home directory, and XLA's CPU programs use the instruction set of the CPU that compiled them."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # jax reads this variable
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / kind_of_cpu()))


def kind_of_cpu() -> str:
    """Returns a name for CPUs that run the same compiled programs, e.g. "xla-x86_64-1f2e3d4c"."""
    try:
        features = next(
            line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):  # not Linux
        features = platform.processor()
    return f"xla-{platform.machine()}-{zlib.crc32(features.encode()):08x}"
