"""Rows per second of fine-tuning on a CPU, compared with transformers' PyTorch on the same weights and data of mixed lengths.

    python tests/benchmarks/benchmark_finetune.py --model=DIR --mrpc=DIR --squad=DIR --peer-python=PATH

--model is a Hugging Face model directory, --mrpc and --squad (either may be left out) are directories of the official files, PATH
is a Python with torch and transformers; without it, ours runs alone. A row is a pair of MRPC (32 per step, at most 128 tokens) or
a window of SQuAD 1.1 (16 per step, at most 384 tokens).

Every round draws as many random examples of the training set as its timed steps need. All sides train on them, each in its own
order, with equal settings (--dtype of the products, dropout 0.1, AdamW, clipping). The peer pads a batch to its longest row. It
runs in four ways: as installed; with glibc's allocator tuned, so that large buffers are not returned to the system and faulted
in again at every step; with the huge pages that tpu_scripts/run.sh sets for ours too; and tuned with batches of rows of similar
length (Trainer's group_by_length), which pads less and shuffles less. The sides alternate, each in a fresh process. Run it on
an idle machine. All figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import AS_RUN_SH, TUNED

HERE = pathlib.Path(__file__).resolve()
LEARNING_RATE = 2e-5


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--mrpc", type=pathlib.Path, help="the directory with the files of MRPC")
    parser.add_argument("--squad", type=pathlib.Path, help="the directory with the files of SQuAD 1.1")
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--steps", type=int, default=20, help="the number of timed steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="the type of matrix products")
    parser.add_argument("--ours", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.ours, options)))
        return
    chosen = [name for name in SETTINGS if getattr(options, name)]
    if not chosen:
        parser.error(f"give the data of at least one task: {', '.join('--' + name for name in SETTINGS)}")
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for task in chosen:
            setting = SETTINGS[task]
            with tempfile.TemporaryDirectory() as directory:
                count = options.steps * setting.batch_size
                setting.sample(getattr(options, task), pathlib.Path(directory), count, random.Random(number))
                for who, command, extra in sides(task, directory, options):
                    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2])} | extra
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
                    runs.setdefault((task, who), []).append(json.loads(done.stdout.splitlines()[-1]))
    report(runs, options.json)


def sample_mrpc(source: pathlib.Path, target: pathlib.Path, count: int, generator: random.Random) -> None:
    """Writes this many of the training pairs to `target`, with a dev set of the same pairs, since readers require one."""
    header, *lines = (source / "train.tsv").read_bytes().splitlines(keepends=True)
    chosen = header + b"".join(generator.sample(lines, count))
    for split in ("train", "dev"):
        (target / f"{split}.tsv").write_bytes(chosen)


def sample_squad(source: pathlib.Path, target: pathlib.Path, count: int, generator: random.Random) -> None:
    """Writes this many of the training questions to `target`, each of which is one window or more; otherwise like
    `sample_mrpc`."""
    articles = json.loads((source / "train-v1.1.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [{"context": p["context"], "qas": [question]} for p in paragraphs for question in p["qas"]]
    chosen = {"version": "1.1", "data": [{"title": "a sample", "paragraphs": generator.sample(questions, count)}]}
    for split in ("train", "dev"):
        (target / f"{split}-v1.1.json").write_text(json.dumps(chosen), encoding="utf-8")


@dataclass(frozen=True)
class Setting:
    """How a task is trained, and how its training set is sampled."""

    name: str
    length: int
    batch_size: int
    sample: Callable[[pathlib.Path, pathlib.Path, int, random.Random], None]


SETTINGS = {
    "mrpc": Setting("glue/mrpc", length=128, batch_size=32, sample=sample_mrpc),
    "squad": Setting("squad/v1.1", length=384, batch_size=16, sample=sample_squad),
}


def sides(task: str, directory: str, options: argparse.Namespace) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns (name, command, environment) for everything that is measured on the sample of a task in `directory`."""
    asked = {"ours": task, task: directory, "model": options.model, "dtype": options.dtype, "steps": options.steps}
    mine = [sys.executable, str(HERE), *(f"--{name}={value}" for name, value in asked.items())]
    result = [("ours", mine, {"JAX_PLATFORMS": "cpu", **AS_RUN_SH})]
    if not options.peer_python:
        return result
    setting = SETTINGS[task]
    flags = {
        "model": options.model,
        "task": setting.name,
        "data-dir": directory,
        "length": setting.length,
        "batch-size": setting.batch_size,
        "learning-rate": LEARNING_RATE,
        "max-steps": options.steps,
        "threads": os.cpu_count(),
        "dtype": options.dtype,
    }
    program = str(HERE.with_name("peer_finetune.py"))
    theirs = [options.peer_python, program, *(f"--{name}={value}" for name, value in flags.items())]
    return [
        *result,
        ("peer as installed", theirs, {}),
        ("peer, allocator tuned", theirs, TUNED),
        ("peer, huge pages", theirs, AS_RUN_SH),
        ("peer, allocator tuned, like lengths", [*theirs, "--group-by-length"], TUNED),
    ]


def ours(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns our rows per second, the seconds of each step and this process's peak memory in MB, over one epoch of the sample.
    Every shape of batch has been compiled before."""
    import jax
    import numpy as np

    from bert_jax.configs.finetuning import FinetuningExperiment
    from bert_jax.data.batches import LabelledBatches, to_device
    from bert_jax.finetuning.data import read_features
    from bert_jax.finetuning.program import finetuning_program, label_loss
    from bert_jax.finetuning.start import labelled_start, with_own_head
    from bert_jax.sharding.mesh import make_mesh
    from bert_jax.sharding.rules import BATCH
    from bert_jax.tasks.task import load_task

    setting = SETTINGS[task]
    experiment = FinetuningExperiment.from_dict(
        {
            "init_from": options.model,
            "task": {"name": setting.name, "data_dir": str(getattr(options, task)), "length": setting.length},
            "training": {"batch_size": setting.batch_size, "learning_rate": LEARNING_RATE, "schedule": "linear"},
            "optimizer": {"name": "adamw"},
            "model": {"dtype": options.dtype},
        }
    )
    labelled = load_task(experiment.task)
    start = labelled_start(experiment, labelled.head)
    data, mesh = read_features(labelled, start), make_mesh(experiment.mesh)
    train, size = data.features["train"], setting.batch_size
    epochs = -(-options.steps * size // len(train))
    batches = LabelledBatches(train, data.shape, size, experiment.seed, epochs=epochs, row_multiple=1, pad_id=data.pad_id)
    config, head = experiment.model_config(start.config, "cpu"), experiment.head_config(labelled.head)
    loss = label_loss(experiment, labelled, data.features["train"])
    program = finetuning_program(experiment, config, head, loss, batches.steps_per_epoch, mesh)
    state = program.init_state(dict, with_own_head(start, config, head, experiment).params)
    scalars = {
        "steps": np.int32(10 * options.steps),
        "warmup_steps": np.int32(options.steps),
        "peak": np.float32(LEARNING_RATE),
        "seed": np.uint32(0),
    }
    seconds = []
    with jax.set_mesh(mesh):
        first_of_shape = {batches.at(step)["input_ids"].shape: step for step in range(options.steps)}
        for step in [*first_of_shape.values()] * 2 + [*range(options.steps)]:
            started = time.perf_counter()
            state, sums = program.training_step(1)(state, to_device(batches.at(step), mesh, BATCH), scalars)
            jax.block_until_ready((state, sums))
            seconds.append(time.perf_counter() - started)
    timed = seconds[-options.steps :]
    rows = sum(len(batches.members(step)) for step in range(options.steps))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows_per_second": rows / sum(timed), "seconds": timed, "shapes": len(first_of_shape), "peak_mb": peak}


def report(runs: dict[tuple[str, str], list[dict[str, Any]]], file: pathlib.Path | None) -> None:
    """Prints a table of rows per second, and of the ratio of ours to the peer's."""
    figures, rows = [], []
    for (task, who), rounds in runs.items():
        rates = [run["rows_per_second"] for run in rounds]
        median, peak = statistics.median(rates), max(run["peak_mb"] for run in rounds)
        ratio = statistics.median(run["rows_per_second"] for run in runs[task, "ours"]) / median
        rows.append([task, who, f"{median:.2f}", f"{max(rates):.2f}", f"{peak:,.0f}", f"{ratio:.2f}"])
        figures.append(
            {"task": task, "who": who, "rows_per_second": rates, "median": median, "peak_mb": peak, "ours_is_times_faster": ratio}
        )
    versions = {name: run[name] for some in runs.values() for run in some for name in ("torch", "transformers") if name in run}
    columns = ["task", "side", "rows/s, median", "best", "peak MB", "ours is times faster"]
    give(columns, rows, {"cores": os.cpu_count(), "load": os.getloadavg(), **versions, "figures": figures}, file)


if __name__ == "__main__":
    main()
