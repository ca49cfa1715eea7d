"""Makes compiling cheaper, which takes half of the tests' CPU time: lowerings share MLIR contexts, and compiled programs are kept
for the next run of the tests."""

from __future__ import annotations

import pathlib
import tempfile
import threading
import time
from typing import Any

import jax
from jax._src import compilation_cache, lru_cache
from jax._src.interpreters import mlir

from bert_jax.runtime.environment import kind_of_cpu

KEPT = pathlib.Path(__file__).resolve().parents[1] / ".pytest_cache" / "compiled"
UNUSED = 14 * 24 * 3600
"""Programs that were not read for so many seconds are removed."""
LOWERINGS = 200
"""The number of programs per thread that share a context. A context keeps every type and constant of its programs in memory."""


def share_contexts() -> None:
    """Makes JAX use one context for `LOWERINGS` programs, if this version of JAX has the function that creates contexts. Creating
    a new one each time takes a tenth of the CPU time of the model tests."""
    make = getattr(mlir, "make_ir_context", None)
    if make is None:  # a later version
        return
    own = threading.local()

    def shared() -> Any:
        if getattr(own, "left", 0) == 0:
            own.context, own.left = make(), LOWERINGS
        own.left -= 1
        return own.context

    mlir.make_ir_context = shared


def keep_programs(least: float, suffix: str = "") -> None:
    """Makes this process read programs that earlier processes compiled, and keep those that take it at least `least` seconds to
    compile. A key in JAX's cache is the program itself, with the flags and versions, so a change of the code cannot read an
    outdated program. Does nothing if the checkout cannot be written."""
    directory = KEPT / f"{kind_of_cpu()}{suffix}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # else the name of the directory is part of the keys
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    lru_cache.LRUCache.put = _put_at_once
    is_used = compilation_cache.is_cache_used
    # programs for a TPU that is only compiled for can be written, but not read
    compilation_cache.is_cache_used = lambda backend: backend.platform == "cpu" and is_used(backend)


def _put_at_once(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """Writes the file of a program under another name first. JAX's own method can leave a part of it, if its process is killed,
    and other processes could read that."""
    path = pathlib.Path(cache.path) / f"{key}-cache"
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(value)
    pathlib.Path(file.name).replace(path)


def remove_unused_programs() -> None:
    """Removes the programs that no process has read for `UNUSED` seconds, and what killed processes left half-written."""
    for path in KEPT.rglob("*"):
        if path.is_file() and time.time() - max(path.stat().st_atime, path.stat().st_mtime) > UNUSED:
            path.unlink(missing_ok=True)
