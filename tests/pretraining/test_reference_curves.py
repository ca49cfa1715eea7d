"""Reference curves: the band over seeds, the runs that are compared with it, and the message about runs outside of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.pretraining import CorpusConfig, PhaseConfig, PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.pretraining.reference_curves import (
    Band,
    ReferenceCurve,
    as_json,
    comparison,
    find_curve,
    losses,
    prediction_band,
    read_curve,
    reference_curve,
    usual_causes,
)
from bert_jax.training.config import LogConfig
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment.from_dict(
    PretrainingExperiment(model=TINY, phases=(PhaseConfig(steps=20, length=32),)).to_dict()
)
SHIPPED = sorted((pathlib.Path(__file__).resolve().parents[2] / "experiments" / "curves").glob("*.json"))
PRINT = "corpus_fingerprint"


def write_run(directory: pathlib.Path, seed: int, by_step: dict[int, float], corpus: str = "a", **changes: Any) -> pathlib.Path:
    """Writes a run with the held-out losses of its objective after some steps; `changes` may contain another `experiment`."""
    directory.mkdir()
    experiment = dataclasses.replace(changes.pop("experiment", EXPERIMENT), seed=seed, **changes)
    measure = {"bert": "mlm", "auto": "mlm"}.get(experiment.objective, experiment.objective)
    config = experiment.to_dict()
    config |= {"written_by": "bert_jax 1 pretrain", PRINT: corpus}
    (directory / "config.json").write_text(json.dumps(config))
    pairs = {"eval/nsp_loss": 0.7} if experiment.next_sentence else {}
    records = [{"step": step, f"eval/{measure}_loss": loss, **pairs} for step, loss in by_step.items()]
    records.append({"step": 20, "train/loss": 1.0})
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return directory


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Writes three seeds; the last has one evaluation less."""
    of_runs = [{10: 6.0, 20: 5.0}, {10: 6.2, 20: 5.2}, {20: 5.1}]
    return [write_run(tmp_path / f"run_{seed}", seed, of_seed) for seed, of_seed in enumerate(of_runs)]


@pytest.fixture
def shipped(tmp_path: pathlib.Path, runs: list[pathlib.Path]) -> str:
    """Writes the experiment file of these runs, next to a folder with their curve."""
    (tmp_path / "curves").mkdir()
    curve = reference_curve(runs, "mine", 1_000, PRINT)
    (tmp_path / "curves" / "mine.json").write_text(as_json(curve))
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "mine.py").touch()
    return str(tmp_path / "pretrain" / "mine.py")


@pytest.mark.parametrize("n", range(2, 11))
def test_the_band_is_the_prediction_interval_of_one_more_run(n):
    values = np.random.default_rng(n).normal(5, 0.1, n)
    low, high = stats.t.interval(0.95, n - 1, values.mean(), values.std(ddof=1) * np.sqrt(1 + 1 / n))
    band = prediction_band(values.tolist())
    assert (band.mean, band.low, band.high) == pytest.approx((values.mean(), low, high), rel=1e-3)


def test_a_band_starts_at_0_if_seeds_vary_widely():
    band = prediction_band([0.6, 0.8, 1.4])  # the loss of a new NSP layer varies widely between seeds
    assert band.low == 0
    assert band.high > 2 * band.mean


def test_a_curve_has_the_common_steps_of_all_runs_and_survives_its_file(runs, tmp_path):
    curve = reference_curve(runs, "mine", 1_000, PRINT)
    assert set(curve.measures) == {"mlm_loss", "nsp_loss"}
    assert list(curve.measures["mlm_loss"]) == [20]
    assert curve.measures["mlm_loss"][20].mean == pytest.approx(5.1)
    assert (curve.seeds, curve.settings["seed"]) == ((0, 1, 2), 0)
    (tmp_path / "mine.json").write_text(as_json(curve))
    again = read_curve(tmp_path / "mine.json")
    assert again.measures["mlm_loss"][20].high == round(curve.measures["mlm_loss"][20].high, 5)
    assert as_json(again) == as_json(curve)


MODELS = {
    "next_token_loss": {"direction": "left_to_right"},
    "bilm_loss": {"encoder": "bilm"},
    "skip_gram_loss": {"encoder": "static", "num_layers": 0},
}


@pytest.mark.parametrize("measure", MODELS)
def test_runs_of_every_objective_have_a_reference_curve(measure, tmp_path):
    experiment = PretrainingExperiment.from_dict(
        {"model": MODELS[measure], "examples": {"pairs": "none"}, "phases": [{"steps": 20}]}
    )
    assert f"{experiment.objective}_loss" == measure
    runs = [write_run(tmp_path / f"{seed}", seed, {20: 5.0 + seed}, experiment=experiment) for seed in range(2)]
    curve = reference_curve(runs, "mine", 1_000, PRINT)
    assert {name: list(bands) for name, bands in curve.measures.items()} == {measure: [20]}
    inside, line = comparison(curve, 20, {measure: 5.5, "loss": 5.5}, titles := losses(experiment.trained_objective))
    assert inside
    assert line.startswith(f"in the band of 2 seeds of mine ({titles[measure]} ")
    assert not comparison(curve, 20, {measure: 99.0}, titles)[0]


def test_unrelated_runs_make_no_curve(runs, tmp_path):
    other = write_run(tmp_path / "other", 3, {20: 5.0}, phases=(PhaseConfig(steps=30, length=32),))
    elsewhere = write_run(tmp_path / "elsewhere", 4, {20: 5.0}, corpus="b")
    early = write_run(tmp_path / "early", 5, {15: 5.0})
    for workdirs, says in [
        (runs[:1], "1 run given; a band needs 2 to 10 runs"),
        ([*runs, other], r"other differs from .*run_0 in config\.phases\.0\.steps"),
        ([*runs, elsewhere], "was trained on a different corpus than"),
        ([runs[0], runs[0]], "the seeds are 0, 0; give runs of different seeds"),
        ([other, *runs], r"run_0 differs from .*other in config\.phases\.0\.steps"),
        ([elsewhere, *runs], r"run_0 was trained on a different corpus than .*elsewhere"),
        ([runs[0], early], "the runs have no evaluation in common; give finished runs"),
        ([runs[0]] * 11, "11 runs given; a band needs 2 to 10 runs"),
        ([runs[0]] * 10, "the seeds are 0, 0,"),
    ]:
        with pytest.raises(UserError, match=says):
            reference_curve(workdirs, "mine", 1_000, PRINT)


def test_seed_mesh_and_paths_do_not_prevent_a_comparison(shipped):
    settings = {"seed": 9, "log_every": 3, "log": LogConfig(sinks=()), "corpus": CorpusConfig(directory="elsewhere")}
    like = dataclasses.replace(EXPERIMENT, **settings)
    curve, line = find_curve(shipped, like, 1_000, "a")
    assert curve is not None
    assert line == "compared with the reference curve of mine (3 seeds, the same corpus)"
    assert "another corpus of about the same size" in find_curve(shipped, like, 1_050, "b")[1]
    assert "another corpus of about the same size" in find_curve(shipped, like, 905, "b")[1]


@pytest.mark.parametrize(("directory", "file"), [(".", "pretrain/mine.py"), ("pretrain", "mine.py")])
def test_the_curve_is_next_to_the_folder_of_the_file_wherever_the_run_starts(
    directory: str, file: str, shipped: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path / directory)
    assert find_curve(file, EXPERIMENT, 1_000, "a")[0] is not None


def test_the_curve_of_a_shipped_experiment_is_found_from_every_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    says = "not compared with the reference curve of quickstart: "
    assert find_curve("experiments/pretrain/quickstart.py", EXPERIMENT, 1_000, "a")[1].startswith(says)


def test_other_settings_or_amounts_of_text_prevent_a_comparison(shipped):
    other = dataclasses.replace(EXPERIMENT, phases=(PhaseConfig(steps=20, length=32, learning_rate=1.0),))
    curve, line = find_curve(shipped, other, 1_000, "a")
    assert curve is None
    assert line.endswith("config.phases.0.learning_rate (0.0001 there, 1.0 here) differs")
    for tokens in ("1,150", "890", "2,000"):
        says = f"its corpus has 1,000 tokens, this corpus {tokens}"
        assert says in find_curve(shipped, EXPERIMENT, int(tokens.replace(",", "")), "b")[1]
    assert "config.abort" not in find_curve(shipped, dataclasses.replace(other, abort_after_skipped=3), 1_000, "a")[1]
    both = dataclasses.replace(other, examples=dataclasses.replace(other.examples, duplicates=3))
    assert find_curve(shipped, both, 1_000, "a")[1].endswith("(0 there, 3 here) and 1 other key differ")


def test_an_experiment_without_a_curve_logs_no_comparison(shipped):
    assert find_curve(shipped + ":more", EXPERIMENT, 1_000, "a") == (None, "")


def test_an_experiment_argument_has_its_own_curve(shipped):
    curves = pathlib.Path(shipped).parents[1] / "curves"
    (curves / "mine.json").rename(curves / "mine-more.json")
    assert find_curve(shipped, EXPERIMENT, 1_000, "a") == (None, "")
    assert find_curve(shipped + ":more", EXPERIMENT, 1_000, "a")[1].startswith("compared with the reference curve of mine-more")


CURVE = ReferenceCurve("mine", (0, 1), EXPERIMENT.to_dict(), 1_000, "a", {"mlm_loss": {20: Band(5.0, 4.9, 5.1)}})
FLAT = {"mlm_accuracy": 0.06, "unigram_accuracy": 0.06}


@pytest.mark.parametrize(
    ("loss", "inside", "says"),
    [
        (5.05, True, "in the band of 2 seeds of mine (MLM loss 4.900 to 5.100)"),
        (4.9, True, "in the band"),
        (5.1, True, "in the band"),
        (5.3, False, "above"),
        (4.0, False, "below"),
    ],
)
def test_an_evaluation_is_reported_as_inside_above_or_below_the_band(loss, inside, says):
    titles = losses(EXPERIMENT.trained_objective)
    found, line = comparison(CURVE, 20, {"mlm_loss": loss}, titles)
    assert found == inside
    assert says in line
    assert comparison(CURVE, 15, {"mlm_loss": loss}, titles) == (True, "")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"skipped": 3}, "3 skipped steps"),
        ({"fingerprint": "b"}, "a different text: its language, casing, cleaning"),
        ({"fingerprint": "b", "scores": {"mlm_loss": 4.0}}, "held-out text that is also in the training text"),
        ({"scores": {"mlm_loss": 6.0, **FLAT}}, "a plateau at word frequencies"),
        ({"dtype": "bfloat16"}, "config.model.dtype=bfloat16, not float32"),
        ({}, "a change of the code or of the packages"),
    ],
)
def test_causes_with_evidence_come_first(how, says):
    how = {"skipped": 0, "fingerprint": "a", "scores": {"mlm_loss": 6.0}, "dtype": "float32"} | how
    experiment = dataclasses.replace(EXPERIMENT, model=dataclasses.replace(TINY, dtype=how.pop("dtype")))
    line = usual_causes(CURVE, 20, how.pop("scores"), experiment, **how)
    assert says in line
    assert line.count("skipped") == bool(how["skipped"])


def test_a_plateau_at_word_frequencies_is_found_in_the_scores_of_any_objective():
    for measure in ("mlm", "next_token", "bilm"):
        curve = dataclasses.replace(CURVE, measures={f"{measure}_loss": CURVE.measures["mlm_loss"]})
        for accuracy, unigram, wanted in ((0.06, 0.06, True), (0.07, 0.06, False), (0.5, 0.06, False), (0.0, 0.0, True)):
            scores = {f"{measure}_loss": 6.0, f"{measure}_accuracy": accuracy, "unigram_accuracy": unigram}
            model = dataclasses.replace(TINY, **MODELS.get(f"{measure}_loss", {}))
            experiment = dataclasses.replace(EXPERIMENT, model=model, objective="auto")
            line = usual_causes(curve, 20, scores, experiment, fingerprint="a", skipped=0)
            assert ("a plateau at word frequencies" in line) == wanted


def test_without_word_frequencies_or_above_them_there_is_no_plateau():
    for scores in ({"mlm_loss": 6.0, "mlm_accuracy": 0.5}, {"mlm_loss": 6.0, "unigram_accuracy": 0.9}, {"mlm_loss": 4.0, **FLAT}):
        assert "a plateau" not in usual_causes(CURVE, 20, scores, EXPERIMENT, fingerprint="a", skipped=0)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_curve_belongs_to_a_current_experiment(path):
    curve = read_curve(path)
    assert as_json(curve) == path.read_text()
    stem, _, argument = path.stem.partition("-")
    file = path.parents[1] / "pretrain" / f"{stem}.py"
    config = f"{file}:{argument}" if argument else str(file)
    experiment = PretrainingExperiment.from_dict(read_experiment(config, (), PretrainingExperiment))
    experiment = dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, vocab_size=8_192))
    assert find_curve(config, experiment, curve.corpus_tokens, curve.corpus_fingerprint)[0] is not None
