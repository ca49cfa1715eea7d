"""Compiled XLA programs on disk, kept between starts."""

from __future__ import annotations

import os
import pathlib
import platform
import zlib

import jax

from bert_jax.corpus.files import cache_directory


def keep_compiled_programs() -> None:
    """XLA programs are kept on disk, so that a second start skips most of the compilation.

    Where: JAX_COMPILATION_CACHE_DIR, empty for nowhere; by default bert_jax/ in the user's cache directory, a directory for each
    kind of CPU, since XLA's CPU programs use the instructions of the one they were compiled on and home directories are shared.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # jax has read it itself
        return
    try:
        features = next(
            line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):  # not Linux
        features = platform.processor()
    kind = f"xla-{platform.machine()}-{zlib.crc32(features.encode()):08x}"
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / kind))
