"""Reads the profiles that runs write."""

from __future__ import annotations

import pathlib
from typing import Any

import jax


def host_events(directory: pathlib.Path) -> list[tuple[str, dict[str, Any]]]:
    """Yields (name, values) of every event that the host's threads recorded in a profile, in the order of the threads."""
    (file,) = (directory / "plugins" / "profile").glob("*/*.xplane.pb")
    planes = [plane for plane in jax.profiler.ProfileData.from_file(str(file)).planes if plane.name == "/host:CPU"]
    return [(str(event.name), dict(event.stats)) for plane in planes for line in plane.lines for event in line.events]


def profiled_steps(directory: pathlib.Path) -> list[int]:
    """Returns the step numbers of the events called "train" in a profile."""
    return sorted(int(values["step_num"]) for name, values in host_events(directory) if name == "train" and "step_num" in values)
