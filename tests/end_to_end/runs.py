"""Starts `bert_jax.pretrain` and other training commands on data and a model that take seconds, and reads the files that they
leave."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import unittest.mock
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bert_jax import corpus as corpus_command

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = REPOSITORY / "tests" / "data" / "tiny_vocab.txt"
LAST_STEP = 24
CACHE = "JAX_COMPILATION_CACHE_DIR"
WORDS = "the river of paris is a capital and france has many small towns where people read old books in quiet rooms"

EXPERIMENT = '''
"""Two phases, the second with longer and packed rows; a checkpoint every four steps, a line of metrics every step."""

def get_config():
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "model": {{"vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64, "scan_layers": True, "initializer_range": 0.1}},
        "phases": [
            {{"steps": 14, "length": 32, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3, "warmup_steps": 3}},
            {{"steps": 10, "length": 64, "batch_size": 8, "max_predictions": 12, "learning_rate": 1e-3, "packed_examples": 3}},
        ],
        "evaluation": {{"every": 12, "rows": 20, "batch_size": 8}},
        "checkpoints": {{"every": 4}},
        "log_every": 1,
    }}
'''
BRIEF = "".join(line for line in EXPERIMENT.splitlines(keepends=True) if '"length": 64' not in line)
"""The first phase alone, whose programs are half as many."""
BRIEF_STEPS = 14


def write_text(path: pathlib.Path, *, documents: int = 60, seed: int = 0) -> None:
    """Writes made-up English of a few dozen words: one sentence per line, a blank line between documents."""
    words = WORDS.split()
    rng = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(rng.randint(4, 10)):
            lines.append(" ".join(rng.choices(words, k=rng.randint(5, 12))).capitalize() + ".")
        lines.append("")
    path.write_text("\n".join(lines))


def build_corpus(directory: pathlib.Path, **text: int) -> pathlib.Path:
    """Builds a corpus with the corpus command in this process: a separate process would take 3 s to import."""
    source = directory.with_suffix(".txt")
    write_text(source, **text)
    flags = [f"--source=text:{source}", f"--vocab={VOCABULARY}", "--lowercase", f"--output={directory}"]
    with unittest.mock.patch.object(sys, "argv", ["corpus", *flags, "--eval-fraction=0.2", "--shards=2", "--workers=1"]):
        corpus_command.main()
    return directory


def write_experiment(path: pathlib.Path, corpus: pathlib.Path, experiment: str = EXPERIMENT) -> pathlib.Path:
    size = json.loads((corpus / "manifest.json").read_text())["vocabulary"]["size"]
    path.write_text(experiment.format(corpus=str(corpus), vocabulary_size=size))
    return path


def xla_flags(devices: int) -> str:
    """Returns the flags of the tests' own environment with this many virtual devices, so that a process rounds as the tests
    do."""
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    return " ".join([*kept, f"--xla_force_host_platform_device_count={devices}"])


def environment_of_a_person() -> dict[str, str]:
    """Returns the environment of a command in a process of its own, with one device."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    return environment | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(1),
        CACHE: os.environ[CACHE],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # as in tests/compiling.py
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes longer than running here
        "PYTHONPATH": str(REPOSITORY),
    }


def as_a_person(command: str, *arguments: str) -> tuple[int, str]:
    """Returns (exit status, all output) of `python -m bert_jax.COMMAND` in a process of its own, with one device."""
    done = subprocess.run(
        [sys.executable, "-m", f"bert_jax.{command}", *arguments],
        cwd=REPOSITORY,
        env=environment_of_a_person(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout


def records(workdir: pathlib.Path) -> list[dict[str, Any]]:
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def last_step(workdir: pathlib.Path) -> int:
    return max((record["step"] for record in records(workdir)), default=-1)


def learned(workdir: pathlib.Path) -> list[dict[str, float]]:
    """Returns the parts of `metrics.jsonl` about learning, without times and failed saves."""
    return [
        {name: value for name, value in record.items() if name != "time" and "second" not in name}
        for record in records(workdir)
        if not any(name.startswith("checkpoints/") for name in record)
    ]


def results(workdir: pathlib.Path) -> dict[str, Any]:
    """Returns the content of `results.json` without the numbers that depend on time and on failed saves."""
    values: dict[str, Any] = json.loads((workdir / "results.json").read_text())
    left_out = ("ledger", "failed_saves_since_last_start")
    return {name: value for name, value in values.items() if "second" not in name and name not in left_out}


def texts_in(figure: pathlib.Path) -> list[str]:
    """Returns the texts of a figure in SVG, in the order in which they are drawn: a comment before the shapes of its letters."""
    return re.findall(r"<!-- (.*?) -->", figure.read_text(encoding="utf-8"))


def weights(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the exported tensors."""
    return load_file(workdir / "model" / "model.safetensors")


def assert_same_weights(workdir: pathlib.Path, wanted: pathlib.Path) -> None:
    """Checks that the weights are equal bit for bit."""
    ours, theirs = weights(workdir), weights(wanted)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
    """Returns every file except the lock."""
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(workdir)): path.read_bytes() for path in files}


def checkpoints(workdir: pathlib.Path) -> list[int]:
    directory = workdir / "checkpoints"
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit()) if directory.is_dir() else []


def damage_newest_checkpoint(workdir: pathlib.Path) -> None:
    """Cuts the ends of the large files of the newest checkpoint off."""
    for path in (workdir / "checkpoints" / str(checkpoints(workdir)[-1])).rglob("*"):
        if path.is_file() and path.stat().st_size > 1_000:
            path.write_bytes(path.read_bytes()[:-500])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
