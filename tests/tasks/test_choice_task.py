from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.data.rows import assemble_features, feature_logits, pack_features, row_shape
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.choice_task import load
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from tests.random_features import LAYOUTS

SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(pathlib.Path(__file__).parents[1] / "data" / "tiny_vocab.txt")


def put(path: pathlib.Path, *lines: str) -> str:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return str(path)


def codah(directory: pathlib.Path, train: str, dev: str, test: str = "") -> TaskConfig:
    """Returns CODAH with these correct positions."""
    for split, labels in {"train": train, "dev": dev, "test": test}.items():
        if labels:
            put(directory / f"{split}.tsv", *(f"o\thello {i}\tthe a\tthe b\tthe 中\tworld\t{n}" for i, n in enumerate(labels)))
    return TaskConfig(name="codah", data_dir=str(directory))


def choosing(*places: int, of: int = 4) -> list[np.ndarray]:
    return [2 * np.eye(of, dtype=np.float32)[place] for place in places]


def test_a_feature_is_the_prompt_with_each_candidate(tmp_path: pathlib.Path, tiny: Tokenizer):
    task = load(codah(tmp_path, "01", "2"))
    assert (task.head.kind, task.head.labels, task.metric) == ("choice", (), "accuracy")
    [feature] = task.features("dev", tiny)
    endings = ("the a", "the b", "the 中", "world")
    hello = tiny.encode("hello 0")
    for ids, types, ending in zip(feature.ids, feature.types, endings, strict=True):
        assert ids.tolist() == [tiny.cls_id, *hello, tiny.sep_id, *tiny.encode(ending), tiny.sep_id]
        assert types.sum() == len(tiny.encode(ending)) + 1
    assert feature.target == 2


def test_each_candidate_is_truncated_to_the_length(tmp_path: pathlib.Path, tiny: Tokenizer):
    rows = [f"o\t{'hello ' * 20}\t{'the ' * 20}\t\ufeff\t\u200b\t😀[SEP]\t0"]
    for split in ("train", "dev"):
        put(tmp_path / f"{split}.tsv", *rows)
    [feature] = load(TaskConfig(name="codah", data_dir=str(tmp_path), length=9)).features("dev", tiny)
    assert [len(ids) for ids in feature.ids] == [9, 9, 9, 9]
    # 6 tokens remain for both: three each, or all of them for the prompt if a candidate has none
    assert [int(types.sum()) for types in feature.types] == [4, 1, 1, 4]
    assert all((ids == tiny.sep_id).sum() == 2 for ids in feature.ids)


def test_swag_repeats_the_start_of_the_second_sentence_in_each_candidate(tmp_path: pathlib.Path):
    row = 'v,1,"A b, c. He","A b, c.",He,gold,runs.,sits.,"goes, then.",swims.'
    for name in ("train.csv", "val.csv"):
        put(tmp_path / name, SWAG + ",label", f"{row},2", f"{row},2", f"{row},0")
    put(tmp_path / "test.csv", SWAG, row, row)
    task = load(TaskConfig(name="swag", data_dir=str(tmp_path), train_rows=2))
    assert {split: len(examples) for split, examples in task.splits.items()} == {"train": 2, "dev": 3, "test": 2}
    assert task.splits["dev"][0].choices == ("He runs.", "He sits.", "He goes, then.", "He swims.")
    assert task.baseline("dev").scores == {"accuracy": pytest.approx(2 / 3)}
    assert task.scores("test", choosing(1, 2)) == task.baseline("test").scores == {}
    readable, official = task.write_predictions(tmp_path / "out", "test", choosing(3, 0))
    assert (official.name, official.read_text()) == ("test.csv", ",pred\n0,3\n1,0\n")
    assert readable.read_text().splitlines()[1].split("\t")[:3] == ["0", "3", ""]
    assert [path.name for path in task.write_predictions(tmp_path / "out", "dev", choosing(0, 1, 2))] == ["dev.tsv"]
    with pytest.raises(ValueError, match="zip"):
        task.write_predictions(tmp_path / "out", "dev", choosing(0, 1))


def test_choices_are_scored_by_accuracy_against_the_most_frequent_position(tmp_path: pathlib.Path):
    task = load(codah(tmp_path, "1130", "1132", test="03"))
    assert task.scores("dev", choosing(1, 0, 3, 3)) == {"accuracy": 0.5}
    assert task.baseline("dev").scores == {"accuracy": 0.5}
    assert task.scores("test", choosing(0, 3)) == {"accuracy": 1.0}
    assert [path.name for path in task.write_predictions(tmp_path / "out", "test", choosing(0, 3))] == ["test.tsv"]
    assert task.degeneracy("dev", choosing(2, 2, 2))
    level = [np.full(4, 7, np.float32), np.full(4, -1, np.float32)]  # no candidate is better than the others
    assert task.degeneracy("dev", level)
    assert not task.degeneracy("dev", choosing(2, 1, 2))
    (tmp_path / "alike").mkdir()
    alike = load(codah(tmp_path / "alike", "11", "22", test="0"))
    assert not alike.degeneracy("dev", choosing(2, 2)), "all labels are the same"


def test_own_data_may_have_varying_numbers_of_candidates(tmp_path: pathlib.Path, tiny: Tokenizer):
    rows = ["prompt\tchoices\tlabel", "hello\tthe|a|world\t3", "world\tthe|un\t1"]
    path = put(tmp_path / "own.tsv", *rows)
    own = OwnDataConfig(train=path, dev=path, separator="|", first_choice=1)
    task = load(TaskConfig(name="own/choice", own=own))
    features = task.features("dev", tiny)
    assert [len(feature.ids) for feature in features] == [3, 2]
    assert [feature.target for feature in features] == [2, 0]
    shape = row_shape(features, LAYOUTS["choice"])
    rows_of = pack_features(features, shape)
    batch = assemble_features(features, rows_of, len(rows_of), shape, tiny.pad_id)
    # each logit is the candidate's first token after the prompt, so it shows which candidate it belongs to
    said = np.take_along_axis(batch["input_ids"], batch["cls_positions"] + 3, axis=1)[..., None].astype(np.float32)
    back = feature_logits(said, features, rows_of, shape)
    assert [values.tolist() for values in back] == [[ids[3] for ids in feature.ids] for feature in features]
    [written] = task.write_predictions(tmp_path, "dev", [*choosing(2, of=3), *choosing(1, of=2)])
    assert [line.split("\t") for line in written.read_text().splitlines()] == [
        ["id", "prediction", "label", "P(1)", "P(2)", "P(3)"],
        ["0", "3", "3", "0.106507", "0.106507", "0.786986"],
        ["1", "2", "1", "0.119203", "0.880797", ""],
    ]


def test_an_own_test_set_may_be_partly_labelled(tmp_path: pathlib.Path):
    path = put(tmp_path / "own.tsv", "prompt\tchoices\tlabel", "a\tb|c\t0", "a\tb|c\t1")
    test = put(tmp_path / "test.tsv", "prompt\tchoices\tlabel", "a\tb|c\t", "a\tb|c\t1")
    task = load(TaskConfig(name="own/choice", own=OwnDataConfig(train=path, dev=path, test=test, separator="|")))
    assert task.scores("test", choosing(0, 1, of=2)) == {"accuracy": 1.0}


def test_missing_files_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"codah is not in the catalogue of tfds; set config\.task\.data_dir"):
        load(TaskConfig(name="codah"))
    with pytest.raises(UserError, match=r"train\.tsv, line 2: label is '4', not an integer from 0 to 3"):
        load(codah(tmp_path, "04", "1"))
    (tmp_path / "dev.tsv").unlink()
    codah(tmp_path, "01", "")
    with pytest.raises(UserError, match=r"dev\.tsv cannot be read"):
        load(TaskConfig(name="codah", data_dir=str(tmp_path)))
    path = put(tmp_path / "own.jsonl", '{"prompt": "a", "choices": ["b", "c"], "label": 0}')
    with pytest.raises(UserError, match=r"own/choice has no examples of the dev split; give examples with"):
        load(TaskConfig(name="own/choice", own=OwnDataConfig(train=path)))


def test_the_real_codah_files_are_read_completely(shared_data: pathlib.Path, tiny: Tokenizer):
    if not (shared_data / "codah").is_dir():
        pytest.skip("needs codah in ../shared/data")
    task = load(TaskConfig(name="codah", data_dir=str(shared_data / "codah")))
    features = task.features("dev", tiny)
    assert len(features) == len(task.splits["dev"]) == 556
    assert {len(feature.ids) for feature in features} == {4}
    right = choosing(*(int(feature.target) for feature in features if feature.target is not None))
    assert task.scores("dev", right) == {"accuracy": 1.0}
    assert 0.2 < task.baseline("dev").scores["accuracy"] < 0.3
