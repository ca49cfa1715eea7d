"""The figure of a study."""

from __future__ import annotations

import itertools
import pathlib

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax.configs.study import StudyExperiment
from bert_jax.studies.figure import draw
from tests.looked_at import assert_as_looked_at

SCORES = ([0.6020202, 0.6181818, 0.6161616], [0.1841, 0.2072, 0.4033], [0.8904, 0.8904, 0.8904])


@pytest.mark.parametrize("scores", SCORES)
def test_the_numbers_below_a_panel_do_not_overlap(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, scores: list[float]):
    drawn = figures(monkeypatch)
    names = ("a", "b", "c")
    arms = [
        {"name": name, "title": f"the arm {name}", "scores": {f"task {i}": one_seed(score) for i in range(3)}}
        for name, score in zip(names, scores, strict=True)
    ]
    draw({"table": table(arms)}, study([{"name": name} for name in names]), tmp_path / "figure.png")
    canvas = FigureCanvasAgg(drawn[0])
    canvas.draw()
    for axes in drawn[0].axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_curves_of_arms_with_different_steps_end_at_their_equal_tokens(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    drawn = figures(monkeypatch)
    arms = [
        {"name": f"{run}{half}", "tokens": tokens, "steps": tokens / step, "eval": {}, "scores": {"t": one_seed(0.5)}}
        for run, step in (("few", 4_096), ("many", 1_024))
        for half, tokens in (("", 12e6), ("_half", 6e6))
    ]
    states = [{"name": f"{run}_half", "shares": run, "at": 0.5} for run in ("few", "many")]
    draw({"table": table(arms)}, study([{"name": "few"}, {"name": "many"}, *states]), tmp_path / "figure.png")
    axes = drawn[0].axes[0]
    assert axes.get_xlabel() == "tokens read in pretraining"
    assert [tuple(line.get_xdata()) for line in axes.get_lines() if line.get_linestyle() == "-"] == [(6e6, 12e6)] * 2
    FigureCanvasAgg(drawn[0]).draw()
    assert "10 M" in [label.get_text() for label in axes.get_xticklabels()]


def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Records the figures that are drawn after this call."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


def table(arms: list[dict[str, object]]) -> dict[str, object]:
    return {"title": "Study", "setting": "laptop", "arms": arms, "reference": arms[0]["name"], "tasks": {}, "baselines": {}}


def study(arms: list[dict[str, object]]) -> StudyExperiment:
    tasks = [{"name": "t", "experiment": "t.py"}]
    return StudyExperiment.from_dict({"title": "Study", "pretraining": "a.py", "arms": arms, "tasks": tasks})


def test_scores_are_drawn_with_the_baseline_and_a_cut_axis_is_marked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    drawn = figures(monkeypatch)
    arms = [{"name": name, "title": name, "scores": {"t": one_seed(0.75), "u": one_seed(0.75)}} for name in "ab"]
    content = table(arms) | {"baselines": {"t": 0.5, "u": 0.0}}
    draw({"table": content}, study([{"name": name} for name in "ab"]), tmp_path / "figure.png")
    cut, whole = drawn[0].axes
    assert cut.get_xlabel() == "dotted: best single answer, 0.500\nthe axis does not start at 0"
    assert whole.get_xlabel() == "dotted: best single answer, 0.000"
    assert [0.5, 0.5] in [list(line.get_xdata()) for line in cut.get_lines()]

    for arm in arms:
        arm |= {"tokens": 1e6, "eval": {}}
    draw({"table": content}, study([{"name": "a"}, {"name": "b", "shares": "a", "at": 0.5}]), tmp_path / "figure.png")
    cut, whole, _ = drawn[1].axes
    assert (cut.get_ylabel(), whole.get_ylabel()) == ("the axis does not start at 0", "")
    assert "best single answer, 0.500" in [text.get_text() for text in cut.get_legend().get_texts()]
    assert [0.5, 0.5] in [list(line.get_ydata()) for line in cut.get_lines()]


def one_seed(score: float) -> dict[str, object]:
    return {"seeds": {"0": score}, "mean": score, "deviation": None}


def test_the_figure_of_arms_has_their_scores_means_and_deviations(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    drawn = figures(monkeypatch)
    some = {"seeds": {"0": 0.5, "1": 0.75}, "mean": 0.625, "deviation": 0.125}
    nothing = {"seeds": {}, "mean": None, "deviation": None}
    arms = [
        {"name": "b", "title": "the second", "scores": {"t": some, "average": one_seed(0.25)}},
        {"name": "a", "title": "the first", "scores": {"t": one_seed(0.5), "average": some}},
        {"name": "c", "title": "c", "scores": {"t": nothing, "average": nothing}},
    ]
    content = {**table(arms), "reference": "a", "tasks": {"t": "dev/spearman"}}
    draw({"table": content}, study([{"name": name} for name in "bac"]), tmp_path / "figure.png")
    assert_as_looked_at(drawn[0], "study_arms")


def test_the_figure_of_states_has_a_curve_for_each_run_and_none_for_random_weights(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = figures(monkeypatch)

    def arm(name: str, tokens: float, score: float, deviation: float | None, loss: float | None) -> dict[str, object]:
        eval_split = {} if loss is None else {"mlm_loss": loss}
        scores = {"seeds": {}, "mean": score if tokens else None, "deviation": deviation}
        return {"name": name, "tokens": tokens, "eval": eval_split, "scores": {"t": scores}}

    arms = [
        arm("end", 12e6, 0.75, 0.0625, 2.5), arm("other", 5e6, 0.5, None, None), arm("half", 6e6, 0.5, None, 3.5),
        arm("random", 0, 0.125, 0.5, 4.5), arm("tenth", 1e6, 0.25, 0.125, None),
    ]  # fmt: skip
    states = [{"name": "half", "shares": "end", "at": 0.5}, {"name": "tenth", "shares": "end", "at": 0.1}]
    of_study = [{"name": "end", "label": "the first"}, {"name": "other"}, {"name": "random"}, *states]
    content = {**table(arms), "setting": "", "tasks": {"t": "dev/spearman"}}
    draw({"table": content}, study(of_study), tmp_path / "figure.png")
    assert_as_looked_at(drawn[0], "study_curves")


def test_a_study_without_measurements_has_no_legend(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    drawn = figures(monkeypatch)
    nothing = {"seeds": {}, "mean": None, "deviation": None}
    arms = [{"name": name, "tokens": 1e6, "eval": {}, "scores": {"t": nothing}} for name in ("a", "half")]
    draw({"table": table(arms)}, study([{"name": "a"}, {"name": "half", "shares": "a", "at": 0.5}]), tmp_path / "figure.png")
    assert [axes.get_legend() for axes in drawn[0].axes] == [None, None]
    assert not any(axes.lines for axes in drawn[0].axes)
