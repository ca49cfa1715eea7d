"""Kills a study at random moments, and compares its table with the table of an undisturbed study. It takes minutes.

    python tests/end_to_end/kill_study.py --kills=10 --directory=runs/killed_study

A kill is a SIGKILL of the study's process only, so the part that is running has to notice it; every third kill is of the whole
process group. The tables have to be the same bit for bit, except for measurements. It prints the moment of every kill.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from annotated_types import Interval  # noqa: E402

from bert_jax.interface.flags import FlagParser  # noqa: E402
from bert_jax.interface.ranges import InRange  # noqa: E402
from tests.end_to_end import tiny_study  # noqa: E402
from tests.end_to_end.runs import CACHE, build_corpus, write_experiment  # noqa: E402
from tests.end_to_end.toy_tasks import own_texts  # noqa: E402


def flag_parser() -> FlagParser:
    parser = FlagParser(prog="kill_study.py", description=__doc__)
    parser.add_argument("--kills", type=InRange(int, Interval(ge=1, le=1_000)), default=10)
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--start", type=InRange(float, Interval(ge=0, le=1_000)), default=5.0)
    parser.add_argument("--seed", type=InRange(int, Interval(ge=0, le=2**32 - 1)), default=0)
    return parser


def start(directory: pathlib.Path, workdir: pathlib.Path) -> subprocess.Popen[bytes]:
    flags = [f"--config={directory / 'study.py'}", f"--workdir={workdir}"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "bert_jax.study", *flags]
    with (directory / f"{workdir.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def table(workdir: pathlib.Path) -> str:
    return json.dumps(json.loads((workdir / "table.json").read_text())["table"], sort_keys=True)


def main() -> None:
    flags = flag_parser().parse_args()
    rng, directory = random.Random(flags.seed), flags.directory
    directory.mkdir(parents=True)
    os.environ.setdefault(CACHE, str(directory / "cache"))
    experiment = write_experiment(directory / "experiment.py", build_corpus(directory / "corpus"))
    (directory / "toys").mkdir()
    own_texts(directory / "toys")
    tiny_study.write(directory / "study.py", tiny_study.values(experiment, directory / "toys"))
    began = time.monotonic()
    assert start(directory, directory / "alone").wait() == 0, (directory / "alone.log").read_text()
    alone = time.monotonic() - began
    print(f"left alone it takes {alone:.0f} s", flush=True)
    for kill in range(flags.kills):
        process = start(directory, directory / "killed")
        wait = rng.uniform(0.2, 1.8) * alone / flags.kills + flags.start  # seconds before a part has started
        try:
            status = process.wait(wait)
            print(f"kill {kill + 1}: it had ended with status {status} before", flush=True)
        except subprocess.TimeoutExpired:
            whole = kill % 3 == 2
            os.killpg(process.pid, signal.SIGKILL) if whole else process.kill()
            process.wait()
            done = sorted(str(path.relative_to(directory / "killed")) for path in (directory / "killed").glob("*/*/*.json"))
            print(f"kill {kill + 1} of {'all' if whole else 'the study'} after {wait:.1f} s, {len(done)} parts done", flush=True)
    assert start(directory, directory / "killed").wait() == 0, (directory / "killed.log").read_text()
    same = table(directory / "alone") == table(directory / "killed")
    print(f"the tables are {'the same to the bit' if same else 'NOT the same'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
