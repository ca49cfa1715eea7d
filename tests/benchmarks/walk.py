"""Counts the files that a reader visits when following one batch from `python -m bert_jax.pretrain` to the first step and its
checkpoint.

    python tests/benchmarks/walk.py --corpus=DIR [--tree=DIR] [--config=experiments/pretrain/quickstart.py] [--files]

It trains two steps of the experiment with a checkpoint after the first. It lists the functions of bert_jax that the main thread
calls, in the order of their first calls: this is the order in which they are read. (The threads that build batches, write files
and watch are not included.) The walk ends when `Checkpoints.save` returns.

- A file is *passed* if one of its functions is in that list.
- A *return* is a function of the list whose file was read before and has been left for good: none of its functions is being
  executed. So control that goes back to the caller is not a return; a call of another function in a file that was left is one.
- The *modules* are those of bert_jax in a fresh interpreter: after importing `bert_jax.training.steps`, after importing
  `bert_jax.pretrain`, and at the end of that run.

`--tree` measures another checkout of the repository, with this file.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from types import CodeType, FrameType
from typing import Any

TREE = pathlib.Path(__file__).resolve().parents[2]
END = "Checkpoints.save"


class Walk:
    """A profile function (`sys.setprofile`) that records the functions of the files below `package` in the order of their first
    calls."""

    def __init__(self, package: pathlib.Path):
        self._package = f"{package}{os.sep}"
        self._seen: set[CodeType] = set()
        self._open: list[str | None] = []
        self.functions: list[tuple[str, str]] = []
        """(file, function) in reading order."""
        self.files: list[str] = []
        self.returned: list[tuple[str, str]] = []
        """The functions whose file had been left for good before."""
        self.is_over = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Records a call or a return."""
        if self.is_over or event not in ("call", "return"):
            return
        code = frame.f_code
        if event == "return":
            if self._open:
                self._open.pop()
            self.is_over = code.co_qualname == END and code.co_filename.startswith(self._package)
            return
        file = code.co_filename.removeprefix(self._package) if code.co_filename.startswith(self._package) else None
        if file is not None and code not in self._seen and not code.co_name.startswith("<module"):
            self._seen.add(code)
            if file not in self.files:
                self.files.append(file)
            elif file not in self._open:
                self.returned.append((file, code.co_qualname))
            self.functions.append((file, code.co_qualname))
        self._open.append(file)


def loaded() -> list[str]:
    """Returns the modules of bert_jax that this interpreter has imported, without the `__init__.py` of folders, which are only
    maps."""
    return sorted(
        name for name, module in sys.modules.items() if name.split(".")[0] == "bert_jax" and not hasattr(module, "__path__")
    )


def trace(tree: pathlib.Path, arguments: list[str]) -> dict[str, Any]:
    """Runs `pretrain` with the `arguments`, and returns the functions that its walk passed."""
    import bert_jax.pretrain as command

    sys.argv = ["pretrain", *arguments]
    imported, walk = loaded(), Walk(tree / "bert_jax")
    sys.setprofile(walk)
    try:
        status = command.main()
    finally:
        sys.setprofile(None)
    if status or not walk.is_over:
        raise SystemExit(f"the run ended with status {status}, before its first checkpoint")
    return {
        "files": walk.files, "returned": walk.returned, "functions": walk.functions, "imported": imported, "loaded": loaded(),
    }  # fmt: skip


def measure(tree: pathlib.Path, corpus: pathlib.Path, config: str) -> dict[str, Any]:
    """Returns the walk of the checkout `tree`, measured in fresh interpreters."""
    environment = os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    counted = f"import runpy, bert_jax.training.steps; print(len(runpy.run_path({__file__!r})['loaded']()))"
    command = [sys.executable, "-c", counted]
    steps = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "walk.json"
        command = [
            *(sys.executable, __file__, f"--tree={tree}", f"--out={out}", "--", f"--config={config}", f"--workdir={scratch}/run"),
            *(f"--config.corpus.directory={corpus}", "--config.steps=2", "--config.checkpoints.every=1", "--config.log_every=1"),
            *("--config.evaluation.every=2", "--config.evaluation.rows=32"),
        ]
        done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-4000:])
        return json.loads(out.read_text()) | {"steps": int(steps.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=pathlib.Path, default=TREE)
    parser.add_argument("--corpus", type=pathlib.Path)
    parser.add_argument("--config", default="experiments/pretrain/quickstart.py")
    parser.add_argument("--files", action="store_true", help="list the files, with their functions, in reading order")
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.out:
        flags.out.write_text(json.dumps(trace(flags.tree, flags.arguments)))
        return
    found = measure(flags.tree.resolve(), flags.corpus.resolve(), flags.config)
    if flags.files:
        for file in found["files"]:
            print(f"{file}: {', '.join(name for place, name in found['functions'] if place == file)}")
        print("returns:", *(f"  {file}: {name}" for file, name in found["returned"]), sep="\n")
        print("modules:", *(f"  {name}" for name in found["loaded"]), sep="\n")
    print(f"files that one batch passes           {len(found['files'])}")
    print(f"functions that it calls               {len(found['functions'])}")
    print(f"returns to a file that was left       {len(found['returned'])}")
    print(f"modules of bert_jax.training.steps    {found['steps']}")
    print(f"modules of bert_jax.pretrain          {len(found['imported'])}; {len(found['loaded'])} at the end of the run")


if __name__ == "__main__":
    main()
