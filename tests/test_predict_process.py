"""The command `predict` as a process: its memory, a full disk, and a reader that closes the pipe."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from bert_jax.interop.huggingface import export_model
from tests.interop.tiny import WORDS, as_model, make_model, make_vocabulary

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"JAX_COMPILATION_CACHE_DIR": "", "XLA_FLAGS": ""}

# argv: model, directory. Embeds 3,000 lines, then 12,000, then on a full disk; prints the peaks of memory and the error; and ends
# as a command that prints the answers to the long input.
LONG_INPUT = """
import json, pathlib, resource, sys
from bert_jax.predict import main
from bert_jax.errors import UserError
from bert_jax.interface.command import run_main

model, root = sys.argv[1], pathlib.Path(sys.argv[2])
def embed(name, output):
    return main(["embed", f"--model={model}", f"--input={root / name}.jsonl", *output])
peaks = []
for name in ("short", "short", "long"):  # the first compiles
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    assert embed(name, [f"--output={root / name}.npy"]) == 0
    status = pathlib.Path("/proc/self/status").read_text()
    peaks.append(int(status.partition("VmHWM:")[2].split()[0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
try:
    embed("short", [f"--output={root / 'full.npy'}"])
    problem = ""
except UserError as error:
    problem = str(error)
print(json.dumps({"peaks": peaks, "problem": problem}), flush=True)
run_main(lambda: embed("long", []))
"""
GROWTH_KIB = 32 << 10
"""If the records of 9,000 more lines were kept in memory, they would take 70 MiB. If they are not kept, the peaks of equal runs
still differ by up to 20 MiB for inputs of any length, because of one more batch in flight, or one more arena of the allocator."""


def lines(count: int) -> str:
    """Returns this many texts of up to 6 words, with 8,000 bytes that are not read."""
    texts = (" ".join(WORDS[(i + k) % len(WORDS)] for k in range(1 + i % 6)) for i in range(count))
    return "".join(f'{{"text": "{text}", "note": "{i:8000}"}}\n' for i, text in enumerate(texts))


def test_memory_does_not_grow_with_the_input_and_neither_a_full_disk_nor_a_reader_that_leaves_does_harm(tmp_path):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=True)
    export_model(tmp_path / "model", as_model(*make_model(vocabulary, num_layers=1), vocabulary))
    data = tmp_path / "data"
    data.mkdir()
    for name, count in {"short": 3_000, "long": 12_000}.items():
        (data / f"{name}.jsonl").write_text(lines(count))
    command = [sys.executable, "-c", LONG_INPUT, str(tmp_path / "model"), str(data)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        assert program.stderr
        said = json.loads(program.stdout.readline() or "{}")
        assert program.stdout.readline().endswith("'the'\n")
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(60) == 141
    _, short, long = said["peaks"]
    assert long - short < GROWTH_KIB
    rows = np.load(data / "long.npy", mmap_mode="r")
    assert rows.shape == (12_000, 16)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(rows[:3_000], np.load(data / "short.npy"), atol=1e-5)
    assert "full.npy cannot be written: File too large; choose another --output" in said["problem"]
    assert sorted(path.name for path in data.iterdir()) == ["long.jsonl", "long.npy", "short.jsonl", "short.npy"]
