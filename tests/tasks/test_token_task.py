from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.entity_scores import SCHEMES, entity_scores
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.token_task import TokenTask, load
from tests.compressed import zstd

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "scores_golden.json").read_text())["tags"]
LETTERS = "abcdefghij"
Sentences = list[list[tuple[str, str]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer in which a word of n letters is n pieces."""
    path: pathlib.Path = tmp_path_factory.mktemp("token_task") / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    path.write_text("\n".join(pieces) + "\n")
    return load_tokenizer(path, lowercase=True)


def conll(sentences: Sentences) -> str:
    return "".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)


def wnut(directory: pathlib.Path, train: Sentences, dev: Sentences, say=print, **settings) -> TokenTask:
    (directory / "wnut17train.conll").write_text(conll(train))
    (directory / "emerging.dev.conll").write_text(conll(dev))
    return load(TaskConfig(name="wnut17", data_dir=str(directory), **settings), say)


def test_words_longer_than_a_row_are_reported_once(tokenizer: Tokenizer, tmp_path: pathlib.Path):
    said: list[str] = []
    sentences = [[("a", "O"), ("\u200b", "O"), ("abcdefghij" * 2, "O"), ("abcdefghij", "O")]]
    task = wnut(tmp_path, sentences, [[("b", "O")]], said.append, length=12)
    for _ in range(2):
        task.features("train", tokenizer)
    task.features("dev", tokenizer)
    assert [line.partition(", train: ")[2] for line in said] == [
        "the tokenizer can read no character of 1 word; [UNK] is used instead",
        "1 word longer than 10 pieces; only the first 10 pieces of such a word are read",
    ]


def test_a_long_sentence_is_split_into_overlapping_rows(tokenizer: Tokenizer, tmp_path: pathlib.Path):
    letters = [(letter, "O") for letter in "abcdefghijab"]
    task = wnut(tmp_path, [letters[:8]], [letters], length=10)
    (whole,) = task.features("train", tokenizer)
    assert whole.target is not None
    assert np.flatnonzero(whole.target >= 0).tolist() == list(range(1, 9))
    shown = [
        (tokenizer.decode(feature.ids[0][1:-1]), np.flatnonzero(feature.target >= 0).tolist())
        for feature in task.features("dev", tokenizer)
        if feature.target is not None
    ]
    assert shown == [("a b c d e f g h", [1, 2, 3, 4]), ("c d e f g h i j", [3, 4, 5, 6]), ("e f g h i j a b", [5, 6, 7, 8])]
    empty = dataclasses.replace(task, splits={"train": [WordsExample("0", (), (), 0)]})
    assert empty.features("train", tokenizer) == []


def said_by(task: TokenTask, features: list[Feature], predictions: list[list[str]]) -> list[np.ndarray]:
    """Returns logits that give the predictions at the labelled columns of the features, and anything elsewhere."""
    draw = np.random.default_rng(0)
    rest = [iter(tags) for tags in predictions]
    logits = []
    for feature in features:
        values = draw.normal(size=(feature.size, len(task.labels))).astype(np.float32)
        assert feature.target is not None
        for column in np.flatnonzero(feature.target >= 0):
            values[column, task.labels.index(next(rest[feature.example]))] = 9
        logits.append(values)
    assert all(next(tags, None) is None for tags in rest)
    return logits


def from_targets(task: TokenTask, features: list[Feature]) -> list[np.ndarray]:
    return [np.eye(len(task.labels), dtype=np.float32)[np.maximum(feature.target, 0)] for feature in features]


def random_sentences(draw: random.Random, count: int, longest: int, tags: str) -> Sentences:
    def word() -> str:
        return "".join(draw.choices(LETTERS, k=draw.choice((1, 1, 2, 5))))

    return [[(word(), draw.choice(tags.split())) for _ in range(draw.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_every_word_is_labelled_once_with_as_much_context_as_fits(context, tokenizer, tmp_path):
    draw = random.Random(0)
    for length in (8, 13, 30, 64):
        room = length - 2
        sentences = random_sentences(draw, 40, 40, "O B-x I-x B-y")
        text = ""
        for i, sentence in enumerate(sentences):
            text += ("-DOCSTART- -X- O\n\n" if i % 4 == 0 else "") + "".join(f"{w} - {t}\n" for w, t in sentence) + "\n"
        for name in ("train.txt", "valid.txt"):
            (tmp_path / name).write_text(text)
        task = load(TaskConfig(name="conll2003", data_dir=str(tmp_path), context=context, length=length), print)
        features = task.features("dev", tokenizer)
        assert [feature.example for feature in features] == sorted(feature.example for feature in features)
        labelled: list[list[tuple[int, str]]] = [[] for _ in sentences]
        for feature in features:
            ids, target = feature.ids[0].tolist(), feature.target
            assert len(ids) <= length
            assert (ids[0], ids[-1], feature.types[0].max()) == (tokenizer.cls_id, tokenizer.sep_id, 0)
            columns = np.flatnonzero(target >= 0)
            labelled[feature.example] += [(ids[c], task.labels[target[c]]) for c in columns]
            first = feature.example // 4 * 4
            members = range(first, first + 4) if context == "document" else [feature.example]
            whole = tokenizer.encode(" ".join(word for i in members for word, _ in sentences[i]))
            starts = [i for i in range(len(whole) - len(ids) + 3) if whole[i : i + len(ids) - 2] == ids[1:-1]]
            assert starts, "a feature has a part of its text"
            shows_all = len(ids) - 2 == len(whole)
            assert shows_all or len(ids) > length - 2 * 5, "less than a word would fit on either side"
            assert shows_all or not tokenizer.is_continuation(feature.ids[0][1:2])[0], "words are not cut"
            if len(columns) < len(sentences[feature.example]):
                before, after = columns[0] - 1, len(ids) - 2 - columns[-1]
                assert before >= room // 4 - 5 or starts[0] == 0
                assert after >= room // 4 - 5 or starts[-1] + len(ids) - 2 == len(whole)
        for sentence, found in zip(sentences, labelled, strict=True):
            assert found == [(tokenizer.encode(word)[0], tag) for word, tag in sentence]


@pytest.mark.parametrize("scheme", ["", *SCHEMES])
def test_correct_logits_score_1_in_every_scheme(scheme, tokenizer, tmp_path):
    draw = random.Random(1)
    tags = "O O B-PER I-PER E-PER S-LOC I-LOC B-LOC"  # not in the order of any scheme
    train, dev = (random_sentences(draw, 60, 30, tags) for _ in range(2))
    task = wnut(tmp_path, train, train + dev, scheme=scheme, length=40)
    features = task.features("dev", tokenizer)
    scores = task.scores("dev", from_targets(task, features))
    assert scores == dict.fromkeys(("f1", "precision", "recall", "accuracy", "f1_LOC", "f1_PER"), 1.0)
    assert len(features) > 120
    prefixes = {"IOB2": "BIO", "IOE2": "EIO", "BIOES": "BEIOS"}
    if scheme in prefixes:
        assert {label[0] for label in task.labels} == set(prefixes[scheme])


def test_scores_equal_seqeval(tokenizer, tmp_path):
    for case in GOLDEN:
        tags = {tag for part in ("labels", "predictions") for own in case[part] for tag in own}
        dev = [[("abc", tag) for tag in own] for own in case["labels"]]
        held = [i for i, own in enumerate(dev) if own]  # files cannot hold empty sentences
        task = wnut(tmp_path, [[("a", tag)] for tag in sorted(tags)], [dev[i] for i in held])
        features = task.features("dev", tokenizer)
        scores = task.scores("dev", said_by(task, features, [case["predictions"][i] for i in held]))
        assert [scores["precision"], scores["recall"], scores["f1"]] == pytest.approx(case["overall"][:3], abs=1e-12)
        for kind, (*_, f1, _) in case["types"].items():
            assert scores[f"f1_{kind}"] == pytest.approx(f1, abs=1e-12)


def test_a_label_unseen_in_training_is_reported_and_counts_as_wrong(tokenizer, tmp_path):
    notes: list[str] = []
    train = [[("a", "B-PER"), ("b", "O")]]
    dev = [[("a", "B-PER"), ("b", "B-LOC"), ("c", "I-LOC"), ("d", "O")]]
    task = wnut(tmp_path, train, dev, notes.append)
    assert notes == [
        f"{tmp_path}/emerging.dev.conll, line 2: the training set has no B-LOC, I-LOC, so 2 words of dev cannot be predicted "
        "correctly; correct the label, or add training examples with this label"
    ]
    (feature,) = task.features("dev", tokenizer)
    assert feature.target.tolist() == [-1, 0, -1, -1, 1, -1]
    logits = from_targets(task, [feature])
    scores = task.scores("dev", logits)  # untrained, they predict B-PER: three PER are predicted, one is right
    assert (scores["precision"], scores["recall"], scores["accuracy"], scores["f1_LOC"]) == (1 / 3, 1 / 2, 1 / 2, 0.0)


def test_an_absent_entity_type_has_an_f1_of_zero(tokenizer, tmp_path):
    task = wnut(tmp_path, [[("a", "B-ORG"), ("b", "O")]], [[("b", "O")]])
    features = task.features("dev", tokenizer)
    logits = from_targets(task, features)
    assert task.scores("dev", logits) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1.0, "f1_ORG": 0.0}
    with pytest.raises(ValueError, match="zip"):
        task.scores("dev", [*logits, *logits])


def test_a_label_unseen_in_training_is_named_with_its_file_in_every_scheme(tmp_path):
    notes: list[str] = []
    wnut(tmp_path, [[("a", "B-PER"), ("b", "O")]], [[("a", "O")], [("b", "I-LOC")]], notes.append, scheme="BIOES")
    (note,) = notes
    assert note.startswith(f"{tmp_path}/emerging.dev.conll, line 3: the training set has no S-LOC, so 1 word of dev")


def test_a_renamed_tag_unseen_in_training_is_found_by_its_name_in_the_file(tmp_path):
    notes: list[str] = []
    wnut(tmp_path, [[("a", "B-X"), ("b", "L-X"), ("c", "O")]], [[("a", "O")], [("b", "U-X")]], notes.append)
    renamed, unseen = notes
    assert renamed == "wnut17: the tags L-X, U-X are read as E-X, S-X"
    assert unseen.startswith(f"{tmp_path}/emerging.dev.conll, line 3: the training set has no S-X, so 1 word of dev")


def test_both_file_names_of_conll_2003_are_read_with_the_last_column_as_tag(tokenizer, tmp_path):
    for names in (("train.txt", "valid.txt", "test.txt"), ("eng.train", "eng.testa", "eng.testb")):
        directory = tmp_path / names[0]
        directory.mkdir()
        for i, name in enumerate(names):
            (directory / name).write_text(f"-DOCSTART- -X- O O\n\na NNP I-NP I-PER\n{'b VB I-VP O' * (i < 2)}\n\n")
        task = load(TaskConfig(name="conll2003", data_dir=str(directory)))
        assert {split: [e.labels for e in examples] for split, examples in task.splits.items()} == {
            "train": [("I-PER", "O")],
            "dev": [("I-PER", "O")],
            "test": [("I-PER",)],
        }
        assert (task.labels, task.metric, task.head.kind) == (("I-PER", "O"), "f1", "token")
    for bare in ("a NNP I-NP\n\n", "a\n\n"):  # a test set without its tags
        (directory / "eng.testb").write_text(f"-DOCSTART- -X- O O\n\n{bare}")
        task = load(TaskConfig(name="conll2003", data_dir=str(directory)))
        assert [(e.words, e.labels) for e in task.splits["test"]] == [(("a",), None)]
    (directory / "eng.testb").unlink()
    assert list(load(TaskConfig(name="conll2003", data_dir=str(directory))).splits) == ["train", "dev"]
    (directory / "eng.testa").unlink()
    with pytest.raises(UserError, match=r"no valid.txt or eng.testa, the dev split of conll2003"):
        load(TaskConfig(name="conll2003", data_dir=str(directory)))


def conllu(*sentences: str) -> str:
    def row(number: int, word: str, tag: str) -> str:
        return "\t".join([str(number), word, "_", tag, *"______"]) + "\n"

    rows = ("".join(row(i, *pair.split("/")) for i, pair in enumerate(sentence.split(), 1)) for sentence in sentences)
    return "\n".join(rows) + "\n"


def test_parts_of_speech_are_scored_word_by_word(tokenizer, tmp_path):
    (tmp_path / "en-ud-train.conllu").write_text(conllu("a/DET b/NOUN c/NOUN", "a/DET b/VERB b/VERB d/NOUN"))
    (tmp_path / "en-ud-dev.conllu.zst").write_bytes(zstd(conllu("a/DET c/VERB", "b/VERB j/NOUN").encode()))
    task = load(TaskConfig(name="pos", data_dir=str(tmp_path)))
    assert (task.labels, task.metric) == (("DET", "NOUN", "VERB"), "accuracy")
    features = task.features("dev", tokenizer)
    assert task.scores("dev", from_targets(task, features)) == {"accuracy": 1.0, "macro_f1": 1.0}
    said = said_by(task, features, [["DET", "NOUN"], ["NOUN", "NOUN"]])
    # F1: 1 for DET; 1/2 for NOUN, which is predicted three times and right once; 0 for VERB
    assert task.scores("dev", said) == {"accuracy": 0.5, "macro_f1": 0.5}
    # NOUN is most frequent in training, VERB in dev; b is VERB more often, and j was never seen
    usual = {"word_accuracy": 0.75, "word_macro_f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3)}
    assert task.baseline("dev").scores == {"accuracy": 0.5, "macro_f1": pytest.approx(2 / 3 / 3)} | usual
    (tmp_path / "other-train.conllu").write_text(conllu("a/DET"))
    with pytest.raises(UserError, match=r"has both en-ud-train.conllu and other-train.conllu for the train split"):
        load(TaskConfig(name="pos", data_dir=str(tmp_path)))


def test_the_baselines_are_a_single_tag_and_the_usual_tag_of_a_word(tokenizer, tmp_path):
    train = [[("a", "B-PER"), ("b", "O"), ("b", "B-PER"), ("c", "O")], [("a", "B-PER"), ("b", "O"), ("c", "O"), ("d", "O")]]
    dev = [[("a", "B-PER"), ("b", "B-PER"), ("j", "O"), ("c", "O")]]
    found = wnut(tmp_path, train, dev).baseline("dev").scores
    same = {"f1": 2 / 3, "precision": 0.5, "recall": 1.0, "accuracy": 0.5, "f1_PER": 2 / 3}  # B-PER for every word
    usual = {"word_f1": 2 / 3, "word_precision": 1.0, "word_recall": 0.5, "word_accuracy": 0.75, "word_f1_PER": 2 / 3}
    assert found == pytest.approx(same | usual)


def test_the_baselines_predict_tags_of_the_scheme(tmp_path):
    train = [[("a", "B-PER"), ("o", "O"), ("o", "O")]]
    found = wnut(tmp_path, train, [[("a", "B-PER")]], scheme="BIOES").baseline("dev")
    assert [*found.named] == ["'S-PER' for all, best on dev", "each word's most frequent label in training"]
    assert (found.scores["accuracy"], found.scores["word_accuracy"]) == (1.0, 1.0)


def test_a_single_label_for_every_word_is_degenerate(tokenizer, tmp_path):
    train = [[("abc", "B-PER"), ("ab", "O")], [("a", "O")]]
    task = wnut(tmp_path, train, train)
    features = task.features("dev", tokenizer)
    assert task.degeneracy("dev", said_by(task, features, [["O", "O"], ["O"]]))
    assert not task.degeneracy("dev", said_by(task, features, [["O", "O"], ["B-PER"]]))
    with pytest.raises(ValueError, match="call features"):
        task.scores("train", [])


def test_words_without_a_piece_or_with_too_many_are_reported_once_and_predicted(tokenizer, tmp_path):
    notes: list[str] = []
    train = [[("\u200b", "B-PER"), ("abcdefghij", "O"), ("b", "B-LOC")]]
    task = wnut(tmp_path, train, train, notes.append, length=8)
    for _ in range(2):
        features = task.features("dev", tokenizer)
    assert notes == [
        "wnut17, dev: the tokenizer can read no character of 1 word; [UNK] is used instead",
        "wnut17, dev: 1 word longer than 6 pieces; only the first 6 pieces of such a word are read",
    ]
    pieces = [tokenizer.tokens(feature.ids[0])[1:-1] for feature in features]
    assert pieces == [["[UNK]"], ["a", *(f"##{x}" for x in "bcdef")], ["b"]]
    assert task.scores("dev", from_targets(task, features))["f1"] == 1.0


def test_predictions_are_written_for_conlleval(tokenizer, tmp_path):
    train = [[("a", "B-PER"), ("ab", "I-PER"), ("c\u00a0d", "O")], [("b", "B-LOC")]]
    task = wnut(tmp_path, train, train, scheme="BIOES")
    features = task.features("dev", tokenizer)
    said = said_by(task, features, [["B-PER", "E-PER", "S-LOC"], ["O"]])
    (path,) = task.write_predictions(tmp_path / "new", "dev", said)
    assert path.name == "dev.conll"
    assert path.read_text() == "a B-PER B-PER\nab I-PER I-PER\nc_d O B-LOC\n\nb B-LOC O\n\n"
    blocks = [[line.split(" ") for line in block.split("\n")] for block in path.read_text().strip().split("\n\n")]
    overall, _ = entity_scores([[row[2] for row in rows] for rows in blocks], [[row[1] for row in rows] for rows in blocks])
    assert overall.f1 == task.scores("dev", said)["f1"] == 0.5


def test_labels_that_are_not_tags_are_refused_for_entities(tmp_path):
    with pytest.raises(UserError, match=r"emerging\.dev\.conll, line 1 has the label 'PER', not an entity tag such as O"):
        wnut(tmp_path, [[("a", "O")]], [[("a", "PER")]])
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("-DOCSTART- -X- O O\n\na NNP I-NP PER\n\n")
    with pytest.raises(UserError, match=r"train\.txt, line 3 has the label 'PER'"):
        load(TaskConfig(name="conll2003", data_dir=str(tmp_path)))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conllu").write_text(conllu("a/DET"))
    with pytest.raises(UserError, match=r"train\.conllu, line 1 has the label 'DET'.*; set config.task.scheme=\"\""):
        load(TaskConfig(name="pos", data_dir=str(tmp_path), scheme="IOB2"))


def unlike_same_file(notes: list[str]) -> Callable[[str], None]:
    """Returns a function that keeps all notes but the warning that train and dev are one file, as they are here."""
    return lambda note: None if "are the same file" in note else notes.append(note)


@pytest.mark.parametrize(("tag", "metric"), [("B-x", "f1"), ("x", "accuracy"), ("O", "accuracy")])
def test_own_labels_are_entity_tags_if_all_are_valid_tags(tag: str, metric: str, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"words": ["a"], "labels": [label]}) + "\n" for label in ("O", tag)))
    assert load(TaskConfig(name="own/token", own=OwnDataConfig(train=str(path), dev=str(path)))).metric == metric
    assert wnut(tmp_path, [[("a", "O")]], [[("a", "O")]]).metric == "f1"


def test_tags_of_other_schemes_are_entities(tokenizer, tmp_path):
    sentence = [("a", "B-X"), ("b", "L-X"), ("c", "U-Y"), ("d", "O")]
    notes: list[str] = []
    (tmp_path / "train.conll").write_text(conll([sentence]))
    own = OwnDataConfig(train=str(tmp_path / "train.conll"), dev=str(tmp_path / "train.conll"))
    task = load(TaskConfig(name="own/token", own=own), unlike_same_file(notes))
    assert notes == ["own/token: the tags L-X, U-Y are read as E-X, S-Y"]
    assert wnut(tmp_path, [sentence], [sentence]).labels == task.labels == ("B-X", "E-X", "O", "S-Y")
    features = task.features("dev", tokenizer)
    scores = task.scores("dev", from_targets(task, features))
    assert scores == dict.fromkeys(("f1", "precision", "recall", "accuracy", "f1_X", "f1_Y"), 1.0)
    named = load(
        TaskConfig(name="own/token", own=dataclasses.replace(own, label_names=("O", "U-Y", "L-X", "B-X"))),
        unlike_same_file(notes),
    )
    assert named.labels == ("O", "S-Y", "E-X", "B-X")


@pytest.mark.parametrize("labels", ["B-X L-X E-X O", "B-X I-X O MISC", "B-X I-X X-I O", "B-X I-X 0"])
def test_the_reason_for_scoring_tags_as_words_is_reported(labels: str, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"words": labels.split(), "labels": labels.split()}) + "\n")
    notes: list[str] = []
    task = load(TaskConfig(name="own/token", own=OwnDataConfig(train=str(path), dev=str(path))), unlike_same_file(notes))
    assert task.metric == "accuracy"
    (note,) = notes
    assert note.startswith(f"WARNING: {path}, line 1 has the label ")
    assert "the metric is accuracy over words" in note


def test_names_of_entities_without_a_scheme_are_reported(tmp_path):
    def notes(*labels: str) -> list[str]:
        path, said = tmp_path / "train.jsonl", list[str]()
        path.write_text(json.dumps({"words": ["a"] * len(labels), "labels": labels}) + "\n")
        load(TaskConfig(name="own/token", own=OwnDataConfig(train=str(path), dev=str(path))), unlike_same_file(said))
        return said

    (note,) = notes("O", "person-actor", "O", "O")  # as in Few-NERD
    assert note.startswith("WARNING: own/token: 75% of the words of train are O, but labels such as 'person-actor' have")
    assert notes("O", "I-person-actor", "O", "O") == []
    assert notes("O", "person", "thing", "O") == []


def test_words_with_classes_of_their_own_need_no_warning(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"words": ["a", "b"], "labels": ["NN-B", "O-X"]}) + "\n")
    notes: list[str] = []
    assert (
        load(TaskConfig(name="own/token", own=OwnDataConfig(train=str(path), dev=str(path))), unlike_same_file(notes)).metric
        == "accuracy"
    )
    assert notes == []


def test_own_sentences_get_their_document_as_context_in_any_order(tokenizer, tmp_path):
    rows = [(["a", "b"], ["x", "y"], "one"), (["c"], ["x"], "two"), (["d", "e"], ["y", "y"], "one")]
    labelled = [{"words": words, "labels": labels, "document": document} for words, labels, document in rows]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    unlabelled = [{"words": words, "document": document} for words, _, document in rows]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unlabelled))
    files = {split: str(tmp_path / f"{file}.jsonl") for split, file in (("train", "train"), ("dev", "train"), ("test", "test"))}
    own = OwnDataConfig(**files, document="document")
    task = load(TaskConfig(name="own/token", own=own, context="document"))
    assert (task.labels, task.metric) == (("x", "y"), "accuracy")
    with pytest.raises(UserError, match=r"train\.jsonl, line 1 has the label 'x', not an entity tag .*; set config"):
        load(TaskConfig(name="own/token", own=own, scheme="IOB2"))
    named = load(TaskConfig(name="own/token", own=dataclasses.replace(own, label_names=("y", "z", "x"))))
    assert named.labels == ("y", "z", "x")
    features = task.features("dev", tokenizer)
    assert [tokenizer.decode(feature.ids[0][1:-1]) for feature in features] == ["a b d e", "c", "a b d e"]
    assert [feature.target.tolist() for feature in features] == [[-1, 0, 1, -1, -1, -1], [-1, 0, -1], [-1, -1, -1, 1, 1, -1]]
    logits = from_targets(task, features)
    assert task.scores("dev", logits)["accuracy"] == 1.0
    hidden = task.features("test", tokenizer)
    assert [feature.target for feature in hidden] == [None] * 3
    said = [np.tile(np.float32([0, 1]), (feature.size, 1)) for feature in hidden]
    assert (task.scores("test", said), task.baseline("test").scores) == ({}, {})
    (path,) = task.write_predictions(tmp_path, "test", said)
    assert path.read_text() == "a y\nb y\n\nc y\n\nd y\ne y\n\n"


def test_train_rows_keeps_the_labels_of_all_rows(tokenizer, tmp_path):
    notes: list[str] = []
    train = [[("a", "B-PER")], [("b", "O")], [("c", "B-LOC")]]
    task = wnut(tmp_path, train, train, notes.append, train_rows=2, context="document")
    assert (len(task.features("train", tokenizer)), len(task.features("dev", tokenizer))) == (2, 3)
    assert task.labels == ("B-LOC", "B-PER", "O")
    assert [text.partition(":")[0] for text in notes] == ["wnut17, train", "wnut17, dev"], "no document has two sentences"


@pytest.mark.parametrize(
    ("name", "folder", "context"), [("wnut17", "wnut17", "sentence"), ("pos", "ud_english_ewt", "document")]
)
def test_every_word_of_real_files_is_evaluated_once(name, folder, context, shared_data):
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    task = load(TaskConfig(name=name, data_dir=str(shared_data / folder), context=context, length=48), lambda text: None)
    features = task.features("dev", tokenizer)
    words = [len(example.words) for example in task.splits["dev"]]
    counts = np.zeros(len(words), int)
    np.add.at(counts, [feature.example for feature in features], [int((feature.target >= 0).sum()) for feature in features])
    assert counts.tolist() == words
    assert max(feature.size for feature in features) == 48
    assert set(task.scores("dev", from_targets(task, features)).values()) == {1.0}
