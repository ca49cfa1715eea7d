from __future__ import annotations

import pathlib
import types

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface import python_files
from bert_jax.tasks import boolq_task, registry
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.registry import EXPERIMENTS, NAMES, load_task, task_head_class

DOCUMENTED = {
    *(f"glue/{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")),
    *("sick/entailment", "sick/relatedness", "swag", "codah", "gap"),
    *("conll2003", "wnut17", "pos", "squad/v1.1", "squad/v2.0"),
    *("own/sequence", "own/token", "own/span", "own/choice"),
}
FOLDERS = {
    "glue": "glue",
    "sick": "sick",
    "codah": "codah",
    "gap": "gap",
    "wnut17": "wnut17",
    "squad": "squad",
    "pos": "ud_english_ewt",
}


def test_every_documented_task_has_a_loader():
    assert set(NAMES) >= DOCUMENTED


def test_every_file_of_a_task_is_found_and_every_name_is_one_task():
    files = pathlib.Path(registry.__file__).parent.glob("*_task.py")
    assert {module.__name__ for module in registry._MODULES} == {f"bert_jax.tasks.{file.stem}" for file in files}
    assert sorted(NAMES) == sorted(name for module in registry._MODULES for name in module.NAMES)


def test_every_official_task_has_an_experiment():
    assert {name for name in NAMES if not name.startswith("own/")} - {"glue/ax"} == EXPERIMENTS.keys() - {"own/sequence"}
    for name, file in EXPERIMENTS.items():
        assert python_files.load(f"experiments/finetune/{file}")["task"]["name"] == name


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("token", {"conll2003", "wnut17", "pos", "own/token"}),
        ("span", {"squad/v1.1", "squad/v2.0", "own/span"}),
        ("choice", {"swag", "codah", "own/choice"}),
        ("mention", {"gap"}),
        ("sequence", {name for name in DOCUMENTED if name.startswith(("glue/", "sick/"))} | {"own/sequence"}),
    ],
)
def test_the_head_of_every_task_is_known_without_its_data(kind: str, names: set[str]):
    assert {name for name in DOCUMENTED if task_head_class(TaskConfig(name=name)).kind == kind} == names


def test_a_task_is_loaded_by_its_module(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def stands_in(module):
        def load(config, say):
            asked.append((config.name, module, say))
            return types.SimpleNamespace(**dict.fromkeys(registry._ANSWERS))

        return load

    for module in registry._MODULES:
        monkeypatch.setattr(module, "load", stands_in(module))
    for name in NAMES:
        load_task(TaskConfig(name=name), say=print)
    assert [(name, say) for name, _, say in asked] == [(name, print) for name in NAMES]
    assert all(name in module.NAMES for name, module, _ in asked)


class Asked(Exception):
    """Records how a reader was called."""


def asks(*given: object, **named: object) -> None:
    raise Asked(given, named)


@pytest.mark.parametrize("name", ["own/sequence", "own/token", "own/span", "own/choice"])
def test_messages_about_own_files_reach_the_caller(name: str, monkeypatch: pytest.MonkeyPatch):
    config = TaskConfig(name=name)
    for module in registry._MODULES:
        monkeypatch.setattr(module, "load_own_data", asks, raising=False)
    with pytest.raises(Asked) as asked:
        load_task(config, say=print)
    assert asked.value.args == ((config.own, name.removeprefix("own/")), {"say": print})


@pytest.mark.parametrize("name", ["glue/rte", "glue/mnli", "boolq", "gap", "conll2003", "squad/v1.1"])
def test_messages_about_the_catalogue_reach_the_caller(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "examples", asks)
    with pytest.raises(Asked) as asked:
        load_task(TaskConfig(name=name), say=print)
    given, named = asked.value.args
    assert (given, named["say"]) == ((name, "train"), print)
    assert named.get("data_set") is (boolq_task.DATA_SET if name == "boolq" else None)


def test_data_in_a_bucket_is_fetched_and_other_data_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "fetched", lambda path, key: pathlib.Path("/local") / path.removeprefix("gs://") / key)
    for module in registry._MODULES:
        monkeypatch.setattr(module, "load_own_data", asks, raising=False)
    own = OwnDataConfig(train="gs://bucket/train.csv", dev="dev.csv")
    with pytest.raises(Asked) as asked:
        load_task(TaskConfig(name="own/token", own=own))
    ((found, _), _) = asked.value.args
    assert (found.train, found.dev, found.test) == ("/local/bucket/train.csv/config.task.own.train", "dev.csv", None)
    monkeypatch.setattr(registry, "fetched_files", lambda path, key: [pathlib.Path("/copy/b.csv")] if "b-" in path else [])
    monkeypatch.setattr(registry, "cached_path", lambda path: pathlib.Path("/copy") / path.removeprefix("gs://"))
    with pytest.raises(Asked) as asked:
        load_task(TaskConfig(name="own/token", own=OwnDataConfig(train="gs://bucket/b-*.csv")))
    assert asked.value.args[0][0].train == "/copy/bucket/b-*.csv"
    with pytest.raises(UserError, match=r"own\.train=gs://bucket/c-\*\.csv matches no file"):
        load_task(TaskConfig(name="own/token", own=OwnDataConfig(train="gs://bucket/c-*.csv")))
    with pytest.raises(UserError, match=r"data_dir=/local/bucket/wnut/config\.task\.data_dir does not exist"):
        load_task(TaskConfig(name="wnut17", data_dir="gs://bucket/wnut"))


@pytest.mark.parametrize("name", sorted(DOCUMENTED - {"own/sequence", "own/token", "own/span", "own/choice"}))
def test_a_missing_data_directory_is_refused_with_the_searched_place(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wnut17").mkdir()
    with pytest.raises(UserError) as error:
        load_task(TaskConfig(name=name, data_dir="wnut71"))
    where = f"config.task.data_dir=wnut71 (looked for in {tmp_path}; did you mean wnut17?) does not exist"
    assert str(error.value) == f"{where}; give the directory that holds the files of {name}"
    (tmp_path / "wnut71").touch()
    with pytest.raises(UserError, match="is a file; give the directory"):
        load_task(TaskConfig(name=name, data_dir="wnut71"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("boolq", "set config.task.name=own/sequence and config.task.own.train={file}, and name its columns"),
        ("gap", "write the data as a file of gap"),
    ],
)
def test_a_directory_of_the_hub_is_refused_with_the_task_that_reads_it(name: str, remedy: str, tmp_path: pathlib.Path):
    file = tmp_path / "data" / "train-0.parquet"
    file.parent.mkdir()
    with pytest.raises(UserError) as missing:
        load_task(TaskConfig(name=name, data_dir=str(tmp_path)))
    for path in (tmp_path / "data" / "a.parquet", file):
        path.touch()
    with pytest.raises(UserError) as error:
        load_task(TaskConfig(name=name, data_dir=str(tmp_path)))
    assert str(error.value) == f"{missing.value}. The task {name} does not read {file}; {remedy.format(file=file)}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glue/sst-2", r"config\.task\.name='glue/sst-2' is not a task; did you mean 'glue/sst2'"),
        ("squad/v2", "did you mean 'squad/v2.0'"),
        ("xyz", r"is not a task; known: .*\bcodah, "),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest(name: str, message: str):
    with pytest.raises(UserError, match=message):
        load_task(TaskConfig(name=name))


@pytest.mark.parametrize(
    "name",
    ["glue/mrpc", "glue/stsb", "sick/entailment", "codah", "gap", "wnut17", "pos", "squad/v1.1"],
)
def test_every_task_fulfils_the_protocol_on_real_data(shared_data: pathlib.Path, tmp_path: pathlib.Path, name: str):
    """The head's outputs for the features of the dev set are scored, evaluated and written, whatever the task."""
    folder = shared_data / FOLDERS[name.split("/")[0]]
    vocab = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    if not folder.is_dir() or not vocab.is_file():
        pytest.skip(f"needs {folder.name} and vocab in ../shared/data")
    tokenizer = load_tokenizer(vocab)
    task = load_task(TaskConfig(name=name, data_dir=str(folder), train_rows=50, length=64), say=lambda message: None)
    assert (task.name, len(task.splits["train"])) == (name, 50)
    assert type(task.head) is task_head_class(TaskConfig(name=name))
    draw = np.random.default_rng(0)
    features = task.features("dev", tokenizer)
    assert sorted({feature.example for feature in features}) == list(range(len(task.splits["dev"])))
    outputs = {"token": lambda feature: (feature.size, task.head.num_outputs), "span": lambda feature: (feature.size, 2)}
    outputs |= {"choice": lambda feature: (len(feature.ids),)}
    shape = outputs.get(task.head.kind, lambda feature: (task.head.num_outputs,))
    logits = [draw.normal(size=shape(feature)).astype(np.float32) for feature in features]
    scores = task.scores("dev", logits)
    assert np.isfinite(scores[task.metric])
    assert task.metric in task.baseline("dev").scores
    assert not task.degeneracy("dev", logits)
    assert all(path.is_file() for path in task.write_predictions(tmp_path, "dev", logits))
