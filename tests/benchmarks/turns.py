"""Runs the sides of a comparison alternately, each in a process of its own: ours, and a peer as installed and with glibc
tuned."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)}
"""Settings of glibc with which the peer keeps its large buffers, instead of returning them to the system after every batch."""
AS_RUN_SH = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Puts large buffers in pages of 2 MB, as `tpu_scripts/run.sh` does."""
BATCH_SIZES = (16, 32, 64)
"""The peer's batch sizes; the best one counts."""


class Side(NamedTuple):
    """A program that prints its figures as a line of JSON."""

    who: str
    command: Sequence[str]
    environment: Mapping[str, str]


def ours(program: pathlib.Path) -> Side:
    """Returns our side, which `program` runs on the CPU."""
    return Side("ours", [sys.executable, str(program)], {"PYTHONPATH": str(program.parents[2]), "JAX_PLATFORMS": "cpu"})


def peers(python: str | None, program: pathlib.Path) -> list[Side]:
    """Returns the sides of a peer's `program` run by the interpreter `python`: as installed, and tuned for each batch size; none
    without an interpreter."""
    if not python:
        return []
    return [
        Side(f"{how}, batch {batch}", [python, str(program), f"--batch-size={batch}"], environment)
        for batch in BATCH_SIZES
        for how, environment in (("peer as installed", {}), ("peer, allocator tuned", TUNED))
    ]


def in_turns(sides: Sequence[Side], rounds: int, flags: Callable[[int], Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Returns the figures of each round of every side by its name; `flags` returns the flags of a side from its index."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for number, side in enumerate(sides):
            whole = [*side.command, *flags(number)]
            done = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | dict(side.environment))
            runs.setdefault(side.who, []).append(json.loads(done.stdout.splitlines()[-1]))
    return runs
