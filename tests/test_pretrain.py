"""The order of things in a pretraining run, with every part of it replaced by a note of its call; that whole runs learn is proved
in tests/end_to_end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax import pretrain as module
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.pretrain import MAY_CHANGE, main, pretrain
from bert_jax.pretraining import replay
from bert_jax.runtime.goodput import Ledger
from bert_jax.training.loop import Trained
from tests.pretraining.notebook import EXPERIMENT, Notebook, Notes, state_of


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


# ------------------------------------------------------------------------------------------------------------------- a whole run


class Whole:
    """A run of two phases whose parts are notes; `train` ends with a state of the step `end`."""

    def __init__(self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, **changed: Any):
        self.notebook, self.workdir = notebook, tmp_path
        self.end, self.is_whole, self.begin = 9, True, 0
        self.unsaved: UserError | None = None
        self.scores = {"mlm_loss": 1.0}
        self.now = 0.0
        vars(self).update(changed)
        self.run: Any = types.SimpleNamespace(
            workdir=tmp_path,
            is_first=True,
            compiled="saved steps",
            compiling=lambda ledger: contextlib.nullcontext(),
            ledger=Ledger(lambda: self.now),
            durable=lambda path: path,
            mirror="mirror",
            require_in_place="in place",
            watchdog=types.SimpleNamespace(alive=notebook.says("alive")),
            profile=types.SimpleNamespace(require=notebook.says("profile of at most")),
            rejected_kernels={},
            preemption=types.SimpleNamespace(exit_status=75),
        )
        self.run.ledger.totals = lambda: {"goodput": 1.0, "starts": 1, "seconds": {"training": 60.0}}
        self.train_split = types.SimpleNamespace(tokenizer="tokenizer")
        self.checkpoints: Any = types.SimpleNamespace(failures=2, restore_latest=self.restore)
        waits = types.SimpleNamespace(wait=self.verify, check=notebook.says("verified"))
        self.corpora: Any = types.SimpleNamespace(train=self.train_split, verification=waits)
        self.program: Any = types.SimpleNamespace(
            experiment=EXPERIMENT,
            state="layout",
            training_step=lambda phase: f"step of phase {phase}",
            arguments=lambda *arguments: arguments,
        )

        def make(experiment: Any, mesh: Any, teacher: Any) -> Any:
            assert (experiment, mesh.size, teacher) == (EXPERIMENT, 8, "teacher")
            self.mesh = mesh
            return self.program

        @contextlib.contextmanager
        def fits(demand: Any) -> Iterator[None]:
            notebook.notes.append(demand())
            yield

        def compile_step(function: Any, *arguments: Any, mesh: Any, saved: Any, must_be_saved: bool) -> Any:
            assert (mesh, saved) == (self.mesh, "saved steps")
            notebook.notes.append(("compiled", function, *arguments, must_be_saved))
            return lambda *arguments: ("trained", *arguments)

        for name, part in {
            "check_batch_sizes": lambda experiment, mesh: notebook.notes.append(
                ("batch sizes", experiment is EXPERIMENT, mesh.size)
            ),
            "pretraining_program": make,
            "pretraining_demand": lambda experiment, phase, mesh: ("demands", phase),
            "state_demand": lambda experiment, mesh: ("demands", "state"),
            "require_training_memory": lambda experiment, phase, mesh: notebook.notes.append(("memory", phase)),
            "fits_in_memory": fits,
            "first_parameters": lambda program, corpus: state_of(0),
            "PhaseBatches": self.batches,
            "HeldoutEvaluation": lambda program, phase, corpora, run, plan: lambda params: {"of": (params, phase, plan)},
            "compiled": compile_step,
            "process_shard": lambda mesh, axes: (0, 1),
            "to_device": lambda rows, mesh, axes: f"{rows} on devices",
            "PretrainingLog": self.log,
            "Saver": self.saver,
            "Rollback": lambda *about: ("rollback", *about[2:]),
            "train": self.train,
            "on_host": lambda params, mesh: f"{params} on the host" if mesh is self.mesh else None,
            "results": self.results,
            "time": types.SimpleNamespace(monotonic=iter([100.0, 107.0]).__next__),
            "trained_model": lambda *about: about,
            "training_of": lambda experiment, corpora, scores, files: ("told", scores),
            "export_trained": notebook.says("exported"),
        }.items():
            monkeypatch.setattr(module, name, part)

    def restore(self, layout: Any) -> Any:
        assert (layout, self.run.ledger._activity) == ("layout", "restoring")
        return state_of(self.begin) if self.begin else None

    def verify(self, alive: Callable[[], None]) -> None:
        self.now += 5
        alive()

    def batches(self, experiment: Any, phase: int, corpus: Any, shard: Any = None, passed_over: int = 0) -> Any:
        assert (experiment, corpus) == (EXPERIMENT, self.train_split)
        source = types.SimpleNamespace(plan=lambda block: f"plan of {phase}")
        return types.SimpleNamespace(source=source, passed_over=passed_over, rows=lambda step: f"rows {step}")

    def log(self, program: Any, run: Any, corpora: Any, step: int, file: str) -> Any:
        assert (program, run, corpora, file) == (self.program, self.run, self.corpora, "file.py")
        self.notebook.notes.append(("log from", step))
        found: Any = contextlib.ExitStack()
        found.scores, found.metrics, found.draw = self.scores, "metrics", self.notebook.says("drawn")
        found.phase, found.evaluation = self.notebook.says("phase"), self.notebook.says("evaluated")
        self.the_log = found
        return found

    def results(self, program: Any, state: Any, scores: Any, corpora: Any, seconds: float) -> dict[str, Any]:
        assert (program, corpora) == (self.program, self.corpora)
        return {"steps": state.step, "heldout": scores, "seconds": seconds}

    def saver(self, checkpoints: Any, metrics: Any, watchdog: Any, before: Any, mirror: Any, in_place: Any) -> Any:
        assert (checkpoints, metrics, watchdog) == (self.checkpoints, "metrics", self.run.watchdog)
        assert (mirror, in_place) == ("mirror", "in place")
        self.before = before
        return "saver"

    def train(self, parts: Any, state: Any) -> Trained:
        assert (parts.run, parts.log, parts.saver, parts.ledger) == (self.run, self.the_log, "saver", self.run.ledger)
        assert (parts.last_step, parts.spikes) == (9, EXPERIMENT.spikes)
        assert parts.go_back == ("rollback", self.train_split, state)
        self.notebook.notes.append(("trained from", state.step))
        self.parts = parts
        return Trained(state_of(self.end), self.is_whole, self.unsaved, None)

    def __call__(self) -> int:
        return pretrain(EXPERIMENT, self.run, self.corpora, self.checkpoints, "teacher", "file.py")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop takes stand-ins for its parts."""
    for name in ("Parts", "Stage"):
        monkeypatch.setattr(module, name, types.SimpleNamespace)


BEGIN: Notes = [("profile of at most", 9), ("batch sizes", True, 8), ("demands", "state")]


def test_a_run_trains_its_phases_and_leaves_its_results_and_its_model(notebook, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole = Whole(notebook, monkeypatch, tmp_path)
    assert whole() == 0
    *notes, (exported, workdir, model, about, found, told) = notebook.notes
    assert notes == [*BEGIN, ("log from", 0), ("trained from", 0)]
    assert (exported, workdir, about) == ("exported", tmp_path, {"step": 9})
    assert told[0] == "told"
    assert model == (EXPERIMENT, "weights 9 on the host", "tokenizer")
    assert found.pop("ledger") == whole.run.ledger.totals()
    assert found == {"steps": 9, "heldout": whole.scores, "seconds": 7.0, "failed_saves_since_last_start": 2}
    places = "\n".join(
        f"{what}: {tmp_path / name}"
        for what, name in {"results": "results.json", "curves": "curves.png", "model": "model"}.items()
    )
    assert caplog.messages[-1] == f"goodput 100.0 % of 1m00s in 1 start: training 1m00s\n{places}"
    whole.before()  # before a save
    assert notebook.notes[-1] == ("alive", "verifying the corpus")
    assert whole.run.ledger.record()["seconds"]["staging"] == 5


def test_the_step_of_a_phase_is_compiled_for_its_rows_and_must_be_saved_at_the_first_step_of_a_start(
    notebook, monkeypatch, tmp_path
):
    whole = Whole(notebook, monkeypatch, tmp_path, begin=4)
    assert whole() == 0
    for step, phase in ((4, 0), (2, 0), (6, 1)):
        notebook.notes.clear()
        with whole.parts.stage(state_of(step)) as stage:
            assert notebook.notes == [
                ("demands", phase),
                *(("memory", later) for later in range(phase, 2)),
                ("compiled", f"step of phase {phase}", "layout", f"rows {step} on devices", step == 4),
                ("phase", phase, *notebook.notes[-1][2:]),
            ]
            assert (stage.end, stage.rows(step)) == ((6, 9)[phase], f"rows {step}")
            assert stage.step("state", "rows") == ("trained", "state", "rows on devices")
            assert stage.evaluate(step, state_of(step)) is False
            assert notebook.notes[-1] == ("evaluated", step, {"of": (f"weights {step}", phase, f"plan of {phase}")})


def test_log_lines_evaluations_and_states_are_due_as_the_experiment_says(notebook, monkeypatch, tmp_path):
    """A log line every 2 steps, scores every 3, both at the end of a phase; a state every 4, after step 5, and at the end."""
    whole = Whole(notebook, monkeypatch, tmp_path)
    whole()
    due: Any = {"logs": [], "evaluates": [], "saves": []}
    for begin, steps in ((0, range(7)), (6, range(7, 10))):
        with whole.parts.stage(state_of(begin)) as stage:
            for name, found in due.items():
                found += [step for step in steps if getattr(stage, name)(step)]
    assert due == {"logs": [0, 2, 4, 6, 8, 9], "evaluates": [0, 3, 6, 9], "saves": [0, 4, 5, 8, 9]}


def test_a_run_that_is_asked_to_stop_ends_with_the_status_of_the_signal(notebook, monkeypatch, tmp_path):
    assert Whole(notebook, monkeypatch, tmp_path, end=5, is_whole=False)() == 75
    assert notebook.notes[-1] == ("trained from", 0)


def test_a_lost_last_state_is_an_error_after_the_export(notebook, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="a full disk"):
        Whole(notebook, monkeypatch, tmp_path, unsaved=UserError("a full disk"))()
    assert notebook.notes[-1][0] == "exported"


def test_a_run_whose_steps_are_done_is_not_begun_again_where_its_results_are_there(notebook, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "results.json").touch()
    assert Whole(notebook, monkeypatch, tmp_path, begin=9)() == 0
    assert notebook.notes == BEGIN
    assert caplog.messages == [f"all 9 steps are done: see {tmp_path / 'results.json'}"]
    # one that is not done has those of an earlier start at most
    assert Whole(notebook, monkeypatch, tmp_path, begin=6)() == 0
    assert notebook.notes[-1][0] == "exported"


def test_a_run_that_was_killed_before_its_results_is_evaluated_and_drawn_without_a_step(notebook, monkeypatch, tmp_path):
    assert Whole(notebook, monkeypatch, tmp_path, begin=9, scores={})() == 0
    *_, trained, drawn, (exported, *_, found, _) = notebook.notes
    assert (trained, drawn, exported) == (("trained from", 9), ("drawn",), "exported")
    assert found["heldout"] == {"of": ("weights 9", 1, "plan of 1")}


def test_a_process_that_is_not_the_first_exports_nothing(notebook, monkeypatch, tmp_path):
    whole = Whole(notebook, monkeypatch, tmp_path)
    whole.run.is_first = False
    assert whole() == 0
    assert notebook.notes[-1] == ("trained from", 0)


# ----------------------------------------------------------------------------------------------------------------------- the verb


@pytest.mark.parametrize("verifies", [False, True])
def test_the_verb_settles_the_experiment_by_the_corpus_and_the_teacher_before_it_begins(verifies, notebook, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    train, heldout = (types.SimpleNamespace(vocabulary=types.SimpleNamespace(size=size)) for size in (64, 65))
    file = {"corpus": {"directory": "gs://corpus"}}
    flags = types.SimpleNamespace(
        replay=None, verify=verifies, config=file, given={"seed"}, workdir="workdir", experiment="file.py"
    )
    settled = EXPERIMENT.to_dict() | {"corpus": {"directory": "gs://corpus"}, "seed": 3}
    taught = dataclasses.replace(EXPERIMENT, seed=4)
    run = types.SimpleNamespace(workdir=pathlib.Path("workdir"), durable=lambda path: ("durable", path))

    @contextlib.contextmanager
    def begin(verb: str, of: Any, config: Any, *, may_change: Any, completed: Any) -> Iterator[Any]:
        assert (verb, of, may_change) == ("pretrain", flags, MAY_CHANGE)
        assert config == taught.to_dict() | {"corpus_fingerprint": "prints of 64 65"}
        assert completed({"seed": 9, "corpus_fingerprint": "a"})["corpus_fingerprint"] == "a"
        yield run

    @contextlib.contextmanager
    def checkpoints(directory: Any, *, keep: int, keep_at: Any) -> Iterator[Any]:
        assert (directory, keep, tuple(keep_at)) == (
            ("durable", pathlib.Path("workdir/checkpoints")),
            EXPERIMENT.checkpoints.keep,
            (5,),
        )
        yield "checkpoints"

    def infer(values: Any, given: Any, *, vocabulary_size: int, workdir: Any) -> Any:
        assert (values, given, vocabulary_size, workdir) == (file, {"seed"}, 64, "workdir")
        return settled, ["a note"]

    def load(experiment: Any, vocabulary: Any) -> str:
        assert (experiment.seed, vocabulary) == (3, train.vocabulary)
        return "teacher"

    def teach(experiment: Any, teacher: Any) -> Any:
        assert (experiment.seed, teacher) == (3, "teacher")
        return taught

    def train_it(experiment: Any, of: Any, corpora: Any, kept: Any, teacher: Any, config: str) -> int:
        assert (experiment, of, kept, teacher, config) == (taught, run, "checkpoints", "teacher", "file.py")
        assert (corpora.train, corpora.heldout, corpora.verification) == (train, heldout, "verification of staged gs://corpus")
        return 7

    for name, part in {
        "parse_flags": lambda verb, doc, schema: (
            flags if (verb, doc, schema) == ("pretrain", module.__doc__, PretrainingExperiment) else None
        ),
        "staged": "staged {}".format,
        "verify": notebook.says("verified"),
        "open_splits": lambda directory: (train, heldout) if directory == "staged gs://corpus" else None,
        "infer_settings": infer,
        "check_corpus": lambda experiment, *splits: notebook.notes.append(
            ("checked", experiment.seed, splits == (train, heldout))
        ),
        "load_teacher": load,
        "taught_by": teach,
        "fingerprint": lambda *splits: f"prints of {' '.join(str(split.vocabulary.size) for split in splits)}",
        "begin": begin,
        "Checkpoints": checkpoints,
        "Verification": lambda directory: contextlib.nullcontext(f"verification of {directory}"),
        "pretrain": train_it,
    }.items():
        monkeypatch.setattr(module, name, part)
    assert main() == 7
    assert notebook.notes == [("verified", "staged gs://corpus")] * verifies + [("checked", 3, True)]
    assert caplog.messages == ["a note"]


def test_the_verb_replays_a_step_where_it_is_asked_to(monkeypatch):
    flags = types.SimpleNamespace(replay=0, workdir="workdir", overrides=[("mesh.data", "2")])
    monkeypatch.setattr(module, "parse_flags", lambda *_, **__: flags)
    monkeypatch.setattr(replay, "replay_step", lambda *about: about)
    assert main() == ("workdir", 0, [("mesh.data", "2")], MAY_CHANGE)  # type: ignore[comparison-overlap]
