"""XLA's persistent compilation cache."""

from __future__ import annotations

import os
import pathlib
import platform
import zlib

import jax

from bert_jax.storage.paths import cache_directory


def enable_compilation_cache() -> None:
    """Turns on JAX's persistent compilation cache, so that a second start skips most of the compilation.

    The directory is JAX_COMPILATION_CACHE_DIR (empty: no cache), by default one below bert_jax/ in the user's cache directory.
    Each kind of CPU has its own: XLA's CPU programs use the instruction set of the CPU that compiled them, and machines of
    different kinds may share a home directory.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # jax reads this variable
        return
    try:
        features = next(
            line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):  # not Linux
        features = platform.processor()
    kind = f"xla-{platform.machine()}-{zlib.crc32(features.encode()):08x}"
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / kind))
