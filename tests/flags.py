"""Command lines made of usual flags and others."""

from __future__ import annotations

from collections.abc import Sequence


def replacing(usual: Sequence[str], *flags: str) -> list[str]:
    """`flags` after the `usual` ones, of which those are left out that `flags` give again."""
    given = {flag.partition("=")[0] for flag in flags}
    return [*(flag for flag in usual if flag.partition("=")[0] not in given), *flags]
