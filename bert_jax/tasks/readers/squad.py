"""Questions in the JSON format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from bert_jax.errors import UserError, nearest
from bert_jax.files import parse_json
from bert_jax.interface.ranges import LARGEST, decimal_number
from bert_jax.interface.words import counted, cut
from bert_jax.storage.records import is_utf8, read_text, split_lines
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers.own_rows import short
from bert_jax.tasks.readers.tables import Say, note

_WORD = re.compile(r"\S+")
_KINDS = {list: "a list", str: "a text", bool: "true or false", dict: "an object"}
_UNITS = ("utf-16-le", 2), ("utf-8", 1)
"""The encodings in which other programs count offsets, and the number of bytes per unit."""


def read_squad(path: str | os.PathLike[str], *, say: Say = note) -> list[QuestionExample]:
    """Returns the questions of a file, in order.

    A question has no answer if `is_impossible` is true, or if `is_impossible` is missing and `answers` is an empty list. If
    `answers` is missing, or is empty although `is_impossible` is false, the answers are unknown. Answers are located by
    `AnswerPlaces`. An id may be a whole number. If the id is missing or empty, it is the index of the question in the file,
    from 0. `say` reports questions without an id or a text, and how many answers are not at the stated place, or not in the
    context at all. Raises UserError if the file is in another format, or if two questions have the same id, since predictions
    are scored by id."""
    path = pathlib.Path(path)
    try:
        content = parse_json(read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); {_not_json(path)}") from error
    answers = AnswerPlaces()
    examples: dict[str, QuestionExample] = {}
    unnamed = blank = 0
    for n, (example, where) in enumerate(_questions(path, content, answers)):
        if not example.id:
            example = replace(example, id=str(n))
            unnamed += 1
        if example.id in examples:
            raise UserError(
                f"{path}, {where}: another question has the same id {cut(example.id)!r}; give each question an id of its own"
            )
        examples[example.id] = example
        blank += not (example.question.strip() and example.context.strip())
    if blank:
        say(f"WARNING: {path}: {counted(blank, 'question')} whose text or context is empty")
    if unnamed:
        say(f"{path}: {counted(unnamed, 'question')} without an id; the index of the question in the file, from 0, is used as id")
    answers.report(path, say)
    if not examples:
        raise UserError(f"{path} has no questions; give a SQuAD file")
    return list(examples.values())


def _not_json(path: pathlib.Path) -> str:
    """Returns the remedy for a file that is not JSON."""
    first = next((line for line in split_lines(read_text(path)) if line.strip()), "")
    with contextlib.suppress(ValueError):
        if isinstance(parse_json(first), dict):
            return "the first line is a complete object; if each line is an object, give the file a name that ends in .jsonl"
    if first.lstrip().startswith("<"):
        return "it is a web page; fetch the file itself"
    if not first.lstrip().startswith(("{", "[")):
        return "if it is a table, give it a name that ends in .csv or .tsv"
    return "fetch the file again"


@dataclass
class AnswerPlaces:
    """Finds answers in their contexts. Records the answers that are not at the stated place, or that are not found."""

    moved: list[str] = field(default_factory=list)  # the ids of the questions, one id per answer
    lost: list[str] = field(default_factory=list)

    def find(self, name: str, context: str, text: str, start: int | None) -> tuple[str, int | None]:
        """Returns the answer as it is written in the context, and the index of its first character. Returns (`text`, None) if
        the context does not contain the answer.

        Four matches are tried in order: (1) `text` at `start`, counted in characters, UTF-16 units or bytes, (2) the nearest
        place with `text`, or the first place if `start` is None, (3) the nearest place that differs only in white space, as in
        run_squad.py, and (4) the nearest place that differs only in its form of Unicode (NFC, NFD). name: the id of the
        question."""
        found = None if start is None else _stated_place(context, text, start)
        if found is None:
            found = nearest_place(context, text, start or 0)
        if found is None:
            span = _up_to_white_space(context, text, start or 0) or _in_other_form(context, text, start or 0)
            if span is not None:
                return context[slice(*span)], span[0]
            self.lost.append(name)
        elif start is not None and found != start:
            self.moved.append(name)
        return text, found

    def report(self, path: pathlib.Path, say: Say) -> None:
        """Reports the counts of moved and lost answers, if there are any."""
        if self.moved:
            say(
                f"{path}: moved {counted(len(self.moved), 'answer')} to the nearest place with the same text; the first belongs "
                f"to the question {cut(self.moved[0])}"
            )
        if self.lost:
            say(
                f"{path}: {counted(len(self.lost), 'answer')} not found in the context, so they are used for the scores but "
                f"not in training; the first belongs to the question {cut(self.lost[0])}"
            )


def _stated_place(context: str, text: str, start: int) -> int | None:
    """Returns the index of the character in `context` at which `text` starts, if `start` is the offset of `text` in characters,
    UTF-16 units or bytes. Otherwise, returns None."""
    if start < 0 or start > 4 * len(context):
        return None
    if context.startswith(text, start):
        return start
    for encoding, size in _UNITS if not context.isascii() else ():
        before = context.encode(encoding)[: start * size].decode(encoding, "ignore")
        if context.startswith(text, len(before)):
            return len(before)
    return None


def nearest_place(context: str, text: str, start: int) -> int | None:
    """Returns the position of `text` in `context` that is nearest to `start`, or None if the context does not contain `text`.
    If two positions are equally near, returns the first. `start` may be outside the context."""
    inside = min(max(start, 0), len(context))
    places = (context.rfind(text, 0, inside + len(text)), context.find(text, inside))
    return min((place for place in places if place >= 0), key=lambda place: abs(place - inside), default=None)


def _up_to_white_space(context: str, text: str, start: int) -> tuple[int, int] | None:
    """Returns the characters [start, end) of a part of `context` that has the same words as `text`, with any white space
    between the words. If there are several such parts, returns the part nearest to `start`. If there is no such part, returns
    None."""
    spans = [match.span() for match in _WORD.finditer(context)]
    spaced = " ".join(context[slice(*span)] for span in spans)
    ends = list(itertools.accumulate((end - begin + 1 for begin, end in spans), initial=0))  # the starts of words in `spaced`
    word = max(0, bisect.bisect_right(spans, (start, len(context))) - 1)
    wanted = " ".join(text.split())
    near = ends[word] + min(max(0, start - spans[word][0]), spans[word][1] - spans[word][0]) if spans else 0
    found = nearest_place(spaced, wanted, near)
    if found is None or not wanted:
        return None

    def place(at: int) -> int:
        word = bisect.bisect_right(ends, at) - 1
        return spans[word][0] + at - ends[word]

    return place(found), place(found + len(wanted) - 1) + 1


def _in_other_form(context: str, text: str, start: int) -> tuple[int, int] | None:
    """Returns the characters [start, end) of the part of `context` that is canonically equivalent to `text`. For example, an
    accented letter may be one character or two characters. If there are several such parts, returns the part nearest to
    `start`. If there is no such part, returns None."""
    if context.isascii():
        return None
    whole, wanted = unicodedata.normalize("NFD", context), unicodedata.normalize("NFD", text)
    sizes = (len(unicodedata.normalize("NFD", sign)) for sign in context)
    ends = list(itertools.accumulate(sizes, initial=0))  # the start of each character in `whole`
    found = nearest_place(whole, wanted, ends[min(max(start, 0), len(context))])
    if found is None:
        return None
    begin, end = bisect.bisect_left(ends, found), bisect.bisect_left(ends, found + len(wanted))
    return (begin, end) if (ends[begin], ends[end]) == (found, found + len(wanted)) else None


def listed_answers(given: Any, start: Any = None) -> list[tuple[str, int | None]]:
    """Returns the answers to a question. Each answer has the position of its first character, or None if the position is not
    stated.

    given: a text, an object {"text": ..., "answer_start": ...}, a list of such objects, or an object of lists, as in data sets
    of the Hugging Face hub. start: the position for answers that do not state a position. A position may be null, or a whole
    number such as 25, 25.0 or "25". Anything else raises ValueError with the problem."""
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = given.get("answer_start") or [None] * len(given["text"])
        if not isinstance(starts, list) or len(starts) != len(given["text"]):
            raise ValueError(f"is {short(given)}, but answer_start and text must have the same number of items")
        given = [{"text": text, "answer_start": start} for text, start in zip(given["text"], starts, strict=True)]
    found = []
    for answer in given if isinstance(given, list) else [given]:
        text, at = (answer.get("text"), answer.get("answer_start", start)) if isinstance(answer, dict) else (answer, start)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"has the text {short(text)} with the start {short(at)}; give a text and a whole number as the start"
            )
        found.append((text, _offset(text, at)))
    return found


def _offset(text: str, start: Any) -> int | None:
    if start is None or (isinstance(start, str) and not start.strip()) or (isinstance(start, float) and math.isnan(start)):
        return None
    if isinstance(start, str):  # the start is a cell of a table
        number = decimal_number(start.strip())
        start = start if number is None else number
    if isinstance(start, int | float) and not isinstance(start, bool) and start == start // 1 and abs(start) < LARGEST:
        return int(start)
    raise ValueError(f"has the text {short(text)} with the start {short(start)}; give a text and a whole number as the start")


def _id(value: Any) -> str | None:
    """Returns the id of a question as a text, or "" if the question has no id. Returns None if the value is not an id."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() and value if isinstance(value, str) else None


def _questions(path: pathlib.Path, content: Any, places: AnswerPlaces) -> Iterator[tuple[QuestionExample, str]]:
    """Yields each question and its place in the file."""

    def fail(where: str, problem: str) -> NoReturn:
        raise UserError(f"{path}, {where.removesuffix('.') or 'the file'}: {problem}")

    def get(value: Any, name: str, kind: type, where: str, default: Any = None) -> Any:
        if not isinstance(value, dict):
            fail(where, f"{short(value)} is not an object; give a SQuAD file")
        if name not in value and default is not None:
            return default
        if name not in value:
            fail(where, f"there is no {name!r}; {nearest(name, value) if value else 'the object is empty'}")
        if type(value[name]) is not kind:
            fail(f"{where}{name}", f"{short(value[name])} is not {_KINDS[kind]}; give a SQuAD file")
        if kind is str and not is_utf8(value[name]):
            fail(f"{where}{name}", "has half a surrogate pair, which is not a character; correct the text")
        return value[name]

    for a, article in enumerate(get(content, "data", list, "")):
        for p, paragraph in enumerate(get(article, "paragraphs", list, f"data[{a}].")):
            inside = f"data[{a}].paragraphs[{p}]."
            context = get(paragraph, "context", str, inside)
            for q, entry in enumerate(get(paragraph, "qas", list, inside)):
                where = f"{inside}qas[{q}]."
                question = get(entry, "question", str, where)
                name = _id(entry.get("id"))
                if name is None or not is_utf8(name):
                    fail(f"{where}id", f"{short(entry['id'])} is not a text or a whole number; give a SQuAD file")
                given = entry.get("answers")
                stated = None if entry.get("is_impossible") is None else get(entry, "is_impossible", bool, where)
                try:
                    answers = [] if given is None or stated else listed_answers(given)
                except ValueError as error:
                    fail(f"{where}answers", f"{error}. If a question has no answer, its list must be empty")
                if not all(is_utf8(text) for text, _ in answers):
                    fail(f"{where}answers", "an answer has half a surrogate pair, which is not a character; correct the text")
                found = tuple(places.find(name, context, text, start) for text, start in answers)
                impossible = (given is not None and not found) if stated is None else stated
                yield QuestionExample(name, question, context, found, impossible), where.removesuffix(".")
