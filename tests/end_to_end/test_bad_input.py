"""Every mistake that a user can make on the way to a run leads to a one-sentence error, and leaves existing files unchanged."""

from __future__ import annotations

import pathlib
import shutil
import sys

import pytest

from bert_jax import pretrain
from bert_jax.errors import UserError
from tests.end_to_end import forked
from tests.end_to_end.conftest import Ended, command
from tests.end_to_end.forked import Done
from tests.end_to_end.runs import VOCABULARY, build_corpus, checkpoints, learned, write_experiment, write_text


def refused(monkeypatch: pytest.MonkeyPatch, experiment: pathlib.Path, workdir: pathlib.Path, *flags: str) -> str:
    """Returns the error with which the command refuses its input."""
    monkeypatch.setattr(sys, "argv", ["pretrain", f"--config={experiment}", f"--workdir={workdir}", *flags])
    with pytest.raises(UserError) as error:
        pretrain.main()
    return str(error.value)


def test_a_workdir_with_other_files_is_refused_and_not_changed(monkeypatch, experiment, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "holds files that are not from a run (thesis.txt)" in refused(monkeypatch, experiment, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / "config.json").exists()


def test_a_workdir_under_a_file_is_refused(monkeypatch, experiment, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in refused(monkeypatch, experiment, tmp_path / "file" / "run")


def test_a_workdir_of_another_configuration_names_the_keys_that_differ(monkeypatch, experiment, uninterrupted: Ended):
    before = learned(uninterrupted.workdir)
    sentence = refused(monkeypatch, experiment, uninterrupted.workdir, "--config.optimizer.b2=0.5", "--config.seed=4")
    assert "optimizer.b2" in sentence
    assert "stored 0.999, given 0.5" in sentence
    assert "seed" in sentence
    assert learned(uninterrupted.workdir) == before


def test_a_corpus_of_one_document_is_refused_with_the_remedy(monkeypatch, tmp_path):
    def build_and_train() -> str:
        corpus = build_corpus(tmp_path / "corpus", documents=1)
        return refused(monkeypatch, write_experiment(tmp_path / "experiment.py", corpus), tmp_path / "run")

    try:
        sentence = build_and_train()
    except AssertionError as error:  # the corpus command already refuses if the only document is held out
        sentence = str(error)
    assert "1 document" in sentence or "no document" in sentence, sentence
    assert "Traceback" not in sentence


def test_a_corrupted_shard_is_named_with_the_remedy(monkeypatch, experiment, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(experiment.parent / "corpus", corpus)
    victim = next(corpus.glob("shard-*/train.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    sentence = refused(monkeypatch, write_experiment(tmp_path / "experiment.py", corpus), tmp_path / "run")
    assert str(victim) in sentence
    assert "rerun the command that built the corpus" in sentence


def test_a_flipped_byte_ends_the_run_before_a_save_or_with_verify_before_the_first_step(
    monkeypatch, brief, briefs: dict[str, Done], tmp_path
):
    end, corpus, workdir = briefs["flipped"], brief.with_name("damaged"), brief.with_name("flipped")
    victim = next(corpus.glob("shard-*/train.tokens.npy"))
    assert end.status == 2
    assert f"error: corrupted corpus: {victim} has changed since it was written" in end.output
    assert "Traceback" not in end.output
    assert checkpoints(workdir) == []
    assert not (workdir / "model").exists()
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    for key in ("corpus.directory", "phases.0.corpus"):
        sentence = refused(monkeypatch, brief, tmp_path / "run", f"--config.{key}={corpus}", "--verify")
        assert f"{victim} has changed since it was written" in sentence
    assert not (tmp_path / "run").exists()


def test_a_run_whose_steps_are_not_finite_fails_with_a_saved_batch_and_exports_nothing(brief, briefs: dict[str, Done]):
    diverged, workdir = briefs["not_finite"], brief.with_name("not_finite")
    assert diverged.status == 2
    assert "error: the loss, the gradient or the learning rate was not finite in 3 steps in a row" in diverged.output
    assert "Traceback" not in diverged.output
    assert len(list(workdir.glob("nonfinite-step-*.npz"))) == 1
    assert not (workdir / "results.json").exists()
    assert not (workdir / "model").exists()


def test_a_refusal_is_one_line_with_exit_status_2(experiment, tmp_path):
    (end,) = forked.run(experiment.parent, command(experiment, tmp_path / "run", "--config.corpus.directory=nowhere"))
    assert end.status == 2
    assert end.output.startswith("error: corpus nowhere (looked for in ")
    assert "Traceback" not in end.output


def test_a_corpus_without_held_out_documents_is_refused_before_the_workdir_is_made(monkeypatch, experiment, tmp_path):
    """By default one document in a hundred is held out; of a few dozen documents, perhaps none."""
    text = tmp_path / "few.txt"
    write_text(text, documents=5)
    flags = [f"--source=text:{text}", f"--vocab={VOCABULARY}", "--lowercase", f"--output={tmp_path / 'few'}"]
    (built,) = forked.run(experiment.parent, ["corpus", *flags, "--eval-fraction=0.000001"])
    assert built.status == 0, built.output
    says = refused(monkeypatch, experiment, tmp_path / "run", f"--config.corpus.directory={tmp_path / 'few'}")
    assert "eval split of the corpus is empty" in says
    assert "larger --eval-fraction" in says
    assert not (tmp_path / "run").exists()
