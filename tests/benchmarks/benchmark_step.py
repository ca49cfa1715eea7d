"""Rows a second of one CPU training step, side by side with transformers' PyTorch BERT.

    python tests/benchmarks/benchmark_step.py --peer-python=PATH

PATH is a Python with torch and transformers; without it, ours runs alone.

Both sides train the same model (4 layers, 256 wide, vocabulary 30,522, dropout 0.1, clipping, AdamW) on random rows of full
length, at 32 x 128 and 8 x 512. `--dtype=bfloat16` multiplies in bfloat16 on both sides (the peer's: `torch.autocast`), which is
for a CPU with instructions for it (AMX, AVX512-BF16). The peer runs as installed and with glibc's allocator tuned, which keeps
its large buffers from being returned to the system and faulted in again at every step; ours as installed. Sides take turns,
every round in a fresh process. Run it on an idle machine. All figures go to --json=FILE.

`--left-to-right` adds the steps of a left-to-right model on the same rows: with as many predictions as the masked one has, and
with all next tokens predicted, whose head on the vocabulary is that many times as large.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import TUNED

SHAPES = {128: (32, 20), 512: (8, 77)}  # length: rows, predictions
PREDICTS = ("ours", "ours, left to right", "ours, left to right, every next token")
MODEL = {"layers": 4, "width": 256}
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="the interpreter of an environment with torch and transformers")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the matrix products")
    parser.add_argument("--left-to-right", action="store_true", help="also the steps of a left-to-right model")
    parser.add_argument("--ours-at-length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--predicts", choices=PREDICTS, default="ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours_at_length:
        print(json.dumps({"seconds": ours(options.ours_at_length, options.steps, options.dtype, options.predicts)}))
        return
    kinds = PREDICTS if options.left_to_right else PREDICTS[:1]
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for length in SHAPES:
            for who, command, extra in sides(length, options.steps, options.dtype, options.peer_python, kinds):
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | extra)
                seconds.setdefault((who, length), []).extend(json.loads(done.stdout.splitlines()[-1])["seconds"])
    report(seconds, options.json)


def sides(
    length: int, steps: int, dtype: str, peer_python: str | None, kinds: Sequence[str]
) -> list[tuple[str, list[str], dict[str, str]]]:
    """(name, command, environment) of everything measured at one length."""
    rows, predictions = SHAPES[length]
    mine = [sys.executable, str(HERE), f"--ours-at-length={length}", f"--steps={steps}", f"--dtype={dtype}"]
    environment = {"PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu"}
    result = [(kind, [*mine, f"--predicts={kind}"], environment) for kind in kinds]
    if peer_python:
        sizes = {"rows": rows, "length": length, "predictions": predictions, "steps": steps, "threads": os.cpu_count(), **MODEL}
        flags = [f"--{name}={value}" for name, value in sizes.items()]
        theirs = [peer_python, str(HERE.with_name("peer_step.py")), f"--dtype={dtype}", *flags]
        result += [("peer as installed", theirs, {}), ("peer, allocator tuned", theirs, TUNED)]
    return result


def report(seconds: dict[tuple[str, int], list[float]], file: pathlib.Path | None) -> None:
    """A table of rows a second and of how many times the peer's ours are."""
    figures: list[dict[str, Any]] = []
    rows_of_table = []
    for (who, length), times in seconds.items():
        rows = SHAPES[length][0]
        ratio = statistics.median(times) / statistics.median(seconds["ours", length])
        rates = {"median": rows / statistics.median(times), "best": rows / min(times)}
        figures.append({"who": who, "length": length, "rows_per_second": rates, "ours_is_times_faster": ratio})
        rows_of_table.append([f"{length}", who, f"{rates['median']:.2f}", f"{rates['best']:.2f}", f"{ratio:.2f}"])
    columns = ["tokens", "side", "rows/s, median", "best", "ours is times faster"]
    give(columns, rows_of_table, {"cores": os.cpu_count(), "load": os.getloadavg(), "figures": figures}, file)


def ours(length: int, steps: int, dtype: str, predicts: str) -> list[float]:
    """Seconds of each of our steps, compilation left out."""
    import jax.numpy as jnp

    from bert_jax.model.config import ModelConfig, published
    from tests.benchmarks.timed_steps import seconds_of_steps
    from tests.random_rows import initial_parameters_of, objective_for, random_batch

    rows, predictions = SHAPES[length]
    masked, every = predicts == PREDICTS[0], predicts == PREDICTS[2]
    config = ModelConfig(**published("mini"), dtype=dtype, direction="both" if masked else "left_to_right")
    batch = random_batch(rows=rows, length=length, predictions=predictions, config=config, padding=False)
    if every:
        positions = jnp.broadcast_to(jnp.arange(length - 1, dtype=jnp.int32), (rows, length - 1))
        batch |= {"masked_positions": positions, "masked_targets": batch["input_ids"][:, 1:]}
    params = initial_parameters_of(config)
    objective = objective_for(config, masked)
    return seconds_of_steps(objective, params, batch, steps)


if __name__ == "__main__":
    main()
