"""Writes schedules_golden.json: the factors of transformers' schedules at every step.

    PYTHONPATH=. PYTHON_WITH_TRANSFORMERS tests/golden/make_schedules_golden.py      # transformers 5.24.0, torch 2.13.0

`tests/training/test_schedules.py` compares ours with them. `min_lr_ratio` is 0: with larger values, transformers also raises the
warmup.
"""

from __future__ import annotations

import json
import pathlib

GOLDEN = pathlib.Path(__file__).with_name("schedules_golden.json")
CASES = [(10, 30, 20), (0, 7, 13), (5, 0, 45), (1, 1, 1), (0, 0, 3)]
"""The number of warmup steps, of steps at the peak rate, and of decay steps."""
DECAYS = ("1-sqrt", "linear", "cosine")


def main() -> None:
    """Writes the file."""
    import torch
    from transformers import get_wsd_schedule

    found = []
    for decay in DECAYS:
        for warmup, stable, falling in CASES:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            schedule = get_wsd_schedule(optimizer, warmup, falling, num_stable_steps=stable, decay_type=decay, min_lr_ratio=0)
            factor = schedule.lr_lambdas[0]
            factors = [factor(step) for step in range(warmup + stable + falling + 2)]
            found.append({"decay": decay, "warmup": warmup, "stable": stable, "falling": falling, "factors": factors})
    GOLDEN.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
