from __future__ import annotations

import json
import pathlib

import matplotlib.image
import numpy as np
import pytest

from bert_jax.metrics.pictures import draw_curves, series, smooth
from tests.small_disk import files_of_at_most


def write(path: pathlib.Path, *records: dict[str, object]) -> pathlib.Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(path: pathlib.Path, baseline: float) -> pathlib.Path:
    train = [
        {"step": s, "train/mlm_loss": 9 - s / 50, "train/mlm_accuracy": s / 400, "train/learning_rate": 1e-4}
        for s in range(5, 100, 5)
    ]
    heldout = [{"step": s, "heldout/mlm_accuracy": s / 450, "heldout/unigram_accuracy": baseline} for s in (50, 95)]
    return write(path, *train, *heldout)


def coloured(picture: pathlib.Path, rgb: tuple[int, int, int]) -> int:
    """How many pixels are nearly of one colour."""
    pixels = matplotlib.image.imread(picture)[..., :3]
    return int((np.abs(pixels - np.array(rgb) / 255).max(axis=-1) < 0.02).sum())


def test_the_picture_holds_curves_and_the_baseline(tmp_path: pathlib.Path):
    metrics = run(tmp_path / "metrics.jsonl", baseline=0.05)
    assert draw_curves(metrics, tmp_path / "curves.png", title="a run", phases=[(0, "length 128"), (60, "length 512")])
    assert coloured(tmp_path / "curves.png", (0x1F, 0x4E, 0x9C)) > 300  # held out
    assert coloured(tmp_path / "curves.png", (0xC4, 0x62, 0x2D)) > 100  # the baseline
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "curves.png"}


def test_a_picture_for_which_there_is_no_room_is_told_and_ends_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    metrics, picture = run(tmp_path / "metrics.jsonl", baseline=0.05), tmp_path / "curves.png"
    draw_curves(metrics, picture, title="an earlier one")
    before = picture.read_bytes()
    with files_of_at_most(1_000):
        draw_curves(metrics, picture, title="a run")
    assert caplog.messages == [f"{picture} could not be drawn (File too large)"]
    assert picture.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "curves.png"}


def test_another_baseline_moves_the_line(tmp_path: pathlib.Path):
    for name, baseline in (("low", 0.02), ("high", 0.18)):
        draw_curves(run(tmp_path / f"{name}.jsonl", baseline), tmp_path / f"{name}.png", title="a run")
    orange = np.array((0xC4, 0x62, 0x2D)) / 255
    heights = [
        np.flatnonzero(
            (np.abs(matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3] - orange).max(axis=-1) < 0.02).sum(axis=1) > 80
        )
        for name in ("low", "high")
    ]
    assert heights[0].min() > heights[1].max() + 50  # rows of an image count downwards


def test_nothing_to_draw_draws_nothing(tmp_path: pathlib.Path):
    metrics = write(tmp_path / "metrics.jsonl", {"step": 3, "train/rows_per_second": 3.0})
    assert not draw_curves(metrics, tmp_path / "curves.png", title="a run")
    assert not draw_curves(tmp_path / "absent.jsonl", tmp_path / "curves.png", title="a run")
    assert not (tmp_path / "curves.png").exists()


def test_null_values_are_gaps():
    steps, values = series([{"step": 1, "a": 2.0}, {"step": 2, "a": None}, {"step": 3}, {"step": 4, "a": 5.0}], "a")
    np.testing.assert_array_equal(steps, [1, 4])
    np.testing.assert_array_equal(values, [2.0, 5.0])


def test_smoothing_averages_without_lag():
    line = np.arange(50.0)
    np.testing.assert_allclose(smooth(line, 10), line, atol=1e-9)
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 0.0, 3.0, 0.0]), 2), [0, 1, 2, 1, 0])
    assert smooth(np.array([]), 5).size == 0
