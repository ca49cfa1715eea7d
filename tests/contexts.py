"""MLIR contexts that lowerings share: making one anew for each takes a tenth of the CPU time of the tests of models."""

from __future__ import annotations

import threading
from typing import Any

from jax._src.interpreters import mlir

LOWERINGS = 200
"""Programs of a thread that share a context, which keeps every type and constant of all of them in memory."""


def share_contexts() -> None:
    """Lets JAX use a context for `LOWERINGS` programs, where it has the function that makes one."""
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
