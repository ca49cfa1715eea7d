"""The log of a fine-tuning run while it compiles, trains and evaluates."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.finetuning.finetuning_log import FinetuningLog, log_start, shown
from bert_jax.finetuning.job import Job
from bert_jax.runtime.goodput import GOODPUT_FILE, GoodputRecorder, read_goodput
from bert_jax.runtime.workdir import METRICS, read_metrics
from bert_jax.tasks.published import published
from bert_jax.tasks.scores import Baseline
from bert_jax.training.log import Throughput
from tests.finetuning.jobs import BASELINES, CONFIG, job_in, model, run_in, task_of
from tests.random_features import HEADS
from tests.random_rows import TINY

TASK = task_of(train=3, dev=2)


class Clock:
    """A clock that only the test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the log so far."""
    caplog.set_level(logging.INFO, logger="bert_jax")
    return lambda: list(caplog.messages)


@pytest.fixture
def said(tmp_path: pathlib.Path) -> Iterator[FinetuningLog]:
    with FinetuningLog(job_of(tmp_path), 0) as log:
        yield log


def job_of(tmp_path: pathlib.Path, directory: pathlib.Path | None = None, **changed: Any) -> Job:
    """Returns a run of two epochs of two steps."""
    changed["training"] = {"batch_size": 10, "epochs": 2} | changed.get("training", {})
    return job_in(tmp_path, directory, **{"task": TASK, **changed})


def window(**sums: float) -> dict[str, np.ndarray]:
    names = ("examples", "tokens", "rows", "loss", "weight", "correct", "labels", "steps", "skipped", "grad_norm")
    names += ("learning_rate",)
    return {name: np.float32(sums.get(name, 1)) for name in names}


def test_compiling_is_logged_and_does_not_count_in_the_rates(said: FinetuningLog, told, tmp_path: pathlib.Path):
    clock = Clock()
    said.throughput = Throughput(GoodputRecorder(clock), clock, unit="examples")
    watchdog = said._job.run.watchdog
    for step in (1, 2):
        watchdog.step_done(step)
    assert watchdog.limit() == 600.0
    with said.compiling("training step", {"input_ids": np.zeros((12, 128), np.int32)}):
        assert told()[-1] == "compiling the training step for 12 rows of 128 tokens"  # before, not after
        assert watchdog.limit() == 3600.0
        clock.now += 136.0
    assert told()[-1].startswith("compiled the training step for 12 rows of 128 tokens in ")
    clock.now += 2.0
    said.training(1, window(examples=16))
    (record,) = read_metrics(tmp_path / METRICS)
    assert record["train/examples_per_second"] == 8.0
    assert record["train/accuracy"] == record["train/loss"] == 1.0  # the score of one label


def test_every_dev_line_shows_the_main_score_with_its_baseline(said: FinetuningLog, told):
    said.evaluation(2, {"dev": {"f1": 0.8125, "accuracy": 0.5}})
    assert told()[-1] == "dev after step 2: f1 0.8125 (baseline 0.75)  accuracy 0.5"


def test_the_curves_have_the_names_of_the_log_and_the_metrics(said: FinetuningLog, told, tmp_path: pathlib.Path, monkeypatch):
    figures: list[Figure] = []
    monkeypatch.setattr("bert_jax.training.curves._save", lambda figure, *_: figures.append(figure))
    said.training(1, window(skipped=0))
    said.evaluation(2, {"dev": {"accuracy": 0.5, "f1": 0.8125}})
    said.draw()
    titles = [axes.get_title(loc="left") for axes in figures[0].axes]
    assert [title for title in titles if title] == ["training loss", "dev f1", "learning rate"]
    metrics = {name for record in read_metrics(tmp_path / METRICS) for name in record}
    assert {"train/loss", "dev/f1", "train/learning_rate"} <= metrics
    assert "f1 0.8125" in told()[-1]


def test_the_end_shows_test_scores_with_published_ones(tmp_path: pathlib.Path, told):
    task = task_of("sick/entailment", metric="accuracy")
    with FinetuningLog(job_of(tmp_path, task=task), 0) as log:
        log.tests({"test": {"precision": 0.75, "recall": 0.5, "accuracy": 0.625}})
    own, heading, langpro, *others = told()[-22:]
    assert own == "test: precision 0.75  recall 0.5  accuracy 0.625"
    assert heading.startswith("published, test (precision and recall are means over the three labels, as in results.json; ")
    assert langpro.startswith("  LangPro: accuracy 0.8135  precision 0.9063  recall 0.7317  precision over proofs 0.9795")
    assert "  BERT base: accuracy 0.867  precision 0.868  recall 0.854 (Chen et al. 2021, arXiv:2105.14167, Table 3)" in others
    assert sum(line.startswith("  ") for line in (langpro, *others)) == len(published(task.name)) == 18


def test_the_start_describes_the_baseline(told):
    log_start(FinetuningExperiment.from_dict({"init_from": "m"}), TASK, TINY, BASELINES)
    assert "baseline of dev: f1 0.75 ('a' for all, best on dev)" in told()


def test_the_start_shows_the_steps_or_the_resumed_step(tmp_path: pathlib.Path, told):
    with FinetuningLog(job_of(tmp_path, tmp_path / "seed-1"), 0) as log:
        says = f"seed-1  4 steps of 10 examples in rows of {log._job.data.shape.length} tokens; an epoch is 2 steps"
        assert told()[0] == says
        assert len(told()) == 2
        log.evaluation(3, {"dev": {"f1": 0.5}})
        log.evaluation(4, {"dev": {"f1": 0.5}})
    with FinetuningLog(job_of(tmp_path), 1_500) as log:
        assert "resuming from step 1,500" in told()
    directory = tmp_path / "seed-1"
    with FinetuningLog(job_of(tmp_path, directory), 3):
        assert [record["step"] for record in read_metrics(directory / METRICS)] == [3]
    with FinetuningLog(job_of(tmp_path, directory), 0):
        assert read_metrics(directory / METRICS) == []


def test_the_start_shows_how_attention_is_computed(tmp_path: pathlib.Path, told):
    kinds: list[dict[str, Any]] = [{}, {"encoder": "bilm"}]
    for fields in kinds:
        job = job_of(tmp_path, start=model(dataclasses.replace(CONFIG, **fields)), head={"pooling": "concat"})
        with FinetuningLog(job, 0):
            pass
    assert len([line for line in told() if line.startswith("attention: plain")]) == 1


@pytest.mark.parametrize(("epochs", "gradual", "frozen"), [(1, True, 3), (3, True, 1), (4, True, 0), (1, False, 0)])
def test_layers_that_stay_frozen_are_reported(tmp_path: pathlib.Path, told, epochs: int, gradual: bool, frozen: int):
    training = {"epochs": epochs, "gradual_unfreezing": gradual}
    with FinetuningLog(job_of(tmp_path, start=model(TINY), training=training), 0):
        lines = [line for line in told() if line.startswith("gradual unfreezing")]
    assert bool(lines) == bool(frozen)
    assert (
        not frozen or (f" epoch{'s' * (epochs > 1)}, the lowest {frozen} of layers and embeddings are never unfrozen") in lines[0]
    )


def test_the_record_of_a_window_has_means_over_its_steps_and_rates(said: FinetuningLog, told, tmp_path: pathlib.Path):
    clock = Clock()
    said.throughput = Throughput(GoodputRecorder(clock), clock, unit="examples")
    clock.now += 2.0
    said.training(
        2, window(examples=16, tokens=400, rows=8, loss=6, weight=4, correct=3, labels=12, steps=2, grad_norm=3, skipped=0)
    )
    (record,) = read_metrics(tmp_path / METRICS)
    flops = 8 * said._job.row_flops
    assert record.pop("train/flops_per_second") == pytest.approx(flops / 2)
    record.pop("time", None)
    assert record == {
        "step": 2,
        "train/loss": 1.5,
        "train/accuracy": 0.25,
        "train/examples_per_second": 8,
        "train/tokens_per_second": 200,
        "train/seconds_left": 2,  # two of four steps are done
        "train/grad_norm": 1.5,
        "train/skipped": 0,
        "train/learning_rate": 1,
    }
    assert told()[-1].startswith("step 2/4  loss 1.500  accuracy 25.0 %  8 examples/s  200 tokens/s")
    clock.now += 1.0
    said.training(3, window(rows=8, loss=6, weight=0, labels=0, correct=0, steps=0, skipped=2, grad_norm=3))
    assert told()[-1] == "2 of these steps had a non-finite loss, gradient or learning rate and were skipped"
    last = read_metrics(tmp_path / METRICS)[-1]
    assert (last["train/seconds_left"], last["train/grad_norm"], last["train/accuracy"]) == (1, 3, 0)
    assert last["train/loss"] == pytest.approx(6e6)  # finite, although the weight is 0


def test_the_loss_of_the_views_is_the_mean_over_unlabelled_words(said: FinetuningLog, tmp_path: pathlib.Path):
    unlabelled = {"view_loss": np.float32(6), "view_words": np.float32(4)}
    assert "view_loss" not in said.compute_scores(window() | unlabelled)
    with FinetuningLog(job_of(tmp_path, cross_view={"corpus": "c"}), 0) as log:
        assert log.compute_scores(window() | unlabelled)["view_loss"] == 1.5
        labelled = {"view_loss": np.float32(0), "view_words": np.float32(0)}
        assert log.compute_scores(window() | labelled) == {"loss": 1.0, "accuracy": 1.0, "view_loss": 0.0}


def test_a_sweep_run_writes_its_goodput_to_its_own_directory(tmp_path: pathlib.Path):
    directory = tmp_path / "runs" / "seed-1"
    for starts in (1, 2):
        with FinetuningLog(job_of(tmp_path, directory), 0) as log:
            log.training(1, window())
            assert len(read_goodput(directory / GOODPUT_FILE)) == 2 * starts - 1
        assert len(read_goodput(directory / GOODPUT_FILE)) == 2 * starts
    assert log._goodput is not None
    assert not log._goodput._thread.is_alive()


def test_every_dev_split_is_recorded_and_curves_are_drawn_occasionally(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    baselines = BASELINES | {"dev_other": Baseline({"f1": 0.5}, {"'b' for all": 0.5})}
    figures, drawn, clock = list[Figure](), list[float](), Clock()

    def save(figure: Figure, *_: Any, **__: Any) -> None:
        figures.append(figure)
        drawn.append(clock.now)

    monkeypatch.setattr(Figure, "savefig", save)
    monkeypatch.setattr(time, "monotonic", clock)
    run = run_in(tmp_path, figure_formats=("png",))
    with FinetuningLog(job_of(tmp_path, run=run, baselines=baselines), 0) as log:
        for clock.now in (9.0, 10.0, 11.0, 15.0, 22.0):
            log.evaluation(2, {"dev": {"f1": 0.8125}, "dev_other": {"f1": 0.25, "accuracy": 0.5}})
    record = read_metrics(tmp_path / METRICS)[-1]
    assert (record["dev/f1"], record["dev_other/f1"], record["dev_other/accuracy"]) == (0.8125, 0.25, 0.5)
    assert drawn == [11.0, 22.0]
    assert figures[0]._suptitle is not None
    assert figures[0]._suptitle.get_text() == f"toy: {tmp_path.name}"
    score = figures[0].axes[1]
    assert score.get_title(loc="left") == "dev f1"
    assert [0.75, 0.75] in [list(line.get_ydata()) for line in score.get_lines()]


def test_an_evaluation_in_a_workdir_that_was_moved_writes_nothing(tmp_path: pathlib.Path):
    def moved() -> None:
        raise UserError("the workdir was moved")

    run = run_in(tmp_path, require_in_place=moved)
    with FinetuningLog(job_of(tmp_path, run=run), 0) as log, pytest.raises(UserError, match="the workdir was moved"):
        log.evaluation(2, {"dev": {"f1": 0.8125}})
    assert not any("dev/f1" in record for record in read_metrics(tmp_path / METRICS))


def test_curves_are_drawn_when_a_run_ends(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: None)
    run, path = run_in(tmp_path, figure_formats=("png",)), tmp_path / "curves.png"
    with FinetuningLog(job_of(tmp_path, run=run), 0):
        pass
    assert not path.exists(), "nothing was trained"
    with FinetuningLog(job_of(tmp_path, run=run), 0) as log:
        log.training(1, window())
    path.unlink()
    with FinetuningLog(job_of(tmp_path, run=run), 1) as log:
        log.evaluation(1, {"dev": {"f1": 0.5}})
        log.draw()
        path.unlink()
    assert not path.exists(), "it shows the last evaluation already"


def test_degenerate_predictions_are_reported_with_a_remedy(said: FinetuningLog, told):
    said.warn_degenerate("dev_other", "all predictions are the same")
    assert told()[-1] == "dev_other: all predictions are the same (degenerate); use another seed or a smaller learning rate"


def test_only_the_first_process_writes_and_draws(tmp_path: pathlib.Path):
    with FinetuningLog(job_of(tmp_path, run=run_in(tmp_path, is_first=False, figure_formats=("png",))), 0) as log:
        log.training(1, window())
        log.evaluation(1, {"dev": {"f1": 0.5}})
        log.draw()
    assert list(tmp_path.iterdir()) == []


def test_at_most_eight_scores_are_shown_with_the_baseline_of_the_metric():
    scores = {f"score{i}": i / 8 for i in range(9)}
    assert shown(scores, "score1", 0.5).split("  ") == [
        f"score{i} {i / 8:.4g}" + (" (baseline 0.5)" if i == 1 else "") for i in range(8)
    ]


def test_the_start_shows_the_origin_of_the_weights_the_task_and_a_few_labels(told):
    log_start(FinetuningExperiment.from_dict({"init_from": "m"}), TASK, TINY, BASELINES)
    log_start(FinetuningExperiment.from_dict({"init_from": "m", "init_random": True}), TASK, TINY, BASELINES)
    assert told()[0] == "model: 2 layers, 16 wide, 2 heads, from m"
    assert told()[1] == "task: toy, 3 train, 2 dev"
    assert told()[2] == "labels: a, b, c"
    assert "model: 2 layers, 16 wide, 2 heads, from random weights in the shape of m" in told()
    assert told()[4].startswith("devices: 8 x cpu")


@pytest.mark.parametrize("kind", ["regression", "span"])
def test_the_start_shows_no_labels_for_values_and_spans(told, kind: str):
    log_start(FinetuningExperiment.from_dict({"init_from": "m"}), task_of(head=HEADS[kind]), TINY, BASELINES)
    assert not [line for line in told() if line.startswith("labels")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"encoder": "bilm", "num_layers": 2, "intermediate_size": 64}, "biLM of 2 layers, 16 wide, cells 64 wide"),
        ({"encoder": "bilm", "direction": "left_to_right", "num_layers": 1}, "left-to-right LSTM of 1 layer, 16 wide, cells "),
        ({"encoder": "static", "num_layers": 0}, "static vectors, 16 wide"),
    ],
)
def test_the_start_describes_each_kind_of_encoder(told, fields: dict[str, Any], words: str):
    log_start(FinetuningExperiment.from_dict({"init_from": "m"}), TASK, dataclasses.replace(TINY, **fields), BASELINES)
    assert told()[0].startswith(f"model: {words}")
    assert told()[0].endswith(", from m")
