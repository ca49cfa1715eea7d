"""The look of the pictures: sizes, colours, lines, ticks and texts are those that somebody has looked at."""

from __future__ import annotations

import pathlib

from tests.metrics.described_figures import lines_of, pictures

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "pictures_golden.jsonl"


def test_every_picture_looks_as_it_did_when_somebody_last_looked_at_it(tmp_path: pathlib.Path):
    """Where a change is meant: tests/golden/make_pictures_golden.py."""
    for found, looked_at in zip(lines_of(pictures(tmp_path)), GOLDEN.read_text().splitlines(), strict=True):
        assert found == looked_at
