"""The package: its licence, as packaging tools and people read it."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def test_the_licence_is_the_same_in_the_package_its_metadata_and_the_readme(tmp_path: pathlib.Path):
    # setuptools is found, not imported: an import replaces distutils in this process, which can fail while a thread imports
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools")
    for name in ("setup.py", "README.md", "requirements.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    package = tmp_path / "bert_jax"
    package.mkdir()
    for name in ("__init__.py", "LICENSE"):
        shutil.copy(REPOSITORY / "bert_jax" / name, package)
    # the parts of a wheel that need no other package: its metadata, and the files of the package
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "build_py", "--build-lib=built"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    metadata = (tmp_path / "bert_jax.egg-info" / "PKG-INFO").read_text()
    assert re.search(r"(?m)^License(-Expression)?: Apache-2\.0$", metadata), metadata
    assert re.search(r"(?m)^License-File: bert_jax/LICENSE$", metadata), metadata
    text = (tmp_path / "built" / "bert_jax" / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Apache-2.0: `bert_jax/LICENSE`" in (REPOSITORY / "README.md").read_text()
