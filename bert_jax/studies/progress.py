"""The time that is left of a study, from the parts that are done."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bert_jax.studies.parts import PRETRAINING, Part


def expected_seconds(part: Part, spent: Mapping[Part, float]) -> float | None:
    """The time that a part will take: the mean of the same part with other seeds, else of the parts of its kind with other arms.
    None where no such part is done."""
    same = [seconds for other, seconds in spent.items() if (other.arm, other.name) == (part.arm, part.name)]
    kind = [seconds for other, seconds in spent.items() if other.name == part.name]
    tasks = [seconds for other, seconds in spent.items() if PRETRAINING not in (other.name, part.name)]
    found = same or kind or tasks
    return statistics.fmean(found) if found else None


def seconds_left(waiting: Sequence[Part], spent: Mapping[Part, float], of_current: float) -> float | None:
    """The time until all parts `waiting` are done, of which the first has been running for `of_current` seconds. None while it
    cannot be told."""
    if not waiting:
        return 0.0
    expected = [expected_seconds(part, spent) for part in waiting]
    known = [seconds for seconds in expected if seconds is not None]
    if not known:
        return None
    usual = statistics.fmean(known)
    first, *others = [usual if seconds is None else seconds for seconds in expected]
    return max(0.0, first - of_current) + sum(others)
