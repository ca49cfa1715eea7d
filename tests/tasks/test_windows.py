from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import spans as tasks_windows
from bert_jax.tasks.spans import Window, windows

CLS, SEP = 101, 102


def cut(question: int, context: int, **settings) -> list[Window]:
    """Returns windows of a question 1000, 1001, ... and a context 2000, 2001, ..."""
    defaults = {"length": 24, "stride": 5, "max_question": 6, "special_ids": (CLS, SEP)}
    return windows(range(1000, 1000 + question), range(2000, 2000 + context), **(defaults | settings))


def slow_spans(context: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first, one past the last) of the windows, found step by step: read, and advance until the end is visible."""
    spans, first = [], 0
    while True:
        spans.append((first, min(first + room, context)))
        if spans[-1][1] == context:
            return spans
        first += min(stride, room)


def slow_owner(token: int, spans: list[tuple[int, int]]) -> int:
    """Returns the window with the most context around the token; an earlier one wins a tie."""
    inside = [w for w, (first, stop) in enumerate(spans) if first <= token < stop]
    return max(inside, key=lambda w: (min(token - spans[w][0], spans[w][1] - 1 - token) + 0.01 * (spans[w][1] - spans[w][0]), -w))


def test_windows_equal_a_slow_reference_for_any_lengths():
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(400):
        question, context = int(rng.integers(0, 10)), int(rng.integers(1, 400))
        max_question, stride = int(rng.integers(0, 9)), int(rng.integers(1, 200))
        kept = min(question, max_question)
        room = int(rng.integers(1, 250))
        made = cut(question, context, length=kept + 3 + room, stride=stride, max_question=max_question)
        spans = slow_spans(context, room, stride)
        owners = [slow_owner(token, spans) for token in range(context)]
        several += len(spans) > 2
        assert len(made) == len(spans)
        for number, (window, (first, stop)) in enumerate(zip(made, spans, strict=True)):
            expected = [CLS, *range(1000, 1000 + kept), SEP, *range(2000 + first, 2000 + stop), SEP]
            assert window.input_ids.tolist() == expected
            assert window.token_type_ids.tolist() == [0] * (kept + 2) + [1] * (stop - first + 1)
            assert (window.context_start, window.context_length, window.offset) == (first, stop - first, kept + 2)
            owned = [False] * (kept + 2) + [owners[token] == number for token in range(first, stop)] + [False]
            assert window.max_context.tolist() == owned
    assert several > 100


def test_every_length_of_the_last_window_equals_the_slow_reference():
    # with rows of 384 and a question of 64 tokens, a last window shorter than a stride may still lose to the previous one
    for context in range(317, 317 + 2 * 128, 3):
        spans = slow_spans(context, 317, 128)
        owners = [slow_owner(token, spans) for token in range(context)]
        made = cut(64, context, length=384, stride=128, max_question=64)
        ours = [[owner == number for owner in owners[slice(*span)]] for number, span in enumerate(spans)]
        assert [w.max_context[w.offset : -1].tolist() for w in made] == ours


def test_every_context_token_has_most_context_in_exactly_one_window():
    owned = [w.context_start + i - w.offset for w in cut(4, 333, stride=3) for i in np.flatnonzero(w.max_context)]
    assert sorted(owned) == list(range(333))


def test_the_most_context_rule_gives_the_example_of_the_original():
    # windows A "the man went to the", B "to the store and bought", C "and bought a gallon of", ...: C has most context for
    # "bought"
    made = cut(1, 11, length=9, stride=3)
    bought = 7
    assert [w.context_start for w in made if w.max_context[w.offset + bought - w.context_start :][:1].any()] == [6]


def test_a_shorter_last_window_needs_proportionally_more_context():
    # windows [0, 300) and [150, 350); around token 225 they have at least 74 and 75 tokens, around 226 73 and 76
    first, last = cut(1, 350, length=304, stride=150)
    assert (first.context_length, last.context_length) == (300, 200)
    assert np.flatnonzero(first.max_context).tolist() == list(range(first.offset, first.offset + 226))


def test_arrays_are_int32_and_bool():
    (window,) = cut(2, 3)
    assert (window.input_ids.dtype, window.token_type_ids.dtype, window.max_context.dtype) == (np.int32, np.int32, bool)


def test_an_empty_context_gets_a_window():
    (window,) = cut(2, 0)
    assert window.input_ids.tolist() == [CLS, 1000, 1001, SEP, SEP]
    assert window.token_type_ids.tolist() == [0, 0, 0, 0, 1]
    assert not window.max_context.any()
    assert window.context_length == 0


def test_a_row_without_space_for_context_is_refused():
    assert len(cut(6, 3, length=10)) == 3
    with pytest.raises(UserError, match="rows of 9 tokens leave no room for the context next to a question of 6 tokens"):
        cut(9, 3, length=9)


def test_a_question_has_at_most_64_tokens_by_default():
    (window,) = windows(range(100), range(3), length=128, stride=1, special_ids=(CLS, SEP))
    assert window.offset == 64 + 2


def test_invalid_settings_are_refused():
    for settings in ({"stride": 0}, {"max_question": -1}):
        with pytest.raises(ValueError, match=str(next(iter(settings)))):
            cut(1, 1, **settings)


def test_dense_windows_take_linear_work(monkeypatch: pytest.MonkeyPatch):
    """Work is the memory for choosing the windows and the number of comparisons for cutting them. Comparing every token with
    every window would take four times as much."""

    class Counting(np.ndarray):
        numbers = 0

        def __array_ufunc__(self, ufunc, method, *inputs, **named):
            Counting.numbers += self.size
            return getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **named)

    def work(tokens: int) -> tuple[int, int]:
        Counting.numbers, peaks = 0, []

        def measured(*arguments, **options):
            tracemalloc.start()
            best = most_context(*arguments, **options)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            return best.view(Counting)

        monkeypatch.setattr(tasks_windows, "most_context", measured)
        made = cut(3, tokens, length=384, stride=32)
        assert sum(int(w.max_context.sum()) for w in made) == tokens
        return peaks[0], Counting.numbers

    most_context = tasks_windows.most_context
    for once, twice in zip(work(20_000), work(40_000), strict=True):
        assert 0 < twice < 2.5 * once
