from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.spans import Answer, Context, SpanSearch, Window, best_spans, windows

CLS, SEP = 101, 102


def words(rng: np.random.Generator, count: int) -> tuple[str, list[tuple[int, int]]]:
    """Returns a context of words from a small stock, so that texts repeat, and their offsets."""
    text, offsets = "", []
    for i in range(count):
        text += " " * int(rng.integers(i > 0, 3))
        word = "abcde"[int(rng.integers(5))] * int(rng.integers(1, 3))
        offsets.append((len(text), len(text) + len(word)))
        text += word
    return text, offsets


def cut(question: int, context: int, length: int, stride: int) -> list[Window]:
    return windows(range(question), range(context), length=length, stride=stride, special_ids=(CLS, SEP))


def random_logits(rng: np.random.Generator, rows: list[Window], padded: int) -> list[np.ndarray]:
    """Returns logits on a coarse grid, so that scores tie; columns of padding have the largest."""
    out = []
    for window in rows:
        values = (rng.integers(-6, 7, padded) / 2).astype(np.float32)
        values[len(window.input_ids) :] = 100
        out.append(values)
    return out


def slow_answer(starts, ends, rows, context, offsets, n_best, candidates, most, unanswerable, threshold):
    """Returns (the n-best list of texts with scores, the text of the answer, margin), from every pair of every window, one after
    the other."""
    spans, null = [], math.inf
    for start_row, end_row, window in zip(starts, ends, rows, strict=True):
        s, e = (row[: len(window.input_ids)].tolist() for row in (start_row, end_row))
        null = min(null, s[0] + e[0])
        inside = range(window.offset, len(s) - 1)
        owned = [i for i in inside if window.max_context[i]]
        for i in sorted(owned, key=lambda i, s=s: (-s[i], i))[:candidates]:
            for j in sorted(inside, key=lambda j, e=e: (-e[j], j))[:candidates]:
                if i <= j < i + most:
                    k = window.context_start - window.offset
                    spans.append((context[offsets[i + k][0] : offsets[j + k][1]], s[i] + e[j]))
    spans.sort(key=lambda span: -span[1])
    best: dict[str, float] = {}
    for text, score in spans:
        best.setdefault(text, score)
    entries = list(best.items())[:n_best]
    margin = null - entries[0][1] if entries else math.inf
    verdict = entries[0][0] if entries and not (unanswerable and margin > threshold) else ""
    if unanswerable or not entries:
        entries = sorted([*entries, ("", null)], key=lambda entry: -entry[1])
    return entries, verdict, margin


def test_answers_equal_an_exhaustive_search_for_any_logits():
    rng = np.random.default_rng(1)
    several = unanswered = 0
    for _ in range(300):
        context, offsets = words(rng, int(rng.integers(1, 60)))
        question, room = int(rng.integers(0, 8)), int(rng.integers(1, 40))
        rows = cut(question, len(offsets), question + 3 + room, int(rng.integers(1, 30)))
        starts, ends = (random_logits(rng, rows, question + 50) for _ in range(2))
        n_best, candidates, most = (int(rng.integers(1, limit)) for limit in (24, 24, 12))
        unanswerable, threshold = bool(rng.integers(2)), float(rng.integers(-16, 2))
        flags = {"n_best": n_best, "candidates": candidates, "max_answer_tokens": most}
        flags |= {"may_be_unanswerable": unanswerable, "no_answer_threshold": threshold}
        answer = best_spans(starts, ends, rows, Context(context, offsets), SpanSearch(**flags))
        limits = (n_best, candidates, most, unanswerable, threshold)
        entries, verdict, margin = slow_answer(starts, ends, rows, context, offsets, *limits)
        assert [(span.text, span.score) for span in answer.spans] == entries
        assert answer.best.text == verdict
        assert answer.no_answer_margin == margin
        total = math.fsum(math.exp(score) for _, score in entries)
        np.testing.assert_allclose([s.probability for s in answer.spans], [math.exp(x) / total for _, x in entries], rtol=1e-12)
        assert all(context[span.start : span.end] == span.text for span in answer.spans)
        several += len(rows) > 1
        unanswered += not verdict
    assert several > 100
    assert 30 < unanswered < 150


def answer_for(context: str, offsets, first: int, last: int, **flags) -> Answer:
    """Returns the answer for logits that clearly predict [first, last] of the context's tokens."""
    rows = cut(2, len(offsets), 2 + 3 + len(offsets), 128)
    start, end = np.zeros(len(rows[0].input_ids)), np.zeros(len(rows[0].input_ids))
    start[rows[0].offset + first], end[rows[0].offset + last] = 9, 9
    answer = best_spans([start], [end], rows, Context(context, offsets), SpanSearch(**flags))
    assert all(context[span.start : span.end] == span.text for span in answer.spans)
    return answer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    path: pathlib.Path = tmp_path_factory.mktemp("spans") / "vocab.txt"
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] steve smith ' s ( ) . 1895 - 1943 was born in jap ##ane ##se cafe of a"
    path.write_text("\n".join(pieces.split()) + "\n")
    return load_tokenizer(path, lowercase=True)


@pytest.mark.parametrize(
    ("context", "first", "last", "text"),
    [
        ("Steve  Smith's cafe", 0, 1, "Steve  Smith"),  # the original's own example, in which white space in the context is kept
        ("was born (1895-1943).", 3, 3, "1895"),
        ("in a Café", 2, 2, "Café"),  # letters that the tokenizer normalises
        ("in a Cafe\u0301!", 2, 2, "Cafe\u0301"),
        ("of Zürich a", 1, 1, "Zürich"),  # [UNK]
        ("Japanese", 0, 0, "Jap"),
    ],
)
def test_an_answer_consists_of_the_characters_of_the_context(tokenizer, context, first, last, text):
    _, offsets = tokenizer.encode_with_offsets(context)
    assert answer_for(context, offsets, first, last).best.text == text


def test_tokens_without_characters_and_white_space_never_reach_an_answer():
    context = "in  Paris now"
    offsets = [(0, 2), (2, 3), (0, 0), (3, 9), (9, 13)]  # as in SentencePiece: white space belongs to the piece after it
    assert answer_for(context, offsets, 3, 3).best.text == "Paris"
    assert answer_for(context, offsets, 2, 3).best.text == "Paris"
    answer = answer_for(context, offsets, 0, 2)
    assert (answer.best.text, answer.best.score) == ("in", 18)
    assert "" not in [span.text for span in answer_for(context, offsets, 1, 2).spans]


def test_equal_texts_count_once_with_their_best_score():
    context, offsets = "ab ab", [(0, 2), (3, 5)]
    start, end = np.array([0, 0, 1.0, 3.0, 0]), np.array([0, 0, 1.0, 4.0, 0])
    (window,) = cut(0, 2, 5, 128)
    answer = best_spans([start], [end], [window], Context(context, offsets))
    assert [(s.text, s.start, s.score) for s in answer.spans] == [("ab", 3, 7.0), ("ab ab", 0, 5.0)]


def test_probabilities_are_the_softmax_of_large_scores_too():
    start, end = np.array([0, 0, 1_000.0, 1_001.0, 0]), np.zeros(5)
    (window,) = cut(0, 2, 5, 128)
    answer = best_spans([start], [end], [window], Context("a b", [(0, 1), (2, 3)]))
    assert [(s.text, s.score) for s in answer.spans] == [("b", 1_001.0), ("a", 1_000.0), ("a b", 1_000.0)]
    others = 1 / (math.e + 2)
    assert [s.probability for s in answer.spans] == pytest.approx([math.e * others, others, others])


def unanswerable(null_scores: list[float], **flags) -> Answer:
    """Returns the answer in a context of three words, read in three windows of one word. The best span scores 4."""
    rows = cut(0, 3, 4, 1)
    starts = [np.array([null / 2, 0, i, 0]) for i, null in enumerate(null_scores)]
    return best_spans(
        starts, starts, rows, Context("x y z", [(0, 1), (2, 3), (4, 5)]), SpanSearch(may_be_unanswerable=True, **flags)
    )


def test_no_answer_takes_the_smallest_score_of_all_windows():
    answer = unanswerable([9.0, 3.0, 12.0])
    assert (answer.no_answer_margin, answer.best.text) == (-1.0, "z")
    assert [(s.text, s.score) for s in answer.spans] == [("z", 4.0), ("", 3.0), ("y", 2.0), ("x", 0.0)]
    assert math.isclose(sum(span.probability for span in answer.spans), 1)


def test_the_threshold_changes_the_answer_and_not_the_candidates():
    answers = [unanswerable([5.0, 5.0, 5.0], no_answer_threshold=threshold) for threshold in (0.0, 1.0, 1.5)]
    assert [answer.best.text for answer in answers] == ["", "z", "z"]  # a margin of 1 exceeds 0, not 1
    assert len({answer.spans for answer in answers}) == 1
    assert unanswerable([5.0] * 3, n_best=1, no_answer_threshold=2.0).best.text == "z"


def test_an_example_without_any_span_has_no_answer():
    (window,) = cut(2, 0, 9, 4)
    logits = np.zeros(len(window.input_ids))
    for may_be in (False, True):
        answer = best_spans([logits], [logits], [window], Context("", []), SpanSearch(may_be_unanswerable=may_be))
        assert (answer.best.text, answer.best.probability, answer.no_answer_margin) == ("", 1.0, math.inf)
    rows = cut(2, 4, 9, 4)
    backwards = [np.array([0, 0, 0, 0, 0, 0, 9.0, 9.0, 0]), np.array([0, 0, 0, 0, 9.0, 9.0, 0, 0, 0])]
    context = Context("a b c d", [(0, 1), (2, 3), (4, 5), (6, 7)])
    answer = best_spans([backwards[0]], [backwards[1]], rows, context, SpanSearch(candidates=2))
    assert [span.text for span in answer.spans] == [""]


def test_the_defaults_equal_the_original():
    assert SpanSearch() == SpanSearch(n_best=20, candidates=20, max_answer_tokens=30, no_answer_threshold=0.0)
    config = TaskConfig()
    assert (config.n_best, config.max_answer, config.doc_stride, config.max_question, config.length) == (20, 30, 128, 64, 128)
    assert (config.train_rows, config.dev_rows) == (0, 0), "all of them"


def test_invalid_settings_are_refused():
    for flags in ({"n_best": 0}, {"candidates": 0}, {"max_answer_tokens": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(flags))}=0"):
            SpanSearch(**flags)
    with pytest.raises(ValueError, match="at least one window"):
        best_spans([], [], [], Context("a", [(0, 1)]))
