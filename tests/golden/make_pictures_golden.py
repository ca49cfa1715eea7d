"""Makes `pictures_golden.jsonl`: the pictures of `bert_jax/metrics/plots.py` in words, as somebody last looked at them.

    python tests/golden/make_pictures_golden.py

After a change of the look that is meant: look at a picture, run this, and read the difference.
`tests/metrics/test_looks.py` compares.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.metrics.described_figures import lines_of, pictures

OUTPUT = pathlib.Path(__file__).parent / "pictures_golden.jsonl"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        OUTPUT.write_text("".join(f"{line}\n" for line in lines_of(pictures(pathlib.Path(directory)))))
