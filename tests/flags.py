"""Builds command lines from the usual flags and others."""

from __future__ import annotations

from collections.abc import Sequence


def replacing(usual: Sequence[str], *flags: str) -> list[str]:
    """Returns the `usual` flags without those that `flags` replace, followed by `flags`."""
    given = {flag.partition("=")[0] for flag in flags}
    return [*(flag for flag in usual if flag.partition("=")[0] not in given), *flags]
