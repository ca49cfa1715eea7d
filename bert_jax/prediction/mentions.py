"""Whom a pronoun means: the question to a model with a mention head (GAP; Webster et al. 2018)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from bert_jax.corpus.files import JsonObject
from bert_jax.errors import UserError
from bert_jax.heads.mention import MentionHead
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.labels import head_of, logits_of
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import shortened
from bert_jax.prediction.streams import Field
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.mention_task import read_mentions

MENTIONS = ("pronoun", "a", "b")


@dataclasses.dataclass(frozen=True)
class Resolve:
    """Whether a pronoun means the name `a`, the name `b`, or neither, with the probability of each.

    A mention is given by its words; where the text has them several times, "she#2" is the second, or `pronoun_start`, `a_start`
    and `b_start` say at which character it begins, as GAP's offsets do. A text longer than the position table is read around the
    three, as in training.
    """

    fields = (
        Field("text"),
        *(Field(name) for name in MENTIONS),
        *(Field(f"{name}_start", optional=True, number=True) for name in MENTIONS),
    )

    def check(self, engine: Engine) -> None:
        """Raises UserError where the model has no trained head for mentions."""
        head_of(engine, MentionHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, Item]:
        """The mentions of a record with their places, and its tokens. Raises UserError for a mention that is not there."""
        text = values["text"]
        found = {name: _place(text, name, values) for name in MENTIONS}
        if twice := [name for name in ("a", "b") if found[name] == found["pronoun"]]:
            raise UserError(f"{twice[0]}={values[twice[0]]!r} is the pronoun itself; give the two names it may mean")
        if found["a"] == found["b"]:
            raise UserError(f"a and b are both {values['a']!r} at character {found['a'][0]}; give the two names it may mean")
        said: JsonObject = {name: text[start:end] for name, (start, end) in found.items()}
        said |= {f"{name}_start": start for name, (start, _) in found.items()}
        tokenizer = engine.model.tokenizer
        example = PronounExample(id="", text=text, **said, label=None, gender=None)
        reading = read_mentions(tokenizer, example, engine.config.max_position - 2)
        ids = [tokenizer.cls_id, *reading.ids.tolist(), tokenizer.sep_id]
        return {"text": text, **said}, Item(ids, places=tuple(1 + start for start in reading.mention_starts))

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, Item]]) -> list[JsonObject]:
        """The name that each pronoun means, with the probabilities."""
        head = head_of(engine, MentionHead)
        found = logits_of(engine, head, [item for _, item in prepared])
        answers = []
        for (said, _), logits in zip(prepared, found, strict=True):
            verdict = head.outputs.answer(logits[0], head.labels)  # the triple that begins with the pronoun
            answers.append({**said, "means": said.get(verdict["label"].lower()), **verdict})
        return answers

    def for_people(self, answer: JsonObject) -> str:
        """The probability, the pronoun and its name, then the text, on a line."""
        return f"{answer['probability']:7.2%}  {answer['pronoun']} = {answer['means'] or 'neither'}  {answer['text']}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """The answer itself."""
        return answer


def _place(text: str, name: str, values: JsonObject) -> tuple[int, int]:
    """The characters [start, end) of the mention `name` of a record: at its start where the record has one."""
    mention, start = values[name], values.get(f"{name}_start")
    if start is None:
        return place_of(text, mention)
    if not text.startswith(mention, start):
        nothing = f"nothing after {counted(len(text), 'character')}"
        there = repr(text[start : start + len(mention)]) if start < len(text) else nothing
        raise UserError(f"{name}_start={start}: the text has {there} there, not {mention!r}; count characters from 0")
    return start, start + len(mention)


def place_of(text: str, mention: str) -> tuple[int, int]:
    """The characters [start, end) of `text` that `mention` names: "she", or of several the second by "she#2".

    Whole words are looked for, and parts of words only where there are none (some scripts have no spaces). Raises UserError where
    it does not occur, or several times and no number says which.
    """
    words, _, number = mention.rpartition("#")
    if mention in text or not words or not number.isdecimal():
        words, number = mention, ""
    if not words.strip():
        raise UserError(f"a mention is empty; give the words of the text that it is, for example {MENTIONS[0]} 'she'")
    places = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text)]
    places = places or [m.span() for m in re.finditer(re.escape(words), text)]
    if not places:
        raise UserError(f"{words!r} does not occur in {shortened(text)}; give a mention as the text has it")
    if not number and len(places) > 1:
        raise UserError(
            f"{words!r} occurs {counted(len(places), 'time')} in {shortened(text)}; say which, for example '{words}#1'"
        )
    if number and not 1 <= int(number) <= len(places):
        raise UserError(f"{mention!r}: {words!r} occurs {counted(len(places), 'time')} in {shortened(text)}; count from 1")
    return places[int(number) - 1 if number else 0]
