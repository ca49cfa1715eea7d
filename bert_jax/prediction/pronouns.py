"""`resolve`: the name that a pronoun refers to, predicted by a mention head (GAP; Webster et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted
from bert_jax.model.heads.mention import MentionHead
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.labelling import compute_logits, require_head
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import shortened
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.mention_task import read_mentions

MENTIONS = ("pronoun", "a", "b")


@dataclasses.dataclass(frozen=True)
class Resolve:
    """Predicts the probabilities that a pronoun refers to the name `a`, to the name `b`, or to neither.

    A mention is given by its words. If the words occur several times in the text, "she#2" means the second occurrence.
    Alternatively, `pronoun_start`, `a_start` and `b_start` are the character offsets of the mentions, as in GAP. If a text is
    longer than the position table, only tokens around the three mentions are kept, as in training."""

    fields = (
        Field("text"),
        *(Field(name) for name in MENTIONS),
        *(Field(f"{name}_start", optional=True, number=True) for name in MENTIONS),
    )

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no trained head for mentions."""
        require_head(engine, MentionHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, Item]:
        """Returns (the text and the mentions of a record with their offsets, the tokens). Raises UserError if a mention is not
        found, or if two mentions are the same."""
        text = values["text"]
        found = {name: _place(text, name, values) for name in MENTIONS}
        if twice := [name for name in ("a", "b") if found[name] == found["pronoun"]]:
            raise UserError(f"{twice[0]}={values[twice[0]]!r} is the pronoun itself; give the two names that it may refer to")
        if found["a"] == found["b"]:
            raise UserError(
                f"a and b are both {values['a']!r} at character {found['a'][0]}; give the two names that the pronoun may refer to"
            )
        mentions: JsonObject = {name: text[start:end] for name, (start, end) in found.items()}
        mentions |= {f"{name}_start": start for name, (start, _) in found.items()}
        tokenizer = engine.model.tokenizer
        example = PronounExample(id="", text=text, **mentions, label=None, gender=None)
        reading = read_mentions(tokenizer, example, engine.config.max_position - 2)
        ids = [tokenizer.cls_id, *reading.ids.tolist(), tokenizer.sep_id]
        return {"text": text, **mentions}, Item(ids, query_positions=tuple(1 + start for start in reading.mention_starts))

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, Item]]) -> list[JsonObject]:
        """Returns the name that each pronoun refers to, and the probabilities."""
        head = require_head(engine, MentionHead)
        found = compute_logits(engine, head, [item for _, item in prepared])
        answers = []
        for (values, _), logits in zip(prepared, found, strict=True):
            verdict = head.outputs.answer(logits[0], head.labels)  # the logits of the first query position
            answers.append({**values, "means": values.get(verdict["label"].lower()), **verdict})
        return answers

    def as_text(self, answer: JsonObject) -> str:
        """Returns a line with the probability, the pronoun, the name that it refers to, and the text."""
        return f"{answer['probability']:7.2%}  {answer['pronoun']} = {answer['means'] or 'neither'}  {answer['text']}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


def _place(text: str, name: str, values: JsonObject) -> tuple[int, int]:
    """Returns the characters [start, end) of the mention `name` of a record. If the record has `{name}_start`, it is used."""
    mention, start = values[name].rstrip(), values.get(f"{name}_start")
    if start is None:
        return find_mention(text, mention.lstrip())
    if not text.startswith(mention, start):
        nothing = f"nothing after {counted(len(text), 'character')}"
        there = repr(text[start : start + len(mention)]) if start < len(text) else nothing
        raise UserError(f"{name}_start={start}: the text has {there} there, not {mention!r}; count characters from 0")
    return start, start + len(mention)


def _matches(text: str, words: str, *, whole: bool) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of each non-overlapping occurrence of `words`. With `whole`, occurrences inside
    longer words are ignored."""
    found = []
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        inside = whole and any(letter.isalnum() or letter == "_" for letter in (text[start - 1 : start], text[end : end + 1]))
        if not inside:
            found.append((start, end))
        start = text.find(words, start + 1 if inside else end)
    return found


def find_mention(text: str, mention: str) -> tuple[int, int]:
    """Returns the characters [start, end) of `mention` in `text`: "she", or "she#2" for its second occurrence.

    Parts of words are found only if no whole words match, because some scripts have no spaces. Raises UserError if the mention
    does not occur, or if it occurs several times and `mention` has no number."""
    words, _, number = mention.rpartition("#")
    if mention in text or not words or not number.isdecimal():
        words, number = mention, ""
    if not words.strip():
        raise UserError(f"a mention is empty; give its words as in the text, for example {MENTIONS[0]} 'she'")
    places = _matches(text, words, whole=True) or _matches(text, words, whole=False)
    if not places:
        raise UserError(f"{words!r} does not occur in {shortened(text)}; give a mention as it appears in the text")
    if not number and len(places) > 1:
        raise UserError(
            f"{words!r} occurs {counted(len(places), 'time')} in {shortened(text)}; choose one, for example '{words}#1'"
        )
    which = whole_number(number or "1", 1, len(places))
    if which is None:
        times = f"{words!r} occurs {counted(len(places), 'time')}"
        raise UserError(f"{shortened(mention)}: {times} in {shortened(text)}; give a number from 1 to {len(places)}")
    return places[which - 1]
