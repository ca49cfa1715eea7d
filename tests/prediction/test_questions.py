"""Answers to questions about a text."""

from __future__ import annotations

import dataclasses
import random

import pytest

from bert_jax.model.heads.span import SpanHead
from bert_jax.prediction.labelling import AnswerQuestion
from bert_jax.tasks.spans import Context, SpanSearch, best_spans, windows
from tests.interop.tiny import WORDS
from tests.prediction.reference import WITHIN, label_outputs

SPAN = SpanHead()


ONE_TYPE = {"type_vocab_size": 1}


def questions(count: int) -> list[tuple[str, str]]:
    """Returns questions whose contexts take one window or many."""
    draw = random.Random(7)
    contexts = [" ".join(draw.choices([*WORDS, "Zurich"], k=draw.choice((3, 20, 90)))) for _ in range(count)]
    return [(" ".join(draw.choices(WORDS, k=4)), context) for context in contexts]


def unpacked_answer(model, question: str, context: str, stride: int, **options):
    """Computes `best_spans` on the logits of every window in a row of its own."""
    t = model.tokenizer
    ids, offsets = t.encode_with_offsets(context)
    own = windows(t.encode(question), ids, length=model.config.max_position, stride=stride, special_ids=(t.cls_id, t.sep_id))
    typed = model.config.type_vocab_size > 1
    logits = [label_outputs(model, w.input_ids.tolist(), w.offset if typed else None) for w in own]
    starts, ends = [x[:, 0] for x in logits], [x[:, 1] for x in logits]
    return len(own), best_spans(starts, ends, own, Context(context, offsets), SpanSearch(**options))


@pytest.mark.parametrize("fields", [{}, ONE_TYPE], ids=["three token types", "one token type"])
def test_an_answer_is_the_best_span_of_all_windows_of_the_unpacked_model(labelled, fields):
    model, predictor = labelled(SPAN, **fields)
    asked = questions(30)
    answers = predictor.answer(asked, doc_stride=9, n_best=3, may_be_unanswerable=True, no_answer_threshold=-0.5)
    counts = set()
    for (question, context), answer in list(zip(asked, answers, strict=True))[::3]:
        count, wanted = unpacked_answer(model, question, context, 9, may_be_unanswerable=True, no_answer_threshold=-0.5)
        counts.add(count)
        assert answer["question"] == question
        assert answer["answer"] == wanted.best.text == context[answer["start"] : answer["end"]]
        assert answer["no_answer_margin"] == pytest.approx(wanted.no_answer_margin, abs=4 * WITHIN)
        assert [s["answer"] for s in answer["n_best"]] == [s.text for s in wanted.spans[:3]]
        for ours, theirs in zip(answer["n_best"], wanted.spans, strict=False):
            assert (ours["start"], ours["end"]) == (theirs.start, theirs.end)
            assert ours["score"] == pytest.approx(theirs.score, abs=2 * WITHIN)
            assert ours["probability"] == pytest.approx(theirs.probability, abs=WITHIN)
    assert min(counts) == 1
    assert max(counts) > 5


def test_a_question_is_answered_the_same_alone_and_among_others(labelled):
    _, predictor = labelled(SPAN)
    asked = questions(40)
    together = predictor.answer(asked, doc_stride=20)
    for i in (0, 5, 39):
        (alone,) = predictor.answer([asked[i]], doc_stride=20)
        assert alone["answer"] == together[i]["answer"]
        assert alone["score"] == pytest.approx(together[i]["score"], abs=2 * WITHIN)


def test_no_answer_wins_if_its_margin_exceeds_the_threshold(labelled):
    _, predictor = labelled(SPAN)
    asked = questions(20)
    for threshold, empty in ((-1e4, True), (1e4, False)):
        found = predictor.answer(asked, may_be_unanswerable=True, no_answer_threshold=threshold)
        assert {answer["answer"] == "" for answer in found} == {empty}
    assert all(answer["answer"] for answer in predictor.answer(asked))
    shown = AnswerQuestion().as_text(predictor.answer(asked[:1], may_be_unanswerable=True, no_answer_threshold=-1e4)[0])
    assert shown.endswith("(no answer)")


def test_as_many_starts_and_ends_are_candidates_as_in_training(labelled, monkeypatch: pytest.MonkeyPatch):
    model, predictor = labelled(SPAN)
    question, context = next(asked for asked in questions(30) if len(asked[1].split()) == 3)
    (by_default,) = predictor.answer([(question, context)], n_best=4)
    monkeypatch.setattr(predictor.engine, "model", dataclasses.replace(predictor.engine.model, reading={"n_best": 1}))
    (answer,) = predictor.answer([(question, context)], n_best=4)
    _, wanted = unpacked_answer(model, question, context, 128, candidates=1)
    assert [span["answer"] for span in answer["n_best"]] == [span.text for span in wanted.spans[:4]]
    assert len(answer["n_best"]) < len(by_default["n_best"])


def test_the_length_of_an_answer_is_limited(labelled):
    model, predictor = labelled(SPAN)
    for answer in predictor.answer(questions(30), max_answer=2):
        assert len(model.tokenizer.encode(answer["answer"])) <= 2
