"""Disturbs small training runs in every known way, and checks that each ends like the undisturbed run, or soon fails with a
reason.

    python tests/chaos/run.py --short                                     # a single cell, the one that the tests run
    python tests/chaos/run.py --only=kills --processes=2 --storage=disk   # another cell
    python tests/chaos/run.py                                             # all cells

There are four kinds of runs: with 2 or 4 processes on loopback, and with the workdir on the local disk or in a bucket (an
emulator). A cell is one disturbance of one kind of run. After the disturbance the run continues on its own, or it ends within 60
s with an error that names the culprit, and the same command continues it. Either way, the curve, the weights and the results are
bit for bit those of the undisturbed run (with another number of processes: within rounding). `--seed=N` draws the moments and the
victims, and each of the four cells with kills has 5 of them (--kills=N). The exit status is 1 if a cell failed. Cells that make
no sense, or that need missing rights or programs, are skipped with the reason: cutting the network and filling a disk need root
on Linux, the clock needs a C compiler.

A cell takes one to four times as long as an undisturbed run, and a cell with kills takes about one run per kill. On two cores
shared with other programs, an undisturbed run took 40 to 120 s and a cell of 2 processes 40 to 180 s; all 56 cells, of which 12
are skipped, take hours there. If an undisturbed run takes longer than 30 s, all time limits grow in proportion. --json=FILE
always has the figures of the cells done so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import sys
import tempfile
import time
import traceback
import unittest.mock
from collections.abc import Iterator, Sequence
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bert_jax.interface.ranges import COUNT, InRange
from bert_jax.storage import objects
from tests.benchmarks.figures import flag_parser, give
from tests.chaos.disturbances import ALL, SHORT, Disturbance
from tests.chaos.toy import BUCKET, DISK, STARTS, TOO_SLOW, Skipped, Toys, Trial, Wrong
from tests.end_to_end.runs import CACHE, free_port
from tests.storage.emulator import running

COLUMNS = ("disturbance", "processes", "workdir", "outcome", "seconds")
FAILED, SKIPPED = "FAILED: ", "skipped: "


@dataclasses.dataclass(frozen=True)
class Cell:
    """A disturbance of one kind of run, and its outcome."""

    disturbance: str
    processes: int
    workdir: str
    outcome: str = ""
    seconds: float = 0.0


def examined(cell: Cell, disturb: Disturbance, toys: Toys, seed: int, kills: int) -> Cell:
    """Runs the cell and returns it with its outcome. The output of a failure is printed. If this machine was too slow for a cell,
    it is started again."""
    outcome, began = "", time.monotonic()
    for start in range(1, STARTS + 1):
        rng = random.Random(f"{seed} {cell.disturbance} {cell.processes} {cell.workdir}")
        name = cell.disturbance if start == 1 else f"{cell.disturbance}-{start}"
        with contextlib.closing(Trial(toys, name, cell.processes, cell.workdir, rng, kills=kills)) as trial:
            try:
                toys.undisturbed(cell.processes)
                began = time.monotonic()
                outcome = disturb(trial) + (f"; begun {start} times, since this machine is slow" if start > 1 else "")
            except Skipped as reason:
                outcome = f"{SKIPPED}{reason}"
            except Exception as error:  # a failed cell must not end the others
                if TOO_SLOW in str(error) and start < STARTS:
                    continue
                traceback.print_exc(limit=None if not isinstance(error, Wrong) else 0)
                outcome = f"{FAILED}{(str(error).splitlines() or [type(error).__name__])[0][:100]}"
            finally:
                toys.emulator.fail(200, count=0)
        break
    return dataclasses.replace(cell, outcome=outcome, seconds=round(time.monotonic() - began, 1))


@contextlib.contextmanager
def surroundings() -> Iterator[Toys]:
    """Yields the files and the emulator for all cells, and the environment that they need."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True))
        emulator = stack.enter_context(running(free_port(), host="0.0.0.0"))
        compiled = os.environ.get(CACHE) or f"{made}/compiled"
        ours = {**emulator.environment, CACHE: compiled, "BERT_JAX_CACHE": f"{made}/copies"}
        stack.enter_context(unittest.mock.patch.dict(os.environ, ours))
        objects.set_up.cache_clear()
        stack.callback(objects.set_up.cache_clear)
        yield Toys(pathlib.Path(made), emulator)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cells. Returns the exit status."""
    parser = flag_parser(__doc__)
    parser.add_argument("--short", action="store_true", help="2 kills and a damaged checkpoint, 2 processes, local disk")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed that draws moments and victims (0)")
    parser.add_argument("--kills", type=InRange(int, COUNT), metavar="N", help="the number of kills per cell (5; --short: 2)")
    names = ", ".join(ALL)
    parser.add_argument("--only", action="append", choices=ALL, metavar="NAME", help=f"only this one; repeatable: {names}")
    parser.add_argument("--processes", type=int, choices=(2, 4), metavar="N", help="only runs with 2, or with 4 processes")
    parser.add_argument("--storage", choices=(DISK, BUCKET), metavar="WHERE", help=f"only workdirs on {DISK}, or in a {BUCKET}")
    options = parser.parse_args(argv)
    wanted = {name: ALL[name] for name in options.only} if options.only else SHORT if options.short else ALL
    counts = (options.processes,) if options.processes else (2,) if options.short else (2, 4)
    storages = (options.storage,) if options.storage else (DISK,) if options.short else (DISK, BUCKET)
    kills = options.kills or (2 if options.short else 5)
    cells = [Cell(name, count, storage) for count in counts for name in wanted for storage in storages]
    figures: dict[str, Any] = {"seed": options.seed, "kills": kills, "undisturbed_seconds": {}, "rows": []}
    with surroundings() as toys:
        for number, cell in enumerate(cells, 1):
            done = examined(cell, wanted[cell.disturbance], toys, options.seed, kills)
            figures["undisturbed_seconds"] = {str(count): round(seconds, 1) for count, seconds in toys.seconds.items()}
            figures["rows"].append(dataclasses.asdict(done))
            said = (done.disturbance, f"{done.processes} processes", done.workdir, f"{done.outcome} ({done.seconds:.0f} s)")
            print(f"{number} of {len(cells)}:", ", ".join(said), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(figures, indent=1) + "\n")
    rows = [[*map(str, list(row.values())[:-1]), f"{row['seconds']:.0f}"] for row in figures["rows"]]
    give(COLUMNS, rows, figures, options.json)
    failed = sum(row["outcome"].startswith(FAILED) for row in figures["rows"])
    skipped = sum(row["outcome"].startswith(SKIPPED) for row in figures["rows"])
    alone = ", ".join(f"{seconds:.0f} s with {count} processes" for count, seconds in toys.seconds.items())
    print(f"{failed} of {len(cells)} failed, {skipped} skipped; undisturbed: {alone}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
