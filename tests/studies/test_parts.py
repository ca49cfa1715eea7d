"""The parts of a study: their inputs, when each is done, its numbers, and the files that are removed after it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json
from bert_jax.interface import python_files
from bert_jax.interface.named import file_record, read_files_again
from bert_jax.studies.arms import finetuning_values, pretraining_values
from bert_jax.studies.budget import run_values
from bert_jax.studies.parts import PRETRAINING, STATE, Part, Planned, digest, family_parts, read_numbers, write_experiment
from tests.studies.conftest import study, text_task

EXPERIMENT = "experiments/pretrain/laptop.py"
STEPS = {"a": [6, 2], "b": [4, 3]}


def of_three(**values: Any) -> StudyExperiment:
    """Returns a study in which arm b continues a, "half" is a after half of its steps, and "same" is a with another head."""
    arms: list[dict[str, Any]] = [{"name": "a"}, {"name": "b", "continues": "a"}, {"name": "half", "shares": "a", "at": 0.5}]
    arms.append({"name": "same", "shares": "a"})
    return study(title="Three", pretraining=EXPERIMENT, arms=arms, evaluations=4, **values)


def planned(root: pathlib.Path, experiment: PretrainingExperiment, **values: Any) -> Planned:
    return Planned(of_three(**values), STEPS, dict.fromkeys(STEPS, experiment), {"stsb": text_task()}, root)


def test_parts_are_ordered_by_models_states_and_tasks():
    made = of_three()
    assert [(part.arm, part.seed, part.name) for part in family_parts(made, made.arms, 4)] == [
        ("a", 4, "pretraining"), ("b", 4, "pretraining"), ("half", 4, "model"), ("a", 4, "stsb"), ("b", 4, "stsb"),
        ("half", 4, "stsb"), ("same", 4, "stsb"),
    ]  # fmt: skip


def test_the_files_of_a_part_are_in_the_folder_of_its_arm_and_seed(tmp_path: pathlib.Path):
    part = Part("a", 4, "stsb")
    here = tmp_path / "a" / "seed-4"
    assert (part.directory(tmp_path), part.workdir(tmp_path), part.record(tmp_path)) == (here, here / "stsb", here / "stsb.json")
    assert (part.experiment(tmp_path), part.log(tmp_path)) == (here / "stsb.py", here / "stsb.log")


def test_a_part_starts_from_the_model_of_its_arm(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    whole = planned(tmp_path, experiment)
    made = whole.study
    first = whole.values(Part("a", 4, PRETRAINING))
    assert first == run_values(made, made.arms[0], pretraining_values(made, made.arms[0]), [6, 2], 4)
    assert [phase["steps"] for phase in first["phases"]] == [6, 2]
    second = whole.values(Part("b", 4, PRETRAINING))
    assert second["init_from"] == str(tmp_path / "a" / "seed-4" / "pretraining")
    assert [phase["steps"] for phase in second["phases"]] == [4, 3]
    assert whole.values(Part("half", 4, STATE)) == {"init_from": str(tmp_path / "a" / "seed-4" / "pretraining"), "step": 4}
    models = {arm.name: whole.values(Part(arm.name, 4, "stsb")) for arm in made.arms}
    assert {name: values["init_from"] for name, values in models.items()} == {
        "a": str(tmp_path / "a" / "seed-4" / "pretraining"),
        "b": str(tmp_path / "b" / "seed-4" / "pretraining"),
        "half": str(tmp_path / "half" / "seed-4" / "model"),
        "same": str(tmp_path / "a" / "seed-4" / "pretraining"),
    }
    own = finetuning_values(made, made.arms[0], made.tasks[0], 4)
    assert models["a"] == own | {"init_from": models["a"]["init_from"]}


def test_a_part_is_a_command_with_its_own_experiment_file(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    whole = planned(tmp_path / "root", experiment)
    here, local = tmp_path / "root" / "a" / "seed-4", tmp_path / "local"
    for name, command in ((PRETRAINING, "pretrain"), ("stsb", "finetune")):
        part, file = Part("a", 4, name), local / "a" / "seed-4" / f"{name}.py"
        assert whole.command(part, local) == [command, f"--config={file}", f"--workdir={here / name}"]
        assert python_files.load(str(file), "--config") == json.loads(json.dumps(whole.values(part)))
        assert file.read_text().startswith(f'"""a, seed 4, {name} of the study Three."""\n')
    state = tmp_path / "root" / "half" / "seed-4" / "model"
    assert whole.command(Part("half", 4, STATE), local) == [
        "convert", f"--from={here / 'pretraining'}", "--step=4", f"--to={state}",
    ]  # fmt: skip


def test_an_unchanged_experiment_file_is_not_rewritten(tmp_path: pathlib.Path):
    path = tmp_path / "some" / "where" / "x.py"
    write_experiment(path, {"seed": 1}, "one")
    before = path.stat()
    assert path.read_text() == '"""one."""\n\n\ndef get_config():\n    return {\'seed\': 1}\n'
    write_experiment(path, {"seed": 1}, "one")
    assert path.stat().st_ino == before.st_ino
    write_experiment(path, {"seed": 2, "a": 3}, "one")
    assert path.read_text().endswith("    return {'seed': 2, 'a': 3}\n")  # in the order in which the keys were given
    assert python_files.load(str(path), "--config") == {"seed": 2, "a": 3}


def test_the_order_of_keys_does_not_change_a_part():
    values = {"task": {"name": "x", "data_dir": "a"}, "corpus": {"directory": "c"}, "seed": 0}
    assert (
        digest(values) == digest({"seed": 0, "corpus": {}, "task": {"name": "x"}}) != digest({"seed": 0, "task": {"name": "x"}})
    )
    assert values["task"] == {"name": "x", "data_dir": "a"}


def write(path: pathlib.Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = content if isinstance(content, list) else [content]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_part_is_done_once_its_record_is_written(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    whole, state = planned(tmp_path, experiment), Part("half", 4, STATE)
    assert not whole.is_done(state)
    state.directory(tmp_path).mkdir(parents=True)  # type: ignore[union-attr]
    whole.finish(state)
    assert whole.record(state) == {"part": digest(whole.values(state)), "inputs": {"arm": "a"}, "step": 4}
    assert whole.is_done(state)
    path = state.record(tmp_path)
    path.write_text('["no record"]')  # type: ignore[union-attr]
    assert not whole.is_done(state)
    path.write_text('{"part": "of others"}')  # type: ignore[union-attr]
    with pytest.raises(
        UserError, match=r"half/seed-4/model\.json was made with another configuration of this part; name another --workdir"
    ):
        whole.is_done(state)
    path.write_text("{")  # type: ignore[union-attr]
    assert whole.record(state) is None
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):  # a failed read does not mean that the part is not done
        whole.is_done(state)


@pytest.mark.parametrize(("name", "says"), [(PRETRAINING, "corpus"), ("stsb", "set of examples"), (PRETRAINING, "model at init")])
def test_a_part_that_read_other_data_or_another_model_is_refused(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment, name: str, says: str
):
    """The record and the study have different hashes, or only one of them has a hash."""
    bare, part = planned(tmp_path, experiment), Part("a", 4, name)
    write(part.workdir(tmp_path) / "results.json", RESULTS)
    key = "init_from" if says.startswith("model") else "corpus"
    studies = [dataclasses.replace(bare, inputs={"a": {key: found}}, examples={"stsb": found}) for found in ("x1", "x2")]
    for made in (bare, *studies):
        made.finish(part)
        assert made.is_done(part)
        for other in (bare, *studies):
            if other is not made:
                with pytest.raises(UserError, match=rf"{name}\.json was made with another {says}"):
                    other.is_done(part)


def test_a_part_that_started_from_the_model_of_another_arm_is_refused(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    """The arms have equal settings, so the experiments of the parts differ only in the path of the model."""
    whole, part = planned(tmp_path, experiment), Part("half", 4, "stsb")
    write(part.workdir(tmp_path) / "results.json", RESULTS)
    whole.finish(part)
    record = read_json(part.record(tmp_path))
    write_json(part.record(tmp_path), record | {"inputs": {}})  # as before records named the arm
    with pytest.raises(UserError, match=r"another arm whose model .*\), or does not say with which; restore the old one, name"):
        whole.is_done(part)
    write_json(part.record(tmp_path), record)
    arms = [dataclasses.replace(arm, shares="b") if arm.name == "half" else arm for arm in whole.study.arms]
    other = dataclasses.replace(whole, study=dataclasses.replace(whole.study, arms=tuple(arms)))
    with pytest.raises(UserError, match=r"stsb\.json was made with another arm whose model it starts from"):
        other.is_done(part)


@pytest.mark.parametrize("name", [PRETRAINING, "stsb"])
def test_parts_with_different_contents_of_a_user_file_are_refused(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment, name: str
):
    """A log sink may change, since it does not affect the scores."""
    file, sink = tmp_path / "mine.py", tmp_path / "sink.py"
    changes = {"optimizer": {"name": f"{file}:mine"}, "log": {"sinks": [f"{sink}:Sink"]}}

    def write_files(text: str) -> None:
        file.write_text(text)
        sink.write_text(text)
        read_files_again()

    write_files("mine = 1")
    whole, part, workdir = planned(tmp_path, experiment, pretrain=changes, finetune=changes), Part("a", 4, name), tmp_path / "a"
    write(part.workdir(tmp_path) / "results.json", RESULTS)
    own = {key: file_record(f"{path}:x") for key, path in (("optimizer.name", file), ("log.sinks.0", sink))}
    write(part.workdir(tmp_path) / "config.json", {"written_by": "bert_jax 1 pretrain", "files": own})
    whole.finish(part)
    assert whole.record(part)["inputs"].keys() == {"config.optimizer.name"}  # type: ignore[index]
    assert whole.is_done(part)
    write_files("mine = 2")
    wrong = rf"{name}\.json was made with another content of the file that config\.optimizer\.name names; .* --changed-files$"
    with pytest.raises(UserError, match=wrong):
        whole.is_done(part)
    mixed = dataclasses.replace(whole, changed_files=True)
    assert mixed.is_done(part)

    of_run = {"written_by": "bert_jax 1 pretrain", "files": {"optimizer.name": {"sha256": "3"}, "log.sinks.0": {"sha256": "3"}}}
    write(part.workdir(tmp_path) / "config.json", of_run)
    with pytest.raises(UserError, match=rf"^the file that .* was edited while the study ran, and {part} .* remove {workdir}"):
        whole.finish(part)
    mixed.finish(part)
    assert mixed.record(part)["inputs"] == {"config.optimizer.name": "3"}  # type: ignore[index]


RESULTS = {
    "steps": 8, "parameters": 11, "eval": {"mlm_loss": 3.0}, "skipped_steps": 1, "more": 5,
    "devices": "cpu", "jax": "0.7", "ledger": {"seconds": {"training": 5.0}},
}  # fmt: skip


def test_pretraining_records_have_results_and_held_out_curve(tmp_path: pathlib.Path):
    metrics = [
        {"step": 2, "train/loss": 9.0}, {"step": 4, "eval/mlm_loss": 5.0, "train/loss": 8.0},
        {"step": 8, "eval/nsp_loss": 3.0},
    ]  # fmt: skip
    write(tmp_path / "results.json", RESULTS)
    write(tmp_path / "metrics.jsonl", metrics)
    assert read_numbers(tmp_path) == {
        "steps": 8,
        "parameters": 11,
        "eval": {"mlm_loss": 3.0},
        "skipped_steps": 1,
        "curve": [{"mlm_loss": 5.0, "step": 4}, {"nsp_loss": 3.0, "step": 8}],
        "measured": {"seconds": {"training": 5.0}, "devices": "cpu", "jax": "0.7"},
    }


def test_fine_tuning_records_have_the_scores_of_successful_runs(tmp_path: pathlib.Path):
    good = {"scores": {"dev": {"f1": 0.5}, "test": {"f1": 0.25}}, "metric": "f1", "baseline": {"dev": {"f1": 0.125}}}
    runs = [{"failed": "no memory"}, {**good, "degenerate": True}, {**good, "metric": "em", "baseline": {}}, {"failed": "again"}]
    write(tmp_path / "results.json", {"runs": runs, "devices": "cpu"})
    whole = {"baseline": {"dev": {"f1": 0.125}}, "metric": "dev/f1", "measured": {"seconds": {}, "devices": "cpu", "jax": ""}}
    assert read_numbers(tmp_path) == whole | {"scores": [good["scores"]] * 2, "degenerate": 1, "failed": 2}
    write(tmp_path / "results.json", good | {"devices": "cpu"})
    assert read_numbers(tmp_path) == whole | {"scores": [good["scores"]], "degenerate": 0, "failed": 0}
    write(tmp_path / "results.json", {"runs": runs[:1]})
    nothing = {"baseline": {}, "metric": "", "measured": {"seconds": {}, "devices": "", "jax": ""}}
    assert read_numbers(tmp_path) == nothing | {"scores": [], "degenerate": 0, "failed": 1}


def test_a_finished_part_is_read_from_its_record(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    whole, part = planned(tmp_path, experiment), Part("a", 4, PRETRAINING)
    write(tmp_path / "a" / "seed-4" / "pretraining" / "results.json", RESULTS)
    whole.finish(part)
    numbers = read_numbers(part.workdir(tmp_path))
    assert whole.record(part) == {"part": digest(whole.values(part)), **numbers}


def test_a_pretraining_of_a_part_of_the_study_keeps_the_states_of_the_whole(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment
):
    whole, part = planned(tmp_path, experiment), Part("a", 4, PRETRAINING)
    alone = dataclasses.replace(planned(tmp_path, experiment, only_arms=["a"]), everything=whole.study)
    assert alone.values(part) == whole.values(part)
    assert alone.values(part)["checkpoints"]["keep_at"] == [4]
    checkpoints = part.workdir(tmp_path) / "checkpoints"
    checkpoints.mkdir(parents=True)
    alone.clean_up(part)
    assert checkpoints.is_dir()


def test_an_arm_of_an_earlier_state_may_be_added_only_while_the_state_is_there(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment
):
    whole, part, state = planned(tmp_path, experiment), Part("a", 4, PRETRAINING), Part("half", 4, STATE)
    without = planned(tmp_path, experiment, only_arms=["a"])
    write(part.workdir(tmp_path) / "results.json", RESULTS)
    without.finish(part)
    assert whole.is_done(part)
    with pytest.raises(UserError, match=r"^the arm 'half' uses the state of step 4 of .*, which was not kept .*seed-4 to run"):
        whole.is_done(state)
    (part.workdir(tmp_path) / "checkpoints" / "4").mkdir(parents=True)
    assert not whole.is_done(state)


def directories(root: pathlib.Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())}


def test_checkpoints_are_kept_until_their_states_are_converted(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    whole = planned(tmp_path, experiment)
    for arm in ("a", "b"):
        for name in ("checkpoints", "model"):
            (tmp_path / arm / "seed-4" / "pretraining" / name).mkdir(parents=True)
    here = "a/seed-4/pretraining"
    whole.clean_up(Part("a", 4, PRETRAINING))
    assert f"{here}/checkpoints" in directories(tmp_path)
    whole.clean_up(Part("b", 4, PRETRAINING))  # arm b keeps no states
    assert directories(tmp_path) == {f"{here}/checkpoints", f"{here}/model", "b/seed-4/pretraining/model"}
    write(tmp_path / "half" / "seed-4" / "model.json", {"part": ""})
    whole.clean_up(Part("half", 4, STATE))
    assert directories(tmp_path) == {f"{here}/model", "b/seed-4/pretraining/model"}


@pytest.mark.parametrize("keep", [False, True])
def test_only_the_requested_files_of_a_fine_tuned_model_are_kept(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment, keep: bool
):
    whole = planned(tmp_path, experiment, keep_models=keep)
    here = tmp_path / "a" / "seed-4" / "stsb"
    for name in ("checkpoints", "best", "model", "runs/one/best", "runs/two/best", "runs/two/logs"):
        (here / name).mkdir(parents=True)
    whole.clean_up(Part("a", 4, "stsb"))
    assert directories(here) == {"runs/one", "runs/two/logs", *(["model"] if keep else [])}
    (tmp_path / "b" / "seed-4" / "stsb" / "best").mkdir(parents=True)  # without a sweep
    whole.clean_up(Part("b", 4, "stsb"))
    assert directories(tmp_path / "b") == {"seed-4/stsb"}
