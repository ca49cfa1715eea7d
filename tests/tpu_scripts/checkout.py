"""A small checkout for the tests of the scripts: it installs no package and its commands only print, so no network is needed."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COMMAND = '''"""{about}"""

import os
import sys

if __name__ == "__main__":
    print("{name}", os.getcwd(), *sys.argv[1:], sep="|")
'''


def make_checkout(path: pathlib.Path) -> pathlib.Path:
    package = path / "bert_jax"
    package.mkdir(parents=True)
    shutil.copytree(REPOSITORY / "tpu_scripts", path / "tpu_scripts")
    shutil.copy(REPOSITORY / "bert_jax" / "errors.py", package)
    (package / "__init__.py").write_text("")
    for name in ("corpus", "pretrain", "predict", "aot"):
        (package / f"{name}.py").write_text(COMMAND.format(name=name, about=f"What {name} does."))
    (package / "runtime").mkdir()
    (package / "runtime" / "__init__.py").write_text("")
    (package / "runtime" / "restarts.py").write_text(COMMAND.format(name="restarts", about=""))
    (path / "pytest.py").write_text(COMMAND.format(name="pytest", about=""))  # replaces the real one
    (path / "requirements.txt").write_text("# nothing to install\n")
    return path


def bash(command: str, *, cwd: pathlib.Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    unset = ("PYTHONPATH", "BERT_JAX_DEVICE", "BERT_JAX_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"BERT_JAX_PYTHON": sys.executable, "BERT_JAX_DEVICE": "cpu", "PIP_NO_INDEX": "1"} | variables
    environment = {name: value for name, value in environment.items() if value}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def script(checkout: pathlib.Path, name: str, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    quoted = " ".join(f"'{argument}'" for argument in arguments)
    return bash(f"'{checkout}/tpu_scripts/{name}.sh' {quoted}", cwd=checkout.parent, **options)


def python_that_copies(venv: pathlib.Path) -> str:
    """Returns a Python interpreter next to `venv` whose `-m venv` copies it, in a tenth of the time. Otherwise it is the usual
    interpreter."""
    path = venv.parent / "python"
    path.write_text(
        f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] && exec cp -pPR '{venv}' "$3"
exec '{sys.executable}' "$@"
"""
    )
    path.chmod(0o755)
    return str(path)
