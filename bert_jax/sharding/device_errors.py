"""Recognizes device errors, e.g. of a collective that lost a process."""

from __future__ import annotations

import re

import jax

_STATUS = re.compile(r"(ABORTED|CANCELLED|DATA_LOSS|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN): ")


def is_device_error(error: BaseException | None) -> bool:
    """Returns whether `error` came from a program on the devices.

    Usually this is a JaxRuntimeError. From the fast path of jit, it is a ValueError that starts with the name of XLA's status.

    >>> is_device_error(ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"))
    True
    >>> is_device_error(ValueError("the shapes differ"))
    False
    """
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and bool(_STATUS.match(str(error))))
