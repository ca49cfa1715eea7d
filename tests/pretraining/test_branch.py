"""A run that branches off from the state of another run: which states it may continue."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.pretraining import start
from bert_jax.pretraining.start import load_branch_state
from tests.random_rows import TINY

FIRST = {"steps": 12, "length": 16, "batch_size": 4, "max_predictions": 3}
SECOND = {"steps": 10, "length": 32, "batch_size": 8, "max_predictions": 5}
MODEL = PretrainingExperiment(model=TINY, phases=(PhaseConfig(steps=1, length=32),)).to_dict()["model"]
VALUES: dict[str, Any] = {"model": MODEL, "phases": [FIRST, SECOND], "corpus": {"directory": "runs/corpus"}}
CORPUS: Any = SimpleNamespace(vocabulary="of the corpus")


@pytest.fixture
def trunk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the workdir of a run with states of steps 12 and 20; its corpus has the same vocabulary."""

    @contextlib.contextmanager
    def checkpoints(directory: pathlib.Path, *, read_only: bool) -> Iterator[Any]:
        assert (directory, read_only) == (tmp_path / "checkpoints", True)
        yield SimpleNamespace(steps=[12, 20], restore=lambda step, layout: (step, layout))

    def open_splits(directory: str, names: list[str]) -> list[Any]:
        assert (directory, names) == ("runs/corpus", ["train"])
        return [CORPUS]

    (tmp_path / "checkpoints").mkdir()
    config = PretrainingExperiment.from_dict(VALUES).to_dict()
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"written_by": "bert_jax 1 pretrain", "corpus_fingerprint": "a"})
    )
    monkeypatch.setattr(start, "Checkpoints", checkpoints)
    monkeypatch.setattr(start, "open_splits", open_splits)
    return tmp_path


def branch(state: str, corpus: Any = CORPUS, **changes: Any) -> Any:
    experiment = PretrainingExperiment.from_dict(VALUES | {"init_state": state} | changes)
    layout: Any = "layout"
    return load_branch_state(experiment, corpus, layout)


def refusal(state: str, corpus: Any = CORPUS, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        branch(state, corpus, **changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (12, {}),
        (20, {}),
        (12, {"phases": [FIRST, SECOND | {"length": 24}]}),
        (12, {"phases": [FIRST | {"accumulation": 2, "corpus": "other"}, SECOND]}),
        (12, {"phases": [FIRST | {"steps": 13}]}),
        (20, {"phases": [FIRST, SECOND | {"steps": 9}]}),
        (20, {"phases": [FIRST, SECOND | {"steps": 8}, FIRST]}),
        (12, {"model": MODEL | {"hidden_dropout": 0.5}}),
        (12, {"optimizer": {"weight_decay": 0.5}, "seed": 3}),
    ],
)
def test_a_branch_continues_with_other_settings_of_its_future(step: int, changes: dict[str, Any], trunk: pathlib.Path):
    assert branch(f"{trunk}@{step}", **changes) == (step, "layout")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": MODEL | {"hidden_size": 32}}, "config.model.hidden_size is 16 in that run, but 32 here"),
        ({"model": MODEL | {"vocab_multiple": 64}}, "config.model.vocab_multiple is 1 in that run, but 64 here"),
        ({"optimizer": {"name": "adamw"}}, "config.optimizer.name is bert_adam in that run, but adamw here"),
        ({"spikes": {"policy": "skip"}}, "config.spikes.policy is none in that run, but watched here"),
        ({"examples": {"pairs": "none"}}, "config.examples.pairs is pairs in that run, but none here"),
        ({"teacher": "model"}, "config.teacher is False in that run, but True here"),
    ],
)
def test_a_state_of_another_model_or_optimizer_is_refused(changes: dict[str, Any], says: str, trunk: pathlib.Path):
    assert f"is a state of a different model or optimizer: {says}; use the same" in refusal(f"{trunk}@12", **changes)


@pytest.mark.parametrize(
    ("step", "phases", "says"),
    [
        (12, [FIRST | {"learning_rate": 0.5}, SECOND], "config.phases.0.learning_rate is 0.0001 there and 0.5 here; repeat"),
        (20, [FIRST, SECOND | {"length": 24}], "config.phases.1.length is 32 there and 24 here; repeat"),
        (20, [FIRST, SECOND | {"steps": 7}, SECOND], "config.phases.1.ends at step is 20 there and 19 here; repeat"),
        (12, [FIRST], "is a state after step 12, but config.phases have only 12 steps together; give the phases"),
    ],
)
def test_another_past_is_refused(step: int, phases: list[Any], says: str, trunk: pathlib.Path):
    assert says in refusal(f"{trunk}@{step}", phases=phases)


def test_a_missing_state_is_refused_with_the_saved_steps(trunk: pathlib.Path):
    assert f"{trunk} has no state of step 7 (it has steps 12, 20); name an existing step" in refusal(f"{trunk}@7")
    (trunk / "checkpoints").rmdir()
    assert f"{trunk} has no state of step 12; name an existing step" in refusal(f"{trunk}@12")


@pytest.mark.parametrize(
    ("state", "example"), [("runs/a", "runs/a@5000"), ("@12", "runs/mine@5000"), ("runs/a@", "runs/a@5000"), ("a@b", "a@5000")]
)
def test_a_state_is_named_by_its_workdir_and_step(state: str, example: str, trunk: pathlib.Path):
    assert f"config.init_state={state} is not WORKDIR@STEP, e.g. {example}; name a step" in refusal(state)


def test_a_state_of_another_vocabulary_is_refused_if_its_corpus_is_there(trunk: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    other: Any = SimpleNamespace(vocabulary="another")
    says = "is a state of a run with a different vocabulary than the corpus runs/corpus; build the corpus with --vocab="
    assert says in refusal(f"{trunk}@12", other)

    def gone(directory: str, names: list[str]) -> list[Any]:
        raise UserError("there is no corpus")

    with monkeypatch.context() as patch:
        patch.setattr(start, "is_remote", lambda directory: directory == "runs/corpus")
        assert branch(f"{trunk}@12", other) == (12, "layout")
    monkeypatch.setattr(start, "open_splits", gone)
    assert branch(f"{trunk}@12", other) == (12, "layout")
