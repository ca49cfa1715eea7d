"""The files that a finished run leaves in its workdir."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

from bert_jax.interop.huggingface import import_model
from bert_jax.objectives.scores import Score
from tests.end_to_end.conftest import Ended
from tests.end_to_end.forked import Done
from tests.end_to_end.runs import LAST_STEP, contents, records, texts_in
from tests.objectives.scored import objective_of
from tests.training.test_metrics import events


def test_every_step_has_one_line_of_metrics(uninterrupted: Ended):
    assert uninterrupted.status == 0, uninterrupted.output
    trained = [record["step"] for record in records(uninterrupted.workdir) if "train/loss" in record]
    assert trained == list(range(1, LAST_STEP + 1))


def test_held_out_scores_are_logged_with_their_baselines(uninterrupted: Ended):
    evaluated = [record for record in records(uninterrupted.workdir) if "eval/mlm_loss" in record]
    assert [record["step"] for record in evaluated] == [0, 12, 14, LAST_STEP]
    for record in evaluated:
        assert record.keys() >= {
            f"eval/{n}" for n in ("mlm_accuracy", "perplexity", "nsp_accuracy", "unigram_accuracy", "unigram_loss")
        }
        assert 0.5 <= record["eval/nsp_majority_accuracy"] <= 1
    majority = evaluated[-1]["eval/nsp_majority_accuracy"]
    assert json.loads((uninterrupted.workdir / "results.json").read_text())["eval"]["nsp_majority_accuracy"] == majority
    assert f"(one answer for all pairs {100 * majority:.1f} %)" in uninterrupted.output


def test_a_score_has_one_name_in_the_log_the_metrics_tensorboard_the_results_and_the_figure(
    uninterrupted: Ended, evaluated: Ended
):
    lines = records(uninterrupted.workdir)
    metrics = {name for record in lines for name in record} - {"step", "time"}
    assert {tag for _, tag, _ in events(uninterrupted.workdir)} == metrics
    eval_split = json.loads((uninterrupted.workdir / "results.json").read_text())["eval"]
    assert {f"eval/{name}": value for name, value in eval_split.items()}.items() <= lines[-1].items()
    assert {name for name in metrics if name.startswith("eval/")} == {f"eval/{name}" for name in eval_split}

    objective = objective_of("mlm")
    titles = {score.title: name for name, score in objective.named_scores().items() if isinstance(score, Score)}
    titles["perplexity"] = "perplexity"
    for pattern, group in ((r"step +(\d+)/24  (.*)", "train"), (r"held out after step (\d+): (.*)", "eval")):
        for step, text in re.findall(pattern, uninterrupted.output):
            record = next(one for one in lines if one["step"] == int(step) and f"{group}/mlm_loss" in one)
            named = re.findall(r"(MLM loss|MLM accuracy|NSP accuracy|perplexity) ([\d.]+)( %)?", text)
            assert [title for title, _, _ in named] >= ["MLM accuracy", "MLM loss", "NSP accuracy"][: len(named)]
            assert "loss" not in re.sub(r"(MLM|NSP) loss", "", text), "a loss without its name"
            for title, shown, percent in named:
                value = record[f"{group}/{titles[title]}"] * (100 if percent else 1)
                assert float(shown) == pytest.approx(value, abs=0.051 if percent or title == "perplexity" else 0.00051)
    for name in ("rows", "tokens", "flops"):
        assert f"train/{name}_per_second" in metrics

    shown = [text.partition(" (")[0] for text in texts_in(evaluated.workdir / "curves.svg")]
    panels = [text for text in shown if text in ("MLM loss", "MLM accuracy", "NSP accuracy", "learning rate")]
    assert panels == ["MLM loss", "MLM accuracy", "NSP accuracy", "learning rate"]
    assert {titles.get(panel, panel.replace(" ", "_")) for panel in panels} <= {name.partition("/")[2] for name in metrics}


def test_the_training_loss_falls(uninterrupted: Ended):
    losses = [record["train/mlm_loss"] for record in records(uninterrupted.workdir) if "train/mlm_loss" in record]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.5  # by 1.25 at the worst of five seeds


def test_each_phase_has_its_own_learning_rate(uninterrupted: Ended):
    rates = {
        record["step"]: record["train/learning_rate"]
        for record in records(uninterrupted.workdir)
        if "train/learning_rate" in record
    }
    np.testing.assert_allclose([rates[1], rates[2], rates[4], rates[15]], [0.0, 1e-3, 3e-3 * (1 - 3 / 14), 1e-3], rtol=1e-5)


def test_results_figures_and_events_are_written(uninterrupted: Ended, evaluated: Ended):
    results = json.loads((uninterrupted.workdir / "results.json").read_text())
    assert results["steps"] == LAST_STEP
    assert results["skipped_steps"] == 0
    assert results["eval"]["mlm_accuracy"] == records(uninterrupted.workdir)[-1]["eval/mlm_accuracy"]
    assert (evaluated.workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (evaluated.workdir / "curves.svg").read_text()
    assert f"curves: {uninterrupted.workdir / 'curves.svg'}" in uninterrupted.output
    assert list((uninterrupted.workdir / "tensorboard").glob("events.out.tfevents.*"))
    assert json.loads((uninterrupted.workdir / "config.json").read_text())["phases"][1]["packed_examples"] == 3


def test_the_exported_model_has_an_embedding_for_each_token(uninterrupted: Ended):
    """`test_spikes.py` asks such a model."""
    model = import_model(uninterrupted.workdir)
    assert model.config.vocab_size == model.tokenizer.size


def test_a_run_from_a_trained_model_starts_near_its_loss(
    brief: pathlib.Path, uninterrupted: Ended, briefs: dict[str, Done]
):
    """A run from the weights of a finished run: its held-out loss at step 0 is that of a trained model."""
    end = briefs["from_weights"]
    assert end.status == 0, end.output
    assert f"starting from the weights of {uninterrupted.workdir}" in end.output
    before, after = records(uninterrupted.workdir), records(brief.with_name("from_weights"))

    def eval_split(run: list, step: int) -> float:
        return next(record["eval/mlm_loss"] for record in run if record["step"] == step and "eval/mlm_loss" in record)

    random, trained = eval_split(before, 0), eval_split(after, 0)
    ended = eval_split(before, 12)  # the last one on rows of this length
    assert trained < random - 0.5 * (random - ended)  # 1.17 of that difference at the worst of five seeds
    logged = {name: [one["step"] for one in after if f"{name}_loss" in one] for name in ("train/mlm", "eval/mlm")}
    steps = [4, 5, 8, 10, 12, 14]  # every 5, before a checkpoint, and at the end
    assert logged == {"train/mlm": steps, "eval/mlm": [0, 12, 14]}


def test_a_replayed_step_has_the_loss_gradient_and_texts_of_the_run(uninterrupted: Ended, finished: dict[str, Done]):
    """Step 22 is replayed from a checkpoint. The weights for step 17, the first after a checkpoint was due, are lost, so it uses
    those of the earliest checkpoint; step 5 fails, since there is none. `test_left_to_right.py` replays a step from the
    beginning."""
    workdir, bare = uninterrupted.workdir, uninterrupted.workdir.with_name("bare")
    end, earliest, lost = (finished[f"step {step}"] for step in (22, 17, 5))
    assert end.status == 0, end.output
    assert "retraining from step 20 to step 21" in end.output
    assert "with the original weights" in end.output
    (logged,) = (record for record in records(workdir) if record["step"] == 22)
    said = {name: float(re.search(f"{name} ([0-9.]+)", end.output)[1]) for name in ("MLM loss", "NSP loss", "gradient")}
    wanted = {"MLM loss": logged["train/mlm_loss"], "NSP loss": logged["train/nsp_loss"], "gradient": logged["train/grad_norm"]}
    assert said == pytest.approx(wanted, rel=1e-4)
    assert len(re.findall("^row ", end.output, re.MULTILINE)) == 8
    assert re.search(r"\[\S+ -> \S+\]", end.output)
    assert "encoder/layers/1/attention/query/kernel" in end.output
    assert "with the weights of step 20, the earliest that remain" in earliest.output
    assert lost.status == 2
    assert f"error: {bare} holds no checkpoint, so the weights of step 4 are lost" in lost.output
    assert contents(workdir.with_name("after")) == contents(workdir.with_name("before"))
