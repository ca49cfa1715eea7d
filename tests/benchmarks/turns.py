"""Sides of a comparison that take turns, each in a process of its own: ours, and a peer as installed and with glibc tuned."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)}
"""Keeps the peer's large buffers from being returned to the system and faulted in again at every batch."""
AS_RUN_SH = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Large buffers in pages of 2 MB, as `tpu_scripts/run.sh` asks for."""
BATCH_SIZES = (16, 32, 64)
"""Of the peer; the best one counts."""


class Side(NamedTuple):
    """A program that prints a line of JSON with its figures."""

    who: str
    command: Sequence[str]
    environment: Mapping[str, str]


def ours(program: pathlib.Path) -> Side:
    """This repository's side, which `program` runs on the CPU."""
    return Side("ours", [sys.executable, str(program)], {"PYTHONPATH": str(program.parents[2]), "JAX_PLATFORMS": "cpu"})


def peers(python: str | None, program: pathlib.Path) -> list[Side]:
    """The sides of a peer's `program` by the interpreter `python`, as installed and tuned for each batch size; none without
    one."""
    if not python:
        return []
    return [
        Side(f"{how}, batch {batch}", [python, str(program), f"--batch-size={batch}"], environment)
        for batch in BATCH_SIZES
        for how, environment in (("peer as installed", {}), ("peer, allocator tuned", TUNED))
    ]


def in_turns(sides: Sequence[Side], rounds: int, flags: Callable[[int], Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each round of every side by its name; `flags` are those of a side by its number."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for number, side in enumerate(sides):
            whole = [*side.command, *flags(number)]
            done = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | dict(side.environment))
            runs.setdefault(side.who, []).append(json.loads(done.stdout.splitlines()[-1]))
    return runs
