"""Rows per second of a CPU training step of a bidirectional LSTM language model, compared with PyTorch's LSTM.

    python tests/benchmarks/benchmark_bilm.py --peer-python=PATH

PATH is a Python with torch; without it, ours runs alone.

Both sides train the same model: two layers of LSTMs in each direction, with separate directions, a residual connection, dropout
0.1, one softmax over 8,192 words tied to the word vectors at 20 positions of each row, clipping, AdamW; 32 rows of 128 tokens, in
float32. "projected" has cells of width 512 and outputs of width 128, a quarter of ELMo's widths; "plain" has cells and outputs of
width 256, for which PyTorch has a faster implementation (oneDNN). Ours runs as `tpu_scripts/run.sh` starts it, with huge pages;
the peer as installed, with huge pages, and with glibc's allocator tuned, as in benchmark_step.py. The sides alternate, every
round in a fresh process. Run it on an idle machine. All figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import AS_RUN_SH, TUNED

SHAPES = {"projected": (128, 512), "plain": (256, 256)}  # widths of each direction's output and of its cell
SIZES = {"rows": 32, "length": 128, "predictions": 20, "layers": 2, "vocabulary": 8_192}
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="a Python with torch")
    parser.add_argument("--steps", type=int, default=8, help="the number of timed steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", choices=tuple(SHAPES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps({"seconds": ours(options.ours, options.steps)}))
        return
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for shape in SHAPES:
            for who, command, extra in sides(shape, options.steps, options.peer_python):
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | extra)
                seconds.setdefault((who, shape), []).extend(json.loads(done.stdout.splitlines()[-1])["seconds"])
    report(seconds, options.json)


def sides(shape: str, steps: int, peer_python: str | None) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns (name, command, environment) for everything that is measured for one shape."""
    mine = [sys.executable, str(HERE), f"--ours={shape}", f"--steps={steps}"]
    result = [("ours", mine, {"PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu", **AS_RUN_SH})]
    if peer_python:
        width, cell = SHAPES[shape]
        sizes = {**SIZES, "width": width, "cell": cell, "steps": steps, "threads": os.cpu_count()}
        theirs = [peer_python, str(HERE.with_name("peer_bilm.py")), *(f"--{name}={value}" for name, value in sizes.items())]
        settings = {"peer as installed": {}, "peer, allocator tuned": TUNED, "peer, huge pages": AS_RUN_SH}
        result += [(who, theirs, environment) for who, environment in settings.items()]
    return result


def report(seconds: dict[tuple[str, str], list[float]], file: pathlib.Path | None) -> None:
    """Prints a table of rows per second, and of the ratio of ours to the peer's."""
    figures: list[dict[str, Any]] = []
    rows_of_table = []
    for (who, shape), times in seconds.items():
        ratio = statistics.median(times) / statistics.median(seconds["ours", shape])
        rates = {"median": SIZES["rows"] / statistics.median(times), "best": SIZES["rows"] / min(times)}
        figures.append({"who": who, "shape": shape, "rows_per_second": rates, "ours_is_times_faster": ratio})
        rows_of_table.append([shape, who, f"{rates['median']:.2f}", f"{rates['best']:.2f}", f"{ratio:.2f}"])
    columns = ["shape", "side", "rows/s, median", "best", "ours is times faster"]
    give(columns, rows_of_table, {"cores": os.cpu_count(), "load": os.getloadavg(), "figures": figures}, file)


def ours(shape: str, steps: int) -> list[float]:
    """Returns the seconds of each of our steps, without compilation."""
    import flax.linen as nn
    import jax
    import numpy as np

    from bert_jax.model.config import ModelConfig
    from bert_jax.model.kernels.dispatch import resolve
    from bert_jax.model.pretraining import initial_parameters
    from tests.benchmarks.timed_steps import seconds_of_steps

    (width, cell), rng = SHAPES[shape], np.random.default_rng(0)
    rows, length, predictions = SIZES["rows"], SIZES["length"], SIZES["predictions"]
    config = ModelConfig(
        encoder="bilm", vocab_size=SIZES["vocabulary"], hidden_size=2 * width, intermediate_size=cell,
        num_layers=SIZES["layers"], max_position=length,
    )  # fmt: skip
    ids = rng.integers(5, config.vocab_size, (rows, length), np.int32)
    positions = np.sort(rng.permuted(np.tile(np.arange(length - 2, dtype=np.int32), (rows, 1)), axis=1)[:, :predictions], axis=1)
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.zeros_like(ids),
        "sequence_ids": np.ones_like(ids),
        "masked_positions": positions,
        "masked_targets": np.take_along_axis(ids, positions + 1, axis=1),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "nsp_labels": np.full((rows, 1), -1, np.int32),
    }
    from tests.random_rows import objective_for

    params = nn.unbox(initial_parameters(config, jax.random.key(0), next_sentence=False))
    return seconds_of_steps(objective_for(resolve(config, jax.local_devices()[0]), False), params, batch, steps)


if __name__ == "__main__":
    main()
