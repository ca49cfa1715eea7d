"""Returns Python files that the pages show."""

from __future__ import annotations

import pathlib
import re
import textwrap

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def python_file(page: str, containing: str) -> str:
    """Returns the indented block of a page that contains a text, up to the first command after it; there must be exactly one."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", (REPOSITORY / page).read_text(), re.MULTILINE)
    (block,) = [block for block in blocks if containing in block]
    return textwrap.dedent(block).partition("tpu_scripts/run.sh")[0]


def own_experiment() -> str:
    """Returns the experiment file that experiments/README.md calls mine.py."""
    return python_file("experiments/README.md", "def get_config(")
