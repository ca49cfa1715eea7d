"""Sliding windows over the context of a question (run_squad.py, `convert_examples_to_features` and `_check_is_max_context`)."""

from __future__ import annotations

from collections.abc import Sequence
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
    max_context: np.ndarray  # bool [n]: context tokens for which no other window has more context
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
    """The windows of a question and its context, left to right. Each contains as much context as fits into `length` tokens, and
    starts `stride` context tokens after the window before it.

    `special_ids` are the ids of [CLS] and [SEP]. A question is truncated to its first `max_question` tokens. If `stride` exceeds
    the context of a window, the windows are adjacent, so no token is lost. A context without tokens gives one window (none in the
    original), so that every question has a prediction. Raises UserError if `length` leaves no room for context.
    """
    if stride < 1 or max_question < 0:
        raise ValueError(f"stride={stride} must be at least 1 and max_question={max_question} at least 0")
    cls_id, sep_id = special_ids
    question = np.asarray(question_ids[:max_question], np.int32)
    context = np.asarray(context_ids, np.int32)
    room = length - len(question) - 3  # [CLS], [SEP], [SEP]
    if room < 1:
        raise UserError(
            f"rows of {length} tokens leave no room for the context beside a question of "
            f"{counted(len(question), 'token')} and [CLS], "
            "[SEP], [SEP]; allow longer rows, or cut questions shorter"
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
    """The starts, int64 [windows], of the windows of `room` tokens over `tokens` context tokens; the last window reaches the
    end."""
    step = min(room, stride)
    return np.arange(1 + max(0, -(-(tokens - room) // step))) * step


def most_context(starts: np.ndarray, tokens: int, room: int, per_token: float = 0.0) -> np.ndarray:
    """int [tokens]: for each token the number of the window with the most context for it; the first of equally good windows.

    The score of a window for a token is the smaller of the numbers of tokens to its left and to its right, plus `per_token` for
    each token of the window, which prefers a full window to a shorter last one (run_squad.py: 0.01). All windows except the last
    have the same length, so only three can be the best: the two whose middles are nearest on either side of the token, and the
    last.
    """
    token, last = np.arange(tokens)[:, np.newaxis], len(starts) - 1
    step = int(starts[1]) if last else 1
    before = (2 * token - (room - 1)) // (2 * step)
    either = np.concatenate([before, before + 1], axis=1).clip(0, max(0, last - 1))
    candidates = np.append(either, np.full_like(token, last), axis=1)  # ascending: argmax finds the first of equals
    begin = starts[candidates]
    end = np.minimum(begin + room, tokens)
    score = np.minimum(token - begin, end - 1 - token) + per_token * (end - begin)
    score[(token < begin) | (token >= end)] = -np.inf
    return np.take_along_axis(candidates, score.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
