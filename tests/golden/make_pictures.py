"""Writes pictures/: what the tables and pictures of `analyse` show of results that are made up.

    python -m tests.golden.make_pictures

Run it after a deliberate change of a table or a picture, look at the picture, and review the difference.
"""

from __future__ import annotations

import pathlib
import tempfile

from tests.analysis.made_up import WRITES, written

GOLDEN = pathlib.Path(__file__).with_name("pictures")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in WRITES:
        with tempfile.TemporaryDirectory() as directory:
            (GOLDEN / f"{name}.txt").write_text(written(name, pathlib.Path(directory)), encoding="utf-8")
