"""Replaying a step of a run: its experiment, its batches and its report. The runs of `tests/end_to_end/` replay whole steps."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.configs.pretraining import CheckpointConfig, PhaseConfig, PretrainingExperiment
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.scores import Score
from bert_jax.pretraining.replay import (
    Batches,
    Replay,
    _nearest_state,
    _row_losses,
    load_experiment,
    named_norms,
    pair_texts,
    replay,
    report,
    row_text,
)
from bert_jax.pretraining.splits import PHASE_CORPUS, PhaseBatches, fingerprint
from bert_jax.runtime.workdir import CONFIG, METRICS
from tests.end_to_end.runs import VOCABULARY, build_corpus
from tests.objectives.scored import objective_of
from tests.random_rows import TINY, objective_for, program_for, random_batch, random_parameters, with_centres
from tests.training.test_checkpoints_on_meshes import abstract, save_all, state_at

EXPERIMENT = PretrainingExperiment.from_dict(
    PretrainingExperiment(
        model=dataclasses.replace(TINY, vocab_size=132),
        phases=(PhaseConfig(steps=3, length=32, batch_size=2), PhaseConfig(steps=4, length=24, batch_size=2)),
    ).to_dict()
)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a directory with the corpora `mine` and `other`, which have the same vocabulary."""
    directory = tmp_path_factory.mktemp("corpora")
    for seed, name in enumerate(("mine", "other")):
        build_corpus(directory / name, documents=12, seed=seed)
    return directory


@pytest.fixture(scope="module")
def corpus(corpora: pathlib.Path) -> Corpus:
    return open_splits(corpora / "mine")[0]


def test_a_replayed_step_gets_its_batch_after_skipped_batches(corpus: Corpus):
    """The run started with 10 skipped batches, and rolled back three times to two checkpoints."""
    batches = Batches(EXPERIMENT, corpus, [(0, 10), (2, 15), (2, 20), (4, 30)])
    assert [batches.phase(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    for step, phase, at in ((0, 0, 10), (1, 0, 11), (2, 0, 22), (3, 1, 20), (4, 1, 31), (6, 1, 33)):
        wanted = PhaseBatches(EXPERIMENT, phase, corpus).source.at(at, (0, 1))
        jax.tree.map(np.testing.assert_array_equal, dict(batches.at(step)), dict(wanted))


@pytest.mark.parametrize("step", [-1, 0, 8])
def test_a_step_outside_of_the_run_is_refused(step: int, corpus: Corpus, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=f"--replay={step} is not a step of this run; give one from 1 to 7"):
        replay(EXPERIMENT, tmp_path, corpus, step)


BRANCH = dataclasses.replace(EXPERIMENT, init_state="trunk@2", checkpoints=CheckpointConfig(every=2))


def test_a_branch_has_no_steps_of_its_trunk(corpus: Corpus, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="--replay=2 is not a step of this run; give one from 3 to 7"):
        replay(BRANCH, tmp_path, corpus, 2)


def test_the_first_steps_of_a_branch_are_replayed_from_the_state_of_its_trunk(
    corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The checkpoint of step 4 is gone, so the weights after steps 4 and 5 are lost."""
    monkeypatch.setattr("bert_jax.pretraining.replay.initial_state", lambda *_: {"step": 2})
    program: Any = types.SimpleNamespace(state=abstract(state_at(0)))

    def found(step: int) -> int:
        state: Any = _nearest_state(BRANCH, program, tmp_path, corpus, step)
        return int(state["step"])

    assert [found(step) for step in (2, 3)] == [2, 2], "there is no checkpoint yet"
    with pytest.raises(UserError, match="holds no checkpoint, so the weights of step 4 are lost"):
        found(4)
    save_all(tmp_path / "checkpoints", 6)
    assert [found(step) for step in (2, 3, 4, 5, 6)] == [2, 2, 6, 6, 6]


# ------------------------------------------------------------------------------------------------------------- the experiment
def write(workdir: pathlib.Path, trained_on: pathlib.Path, **changed: Any) -> None:
    """Writes the configuration of a run on a corpus."""
    values = EXPERIMENT.to_dict() | {
        "written_by": "bert_jax 1 pretrain",
        "corpus_fingerprint": fingerprint(*open_splits(trained_on)),
    }
    (workdir / CONFIG).write_text(json.dumps(values | changed))


def test_a_replay_uses_the_stored_experiment_and_requires_the_same_corpus(corpora: pathlib.Path, tmp_path: pathlib.Path):
    write(tmp_path, corpora / "mine")
    allowed = ("corpus.directory", "mesh.*", "phases.*.accumulation")
    changes = [("corpus.directory", f"{corpora}/mine"), ("mesh.tensor", "2"), ("phases.1.accumulation", "2")]
    experiment, corpus = load_experiment(tmp_path, changes, allowed)
    assert (experiment.corpus.directory, experiment.mesh.tensor) == (f"{corpora}/mine", 2)
    phases = (EXPERIMENT.phases[0], dataclasses.replace(EXPERIMENT.phases[1], accumulation=2))
    assert (experiment.phases, corpus.split, corpus.directory) == (phases, "train", corpora / "mine")
    with pytest.raises(UserError, match=r"--config\.seed=3 would change the run; with --replay set only corpus\.directory, mesh"):
        load_experiment(tmp_path, [("seed", "3")], allowed)
    changes = [("corpus.directory", f"{corpora}/other")]
    with pytest.raises(UserError, match=r"other is not the one this run was trained on; .*corpus\.directory=DIR"):
        load_experiment(tmp_path, changes, allowed)


def test_a_corpus_of_a_phase_may_be_elsewhere_but_not_in_another_phase(corpora: pathlib.Path, tmp_path: pathlib.Path):
    mine, other = corpora / "mine", str(corpora / "other")
    of_run = fingerprint(*open_splits(mine), *open_splits(other, ["train"]))
    phases = [dataclasses.asdict(EXPERIMENT.phases[0]), dataclasses.asdict(EXPERIMENT.phases[1]) | {"corpus": "gone"}]
    write(tmp_path, mine, corpus={"directory": str(mine)}, phases=phases, corpus_fingerprint=of_run)
    allowed = (PHASE_CORPUS, "mesh.*")
    assert load_experiment(tmp_path, [("phases.1.corpus", other)], allowed)[0].phases[1].corpus == other
    moved = [("phases.0.corpus", other), ("phases.1.corpus", "")]
    with pytest.raises(UserError, match=r"phases\.0\.corpus=.*other would change the run; .* only phases\.1\.corpus, mesh\.\*$"):
        load_experiment(tmp_path, moved, allowed)


def test_relative_paths_start_from_where_the_run_was_started(
    corpora: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    started_in, elsewhere = (tmp_path / name for name in ("started", "elsewhere"))
    for directory in (started_in / "trunk", started_in / "teacher", elsewhere):
        directory.mkdir(parents=True)
    for directory in (started_in, elsewhere):
        (directory / "corpus").symlink_to(corpora / "mine")
    monkeypatch.chdir(elsewhere)
    origin: Any = {"corpus": {"directory": "corpus"}, "init_from": "bert-base-uncased"}

    def replayed(*changes: tuple[str, str], **more: Any) -> PretrainingExperiment:
        write(tmp_path, corpora / "mine", **origin | more)
        return load_experiment(tmp_path, changes, ("corpus.directory",))[0]

    assert replayed().corpus.directory == "corpus", "the current directory had been removed"
    found = replayed(started_in=str(started_in))
    assert (found.corpus.directory, found.init_from) == (str(started_in / "corpus"), "bert-base-uncased")
    whole = replayed(started_in=str(started_in), init_from="", init_state="trunk@2", teacher="teacher")
    assert (whole.init_state, whole.teacher) == (f"{started_in}/trunk@2", str(started_in / "teacher"))
    phases = [{"steps": 3, "length": 32, "corpus": name} for name in ("corpus", "")]
    prints = fingerprint(*open_splits(corpora / "mine"), open_splits(corpora / "mine")[0])
    found = replayed(started_in=str(started_in), phases=phases, corpus_fingerprint=prints)
    assert [phase.corpus for phase in found.phases] == [str(started_in / "corpus"), ""]
    assert found.init_state == ""
    assert replayed(("corpus.directory", "corpus"), started_in=str(started_in)).corpus.directory == "corpus"
    assert replayed(started_in=str(tmp_path / "gone")).corpus.directory == "corpus"


# ------------------------------------------------------------------------------------------------------------------- the report
def test_norms_are_reported_by_parameter_and_layer():
    tree = {"encoder": {"layers": {"query": {"kernel": np.float32([1, 2])}}}, "mlm_head": {"bias": np.float32(4)}}
    norms = {"encoder/layers/0/query/kernel": 1, "encoder/layers/1/query/kernel": 2, "mlm_head/bias": 4}
    assert named_norms(tree) == norms
    assert dataclasses.replace(FOUND, norms=norms).norm == pytest.approx(math.sqrt(21))


def test_the_losses_of_many_rows_are_those_of_each_row():
    """64 rows are computed in two parts."""
    config = dataclasses.replace(TINY, encoder="static", num_layers=0)
    program = program_for(objective_for(config, False), optax.sgd(1.0))
    params, batch = random_parameters(config), {name: np.asarray(x) for name, x in with_centres(random_batch(rows=64)).items()}
    found, last = (_row_losses(program, params, {name: x[first:] for name, x in batch.items()}) for first in (0, 32))
    (losses,) = found.values()
    assert (losses.shape, len(np.unique(losses)) > 32) == ((64,), True)
    np.testing.assert_allclose(losses[32:], next(iter(last.values())), rtol=1e-5)


BATCH = {
    "input_ids": np.array([[2, 5, 4, 7, 3, 0], [2, 4, 4, 3, 0, 0], [2, 9, 3, 11, 4, 3]]),
    "sequence_ids": np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
    "masked_positions": np.array([[2, 0], [1, 2], [4, 0]]),
    "masked_targets": np.array([[6, -1], [8, 9], [12, -1]]),
    "nsp_labels": np.array([[1, -1], [-1, -1], [0, 1]]),
}
"""Rows of the tokenizer below, in which 5 is the letter a."""
FOUND = Replay(
    step=1_234,
    weights_of=1_233,
    learning_rate=1.25e-4,
    sums={
        name: jnp.float32(total)
        for name, total in {
            "mlm_loss": 12.0, "mlm_correct": 1.0, "mlm_targets": 4.0, "nsp_loss": 1.5, "nsp_correct": 2.0, "nsp_examples": 3.0,
        }.items()
    },
    norms={"a": 3.0, "b": 4.0, "c": math.nan},
    batch=BATCH,
    losses={"mlm_loss": np.array([1.0, np.nan, 2.5]), "nsp_loss": np.array([0.5, 0.0, 0.25])},
    objective=objective_of("mlm"),
)  # fmt: skip
TOKENIZER = load_tokenizer(VOCABULARY, lowercase=True)


def test_a_step_is_reported_with_losses_gradients_and_its_worst_rows_first():
    found = dataclasses.replace(FOUND, norms={"a": 3.0, "b": 4.0})
    assert list(report(found, pathlib.Path("run"), TOKENIZER)) == [
        "step 1,234 of run, learning rate 0.000125",
        "with the original weights",
        "MLM loss 3, 25.0 % of 4 right (with dropout, as in the log)",
        "NSP loss 0.5, 66.7 % of 3 right (with dropout, as in the log)",
        "norm of the gradient 5",
        "             4  b",
        "             3  a",
        "3 rows, the largest MLM loss first (without dropout); [shown -> predicted]",
        "row 1: MLM nan, NSP 0.000",
        "  [CLS] [[MASK] -> d] [[MASK] -> e] [SEP]",
        "row 2: MLM 2.500, NSP 0.250 (second text: follows, random)",
        "  [CLS] e [SEP] g [[MASK] -> h] [SEP]",
        "row 0: MLM 1.000, NSP 0.500 (second text: random)",
        "  [CLS] a [[MASK] -> b] c [SEP]",
    ]


@pytest.mark.parametrize(
    ("logged", "losses", "weights_of", "differs"),
    [
        ((1_233, 1_234), 3.0, 1_233, False),
        ((1_233, 1_234), 3.1, 1_233, True),
        ((1_230, 1_234), 3.1, 1_233, False),
        ((1_233, 1_234), 3.1, 2_000, False),
        ((1_233, 1_234), None, 1_233, False),
    ],
    ids=["equal", "different", "mean of four steps", "other weights", "no finite loss"],
)
def test_a_loss_that_differs_from_the_log_of_this_step_is_reported(
    logged: tuple[int, ...], losses: float | None, weights_of: int, differs: bool, tmp_path: pathlib.Path
):
    lines = [{"step": step, "train/mlm_loss": losses, "train/grad_norm": 5.0} for step in logged]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"step": 1_234, "eval/mlm_loss": 9}]))
    told = "\n".join(report(dataclasses.replace(FOUND, weights_of=weights_of), tmp_path, None))
    assert ("the log has MLM loss 3.1, so this is not exactly the step of the run" in told) == differs
    assert "the log has NSP" not in told


def test_missing_weights_are_reported_and_nan_gradients_come_first():
    told = list(report(dataclasses.replace(FOUND, weights_of=2_000), pathlib.Path("run"), None))
    says = "with the weights of step 2,000, the earliest that remain, so losses and gradients differ"
    assert told[1] == says
    assert [line.split()[-1] for line in told if line.startswith("     ")] == ["c", "b", "a"]


def test_a_step_of_an_objective_that_shows_only_shares_is_reported_in_the_order_of_the_batch():
    shares = {"nsp_accuracy": Score("nsp_correct", "nsp_examples", "NSP accuracy")}
    objective: Any = types.SimpleNamespace(named_scores=lambda: shares)
    told = list(report(dataclasses.replace(FOUND, losses={}, objective=objective), pathlib.Path("run"), None))
    assert told[2:4] == ["NSP accuracy 66.7 % (with dropout, as in the log)", "norm of the gradient nan"]
    assert told[7:9] == ["3 rows; [shown -> predicted]", "row 0 (second text as read, before SimpleNamespace: random)"]


def test_an_objective_without_pairs_is_reported_by_its_name_even_for_an_empty_batch():
    sums: Any = {"next_token_loss": 0.5, "next_token_correct": 0.25, "next_token_targets": 0.0}
    found = dataclasses.replace(FOUND, sums=sums, losses={"next_token_loss": np.array([1.0, 2.0, 3.0])})
    found = dataclasses.replace(found, objective=objective_of("next_token"))
    told = list(report(found, pathlib.Path("run"), None))
    assert told[2] == "next token loss 0.5, 25.0 % of 1 right (with dropout, as in the log)"
    assert "NSP" not in "".join(told)


def test_without_a_tokenizer_rows_are_shown_as_ids():
    assert row_text(BATCH, 0, None) == "2 5 [4 -> 6] 7 3"
    batch = {name: array[:1, :3] if array.shape[1] == 6 else array for name, array in BATCH.items()}
    assert row_text(batch, 0, TOKENIZER) == "[CLS] a [[MASK] -> b]"


def test_the_pairs_of_a_translation_row_are_shown_with_both_texts():
    batch = {
        "input_ids": np.array([[5, 6, 3, 7, 3, 0]]),
        "sequence_ids": np.array([[1, 1, 1, 2, 2, 0]]),
        "decoder_sequence_ids": np.array([[1, 1, 2, 2, 2, 0]]),
        "targets": np.array([[8, 3, 9, 10, 3, 0]]),
    }
    assert list(pair_texts(batch, 0, TOKENIZER)) == ["a b -> d", "c -> e f"]
    assert list(pair_texts(batch, 0, None)) == ["5 6 -> 8", "7 -> 9 10"]
