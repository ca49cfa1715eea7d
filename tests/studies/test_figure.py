"""The picture of a study."""

from __future__ import annotations

import itertools
import pathlib

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax.configs.study import StudyExperiment
from bert_jax.metrics import plots
from bert_jax.studies.figure import draw

SCORES = ([0.6020202, 0.6181818, 0.6161616], [0.1841, 0.2072, 0.4033], [0.8904, 0.8904, 0.8904])


@pytest.mark.parametrize("scores", SCORES)
def test_the_numbers_below_a_panel_do_not_overlap(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, scores: list[float]
):
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "_save", lambda figure, picture: drawn.append(figure))
    names = ("a", "b", "c")
    arms = [
        {"name": name, "title": f"the arm {name}", "scores": {f"task {i}": one_seed(score) for i in range(3)}}
        for name, score in zip(names, scores, strict=True)
    ]
    table = {"title": "Study", "setting": "laptop", "arms": arms, "reference": "a", "tasks": {}}
    config = {"title": "Study", "pretraining": "a.py", "arms": [{"name": name} for name in names]}
    study = StudyExperiment.from_dict({**config, "tasks": [{"name": "t", "experiment": "t.py"}]})
    draw({"table": table}, study, tmp_path / "figure.png")
    canvas = FigureCanvasAgg(drawn[0])
    canvas.draw()
    for axes in drawn[0].axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def one_seed(score: float) -> dict[str, object]:
    return {"seeds": {"0": score}, "mean": score, "deviation": None}
