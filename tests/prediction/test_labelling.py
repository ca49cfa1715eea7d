from __future__ import annotations

import copy
import dataclasses
import random

import numpy as np
import pytest

from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.labelling import AnswerQuestion, Choose, Classify, Tag, _Tagged, _word_windows, entities
from bert_jax.prediction.predictor import Predictor
from bert_jax.tasks.spans import Answer, Span, windows
from tests.interop.tiny import WORDS, make_labelled_model
from tests.prediction.reference import WITHIN, first_devices, label_outputs, mixed_texts, softmax, with_specials

pytestmark = pytest.mark.usefixtures("one_shape")

NAMES = ("bad", "so so", "good")
SEQUENCE = SequenceHead(labels=NAMES)
SEVERAL = SequenceHead(labels=NAMES, problem="multi_label")
VALUE = SequenceHead(labels=("score",), problem="regression")
TOKENS = TokenHead(labels=("I-PER", "O", "I-LOC", "B-PER", "B-LOC"))
SPAN = SpanHead()
CHOICE = ChoiceHead()
LEFT_TO_RIGHT = {"direction": "left_to_right"}  # it reads a pair as one text, with any number of token types
TYPES = ["three token types", "left to right"]
# Heads for which transformers has no class.
POOLED = dataclasses.replace(SEQUENCE, pooling="concat", layers="scalar_mix")
LSTM = dataclasses.replace(TOKENS, lstm=5, layers="scalar_mix")
ENDS = dataclasses.replace(SEQUENCE, lstm=5)
LAST = dataclasses.replace(SEQUENCE, pooling="last_token")


@pytest.fixture(scope="module")
def mixed() -> list[str | tuple[str, str]]:
    """Returns forty texts; every third is a pair."""
    firsts, seconds = mixed_texts(40, longest=18, seed=2), mixed_texts(40, longest=18, seed=3)
    return [(a, b) if i % 3 == 0 else a for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]


def parts(text: str | tuple[str, str]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


@pytest.mark.parametrize(("head", "fields"), [(SEQUENCE, {}), (LAST, LEFT_TO_RIGHT)], ids=TYPES)
def test_texts_and_pairs_have_the_labels_of_the_unpacked_model(labelled, mixed, head, fields):
    model, predictor = labelled(head, **fields)
    answers = predictor.classify(mixed)
    for text, answer in list(zip(mixed, answers, strict=True))[::3]:
        ids, segment_b = with_specials(model, *parts(text))
        p = softmax(label_outputs(model, ids, None if fields else segment_b))
        np.testing.assert_allclose([answer["probabilities"][name] for name in NAMES], p, atol=WITHIN)
        assert answer["label"] == NAMES[p.argmax()]
        assert answer["probability"] == max(answer["probabilities"].values())
        assert ("text_b" in answer) == isinstance(text, tuple)
    assert len({round(answer["probability"], 4) for answer in answers}) > 30, "the model distinguishes the texts"


def test_a_text_is_classified_the_same_alone_and_among_others(labelled, mixed):
    _, predictor = labelled(SEQUENCE)
    together = predictor.classify(mixed)
    for i in (0, 1, 39):
        (alone,) = predictor.classify([mixed[i]])
        assert alone["probabilities"] == pytest.approx(together[i]["probabilities"], abs=WITHIN)


def test_multi_label_answers_judge_each_label_separately(labelled):
    model, predictor = labelled(SEVERAL)
    texts = mixed_texts(30)
    for text, answer in zip(texts, predictor.classify(texts), strict=True):
        p = 1 / (1 + np.exp(-label_outputs(model, with_specials(model, text)[0]).astype(np.float64)))
        np.testing.assert_allclose([answer["probabilities"][name] for name in NAMES], p, atol=WITHIN)
        assert answer["labels"] == [name for name, x in zip(NAMES, p, strict=True) if x >= 0.5]


def test_a_regression_returns_its_value(labelled):
    model, predictor = labelled(VALUE)
    texts = mixed_texts(5)
    for text, answer in zip(texts, predictor.classify(texts), strict=True):
        value = float(label_outputs(model, with_specials(model, text)[0])[0])
        assert answer == {"text": text, "value": pytest.approx(value, abs=WITHIN)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAnotherKind(TaskHead):
    """A head that classifies as `SEQUENCE` does, but is not a SequenceHead."""

    kind = "another"
    has_labels = True
    action = SequenceHead.action
    reads_pooler = True


def test_a_command_uses_every_kind_of_head_with_its_action(labelled):
    model, predictor = labelled(SEQUENCE)
    params = {("another_head" if part == "sequence_head" else part): tree for part, tree in model.params.items()}
    another = Predictor(Engine(dataclasses.replace(model, params=params, head=OfAnotherKind(labels=NAMES))))
    (found,), (wanted,) = another.classify(["the river"]), predictor.classify(["the river"])
    assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=WITHIN)
    with pytest.raises(UserError, match="has no token_head, so it cannot tag words"):
        another.tag(["the river"])


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"text": "a", "label": "good", "probability": 0.5}, " 50.00%  good  a"),
        ({"text": "a", "text_b": "b", "label": "good", "probability": 0.5}, " 50.00%  good  a | b"),
        ({"text": "a", "labels": []}, "none  a"),
        ({"text": "a", "labels": ["good", "bad"]}, "good, bad  a"),
        ({"text": "a", "value": -1.5}, "  -1.5000  a"),
        ({"text": "a", "values": {"x": 1.0, "y": 2.0}}, "x 1.0000  y 2.0000  a"),
    ],
)
def test_text_output_shows_the_label_before_the_text(answer, shown):
    assert Classify().as_text(answer) == shown


def test_a_word_has_the_label_of_its_first_piece_in_the_unpacked_model(labelled):
    model, predictor = labelled(TOKENS)
    texts = [f"{text}, Zurich!" for text in mixed_texts(40, longest=25, seed=5)]  # a word of many pieces
    answers = predictor.tag(texts)
    for i in (0, 1, 20, 39):
        text, answer = texts[i], answers[i]
        ids, offsets = model.tokenizer.encode_with_offsets(text)
        p = softmax(label_outputs(model, with_specials(model, text)[0])[1:-1])
        assert [tag["word"] for tag in answer["tags"]] == [text[a:b] for a, b in model.tokenizer.word_spans(text)]
        for tag in answer["tags"]:
            first = next(k for k, (start, _) in enumerate(offsets) if start >= tag["start"])
            assert text[tag["start"] : tag["end"]] == tag["word"]
            assert tag["label"] == TOKENS.labels[p[first].argmax()]
            assert tag["probability"] == pytest.approx(p[first].max(), abs=WITHIN)
        (alone,) = predictor.tag([text])
        assert [tag["label"] for tag in alone["tags"]] == [tag["label"] for tag in answer["tags"]]
        assert len(ids) == len(offsets)


def test_punctuation_marks_are_words_for_a_tokenizer_that_splits_only_at_spaces(tmp_path):
    """Given words keep their marks."""
    train_sentencepiece([["the river is wide in Paris, and it is not (here) or there."] * 9], 40, False).save(tmp_path)
    model = make_labelled_model(tmp_path, TOKENS, num_layers=1)
    with first_devices():
        engine = Engine(model)
    text, words = "the river is in Paris, (it) is.", ["the", "river", "is", "in", "Paris", ",", "(", "it", ")", "is", "."]
    found, given = Tag().prepare(engine, {"text": text}), Tag(words=True).prepare(engine, {"words": text.split()})
    assert found.spans is not None
    assert [text[start:end] for start, end in found.spans] == found.words == words
    assert given.words == text.split()
    assert [word["word"] for word in Predictor(engine).embed_words([text])[0]] == words


def test_classification_by_all_tokens_and_layers_equals_the_unpacked_model(labelled, mixed):
    model, predictor = labelled(POOLED)
    answers = predictor.classify(mixed)
    for i in range(0, 40, 3):
        p = softmax(label_outputs(model, *with_specials(model, *parts(mixed[i]))))
        np.testing.assert_allclose([answers[i]["probabilities"][name] for name in NAMES], p, atol=WITHIN)
    assert predictor.classify([mixed[9]])[0]["probabilities"] == pytest.approx(answers[9]["probabilities"], abs=WITHIN)


def test_tagging_with_an_lstm_equals_the_unpacked_model(labelled):
    model, predictor = labelled(LSTM)
    texts = mixed_texts(40, longest=25, seed=5)
    answers = predictor.tag(texts)
    for i in (0, 1, 20, 39):
        p = softmax(label_outputs(model, with_specials(model, texts[i])[0])[1:-1])
        (alone,) = predictor.tag([texts[i]])
        for answer in (answers[i], alone):
            assert [tag["label"] for tag in answer["tags"]] == [LSTM.labels[best] for best in p.argmax(-1)]
            np.testing.assert_allclose([tag["probability"] for tag in answer["tags"]], p.max(-1), atol=WITHIN)
    assert len({round(tag["probability"], 4) for answer in answers for tag in answer["tags"]}) > 100, "words get unlike answers"


@pytest.mark.parametrize("head", [POOLED, ENDS], ids=["concat", "ends"])
def test_many_rows_are_answered_like_single_rows(labelled, head):
    """Slots are numbered over all rows of a batch, here on eight devices."""
    model, one_row = labelled(head)
    texts = mixed_texts(30, longest=30, seed=9)
    engine = Engine(model)
    engine.tokens = 128
    many, one = (predictor.classify(texts) for predictor in (Predictor(engine), one_row))
    for ours, theirs in zip(many, one, strict=True):
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=WITHIN)


def test_given_words_are_tagged_one_by_one(labelled):
    model, predictor = labelled(TOKENS)
    words = ["New York", "is", "\u200b", "paris."]  # given words with two words and with none
    (answer,) = predictor.tag([words])
    ids, firsts, _ = model.tokenizer.encode_words(words)
    p = softmax(label_outputs(model, [model.tokenizer.cls_id, *ids, model.tokenizer.sep_id])[1:-1])[firsts]
    assert answer["words"] == words
    assert [tag["word"] for tag in answer["tags"]] == words
    assert [tag["label"] for tag in answer["tags"]] == [TOKENS.labels[i] for i in p.argmax(-1)]
    for entity in answer["entities"]:
        first, end = entity["words"]
        assert entity["text"] == " ".join(words[first:end])


def test_words_of_a_long_text_are_tagged_in_the_window_with_most_context(labelled):
    model, predictor = labelled(TOKENS)
    text = " ".join(random.Random(1).choices(WORDS, k=200))  # a token a word
    (answer,) = predictor.tag([text])
    ids, room = model.tokenizer.encode(text), model.config.max_position - 2
    half = room // 2
    starts = range(0, len(ids) - room + half, half)
    spread = {s: label_outputs(model, [model.tokenizer.cls_id, *ids[s : s + room], model.tokenizer.sep_id]) for s in starts}
    for word, tag in enumerate(answer["tags"]):
        context = {s: min(word - s, min(len(ids), s + room) - 1 - word) for s in starts}
        best = max(starts, key=lambda s: context[s])
        p = softmax(spread[best][1 + word - best])
        assert tag["probability"] == pytest.approx(p.max(), abs=WITHIN)
        assert tag["label"] == TOKENS.labels[p.argmax()]


def test_every_word_of_any_text_is_tagged_once():
    for room in (1, 2, 3, 5, 8, 37, 38):
        for count in range(1, 3 * room + 4):
            ids, firsts = list(range(count)), list(range(0, count, 2))
            items, judged = _word_windows(ids, firsts, room, -1, -2)
            starts = [item.ids[1] for item in items]
            assert sorted(word for own in judged for word, _ in own) == list(range(len(firsts)))
            for item, own in zip(items, judged, strict=True):
                assert len(item.ids) <= room + 2
                for word, column in own:
                    assert item.ids[column] == firsts[word]
                    context = min(column - 1, len(item.ids) - 2 - column)
                    ends = ((s, min(count, s + room) - 1) for s in starts)
                    assert context == max(min(firsts[word] - a, b - firsts[word]) for a, b in ends)


def conlleval_chunks(labels: list[str]) -> list[tuple[str, int, int]]:
    """Finds chunks by the rules of conlleval.pl: its two tables of when a chunk ends and when one starts, for B, I, E, S and
    O."""
    ends = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("B", "S"), ("I", "S"), *(("E", t) for t in "EIOBS")}
    ends |= {("S", t) for t in "EIOBS"}
    begins = {(p, t) for p in "BIESO" for t in "BS"} | {(p, t) for p in "ESO" for t in "IE"}
    chunks: list[tuple[str, int, int]] = []
    start, before, before_type = -1, "O", ""
    for i, label in enumerate([*labels, "O"]):
        tag, _, kind = label.partition("-")
        other = before != "O" and before_type != kind
        if start >= 0 and ((before, tag) in ends or other):
            chunks.append((before_type, start, i - 1))
            start = -1
        if tag != "O" and ((before, tag) in begins or other):
            start = i
        before, before_type = tag, kind
    return chunks


def test_entities_equal_the_chunks_of_conlleval():
    draw = random.Random(0)
    kinds = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
    for _ in range(3000):
        labels = draw.choices(kinds, k=draw.randint(0, 7))
        assert entities(labels) == conlleval_chunks(labels), labels


def test_entities_have_their_characters_in_the_text(labelled):
    _, predictor = labelled(TOKENS)
    texts = mixed_texts(60, seed=6)
    answers = predictor.tag(texts)
    assert any(len(e["text"].split()) > 1 for a in answers for e in a["entities"])
    for text, answer in zip(texts, answers, strict=True):
        found = [(e["label"], e["start"], e["end"]) for e in answer["entities"]]
        chunks = conlleval_chunks([tag["label"] for tag in answer["tags"]])
        assert found == [(kind, answer["tags"][a]["start"], answer["tags"][b]["end"]) for kind, a, b in chunks]
        assert all(e["text"] == text[e["start"] : e["end"]] for e in answer["entities"])


@pytest.mark.parametrize("text", ["New York is big", None], ids=["text", "words"])
def test_entities_are_joined_from_their_first_word_to_their_last(labelled, text):
    words = ["New York", "is", "big", "Paris"]
    spans = [(0, 8), (9, 11), (12, 15), (16, 21)] if text else None
    best = np.array([TOKENS.labels.index(label) for label in ("B-LOC", "I-LOC", "O", "I-PER")], np.int32)
    asked = _Tagged(f"{text} Paris" if text else None, words, spans, [], [])
    answer = Tag()._answer(asked, TOKENS, best, np.eye(5)[best] / 2)
    assert [(tag["word"], tag["label"], tag["probability"]) for tag in answer["tags"]] == [
        (word, TOKENS.labels[i], 0.5) for word, i in zip(words, best, strict=True)
    ]
    places: list[dict] = [{"start": 0, "end": 11}, {"start": 16, "end": 21}] if text else [{"words": [0, 2]}, {"words": [3, 4]}]
    assert answer["entities"] == [
        {"label": "LOC", "text": "New York is", **places[0]},
        {"label": "PER", "text": "Paris", **places[1]},
    ]
    assert Tag().as_text(answer) == "New York/B-LOC is/I-LOC big Paris/I-PER"


def test_entities_are_joined_from_the_tags_of_other_schemes():
    words, labels = ["New", "York", "is", "Paris"], ("B-LOC", "L-LOC", "O", "U-PER")
    answer = Tag()._answer(_Tagged(None, words, None, [], []), TokenHead(labels=labels), np.arange(4, dtype=np.int32), np.eye(4))
    assert [tag["label"] for tag in answer["tags"]] == list(labels)
    assert [(entity["label"], entity["text"]) for entity in answer["entities"]] == [("LOC", "New York"), ("PER", "Paris")]


def test_more_answers_are_shown_below_the_best():
    spans = [Span("a", 0, 1, 1.0, 2.0, 0.5), Span("", 0, 0, 1.0, 2.0, 0.25), Span("b", 2, 3, 1.0, 2.0, 0.125)]
    found = Answer(spans[0], tuple(spans), -np.inf)
    two = AnswerQuestion(n_best=2, may_be_unanswerable=True)._as_dict({"question": "who?"}, found)
    assert (two["no_answer_margin"], [span["answer"] for span in two["n_best"]]) == (None, ["a", ""])
    assert AnswerQuestion().as_text(two) == "who?\n   50.00%  a\n   25.00%  (no answer)"
    other = two | AnswerQuestion()._as_dict({"question": "who?"}, dataclasses.replace(found, best=spans[1]))
    assert AnswerQuestion().as_text(other) == "who?\n   25.00%  (no answer)\n   50.00%  a", "chosen by the threshold"
    one = AnswerQuestion()._as_dict({"question": "who?"}, found)
    assert not {"no_answer_margin", "n_best"} & one.keys()
    found = dataclasses.replace(found, no_answer_margin=1.5)
    assert AnswerQuestion(may_be_unanswerable=True)._as_dict({"question": "who?"}, found)["no_answer_margin"] == 1.5


def test_labels_that_are_not_tags_make_no_entities():
    head, words = TokenHead(labels=("NOUN", "VERB")), ["river", "is"]
    answer = Tag()._answer(_Tagged(None, words, None, [], []), head, np.arange(2, dtype=np.int32), np.eye(2))
    assert "entities" not in answer
    assert Tag().as_text(answer) == "river/NOUN is/VERB"


def test_the_choice_is_the_most_probable_of_the_unpacked_model(labelled):
    model, predictor = labelled(CHOICE)
    draw = random.Random(3)
    texts = mixed_texts(70, longest=16, seed=8)
    prompts = [(texts[i], texts[i + 1 : i + 1 + draw.randint(2, 6)]) for i in range(0, 60, 3)]
    answers = predictor.choose(prompts)
    for i in (0, 1, 19):
        prompt, choices = prompts[i]
        pairs = [with_specials(model, prompt, choice) for choice in choices]
        p = softmax(np.array([label_outputs(model, ids, b)[0] for ids, b in pairs]))
        np.testing.assert_allclose(answers[i]["probabilities"], p, atol=WITHIN)
        assert answers[i]["choice"] == p.argmax()
        assert answers[i]["text"] == choices[p.argmax()]
        np.testing.assert_allclose(predictor.choose([prompts[i]])[0]["probabilities"], p, atol=WITHIN)
    assert Choose().as_text(answers[0]).splitlines()[0] == prompts[0][0]
    engine = copy.copy(predictor.engine)
    engine.model = dataclasses.replace(model, reading={"first_choice": 1})
    (from_1,) = Predictor(engine).choose(prompts[:1])
    assert (from_1["choice"], from_1["text"]) == (answers[0]["choice"] + 1, answers[0]["text"])


ASK = {
    SEQUENCE: lambda p: p.classify(["a"]),
    TOKENS: lambda p: p.tag(["a"]),
    SPAN: lambda p: p.answer([("a", "b")]),
    CHOICE: lambda p: p.choose([("a", ["b", "c"])]),
    POOLED: lambda p: p.classify(["a"]),
    LSTM: lambda p: p.tag(["a"]),
    ENDS: lambda p: p.classify(["a"]),
}


@pytest.mark.parametrize("head", ASK, ids=lambda head: f"{head.kind}-{head.pooling}-{head.lstm}")
def test_an_untrained_head_or_pooler_is_refused(labelled, head):
    model, _ = labelled(head)
    for part in [head.subtree, *(["pooler"] if head.reads_pooler else [])]:
        fresh = Predictor(Engine(dataclasses.replace(model, untrained=frozenset([part]))))
        with pytest.raises(UserError, match=f"the {part} of this model was never trained, so it cannot .*; train it first"):
            ASK[head](fresh)


@pytest.mark.parametrize(
    ("head", "ask", "message"),
    [
        (SEQUENCE, lambda p: p.tag(["a"]), r"has no token_head, so it cannot tag words \(it has pooler, sequence_head\)"),
        (TOKENS, lambda p: p.classify(["a"]), r"has no sequence_head, so it cannot classify \(it has token_head\)"),
        (TOKENS, lambda p: p.answer([("a", "b")]), "has no span_head, so it cannot answer questions"),
        (TOKENS, lambda p: p.choose([("a", ["b", "c"])]), "has no choice_head, so it cannot choose"),
        (SEQUENCE, lambda p: p.classify(["the " * 39]), "is 41 tokens .* more than the 40 .*; shorten it, or pass --truncate"),
        (TOKENS, lambda p: p.tag(["\x01"]), r"'\\x01' holds no word; give text"),
        (CHOICE, lambda p: p.choose([("the", ["river"])]), "1 choice for 'the'; give two or more"),
        (SPAN, lambda p: p.answer([("\x01", "river")]), r"the question '\\x01' has no tokens; give text"),
        (SPAN, lambda p: p.answer([("river", "\x01")]), r"the context '\\x01' has no tokens; give text"),
        (SPAN, lambda p: p.answer([("the " * 60, "river")]), "leave no room for the context next to a question of 60 tokens"),
        (SPAN, lambda p: p.answer([("a", "b")], n_best=0), "--n-best=0 must be at least 1"),
        (SPAN, lambda p: p.answer([("a", "b")], max_answer=0), "--max-answer=0 must be at least 1"),
        (SPAN, lambda p: p.answer([("a", "b")], no_answer_threshold=float("nan")), "threshold=nan must be a finite number"),
    ],
)
def test_unanswerable_questions_are_refused_with_a_remedy(labelled, head, ask, message):
    with pytest.raises(UserError, match=message):
        ask(labelled(head)[1])


@pytest.mark.parametrize(
    ("of_pairs", "second", "is_label"),
    [
        (True, "GOOD", True),
        (True, "-1.5", True),
        (True, "good ", True),
        (True, "1.5 stars", False),
        (True, "word", False),
        (True, None, False),
        (None, "word", True),
        (None, "so so", True),
        (None, "two words", False),
        (False, "good", False),  # `prepare` refuses the pair
    ],
)
def test_a_second_text_that_is_a_label_a_number_or_perhaps_a_word_is_reported(labelled, of_pairs, second, is_label):
    engine = copy.copy(labelled(SEQUENCE)[1].engine)
    engine.model = dataclasses.replace(engine.model, of_pairs=of_pairs)
    said = Classify().label_in_line(engine, {"text": "the", "text_b": second})
    assert bool(said) == is_label
    assert not said or said.startswith(f"{second.strip()!r} seems to be a label, not a text_b, but")


@pytest.mark.parametrize(
    ("labels", "line", "is_label"),
    [
        (TOKENS.labels, "paris B-LOC", True),
        (TOKENS.labels, "paris B-ORG", False),
        (TOKENS.labels, "the river", False),
        (TOKENS.labels, "B-LOC", False),
        (TOKENS.labels, "", False),
        (TOKENS.labels, "is O", False),
        (TOKENS.labels, "is\tO", True),
        (("NOUN", "1"), "river NOUN", False),
        (("NOUN", "1"), "river\tNOUN", True),
        (("NOUN", "1"), "river\t1", False),
        (("B", "I", "O"), "my wife and I", False),
        (("B", "I", "O"), "my\twife\tand\tI", False),
        (("B", "I", "O"), "paris I", True),
    ],
)
def test_a_word_with_its_tag_is_reported(labelled, labels, line, is_label):
    engine = labelled(TokenHead(labels=labels))[1].engine
    asked = [(Tag(), {"text": line}), *([(Tag(words=True), {"words": line.split("\t")})] if "\t" in line else [])]
    for question, values in asked:
        said = question.label_in_line(engine, values)
        assert bool(said) == is_label
        assert not said or said.startswith(f"{line.split()[-1]!r} seems to be the tag of a word")


@pytest.mark.parametrize(
    ("choices", "is_label"),
    [
        (["a", "b", "1"], True),
        (["a", "b", "1 "], True),
        (["abcd", "ef", "B"], True),
        (["ab", "c d", "B"], True),
        (["1 m", "2 m", "b"], True),
        (["B6", "B12", "A"], False),
        (["abc1", "de", "A"], False),
        (["1", "2", "b"], False),
        (["a", "b"], False),
        (["1", "2", "0"], False),
        (["1"], False),
        (["abcd", "ef", "C"], False),
        (["a", "cdef", "B"], False),
        (["an", "the", "a"], False),
        (["A"], False),
    ],
)
def test_a_number_or_a_letter_after_other_choices_is_reported(labelled, choices, is_label):
    said = Choose().label_in_line(labelled(CHOICE)[1].engine, {"choices": choices})
    assert bool(said) == is_label
    assert not said or said.startswith(f"{choices[-1].strip()!r} seems to be a label, not a choices")


def test_a_context_is_read_in_windows_of_the_requested_length(labelled):
    model, predictor = labelled(SpanHead())
    context = "the river of Paris is dry " * 6
    asked = {"question": "is", "context": context}

    def read(**options):
        _, found, *_ = AnswerQuestion(**options).prepare(predictor.engine, asked)
        return [window.input_ids.tolist() for window in found]

    tokenizer = model.tokenizer
    ids = tokenizer.encode("is"), tokenizer.encode(context)
    special = (tokenizer.cls_id, tokenizer.sep_id)
    assert model.config.max_position > 16
    by_hand = [window.input_ids.tolist() for window in windows(*ids, length=16, stride=4, special_ids=special)]
    assert read(length=16, doc_stride=4) == by_hand != read(doc_stride=4)
    assert max(map(len, by_hand)) == 16


def test_questions_are_read_and_answered_as_in_training(labelled):
    _, predictor = labelled(SPAN)
    engine = copy.copy(predictor.engine)
    asked = {"question": "the river of Paris is", "context": "it"}
    lengths = []
    for reading in ({}, {"max_question": 2}):
        engine.model = dataclasses.replace(engine.model, reading=reading)
        _, (window,), *_ = AnswerQuestion().prepare(engine, asked)
        lengths.append(len(window.input_ids))
    assert lengths[0] - lengths[1] == 5 - 2
    engine.model = dataclasses.replace(engine.model, reading={"length": 9, "doc_stride": 1})
    _, own, _ = AnswerQuestion().prepare(engine, {"question": "it", "context": "the river of Paris is dry"})
    assert ([window.context_start for window in own[:2]], max(len(window.input_ids) for window in own)) == ([0, 1], 9)
    engine.model = dataclasses.replace(engine.model, reading={"may_be_unanswerable": True, "no_answer_threshold": -1e4})
    for options, is_answered in (({}, False), ({"no_answer_threshold": 1e4}, True), ({"may_be_unanswerable": False}, True)):
        (answer,) = Predictor(engine).answer([("the river", "it is dry")], **options)
        assert (answer["answer"] != "", "no_answer_margin" in answer) == (is_answered, "may_be_unanswerable" not in options)
