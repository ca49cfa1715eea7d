"""Shares MLIR contexts between lowerings: creating a new one each time takes a tenth of the CPU time of the model tests."""

from __future__ import annotations

import threading
from typing import Any

from jax._src.interpreters import mlir

LOWERINGS = 200
"""The number of programs per thread that share a context. A context keeps every type and constant of its programs in memory."""


def share_contexts() -> None:
    """Makes JAX use one context for `LOWERINGS` programs, if this version of JAX has the function that creates contexts."""
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
