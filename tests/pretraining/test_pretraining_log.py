"""The log lines and the records of a pretraining run."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any

import jax
import numpy as np
import optax
import pytest
from matplotlib.figure import Figure

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource
from bert_jax.data.corpus.verification import Verifications
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import count_parameters
from bert_jax.objectives.flops import model_row_flops
from bert_jax.objectives.objective import Teacher
from bert_jax.pretraining.pretraining_log import PretrainingLog
from bert_jax.pretraining.reference_curves import Band, ReferenceCurve, as_json
from bert_jax.pretraining.splits import PhaseBatches, Splits, fingerprint
from bert_jax.runtime.goodput import GOODPUT_FILE, GoodputRecorder, read_goodput
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.runtime.workdir import METRICS, read_metrics
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.log import SKIPPED_BATCHES, Throughput
from tests.data.corpora import corpus_of, random_documents
from tests.random_rows import objective_for, program_for

FORMATS = ("png", "svg")
SIZES = {"vocab_size": 2_000, "hidden_size": 20, "num_layers": 2, "num_heads": 5, "intermediate_size": 40, "max_position": 64}
PHASES = [{"steps": 3, "length": 32, "batch_size": 8, "max_predictions": 5}, {"steps": 4, "length": 64, "batch_size": 4}]
SUMS = {"rows": 16, "tokens": 400, "steps": 2, "skipped": 0, "grad_norm": 3, "learning_rate": 0.25}
SUMS |= {"mlm_loss": 60, "mlm_correct": 5, "mlm_targets": 20, "nsp_loss": 8, "nsp_correct": 12, "nsp_examples": 16}
SCORES = {"mlm_accuracy": 0.5, "unigram_accuracy": 0.25, "mlm_loss": 2.0, "unigram_loss": 3.5, "perplexity": 7.4}
PAIRS = {"nsp_accuracy": 0.75, "nsp_majority_accuracy": 0.625}
SPLITS = Splits(
    corpus_of(random_documents(60, seed=1)), corpus_of([[20, 30]] * 7), Verifications([]), {1: corpus_of([[20, 30]] * 9)}
)


class Clock:
    """A clock that only the test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Records the figures that are drawn, and saves blank ones."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="bert_jax")
    return caplog


def log_of(
    workdir: pathlib.Path, step: int = 0, *, config: str = "", teacher: ModelConfig | None = None, devices: int = 2,
    of_run: dict[str, Any] | None = None, **values: Any,
) -> PretrainingLog:  # fmt: skip
    workdir.mkdir(exist_ok=True)
    taught = {"teacher": "models/teacher"} if teacher else {}
    experiment = PretrainingExperiment.from_dict({"model": SIZES, "phases": PHASES, **taught, **values})
    mesh, objective = make_mesh(MeshConfig(), jax.devices()[:devices]), experiment.trained_objective
    on_mesh = dataclasses.replace(objective.model, config=resolve(experiment.model, mesh))
    program = program_for(objective.for_model(on_mesh), optax.sgd(1.0))
    program = dataclasses.replace(program, mesh=mesh, teacher=Teacher(objective_for(teacher), {}) if teacher else None)
    watched = {"preemption": Preemption(), "watchdog": Watchdog(workdir), "figure_formats": FORMATS}
    run = Run(**{"workdir": workdir, "is_first": True, **watched, **(of_run or {})})
    return PretrainingLog(experiment, program, run, SPLITS, step, config)


@pytest.fixture
def banded(tmp_path: pathlib.Path) -> str:
    """Writes an experiment file next to a folder with its reference curve: MLM losses of 1.9 to 2.1 after step 5, in three
    seeds."""
    corpus = fingerprint(SPLITS.train, SPLITS.eval, *SPLITS.of_phases.values())  # as `pretrain` stores it
    experiment = PretrainingExperiment.from_dict({"model": SIZES, "phases": PHASES})
    bands = {"mlm_loss": {5: Band(2.0, 1.9, 2.1)}}
    curve = ReferenceCurve("mine", (0, 1, 2), experiment.to_dict(), SPLITS.train.num_tokens, corpus, bands)
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "mine.json").write_text(as_json(curve))
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "mine.py").touch()
    return str(tmp_path / "pretrain" / "mine.py")


def test_a_run_inside_of_its_reference_band_is_reported(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture, banded: str):
    with log_of(tmp_path / "run", config=banded, seed=7) as log:
        assert lines.messages[-1] == "compared with the reference curve of mine (3 seeds, the same corpus)"
        log.evaluation(5, SCORES)
        assert lines.messages[-1] == "in the band of 3 seeds of mine (MLM loss 1.900 to 2.100)"
        told = len(lines.messages)
        log.evaluation(7, SCORES)
    assert len(lines.messages) == told + 1, "the curve has no step 7"
    assert not [record for record in lines.records if record.levelno >= logging.WARNING]


def test_a_run_outside_of_its_band_gives_a_warning_with_likely_causes_first(
    tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture, banded: str
):
    with log_of(tmp_path / "run", config=banded) as log:
        for _ in range(2):
            log.training(2, window(skipped=2))
        log.evaluation(5, SCORES | {"mlm_loss": 3.5, "mlm_accuracy": 0.25})
    says = "MLM loss 3.500 is above the band 1.900 to 2.100 of 3 seeds of mine; usual causes: 4 skipped steps (see the"
    assert lines.messages[-1].startswith(says)
    causes = ["a plateau at word frequencies", "a change of the code or of the packages", "chance: each score"]
    places = [lines.messages[-1].find(cause) for cause in causes]
    assert -1 < places[0] < places[1] < places[2]
    assert lines.records[-1].levelno == logging.WARNING


def test_an_incomparable_run_is_reported_with_the_reason(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture, banded: str):
    with log_of(tmp_path / "run", config=banded, model={**SIZES, "num_layers": 1}) as log:
        says = "not compared with the reference curve of mine: config.model.num_layers (2 there, 1 here) differs"
        assert lines.messages[-1] == says
        log.evaluation(5, SCORES | {"mlm_loss": 9.0})
    assert lines.messages[-1].startswith("held out after step 5: ")


def source_of(log: PretrainingLog, phase: int) -> BatchSource:
    """Returns the source of the batches of a phase."""
    return PhaseBatches(log._experiment, phase, SPLITS.train).source


def titles(figure: Figure) -> list[str]:
    """Returns the title of a figure and those of its panels."""
    panels = (axes.get_title(loc="left").partition(" (")[0] for axes in figure.axes)
    return [figure.get_suptitle(), *sorted(filter(None, panels))]


def window(**changed: float) -> dict[str, np.float32]:
    return {name: np.float32(value) for name, value in (SUMS | changed).items()}


def test_the_start_shows_the_model_the_corpus_and_the_devices(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path) as log:
        model, corpus, devices, _, begin = lines.messages
    counted = count_parameters(log._experiment.model, log._objective.model_parameters()).in_words
    assert model.startswith(f"model: 2 layers, 20 wide, 5 heads, vocabulary 2,000: {counted}, ")
    tokens = SPLITS.train.num_tokens + 9 * 50
    assert corpus == f"corpus: {tokens:,} tokens in 69 documents of 2 corpora to train on, 7 documents held out"
    assert devices.startswith("devices: 2 x cpu, mesh data 2 x ")
    assert begin == "starting from random weights (step 0)"
    with log_of(tmp_path / "one", phases=PHASES[:1]):
        corpus = f"corpus: {SPLITS.train.num_tokens:,} tokens in 60 documents to train on, 7 documents held out"
        assert corpus in lines.messages


def test_the_first_step_of_a_run_is_logged(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path, init_from="models/a"):
        assert lines.messages[-1] == "starting from the weights of models/a (step 0)"
    with log_of(tmp_path, step=1_500, init_from="models/a"):
        assert lines.messages[-1] == "resuming from step 1,500"
    lines.clear()
    with log_of(tmp_path, model={**SIZES, "encoder": "bilm", "num_heads": 1}, examples={"pairs": "none"}):
        assert len(lines.messages) == 4, "an LSTM has no attention to log"


def test_a_resumed_run_keeps_the_records_up_to_its_step(tmp_path):
    for begin, kept in ((0, []), (0, []), (2, [0, 2])):
        with log_of(tmp_path, step=begin) as log:
            assert [record["step"] for record in read_metrics(tmp_path / METRICS)] == kept
            for step in (0, 2, 3):
                log.evaluation(step, SCORES)


def test_a_rollback_drops_the_records_of_repeated_steps(tmp_path: pathlib.Path):
    with log_of(tmp_path) as log:
        for step in (0, 2, 3):
            log.evaluation(step, SCORES)
        log._run.goodput.step_done(3)
        for step, kept in ((2, [0, 2]), (0, [])):  # of step 0, which is evaluated again
            log.rolled_back(step, 7)
            *others, last = read_metrics(tmp_path / METRICS)
            assert [record["step"] for record in others] == kept
            assert (last["step"], last[SKIPPED_BATCHES]) == (step, 7)
        assert log._run.goodput._furthest == 3
    assert log.metrics is not None
    assert log.metrics._file.closed


def test_the_first_record_of_a_start_is_written_only_with_the_next(tmp_path: pathlib.Path):
    """A rejected start leaves no record, so that its workdir can be restored."""
    with log_of(tmp_path, step=2) as log:
        log.write_with_next(2, {SKIPPED_BATCHES: 7})
    assert read_metrics(tmp_path / METRICS) == []
    for rolled_back_to, kept in ((None, [2, 3, 3]), (2, [2, 2, 3]), (1, [1, 3])):
        path = tmp_path / str(rolled_back_to)
        with log_of(path, step=2) as log:
            log.write_with_next(2, {SKIPPED_BATCHES: 7})
            if rolled_back_to is None:
                log.training(3, window())
            else:
                log.rolled_back(rolled_back_to, 9)
            log.write(3, {SKIPPED_BATCHES: 9})
        assert [record["step"] for record in read_metrics(path / METRICS)] == kept


def test_a_phase_is_logged_with_its_rows_and_its_own_rates(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path) as log:
        before = log.throughput
        log.phase(1, source_of(log, 1))
        assert log.throughput is not before
    source = source_of(log, 1)
    plan = source.plan(0).summary()
    epoch = f"{source.rows_per_epoch} rows, {100 * plan['random_next_fraction']:.0f} % random next sentences"
    says = f"phase 2 of 2: 4 steps of 4 rows x 64 tokens; an epoch is {epoch}, {100 * plan['padding_fraction']:.0f} % padding"
    assert lines.messages[-1] == says


@pytest.mark.parametrize(("pairs", "is_constant"), [("original", False), ("none", False), ("single", True)])
def test_pairs_with_only_one_label_give_a_warning(
    pairs: str, is_constant: bool, tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture
):
    """The second text of a document with a single sentence is always random."""
    documents = corpus_of([[20 + i] for i in range(60)]) if pairs == "single" else SPLITS.train
    with log_of(tmp_path, examples={"pairs": "none" if pairs == "none" else "original"}) as log:
        log.phase(0, PhaseBatches(log._experiment, 0, documents).source)
    said = [record.getMessage() for record in lines.records if record.levelno == logging.WARNING]
    assert len(said) == is_constant
    assert all(text.startswith("WARNING: 100 % of the") and "config.examples.pairs=none" in text for text in said)
    assert ("random next sentences" in "".join(lines.messages)) == (pairs != "none")


def test_the_record_of_a_window_has_means_over_its_steps_and_rates(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path, devices=1) as log:
        log.phase(1, source_of(log, 1))
        clock = Clock()
        log.throughput = Throughput(GoodputRecorder(clock), clock)
        clock.now += 2.0
        log.training(5, window())
        assert len(read_goodput(tmp_path / GOODPUT_FILE)) == 1
    (record,) = read_metrics(tmp_path / METRICS)
    config = log._experiment.model
    flops, predictions = 16 * model_row_flops(config, 64, log._experiment.phases[1].max_predictions), 20
    assert record.pop("train/flops_per_second") == pytest.approx(flops / 2)
    assert record.pop("train/seconds_left") == pytest.approx(2 * 2 * 4 / 16)  # two steps of four rows are left
    assert record.pop("train/perplexity") == pytest.approx(np.exp(3))
    record.pop("time", None)
    assert record == {
        "step": 5,
        "train/loss": 60 / predictions + 8 / 16,
        "train/mlm_loss": 3,
        "train/mlm_accuracy": 0.25,
        "train/nsp_loss": 0.5,
        "train/nsp_accuracy": 0.75,
        "train/rows_per_second": 8,
        "train/tokens_per_second": 200,
        "train/grad_norm": 1.5,
        "train/learning_rate": 0.25,
        "train/skipped": 0,
    }
    scores = "MLM loss 3.000  MLM accuracy 25.0 %  NSP accuracy 75.0 %"
    assert lines.messages[-1].startswith(f"step 5/7  {scores}  8 rows/s  200 tokens/s")


def test_the_forward_pass_of_a_teacher_counts_as_work(tmp_path: pathlib.Path):
    teacher = ModelConfig(**SIZES | {"num_layers": 6})
    speeds = []
    for index, taught in enumerate((None, teacher)):
        with log_of(tmp_path / f"{index}", teacher=taught) as log:
            log.phase(1, source_of(log, 1))
            clock = Clock()
            log.throughput = Throughput(GoodputRecorder(clock), clock)
            clock.now += 2.0
            log.training(5, window())
        speeds.append(read_metrics(tmp_path / f"{index}" / METRICS)[0])
    (alone, taught), lengths = speeds, log._experiment.phases[1]
    more = 16 * model_row_flops(teacher, 64, lengths.max_predictions) / 3 / 2
    assert taught["train/flops_per_second"] - alone["train/flops_per_second"] == pytest.approx(more)
    assert taught["train/seconds_left"] == pytest.approx(alone["train/seconds_left"])


def test_other_masks_of_the_held_out_rows_are_logged(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path, examples={"masked_fraction": 0.3}) as log:
        log.phase(0, source_of(log, 0))
    assert "3 steps of 8 rows x 32 tokens, 15.6 % masked (held out: 15 %); an epoch is" in lines.messages[-1], "5 at most"
    left_to_right = {**SIZES, "direction": "left_to_right"}
    with log_of(tmp_path, model=left_to_right, examples={"pairs": "none", "masked_fraction": 0.3}) as log:
        log.phase(0, source_of(log, 0))
    assert "3 steps of 8 rows x 32 tokens; an epoch is" in lines.messages[-1], "nothing is masked"


def test_a_moved_workdir_gets_no_records(tmp_path: pathlib.Path):
    def moved() -> None:
        raise UserError("it was moved")

    with log_of(tmp_path, of_run={"require_in_place": moved}) as log:
        for write in (lambda: log.training(1, window()), lambda: log.evaluation(1, SCORES)):
            with pytest.raises(UserError, match=r"^it was moved$"):
                write()
    assert read_metrics(tmp_path / METRICS) == []


def test_skipped_steps_give_a_warning(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path) as log:
        log.training(1, window())
        assert not [record for record in lines.records if record.levelno >= logging.WARNING]
        log.training(2, window(skipped=2, steps=0))
    assert lines.messages[-1] == "2 of these steps had a non-finite loss, gradient or learning rate and were skipped"
    assert read_metrics(tmp_path / METRICS)[-1]["train/grad_norm"] == 3


def test_spikes_give_a_warning(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path) as log:
        log.training(1, window(spikes=0))
        assert not [record for record in lines.records if record.levelno >= logging.WARNING]
        log.training(2, window(spikes=2))
    assert lines.messages[-1] == "2 of these steps had a loss far above the running mean and were skipped"
    assert [record["train/spikes"] for record in read_metrics(tmp_path / METRICS)] == [0, 2]


def test_an_evaluation_is_logged_with_baselines_and_drawn_after_step_0(
    tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture, figures: list[Figure]
):
    with log_of(tmp_path) as log:
        log.evaluation(0, SCORES)
        says = "MLM accuracy 50.0 % (word frequency alone 25.0 %), MLM loss 2.000 (3.500), perplexity 7.4"
        assert lines.messages[-1] == f"held out after step 0: {says}"
        assert not figures
        log.evaluation(1_000, SCORES | PAIRS)
        pairs = "NSP accuracy 75.0 % (one answer for all pairs 62.5 %)"
        assert lines.messages[-1] == f"held out after step 1,000: {says}, {pairs}"
        assert log.scores == SCORES | PAIRS
    assert read_metrics(tmp_path / METRICS)[-1]["eval/nsp_accuracy"] == 0.75
    assert [*map(titles, figures)] == [[tmp_path.name, "MLM accuracy", "MLM loss", "NSP accuracy"]] * len(FORMATS)
    assert {path.name for path in tmp_path.iterdir()} >= {"curves.png", "curves.svg"}


def test_an_evaluation_logs_word_perplexity_or_the_loss_without_baseline(tmp_path: pathlib.Path, lines: pytest.LogCaptureFixture):
    with log_of(tmp_path) as log:
        log.evaluation(1, SCORES | {"word_perplexity": 21.25})
        assert lines.messages[-1].endswith(", perplexity 7.4 (21.2 per word)")
    static = {**SIZES, "encoder": "static", "num_layers": 0, "num_heads": 1}
    with log_of(tmp_path, model=static, examples={"pairs": "none"}) as log:
        log.evaluation(2, {"skip_gram_accuracy": 0.75, "skip_gram_loss": 3.25})
        assert lines.messages[-1] == "held out after step 2: skip-gram accuracy 75.0 %, skip-gram loss 3.250 per pair"


def test_only_the_first_process_writes_and_draws(tmp_path: pathlib.Path, figures: list[Figure]):
    with log_of(tmp_path, of_run={"is_first": False}) as log:
        log.training(1, window())
        log.evaluation(1, SCORES)
        log.rolled_back(0, 1)
    assert (list(tmp_path.iterdir()), figures) == ([], [])


def test_the_end_of_a_log_writes_the_last_line_of_the_goodput(tmp_path: pathlib.Path):
    with log_of(tmp_path):
        assert not read_goodput(tmp_path / GOODPUT_FILE)  # the first line is due after half a minute
    assert len(read_goodput(tmp_path / GOODPUT_FILE)) == 1


def test_curves_are_drawn_when_a_run_ends(tmp_path: pathlib.Path, figures: list[Figure]):
    with log_of(tmp_path):
        pass
    assert not figures, "nothing was trained"
    with log_of(tmp_path) as log:
        log.training(1, window())
    assert len(figures) == len(FORMATS)
    with log_of(tmp_path) as log:
        log.training(1, window())
        log.evaluation(1, SCORES)
    assert len(figures) == 2 * len(FORMATS), "drawn by the evaluation, and not again"
