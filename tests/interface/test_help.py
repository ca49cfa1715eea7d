"""What a command answers before it imports what it computes with: its help, and what is wrong with its flags."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from bert_jax.analysis.flags import VERBS as QUESTIONS
from bert_jax.prediction.verbs import VERBS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RUN = re.compile(r'^    run_command\("bert_jax\.([\w.]+)"(?:, check="([\w.]+:\w+)")?\)', re.M)
COMMANDS = dict(match.groups() for path in (REPOSITORY / "bert_jax").rglob("*.py") for match in RUN.finditer(path.read_text()))
"""Command -> where the function is that checks its flags; None where the command itself imports nothing that takes long."""
WRONG = {
    "analyse heads": "--model=m --output=d --modle=n",
    "predict embed": "--model=m --poling=mean",
    "convert": "--from=a --to=b --activaton=gelu",
    "aot": "--config=c --topology=v5e:1x1 --step=trian",
    "doctor": "--learning_rate=1",
    "corpus": "--source=embedded --output=o --vocb=v",
    "pretrain": "--learning_rate=1",
    "finetune": "--learning_rate=1",
    "study": "--start-timeout=0",
    "tasks.texts": "--task=t --output=o --data_dir=d",
}
"""Command -> flags one of which is wrong."""
LINES = [
    *(f"{name} --help" for name in COMMANDS if name != "runtime.restarts"),  # which has no flags
    *(f"analyse {verb} --help" for verb in QUESTIONS),
    *(f"predict {verb} --help" for verb in VERBS),
    *(f"{name} {flags}" for name, flags in WRONG.items()),
]
LIBRARIES = (
    "jax", "jaxlib", "flax", "optax", "orbax", "chex", "grain", "matplotlib", "scipy", "tensorboardX", "tokenizers",
    "safetensors", "tensorflow_datasets",
)  # fmt: skip
"""Those that take long to import."""
EACH = f"""
import contextlib, importlib, io, sys
from bert_jax.errors import UserError
for line in sys.stdin.read().splitlines():
    name, *sys.argv[1:] = line.split()
    checking, _, function = (({COMMANDS!r}[name]) or f"bert_jax.{{name}}:main").partition(":")
    check = getattr(importlib.import_module(checking), function)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            check(name, "The help of " + name) if {COMMANDS!r}[name] else check()
        except UserError as error:
            said = io.StringIO(f"error: {{error}}")
        except SystemExit as end:
            assert end.code == 0
    print(repr((line, sorted({{*{LIBRARIES!r}}} & {{module.partition(".")[0] for module in sys.modules}}), said.getvalue())))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[list[str], str]]:
    """Command line -> the libraries that are imported, and the answer."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    command, asked = [sys.executable, "-c", EACH], "\n".join(LINES)
    done = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {line: (libraries, said) for line, libraries, said in map(ast.literal_eval, done.stdout.splitlines())}


@pytest.mark.parametrize("line", LINES)
def test_every_help_and_every_wrong_flag_is_answered_without_the_libraries(answers: dict[str, tuple[list[str], str]], line: str):
    libraries, said = answers[line]
    assert libraries == []
    name, _, flags = line.partition(" ")
    if line in {f"{name} {flags}" for name, flags in WRONG.items()}:
        wrong = flags.split()[-1].partition("=")[0]
        assert said.startswith("error: ")
        assert wrong in said
    else:
        assert said.startswith((f"usage: python -m bert_jax.{line.removesuffix(' --help')} ", f"The help of {name}"))
        assert "--help" in said
