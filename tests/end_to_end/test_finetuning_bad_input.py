"""Every mistake a person can make on the way to a fine-tuning run is one sentence that says where and what to do, and leaves what
was there."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping

import pytest

from bert_jax import finetune
from bert_jax.model.settings import HeadConfig
from bert_jax.terminal import UserError
from tests.end_to_end import forked
from tests.end_to_end.runs import contents
from tests.end_to_end.test_finetuning_recovery import command
from tests.end_to_end.toy_tasks import WRITERS, write_model

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, toys: pathlib.Path, tmp_path: pathlib.Path) -> Refused:
    """refused(*flags, workdir=) -> the sentence with which the verb refuses the flags, added to those of a run that would do."""

    def ask(*flags: str, workdir: pathlib.Path = tmp_path / "run") -> str:
        monkeypatch.setattr(sys, "argv", command(toys, workdir, *flags))
        with pytest.raises(UserError) as error:
            finetune.main()
        return str(error.value)

    return ask


# -------------------------------------------------------------------------------------------------------------- one's own data
GOOD = "text,label\nit was fine,good\nit was bad,poor\n"
OWN_FILES: Mapping[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "no such column": (
        {"train.csv": "text,lable\nit was fine,good\n"},
        (),
        "train.csv, line 1: no column 'label'; did you mean 'lable'?",
    ),
    "a label that training has not": (
        {"train.csv": GOOD, "dev.csv": f"{GOOD}it was odd,strange\n"},
        (),
        "dev.csv, line 4: the label 'strange' is not known; known: good, poor; mend it, or add it to label_names",
    ),
    "a label outside those named": (
        {"train.csv": GOOD},
        ("--config.task.own.label_names=['good', 'bad']",),
        "train.csv, line 3: the label 'poor' is not known; known: good, bad",
    ),
    "one label only": (
        {"train.csv": "text,label\nit was fine,good\nso it was,good\n"},
        ("--config.task.own.dev=",),
        "train.csv has the label 'good'; give examples of two or more",
    ),
    "quotes that do not match": (
        {"train.csv": f'{GOOD}"it was ""fine,good\nit was bad,poor\n'},
        (),
        "train.csv, line 4: the quotes of this row do not match",
    ),
    "a row that is too short": (
        {"train.csv": f"{GOOD}it was fine\n"},
        (),
        "train.csv, line 4: 1 column, not the 2 of text, label",
    ),
    "a text that is empty": ({"train.csv": f"{GOOD}\n ,good\n"}, (), 'train.csv, line 5: text is " ", not a text; mend the row'),
    "a label that is empty": ({"train.csv": f"{GOOD}it was,\n"}, (), 'train.csv, line 4: label is "", not a text; mend the row'),
    "no rows": ({"train.csv": "text,label\n"}, (), "train.csv has no rows; give a file with one example a row"),
    "nothing at all": ({"train.csv": ""}, (), "train.csv is empty; fetch it again, or give another file"),
    "no such file": ({}, ("--config.task.own.train=nowhere.csv",), "cannot be read: No such file or directory; give"),
    "a number that is none": (
        {"train.csv": "text,label\nit was fine,4.5\nit was bad,low\n"},
        ("--config.task.own.problem=regression",),
        "train.csv, line 3: label is 'low', not a number",
    ),
    "a suffix that says nothing": (
        {"train.docx": GOOD},
        (),
        "train.docx ends in '.docx', which tells no format; name it with one of",
    ),
    "JSON that is none": (
        {"train.jsonl": '{"text": "it was fine", "label": "good"}\n{"text": \n'},
        (),
        "train.jsonl, line 2: not JSON",
    ),
    "fewer tags than words": (
        {"train.jsonl": '{"words": ["it", "was"], "labels": ["O"]}\n'},
        ("--config.task.name=own/token",),
        "train.jsonl, line 1: 2 words but 1 labels; each word needs one label",
    ),
    "a choice that is not there": (
        {"train.jsonl": '{"prompt": "it", "choices": ["was", "is"], "label": 2}\n'},
        ("--config.task.name=own/choice",),
        "train.jsonl, line 1: label is '2', not one of 0, 1 (first_choice=0)",
    ),
    "an answer without a text": (
        {"train.jsonl": '{"question": "who", "context": "it was ada", "answers": [{"answer_start": 7}]}\n'},
        ("--config.task.name=own/span",),
        "train.jsonl, line 1: answers holds null at 7, not a text and where it begins",
    ),
    "no dev set": (
        {"train.csv": GOOD},
        ("--config.task.own.dev=",),
        "own/sequence has no examples of its dev split; give them",
    ),
}


@pytest.mark.parametrize("case", OWN_FILES)
def test_a_fault_of_ones_own_data_is_named_by_file_and_line_with_the_remedy(refused: Refused, tmp_path: pathlib.Path, case: str):
    files, flags, says = OWN_FILES[case]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = [f"--config.task.own.{pathlib.Path(name).stem}={tmp_path / name}" for name in files]
    assert says in refused(*given, *flags)
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------------------------- official files
@pytest.mark.parametrize("name", ["glue/sst2", "sick/relatedness", "swag", "codah", "conll2003", "pos", "gap", "squad/v1.1"])
def test_a_directory_that_is_not_there_is_named(refused: Refused, name: str):
    assert "nowhere" in (says := refused(f"--config.task.name={name}", "--config.task.data_dir=nowhere"))
    assert "; give " in says


def edited(directory: pathlib.Path, task: str, file: str, edit: Callable[[str], str]) -> tuple[str, ...]:
    """The flags for a task whose official files are in order but for one."""
    WRITERS[task](directory)
    path = directory / file
    path.write_text(edit(path.read_text()))
    return f"--config.task.name={task}", f"--config.task.data_dir={directory}"


def without_last_column(text: str) -> str:
    return "".join(f"{line.rpartition(',')[0]}\n" for line in text.splitlines())


OFFICIAL_FILES: Mapping[str, tuple[str, str, Callable[[str], str], str]] = {
    "a label that the task has not": (
        "glue/sst2",
        "SST-2/train.tsv",
        lambda text: f"{text}it was odd\t2\n",
        "train.tsv, line 98: label is '2', not one of 0, 1",
    ),
    "no such column": (
        "glue/sst2",
        "SST-2/dev.tsv",
        lambda text: text.replace("sentence\t", "sentences\t", 1),
        "dev.tsv, line 1: no column 'sentence'; did you mean 'sentences'?",
    ),
    "an offset outside the text": (
        "gap",
        "gap-development.tsv",
        lambda text: text.replace("\tshe\t", "\tshe\t9", 1),
        "stands at Pronoun-offset=9",
    ),
    "a dev set without labels": (
        "swag",
        "val.csv",
        without_last_column,
        "no example of swag, dev, has a label to score it by; give the file with labels",
    ),
    "a training set without labels": (
        "swag",
        "train.csv",
        without_last_column,
        "no example of swag to train on has a label; give the file with labels",
    ),
    "a tag that is none": (
        "conll2003",
        "train.txt",
        lambda text: text.replace("B-LOC", "PLACE", 1),
        "has the label 'PLACE', no tag of an entity such as O or B-PER; mend the file",
    ),
    "a line cut short": (
        "conll2003",
        "train.txt",
        lambda text: text.replace(" B-NP O", "", 1),
        "columns where other lines have 4; mend the line",
    ),
    "half a file": ("squad/v1.1", "train-v1.1.json", lambda text: text[:-9], "train-v1.1.json is not JSON"),
    "another version": (
        "squad/v2.0",
        "train-v2.0.json",
        lambda text: text.replace('"is_impossible": true', '"is_impossible": "yes"', 1),
        'data[0].paragraphs[0].qas[0].is_impossible: "yes" is not true or false; give a file of SQuAD',
    ),
}


@pytest.mark.parametrize("case", OFFICIAL_FILES)
def test_a_fault_of_an_official_file_is_named_with_the_remedy(refused: Refused, tmp_path: pathlib.Path, case: str):
    task, file, edit, says = OFFICIAL_FILES[case]
    assert says in refused(*edited(tmp_path / "data", task, file, edit))


# --------------------------------------------------------------------------------------------------------- settings and models
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--config.task.length=65",), "config.task.length=65 is longer than the position table of "),
        (("--config.task.name=glue/sst",), "config.task.name='glue/sst' is no task; did you mean 'glue/sst2'?"),
        (("--config.training.learning_rat=1",), "did you mean 'training.learning_rate'"),
        (("--config.init_from=",), "config.init_from is empty; name the model to fine-tune"),
        (("--config.init_from=no_such_model",), "there is no no_such_model (looked for in "),
        (("--config.keep_head=true",), "config.keep_head goes on with the head of "),
        (("--config.head.lstm=8",), "lstm"),
        (
            ("--config.training.class_weights=[1, 2, 3]",),
            "class_weights has 3 numbers, but own/sequence has 2 labels (good, poor)",
        ),
        (
            ("--config.training.freeze_encoder=true", "--config.training.gradual_unfreezing=true"),
            "contradict each other; choose one",
        ),
        (("--config.sweep.seeds=[1, 1]",), "config.sweep asks twice for the run"),
        (("--config.distillation.teacher=no_such_model",), "there is no no_such_model (looked for in "),
    ],
)
def test_a_wrong_setting_is_refused_with_value_and_remedy(refused: Refused, flags: tuple[str, ...], says: str):
    assert says in refused(*flags)


def test_a_directory_that_is_no_model_says_what_it_lacks(refused: Refused, toys: pathlib.Path, tmp_path: pathlib.Path):
    shutil.copytree(toys / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert "is not a model directory: model.safetensors missing" in refused(f"--config.init_from={tmp_path / 'model'}")


def test_a_model_without_pooler_needs_to_be_told_to_begin_one(refused: Refused, tmp_path: pathlib.Path):
    write_model(tmp_path / "model", head=HeadConfig(kind="token", labels=("O", "B-PER")))
    says = refused(f"--config.init_from={tmp_path / 'model'}")
    assert says.endswith(
        "has no pooler, which a sequence_head reads; to begin it with random weights, say --config.init_new=pooler"
    )


def test_a_head_or_a_teacher_with_other_labels_is_refused_with_both(refused: Refused, tmp_path: pathlib.Path):
    model = tmp_path / "model"
    write_model(model, head=HeadConfig(kind="sequence", labels=("no", "yes", "perhaps")))
    says = refused(f"--config.init_from={model}", "--config.keep_head=true")
    assert "a sequence_head with the labels no, yes, perhaps, and the task needs a sequence_head with good, poor; leave" in says
    assert "does not answer this task; fine-tune it on the same task first" in refused(f"--config.distillation.teacher={model}")


# --------------------------------------------------------------------------------------------------------- a run that is there
@pytest.fixture(scope="module")
def finished(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of a short run; nothing below may change it."""
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
    assert "training.label_smoothing  there 0.0, asked for 0.1" in says
    assert "seed                      there 0, asked for 4" in says
    assert "name another --workdir" in says


def test_changed_data_under_the_same_name_is_refused(refused: Refused, toys: pathlib.Path, untouched: pathlib.Path, tmp_path):
    (tmp_path / "train.csv").write_text((toys / "train.csv").read_text().replace("poor", "good", 1))
    says = refused(ONE, f"--config.task.own.train={tmp_path / 'train.csv'}", workdir=untouched)
    assert "fingerprints.examples  there " in says
    assert "fingerprints.init_from" not in says


def test_another_model_under_the_same_name_is_refused(refused: Refused, untouched: pathlib.Path, tmp_path: pathlib.Path):
    write_model(tmp_path / "model", initializer_range=0.5, num_layers=1)
    says = refused(ONE, f"--config.init_from={tmp_path / 'model'}", workdir=untouched)
    assert "fingerprints.init_from  there " in says


def test_data_that_moved_and_was_saved_by_another_program_is_still_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys, toys: pathlib.Path, finished: pathlib.Path, tmp_path: pathlib.Path
):
    """A byte order mark, other line ends, quotes around all cells, and blank rows say nothing."""
    shutil.copytree(toys / "model", tmp_path / "model")
    for name in ("train.csv", "dev.csv"):
        rows = [line.split(",") for line in (toys / name).read_text().splitlines()]
        text = "\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\r\n".encode())
    monkeypatch.setattr(sys, "argv", command(tmp_path, finished, ONE))
    assert finetune.main() == 0
    assert "this run is done: see " in capsys.readouterr().err


def test_a_diverged_run_ends_with_its_batch_saved_and_no_traceback(toys: pathlib.Path, tmp_path: pathlib.Path):
    flags = ("--config.training.learning_rate=1e30", "--config.abort_after_skipped=3", "--config.checkpoints.every=1")
    (done,) = forked.run(toys, command(toys, tmp_path / "run", *flags))
    assert done.status == 2
    assert "error: the loss or the gradient was not finite in 3 steps in a row" in done.output
    assert "lower the learning rate" in done.output
    assert "Traceback" not in done.output
    assert len(list((tmp_path / "run").glob("nonfinite-step-*.npz"))) == 1
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_refusal_is_one_line_and_status_two(toys: pathlib.Path, untouched: pathlib.Path):
    (done,) = forked.run(toys, command(toys, untouched, "--config.task.own.dev=nowhere.csv"))
    assert done.status == 2
    assert done.output.startswith("error: nowhere.csv (looked for in ")
    assert done.output.count("\n") == 1
