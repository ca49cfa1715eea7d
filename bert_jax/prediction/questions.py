"""The interface of all questions to a model (fill-mask, classify, embed, ...), and the tokenisation that they share.

A question is a frozen dataclass with the methods of `Question`. Its fields are the options of a command of `predict`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.data.plan import truncation
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import Item


class Question(Protocol):
    """A command of `predict` with its options."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a record."""

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model lacks a part, or if an option is out of range."""

    def prepare(self, engine: Engine, values: JsonObject) -> Any:
        """Tokenises a record for `answer`. Raises UserError if the record cannot be answered."""

    def answer(self, engine: Engine, prepared: Sequence[Any]) -> list[Any]:
        """Returns the answers to prepared records, in order."""

    def as_text(self, answer: Any) -> str:
        """Formats an answer as text for a terminal."""

    def as_json(self, answer: Any) -> JsonObject:
        """Converts an answer to a JSON object."""


def ask_each(engine: Engine, question: Question, records: Sequence[JsonObject]) -> list[Any]:
    """Returns the answer to each record. If a record cannot be answered, returns a UserError instead."""
    replies: list[Any] = []
    for values in records:
        try:
            replies.append(question.prepare(engine, values))
        except UserError as error:
            replies.append(error)
    whole = [i for i, reply in enumerate(replies) if not isinstance(reply, UserError)]
    for i, answer in zip(whole, question.answer(engine, [replies[i] for i in whole]) if whole else [], strict=True):
        replies[i] = answer if is_finite(answer) else UserError(f"{engine.name} returns {NOT_FINITE}")
    return replies


NOT_FINITE = (
    "numbers that are not finite for this text: its weights are damaged, or too large for the computation, or your own file "
    "computes them; name another model, correct the file, or train or convert this model again"
)


def is_finite(answer: Any) -> bool:
    """Returns whether all numbers in an answer are finite, including numbers in arrays, dictionaries, sequences and
    dataclasses."""
    if isinstance(answer, float):
        return math.isfinite(answer)
    if isinstance(answer, np.ndarray | np.generic):
        return bool(np.isfinite(answer).all())
    if isinstance(answer, str | int | None):
        return True
    if isinstance(answer, Mapping):
        return all(map(is_finite, answer.values()))
    if dataclasses.is_dataclass(answer):
        return all(map(is_finite, vars(answer).values()))
    return all(map(is_finite, answer))


def encoded(
    engine: Engine,
    text: str,
    text_b: str | None = None,
    *,
    truncate: bool | None = None,
    longest: int | None = None,
    with_specials: bool = False,
) -> Item:
    """Tokenises `[CLS] text [SEP]` or `[CLS] text [SEP] text_b [SEP]`.

    longest: the maximum number of tokens (default: the length of the position table, which is also the upper limit). truncate:
    whether to cut longer texts; None if the command has no such flag. As in the original, tokens are removed from a pair one at a
    time, from the end of the longer part. with_specials: whether to recognise special tokens such as "[MASK]" in the text.

    Raises UserError if a text has no tokens, or if a text is too long and `truncate` is not True.
    """
    tokenizer = engine.model.tokenizer
    encode = tokenizer.encode_with_specials if with_specials else tokenizer.encode
    parts = [encode(part) for part in (text, text_b) if part is not None]
    for part, ids in zip((text, text_b), parts, strict=False):
        if not ids:
            raise UserError(f"{shortened(part or '')} has no tokens; give text")
    table = engine.config.max_position
    limit = "the model directory's max_seq_length" if longest and longest < table else "the model's position table"
    longest = min(longest or table, table)
    room = longest - 1 - len(parts)
    total = sum(map(len, parts))
    if total > room and not truncate:
        raise UserError(
            f"{shortened(text)} is {counted(total + 1 + len(parts), 'token')} with its [CLS] and [SEP], more than the "
            f"{longest} of {limit}; shorten it" + (", or pass --truncate" if truncate is False else "")
        )
    second = parts[1] if text_b is not None else []
    cut_a, cut_b = truncation(len(parts[0]), len(second), room)
    ids = [tokenizer.cls_id, *parts[0][: len(parts[0]) - cut_a], tokenizer.sep_id]
    segment_b = len(ids) if text_b is not None and engine.config.has_segments else -1
    return Item(ids + ([*second[: len(second) - cut_b], tokenizer.sep_id] if text_b is not None else []), segment_b)


def shortened(text: str, most: int = 60) -> str:
    """Cuts a text to `most` characters and quotes it, for an error message."""
    return repr(text if len(text) <= most else f"{text[: most - 3]}...")
