"""Replaying a step of a run: which weights and which batch it uses, and its report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.pretraining import CheckpointConfig, PhaseConfig, PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.pretraining import replay as module
from bert_jax.pretraining.replay import Batches, Replay, load_experiment, named_norms, pair_texts, replay, report, row_text
from bert_jax.runtime.workdir import CONFIG
from bert_jax.training.schedules import piecewise
from bert_jax.training.steps import TrainState
from tests.notes import Notes
from tests.objectives.scored import objective_of
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment.from_dict(
    PretrainingExperiment(
        model=TINY, phases=(PhaseConfig(steps=3, length=32), PhaseConfig(steps=4, length=32, learning_rate=0.5))
    ).to_dict()
)
NOTHING: Any = None


def at_step(step: int) -> Any:
    zero = jnp.int32(0)
    return TrainState(step=jnp.int32(step), params={}, opt_state=(), skipped=zero, skipped_in_a_row=zero)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the phases for which a source of batches is made; a batch contains its phase and its step in the phase."""
    made: list[int] = []

    def phase_batches(experiment: Any, phase: int, corpus: Any, *, skipped_batches: int) -> Any:
        assert (experiment, corpus) == (EXPERIMENT, "corpus")
        made.append(phase)
        return types.SimpleNamespace(rows=lambda step: (phase, step, skipped_batches))

    monkeypatch.setattr(module, "PhaseBatches", phase_batches)
    monkeypatch.setattr(module, "to_device", lambda batch, mesh, spec: ("on", mesh, spec, batch))
    return made


def program_of(**parts: Any) -> Any:
    return types.SimpleNamespace(mesh="mesh", state="layout", **parts)


def batches() -> Batches:
    return Batches(EXPERIMENT, "corpus", 10)  # type: ignore[arg-type]


def test_a_replayed_step_gets_its_batch_after_skipped_batches(sources):
    of = batches()
    assert [of.phase(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    found: list[Any] = [of.at(step) for step in (0, 2, 3, 6)]
    assert found == [(0, 0, 10), (0, 2, 10), (1, 3, 10), (1, 6, 10)]
    assert sources == [0, 1], "each phase has one source"


@pytest.fixture
def replayed(sources, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Replay, list[Any]]]:
    """Returns (step, the step of the state that is found) -> (the replay, the recorded requests), without the costly parts."""
    asked: list[Any] = []
    taught: list[Any] = []

    def norms_step(accumulation: int) -> Callable[..., Any]:
        def norms(state: Any, batch: Any, scalars: Any) -> Any:
            return {"head": np.float32(3)}, {"mlm_loss": (accumulation, int(state.step), batch, scalars)}

        return norms

    def rate(step: Any, scalars: Any) -> Any:
        return piecewise(EXPERIMENT.schedules())(step)

    program = program_of(norms_step=norms_step, arguments=lambda *arguments: arguments, learning_rate=rate)

    def make(experiment: Any, mesh: Any, teacher: Any) -> Any:
        assert (experiment, teacher, taught.pop()) == (EXPERIMENT, "teacher", "teacher")
        program.mesh = mesh
        return program

    def run(step: int, there: int) -> tuple[Replay, list[Any]]:
        asked.clear()
        monkeypatch.setattr(module, "_nearest_state", lambda *about: asked.append(about[4]) or at_step(there))
        corpus: Any = types.SimpleNamespace(vocabulary="vocabulary")
        monkeypatch.setattr(
            module,
            "PhaseBatches",
            lambda *about, skipped_batches: types.SimpleNamespace(rows=lambda step: (about[1:], step, skipped_batches)),
        )
        return replay(EXPERIMENT, pathlib.Path("workdir"), corpus, step), [*asked, corpus]

    monkeypatch.setattr(module, "check_batch_sizes", lambda experiment, mesh: asked.append((experiment, mesh.size)))
    monkeypatch.setattr(module, "load_teacher", lambda experiment, vocabulary: "teacher" if vocabulary == "vocabulary" else None)
    monkeypatch.setattr(module, "with_teacher", lambda experiment, teacher: taught.append(teacher) or experiment)
    monkeypatch.setattr(module, "pretraining_program", make)
    monkeypatch.setattr(module, "_trained_on", lambda experiment, program, state, batches, step: asked.append(step) or state)
    monkeypatch.setattr(module, "skipped_batches", lambda state: 20)
    monkeypatch.setattr(module, "_row_losses", lambda program, params, batch: (params, batch))
    return run


def test_a_replayed_step_uses_its_weights_batch_and_rate(replayed):
    found, (checked, near, trained, corpus) = replayed(5, 4)
    assert checked == (EXPERIMENT, 8)
    assert (near, trained) == (4, 4)
    batch: Any = ((1, corpus), 4, 20)
    assert (found.step, found.weights_of, found.batch) == (5, 4, batch)
    accumulation, step, (_, mesh, _, given), scalars = found.sums["mlm_loss"]  # type: ignore[misc]
    assert (accumulation, step, given, mesh.size) == (EXPERIMENT.phases[1].accumulation, 4, batch, 8)
    assert scalars == {"seed": EXPERIMENT.seed}
    assert found.learning_rate == pytest.approx(0.5 * (1 - 1 / 4))
    assert found.norms == {"head": 3.0}
    assert found.losses == ({}, batch)  # type: ignore[comparison-overlap]


def test_later_weights_do_not_change_the_dropout_of_a_step(replayed):
    found, _ = replayed(5, 6)
    assert (found.step, found.weights_of, found.sums["mlm_loss"][1]) == (5, 6, 4)


@pytest.mark.parametrize("step", [1, 7])
def test_the_first_and_the_last_step_can_be_replayed(step, replayed):
    assert replayed(step, step - 1)[0].step == step


@pytest.mark.parametrize("step", [-1, 0, 8])
def test_a_step_outside_of_the_run_is_refused(step):
    with pytest.raises(UserError, match=f"--replay={step} is not a step of this run; give one from 1 to 7"):
        replay(EXPERIMENT, pathlib.Path("workdir"), NOTHING, step)


@pytest.mark.parametrize(
    ("saved", "step", "found"),
    [
        ((2, 4, 6), 5, 4),
        ((2, 4, 6), 4, 4),
        ((6, 8), 4, 6),  # the earliest that remains
        ((6, 8), 3, "initial"),
        ((), 3, "initial"),
        ((), 4, None),
        (None, 3, "initial"),
        (None, 4, None),
    ],
)
def test_a_replay_starts_from_the_newest_state_before_the_step(saved, step, found, monkeypatch, tmp_path):
    """Checkpoints are saved every four steps. Without any, the weights of later steps are lost."""
    experiment = dataclasses.replace(EXPERIMENT, checkpoints=CheckpointConfig(every=4))

    @contextlib.contextmanager
    def checkpoints(directory: pathlib.Path, *, read_only: bool) -> Iterator[Any]:
        assert (directory, read_only) == (tmp_path / "checkpoints", True)
        restore: Any = {(one, "layout"): one for one in saved}
        yield types.SimpleNamespace(steps=list(saved), restore=lambda *asked: restore[asked])

    if saved is not None:
        (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(module, "Checkpoints", checkpoints)
    monkeypatch.setattr(module, "initial_state", lambda *given: "initial" if given == (experiment, program, NOTHING) else None)
    program = program_of()
    if found is None:
        with pytest.raises(UserError, match=rf"^{tmp_path} holds no checkpoint, so the weights of step 4 are lost; choose"):
            module._nearest_state(experiment, program, tmp_path, NOTHING, step)
    else:
        assert module._nearest_state(experiment, program, tmp_path, NOTHING, step) == found


def test_the_steps_after_a_state_are_trained_again_with_their_batches(sources, monkeypatch: pytest.MonkeyPatch):
    trained: list[Any] = []
    shown = Notes()

    def phase_step(experiment: Any, program: Any, phase: int) -> Any:
        shown.append(f"step of phase {phase}")

        def step(state: Any, batch: Any, scalars: Any) -> Any:
            trained.append((phase, batch[-1], scalars))
            return at_step(int(state.step) + 1), {}

        return step

    @contextlib.contextmanager
    def progress(title: str, total: int, unit: str) -> Iterator[Any]:
        shown.append(f"{title} {total} {unit}")
        yield types.SimpleNamespace(update=shown.of("done"))

    monkeypatch.setattr(module, "phase_step", phase_step)
    monkeypatch.setattr(module, "Progress", progress)
    program = program_of(arguments=lambda *given: given)
    found = module._trained_on(EXPERIMENT, program, at_step(2), batches(), 5)
    assert int(found.step) == 5
    scalars = {"seed": EXPERIMENT.seed}
    assert trained == [(0, (0, 2, 10), scalars), (1, (1, 3, 10), scalars), (1, (1, 4, 10), scalars)]
    assert shown == ["trained 3 steps", "step of phase 0", "done 1", "step of phase 1", "done 2", "done 3"]
    shown.clear()
    for later in (5, 6):
        state = at_step(later)
        assert module._trained_on(EXPERIMENT, program, state, batches(), 5) is state
    assert shown == []


# ------------------------------------------------------------------------------------------------------------- the experiment


def test_a_replay_uses_the_stored_experiment_and_requires_the_same_corpus(monkeypatch, tmp_path):
    splits = [types.SimpleNamespace(name=name) for name in ("train", "eval")]
    opened: list[str] = []
    monkeypatch.setattr(module, "local_corpus", lambda directory: opened.append(directory) or "local_corpus")
    monkeypatch.setattr(module, "open_splits", lambda directory: splits if directory == "local_corpus" else None)
    monkeypatch.setattr(module, "fingerprint", lambda train, eval_split: f"{train.name} {eval_split.name}")

    def write(fingerprint: str) -> None:
        config = EXPERIMENT.to_dict() | {"written_by": "bert_jax 1 pretrain", "corpus_fingerprint": fingerprint}
        (tmp_path / CONFIG).write_text(json.dumps(config))

    write("train eval")
    allowed = ("corpus.directory", "mesh.*")
    changes = [("corpus.directory", "moved"), ("mesh.tensor", "2")]
    experiment, corpus = load_experiment(tmp_path, changes, allowed)
    assert (experiment.corpus.directory, experiment.mesh.tensor, experiment.phases) == ("moved", 2, EXPERIMENT.phases)
    assert (corpus, opened) == (splits[0], ["moved"])
    with pytest.raises(UserError, match=r"--config\.seed=3 would change the run; with --replay set only corpus\.directory, mesh"):
        load_experiment(tmp_path, [("seed", "3")], allowed)
    write("of another corpus")
    with pytest.raises(UserError, match=r"corpus moved is not the one this run was trained on; .*corpus\.directory=DIR"):
        load_experiment(tmp_path, changes, allowed)


def test_relative_paths_start_from_where_the_run_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    started_in, elsewhere, workdir = (tmp_path / name for name in ("started", "elsewhere", "runs"))
    for directory in (started_in / "corpus", elsewhere / "corpus", started_in / "trunk", started_in / "teacher", workdir):
        directory.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(module, "local_corpus", lambda directory: directory)
    monkeypatch.setattr(module, "open_splits", lambda directory: ["train", "eval"])
    monkeypatch.setattr(module, "fingerprint", lambda train, eval_split: "of both")
    monkeypatch.setattr(module, "open_phase_corpora", lambda experiment, train: {})
    config = EXPERIMENT.to_dict() | {"written_by": "bert_jax 1 pretrain", "corpus_fingerprint": "of both"}
    config |= {"corpus": {"directory": "corpus"}, "init_from": "bert-base-uncased"}

    def replayed(*changes: tuple[str, str], **more: Any) -> Any:
        (workdir / CONFIG).write_text(json.dumps(config | more))
        return load_experiment(workdir, changes, ("corpus.directory",))[0]

    assert replayed().corpus.directory == "corpus", "an earlier version did not record it"
    found = replayed(started_in=str(started_in))
    assert (found.corpus.directory, found.init_from) == (str(started_in / "corpus"), "bert-base-uncased")
    more: Any = {"teacher": "teacher", "phases": [{"steps": 3, "length": 32, "corpus": name} for name in ("corpus", "gone")]}
    whole = replayed(started_in=str(started_in), init_from="", init_state="trunk@2", **more)
    assert (whole.init_state, whole.teacher) == (f"{started_in}/trunk@2", str(started_in / "teacher"))
    assert [phase.corpus for phase in whole.phases] == [str(started_in / "corpus"), "gone"]
    assert found.init_state == ""
    assert replayed(("corpus.directory", "corpus"), started_in=str(started_in)).corpus.directory == "corpus"
    assert replayed(started_in=str(tmp_path / "gone")).corpus.directory == "corpus"


# ------------------------------------------------------------------------------------------------------------------- the report


def test_norms_are_reported_by_parameter_and_layer():
    tree = {"encoder": {"layers": {"query": {"kernel": np.float32([1, 2])}}}, "mlm_head": {"bias": np.float32(4)}}
    norms = {"encoder/layers/0/query/kernel": 1, "encoder/layers/1/query/kernel": 2, "mlm_head/bias": 4}
    assert named_norms(tree) == norms
    assert dataclasses.replace(FOUND, norms=norms).norm == pytest.approx(math.sqrt(21))


@pytest.mark.parametrize(
    ("rows", "devices", "parts"), [(64, 1, [32, 32]), (32, 8, [32]), (40, 1, [40]), (64, 64, [64]), (96, 3, [96])]
)
def test_row_losses_are_computed_in_parts_that_divide_over_the_devices(rows, devices, parts, monkeypatch):
    sizes: list[int] = []

    def to_device(batch: Any, mesh: Any, spec: Any) -> Any:
        sizes.append(len(batch["input_ids"]))
        return batch

    monkeypatch.setattr(module, "to_device", to_device)

    def row_losses(self: MlmNsp, params: Any, batch: Any) -> dict[str, Any]:
        return {"mlm_loss": (params * batch["input_ids"] + batch["x"]).sum(1)}

    monkeypatch.setattr(MlmNsp, "row_losses", row_losses)
    ids = np.arange(2 * rows).reshape(rows, 2)
    mesh = types.SimpleNamespace(size=devices)
    program: Any = types.SimpleNamespace(objective=objective_of("mlm"), mesh=mesh)
    found = module._row_losses(program, jnp.int32(3), {"input_ids": ids, "x": ids + 1})
    np.testing.assert_array_equal(found["mlm_loss"], (4 * ids + 1).sum(1))
    assert sizes == parts


BATCH = {
    "input_ids": np.array([[101, 5, 103, 7, 102, 0], [101, 103, 103, 102, 0, 0], [101, 9, 102, 11, 103, 102]]),
    "sequence_ids": np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
    "masked_positions": np.array([[2, 0], [1, 2], [4, 0]]),
    "masked_targets": np.array([[6, -1], [8, 9], [12, -1]]),
    "nsp_labels": np.array([[1, -1], [-1, -1], [0, 1]]),
}
FOUND = Replay(
    step=1_234,
    weights_of=1_233,
    learning_rate=1.25e-4,
    sums={"mlm_loss": 12.0, "mlm_correct": 1.0, "mlm_targets": 4.0, "nsp_loss": 1.5, "nsp_correct": 2.0, "nsp_examples": 3.0},  # type: ignore[dict-item]
    norms={"a": 3.0, "b": 4.0, "c": math.nan},
    batch=BATCH,
    losses={"mlm_loss": np.array([1.0, np.nan, 2.5]), "nsp_loss": np.array([0.5, 0.0, 0.25])},
    objective=objective_of("mlm"),
)
TOKENIZER: Any = types.SimpleNamespace(
    decode=lambda ids: "".join(f"<{i}>" for i in ids), tokens=lambda ids: [f"t{i}" for i in ids]
)


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
        "  <101> [t103 -> t8] [t103 -> t9] <102>",
        "row 2: MLM 2.500, NSP 0.250 (second text: follows, random)",
        "  <101><9><102><11> [t103 -> t12] <102>",
        "row 0: MLM 1.000, NSP 0.500 (second text: random)",
        "  <101><5> [t103 -> t6] <7><102>",
    ]


def test_missing_weights_are_reported_and_nan_gradients_come_first():
    told = list(report(dataclasses.replace(FOUND, weights_of=2_000), pathlib.Path("run"), None))
    says = "with the weights of step 2,000, the earliest that remain, so losses and gradients differ"
    assert told[1] == says
    assert [line.split()[-1] for line in told if line.startswith("     ")] == ["c", "b", "a"]


def test_an_objective_without_pairs_is_reported_by_its_name_even_for_an_empty_batch():
    sums: Any = {"next_token_loss": 0.5, "next_token_correct": 0.25, "next_token_targets": 0.0}
    found = dataclasses.replace(FOUND, sums=sums, losses={"next_token_loss": np.array([1.0, 2.0, 3.0])})
    found = dataclasses.replace(found, objective=objective_of("next_token"))
    told = list(report(found, pathlib.Path("run"), None))
    assert told[2] == "next token loss 0.5, 25.0 % of 1 right (with dropout, as in the log)"
    assert "NSP" not in "".join(told)


def test_without_a_tokenizer_rows_are_shown_as_ids():
    assert row_text(BATCH, 0, None) == "101 5 [103 -> 6] 7 102"
    batch = {name: array[:1, :3] if array.shape[1] == 6 else array for name, array in BATCH.items()}
    assert row_text(batch, 0, TOKENIZER) == "<101><5> [t103 -> t6]"


def test_the_pairs_of_a_translation_row_are_shown_with_both_texts():
    batch = {
        "input_ids": np.array([[5, 6, 3, 7, 3, 0]]),
        "sequence_ids": np.array([[1, 1, 1, 2, 2, 0]]),
        "decoder_sequence_ids": np.array([[1, 1, 2, 2, 2, 0]]),
        "targets": np.array([[8, 3, 9, 10, 3, 0]]),
    }
    tokenizer: Any = types.SimpleNamespace(
        decode=lambda ids, target: "".join(f"<{'german' if target else 'english'} {i}>" for i in ids)
    )
    assert list(pair_texts(batch, 0, tokenizer)) == [
        "<english 5><english 6> -> <german 8>",
        "<english 7> -> <german 9><german 10>",
    ]
    assert list(pair_texts(batch, 0, None)) == ["5 6 -> 8", "7 -> 9 10"]
