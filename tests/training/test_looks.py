"""The figures of `training/curves.py` from made-up records: sizes, colours, lines, ticks and texts."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.training import curves as plots
from tests.looked_at import assert_as_looked_at
from tests.objectives.scored import objective_of

SCORES = objective_of("mlm").shown_scores()

BASELINES = {"'O' for all": 0.25, "the most frequent": 0.5, "chance": 0.125}
PHASES = [(0, "length 128"), (80, "length 512")]
RUNS = [("batch 16", [0.6, 0.75]), ("batch 32", []), ("batch 64, 3 epochs", [0.5]), *[(f"{i}", [0.5]) for i in range(5)]]


def record(step: int) -> dict[str, float]:
    """Returns the metrics of a run after a step, with an evaluation every 40 steps and other baselines after two of them."""
    values = {"step": step, "train/mlm_loss": 9 - step / 50 + 0.3 * (step % 3), "train/mlm_accuracy": step / 400 % 0.25}
    values |= {"train/nsp_accuracy": 0.5 + step % 7 / 50, "train/learning_rate": 1e-4 * (1 - step / 300)}
    values |= {"train/loss": 2 - step / 100, "dev/f1": 0.5 + step / 400}
    if step % 40 == 0:
        values |= {"eval/mlm_loss": 8 - step / 60, "eval/unigram_loss": 7.5 - step // 81 / 4}
        values |= {"eval/mlm_accuracy": step / 450, "eval/unigram_accuracy": 0.06 - step // 81 / 100}
        values |= {"eval/nsp_accuracy": 0.6 + step / 900, "eval/nsp_majority_accuracy": 0.5 + step // 81 / 100}
    return values


MANY = "".join(f"{json.dumps(record(step))}\n" for step in range(5, 205, 5))
FEW = "".join(f'{{"step": {step}, "eval/mlm_loss": 1.5}}\n' for step in (5, 100, 200))


def bare(axes: Axes) -> None:
    axes.set_title("one of four")
    axes.plot([0, 1], [1, 2])


def curves(metrics: pathlib.Path, path: pathlib.Path, **settings: Any) -> None:
    plots.draw_curves(metrics, path, SCORES, **settings)


Draw = Callable[[pathlib.Path, pathlib.Path], object]
FIGURES: dict[str, tuple[str, Draw]] = {
    "plots_curves": (MANY, lambda metrics, path: curves(metrics, path, title="a run", phases=PHASES)),
    "plots_curves_to_the_end_of_a_phase": (
        FEW,
        lambda metrics, path: curves(metrics, path, title="a run", phases=[PHASES[0], (200, "length 512")]),
    ),
    "plots_curves_of_one_phase": (
        FEW,
        lambda metrics, path: curves(metrics, path, title="a run", phases=PHASES[:1]),
    ),
    "plots_task": (
        MANY,
        lambda metrics, path: plots.draw_task_curves(metrics, path, title="a task", metric="dev/f1", baselines=BASELINES),
    ),
    "plots_sweep": (
        "",
        lambda _, path: plots.draw_sweep(path, title="runs", metric="dev/f1", settings=RUNS, baselines=BASELINES),
    ),
    "plots_sweep_of_one": (
        "",
        lambda _, path: plots.draw_sweep(path, title="runs", metric="dev/f1", settings=RUNS[:1], baselines={}),
    ),
    "plots_panels": ("", lambda _, path: plots.draw_panels(path, "panels", [bare] * 4, size=(4.0, 3.0))),
}
"""The metrics and the function that draws them, by the name of the golden file."""


@pytest.mark.parametrize("name", FIGURES)
def test_figures_equal_the_golden_descriptions(name: str, tmp_path: pathlib.Path):
    lines, draw = FIGURES[name]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(lines)
    figures: list[Figure] = []
    with mock.patch.object(plots, "_save", lambda figure, path, formats: figures.append(figure)):
        draw(metrics, tmp_path / "x.png")
    (figure,) = figures
    assert_as_looked_at(figure, name)
