"""Disturbs small training runs in every way that we know, and checks that each ends as the undisturbed one, or soon and with a
reason.

    python tests/chaos/run.py                       # everything: half an hour on two cores
    python tests/chaos/run.py --short               # a minute
    python tests/chaos/run.py --only=kills --processes=2 --storage=disk

Runs of 2 and of 4 processes on loopback, with the workdir on the local disk and in a bucket (an emulator), are disturbed. After
each disturbance the run goes on by itself, or it ends within 60 s with a sentence that names the culprit and the same command
goes on; either way the curve, the weights and the results are those of the undisturbed run to the bit (another number of
processes: within rounding). `--seed=N` draws the moments and the victims. The exit status is 1 where one was not so. Cutting the
network and a full disk need root on Linux, the clock a C compiler; they are skipped elsewhere. All figures go to --json=FILE.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Sequence

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bert_jax.storage import objects
from tests.benchmarks.figures import flag_parser, give
from tests.chaos.disturbances import ALL, SHORT
from tests.chaos.toy import BUCKET, DISK, Skipped, Toys, Trial, Wrong
from tests.end_to_end.runs import CACHE, free_port
from tests.storage.emulator import running

COLUMNS = ("disturbance", "processes", "workdir", "outcome", "seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """The driver; returns the exit status."""
    parser = flag_parser(__doc__)
    parser.add_argument("--short", action="store_true", help="few of them, in a minute")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws moments and victims (0)")
    names = ", ".join(ALL)
    parser.add_argument("--only", action="append", choices=ALL, metavar="NAME", help=f"this one, or several: {names}")
    parser.add_argument("--processes", type=int, choices=(2, 4), metavar="N", help="only runs of 2, or of 4")
    parser.add_argument("--storage", choices=(DISK, BUCKET), metavar="WHERE", help=f"only workdirs on {DISK}, or in a {BUCKET}")
    options = parser.parse_args(argv)
    wanted = {name: ALL[name] for name in options.only} if options.only else SHORT if options.short else ALL
    rows, failed = [], 0
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        emulator = stack.enter_context(running(free_port(), host="0.0.0.0"))
        compiled = os.environ.get(CACHE) or f"{made}/compiled"
        ours = {**emulator.environment, CACHE: compiled, "BERT_JAX_CACHE": f"{made}/copies"}
        stack.enter_context(unittest.mock.patch.dict(os.environ, ours))
        objects.set_up.cache_clear()
        stack.callback(objects.set_up.cache_clear)
        toys = Toys(pathlib.Path(made), emulator)
        for processes in (options.processes,) if options.processes else (2,) if options.short else (2, 4):
            toys.undisturbed(processes)
            for name, disturb in wanted.items():
                for storage in (options.storage,) if options.storage else (DISK,) if options.short else (DISK, BUCKET):
                    trial = Trial(toys, name, processes, storage, random.Random(f"{options.seed} {name} {processes} {storage}"))
                    began = time.monotonic()
                    try:
                        outcome = disturb(trial)
                    except Skipped as reason:
                        outcome = f"skipped: {reason}"
                    except Wrong as wrong:
                        failed += 1
                        print(f"\n{name}, {processes} processes, {storage}: {wrong}\n", file=sys.stderr)
                        outcome = f"FAILED: {str(wrong).splitlines()[0][:100]}"
                    emulator.fail(200, count=0)
                    rows.append([name, str(processes), storage, outcome, f"{time.monotonic() - began:.0f}"])
                    print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    give(COLUMNS, rows, {"seed": options.seed, "rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}, options.json)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
