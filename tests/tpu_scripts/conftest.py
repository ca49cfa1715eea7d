from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.tpu_scripts.checkout import make_checkout, python_that_copies, script


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a checkout that is already set up; the tests that use it only run commands."""
    checkout = make_checkout(tmp_path_factory.mktemp("scripts") / "with a space")
    first = script(checkout, "run", "pretrain", "first start")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"pretrain|{checkout.parent}|first start\n"
    stages = [line.split(" ... ")[0] for line in first.stderr.splitlines() if " ... " in line]
    assert stages == ["making .venv", "installing pinned packages (cpu; the first time takes half a minute or more)"]
    return checkout


PIP = """import sys
if "-r" in sys.argv:
    wanted = open(sys.argv[-1]).read().split()
    sys.exit(f"ERROR: no matching distribution for {wanted[0]}" if wanted else 0)
"""


@pytest.fixture(scope="session")
def python_with_pip(ready: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a Python interpreter whose virtual environments have pip, as those of `ready` have."""
    venv = tmp_path_factory.mktemp("python") / "venv"
    shutil.copytree(ready / ".venv", venv, symlinks=True)
    (venv / "bert_jax-stamp").unlink()
    for path in venv.glob("lib/*/site-packages/bert_jax.pth"):
        path.unlink()
    return python_that_copies(venv)


@pytest.fixture(scope="session")
def python(ready: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a Python interpreter whose virtual environments have a pip that takes no second to start, and finds no package."""
    venv = tmp_path_factory.mktemp("python") / "venv"
    ignored = shutil.ignore_patterns("pip*", "setuptools*", "bert_jax*")
    shutil.copytree(ready / ".venv", venv, symlinks=True, ignore=ignored)
    (site,) = venv.glob("lib/*/site-packages")
    (site / "pip.py").write_text(PIP)
    return python_that_copies(venv)
