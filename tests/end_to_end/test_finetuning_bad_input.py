"""Every mistake that a user can make on the way to a fine-tuning run leads to a one-sentence error with its place and its remedy,
and leaves existing files unchanged."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Callable

import pytest

from bert_jax import finetune
from bert_jax.errors import UserError
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from tests.end_to_end import forked
from tests.end_to_end.runs import contents
from tests.end_to_end.test_finetuning_recovery import command
from tests.end_to_end.toy_tasks import write_model

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, toys: pathlib.Path, tmp_path: pathlib.Path) -> Refused:
    """Returns refused(*flags, workdir=), which adds the flags to those of a valid run and returns the error of the command."""

    def ask(*flags: str, workdir: pathlib.Path = tmp_path / "run") -> str:
        monkeypatch.setattr(sys, "argv", command(toys, workdir, *flags))
        with pytest.raises(UserError) as error:
            finetune.main()
        return str(error.value)

    return ask


# ------------------------------------------------------------------------------------------------------------------ models
def test_a_directory_without_a_model_is_refused_with_what_it_lacks(refused: Refused, toys: pathlib.Path, tmp_path: pathlib.Path):
    shutil.copytree(toys / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert "is not a model directory, because it has no model.safetensors" in refused(f"--config.init_from={tmp_path / 'model'}")


def test_a_model_without_pooler_needs_a_flag_to_start_a_new_one(refused: Refused, tmp_path: pathlib.Path):
    write_model(tmp_path / "model", head=TokenHead(labels=("O", "B-PER")))
    says = refused(f"--config.init_from={tmp_path / 'model'}")
    assert says.endswith(
        "has no pooler, which a sequence_head reads; to start it from random weights, give --config.init_new=pooler"
    )


def test_a_head_or_teacher_with_other_labels_is_refused_with_both_label_lists(refused: Refused, tmp_path: pathlib.Path):
    model = tmp_path / "model"
    write_model(model, head=SequenceHead(labels=("no", "yes", "perhaps")))
    says = refused(f"--config.init_from={model}", "--config.keep_head=true")
    assert "the labels no, yes, perhaps, but the task needs a sequence_head with the labels good, poor; leave" in says
    assert "has no head for this task; fine-tune it on the same task first" in refused(f"--config.distillation.teacher={model}")


# ----------------------------------------------------------------------------------------------------------- an existing run
@pytest.fixture(scope="module")
def finished(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the workdir of a short run; no test below may change it."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    (done,) = forked.run(toys, command(toys, workdir, "--config.training.epochs=1"))
    assert done.status == 0, done.output
    return workdir


@pytest.fixture
def untouched(finished: pathlib.Path):
    before = contents(finished)
    yield finished
    assert contents(finished) == before


ONE = "--config.training.epochs=1"


def test_another_configuration_is_refused_with_both_values(refused: Refused, untouched: pathlib.Path):
    says = refused(ONE, "--config.training.label_smoothing=0.1", "--config.seed=4", workdir=untouched)
    assert "training.label_smoothing  stored 0.0, given 0.1" in says
    assert "seed                      stored 0, given 4" in says
    assert "name another --workdir" in says


def test_changed_data_under_the_same_name_is_refused(refused: Refused, toys: pathlib.Path, untouched: pathlib.Path, tmp_path):
    (tmp_path / "train.csv").write_text((toys / "train.csv").read_text().replace("poor", "good", 1))
    says = refused(ONE, f"--config.task.own.train={tmp_path / 'train.csv'}", workdir=untouched)
    assert "fingerprints.examples  stored " in says
    assert "fingerprints.init_from" not in says


def test_another_model_under_the_same_name_is_refused(refused: Refused, untouched: pathlib.Path, tmp_path: pathlib.Path):
    write_model(tmp_path / "model", initializer_range=0.5, num_layers=1)
    says = refused(ONE, f"--config.init_from={tmp_path / 'model'}", workdir=untouched)
    assert "fingerprints.init_from  stored " in says


def test_data_that_was_moved_and_saved_again_counts_as_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys, toys: pathlib.Path, finished: pathlib.Path, tmp_path: pathlib.Path
):
    """A byte order mark, other line ends, quotes around all cells, and blank rows do not matter."""
    shutil.copytree(toys / "model", tmp_path / "model")
    for name in ("train.csv", "dev.csv"):
        rows = [line.split(",") for line in (toys / name).read_text().splitlines()]
        text = "\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\r\n".encode())
    monkeypatch.setattr(sys, "argv", command(tmp_path, finished, ONE))
    assert finetune.main() == 0
    assert "this run is done; see " in capsys.readouterr().err


def test_a_diverged_run_saves_its_batch_and_ends_without_traceback(toys: pathlib.Path, tmp_path: pathlib.Path):
    flags = ("--config.training.learning_rate=1e30", "--config.abort_after_skipped=3", "--config.checkpoints.every=1")
    (done,) = forked.run(toys, command(toys, tmp_path / "run", *flags))
    assert done.status == 2
    assert "error: the loss or the gradient was not finite in 3 steps in a row" in done.output
    assert "lower the learning rate" in done.output
    assert "Traceback" not in done.output
    assert len(list((tmp_path / "run").glob("nonfinite-step-*.npz"))) == 1
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_refusal_is_one_line_with_exit_status_2(toys: pathlib.Path, untouched: pathlib.Path):
    (done,) = forked.run(toys, command(toys, untouched, "--config.task.own.dev=nowhere.csv"))
    assert done.status == 2
    assert done.output.startswith("error: nowhere.csv (looked for in ")
    assert done.output.count("\n") == 1
