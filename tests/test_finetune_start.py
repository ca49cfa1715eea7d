"""What the verb `finetune` hands to the runs of a sweep, and what it makes of the best of them.

The parts are stand-ins that take notes; the whole with real ones is in tests/end_to_end/.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax import finetune as verb
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.finetuning.sweep import RunResult
from tests.notes import Notes

WORKDIR = pathlib.Path("runs")
DIRECTORY = WORKDIR / "seed-1"


@pytest.mark.parametrize("is_first", [True, False])
def test_the_best_run_is_exported_and_then_predicts_every_split_but_train(monkeypatch: pytest.MonkeyPatch, is_first: bool):
    notes = Notes()
    task = types.SimpleNamespace(write_predictions=notes.of("write"))
    data = types.SimpleNamespace(features=dict.fromkeys(("train", "dev", "test")), task=task)
    made: Any = types.SimpleNamespace(data=data)
    experiment: Any = "experiment"
    run: Any = types.SimpleNamespace(workdir=WORKDIR, is_first=is_first)
    inputs: Any = types.SimpleNamespace(start="start")

    def job_of(*given: object) -> Any:
        assert given == (experiment, run, DIRECTORY, jax.devices(), inputs)
        return made

    @contextlib.contextmanager
    def best_of(job: Any) -> Iterator[Any]:
        assert job is made
        assert job.predicted == {"dev": "known"}
        yield types.SimpleNamespace(export=notes.of("export"), logits=notes.of("logits", "values"))

    monkeypatch.setattr(verb, "Job", job_of)
    monkeypatch.setattr(verb, "BestWeights", best_of)
    predicted: Any = {"dev": "known"}
    verb.finish(RunResult(experiment, DIRECTORY, {"steps": 3}), run, inputs, predicted)
    wanted = [f"export {WORKDIR} start {{'steps': 3}}"]
    for split in ("dev", "test"):
        wanted += [f"logits {split}", *[f"write {WORKDIR / 'predictions'} {split} values"] * is_first]
    assert notes == wanted


class Start:
    """The start of a sweep: what `train_runs` hands to its parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workdir: pathlib.Path, note: str = "", positions: int = 128):
        self.notes, self.experiment = Notes(), FinetuningExperiment.from_dict({"init_from": "m"})
        given = self.experiment
        task: Any = types.SimpleNamespace(head="head")
        flags: Any = types.SimpleNamespace(given="given keys")
        self.flags = flags
        self.start: Any = types.SimpleNamespace(config=types.SimpleNamespace(max_position=positions, num_layers=7))
        data = types.SimpleNamespace(baselines="baselines")
        self.changed = dataclasses.replace(given, seed=5)
        changed = self.changed
        run = types.SimpleNamespace(workdir=workdir, durable=lambda path: path)

        def answers(name: str, answer: object, *wanted: object) -> None:
            def called(*asked: object) -> object:
                assert asked == wanted, name
                self.notes.append(name)
                return answer

            monkeypatch.setattr(verb, name, called)

        monkeypatch.setattr(verb, "load_task", lambda asked, say: (asked is given.task and task, say("a sentence"))[0])
        answers("with_pooling", (changed, note), given, "head", "given keys")
        answers("fingerprints", "hashes", changed, task)
        answers("labelled_start", self.start, changed, "head")
        answers("read_features", data, task, self.start)
        answers("log_start", None, changed, task, self.start.config, "baselines")
        answers("teacher_of", "teacher", changed, self.start, "own head")
        monkeypatch.setattr(FinetuningExperiment, "head_config", lambda one, own: "own head" if one is changed else own)
        monkeypatch.setattr(verb, "teaching", lambda *asked: asked)
        scores = {"seed-1": 0.25, "seed-2": 0.5, "seed-3": 0.5, "seed-4": -1.0}

        def job_of(*asked: Any) -> Any:
            return types.SimpleNamespace(asked=asked, predicted={"dev": f"logits of {asked[2].name}"})

        def finetuned(job: Any) -> Any:
            name = job.asked[2].name
            return None if name == "stopped" else {"metric": "f1", "scores": {"dev": {"f1": scores[name]}}, "job": job}

        monkeypatch.setattr(verb, "Job", job_of)
        monkeypatch.setattr(verb, "finetune", finetuned)
        monkeypatch.setattr(verb, "finish", lambda *asked: ("finish", *asked))

        @contextlib.contextmanager
        def begun(*asked: object, **named: Any) -> Iterator[Any]:
            assert asked == ("finetune", flags, changed.to_dict() | {"fingerprints": "hashes"})
            assert (named["may_change"], named["independent"]) == (verb.MAY_CHANGE, changed.side_by_side)
            self.completed = named["completed"]
            yield run

        def swept(*asked: Any) -> int:
            experiment, own, train, finish = asked
            assert (experiment, own) == (changed, run)
            assert train("one", pathlib.Path("stopped"), "devices") is None
            for name in scores:
                found = train("one", pathlib.Path(name), "devices")
            *job, inputs = found["job"].asked
            assert job == ["one", run, pathlib.Path("seed-4"), "devices"]
            for name, logits in (("seed-2", {"dev": "logits of seed-2"}), ("seed-1", {}), ("seed-3", {})):  # of the best alone
                result = types.SimpleNamespace(directory=pathlib.Path(name))
                assert finish(result) == ("finish", result, run, inputs, logits)
            assert (inputs.data, inputs.start, inputs.teacher) == (data, self.start, "teacher")
            assert inputs.teaching_on("mesh") == ("teacher", changed, 7, "mesh")
            return 3

        monkeypatch.setattr(verb, "begin", begun)
        monkeypatch.setattr(verb, "sweep", swept)

    def train(self) -> int:
        return verb.train_runs(self.experiment, self.flags)


def test_the_parts_of_a_sweep_are_made_once_and_handed_to_every_run(monkeypatch, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    start = Start(monkeypatch, tmp_path, note="the [CLS] sees no text")
    assert start.train() == 3
    made = ["with_pooling", "fingerprints", "labelled_start", "read_features", "log_start", "teacher_of"]
    assert start.notes == made
    assert capsys.readouterr().out == "a sentence\n"
    assert caplog.messages == ["the [CLS] sees no text"]
    written = start.changed.to_dict()
    del written["seed"]
    assert start.completed(written | {"fingerprints": "h"}) == start.experiment.to_dict() | {"fingerprints": "h"}


def test_a_sweep_that_is_done_is_not_begun_again_and_one_without_a_model_is(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO")
    start = Start(monkeypatch, tmp_path)
    (tmp_path / "model").mkdir()
    assert start.train() == 3
    (tmp_path / "results.json").touch()
    assert start.train() == 0
    assert caplog.messages == [f"this run is done: see {tmp_path / 'results.json'} and {tmp_path / 'model'}"]
    (tmp_path / "model").rmdir()
    assert start.train() == 3


def test_rows_are_at_most_as_long_as_the_position_table(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"config\.task\.length=128 is longer than the position table of m \(127\); shorten it"):
        Start(monkeypatch, tmp_path, positions=127).train()


def test_the_verb_trains_what_its_flags_say(monkeypatch: pytest.MonkeyPatch):
    flags = types.SimpleNamespace(config={"init_from": "m", "seed": 7})
    asked: list[Any] = []
    monkeypatch.setattr(verb, "parse_flags", lambda name, text, schema: (asked.append((name, schema)), flags)[1])
    monkeypatch.setattr(verb, "train_runs", lambda *given: (asked.append(given), 4)[1])
    assert verb.main() == 4
    assert asked == [("finetune", FinetuningExperiment), (FinetuningExperiment.from_dict(flags.config), flags)]
