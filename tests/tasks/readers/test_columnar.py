"""Labelled data in Parquet and Arrow files, as on the Hugging Face hub and from `datasets`."""

from __future__ import annotations

import datetime
import decimal
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyarrow import ipc

from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.examples import ChoiceExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.own_data import OwnData, load_own_data, read_own_data

CLASSES = {"names": ["poor", "good"], "_type": "ClassLabel"}
TAGS = {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}
ROWS = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
EXAMPLES = [TextExample("0", "a", None, "good"), TextExample("1", "b", None, "poor")]


def table(rows: Sequence[Mapping[str, Any]], **features: Any) -> pyarrow.Table:
    """Returns a table whose schema has the types of these columns, as `datasets` writes them."""
    made = pyarrow.Table.from_pylist(list(rows))
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}) if features else made


def put(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], **features: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table(rows, **features), path, row_group_size=1)
    return str(path)


def save(directory: pathlib.Path, *parts: pyarrow.Table) -> str:
    """Writes the files of `Dataset.save_to_disk`."""
    directory.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(parts):05}.arrow" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with ipc.new_stream(directory / name, part.schema) as writer:
            writer.write_table(part)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (directory / "dataset_info.json").write_text(json.dumps({"features": {"label": CLASSES}}))
    return str(directory)


def load(kind: str = "sequence", **settings: Any) -> OwnData:
    return load_own_data(OwnDataConfig(**settings), kind, say=lambda text: None)


@pytest.mark.parametrize("names", [("poor", "good"), ()])
def test_classes_have_the_names_in_the_file_in_their_order(tmp_path: pathlib.Path, names: tuple[str, ...]):
    data = load(train=put(tmp_path / "a.parquet", ROWS, label=CLASSES), label_names=names)
    assert (data.train, data.labels) == (EXAMPLES, ("poor", "good"))


@pytest.mark.parametrize(
    "feature",
    [
        {"names": {"0": "poor", "1": "good"}, "_type": "ClassLabel"},
        {"num_classes": 2, "names": ["poor", "good"], "names_file": None, "id": None, "_type": "ClassLabel"},
        {"dtype": {"class_label": {"names": {"0": "poor", "1": "good"}}}},
        {"dtype": {"class_label": {"names": ["poor", "good"]}}},
    ],
)
def test_classes_are_found_in_every_spelling(tmp_path: pathlib.Path, feature: Any):
    assert load(train=put(tmp_path / "a.parquet", ROWS, label=feature)).labels == ("poor", "good")
    made = table(ROWS).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": [{"name": "label"} | feature]}})})
    pyarrow.parquet.write_table(made, tmp_path / "b.parquet")
    assert load(train=str(tmp_path / "b.parquet")).train == EXAMPLES


def test_numbers_in_another_file_are_read_as_the_numbered_classes(tmp_path: pathlib.Path):
    train = put(tmp_path / "a.parquet", ROWS, label=CLASSES)
    for rows in (ROWS, [row | {"label": float(row["label"])} for row in ROWS]):
        assert load(train=train, dev=put(tmp_path / "dev.parquet", rows)).dev == EXAMPLES
    assert load(train=put(tmp_path / "c.parquet", rows, label=CLASSES)).train == EXAMPLES, "as pandas writes whole numbers"
    (tmp_path / "dev.csv").write_text("text,label\na,1\nb,0\n")
    assert load(train=train, dev=str(tmp_path / "dev.csv")).dev == EXAMPLES
    (tmp_path / "train.csv").write_text("text,label\na,no\nb,yes\n")
    with pytest.raises(UserError, match="the label '1' is not known; known: no, yes"):
        load(train=str(tmp_path / "train.csv"), dev=str(tmp_path / "dev.csv"))


@pytest.mark.parametrize(
    "kind",
    [
        lambda inner: {"feature": inner, "_type": "Sequence"},
        lambda inner: {"feature": inner, "_type": "List"},
        lambda inner: [inner],
    ],
)
def test_lists_of_classes_have_the_names_in_the_file(tmp_path: pathlib.Path, kind: Callable[[Any], Any]):
    rows = [{"tokens": ["a", "b"], "ner_tags": [1, 2]}, {"tokens": ["c"], "ner_tags": [0]}]
    data = load("token", train=put(tmp_path / "a.parquet", rows, ner_tags=kind(TAGS)), words="tokens", labels="ner_tags")
    assert data.labels == ("O", "B-PER", "I-PER")
    assert data.train == [WordsExample("0", ("a", "b"), ("B-PER", "I-PER"), 0), WordsExample("1", ("c",), ("O",), 1)]
    several = put(tmp_path / "b.parquet", [{"text": "a", "label": [0, 1]}, {"text": "b", "label": []}], label=kind(CLASSES))
    assert [e.label for e in load(train=several, problem="multi_label").train if isinstance(e, TextExample)] == [
        ("poor", "good"),
        (),
    ]


def test_class_numbers_stay_numbers_for_regression(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.parquet", ROWS, label=CLASSES)
    assert [e.label for e in load(train=path, problem="regression").train if isinstance(e, TextExample)] == [1.0, 0.0]
    path = put(tmp_path / "b.parquet", [{"prompt": "p", "choices": ["x y", "z"], "label": 1}], label=CLASSES)
    assert load("choice", train=path).train == [ChoiceExample("0", "p", ("x y", "z"), 1)]


def test_questions_have_the_answers_of_the_hub(tmp_path: pathlib.Path):
    row = {"id": "x", "question": "q", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}}
    assert load("span", train=put(tmp_path / "a.parquet", [row]), id="id").train == [
        QuestionExample("x", "q", "a b", (("b", 2),))
    ]


def test_a_folder_of_the_hub_is_read_by_its_splits(tmp_path: pathlib.Path):
    for i, row in enumerate(ROWS):
        put(tmp_path / "hub" / "data" / f"train-0000{i}-of-00002.parquet", [row], label=CLASSES)
    put(tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet", ROWS[:1], label=CLASSES)
    put(tmp_path / "hub" / "data" / "test-00000-of-00001.parquet", [{"text": "a", "label": -1}], label=CLASSES)
    hub = str(tmp_path / "hub")
    data = load(train=hub, dev=hub, test=hub)
    assert (data.train, data.dev, data.test) == (EXAMPLES, EXAMPLES[:1], [TextExample("0", "a", None, None)])
    assert load(train=f"{hub}/data/train-*.parquet").train == EXAMPLES
    (tmp_path / "hub" / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(UserError, match=r"hub lacks data/train-00001-of-00002\.parquet, a part of the train split"):
        load(train=hub)
    converted = tmp_path / "converted"
    put(converted / "default" / "train" / "0000.parquet", ROWS, label=CLASSES)
    put(converted / "default" / "validation" / "0000.parquet", ROWS[:1], label=CLASSES)
    assert load(train=str(converted), dev=str(converted)).dev == EXAMPLES[:1]
    with pytest.raises(UserError, match=r"converted has no file for the test split, only default/train/0000\.parquet"):
        load(train=str(converted), test=str(converted))
    put(converted / "other" / "train" / "0000.parquet", ROWS)
    with pytest.raises(UserError, match=r"converted holds several data sets \(default, other\)"):
        load(train=str(converted))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_folder_of_several_splits_without_the_wanted_one_is_refused(tmp_path: pathlib.Path, split: str):
    """ANLI for example has the splits train_r1, dev_r1 and so on. Files whose names have no split are a single split."""
    for name in ("train_r1-00000-of-00001", "heldout-00000-of-00001"):
        put(tmp_path / "data" / f"{name}.parquet", ROWS, label=CLASSES)
    with pytest.raises(UserError, match=f"has no file for the {split} split, only data/heldout-00000-of-00001.parquet, data/t"):
        read_own_data(OwnDataConfig(**{split: str(tmp_path)}), "sequence", split)
    (tmp_path / "data" / "train_r1-00000-of-00001.parquet").unlink()
    assert read_own_data(OwnDataConfig(**{split: str(tmp_path)}), "sequence", split) == EXAMPLES


@pytest.mark.parametrize(
    ("splits", "chosen"),
    [
        ({"train_unlabeled": "train", "train": "train", "test": "test"}, "train"),
        ({"train": "train", "train_b": "train", "train_extra": "train"}, "train"),
        ({"validation_unlabeled": "dev", "val": "dev", "train": "train"}, "val"),
        ({"test_large": "test", "eval": "test", "test": "test"}, "test"),
        ({"sst2_train": "train", "sst2_test": "test"}, "sst2_train"),
        ({"train_r1": "train", "dev_r1": "dev", "train_r2": "train", "train_r3": "train"}, ""),
        ({"validation_matched": "dev", "validation_mismatched": "dev", "train": "train"}, ""),
        ({"dev": "dev", "validation": "dev"}, ""),
    ],
)
@pytest.mark.parametrize("saved", [False, True], ids=["files", "DatasetDict"])
def test_a_split_with_the_exact_name_is_preferred_and_several_others_are_refused(
    tmp_path: pathlib.Path, splits: Mapping[str, str], chosen: str, saved: bool
):
    for name in splits:
        rows = ROWS if name == chosen else ROWS[:1]
        if saved:
            save(tmp_path / name, table(rows, label=CLASSES))
        else:
            put(tmp_path / f"{name}.parquet", rows, label=CLASSES)
    if saved:
        (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    split = splits.get(chosen) or next(iter(splits.values()))
    config = OwnDataConfig(**{split: str(tmp_path)})
    candidates = [name for name, its_split in splits.items() if its_split == split]
    if chosen:
        said: list[str] = []
        assert read_own_data(config, "sequence", split, say=said.append) == EXAMPLES
        others = [name for name in (candidates if saved else sorted(candidates)) if name != chosen]
        left_out = f"{tmp_path}: the {split} split is {chosen}, without {', '.join(others)}; for all of them, give a"
        assert said == ([f"{left_out} pattern of files"] if others else [])
        return
    with pytest.raises(UserError, match=rf" has {len(candidates)} {split} splits \({', '.join(candidates)}\); give the "):
        read_own_data(config, "sequence", split)


def test_a_folder_of_splits_in_folders_is_read_by_their_full_names(tmp_path: pathlib.Path):
    put(tmp_path / "default" / "train" / "0000.parquet", ROWS, label=CLASSES)
    put(tmp_path / "default" / "train_unlabeled" / "0000.parquet", ROWS[:1], label=CLASSES)
    for i, row in enumerate(ROWS):
        put(tmp_path / f"dev_part{i}.parquet", [row], label=CLASSES)
    data = load(train=str(tmp_path), dev=str(tmp_path))
    assert (data.train, data.dev) == (EXAMPLES, EXAMPLES)


def test_a_folder_of_another_split_alone_is_refused(tmp_path: pathlib.Path):
    put(tmp_path / "data" / "test-00000-of-00001.parquet", ROWS, label=CLASSES)
    with pytest.raises(UserError, match=r"has no file for the train split, only data/test-00000-of-00001\.parquet"):
        load(train=str(tmp_path))


def test_parts_with_hashed_names_are_read_in_order(tmp_path: pathlib.Path):
    for i, row in enumerate(ROWS):
        put(tmp_path / "data" / f"train-0000{i}-of-00002-{'9a'[i] * 16}.parquet", [row], label=CLASSES)
    assert load(train=str(tmp_path)).train == EXAMPLES


def test_a_pattern_skips_hidden_files(tmp_path: pathlib.Path):
    put(tmp_path / "train-0.parquet", ROWS, label=CLASSES)
    put(tmp_path / ".train-1.parquet", ROWS, label=CLASSES)
    assert load(train=f"{tmp_path}/*.parquet").train == EXAMPLES


def test_scores_may_be_decimal_numbers(tmp_path: pathlib.Path):
    rows = [{"text": "a", "label": decimal.Decimal("2.50")}, {"text": "b", "label": decimal.Decimal("3.00")}]
    data = load(train=put(tmp_path / "a.parquet", rows), problem="regression")
    assert [example.label for example in data.train if isinstance(example, TextExample)] == [2.5, 3.0]


def test_a_saved_selection_of_rows_is_refused(tmp_path: pathlib.Path):
    saved = save(tmp_path / "saved", table(ROWS, label=CLASSES))
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_data_files": [{"filename": "indices.arrow"}]}
    (tmp_path / "saved" / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"has indices of rows, which are not supported; save .* after flatten_indices\(\)"):
        load(train=saved)


def test_save_to_disk_directories_are_read(tmp_path: pathlib.Path):
    parts = [table([row], label=CLASSES) for row in ROWS]
    assert load(train=save(tmp_path / "one", *parts)).train == EXAMPLES
    assert load(train=save(tmp_path / "bare", *(part.replace_schema_metadata() for part in parts))).train == EXAMPLES
    for name in ("train", "validation"):
        save(tmp_path / "several" / name, *parts)
    (tmp_path / "several" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    several = str(tmp_path / "several")
    assert load(train=several, dev=several).dev == EXAMPLES
    with pytest.raises(UserError, match=r"several has no test split .splits: train, validation."):
        load(train=several, test=several)
    (tmp_path / "several" / "validation" / "state.json").unlink()
    with pytest.raises(UserError, match=r"several/validation/state.json cannot be read as JSON .*; save the data set again$"):
        load(train=several, dev=several)
    with ipc.new_file(tmp_path / "a.arrow", parts[0].schema) as writer:
        writer.write_table(parts[0])
    assert load(train=str(tmp_path / "a.arrow")).train == EXAMPLES[:1]


def test_a_text_column_may_have_any_text_type(tmp_path: pathlib.Path):
    columns = {"text": pyarrow.array(["a", "b"]).dictionary_encode(), "label": pyarrow.array([b"x", b"y"])}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert load(train=str(tmp_path / "a.parquet")).train == [TextExample("0", "a", None, "x"), TextExample("1", "b", None, "y")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": 3, "label": "x"}], "row 1: text is 3, not a text; name a column of texts among label$"),
        ([{"text": {"en": "a"}, "label": "x"}], 'row 1: text is {"en": "a"}, not a text; write each part to a column of'),
        ([{"body": "a", "label": "x"}], r"row 1: there is no column 'text'; known: body, label \(task\.own\.text\)"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": None}], "row 2: label is null; fill in a"),
        ([{"text": "a", "label": 2.0}, {"text": "b", "label": float("nan")}], "row 2: label is NaN; fill in a"),
    ],
)
def test_unusable_rows_are_named(tmp_path: pathlib.Path, rows: list[dict[str, Any]], message: str):
    with pytest.raises(UserError, match=rf"a\.parquet, {message}"):
        load(train=put(tmp_path / "a.parquet", rows))


def test_dates_are_labels_as_in_a_table(tmp_path: pathlib.Path):
    rows = [{"text": "a", "label": datetime.date(2020, 1, 2)}, {"text": "b", "label": datetime.date(2019, 12, 31)}]
    assert load(train=put(tmp_path / "a.parquet", rows)).labels == ("2019-12-31", "2020-01-02")


def test_numbers_whose_names_are_not_those_of_classes_stay_numbers(tmp_path: pathlib.Path):
    for feature in ({"names": ["poor", "good"], "_type": "Other"}, {"names": {"a": "poor", "b": "good"}, "_type": "ClassLabel"}):
        assert load(train=put(tmp_path / "a.parquet", ROWS, label=feature)).labels == ("0", "1")


def test_a_row_without_a_class_and_text_under_another_name_are_refused(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.parquet", [{"text": "a", "label": -1}], label=CLASSES)
    with pytest.raises(UserError, match="row 1: label is null or -1; fill in a value, or remove the row"):
        load(train=path)
    (tmp_path / "b.parquet").write_text("text,label\na,x\n")
    with pytest.raises(UserError, match=r"b\.parquet is text, not Parquet; give it a name with the ending of its format"):
        load(train=str(tmp_path / "b.parquet"))


def test_a_class_of_the_file_may_be_called_none(tmp_path: pathlib.Path):
    data = load(train=put(tmp_path / "a.parquet", ROWS, label={"names": ["None", "joy"], "_type": "ClassLabel"}))
    assert ([e.label for e in data.train if isinstance(e, TextExample)], data.labels) == (["joy", "None"], ("None", "joy"))


def test_two_classes_of_one_name_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"a\.parquet names a class of label twice"):
        load(train=put(tmp_path / "a.parquet", ROWS, label={"names": ["x", "x "], "_type": "ClassLabel"}))


def test_two_columns_of_one_name_are_refused(tmp_path: pathlib.Path):
    twice = pyarrow.table([["a"], ["b"], ["x"]], names=["text", "text", "label"])
    pyarrow.parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: two columns are named 'text'"):
        load(train=str(tmp_path / "a.parquet"))


def test_columns_of_zeros_and_ones_are_multi_label_targets(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.parquet", [{"text": "a", "x": 1, "y": 0}, {"text": "b", "x": 1, "y": 1}])
    data = load(train=path, problem="multi_label", label_names=("x", "y"))
    assert [e.label for e in data.train if isinstance(e, TextExample)] == [("x",), ("x", "y")]
    with pytest.raises(UserError, match=r"no column 'label' .*; known: text, x, y; set label_names=\[a,b\] to read columns of 0"):
        load(train=path, problem="multi_label")


def test_a_class_without_a_name_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"row 1: the label '0\.5' is not known; known: poor, good"):
        load(train=put(tmp_path / "a.parquet", [{"text": "a", "label": 0.5}, {"text": "b", "label": 1.0}], label=CLASSES))
    texts = put(tmp_path / "a.parquet", [row | {"label": str(row["label"])} for row in ROWS], label=CLASSES)
    assert load(train=texts).train == EXAMPLES
    with pytest.raises(UserError, match=r"a\.parquet: label has the class 2, but only 2 classes"):
        load(train=put(tmp_path / "a.parquet", [{"text": "a", "label": 2}], label=CLASSES))


def test_damaged_files_are_refused(tmp_path: pathlib.Path):
    path = pathlib.Path(put(tmp_path / "a.parquet", ROWS))
    whole = path.read_bytes()
    broken = whole[:4] + bytes(40) + whole[44:]
    for data, message in (
        (whole[:-9], "is not a whole Parquet file .*; fetch it again"),
        (broken, "is not a whole Parquet file .*; fetch it again"),
        (b"\0" * 99, "is not a whole Parquet file .*; fetch it again"),
        (b"", "is empty; fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"is a pointer of Git LFS, .*\(git lfs pull\)"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=message):
            load(train=str(path))
    directory = pathlib.Path(save(tmp_path / "saved", table(ROWS), table(ROWS)))
    torn = directory / "data-00001-of-00002.arrow"
    torn.write_bytes(torn.read_bytes()[:-60])
    with pytest.raises(UserError, match=r"data-00001-of-00002\.arrow is not a whole Arrow file"):
        load(train=str(directory))
    torn.unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00002\.arrow .*cannot be read: No such file"):
        load(train=str(directory))
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../a"}]}))
    with pytest.raises(UserError, match=r"state\.json does not list the files of a data set"):
        load(train=str(directory))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no Parquet or Arrow files"):
        load(train=str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"x-\*\.parquet matches no file"):
        load(train=str(tmp_path / "x-*.parquet"))
    path.write_bytes(whole)
    path.rename(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"a\.csv is a Parquet file, not text; give it a name that ends in \.parquet"):
        load(train=str(tmp_path / "a.csv"))


def test_an_arrow_stream_that_ends_between_two_batches_is_refused(tmp_path: pathlib.Path):
    batches = pyarrow.Table.from_pylist([{"text": letter, "label": "x"} for letter in "abcd"]).to_batches(max_chunksize=1)
    ends = []
    with (tmp_path / "a.arrow").open("wb") as file, ipc.new_stream(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(file.tell())
    whole = (tmp_path / "a.arrow").read_bytes()
    for end in ends:
        (tmp_path / "a.arrow").write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"a\.arrow is not a whole Arrow file \(the mark at the end is missing\); fetch it"):
            load(train=str(tmp_path / "a.arrow"))
