"""Sets up logging to stderr: our own lines, and errors of libraries."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import warnings
from collections.abc import Callable


def start_logging(index: int) -> None:
    """Sends this package's messages to stderr: from process 0 those of level INFO and above, from the others warnings and
    errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if index == 0 else f"[process {index}] %(message)s"))
    ours = logging.getLogger("bert_jax")
    ours.handlers = [handler]
    ours.setLevel(logging.INFO if index == 0 else logging.WARNING)
    ours.propagate = False


def quiet_libraries() -> None:
    """Sets the log level of libraries to ERROR or above, since their messages would hide the lines about the loss."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log, read when the first backend starts
    for name in ("jax", "orbax", "etils", "tensorflow_datasets", "grain", "matplotlib"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("absl", "asyncio"):  # a failed save of Orbax, which we report, logs a traceback here for each file not written
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)
    warnings.filterwarnings("ignore", module=r"(orbax|tensorflow_datasets|etils)\b")


@dataclasses.dataclass(frozen=True)
class _WithoutClosedLoops:
    """`sys.unraisablehook` without the error "Event loop is closed". At the first failed write of a save, Orbax closes the event
    loop to which TensorStore's threads report all other writes, and each of them would print a traceback; the failed save itself
    is reported once."""

    otherwise: Callable[[sys.UnraisableHookArgs], object]

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            self.otherwise(unraisable)
