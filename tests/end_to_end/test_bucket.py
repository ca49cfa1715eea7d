"""Runs whose text, corpus, workdir and model are in a bucket: killed twice, on two machines, they end like the local
run. tests/chaos/test_chaos.py has those of two processes."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from bert_jax.storage import objects
from bert_jax.storage.fetching import cached_path, fetched
from bert_jax.tpu.programs import vocabulary_size
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, Ended, command
from tests.end_to_end.forked import Done, Signal, Surroundings
from tests.end_to_end.runs import VOCABULARY, assert_same_weights, learned, records, results
from tests.end_to_end.test_finetuning_recovery import SMALL, THAWING
from tests.storage.emulator import Emulator


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine with its own local copies in `directory`, and a bucket."""

    directory: pathlib.Path
    bucket: str
    environment: dict[str, str]

    def do(self, *commands: Sequence[str], at: Signal | None = None) -> list[Done]:
        """Runs commands one after another in a process; see `forked.run`."""
        cache = {"BERT_JAX_CACHE": str(self.directory / "cache"), "TF_CPP_MIN_LOG_LEVEL": "2"}
        return forked.run(self.directory, *commands, at=at, around=Surroundings(environment={**self.environment, **cache}))

    def killed(self, run: Sequence[str], at: Signal) -> str:
        """Kills a run, and returns its output."""
        (done,) = self.do(run, at=at)
        assert done.status == -9, done.output
        return done.output


@pytest.fixture(scope="module")
def machine(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"), f"gs://{emulator.bucket}/quickstart", emulator.environment)


@pytest.fixture(scope="module")
def another(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return dataclasses.replace(machine, directory=tmp_path_factory.mktemp("another"))


@pytest.fixture(scope="module")
def corpus(machine: Machine, experiment: pathlib.Path) -> str:
    """Returns the corpus of `experiment`, built from text in the bucket."""
    objects.write(f"{machine.bucket}/text/all.txt", (experiment.parent / "corpus.txt").read_bytes())
    flags = (f"--source=text:{machine.bucket}/text/*.txt", f"--vocab={VOCABULARY}", "--lowercase", "--eval-fraction=0.2")
    (done,) = machine.do(("corpus", *flags, "--shards=2", "--workers=1", f"--output={machine.bucket}/corpus"))
    assert done.status == 0, done.output
    return f"{machine.bucket}/corpus"


@pytest.fixture(scope="module")
def ended(machine: Machine, another: Machine, corpus: str, experiment: pathlib.Path, uninterrupted: Ended) -> pathlib.Path:
    """Returns a local copy of the workdir of a run that was killed twice and continued on another machine."""
    run = ("pretrain", f"--config={experiment}", f"--workdir={machine.bucket}/run", f"--config.corpus.directory={corpus}")
    run = (*run, "--format=svg,png")  # as in `uninterrupted`
    machine.killed(run, Signal("bert_jax.pretraining.start:initial_parameters"))
    saved = tuple(f"{machine.bucket}/run/{name}" for name in ("checkpoints/4/commit_success.txt", "metrics.jsonl"))
    assert "resuming" not in machine.killed(run, Signal(ASKED, argument=7, once_there=saved))
    (done,) = another.do(run)
    assert done.status == 0, done.output
    assert "resuming from step 4" in done.output
    assert f"model: {machine.bucket}/run/model" in done.output
    assert "redential" not in done.output
    return fetched(f"{machine.bucket}/run", "--model")


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path_factory.mktemp("copies")))


def test_a_corpus_built_in_a_bucket_equals_the_local_corpus(corpus: str, experiment: pathlib.Path):
    size = vocabulary_size({"corpus": {"directory": corpus}})  # like `aot`, which reads only the manifest
    assert not (cached_path(corpus) / "tokenizer").exists()
    copy, local = fetched(corpus, "--verify"), experiment.parent / "corpus"
    found, wanted = (json.loads((directory / "manifest.json").read_text()) for directory in (copy, local))
    assert found["shards"] == wanted["shards"]
    assert size == wanted["vocabulary"]["size"]
    for name in objects.listed(corpus):
        if name.endswith(".npy"):
            assert (copy / name).read_bytes() == (local / name).read_bytes()


def test_a_bucket_run_killed_twice_equals_the_local_run_bit_for_bit(
    ended: pathlib.Path, machine: Machine, uninterrupted: Ended
):
    assert learned(ended) == learned(uninterrupted.workdir)
    assert results(ended) == results(uninterrupted.workdir)
    assert_same_weights(ended, uninterrupted.workdir)
    assert {path.name for path in ended.iterdir() if not path.name.startswith(".")} == {
        path.name for path in uninterrupted.workdir.iterdir() if not path.name.startswith(".")
    }
    assert ".lock" not in objects.listed(f"{machine.bucket}/run")


def test_another_configuration_is_refused_with_the_name_in_the_bucket(
    ended: pathlib.Path, machine: Machine, corpus: str, experiment: pathlib.Path
):
    named = f"--workdir={machine.bucket}/run"
    flags = (f"--config={experiment}", named, f"--config.corpus.directory={corpus}", "--config.phases.0.learning_rate=1")
    (done,) = machine.do(("pretrain", *flags))
    assert done.status == 2
    assert f"error: {named} holds a run with a different configuration:\n" in done.output
    run = f"{machine.bucket}/run"
    assert f"name another --workdir and --config.init_from={run}, or --config.init_state={run}@STEP" in done.output


def test_commands_read_and_write_in_a_bucket(ended: pathlib.Path, machine: Machine, another: Machine, uninterrupted: Ended):
    bucket = machine.bucket
    objects.write(f"{bucket}/texts.txt", b"the river of paris\nold books in quiet rooms\n")
    model, local = f"--model={bucket}/run", f"--model={uninterrupted.workdir}"
    embed = ("predict", "embed", f"--input={bucket}/texts.txt")
    done = another.do(
        ("convert", f"--from={bucket}/run", f"--to={bucket}/changed", "--drop=nsp_head"),
        (*embed, f"--model={bucket}/changed", f"--output={bucket}/vectors.npy"),
        (*embed, local, f"--output={another.directory}/local.npy"),
        ("analyse", "vocabulary", model, f"--output={bucket}/looks", f"--corpus={bucket}/corpus"),
        ("corpus", f"--verify={bucket}/corpus"),
        ("analyse", "vocabulary", f"--model={bucket}/changed", f"--output={bucket}/changed"),
        (*embed, f"--model={bucket}/changed", f"--output={bucket}/changed/vocab.txt"),
    )
    *done, folder, file = done
    assert [one.status for one in done] == [0] * len(done), [one.output for one in done]
    assert f"error: --output={bucket}/changed is the directory of the model itself; choose another --output" in folder.output
    assert folder.status == file.status == 2, file.output
    assert f"{bucket}/changed (format huggingface)" in done[0].output
    assert f"{bucket}/corpus is intact" in done[-1].output
    found, wanted = np.load(fetched(f"{bucket}/vectors.npy", "--x")), np.load(another.directory / "local.npy")
    np.testing.assert_array_equal(found, wanted)
    assert "model.safetensors" in objects.listed(f"{bucket}/changed")
    assert any(name.endswith(".tsv") for name in objects.listed(f"{bucket}/looks"))


def test_an_incomplete_corpus_in_a_bucket_is_refused(machine: Machine, corpus: str, experiment: pathlib.Path, emulator: Emulator):
    name = next(name for name in objects.listed(corpus) if name.endswith("train.tokens.npy"))
    data = objects.read(f"{corpus}/{name}")
    assert data is not None
    changed = bytes([*data.data[:-1], data.data[-1] ^ 1])
    for damage, says in ((None, f"{corpus}/{name} is missing"), (changed, f"{corpus}/{name} has changed since it was written")):
        objects.remove(f"{corpus}/{name}")
        if damage:
            objects.write(f"{corpus}/{name}", damage)
        (done,) = machine.do(command(experiment, machine.directory / "refused", f"--config.corpus.directory={corpus}"))
        assert done.status == 2
        assert f"error: the corpus {corpus} is damaged ({says}" in done.output
        assert "upload it again from the machine that built it: `gcloud storage rsync" in done.output
        assert "Traceback" not in done.output
    objects.write(f"{corpus}/{name}", data.data)


@pytest.mark.parametrize(
    ("status", "workdir", "says"),
    [
        (0, "gs://nobody-has-this/run", "there is no bucket gs://nobody-has-this; check its name, or create it"),
        (403, "gs://bkt/run", "permission denied (403); the account needs the roles"),
        (401, "gs://bkt/run", "there are no valid credentials for Google Cloud; log in with `gcloud auth application"),
    ],
    ids=["no_bucket", "no_permission", "no_credentials"],
)
def test_an_unusable_workdir_in_a_bucket_is_refused(
    status: int, workdir: str, says: str, machine: Machine, experiment: pathlib.Path, emulator: Emulator
):
    if status:
        emulator.fail(status)
    (done,) = machine.do(("pretrain", f"--config={experiment}", f"--workdir={workdir}"))
    emulator.fail(200, count=0)
    assert done.status == 2
    assert says in done.output
    assert done.output.count("\n") < 4
    assert "Traceback" not in done.output


def test_a_fine_tuning_run_in_a_bucket_resumes_and_finishes(machine: Machine, another: Machine, toys: pathlib.Path):
    bucket = machine.bucket
    for path in [*(toys / "model").iterdir(), toys / "train.csv", toys / "dev.csv"]:
        objects.upload(path, f"{bucket}/toys/{path.relative_to(toys).as_posix()}")
    keys = ("init_from=toys/model", "task.own.train=toys/train.csv", "task.own.dev=toys/dev.csv")
    flags = [f"--config.{key.replace('=', f'={bucket}/')}" for key in keys]
    few = ("--config.training.epochs=1", "--config.checkpoints.every=4", "--config.sweep.seeds=[0, 1]")
    usual = ("finetune", "--config=experiments/finetune/own_text.py", *SMALL, THAWING)  # compiled by test_out_of_memory.py too
    run = (*usual, f"--workdir={bucket}/tuned", *flags, *few)
    machine.killed(run, Signal("bert_jax.training.checkpoints:Checkpoints.save", call=4))
    done, predicted = another.do(run, ("predict", "classify", f"--model={bucket}/tuned", "--json", "a text"))
    assert done.status == predicted.status == 0, done.output + predicted.output
    copy = fetched(f"{bucket}/tuned", "--model")
    summary = json.loads((copy / "results.json").read_text())
    assert len(summary["runs"]) == 2
    assert (copy / "model" / "model.safetensors").is_file()
    assert all(records(directory) for directory in (copy / "runs").iterdir())
    assert not [name for name in objects.listed(f"{bucket}/tuned") if "/checkpoints/" in name]
    shutil.rmtree(copy)
