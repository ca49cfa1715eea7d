"""Every model that a fine-tuning run cannot start from leads to a one-sentence error with its place and its remedy."""

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
from tests.end_to_end.test_finetuning_recovery import command
from tests.end_to_end.toy_tasks import write_model

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, toys: pathlib.Path, tmp_path: pathlib.Path) -> Refused:
    """Returns refused(*flags), which adds the flags to those of a valid run and returns the error of the command."""

    def ask(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", command(toys, tmp_path / "run", *flags))
        with pytest.raises(UserError) as error:
            finetune.main()
        return str(error.value)

    return ask


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


def test_an_unusable_schedule_or_log_sink_is_refused_before_the_run_starts(
    refused: Refused, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.py"
    file.write_text("def rows(step, steps): return [1.0]\ndef power(step, steps, decay_power): return 1.0\n")
    assert f"config.log.sinks={file}:Csv: {file} has no 'Csv'; known: power" in refused(f"--config.log.sinks={file}:Csv")
    assert capsys.readouterr().err == ""
    says = {
        "rows": "mine.py:rows must return a number for a step, but returns [1.0]",
        "power": "mine.py:power needs decay_power, which the experiment does not set; give it a default, or use one of",
    }
    for name, reason in says.items():
        assert reason in refused(f"--config.training.schedule={file}:{name}")
    assert "an epoch is" not in capsys.readouterr().err, "this line follows the compilation of the first state"
