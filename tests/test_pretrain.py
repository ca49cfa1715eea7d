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
from bert_jax.pretrain import MAY_CHANGE, first_state, main, pretrain, replay_step
from bert_jax.runtime.goodput import Ledger
from bert_jax.training.spikes import LossSpike
from tests.pretraining.notebook import EXPERIMENT, Notebook, Notes, state_of


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


# ------------------------------------------------------------------------------------------------------------------- a whole run


class Whole:
    """A run of two phases whose parts are notes; `ends` are what the calls of `train_phase` return, or raise: (step, stopped)."""

    def __init__(self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, *ends: Any):
        self.notebook, self.ends, self.workdir = notebook, list(ends), tmp_path
        self.unsaved: UserError | None = None
        self.scores = {"mlm_loss": 1.0}
        self.now = 0.0
        self.run: Any = types.SimpleNamespace(
            workdir=tmp_path,
            is_first=True,
            ledger=Ledger(lambda: self.now),
            durable=lambda path: path,
            mirror="mirror",
            require_in_place="in place",
            watchdog=types.SimpleNamespace(alive=notebook.says("alive")),
            profile=types.SimpleNamespace(require=notebook.says("profile of at most")),
            preemption=types.SimpleNamespace(exit_status=75),
        )
        self.run.ledger.totals = lambda: {"goodput": 1.0, "starts": 1, "seconds": {"training": 60.0}}
        self.train = types.SimpleNamespace(tokenizer="tokenizer")
        self.checkpoints: Any = types.SimpleNamespace(failures=2)
        waits = types.SimpleNamespace(wait=self.verify)
        self.corpora: Any = types.SimpleNamespace(train=self.train, verification=waits)
        self.program = program = types.SimpleNamespace(experiment=EXPERIMENT)

        def make(experiment: Any, mesh: Any, teacher: Any) -> Any:
            assert (experiment, mesh.size, teacher) == (EXPERIMENT, 8, "teacher")
            self.mesh = mesh
            return program

        @contextlib.contextmanager
        def fits(demand: Any) -> Iterator[None]:
            notebook.notes.append(("demands", demand()[1]))
            yield

        for name, part in {
            "check_batch_sizes": lambda experiment, mesh: notebook.notes.append(
                ("batch sizes", experiment is EXPERIMENT, mesh.size)
            ),
            "pretraining_program": make,
            "pretraining_demand": lambda *about: about if (about[0], about[2]) == (EXPERIMENT, self.mesh) else None,
            "fits_in_memory": fits,
            "PretrainingLog": self.log,
            "Saver": self.saver,
            "Phase": self.phase,
            "train_phase": self.train_phase,
            "passed_over": lambda state: 10 * state.step,
            "returns": lambda state: 1,
            "go_back": self.go_back,
            "require_learned": notebook.says("learned"),
            "on_host": lambda params, mesh: f"{params} on the host" if mesh is self.mesh else None,
            "results": self.results,
            "time": types.SimpleNamespace(monotonic=iter([100.0, 107.0]).__next__),
            "trained_model": lambda *about: about,
            "training_of": lambda experiment, corpora, scores: ("told", scores),
            "export_trained": notebook.says("exported"),
        }.items():
            monkeypatch.setattr(module, name, part)

    def verify(self, alive: Callable[[], None]) -> None:
        self.now += 5
        alive()

    def log(self, program: Any, run: Any, corpora: Any, step: int, file: str) -> Any:
        assert (program.experiment, run, corpora, file) == (EXPERIMENT, self.run, self.corpora, "file.py")
        self.notebook.notes.append(("log from", step))
        found: Any = contextlib.ExitStack()
        found.scores, found.metrics, found.went_back = self.scores, "metrics", self.notebook.says("went back")
        found.draw = self.notebook.says("drawn")
        self.the_log = found
        return found

    def results(self, program: Any, state: Any, scores: Any, corpora: Any, seconds: float) -> dict[str, Any]:
        assert (program, corpora) == (self.program, self.corpora)
        return {"steps": state.step, "heldout": scores, "seconds": seconds}

    def saver(self, checkpoints: Any, metrics: Any, watchdog: Any, before: Any, mirror: Any, in_place: Any) -> Any:
        assert (checkpoints, metrics, watchdog) == (self.checkpoints, "metrics", self.run.watchdog)
        assert (mirror, in_place) == ("mirror", "in place")
        self.before = before
        return types.SimpleNamespace(finish=self.notebook.says("finished", lambda step: self.unsaved))

    def phase(self, program: Any, index: int, corpora: Any, run: Any, passed_over: int = 0) -> Any:
        assert (program.experiment, corpora, run) == (EXPERIMENT, self.corpora, self.run)
        return types.SimpleNamespace(
            passed_over=passed_over,
            index=index,
            compile=lambda step, must_be_saved: ("compiled", step, must_be_saved),
            evaluate=lambda params: {"scores of": params, "of phase": index},
        )

    def train_phase(self, phase: Any, step: Any, state: Any, run: Any, log: Any, saver: Any) -> Any:
        assert (run, log) == (self.run, self.the_log)
        self.notebook.notes.append(("phase", phase.index, step, state.step, phase.passed_over))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return state_of(end[0]), end[1]

    def go_back(self, program: Any, checkpoints: Any, corpus: Any, spike: LossSpike, before: tuple[int, int]) -> Any:
        assert (program.experiment, checkpoints, corpus) == (EXPERIMENT, self.checkpoints, self.train)
        self.notebook.notes.append(("spike", spike.step, before))
        return state_of(2)

    def __call__(self, monkeypatch: pytest.MonkeyPatch, begin: int) -> int:
        def first(program: Any, checkpoints: Any, corpus: Any, ledger: Any) -> Any:
            assert (checkpoints, corpus, ledger) == (self.checkpoints, self.train, self.run.ledger)
            return state_of(begin)

        monkeypatch.setattr(module, "first_state", first)
        return pretrain(EXPERIMENT, self.run, self.corpora, self.checkpoints, "teacher", "file.py")  # type: ignore[arg-type]


BEGIN: Notes = [("profile of at most", 9), ("batch sizes", True, 8)]


def test_a_run_trains_phase_by_phase_and_leaves_its_results_and_its_model(notebook, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole = Whole(notebook, monkeypatch, tmp_path, (6, False), (9, False))
    assert whole(monkeypatch, 0) == 0
    *notes, (exported, workdir, model, about, found, told) = notebook.notes
    assert notes == [
        *BEGIN,
        ("log from", 0),
        *(("demands", 0), ("phase", 0, ("compiled", 0, True), 0, 0)),
        *(("demands", 1), ("phase", 1, ("compiled", 6, False), 6, 60)),
        *(("finished", 9), ("learned", 9, 0)),
    ]
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


def test_a_run_that_goes_on_compiles_the_step_of_its_phase_and_needs_it_saved_once(notebook, monkeypatch, tmp_path):
    whole = Whole(notebook, monkeypatch, tmp_path, LossSpike(4, 3), (6, False), LossSpike(8, 2), (6, False), (9, False))
    assert whole(monkeypatch, 4) == 0
    assert [note for note in notebook.notes if note[0] in ("phase", "spike", "went back")] == [
        ("phase", 0, ("compiled", 4, True), 4, 40),
        *(("spike", 4, (40, 1)), ("went back", 2)),
        ("phase", 0, ("compiled", 2, False), 2, 20),
        ("phase", 1, ("compiled", 6, False), 6, 60),
        *(("spike", 8, (60, 2)), ("went back", 2)),
        ("phase", 0, ("compiled", 2, False), 2, 20),
        ("phase", 1, ("compiled", 6, False), 6, 60),
    ]


@pytest.mark.parametrize("unsaved", [False, True])
def test_a_run_that_is_asked_to_stop_ends_with_the_status_of_the_signal_unless_its_state_is_lost(
    unsaved, notebook, monkeypatch, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    whole = Whole(notebook, monkeypatch, tmp_path, (5, True))
    if unsaved:
        whole.unsaved = UserError("a full disk")
        with pytest.raises(UserError, match="a full disk"):
            whole(monkeypatch, 0)
    else:
        assert whole(monkeypatch, 0) == 75
        assert caplog.messages[-1] == "stopped at step 5 of 9, saved; the same command continues"
    assert notebook.notes[-1] == ("finished", 5)


def test_a_run_that_is_asked_to_stop_after_its_last_step_ends_as_any_other_and_a_lost_last_state_is_an_error(
    notebook, monkeypatch, tmp_path
):
    whole = Whole(notebook, monkeypatch, tmp_path, (6, False), (9, True))
    whole.unsaved = UserError("a full disk")
    with pytest.raises(UserError, match="a full disk"):
        whole(monkeypatch, 0)
    assert notebook.notes[-1][0] == "exported"


def test_a_run_whose_steps_are_done_is_not_begun_again_where_its_results_are_there(notebook, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "results.json").touch()
    assert Whole(notebook, monkeypatch, tmp_path)(monkeypatch, 9) == 0
    assert notebook.notes == BEGIN
    assert caplog.messages == [f"all 9 steps are done: see {tmp_path / 'results.json'}"]
    whole = Whole(notebook, monkeypatch, tmp_path, (9, False))  # one that is not done has those of an earlier start at most
    assert whole(monkeypatch, 6) == 0
    assert notebook.notes[-1][0] == "exported"


def test_a_run_that_was_killed_before_its_results_is_evaluated_and_drawn_without_a_step(notebook, monkeypatch, tmp_path):
    whole = Whole(notebook, monkeypatch, tmp_path)
    whole.scores = {}
    assert whole(monkeypatch, 9) == 0
    *_, finished, learned, drawn, (exported, *_, found, _) = notebook.notes
    assert (finished, learned, drawn, exported) == (("finished", 9), ("learned", 9, 0), ("drawn",), "exported")
    assert found["heldout"] == {"scores of": "weights 9", "of phase": 1}


def test_a_process_that_is_not_the_first_exports_nothing(notebook, monkeypatch, tmp_path):
    whole = Whole(notebook, monkeypatch, tmp_path, (6, False), (9, False))
    whole.run.is_first = False
    assert whole(monkeypatch, 0) == 0
    assert notebook.notes[-1] == ("learned", 9, 0)


@pytest.mark.parametrize("there", [None, "restored"])
def test_the_first_state_is_that_of_the_newest_checkpoint_else_the_beginning(there, notebook, monkeypatch):
    program: Any = types.SimpleNamespace(experiment=EXPERIMENT, mesh="mesh", state="layout")
    checkpoints: Any = types.SimpleNamespace(restore_latest=notebook.says("restored", there))

    @contextlib.contextmanager
    def fits(demand: Any) -> Iterator[None]:
        notebook.notes.append(demand())
        yield

    monkeypatch.setattr(module, "fits_in_memory", fits)
    monkeypatch.setattr(module, "state_demand", lambda *about: about)
    monkeypatch.setattr(module, "former_layout", lambda *about: about)
    monkeypatch.setattr(module, "first_parameters", lambda of, corpus: (of is program, corpus))
    found = first_state(program, checkpoints, "corpus", notebook)  # type: ignore[arg-type]
    assert found == (there or (True, "corpus"))
    about = (EXPERIMENT, "mesh")
    assert notebook.notes == [about, "restoring", ("restored", "layout", about), "end of restoring"]


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
    monkeypatch.setattr(module, "replay_step", lambda *about: about)
    assert main() == ("workdir", 0, [("mesh.data", "2")])  # type: ignore[comparison-overlap]


def test_a_replayed_step_is_printed_and_nothing_else_is_said(notebook, monkeypatch, capsys):
    corpus = types.SimpleNamespace(tokenizer="tokenizer")
    for name in ("quiet_libraries", "start_logging", "enable_compilation_cache"):
        monkeypatch.setattr(module, name, notebook.says(name))
    monkeypatch.setattr(module, "experiment_of", lambda *about: (about, corpus))
    monkeypatch.setattr(module, "replay", lambda *about: about)
    monkeypatch.setattr(module, "report", lambda *about: iter([f"{about}", "the end"]))
    assert replay_step("workdir", 5, [("mesh.data", "2")]) == 0  # type: ignore[arg-type]
    experiment = ("workdir", [("mesh.data", "2")], MAY_CHANGE)
    assert capsys.readouterr().out == f"{((experiment, 'workdir', corpus, 5), 'workdir', 'tokenizer')}\nthe end\n"
    assert notebook.notes == [("quiet_libraries",), ("start_logging", 0), ("enable_compilation_cache",)]
