"""Questions in the JSON format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bert_jax.corpus.files import parse_json
from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers.tables import Say, is_utf8, note, read_text

_KINDS = {list: "a list", str: "a text", int: "an integer", bool: "true or false", dict: "an object"}


def read_squad(path: str | os.PathLike[str], *, say: Say = note) -> list[QuestionExample]:
    """The questions of a file, in its order; `is_impossible` is False if the file does not have the key (1.1).

    An answer whose text is not at its `answer_start` is moved to the nearest place with this text; if the context does not
    contain the text, it has no start. `say` reports the numbers of both. Raises UserError for a file in another format, and for
    two questions with the same id, by which predictions are scored.
    """
    path = pathlib.Path(path)
    try:
        content = parse_json(read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); fetch it again") from error
    answers = AnswerPlaces()
    examples: dict[str, QuestionExample] = {}
    for example, where in _questions(path, content, answers):
        if example.id in examples:
            raise UserError(f"{path}, {where}: another question has the id {example.id!r} too; each needs its own")
        examples[example.id] = example
    answers.report(path, say)
    if not examples:
        raise UserError(f"{path} has no questions; give a file of SQuAD")
    return list(examples.values())


@dataclass
class AnswerPlaces:
    """Finds answers in their contexts, and records those whose stated place is wrong."""

    moved: list[str] = field(default_factory=list)  # ids of the questions, once for each answer
    lost: list[str] = field(default_factory=list)

    def find(self, name: str, context: str, text: str, start: int | None) -> int | None:
        """The `nearest_place` to `start` of `text` in `context`, or the first place if `start` is None; None if there is none.

        name: the id of the question.
        """
        found = nearest_place(context, text, start or 0)
        if found is None:
            self.lost.append(name)
        elif start is not None and found != start:
            self.moved.append(name)
        return found

    def report(self, path: pathlib.Path, say: Say) -> None:
        """Reports the numbers of moved and lost answers, if there are any."""
        if self.moved:
            say(
                f"{path}: moved {counted(len(self.moved), 'answer')} to the nearest place with their text, "
                f"first one of {self.moved[0]}"
            )
        if self.lost:
            say(
                f"{path}: {counted(len(self.lost), 'answer')} not contained in the context, not used in training, first one "
                f"of {self.lost[0]}"
            )


def nearest_place(context: str, text: str, start: int) -> int | None:
    """The place of `text` in `context` that is nearest to `start`, the first of two at the same distance; None if there is none.
    `start` may lie outside the context."""
    inside = min(max(start, 0), len(context))
    places = (context.rfind(text, 0, inside + len(text)), context.find(text, inside))
    return min((place for place in places if place >= 0), key=lambda place: abs(place - inside), default=None)


def _questions(path: pathlib.Path, content: Any, places: AnswerPlaces) -> Iterator[tuple[QuestionExample, str]]:
    """Each question and its place in the file."""

    def get(value: Any, name: str, kind: type, where: str, default: Any = None) -> Any:
        if not isinstance(value, dict):
            raise UserError(f"{path}, {where or 'the file'}: {json.dumps(value)[:40]} is not an object; give a file of SQuAD")
        if name not in value and default is not None:
            return default
        if name not in value:
            raise UserError(f"{path}, {where or 'the file'}: no {name!r}; {nearest(name, value) if value else 'it is empty'}")
        if type(value[name]) is not kind:
            raise UserError(f"{path}, {where}{name}: {json.dumps(value[name])[:40]} is not {_KINDS[kind]}; give a file of SQuAD")
        if kind is str and not is_utf8(value[name]):
            raise UserError(f"{path}, {where}{name} holds half a surrogate pair, which is no character; correct the text")
        return value[name]

    for a, article in enumerate(get(content, "data", list, "")):
        for p, paragraph in enumerate(get(article, "paragraphs", list, f"data[{a}].")):
            inside = f"data[{a}].paragraphs[{p}]."
            context = get(paragraph, "context", str, inside)
            for q, entry in enumerate(get(paragraph, "qas", list, inside)):
                where = f"{inside}qas[{q}]."
                impossible = get(entry, "is_impossible", bool, where, default=False)
                name, question = get(entry, "id", str, where), get(entry, "question", str, where)
                answers = []
                for answer in [] if impossible else get(entry, "answers", list, where, default=[]):
                    text, start = get(answer, "text", str, where), get(answer, "answer_start", int, where)
                    if not text.strip():
                        raise UserError(f"{path}, {where}answers: an answer is empty; a question without one is is_impossible")
                    answers.append((text, places.find(name, context, text, start)))
                yield QuestionExample(name, question, context, tuple(answers), impossible), where.removesuffix(".")
