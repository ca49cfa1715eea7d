from __future__ import annotations

import functools
import json
import math
import pathlib
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.scores import squad1_scores, squad2_scores
from bert_jax.tasks.span_task import SpanTask, answer_tokens, load

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Question = tuple[str, str, list[tuple[str, int]] | None]  # question, context, answers or None for an impossible one


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer of letters (a word of n letters is n pieces), a few words, and [UNK] for the rest."""
    path: pathlib.Path = tmp_path_factory.mktemp("span_task") / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "contend", "##ers"]
    path.write_text("\n".join([*pieces, "ten", "paris", "lyon", "who", "?", ",", "."]) + "\n")
    return load_tokenizer(path, lowercase=True)


def squad(path: pathlib.Path, questions: list[Question]) -> None:
    paragraphs = []
    for i, (question, context, answers) in enumerate(questions):
        entry: dict[str, Any] = {"id": f"q{i}", "question": question, "is_impossible": answers is None}
        entry["answers"] = [{"text": text, "answer_start": start} for text, start in answers or ()]
        paragraphs.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def squad_task(directory: pathlib.Path, train: list[Question], dev: list[Question], say=print, **settings) -> SpanTask:
    version = settings.pop("version", "v1.1")
    squad(directory / f"train-{version}.json", train)
    squad(directory / f"dev-{version}.json", dev)
    return load(TaskConfig(name=f"squad/{version}", data_dir=str(directory), **settings), say)


def right(features: list[Feature]) -> list[np.ndarray]:
    """Returns logits that predict the targets."""
    logits = []
    for feature in features:
        values = np.zeros((feature.size, 2), np.float32)
        if feature.target is not None:
            values[feature.target, [0, 1]] = 9
        logits.append(values)
    return logits


def written(task: SpanTask, directory: pathlib.Path, split: str, logits: list[np.ndarray]) -> list[Any]:
    return [json.loads(path.read_text()) for path in task.write_predictions(directory, split, logits)]


@pytest.fixture(scope="module")
def uncased(shared_data: pathlib.Path) -> Tokenizer:
    return load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")


@pytest.fixture(scope="module")
def places(uncased: Tokenizer) -> Callable[[str], np.ndarray]:
    """Returns the characters of the tokens of a context."""
    return functools.cache(lambda context: np.array(uncased.encode_with_offsets(context)[1]))


@pytest.mark.parametrize(
    ("name", "count", "inside"),
    [("dev-v1.1", 4010, 6), ("train-v2.0", 13159, 15)],
)
def test_answers_of_real_files_are_whole_tokens_except_inside_of_words(name, count, inside, shared_data, places):
    examples = read_squad(shared_data / "squad" / f"{name}.json")
    answers = [(example.context, *answer) for example in examples for answer in example.answers]
    exceptions = [answer for answer in answers if not answer_tokens(answer[0], places(answer[0]), *answer[1:])[1]]
    assert (len(answers), len(exceptions)) == (count, inside)
    for context, text, start in exceptions:  # "8" of "18", "success" of "successfully", "20,980" of "£20,980"
        edges = [context[place - 1 : place + 1] for place in (start, start + len(text))]
        assert any(re.fullmatch(r"\w\w|£\w", edge) for edge in edges)


def test_correct_logits_recover_the_answers_from_windows_of_real_files(uncased, shared_data, tmp_path):
    notes: list[str] = []
    data_dir = str(shared_data / "squad")
    config = TaskConfig(name="squad/v2.0", data_dir=data_dir, length=192, doc_stride=64, max_answer=100, train_rows=500)
    task = load(config, notes.append)
    for split in task.splits:
        features = task.features(split, uncased)
        assert len(features) > 1.1 * len(task.splits[split]), "many contexts are longer than a window"
        predictions, *_ = written(task, tmp_path, split, right(features))
        for example in task.splits[split]:
            assert predictions[example.id] in ({text for text, _ in example.answers} or {""})
    assert notes == []


ADVERSARIAL = (
    "The Café\u0301 Zürich, naïve; İstanbul ΣΟΦΟΣ straße ﬁne ½ ½",  # letters that fold, lengthen, decompose
    "smile 😀 and 👩‍👩‍👧 then 🇩🇪 flags\u200b hidden\u00ad soft",
    "東京は日本の首都 and 北京 too, 한국어 हिन्दी العربية",
    "tab\there\u00a0nbsp\u3000wide\r\nline\x0bfeed\x00nul \ufffd odd\u2028sep",
    "e\u0301e\u0300\u0323 q\u0307\u0323 ẛ̣ \u1e9b\u0323 Å Å ﷺ",
)


@pytest.mark.parametrize("kind", ["uncased", "cased", "sentencepiece"])
def test_answers_in_any_script_are_recovered_exactly_through_windows(kind, tmp_path, request):
    if kind == "sentencepiece":
        tokenizer = train_sentencepiece([[" ".join(ADVERSARIAL), *ADVERSARIAL, "who is it"] * 20], 300, False)
    else:
        tokenizer = load_tokenizer(request.getfixturevalue("shared_data") / "vocab" / f"bert-base-{kind}-vocab.txt")
    draw = random.Random(0)
    questions: list[Question] = []
    for _ in range(150):
        context = "  ".join(draw.sample(ADVERSARIAL, len(ADVERSARIAL)))
        words = tokenizer.word_spans(context)
        first = draw.randrange(len(words))
        start, end = words[first][0], words[min(first + draw.randrange(3), len(words) - 1)][1]
        if context[start:end].strip():
            questions.append(("who is it", context, [(context[start:end], start)]))
    notes: list[str] = []
    task = squad_task(tmp_path, questions, questions, notes.append, length=60, doc_stride=12, max_answer=60)
    features = task.features("dev", tokenizer)
    assert len(features) > 2 * len(questions) > 250
    predictions, _ = written(task, tmp_path, "dev", right(features))
    text = (tmp_path / "dev_predictions.json").read_text()
    assert text.startswith('{\n  "q0"'), "by two spaces"
    assert not text.isascii(), "letters as they are"
    assert predictions == {f"q{i}": answers[0][0].strip() for i, (_, _, answers) in enumerate(questions)}
    assert task.scores("dev", right(features))["exact_match"] == 100.0
    assert notes == []


def test_a_window_without_the_whole_answer_has_cls_as_target(tokenizer, tmp_path):
    context = "a b c d e f g h"
    task = squad_task(tmp_path, [("who", context, [("d e", 6)])], [("who", context, [("d e", 6)])], length=8, doc_stride=1)
    features = task.features("train", tokenizer)
    shown = [tokenizer.decode(feature.ids[0]) for feature in features]
    assert shown == [f"[CLS] who [SEP] {context[i : i + 7]} [SEP]" for i in (0, 2, 4, 6, 8)]
    assert [feature.target.tolist() for feature in features] == [[0, 0], [5, 6], [4, 5], [3, 4], [0, 0]]
    assert [feature.types[0].tolist() for feature in features] == [[0] * 3 + [1] * 5] * 5
    assert {feature.example for feature in features} == {0}


def test_questions_and_answers_are_limited_in_tokens(tokenizer, tmp_path):
    questions: list[Question] = [("who who who ?", "a b c d", [("b c d", 2)])]
    for most, answer in ((3, "b c d"), (2, "b c")):
        task = squad_task(tmp_path, questions, questions, max_question=2, max_answer=most)
        (feature,) = task.features("dev", tokenizer)
        assert tokenizer.decode(feature.ids[0]) == "[CLS] who who [SEP] a b c d [SEP]"
        (logits,) = right([feature])
        logits[6, 1] = 5  # the second best end is [SEP], which is too far for 2 words
        assert written(task, tmp_path, "dev", [logits])[0] == {"q0": answer}


def test_an_answer_inside_of_a_token_is_learned_where_it_is_a_whole_word(tokenizer, tmp_path):
    notes: list[str] = []
    questions: list[Question] = [
        ("who", "ten, a contenders ten ten", [("ten", 10)]),  # the file gives a position inside the longer word
        ("who", "contenders, lyon", [("ten", 3), ("lyon", 12)]),  # another annotator marked a word
        ("who", "contenders", [("ten", 3)]),  # nowhere a whole word: the target is the token that contains it
        ("who", "paris \u200b lyon", [("\u200b", 6)]),
        ("who", "paris", [("lyon", 0)]),
        ("who", "contenders", [("ten", 3), ("er", 7)]),  # neither is a whole word: the target contains the first
    ]
    task = squad_task(tmp_path, questions, questions[:1], notes.append)
    targets = [feature.target for feature in task.features("train", tokenizer)]
    assert [None if target is None else target.tolist() for target in targets] == [[8, 8], [6, 6], [3, 3], None, None, [3, 3]]
    assert notes[-2:] == [
        "squad/v1.1, train: for training, answers that start or end inside a token are extended to whole tokens "
        "(2 answers, the first is q2)",
        "squad/v1.1, train: questions without an answer in the context are not used in training (2 questions, the first is q3)",
    ]
    task.features("train", tokenizer)
    assert len(notes) == 3, "the reader's word of q4, and these two once"


@pytest.mark.parametrize(
    ("context", "offsets", "text", "start", "token"),
    [
        ("a tenders ten", [(0, 1), (2, 9), (10, 13)], " ten", 1, 2),
        ("(1895)", [(0, 1), (1, 5), (5, 6)], "1895", 1, 1),  # the token before it ends where it begins
        ("a tenders ten", [(0, 1), (1, 9), (9, 13)], "ten", 2, 2),  # white space belongs to the piece after it
        ("tenders ten a", [(0, 8), (8, 12), (12, 13)], "ten", 0, 1),  # or to the piece before it
    ],
)
def test_a_whole_word_is_found_whatever_white_space_its_token_or_answer_has(context, offsets, text, start, token):
    assert answer_tokens(context, np.array(offsets), text, start) == ((token, token), True)


def test_scores_equal_the_official_ones_on_the_written_file(tokenizer, tmp_path):
    draw = np.random.default_rng(0)
    questions: list[Question] = [("who", " ".join(draw.choice(list(LETTERS), 40)), None) for _ in range(30)]
    questions = [(q, text, [(text[2 * i : 2 * i + 5], 2 * i)] * 2) for i, (q, text, _) in enumerate(questions)]
    task = squad_task(tmp_path, questions, questions, length=20, doc_stride=5)
    features = task.features("dev", tokenizer)
    logits = [values * draw.integers(0, 2) + draw.normal(size=values.shape).astype(np.float32) for values in right(features)]
    predictions, best = written(task, tmp_path, "dev", logits)
    gold = {f"q{i}": [text for text, _ in answers or ()] for i, (_, _, answers) in enumerate(questions)}
    scores = task.scores("dev", logits)
    assert scores == squad1_scores(gold, predictions)
    assert task.in_percent
    assert 20 < scores["f1"] < 90
    assert next(iter(scores)) == task.metric
    for name, entries in best.items():
        assert entries[0]["text"] == predictions[name]
        assert len(entries) == 20
        context = questions[int(name[1:])][1]
        assert all(context[entry["start"] : entry["end"]] == entry["text"] for entry in entries)
        assert math.isclose(sum(entry["probability"] for entry in entries), 1)
    assert task.baseline("dev").scores in [squad1_scores(gold, dict.fromkeys(gold, texts[0])) for texts in gold.values()]


def margins(features: list[Feature], wanted: list[float]) -> list[np.ndarray]:
    """Returns logits that predict the word after "who [SEP]", with these margins of "no answer"."""
    logits = [np.full((feature.size, 2), -20, np.float32) for feature in features]
    for values, margin in zip(logits, wanted, strict=True):
        values[3] = 1
        values[0] = 1 + margin / 2
    return logits


def unanswerable(directory: pathlib.Path, **settings) -> SpanTask:
    answered: Question = ("who", "paris", [("paris", 0)])
    impossible: Question = ("who", "lyon", None)
    return squad_task(directory, [answered, impossible], [answered, answered, impossible, impossible], version="v2.0", **settings)


def test_the_no_answer_threshold_is_tuned_on_dev_logits_only(tokenizer, tmp_path):
    task = unanswerable(tmp_path)
    features = task.features("dev", tokenizer)
    logits = margins(features, [-3, 2, 4, 8])
    scores = task.scores("dev", logits)
    assert (scores["f1"], scores["exact"], scores["threshold"]) == (100.0, 100.0, 2.0)
    assert (scores["HasAns_f1"], scores["NoAns_f1"], scores["best_f1"], scores["best_f1_thresh"]) == (100.0, 100.0, 100.0, 2.0)
    assert not [name for name in scores if name.endswith("total")]
    worse = task.scores("dev", margins(features, [-3, 4, 2, 8]))  # another model: its scores do not depend on the previous one
    assert (worse["f1"], worse["threshold"]) == (75.0, -3.0)
    nothing = task.scores("dev", margins(features, [-2, 9, -5, -6]))  # always "no answer" is best: below -6
    assert (nothing["f1"], nothing["best_f1"], nothing["threshold"] < -6) == (50.0, 50.0, True)
    assert task.scores("dev", logits) == scores
    predictions, best, odds = written(task, tmp_path, "dev", logits)
    assert (predictions, odds) == ({"q0": "paris", "q1": "paris", "q2": "", "q3": ""}, {"q0": -3, "q1": 2, "q2": 4, "q3": 8})
    assert [entry["text"] for entry in best["q1"]] == ["", "paris"]
    gold = {"q0": ["paris"], "q1": ["paris"], "q2": [], "q3": []}
    assert squad2_scores(gold, predictions).items() >= {"f1": scores["f1"], "exact": scores["exact"]}.items()
    assert task.baseline("dev").scores == {
        **{"f1": 50.0, "exact": 50.0, "HasAns_exact": 100.0, "HasAns_f1": 100.0, "NoAns_exact": 0.0, "NoAns_f1": 0.0}
    }


def test_a_question_that_must_have_an_answer_gets_one_whatever_its_margin(tokenizer, tmp_path):
    question: Question = ("who", "paris", [("paris", 0)])
    task = squad_task(tmp_path, [question], [question])
    logits = margins(task.features("dev", tokenizer), [9])
    assert written(task, tmp_path, "dev", logits)[0] == {"q0": "paris"}
    assert task.scores("dev", logits) == {"f1": 100.0, "exact_match": 100.0}


def test_the_threshold_maximises_f1_not_exact_matches(tokenizer, tmp_path):
    """Only F1 prefers a partly right answer to no answer."""
    answered: Question = ("who", "paris lyon", [("paris lyon", 0)])
    questions: list[Question] = [answered, ("who", "lyon", None)]
    task = squad_task(tmp_path, questions, questions, version="v2.0")
    scores = task.scores("dev", margins(task.features("dev", tokenizer), [1, 5]))
    assert (scores["threshold"], scores["f1"], scores["exact"]) == (1.0, pytest.approx(100 * (2 / 3 + 1) / 2), 50.0)


def test_other_splits_use_the_last_threshold_tuned_on_dev(tokenizer, tmp_path):
    task = unanswerable(tmp_path)
    train, dev = (task.features(split, tokenizer) for split in ("train", "dev"))
    assert task.scores("train", margins(train, [1, 1]))["threshold"] == 0.0
    for shift in (5.0, -5.0):
        task.scores("dev", margins(dev, [shift, shift, shift + 2, shift + 2]))
        assert task.scores("train", margins(train, [shift, shift + 2])).items() >= {"f1": 100.0, "threshold": shift}.items()
        predictions, *_ = written(task, tmp_path, "train", margins(train, [shift, shift + 2]))
        assert predictions == {"q0": "paris", "q1": ""}


def test_parallel_runs_of_a_sweep_have_thresholds_of_their_own(tokenizer, tmp_path):
    task = unanswerable(tmp_path)
    train, dev = (task.features(split, tokenizer) for split in ("train", "dev"))
    task.scores("dev", margins(dev, [5, 5, 7, 7]))
    with ThreadPoolExecutor(1) as other:
        other.submit(task.scores, "dev", margins(dev, [-5, -5, -3, -3])).result()
    assert task.scores("train", margins(train, [5, 7]))["threshold"] == 5.0


def test_a_question_without_any_span_has_finite_margins(tokenizer, tmp_path):
    questions: list[Question] = [("who", "\u200b", None), ("who", "paris", [("paris", 0)])]
    task = squad_task(tmp_path, questions, questions, version="v2.0")
    features = task.features("dev", tokenizer)
    assert [feature.target.tolist() for feature in features] == [[0, 0], [3, 3]]
    predictions, _, odds = written(task, tmp_path, "dev", right(features))
    assert (predictions, math.isfinite(odds["q0"])) == ({"q0": "", "q1": "paris"}, True)
    assert task.scores("dev", right(features))["f1"] == 100.0


def test_a_model_that_always_points_at_cls_or_at_one_place_is_degenerate(tokenizer, tmp_path):
    task = unanswerable(tmp_path)
    features = task.features("dev", tokenizer)
    never = [np.random.default_rng(i).normal(size=(feature.size, 2)) for i, feature in enumerate(features)]
    for values in never:
        values[0, 0] = 9
    assert task.degeneracy("dev", never) == "every predicted span starts at [CLS], which is not an answer"
    same = margins(features, [-3] * 4)
    assert task.degeneracy("dev", same) == "every predicted span is at the same position"
    same[0][4, 1] = 30  # one span ends at another position
    assert "same position" not in task.degeneracy("dev", same)
    # the best threshold predicts "no answer" for all
    assert task.degeneracy("dev", margins(features, [4, 8, -3, 2])) == 'the prediction is "no answer" for every question'
    assert task.degeneracy("dev", margins(features, [-3, 2, 4, 8])) == ""
    task.scores("dev", margins(features, [5, 5, 7, 7]))
    at_threshold = margins(task.features("train", tokenizer), [5, 5])
    at_threshold[0][1] = 50  # it points at the question
    assert task.degeneracy("train", at_threshold) == ""


def test_logits_before_features_and_of_another_split_are_refused(tokenizer, tmp_path):
    task = unanswerable(tmp_path)
    with pytest.raises(ValueError, match=r"call features\('dev', tokenizer\) first"):
        task.scores("dev", [])
    logits = right(task.features("train", tokenizer))
    task.features("dev", tokenizer)
    with pytest.raises(ValueError, match="logits of 2 features do not belong to dev"):
        task.scores("dev", logits)


def own(directory: pathlib.Path, train: list[dict], dev: list[dict], test: list[dict], **columns) -> TaskConfig:
    files = {}
    for split, rows in {"train": train, "dev": dev, "test": test}.items():
        path = directory / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files |= {split: str(path)} if rows else {}
    return TaskConfig(name="own/span", own=OwnDataConfig(**files, **columns))


def test_own_questions_are_scored_as_squad_2_where_one_is_impossible(tokenizer, tmp_path):
    answered = {"question": "who", "context": "paris, lyon", "answers": ["lyon"]}
    impossible = answered | {"answers": []}
    hidden = {"question": "who", "context": "lyon"}
    notes: list[str] = []
    for rows, names in (([answered], {"f1", "exact_match"}), ([answered, impossible], {"f1", "exact", "NoAns_f1", "threshold"})):
        task = load(own(tmp_path, rows, rows, [hidden]), notes.append)
        features = task.features("dev", tokenizer)
        assert [feature.target.tolist() for feature in features] == [[5, 5], [0, 0]][: len(rows)]
        scores = task.scores("dev", right(features))
        assert scores["f1"] == 100.0
        assert names <= set(scores)
        (feature,) = task.features("test", tokenizer)
        assert feature.target is None
        assert (task.scores("test", right([feature])), task.baseline("test").scores) == ({}, {})
        files = written(task, tmp_path, "dev", right(features)) + written(task, tmp_path, "test", right([feature]))
        assert len(files) == 4 + 2 * (len(rows) - 1)
    assert len(list(tmp_path.glob("*.json"))) == 6, "splits do not overwrite each other"
    assert set(notes) == {
        "own/span, test: questions without an answer in the file are used neither in training nor in scores (1 question)"
    }


def test_bad_files_are_refused(tokenizer, tmp_path):
    with pytest.raises(UserError, match=r"question q1 has no answer, .* set config.task.name=squad/v2.0"):
        squad_task(tmp_path, [("who", "a", [("a", 0)])] * 2, [("who", "a", [("a", 0)]), ("who", "a", None)])
    row = {"question": "who", "context": "paris", "answers": ["paris"], "id": "one"}
    with pytest.raises(UserError, match=r"dev.jsonl: 2 questions share the id 'one'"):
        load(own(tmp_path, [row], [row, row], [], id="id"))
    with pytest.raises(UserError, match=r"train-v2.0.json .*cannot be read"):
        load(TaskConfig(name="squad/v2.0", data_dir=str(tmp_path)))
    task = squad_task(tmp_path, [("who", "a", [("a", 0)])] * 3, [("who", "a", [("a", 0)])], train_rows=2, length=8)
    assert len(task.features("train", tokenizer)) == 2
    task = squad_task(tmp_path, [("who who who who who", "a", [("a", 0)])], [("who", "a", [("a", 0)])], length=8)
    with pytest.raises(UserError, match="rows of 8 tokens leave no room"):
        task.features("train", tokenizer)
