"""The command `predict` as a process: its memory, and its files when it is killed, its disk is full or its reader closes the
pipe."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bert_jax.interop.huggingface import export_model
from tests.interop.tiny import WORDS, as_model, make_model, make_vocabulary

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-m", "bert_jax.predict"]
ENVIRONMENT = os.environ | {"JAX_COMPILATION_CACHE_DIR": "", "XLA_FLAGS": ""}

# argv: model, directory. Embeds 3,000 lines, then 70,000, then on a full disk; prints the peaks of memory and the error.
LONG_INPUT = """
import json, pathlib, resource, sys
from bert_jax.predict import main
from bert_jax.errors import UserError

model, root = sys.argv[1], pathlib.Path(sys.argv[2])
def embed(name):
    return main(["embed", f"--model={model}", f"--input={root / name}.txt", f"--output={root / name}.npy"])
peaks = []
for name in ("short", "short", "long"):  # the first compiles
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    assert embed(name) == 0
    status = pathlib.Path("/proc/self/status").read_text()
    peaks.append(int(status.partition("VmHWM:")[2].split()[0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    embed("full")
    problem = ""
except UserError as error:
    problem = str(error)
print(json.dumps({"peaks": peaks, "problem": problem}))
"""
GROWTH_KIB = 32 << 10
"""If 67,000 more lines and their vectors were kept in memory, they would take 76 MiB. If they are not kept, the peaks of equal
runs still differ by up to 20 MiB for inputs of any length (3,000 to 180,000 lines), because of one more batch in flight, or one
more arena of the allocator."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the directory of a tiny model."""
    root = tmp_path_factory.mktemp("model")
    vocabulary = make_vocabulary(root / "vocabulary", cased=True)
    export_model(root / "model", as_model(*make_model(vocabulary, num_layers=1), vocabulary))
    return root / "model"


def lines(count: int) -> str:
    """Returns this many texts of up to 6 words."""
    return "".join(f"{' '.join(WORDS[(i + k) % len(WORDS)] for k in range(1 + i % 6))}\n" for i in range(count))


def test_memory_does_not_grow_with_the_input_and_a_full_disk_leaves_no_half_file(model, tmp_path):
    for name, count in {"short": 3_000, "long": 70_000, "full": 3_000}.items():
        (tmp_path / f"{name}.txt").write_text(lines(count))
    command = [sys.executable, "-c", LONG_INPUT, str(model), str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120)
    said = json.loads(done.stdout)
    _, short, long = said["peaks"]
    assert long - short < GROWTH_KIB
    rows = np.load(tmp_path / "long.npy", mmap_mode="r")
    assert rows.shape == (70_000, 16)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(rows[:3_000], np.load(tmp_path / "short.npy"), atol=1e-5)
    assert "full.npy cannot be written: File too large; choose another --output" in said["problem"]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["full.txt", "long.npy", "long.txt", "short.npy", "short.txt"]


@pytest.fixture
def endless(tmp_path: pathlib.Path) -> pathlib.Path:
    """Writes a file of a hundred thousand texts."""
    path = tmp_path / "in.txt"
    path.write_text(lines(1_000) * 100)
    return path


def test_a_killed_process_leaves_no_output(model, tmp_path, endless):
    command = [*PROGRAM, "embed", f"--model={model}", f"--input={endless}", f"--output={tmp_path / 'x.npy'}"]
    with subprocess.Popen(command, cwd=REPOSITORY, env=ENVIRONMENT) as program:
        until = time.monotonic() + 60
        while not any(part.stat().st_size > 10_000 for part in tmp_path.glob(".x.npy.*.part")):
            assert program.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        program.send_signal(signal.SIGKILL)
    assert not (tmp_path / "x.npy").exists()


def test_a_reader_that_leaves_ends_the_program_quietly(model, endless):
    command = [*PROGRAM, "embed", f"--model={model}", f"--input={endless}"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        assert program.stderr
        assert program.stdout.readline().endswith("'the'\n")
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(60) == 141
