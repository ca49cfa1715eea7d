"""Makes one-line mistakes in a copy of the project, one at a time, runs the tests that concern the file, and lists the mistakes
that pass unnoticed.

    python tests/mutations/run.py --sample=40 --seed=7            # mistakes drawn at random over all of bert_jax
    python tests/mutations/run.py --sample=40 --seed=7 examples   # of some folders or files
    python tests/mutations/run.py --sample=40 --seed=7 --part=1/2 # every second of them; another process takes --part=2/2
    python tests/mutations/run.py --table                         # those of `known.py`, which once passed unnoticed

A mistake is caught if a test fails or hangs. `known.py` also lists mistakes that make no difference, with the reason.

mutmut and cosmic-ray are similar tools. mutmut's copies of every function come between jit and the function that it traces, and
it makes all mistakes of a file or none. cosmic-ray runs the same command for every mistake: here it would be the whole suite.
Neither drops a factor, swaps arguments or uses another argument's name, which are the typical mistakes with
keys and seeds.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import functools
import multiprocessing
import os
import pathlib
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.mutations.known import EQUIVALENT, SEEN  # noqa: E402
from tests.mutations.mistakes import Mistake, sample  # noqa: E402

PACKAGES = (
    *("jax", "jax.numpy", "jax.experimental.pallas", "flax.linen", "optax", "orbax.checkpoint", "ml_collections", "grain.python"),
    *("numpy", "scipy.stats", "matplotlib.pyplot", "tensorflow_datasets", "tokenizers", "sentencepiece", "safetensors.numpy"),
    *("huggingface_hub", "pytest"),
)
"""Modules that most tests import. The process that tests a mistake is forked from one that has imported them: a start takes 1 s
instead of 6."""
NEAREST = 4
"""The number of test files that run first, alone. They catch most mistakes, so the others are often not even collected."""
OUTPUT = "output.txt"
PROCESSES = multiprocessing.get_context("forkserver" if __name__ == "__main__" else "spawn")
"""A process has one fork server: for the tests it is the one of `tests/end_to_end/forked.py`, which has imported bert_jax."""
SLOW = ("tests/end_to_end", "tests/tpu_scripts", "tests/bad_inputs", "tests/mutations", "tests/benchmarks")
"""Tests that run only if no others concern a file."""


def tests_of(file: str, root: pathlib.Path) -> list[str]:
    """Returns the test files that concern `file`, e.g. "bert_jax/data/masking.py", nearest first: those with its name, those that
    import it in the folder that mirrors its own, the rest of that folder, those that import it elsewhere, and those that reach
    it through other modules."""
    path = pathlib.PurePosixPath(file)
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__").removesuffix(".__main__")
    mirror = pathlib.PurePosixPath("tests", *path.parts[1:-1])
    while not (root / mirror).is_dir():
        mirror = mirror.parent
    folder = mirror.as_posix()
    graph = import_graph(root)
    own, near, siblings, far, farthest = [], [], [], [], []
    for test in sorted((root / "tests").rglob("test_*.py")):
        name = test.relative_to(root).as_posix()
        if name.startswith(SLOW):
            continue
        direct = graph[".".join(test.relative_to(root).with_suffix("").parts)]
        imports = module in direct
        if path.stem in test.stem and str(test.parent.relative_to(root).as_posix()) == folder:
            own.append(name)
        elif test.parent == root / folder and imports:
            near.append(name)
        elif test.parent == root / folder and folder != "tests":
            siblings.append(name)
        elif imports:
            far.append(name)
        elif module in reached(direct, graph):
            farthest.append(name)
    command = len(path.parts) == 2  # only whole runs test everything in a command
    if (command or not (own or near or far)) and (root / "tests/end_to_end").is_dir():
        far.append("tests/end_to_end")
    return [*own, *near, *siblings, *far, *farthest] or ["tests/end_to_end"]


@functools.cache
def import_graph(root: pathlib.Path) -> dict[str, set[str]]:
    """Returns the modules and names that each module of bert_jax and of tests imports, as "bert_jax.data.masking" and the
    like."""
    graph: dict[str, set[str]] = {}
    for path in [*(root / "bert_jax").rglob("*.py"), *(root / "tests").rglob("*.py")]:
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__").removesuffix(".__main__")
        found = graph.setdefault(module, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return graph


def reached(modules: Iterable[str], graph: Mapping[str, set[str]]) -> set[str]:
    """Returns the modules that `modules` import, directly or through others."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found and module in graph:
            found.add(module)
            waiting += graph[module]
    return found


def files_of(root: pathlib.Path) -> list[str]:
    """Returns the project's files: those that git tracks, and new ones that are not ignored."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=root, capture_output=True, check=True, text=True).stdout.split("\0")
    return [name for name in names if name and (root / name).is_file()]


class Copy:
    """A copy of the project in which mistakes are made."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        for name in files_of(REPOSITORY):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, root / name)
        compiled = pathlib.Path(".pytest_cache", "compiled")  # tests/compiling.py: most programs are those of the unchanged code
        (REPOSITORY / compiled).mkdir(parents=True, exist_ok=True)
        (root / compiled).parent.mkdir()
        (root / compiled).symlink_to(REPOSITORY / compiled)
        # Compiled code is checked by a hash of the source: mistakes made within a second may have the same size and time.
        compileall.compile_dir(root / "bert_jax", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def failing(self, tests: Sequence[str], timeout: float) -> str:
        """Returns the first test that fails, "hangs" after `timeout` seconds, or None."""
        output = self.root / OUTPUT
        process = PROCESSES.Process(target=_test, args=(self.root, list(tests), output))
        process.start()
        process.join(timeout)
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)  # a test may have started processes of its own
            process.kill()
            process.join()
            return "hangs"
        if process.exitcode == 0:
            return ""
        told = [line for line in output.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return told[0].split(" - ")[0].partition(" ")[2] if told else f"status {process.exitcode}"

    def caught(self, mistake: Mistake, tests: Sequence[str], timeout: float, patience: float) -> str:
        """Returns the test that catches `mistake`; nothing if it passes unnoticed. A test that also fails without the mistake
        does not count. The tests after the nearest ones run for at most `patience` seconds."""
        path = self.root / mistake.file
        right = path.read_text()
        left_out: list[str] = []
        while True:
            try:
                path.write_text(mistake.made(right))
                found = self.failing([*tests[:NEAREST], *left_out], timeout)
                if not found and tests[NEAREST:]:
                    found = self.failing([*tests[NEAREST:], *left_out], patience)
                    found = "" if found == "hangs" and patience < timeout else found
            finally:
                path.write_text(right)
            if found in ("", "hangs"):
                return found
            without = self.failing([found] if found.startswith("tests/") else tests[:1], timeout)
            if without.startswith("status"):
                told = (self.root / OUTPUT).read_text()
                if "[" in found and "ERROR: not found:" in told:  # the name has a value that the mistake changes
                    return found
                raise RuntimeError(f"no test starts: {told}")
            if not without or not found.startswith("tests/"):
                return found
            left_out += ["--deselect", found]


def _test(root: pathlib.Path, tests: Sequence[str], output: pathlib.Path) -> None:
    """Runs pytest on `tests` of the project at `root` in a new process and ends with its status; the output goes to `output`."""
    os.setsid()
    with output.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bert_jax", "tests")]:
        del sys.modules[name]
    os.chdir(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path != str(REPOSITORY))]
    # also of processes that tests start; tests/conftest.py only removes "1"
    os.environ["PYTHONPATH"], os.environ["PYTHONDONTWRITEBYTECODE"] = str(root), "mistakes"
    sys.dont_write_bytecode = True
    import pytest

    # pytest warns that its plugin jaxtyping was imported before pytest could rewrite it, since a package imported above needs
    # it. pytest-randomly is off because it would change the order of the tests, the nearest first.
    arguments = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={root / 'temporary'}"]
    status = int(pytest.main([*arguments, *tests]))
    sys.stdout.flush()
    os._exit(status)  # threads that a mistake leaves behind are not waited for


def equivalent(mistake: Mistake) -> str:
    """Returns why the mistake makes no difference, if it makes none."""
    flat = (" ".join(mistake.old.split()), " ".join(mistake.new.split()))
    return next((e.reason for e in EQUIVALENT if (e.file, e.old, e.new) == (mistake.file, *flat)), "")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. The status is 1 if a mistake has passed unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="folders or files of bert_jax (default: all)")
    parser.add_argument("--sample", type=int, default=20, help="the number of mistakes (20)")
    parser.add_argument("--seed", type=int, default=0, help="the seed that draws them (0)")
    parser.add_argument("--table", action="store_true", help="make the mistakes of known.py instead")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a test counts as hung (1800)")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for the tests after the nearest ones (1800)")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="only the Ith of N parts of the mistakes (1/1)")
    parser.add_argument("--list", action="store_true", help="only print the mistakes and the tests that would run")
    flags = parser.parse_args(argv)
    files = [path.relative_to(REPOSITORY).as_posix() for path in sorted((REPOSITORY / "bert_jax").rglob("*.py"))]
    wanted = [f"bert_jax/{path.removeprefix('bert_jax/')}" for path in flags.paths]
    files = [file for file in files if not wanted or any(file == w or file.startswith(f"{w}/") for w in wanted)]
    chosen = SEEN if flags.table else sample({file: (REPOSITORY / file).read_text() for file in files}, flags.sample, flags.seed)
    part, parts = map(int, flags.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    counts = {"caught": 0, "no difference": 0, "UNSEEN": 0}
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        copy = Copy(pathlib.Path(scratch))
        for mistake in chosen:
            tests = tests_of(mistake.file, copy.root)  # tests of the unchanged copy
            if flags.list:
                print(f"{mistake}\n    {' '.join(tests)}")
                continue
            begin = time.monotonic()
            reason = equivalent(mistake)
            by = "" if reason else copy.caught(mistake, tests, flags.timeout, flags.patience)
            result = "no difference" if reason else "caught" if by else "UNSEEN"
            why = f"  [{by or reason}]" if by or reason else ""
            counts[result] += 1
            print(f"{result:13} {time.monotonic() - begin:5.0f} s  {mistake}{why}", flush=True)
    different = counts["caught"] + counts["UNSEEN"]
    if different:
        share = 100 * counts["caught"] / different
        print(f"{counts['caught']} of {different} caught, {share:.0f} %; {counts['no difference']} make no difference")
    return int(counts["UNSEEN"] > 0)


if __name__ == "__main__":
    PROCESSES.set_forkserver_preload(list(PACKAGES))
    sys.exit(main())
