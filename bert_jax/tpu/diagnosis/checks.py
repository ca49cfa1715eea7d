"""One line of the report of `doctor`, with its faults; the whole report as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_jax.files import JsonObject
from bert_jax.interface.words import counted


@dataclasses.dataclass(frozen=True)
class Check:
    """One property that was examined."""

    name: str
    text: str
    """The figures."""
    faults: tuple[str, ...] = ()
    """Sentences, each with its remedy; none where all is well."""


def report(checks: Sequence[Check]) -> list[str]:
    """The lines of the report: each check, then all faults, numbered."""
    lines = [f"{'FAULT' if check.faults else 'ok':5}  {check.name:11}  {check.text}" for check in checks]
    faults = [fault for check in checks for fault in check.faults]
    if not faults:
        return [*lines, "", "all is well"]
    return [*lines, "", f"{counted(len(faults), 'fault')}:", *(f"  {i}. {fault}" for i, fault in enumerate(faults, 1))]


def as_json(checks: Sequence[Check], processes: Sequence[JsonObject]) -> JsonObject:
    """The report as JSON values, with the records of all processes."""
    return {
        "well": not any(check.faults for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
        "processes": list(processes),
    }
