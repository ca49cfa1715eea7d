from __future__ import annotations

import json
import pathlib

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.training import curves as plots
from bert_jax.training.curves import draw_curves, draw_sweep, draw_task_curves, merge_short_windows, series, smooth
from tests.objectives.scored import objective_of
from tests.small_disk import files_of_at_most

SCORES = objective_of("mlm").shown_scores()


def write(path: pathlib.Path, *records: dict[str, object]) -> pathlib.Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(path: pathlib.Path, baseline: float) -> pathlib.Path:
    train = [
        {"step": s, "train/mlm_loss": 9 - s / 50, "train/mlm_accuracy": s / 400, "train/learning_rate": 1e-4}
        for s in range(5, 100, 5)
    ]
    eval_split = [{"step": s, "eval/mlm_accuracy": s / 450, "eval/unigram_accuracy": baseline} for s in (50, 95)]
    return write(path, *train, *eval_split)


def coloured(path: pathlib.Path, rgb: tuple[int, int, int]) -> int:
    """Returns the number of pixels with a colour close to `rgb`."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return int((np.abs(pixels - np.array(rgb) / 255).max(axis=-1) < 0.02).sum())


def test_the_figure_has_curves_and_the_baseline(tmp_path: pathlib.Path):
    metrics = run(tmp_path / "metrics.jsonl", baseline=0.05)
    assert draw_curves(metrics, tmp_path / "curves.png", SCORES, title="a run", phases=[(0, "length 128"), (60, "length 512")])
    assert coloured(tmp_path / "curves.png", (0x1F, 0x4E, 0x9C)) > 300  # held out
    assert coloured(tmp_path / "curves.png", (0xC4, 0x62, 0x2D)) > 100  # the baseline
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "curves.png"}


def test_a_figure_that_cannot_be_written_is_reported_and_ends_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    metrics, path = run(tmp_path / "metrics.jsonl", baseline=0.05), tmp_path / "curves.png"
    draw_curves(metrics, path, SCORES, title="an earlier one")
    before = path.read_bytes()
    with files_of_at_most(1_000):
        draw_curves(metrics, path, SCORES, title="a run")
    assert caplog.messages == [f"{path} could not be drawn (File too large)"]
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "curves.png"}


def test_metrics_that_cannot_be_read_end_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "curves.png"
    assert not draw_curves(tmp_path, path, SCORES, title="a run")
    assert not draw_task_curves(tmp_path, path, title="a run", metric="dev/f1", baselines={})
    assert caplog.messages == [f"{path} could not be drawn (Is a directory)"] * 2


def test_each_tick_of_the_learning_rate_shows_its_value():
    axes = Figure().subplots()
    plots._learning_rate(axes, [{"step": step, "train/learning_rate": 2e-3 * step / 100} for step in (1, 100)])
    ticks = axes.get_yticks()
    shown = [float(axes.yaxis.get_major_formatter()(tick).replace("−", "-")) for tick in ticks]
    np.testing.assert_allclose(shown, ticks, rtol=1e-3)
    assert len(ticks) > 4


def test_another_baseline_moves_the_line(tmp_path: pathlib.Path):
    for name, baseline in (("low", 0.02), ("high", 0.18)):
        draw_curves(run(tmp_path / f"{name}.jsonl", baseline), tmp_path / f"{name}.png", SCORES, title="a run")
    orange = np.array((0xC4, 0x62, 0x2D)) / 255
    heights = [
        np.flatnonzero(
            (np.abs(matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3] - orange).max(axis=-1) < 0.02).sum(axis=1) > 80
        )
        for name in ("low", "high")
    ]
    assert heights[0].min() > heights[1].max() + 50  # rows of an image count downwards


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Records the figures that are drawn, and saves blank ones."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


def lines(figure: Figure, title: str, label: str) -> list[tuple[list[float], list[float]]]:
    """Returns (x, y) of every line of a panel that has the same colour as the line whose label starts with `label`."""
    (axes,) = (axes for axes in figure.axes if axes.get_title(loc="left") == title)
    (named,) = (line for line in axes.lines if str(line.get_label()).startswith(label))
    alike = [line for line in axes.lines if line.get_color() == named.get_color() and line.get_alpha() is None]
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in alike]


def test_each_phase_has_its_own_baselines(tmp_path: pathlib.Path, figures: list[Figure]):
    def evaluated(step: int, unigram: float, majority: float) -> dict[str, float]:
        scores = {"mlm_accuracy": 0.3, "unigram_accuracy": unigram, "nsp_accuracy": 0.9, "nsp_majority_accuracy": majority}
        return {"step": step, **{f"eval/{name}": score for name, score in scores.items()}}

    records = [evaluated(0, 0.06, 0.5), evaluated(50, 0.06, 0.5), evaluated(80, 0.06, 0.5), evaluated(100, 0.05, 0.79)]
    metrics = write(tmp_path / "metrics.jsonl", *records)
    assert draw_curves(metrics, tmp_path / "x.png", SCORES, title="a run", phases=[(0, "length 128"), (80, "length 512")])
    ticks = {axes.get_title(loc="left"): axes.yaxis.get_major_formatter()(0.25, 0) for axes in figures[0].axes if axes.axison}
    assert ticks == {"MLM accuracy": "25 %", "NSP accuracy": "25 %"}
    nsp = lines(figures[0], "NSP accuracy", "one answer for all pairs, 50 %, then 79 %")
    assert nsp == [([0, 80], [0.5, 0.5]), ([80, 100], [0.79, 0.79])]
    assert lines(figures[0], "MLM accuracy", "word frequency alone, 6 %, then 5 %") == [
        ([0, 80], [0.06, 0.06]),
        ([80, 100], [0.05, 0.05]),
    ]


def test_a_phase_without_an_evaluation_has_no_baseline(tmp_path: pathlib.Path, figures: list[Figure]):
    scores = {"eval/mlm_accuracy": 0.1, "eval/unigram_accuracy": 0.06}
    records = [{"step": step, **scores} for step in (40, 80)] + [{"step": 130, **scores, "eval/unigram_accuracy": 0.05}]
    phases = [(0, "a"), (80, "b"), (100, "c")]
    draw_curves(write(tmp_path / "metrics.jsonl", *records), tmp_path / "x.png", SCORES, title="a run", phases=phases)
    found = lines(figures[0], "MLM accuracy", "word frequency alone, 6 %, then 5 %")
    assert found == [([0, 80], [0.06, 0.06]), ([100, 130], [0.05, 0.05])]


def test_a_single_point_is_a_dot(tmp_path: pathlib.Path, figures: list[Figure]):
    metrics = write(tmp_path / "metrics.jsonl", {"step": 13, "train/loss": 0.7, "train/learning_rate": 1e-5, "dev/f1": 0.8})
    assert draw_task_curves(metrics, tmp_path / "x.png", title="a run", metric="dev/f1", baselines={"'a' for all": 0.5})
    for axes in figures[0].axes:
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert axes.get_title(loc="left") == "" or dots, axes.get_title(loc="left")


def test_the_legend_names_the_best_score_and_not_the_last(tmp_path: pathlib.Path, figures: list[Figure]):
    records = [{"step": step, "train/loss": 0.7, "dev/f1": score} for step, score in ((1, 0.5), (2, 0.8), (3, 0.7))]
    metrics = write(tmp_path / "metrics.jsonl", *records)
    draw_task_curves(metrics, tmp_path / "x.png", title="a run", metric="dev/f1", baselines={})
    assert "best 0.8" in [line.get_label() for axes in figures[0].axes for line in axes.lines]


def test_a_run_without_an_evaluation_has_a_figure(tmp_path: pathlib.Path):
    metrics = write(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": 0.7, "train/learning_rate": 1e-5})
    assert draw_task_curves(metrics, tmp_path / "x.png", title="a run", metric="dev/f1", baselines={"'a' for all": 0.5})
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_every_baseline_is_drawn_with_its_name(tmp_path: pathlib.Path, figures: list[Figure]):
    metrics = write(tmp_path / "metrics.jsonl", {"step": 13, "train/loss": 0.7, "dev/f1": 0.8})
    bars = {"'O' for all, most frequent in training": 0.25, "each word's most frequent label in training": 0.5}
    draw_task_curves(metrics, tmp_path / "x.png", title="a run", metric="dev/f1", baselines=bars)
    draw_sweep(tmp_path / "x.png", title="runs", metric="dev/f1", settings=[("batch 16", [0.6, 0.7])], baselines=bars)
    for figure in figures:
        assert not any(axes.get_title() for axes in figure.axes), "titles are on the left, and only there"
        (axes,) = (axes for axes in figure.axes if axes.get_title(loc="left") == "dev f1")
        named = {str(line.get_label()): float(line.get_ydata()[0]) for line in axes.lines}
        assert named.items() >= {f"{name}, {bar:.4g}": bar for name, bar in bars.items()}.items()


def test_a_short_window_is_not_drawn_as_a_spike(tmp_path: pathlib.Path, figures: list[Figure]):
    """A stop after step 52 wrote a line for two steps, and the resumed run wrote the next one for eight."""
    steps = [*range(10, 60, 10), 52, *range(60, 110, 10)]
    records = [{"step": s, "train/mlm_loss": 25.0 if s == 52 else 5.0} for s in steps]
    draw_curves(write(tmp_path / "metrics.jsonl", *records), tmp_path / "x.png", SCORES, title="a run")
    (axes,) = (axes for axes in figures[0].axes if axes.get_title(loc="left").startswith("MLM loss"))
    (raw,) = (line for line in axes.lines if line.get_alpha())
    drawn = dict(zip(map(float, raw.get_xdata()), map(float, raw.get_ydata()), strict=True))
    assert 52.0 not in drawn
    assert drawn[60.0] == pytest.approx((2 * 25 + 8 * 5) / 10)


def test_windows_of_usual_length_are_drawn_unchanged():
    steps, values = merge_short_windows(np.array([10, 20, 30]), np.array([3.0, 1.0, 2.0]))
    assert (steps.tolist(), values.tolist()) == ([10, 20, 30], [3.0, 1.0, 2.0])
    steps, values = merge_short_windows(np.array([10, 20, 30, 31]), np.array([3.0, 1.0, 2.0, 13.0]))  # the last is short
    assert (steps.tolist(), values.tolist()) == ([10, 20, 31], [3.0, 1.0, 3.0])
    steps, values = merge_short_windows(np.array([1, 2, 3, 10, 20]), np.array([1.0, 1.0, 1.0, 2.0, 3.0]))
    assert float(values @ np.diff(steps, prepend=0)) == pytest.approx(3 + 7 * 2 + 10 * 3)
    assert merge_short_windows(np.zeros(0, np.int64), np.zeros(0))[0].size == 0


@pytest.mark.parametrize(
    ("steps", "merged"),
    [
        ([10, 20, 25, 35], [10, 20, 25, 35]),  # half of the median is not short
        ([10, 20, 30, 35], [10, 20, 30, 35]),
        ([10, 20, 24, 34], [10, 20, 34]),
        ([4, 14, 24, 34], [14, 24, 34]),
        ([1, 2, 3], [1, 2, 3]),
        ([4], [4]),
    ],
)
def test_a_window_is_short_below_half_the_median(steps: list[int], merged: list[int]):
    values = np.arange(1.0, len(steps) + 1)
    found, means = merge_short_windows(np.array(steps), values)
    assert found.tolist() == merged
    assert float(means @ np.diff(found, prepend=0)) == pytest.approx(float(values @ np.diff(steps, prepend=0)))
    if steps == merged:
        assert means.tolist() == values.tolist()


def test_no_figure_is_drawn_without_records(tmp_path: pathlib.Path):
    metrics = write(tmp_path / "metrics.jsonl", {"step": 3, "train/rows_per_second": 3.0})
    assert not draw_curves(metrics, tmp_path / "curves.png", SCORES, title="a run")
    assert not draw_curves(tmp_path / "absent.jsonl", tmp_path / "curves.png", SCORES, title="a run")
    absent = {"title": "a run", "metric": "dev/f1", "baselines": {}}
    assert not draw_task_curves(tmp_path / "absent.jsonl", tmp_path / "curves.png", **absent)
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
