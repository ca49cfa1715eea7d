"""A run that branches off from the state of another run: which states it may continue."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.errors import UserError
from bert_jax.interface.named import file_record, is_in_file
from bert_jax.pretraining.start import load_branch_state
from bert_jax.runtime.workdir import flatten
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.spikes import new_watched_state, without_watch
from bert_jax.training.steps import skipped_batches
from tests.end_to_end.runs import build_corpus
from tests.random_rows import TINY
from tests.training.test_checkpoints_on_meshes import abstract, save_all, state_at

FIRST = {"steps": 12, "length": 16, "batch_size": 4, "max_predictions": 3}
SECOND = {"steps": 10, "length": 32, "batch_size": 8, "max_predictions": 5}
LONG = {"steps": 10, "length": 64, "batch_size": 8, "max_predictions": 5}
MODEL = PretrainingExperiment(model=TINY, phases=(PhaseConfig(steps=1, length=32),)).to_dict()["model"]
VALUES: dict[str, Any] = {"model": MODEL, "phases": [FIRST, SECOND]}


def write_config(workdir: pathlib.Path, corpus: str, **changes: Any) -> None:
    config = PretrainingExperiment.from_dict(VALUES | {"corpus": {"directory": corpus}} | changes).to_dict()
    (workdir / "config.json").write_text(json.dumps(config | {"written_by": "bert_jax 1 pretrain", "corpus_fingerprint": "a"}))


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the workdir of a run with states of steps 12 and 20, next to its corpus."""
    workdir = tmp_path_factory.mktemp("trunk") / "run"
    save_all(workdir / "checkpoints", 12, 20)
    write_config(workdir, str(build_corpus(workdir.with_name("corpus"), documents=12)))
    return workdir


@pytest.fixture(scope="module")
def corpus(trunk: pathlib.Path) -> Corpus:
    """Returns the corpus of that run."""
    return open_splits(trunk.with_name("corpus"))[0]


def branch(state: str, corpus: Corpus, **changes: Any) -> int:
    """Returns the step of the state from which the branch continues."""
    experiment = PretrainingExperiment.from_dict(VALUES | {"corpus": {"directory": "runs/corpus"}, "init_state": state} | changes)
    found: Any = load_branch_state(experiment, corpus, abstract(state_at(0)))
    return int(found["step"])


def refusal(state: str, corpus: Corpus, **changes: Any) -> str:
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
def test_a_branch_continues_with_other_settings_of_its_future(
    step: int, changes: dict[str, Any], trunk: pathlib.Path, corpus: Corpus
):
    assert branch(f"{trunk}@{step}", corpus, **changes) == step


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
def test_a_branch_may_have_longer_rows_if_positions_have_no_table(
    positions: str, trunk: pathlib.Path, corpus: Corpus, tmp_path: pathlib.Path
):
    (tmp_path / "checkpoints").symlink_to(trunk / "checkpoints")
    model = MODEL | {"positions": positions}
    write_config(tmp_path, str(trunk.with_name("corpus")), model=model)
    changes: dict[str, Any] = {"model": model | {"max_position": 64}, "phases": [FIRST, LONG]}
    if positions == "learned":
        assert "config.model.max_position is 32 in that run, but 64 here" in refusal(f"{tmp_path}@12", corpus, **changes)
    else:
        assert branch(f"{tmp_path}@12", corpus, **changes) == 12


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
def test_a_state_of_another_model_or_optimizer_is_refused(
    changes: dict[str, Any], says: str, trunk: pathlib.Path, corpus: Corpus
):
    assert f"is a state of a different model or optimizer: {says}; use the same" in refusal(f"{trunk}@12", corpus, **changes)


def test_the_files_of_a_state_are_compared_by_content_and_name(
    trunk: pathlib.Path, corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    file, workdir = tmp_path / "mine.py", shutil.copytree(trunk, tmp_path / "run")
    text = "from bert_jax.objectives.mlm_nsp import MlmNsp as Mine\nfrom bert_jax.training.schedules import linear as falling\n"

    def of_file(path: str, name: str = "Mine") -> dict[str, Any]:
        phase = {"schedule": f"{path}:falling"}
        return {"objective": f"{path}:{name}", "model": MODEL | {"norm": f"{path}:norm"}, "phases": [FIRST | phase, SECOND]}

    file.write_text(text + "def norm(x, epsilon): return x\n")
    monkeypatch.chdir(tmp_path)
    write_config(workdir, str(trunk.with_name("corpus")), **of_file("mine.py"))
    config = json.loads((workdir / "config.json").read_text())
    own = {key: file_record(str(value)) for key, value in flatten(config) if is_in_file(str(value))}
    (workdir / "config.json").write_text(json.dumps(config | {"files": own}))
    assert {*own} == {"objective", "model.norm", "phases.0.schedule"}
    assert branch(f"{workdir}@12", corpus, **of_file("mine.py")) == 12
    shutil.copy(file, tmp_path / "copy.py")
    assert branch(f"{workdir}@12", corpus, **of_file("copy.py")) == 12
    says = refusal(f"{workdir}@12", corpus, **of_file("copy.py") | {"objective": "bert"})
    assert "config.objective is Mine of a file with SHA-256 " in says
    assert "in that run, but bert here" in says
    (tmp_path / "other.py").write_text(text + "def norm(x, epsilon): return 2 * x\n")
    digest = hashlib.sha256((tmp_path / "other.py").read_bytes()).hexdigest()[:12]
    says = refusal(f"{workdir}@12", corpus, **of_file("other.py"))
    assert f"in that run, but Mine of a file with SHA-256 {digest} here" in says


@pytest.mark.parametrize("policy", ["none", "skip"])
def test_a_branch_may_go_on_without_the_spike_policy_or_with_new_averages(
    policy: str, trunk: pathlib.Path, corpus: Corpus, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    state = new_watched_state({"weights": jnp.ones(3)}, optax.identity())
    state = dataclasses.replace(state, step=jnp.int32(12), losses=jnp.int32(9), spikes=jnp.int32(2), skipped_batches=jnp.int32(5))
    state = jax.device_put(state, jax.devices()[0])
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(12, state)
        checkpoints.finish()
    write_config(tmp_path, str(trunk.with_name("corpus")), spikes={"policy": "rollback"})
    values = VALUES | {"corpus": {"directory": "runs/corpus"}, "spikes": {"policy": policy}, "init_state": f"{tmp_path}@12"}
    layout = abstract(state if policy == "skip" else without_watch(state))
    with caplog.at_level("INFO", logger="bert_jax"):
        found: Any = load_branch_state(PretrainingExperiment.from_dict(values), corpus, layout)
    assert int(found.step) == 12
    assert found.params["weights"].tolist() == [1, 1, 1]
    assert abstract(found) == layout
    if policy == "skip":
        assert (int(found.losses), int(found.spikes), skipped_batches(found)) == (0, 2, 5)
    assert ("that run had skipped 5 batches; this run has no spike policy" in caplog.text) == (policy == "none")


@pytest.mark.parametrize(
    ("step", "phases", "says"),
    [
        (12, [FIRST | {"learning_rate": 0.5}, SECOND], "config.phases.0.learning_rate is 0.0001 there and 0.5 here; repeat"),
        (20, [FIRST, SECOND | {"length": 24}], "config.phases.1.length is 32 there and 24 here; repeat"),
        (20, [FIRST, SECOND | {"steps": 7}, SECOND], "config.phases.1.ends at step is 20 there and 19 here; repeat"),
        (12, [FIRST], "is a state after step 12, but config.phases have only 12 steps together; give the phases"),
    ],
)
def test_another_past_is_refused(step: int, phases: list[Any], says: str, trunk: pathlib.Path, corpus: Corpus):
    assert says in refusal(f"{trunk}@{step}", corpus, phases=phases)


def test_a_missing_state_is_refused_with_the_saved_steps(trunk: pathlib.Path, corpus: Corpus, tmp_path: pathlib.Path):
    says = f"{trunk} has no state of step 7 (it has steps 12, 20); name an existing step, or train that run with "
    assert f"{says}--config.checkpoints.keep_at='[7]'" in refusal(f"{trunk}@7", corpus)
    assert "holds no run; name the workdir of a run of pretrain" in refusal(f"{tmp_path}@12", corpus)
    write_config(tmp_path, "runs/corpus")
    assert f"{tmp_path} has no state of step 12; name an existing step" in refusal(f"{tmp_path}@12", corpus)


@pytest.mark.parametrize(
    ("state", "example"), [("runs/a", "runs/a@5000"), ("@12", "runs/mine@5000"), ("runs/a@", "runs/a@5000"), ("a@b", "a@5000")]
)
def test_a_state_is_named_by_its_workdir_and_step(state: str, example: str, corpus: Corpus):
    assert f"config.init_state={state} is not WORKDIR@STEP, e.g. {example}; name a step" in refusal(state, corpus)


def test_a_state_of_another_vocabulary_is_refused_if_its_corpus_is_there(
    trunk: pathlib.Path, corpus: Corpus, tmp_path: pathlib.Path
):
    other = dataclasses.replace(corpus, vocabulary=dataclasses.replace(corpus.vocabulary, sha256="another"))
    says = "is a state of a run with a different vocabulary than the corpus runs/corpus; build the corpus with --vocab="
    assert f"{says}{trunk.with_name('corpus')}/tokenizer" in refusal(f"{trunk}@12", other)
    copy = shutil.copytree(trunk, tmp_path / "copy")
    for directory in (str(tmp_path / "gone"), "gs://bucket/corpus"):
        write_config(copy, directory)
        assert branch(f"{copy}@12", other) == 12
