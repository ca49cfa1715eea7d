"""Runs of `python -m bert_jax.pretrain`, or of another verb that trains, as a person starts them: a process each, on data and a
model that take seconds."""

from __future__ import annotations

import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = REPOSITORY / "tests" / "corpus" / "tiny_vocab.txt"
LAST_STEP = 24
WORDS = "the river of paris is a capital and france has many small towns where people read old books in quiet rooms"

EXPERIMENT = '''
"""Two phases, the second with longer and packed rows; a checkpoint every four steps, a line of metrics every step."""

def get_config():
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "model": {{"vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64, "scan_unroll": 1, "initializer_range": 0.1}},
        "phases": [
            {{"steps": 14, "length": 32, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3, "warmup_steps": 3}},
            {{"steps": 10, "length": 64, "batch_size": 8, "max_predictions": 12, "learning_rate": 1e-3, "packed_examples": 3}},
        ],
        "evaluation": {{"every": 12, "rows": 20, "batch_size": 8}},
        "checkpoints": {{"every": 4}},
        "log_every": 1,
    }}
'''


def write_text(path: pathlib.Path, *, documents: int = 60, seed: int = 0) -> None:
    """One sentence a line, a blank line between documents: made-up English of a few dozen words."""
    words = WORDS.split()
    rng = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(rng.randint(4, 10)):
            lines.append(" ".join(rng.choices(words, k=rng.randint(5, 12))).capitalize() + ".")
        lines.append("")
    path.write_text("\n".join(lines))


def build_corpus(directory: pathlib.Path, **text: int) -> pathlib.Path:
    """A corpus made by the corpus verb."""
    source = directory.with_suffix(".txt")
    write_text(source, **text)
    command = [sys.executable, "-m", "bert_jax.corpus", f"--source=text:{source}", f"--vocab={VOCABULARY}", "--lowercase"]
    command += [f"--output={directory}", "--heldout-fraction=0.2", "--shards=2", "--workers=1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return directory


def write_experiment(path: pathlib.Path, corpus: pathlib.Path) -> pathlib.Path:
    size = json.loads((corpus / "manifest.json").read_text())["vocabulary"]["size"]
    path.write_text(EXPERIMENT.format(corpus=str(corpus), vocabulary_size=size))
    return path


def xla_flags(devices: int) -> str:
    """The flags of the tests' own environment, but for so many virtual devices: a process rounds as the tests do."""
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    return " ".join([*kept, f"--xla_force_host_platform_device_count={devices}"])


class Run:
    """One process. Compiled programs are shared by all runs of a session, which halves their time."""

    def __init__(
        self,
        experiment: pathlib.Path,
        workdir: pathlib.Path,
        *arguments: str,
        verb: str = "pretrain",
        devices: int = 1,
        prepare: Callable[[], None] | None = None,
        compiled: pathlib.Path | None = None,
    ):
        self.workdir = workdir
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags(devices),
            "JAX_COMPILATION_CACHE_DIR": str(compiled or experiment.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes longer than running here
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [sys.executable, "-m", f"bert_jax.{verb}", f"--config={experiment}", f"--workdir={workdir}", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, preexec_fn=prepare
        )

    def end(self, timeout: float = 300) -> tuple[int, str]:
        """(exit status, everything it said)."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output

    def wait_until(self, reached: Callable[[], bool], timeout: float = 300) -> None:
        """Until `reached()`, or the process has ended (which is a failure)."""
        deadline = time.monotonic() + timeout
        while not reached():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"ended or timed out too early: {self.end()}")
            time.sleep(0.005)


def records(workdir: pathlib.Path) -> list[dict[str, Any]]:
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def last_step(workdir: pathlib.Path) -> int:
    return max((record["step"] for record in records(workdir)), default=-1)


def learned(workdir: pathlib.Path) -> list[dict[str, float]]:
    """What `metrics.jsonl` says of learning, without what it says of time."""
    return [
        {name: value for name, value in record.items() if name != "time" and "second" not in name} for record in records(workdir)
    ]


def results(workdir: pathlib.Path) -> dict[str, Any]:
    """What `results.json` says, without what it says of time."""
    values: dict[str, Any] = json.loads((workdir / "results.json").read_text())
    return {name: value for name, value in values.items() if "second" not in name}


def weights(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """The exported tensors."""
    return load_file(workdir / "model" / "model.safetensors")


def assert_same_weights(workdir: pathlib.Path, wanted: pathlib.Path) -> None:
    """To the bit."""
    ours, theirs = weights(workdir), weights(wanted)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
    """Every file but the lock."""
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(workdir)): path.read_bytes() for path in files}


def checkpoints(workdir: pathlib.Path) -> list[int]:
    directory = workdir / "checkpoints"
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit()) if directory.is_dir() else []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
