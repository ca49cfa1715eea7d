"""Splits the context of a question into sliding windows, and finds the best answers in the logits of a span head. An answer is
a span of any window, or "no answer".

The windows are the same as in the original (run_squad.py, `convert_examples_to_features` and `_check_is_max_context`). The
rules for answers are also the same (`write_predictions`), except for the text of an answer. The original aligns the tokens of a
span with its white-space separated words (`get_final_text`). If this heuristic fails, it returns whole words. Here, the offsets
of each token in the context are known, so an answer is exactly `context[start:end]`. This is also true for [UNK]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interface.words import counted


@dataclass(frozen=True)
class Window:
    """The n tokens `[CLS] question [SEP] part of the context [SEP]`.

    Token `context_start + i` of the context is at position `offset + i`.
    """

    input_ids: np.ndarray  # int32 [n]
    token_type_ids: np.ndarray  # int32 [n]; 0 = [CLS] question [SEP], 1 = the rest
    max_context: np.ndarray  # bool [n]: whether this window has the most context for the token
    context_start: int
    context_length: int

    @property
    def offset(self) -> int:
        """The position of the first context token."""
        return len(self.input_ids) - 1 - self.context_length


def windows(
    question_ids: Sequence[int],
    context_ids: Sequence[int],
    *,
    length: int,
    stride: int,
    max_question: int = 64,
    special_ids: tuple[int, int],
) -> list[Window]:
    """Returns the windows of a question and its context, left to right. Each window contains as much context as fits into
    `length` tokens, and starts `stride` context tokens after the previous window.

    `special_ids` are the ids of [CLS] and [SEP]. A question is truncated to its first `max_question` tokens. If `stride` is
    larger than the context of a window, the windows are adjacent instead, so no token is lost. A context without tokens has one
    window, so that every question has a prediction. In the original, it has no window. Raises UserError if `length` leaves no
    room for context."""
    if stride < 1 or max_question < 0:
        raise ValueError(f"stride={stride} must be at least 1 and max_question={max_question} at least 0")
    cls_id, sep_id = special_ids
    question = np.asarray(question_ids[:max_question], np.int32)
    context = np.asarray(context_ids, np.int32)
    room = length - len(question) - 3  # [CLS], [SEP], [SEP]
    if room < 1:
        raise UserError(
            f"rows of {length} tokens leave no room for the context next to a question of "
            f"{counted(len(question), 'token')} and [CLS], "
            "[SEP], [SEP]; make the rows longer, or cut questions shorter"
        )
    starts = window_starts(len(context), room, stride)
    best = most_context(starts, len(context), room, per_token=0.01)
    head = np.concatenate([np.array([cls_id], np.int32), question, np.array([sep_id], np.int32)])
    tail = np.array([sep_id], np.int32)
    made = []
    for number, start in enumerate(starts.tolist()):
        part = slice(start, start + room)
        ids = np.concatenate([head, context[part], tail])
        types = (np.arange(len(ids)) >= len(head)).astype(np.int32)
        max_context = np.zeros(len(ids), bool)
        max_context[len(head) : -1] = best[part] == number
        made.append(Window(ids, types, max_context, start, len(ids) - len(head) - 1))
    return made


def window_starts(tokens: int, room: int, stride: int) -> np.ndarray:
    """Returns the starts, int64 [windows], of windows with `room` tokens over `tokens` context tokens. The last window may be
    shorter, because it ends at the end of the context."""
    step = min(room, stride)
    return np.arange(1 + max(0, -(-(tokens - room) // step))) * step


def most_context(starts: np.ndarray, tokens: int, room: int, per_token: float = 0.0) -> np.ndarray:
    """Returns the index of the window with the most context for each token, int [tokens]. In a tie, it is the first window.

    For a token, the score of a window is min(left, right) + `per_token` * length (run_squad.py: 0.01), where left and right
    count the window's tokens on each side of the token. The second term prefers a full window to a shorter last window. All
    windows except the last have the same length, so only three windows can be the best. Two of them are the windows whose
    middles are nearest to the token, on its left and on its right. The third is the last window."""
    token, last = np.arange(tokens)[:, np.newaxis], len(starts) - 1
    step = int(starts[1]) if last else 1
    before = (2 * token - (room - 1)) // (2 * step)
    either = np.concatenate([before, before + 1], axis=1).clip(0, max(0, last - 1))
    candidates = np.append(either, np.full_like(token, last), axis=1)  # ascending, so that argmax finds the first in a tie
    begin = starts[candidates]
    end = np.minimum(begin + room, tokens)
    score = np.minimum(token - begin, end - 1 - token) + per_token * (end - begin)
    score[(token < begin) | (token >= end)] = -np.inf
    return np.take_along_axis(candidates, score.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]


@dataclass(frozen=True)
class Span:
    """One entry of an n-best list, with `text == context[start:end]`. "No answer" has the empty text and the span [0, 0)."""

    text: str
    start: int
    end: int
    start_logit: float  # "no answer" has the logits of [CLS], from the window where their sum is lowest
    end_logit: float
    probability: float  # the softmax over the scores of the n-best list

    @property
    def score(self) -> float:
        """The sum of both logits, used to rank spans."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Answer:
    """The predicted answers to a question."""

    best: Span  # the prediction, possibly "no answer"
    spans: tuple[Span, ...]  # the n-best list, best score first; never empty
    no_answer_margin: float
    """The score of "no answer" minus the score of the best span, or infinity if there is no span. If the margin is above the
    threshold, the prediction is "no answer"."""


@dataclass(frozen=True)
class Context:
    """A context and its tokens."""

    text: str
    offsets: Sequence[tuple[int, int]] | np.ndarray
    """[tokens, 2]: the characters [start, end) of each token in `text`, from `Tokenizer.encode_with_offsets`."""


@dataclass(frozen=True)
class SpanSearch:
    """The settings of the search for spans. Raises ValueError for counts below 1."""

    n_best: int = 20
    """The maximum length of the n-best list."""
    candidates: int = 20
    """The number of best starts, and of best ends, in each window. All pairs of a start and an end are tried."""
    max_answer_tokens: int = 30
    may_be_unanswerable: bool = False
    """Whether "no answer" is added to the n-best list (SQuAD 2.0)."""
    no_answer_threshold: float = 0.0
    """"No answer" is the prediction if `Answer.no_answer_margin` exceeds this threshold."""

    def __post_init__(self) -> None:
        for name in ("n_best", "candidates", "max_answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


def best_spans(
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    windows: Sequence[Window],
    context: Context,
    search: SpanSearch = SpanSearch(),
) -> Answer:
    """Returns the best answers to a question, and the prediction among them.

    start_logits, end_logits: an array float [>= n] for each of `windows`. The window has n tokens, and further positions are
    padding.

    Starts are searched among the context tokens for which the window has the most context. Ends are searched among all context
    tokens of the window. A high logit elsewhere therefore cannot displace an answer. The original takes the 20 best starts and
    the 20 best ends of the whole row, and then drops positions outside the context. Spans with the same text count once, with
    their best score. White space around an answer is removed.

    "No answer" makes the list one entry longer. In the original, "no answer" replaces the last span if "no answer" has a higher
    score. If there is no span, "no answer" is the prediction, with probability 1. The original then writes "empty", or
    crashes."""
    if not windows:
        raise ValueError("an answer needs at least one window")
    starts, ends = (_padded(logits, windows) for logits in (start_logits, end_logits))
    null = int((starts[:, 0] + ends[:, 0]).argmin())
    no_answer = ("", 0, 0, float(starts[null, 0]), float(ends[null, 0]))
    null_score = no_answer[3] + no_answer[4]
    characters = _characters(context)
    found: dict[str, tuple[int, int, float, float]] = {}
    for first, last, at_first, at_last in _candidates(starts, ends, windows, search.candidates, search.max_answer_tokens):
        start, end = int(characters[first, 0]), int(characters[last, 1])
        covered = context.text[start:end]
        text = covered.strip()
        start += len(covered) - len(covered.lstrip())
        if text and text not in found:
            found[text] = start, start + len(text), at_first, at_last
            if len(found) == search.n_best:
                break
    entries = [(text, *place) for text, place in found.items()]
    margin = null_score - (entries[0][3] + entries[0][4]) if entries else math.inf
    chosen = 0
    if search.may_be_unanswerable or not entries:
        better = sum(start + end >= null_score for *_, start, end in entries)
        entries.insert(better, no_answer)
        chosen = better if margin > search.no_answer_threshold else int(better == 0)
    scores = np.array([start + end for *_, start, end in entries])
    weights = np.exp(scores - scores.max())
    spans = tuple(Span(*entry, float(p)) for entry, p in zip(entries, weights / weights.sum(), strict=True))
    return Answer(spans[chosen], spans, margin)


def _padded(logits: Sequence[np.ndarray], windows: Sequence[Window]) -> np.ndarray:
    """Returns the logits of all windows as one float64 array [windows, length of the longest window]. Padding is -inf."""
    out = np.full((len(windows), max(len(window.input_ids) for window in windows)), -np.inf)
    for row, (values, window) in enumerate(zip(logits, windows, strict=True)):
        out[row, : len(window.input_ids)] = values[: len(window.input_ids)]
    return out


def _candidates(
    starts: np.ndarray, ends: np.ndarray, windows: Sequence[Window], most: int, max_answer_tokens: int
) -> Iterator[tuple[int, int, float, float]]:
    """Yields (first token, last token, start logit, end logit) of every valid span. Tokens are indices in the context. The span
    with the highest sum of both logits comes first. Ties are ordered by window, then by start logit, highest first."""
    legal_start, legal_end = np.zeros(starts.shape, bool), np.zeros(starts.shape, bool)
    for may_start, may_end, window in zip(legal_start, legal_end, windows, strict=True):
        may_start[: len(window.input_ids)] = window.max_context
        may_end[window.offset : window.offset + window.context_length] = True
    starts, ends = np.where(legal_start, starts, -np.inf), np.where(legal_end, ends, -np.inf)
    # positions [windows, most] of the highest logits
    start, end = (np.argsort(-logits, axis=1, kind="stable")[:, :most] for logits in (starts, ends))
    length = end[:, np.newaxis, :] - start[:, :, np.newaxis] + 1
    legal = np.take_along_axis(legal_start, start, axis=1)[:, :, np.newaxis]
    legal = legal & np.take_along_axis(legal_end, end, axis=1)[:, np.newaxis, :]
    row, i, j = np.nonzero(legal & (length >= 1) & (length <= max_answer_tokens))
    first, last = start[row, i], end[row, j]
    score = starts[row, first] + ends[row, last]
    shift = np.array([window.context_start - window.offset for window in windows])[row]
    for k in np.argsort(-score, kind="stable").tolist():
        at_first, at_last = starts[row[k], first[k]], ends[row[k], last[k]]
        yield int(first[k] + shift[k]), int(last[k] + shift[k]), float(at_first), float(at_last)


def _characters(context: Context) -> np.ndarray:
    """Returns two character indices for each token, int64 [tokens, 2]. The first is the start of an answer that starts with the
    token. The second is the end of an answer that ends with the token.

    Some tokens of SentencePiece have no characters. The indices of such a token are the start of the next token and the end of
    the previous token."""
    characters = np.array(context.offsets, np.int64).reshape(-1, 2)
    empty = characters[:, 0] >= characters[:, 1]
    begin = np.where(empty, len(context.text), characters[:, 0])
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    end = np.maximum.accumulate(characters[:, 1])
    return np.stack([begin, end], axis=1)
