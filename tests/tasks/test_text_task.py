from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.glue_submission import collect_predictions
from bert_jax.tasks.readers.glue import SUBMISSION
from bert_jax.tasks.task import usable_splits
from bert_jax.tasks.text_task import TextTask, load

PAIRS = "index\tsentence1\tsentence2\t"
SICK = (
    "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tentailment_BA\tsentence_A_original\t"
    "sentence_B_original\tsentence_A_dataset\tsentence_B_dataset\tSemEval_set\n"
)
# text that users paste: accents, emoji, CJK, tabs as text, no-break and zero-width spaces, marks alone, brackets of special
# tokens
HOSTILE = ("éß\u0301", "😀 hello", "中文 인국", "a\u00a0b\u200bc", "\u0301", "[SEP] [CLS]", "\u200b", "x" * 300, "¿.—…")


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(pathlib.Path(__file__).parents[1] / "data" / "tiny_vocab.txt")


def put(path: pathlib.Path, *lines: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def config(name: str, directory: pathlib.Path, **fields: object) -> TaskConfig:
    return TaskConfig(name=name, data_dir=str(directory), **fields)  # type: ignore[arg-type]


def rte(directory: pathlib.Path, train: str = "eeen", dev: str = "en", test: int = 3) -> pathlib.Path:
    """Returns RTE with these labels, given by their first letters."""
    names = {"e": "entailment", "n": "not_entailment"}
    for split, labels in {"train": train, "dev": dev}.items():
        rows = [f"{i}\thello {i}\tworld\t{names[label]}" for i, label in enumerate(labels)]
        put(directory / "RTE" / f"{split}.tsv", PAIRS + "label", *rows)
    if test:
        put(directory / "RTE" / "test.tsv", PAIRS[:-1], *(f"{i}\thello\tworld {i}" for i in range(test)))
    return directory


def logits(task: TextTask, *answers: int) -> list[np.ndarray]:
    """Returns logits that predict these classes."""
    return [np.eye(task.head.num_outputs, dtype=np.float32)[answer] * 3 for answer in answers]


def test_a_feature_is_a_pair_with_its_label_number_in_the_head(tmp_path: pathlib.Path, tiny: Tokenizer):
    task = load(config("glue/rte", rte(tmp_path)))
    assert task.head.labels == ("entailment", "not_entailment")
    first, second = task.features("dev", tiny)
    hello, world = tiny.encode("hello 0"), tiny.encode("world")
    assert first.ids[0].tolist() == [tiny.cls_id, *hello, tiny.sep_id, *world, tiny.sep_id]
    assert first.types[0].tolist() == [0] * (len(hello) + 2) + [1] * (len(world) + 1)
    assert [first.target, second.target] == [0, 1]
    assert [first.example, second.example] == [0, 1]
    assert first.target is not None
    assert first.target.dtype == np.int32
    assert all(feature.target is None for feature in task.features("test", tiny))


def test_long_texts_are_truncated_and_hostile_texts_give_features(tmp_path: pathlib.Path, tiny: Tokenizer):
    lines = [f"{text} {text} {text * 3}\t{i % 2}" for i, text in enumerate(HOSTILE)]
    for split in ("train", "dev"):
        put(tmp_path / "SST-2" / f"{split}.tsv", "sentence\tlabel", *lines)
    features = load(config("glue/sst2", tmp_path, length=8)).features("dev", tiny)
    assert [feature.target for feature in features] == [i % 2 for i in range(len(HOSTILE))]
    assert max(feature.size for feature in features) == 8
    for feature in features:
        assert feature.ids[0][0] == tiny.cls_id
        assert feature.ids[0][-1] == tiny.sep_id
        assert sum(i == tiny.cls_id for i in feature.ids[0]) == sum(i == tiny.sep_id for i in feature.ids[0]) == 1


def test_train_rows_limits_only_training(tmp_path: pathlib.Path):
    task = load(config("glue/rte", rte(tmp_path), train_rows=1))
    assert {split: len(examples) for split, examples in task.splits.items()} == {"train": 1, "dev": 2, "test": 3}


def test_dev_rows_limits_only_dev_splits(tmp_path: pathlib.Path):
    task = load(config("glue/rte", rte(tmp_path), dev_rows=1))
    assert {split: len(examples) for split, examples in task.splits.items()} == {"train": 4, "dev": 1, "test": 3}
    splits = {split: ["a", "b"] for split in ("train", "dev_matched", "dev_mismatched", "test_matched")}
    cut = usable_splits(TaskConfig(dev_rows=1), splits)
    assert {split: len(examples) for split, examples in cut.items()} == dict(zip(splits, (2, 1, 1, 2), strict=True))


def test_scores_are_official_and_unlabelled_splits_have_none(tmp_path: pathlib.Path):
    rows = [f"{label}\t1\t2\tA\tB" for label in "110"]
    for split in ("train", "dev"):
        put(tmp_path / f"{split}.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows)
    put(tmp_path / "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tA\tB")
    task = load(config("glue/mrpc", tmp_path))
    assert task.metric == "f1"
    assert task.scores("dev", logits(task, 1, 0, 0)) == {"f1": pytest.approx(2 / 3), "accuracy": pytest.approx(2 / 3)}
    assert task.baseline("dev").scores == {"f1": pytest.approx(0.8), "accuracy": pytest.approx(2 / 3)}
    assert task.scores("test", logits(task, 1)) == task.baseline("test").scores == {}


def test_the_selection_metric_is_1_if_all_is_right_and_lower_for_the_majority(tmp_path: pathlib.Path, tiny: Tokenizer):
    files = {
        "cola": ("CoLA", "", "x\t1\t\tA", "x\t0\t*\tB"),
        "sst2": ("SST-2", "sentence\tlabel", "A\t1", "B\t0"),
        "mrpc": ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\tA\tB", "0\t1\t2\tA\tB"),
        "stsb": ("STS-B", "index\tsentence1\tsentence2\tscore", "0\tA\tB\t5.0", "1\tA\tB\t1.5"),
        "qqp": ("QQP", "id\tquestion1\tquestion2\tis_duplicate", "0\tA\tB\t1", "1\tA\tB\t0"),
        "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", "0\tA\tB\tentailment", "1\tA\tB\tnot_entailment"),
        "rte": ("RTE", PAIRS + "label", "0\tA\tB\tentailment", "1\tA\tB\tnot_entailment"),
        "wnli": ("WNLI", PAIRS + "label", "0\tA\tB\t1", "1\tA\tB\t0"),
    }
    for name, (folder, header, *rows) in files.items():
        for split in ("train", "dev"):
            put(tmp_path / folder / f"{split}.tsv", *filter(None, (header, *rows)))
        task = load(config(f"glue/{name}", tmp_path))
        right = [feature.target.item() for feature in task.features("dev", tiny) if feature.target is not None]
        said = [np.array([r]) for r in right] if task.head.problem == "regression" else logits(task, *map(int, right))
        assert task.scores("dev", said)[task.metric] == pytest.approx(1.0), name
        assert task.baseline("dev").scores[task.metric] < 0.7, name
        assert not task.degeneracy("dev", said)


def test_values_are_learned_unchanged_and_clipped_only_in_a_submission(tmp_path: pathlib.Path, tiny: Tokenizer):
    for split in ("train", "dev"):
        put(tmp_path / f"{split}.tsv", "index\tsentence1\tsentence2\tscore", "0\tA\tB\t4.8", "1\tA\tB\t0.2", "2\tA\tB\t2.5")
    put(tmp_path / "test.tsv", "index\tsentence1\tsentence2", "0\tA\tB", "1\tA\tB")
    task = load(config("glue/stsb", tmp_path))
    assert task.head.labels == ("score",)
    targets = [feature.target for feature in task.features("dev", tiny)]
    assert [t.dtype for t in targets if t is not None] == [np.float32] * 3
    assert targets == [np.float32(4.8), np.float32(0.2), np.float32(2.5)]
    beyond = [np.array([7.0], np.float32), np.array([-1.5], np.float32)]
    [path] = task.write_predictions(tmp_path / "out", "test", beyond)
    assert (path.name, path.read_text()) == ("STS-B.tsv", "index\tprediction\n0\t5.000\n1\t0.000\n")
    constant = [np.array([2.0], np.float32)] * 3
    assert task.scores("dev", constant) == {"pearson": 0.0, "spearman": 0.0} == task.baseline("dev").scores
    [shown] = task.write_predictions(tmp_path / "out", "dev", constant)
    assert shown.read_text() == "id\tprediction\tlabel\n0\t2\t4.8\n1\t2\t0.2\n2\t2\t2.5\n"


@pytest.mark.parametrize(
    ("values", "degenerate"),
    [([1.0, 4.0, 2.0], False), ([2.0, 2.0, 2.0], True), ([2.0, 2.01, 2.0], True), ([1.0, np.nan, 4.0], True)],
)
def test_nearly_constant_values_are_degenerate(tmp_path: pathlib.Path, values: list[float], degenerate: bool):
    for split in ("train", "dev"):
        put(tmp_path / f"{split}.tsv", "index\tsentence1\tsentence2\tscore", *(f"{i}\tA\tB\t{i}" for i in range(3)))
    task = load(config("glue/stsb", tmp_path))
    assert bool(task.degeneracy("dev", [np.array([v], np.float32) for v in values])) is degenerate


def test_a_single_class_for_all_is_degenerate(tmp_path: pathlib.Path):
    task = load(config("glue/rte", rte(tmp_path)))
    assert task.degeneracy("dev", logits(task, 1, 1))
    assert task.degeneracy("dev", [np.array([np.nan, np.nan], np.float32)] * 2)
    assert not task.degeneracy("dev", logits(task, 1, 0))
    assert task.degeneracy("test", logits(task, 1, 1, 1))  # without labels
    assert not task.degeneracy("test", logits(task, 1, 0, 1))
    (alike,) = (dataclasses.replace(task, splits={"dev": [e] * 2}) for e in task.splits["dev"][:1])
    assert not alike.degeneracy("dev", logits(task, 1, 1))  # if all labels are the same, a single answer means nothing


def mnli(directory: pathlib.Path, *splits: str) -> pathlib.Path:
    header = "index\tsentence1\tsentence2"
    for split in splits:
        if split.startswith("test"):
            put(directory / "MNLI" / f"{split}.tsv", header, "0\tA\tB", "1\tC\tD")
        else:
            put(directory / "MNLI" / f"{split}.tsv", f"{header}\tgold_label", "0\tA\tB\tneutral", "1\tC\tD\tcontradiction")
    return directory


def test_mnli_has_two_dev_and_two_test_sets_and_predicts_ax(tmp_path: pathlib.Path):
    mnli(tmp_path, "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
    assert list(load(config("glue/mnli", tmp_path)).splits) == [
        "train",
        "dev_matched",
        "dev_mismatched",
        "test_matched",
        "test_mismatched",
    ]
    put(tmp_path / "AX" / "AX.tsv", "index\tsentence1\tsentence2", "0\tE\tF")
    task = load(config("glue/mnli", tmp_path))
    assert task.splits["test_ax"] == [TextExample("0", "E", "F", None)]
    assert task.scores("dev_mismatched", logits(task, 2, 2)) == {"accuracy": 0.5}
    written = {}
    for split, answers in {"test_matched": (0, 1), "test_mismatched": (2, 1), "test_ax": (0,)}.items():
        [path] = task.write_predictions(tmp_path / "out", split, logits(task, *answers))
        written[path.name] = path.read_text()
    assert written == {
        "MNLI-m.tsv": "index\tprediction\n0\tcontradiction\n1\tentailment\n",
        "MNLI-mm.tsv": "index\tprediction\n0\tneutral\n1\tentailment\n",
        "AX.tsv": "index\tprediction\n0\tcontradiction\n",
    }


def test_ax_is_mnli_with_another_test_set(tmp_path: pathlib.Path):
    put(tmp_path / "diagnostic" / "diagnostic.tsv", "index\tsentence1\tsentence2", "0\tE\tF")
    with pytest.raises(UserError, match=r"the train split of MNLI does not exist"):
        load(config("glue/ax", tmp_path))
    mnli(tmp_path, "train", "dev_matched", "test_matched")
    task = load(config("glue/ax", tmp_path))
    assert list(task.splits) == ["train", "dev_matched", "test"]
    assert task.baseline("dev_matched").scores[task.metric] == 0.5
    [path] = task.write_predictions(tmp_path, "test", logits(task, 2))
    assert (path.name, path.read_text()) == ("AX.tsv", "index\tprediction\n0\tneutral\n")


def test_a_missing_file_is_refused_with_the_searched_directory(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"RTE/train\.tsv"):
        load(config("glue/rte", tmp_path))
    mnli(tmp_path, "train", "dev_mismatched")
    with pytest.raises(UserError, match=r"MNLI/dev_matched\.tsv"):
        load(config("glue/mnli", tmp_path))
    with pytest.raises(UserError, match=r"MNLI/dev_matched\.tsv"):
        load(config("glue/ax", tmp_path))
    assert "test" not in load(config("glue/rte", rte(tmp_path, test=0))).splits


def test_messages_about_a_file_are_printed_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    rte(tmp_path)
    put(tmp_path / "RTE" / "train.tsv", PAIRS + "label", "0\t\tworld\tentailment", "1\tA\tB\tnot_entailment")
    said: list[str] = []
    load(config("glue/rte", tmp_path), said.append)
    assert len(said) == 1
    assert "kept 1 example with an empty text, which `predict` refuses" in said[0]
    assert capsys.readouterr().err == ""


def test_predictions_of_other_splits_are_readable_tables(tmp_path: pathlib.Path):
    task = load(config("glue/rte", rte(tmp_path)))
    with pytest.raises(ValueError, match="zip"):
        task.write_predictions(tmp_path, "dev", logits(task, 1))
    said = [np.array(row, np.float32) for row in ([0, 0], [np.log(3), 0])]
    [path] = task.write_predictions(tmp_path / "runs" / "out", "dev", said)
    assert path.read_text().splitlines() == [
        "id\tprediction\tlabel\tP(entailment)\tP(not_entailment)",
        "0\tentailment\tentailment\t0.500000\t0.500000",
        "1\tentailment\tnot_entailment\t0.750000\t0.250000",
    ]


def sick(path: pathlib.Path, *sets: str) -> pathlib.Path:
    labels = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    rows = [f"{i}\tA\tB\t{labels[i % 3]}\t{1 + i}\tx\tx\tx\tx\tx\tx\t{name}" for i, name in enumerate(sets)]
    return put(path / "SICK.txt", SICK + rows[0], *rows[1:])


def test_sick_is_two_tasks_of_one_file_with_or_without_its_test_set(tmp_path: pathlib.Path):
    sick(tmp_path, "TRAIN", "TRAIN", "TRIAL", "TRIAL")
    entailment = load(config("sick/entailment", tmp_path))
    assert list(entailment.splits) == ["train", "dev"]
    assert entailment.scores("dev", logits(entailment, 2, 1)) == {
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(1 / 3),
        "accuracy": 0.5,
    }
    assert entailment.metric == "accuracy"
    sick(tmp_path, "TRAIN", "TRIAL", "TRIAL", "TEST")
    relatedness = load(config("sick/relatedness", tmp_path))
    assert len(relatedness.splits["test"]) == 1
    assert relatedness.metric == "pearson"
    said = [np.array([value], np.float32) for value in (1.0, 2.0)]
    assert relatedness.scores("dev", said) == {
        "pearson": pytest.approx(1.0),
        "spearman": pytest.approx(1.0),
        "mean_squared_error": pytest.approx(1.0),
    }
    _, official = relatedness.write_predictions(tmp_path / "out", "dev", said)
    header = "pair_ID\tentailment_judgment\trelatedness_score\n"
    ids = [example.id for example in relatedness.splits["dev"]]
    assert (official.name, official.read_text()) == ("dev.txt", f"{header}{ids[0]}\tNA\t1\n{ids[1]}\tNA\t2\n")
    _, official = entailment.write_predictions(tmp_path / "out", "dev", logits(entailment, 2, 1))
    assert official.read_text().splitlines()[1].split("\t") == ["2", "CONTRADICTION", "NA"]
    lost = [np.array([value], np.float32) for value in (1.0, np.nan)]
    assert relatedness.scores("dev", lost) == {"pearson": 0.0, "spearman": 0.0, "mean_squared_error": np.inf}
    with pytest.raises(UserError, match=r"SICK\.txt cannot be read"):
        load(config("sick/entailment", tmp_path / "none"))
    with pytest.raises(UserError, match=r"sick/entailment is not in the catalogue of tfds; set config\.task\.data_dir"):
        load(TaskConfig(name="sick/entailment"))
    sick(tmp_path, "TRAIN", "TEST")
    with pytest.raises(UserError, match="sick/entailment has no examples of the dev split"):
        load(config("sick/entailment", tmp_path))


def own(tmp_path: pathlib.Path, problem: str, *rows: str, **fields: str) -> TaskConfig:
    """Returns a task whose training file is also its dev set."""
    path = str(put(tmp_path / "own.tsv", "text\tlabel", *rows))
    return TaskConfig(name="own/sequence", own=OwnDataConfig(train=path, dev=path, problem=problem, separator=",", **fields))


def test_own_classes_values_and_label_sets_are_learned_and_scored(tmp_path: pathlib.Path, tiny: Tokenizer):
    classes = load(own(tmp_path, "classification", "a\tyes", "b\tno", "c\tyes"))
    assert classes.head.labels == ("no", "yes")
    assert classes.baseline("dev").scores == {"accuracy": pytest.approx(2 / 3), "macro_f1": pytest.approx(0.4), "matthews": 0.0}
    values = load(own(tmp_path, "regression", "a\t1", "b\t2", "c\t3"))
    assert values.head.labels == ("score",)
    assert values.baseline("dev").scores == {"pearson": 0.0, "spearman": 0.0, "mean_squared_error": pytest.approx(2 / 3)}
    sets = load(own(tmp_path, "multi_label", "a\tred,blue", "b\t", "c\tred"))
    assert sets.head.labels == ("blue", "red")
    features = sets.features("dev", tiny)
    assert [feature.target.tolist() for feature in features if feature.target is not None] == [[1, 1], [0, 0], [0, 1]]
    assert features[0].target.dtype == np.float32  # type: ignore[union-attr]
    said = [np.array(row, np.float32) for row in ([-1, 2], [-3, -1], [1, 1])]
    assert sets.scores("dev", said) == {"micro_f1": pytest.approx(2 * 2 / (3 + 3)), "accuracy": pytest.approx(1 / 3)}
    assert sets.baseline("dev").scores == {"micro_f1": pytest.approx(4 / 6), "accuracy": pytest.approx(1 / 3)}  # of "red"
    assert list(sets.baseline("dev").named) == ["red for all, best on dev"]
    assert list(values.baseline("dev").named) == ["2 for all, most frequent in training"]
    none = dataclasses.replace(sets, splits=sets.splits | {"dev": [TextExample("0", "a", label=())]})  # type: ignore[operator]
    assert none.baseline("dev").named == {"no label for all, most frequent in training": 0.0}
    assert sets.degeneracy("dev", [said[0]] * 3)
    assert not sets.degeneracy("dev", said)
    alike = dataclasses.replace(sets, splits={"dev": [sets.splits["dev"][0]] * 3})
    assert not alike.degeneracy("dev", [said[0]] * 3), "all labels are the same"
    [path] = sets.write_predictions(tmp_path, "dev", said)
    assert [line.split("\t")[:3] for line in path.read_text().splitlines()[1:]] == [
        ["0", "red", "red, blue"],
        ["1", "", ""],
        ["2", "blue, red", "red"],
    ]


def test_an_own_test_set_may_be_partly_labelled(tmp_path: pathlib.Path, tiny: Tokenizer):
    path = put(tmp_path / "a.tsv", "text\tlabel", "a\tyes", "b\tno")
    test = put(tmp_path / "b.tsv", "text\tlabel", "a\t", "b\tno", "c\tyes")
    task = load(TaskConfig(name="own/sequence", own=OwnDataConfig(train=str(path), dev=str(path), test=str(test))))
    assert [feature.target for feature in task.features("test", tiny)] == [None, 0, 1]
    assert task.scores("test", logits(task, 1, 0, 0))["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("a\tyes", "a\tyes", "has the label 'yes'; give examples with two or more"),
        ("a\tyes\nb\tno", "a\tmaybe", "line 2: the label 'maybe' is not known; known: no, yes"),
        ("a\tyes\nb\tno", None, r"no examples of the dev split; give examples with config\.task\.own\.dev"),
    ],
)
def test_unusable_own_data_is_refused(tmp_path: pathlib.Path, train: str, dev: str | None, message: str):
    files = {"train": str(put(tmp_path / "train.tsv", "text\tlabel", train))}
    if dev:
        files["dev"] = str(put(tmp_path / "dev.tsv", "text\tlabel", dev))
    with pytest.raises(UserError, match=message):
        load(TaskConfig(name="own/sequence", own=OwnDataConfig(**files)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNLI"])
def test_the_real_files_give_official_submissions(shared_data: pathlib.Path, tmp_path: pathlib.Path, tiny: Tokenizer, name: str):
    if not (shared_data / "glue" / name).is_dir():
        pytest.skip(f"needs glue/{name} in ../shared/data")
    task = load(config(f"glue/{name.lower().replace('-', '')}", shared_data / "glue", length=64, train_rows=100))
    draw = np.random.default_rng(0)
    said = [draw.normal(size=task.head.num_outputs).astype(np.float32) for _ in task.splits["test"]]
    [path] = task.write_predictions(tmp_path, "test", said)
    assert path.name == f"{name}.tsv"
    assert len(collect_predictions([tmp_path])[name]) == SUBMISSION[name].rows
    scores = task.scores("dev", [draw.normal(size=task.head.num_outputs) for _ in task.splits["dev"]])
    assert all(-1 <= value <= 1 for value in scores.values())
    assert len(task.features("dev", tiny)) == len(task.splits["dev"])
