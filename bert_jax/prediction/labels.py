"""The answers of labelled heads: a label, a tag for each word, an answer in a context, one of several choices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from bert_jax.corpus.files import JsonObject
from bert_jax.errors import UserError
from bert_jax.heads.choice import ChoiceHead
from bert_jax.heads.head import TaskHead
from bert_jax.heads.outputs import softmax
from bert_jax.heads.sequence import SequenceHead
from bert_jax.heads.span import SpanHead
from bert_jax.heads.token import TokenHead
from bert_jax.prediction import forwards
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import encoded, shortened
from bert_jax.prediction.streams import Field
from bert_jax.tasks.entity_scores import entities, is_tag
from bert_jax.tasks.spans import Answer, Context, Span, SpanSearch, best_spans
from bert_jax.tasks.windows import Window, most_context, window_starts, windows

Kind = TypeVar("Kind", bound=TaskHead)


def head_of(engine: Engine, kind: type[Kind]) -> Kind:
    """The model's task head, which has to be of this `kind`, and trained."""
    engine.require(f"{kind.kind}_head", kind.action)
    head = engine.model.head
    assert isinstance(head, kind)
    if head.reads_pooler:
        engine.require("pooler", kind.action)
    return head


def logits_of(engine: Engine, head: TaskHead, items: Sequence[Item]) -> list[Float[np.ndarray, "*shape C"]]:
    """The logits of the model's `head` for each of `items`: [C], for every token [n, C], or for every place [places, C]."""
    return engine.run(forwards.label_logits, items, head.results_per, head=head)


@dataclasses.dataclass(frozen=True)
class Classify:
    """The label of a text or a pair, with the probability of every label; the value, where the head is a regression."""

    truncate: bool = False
    fields = (Field("text"), Field("text_b", optional=True))

    def check(self, engine: Engine) -> None:
        """Raises UserError where the model has no trained head for sequences."""
        head_of(engine, SequenceHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, Item]:
        """The texts of a record, and their tokens."""
        shown = {name: text for name, text in values.items() if text is not None}
        return shown, encoded(engine, values["text"], values.get("text_b"), truncate=self.truncate)

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, Item]]) -> list[JsonObject]:
        """The label of each record and its probability, or the value of a regression."""
        head = head_of(engine, SequenceHead)
        found = logits_of(engine, head, [item for _, item in prepared])
        return [shown | head.outputs.answer(logits, head.labels) for (shown, _), logits in zip(prepared, found, strict=True)]

    def for_people(self, answer: JsonObject) -> str:
        """The answer first, then the text, on a line."""
        text = answer["text"] + (f" | {answer['text_b']}" if "text_b" in answer else "")
        if "value" in answer:
            return f"{answer['value']:9.4f}  {text}"
        if "values" in answer:
            return "  ".join(f"{label} {x:.4f}" for label, x in answer["values"].items()) + f"  {text}"
        if "labels" in answer:
            return f"{', '.join(answer['labels']) or 'none'}  {text}"
        return f"{answer['probability']:7.2%}  {answer['label']}  {text}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """The answer itself."""
        return answer


@dataclasses.dataclass(frozen=True)
class _Tagged:
    """A text to tag: its words, and its items, each with the words whose first pieces it is to judge."""

    text: str | None
    words: list[str]
    spans: list[tuple[int, int]] | None
    items: list[Item]
    judged: list[list[tuple[int, int]]]
    """For each item: (word, column of its first piece)."""


@dataclasses.dataclass(frozen=True)
class Tag:
    """A label for every word, read at its first piece (paper section 5.3), with the characters it stands on.

    A text longer than the position table is read in windows that overlap by half, each word where it has most context. Tags of
    the forms B-X, I-X, E-X, S-X and O are also joined to entities.
    """

    words: bool = False
    """Records hold "words", split already, instead of "text"; in a line of text TABs separate them, or else white space."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The field of a record: its words, or its text."""
        return (Field("words", many=True, words=True),) if self.words else (Field("text"),)

    def check(self, engine: Engine) -> None:
        """Raises UserError where the model has no trained head for tokens."""
        head_of(engine, TokenHead)

    def prepare(self, engine: Engine, values: JsonObject) -> _Tagged:
        """The words of a record, and the windows that hold their pieces."""
        tokenizer = engine.model.tokenizer
        if self.words:
            words, spans, text = list(values["words"]), None, None
            ids, firsts, _ = tokenizer.encode_words(words)
        else:
            text = values["text"]
            spans = tokenizer.word_spans(text)
            if not spans:
                raise UserError(f"{shortened(text)} holds no word; give text")
            words = [text[start:end] for start, end in spans]
            ids, firsts, _ = tokenizer.encode_words(words)
        items, judged = _windows_of_words(ids, firsts, engine.config.max_position - 2, tokenizer.cls_id, tokenizer.sep_id)
        return _Tagged(text, words, spans, items, judged)

    def answer(self, engine: Engine, prepared: Sequence[_Tagged]) -> list[JsonObject]:
        """The tag of each word with its probability, and the entities that the tags make."""
        head = head_of(engine, TokenHead)
        results = iter(logits_of(engine, head, [item for p in prepared for item in p.items]))
        answers = []
        for p in prepared:
            logits = np.zeros((len(p.words), head.num_outputs))
            for judged, result in zip(p.judged, results, strict=False):
                for word, column in judged:
                    logits[word] = result[column]
            answers.append(self._answer(p, head, softmax(logits)))
        return answers

    def _answer(self, p: _Tagged, head: TokenHead, probabilities: Float[np.ndarray, "words C"]) -> JsonObject:
        best = probabilities.argmax(-1)
        words = []
        for i, word in enumerate(p.words):
            span = {"start": p.spans[i][0], "end": p.spans[i][1]} if p.spans else {}
            words.append({"word": word, "label": head.labels[best[i]], "probability": float(probabilities[i, best[i]]), **span})
        answer: JsonObject = {"text": p.text, "tags": words} if p.text is not None else {"words": p.words, "tags": words}
        if all(is_tag(label) for label in head.labels):
            answer["entities"] = [
                {
                    "label": label,
                    "text": p.text[words[first]["start"] : words[last]["end"]] if p.text else " ".join(p.words[first : last + 1]),
                    **({"start": words[first]["start"], "end": words[last]["end"]} if p.spans else {"words": [first, last + 1]}),
                }
                for label, first, last in entities([word["label"] for word in words])
            ]
        return answer

    def for_people(self, answer: JsonObject) -> str:
        """The text with the tag behind each word that has one."""
        return " ".join(w["word"] if w["label"] == "O" else f"{w['word']}/{w['label']}" for w in answer["tags"])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """The answer itself."""
        return answer


def _windows_of_words(
    ids: Sequence[int], firsts: Sequence[int], room: int, cls_id: int, sep_id: int
) -> tuple[list[Item], list[list[tuple[int, int]]]]:
    """Stretches of at most `room` tokens that overlap by half, and for each the words whose first pieces are furthest from its
    ends."""
    starts = window_starts(len(ids), room, max(1, room // 2))
    items = [Item([cls_id, *ids[start : start + room], sep_id]) for start in starts.tolist()]
    judged: list[list[tuple[int, int]]] = [[] for _ in items]
    best = most_context(starts, len(ids), room)
    for word, token in enumerate(firsts):
        judged[best[token]].append((word, 1 + token - int(starts[best[token]])))
    return items, judged


FORMER_NAMES = {"stride": "doc_stride", "max_answer_tokens": "max_answer"}
"""What options of `AnswerQuestion` were called before they had the names that the settings of a task have."""


@dataclasses.dataclass(frozen=True)
class AnswerQuestion:
    """The passage of a context of any length that answers a question, through sliding windows (run_squad.py)."""

    n_best: int = 1
    length: int = 384
    doc_stride: int = 128
    """Tokens from window to window."""
    max_answer: int = 30
    """Tokens of the longest answer."""
    may_be_unanswerable: bool = False
    no_answer_threshold: float = 0.0
    fields = (Field("question"), Field("context"))

    def check(self, engine: Engine) -> None:
        """Raises UserError where the model has no trained head for spans, or an option is out of range."""
        head_of(engine, SpanHead)
        for name in ("n_best", "length", "doc_stride", "max_answer"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')}={getattr(self, name)} must be at least 1")
        if not math.isfinite(self.no_answer_threshold):
            raise UserError(f"--no-answer-threshold={self.no_answer_threshold} must be a finite number")

    def prepare(
        self, engine: Engine, values: JsonObject
    ) -> tuple[JsonObject, list[Window], list[tuple[int, int]], Bool[np.ndarray, " pieces"]]:
        """A record, the windows over its context, the characters of the context's tokens, and which of them continue a word."""
        tokenizer = engine.model.tokenizer
        question = tokenizer.encode(values["question"])
        ids, offsets = tokenizer.encode_with_offsets(values["context"])
        for name, tokens in (("question", question), ("context", ids)):
            if not tokens:
                raise UserError(f"the {name} {shortened(values[name])} holds no token; give text")
        length = min(self.length, engine.config.max_position)
        specials = {"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id}
        own = windows(question, ids, length=length, stride=self.doc_stride, **specials)
        return values, own, offsets, tokenizer.is_continuation(np.array(ids))

    def answer(self, engine: Engine, prepared: Sequence[Any]) -> list[JsonObject]:
        """The best spans of each record's context, or "" where no answer is likelier."""
        head = head_of(engine, SpanHead)
        has_types = engine.config.type_vocab_size > 1
        items = [Item(w.input_ids.tolist(), w.offset if has_types else -1) for _, own, *_ in prepared for w in own]
        results = iter(logits_of(engine, head, items))
        search = SpanSearch(
            n_best=max(20, self.n_best),
            max_answer_tokens=self.max_answer,
            may_be_unanswerable=self.may_be_unanswerable,
            no_answer_threshold=self.no_answer_threshold,
        )
        answers = []
        for values, own, offsets, continuation in prepared:
            logits = [next(results) for _ in own]
            found = best_spans(
                [x[:, 0] for x in logits],
                [x[:, 1] for x in logits],
                own,
                Context(values["context"], offsets, continuation),  # whole words: "Honolulu" where the span ends at "Hon"
                search,
            )
            answers.append(self._as_dict(values, found))
        return answers

    def _as_dict(self, values: JsonObject, found: Answer) -> JsonObject:
        answer: JsonObject = {"question": values["question"], **_span(found.best)}
        if self.may_be_unanswerable:
            answer["no_answer_margin"] = found.no_answer_margin if np.isfinite(found.no_answer_margin) else None
        if self.n_best > 1:
            answer["n_best"] = [_span(span) for span in found.spans[: self.n_best]]
        return answer

    def for_people(self, answer: JsonObject) -> str:
        """The question, and its answers by probability."""
        lines = [f"{answer['question']}", f"  {answer['probability']:7.2%}  {answer['answer'] or '(no answer)'}"]
        lines += [f"  {s['probability']:7.2%}  {s['answer'] or '(no answer)'}" for s in answer.get("n_best", [])[1:]]
        return "\n".join(lines)

    def as_json(self, answer: JsonObject) -> JsonObject:
        """The answer itself."""
        return answer


def _span(span: Span) -> JsonObject:
    place = {"start": span.start, "end": span.end}
    return {"answer": span.text, **place, "probability": span.probability, "score": span.score}


@dataclasses.dataclass(frozen=True)
class Choose:
    """The best of several continuations of a prompt: a score for each pair of prompt and choice (paper section 4.4, SWAG)."""

    truncate: bool = False
    fields = (Field("prompt"), Field("choices", many=True))

    def check(self, engine: Engine) -> None:
        """Raises UserError where the model has no trained head for choices."""
        head_of(engine, ChoiceHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, list[Item]]:
        """A record, and the tokens of the prompt with each choice. Raises UserError for fewer than two choices."""
        if len(values["choices"]) < 2:
            raise UserError(f"{len(values['choices'])} choice for {shortened(values['prompt'])}; give two or more")
        return values, [encoded(engine, values["prompt"], choice, truncate=self.truncate) for choice in values["choices"]]

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, list[Item]]]) -> list[JsonObject]:
        """The likeliest choice of each record, and the probability of every one."""
        head = head_of(engine, ChoiceHead)
        results = iter(logits_of(engine, head, [item for _, items in prepared for item in items]))
        answers = []
        for values, items in prepared:
            p = softmax(np.array([next(results)[0] for _ in items]))
            best = int(p.argmax())
            verdict = {"choice": best, "text": values["choices"][best], "probability": float(p[best])}
            answers.append({**values, **verdict, "probabilities": p.tolist()})
        return answers

    def for_people(self, answer: JsonObject) -> str:
        """The prompt, and below it the choices with their probabilities."""
        rows = zip(answer["choices"], answer["probabilities"], strict=True)
        return "\n".join([answer["prompt"], *(f"  {p:7.2%}  {choice}" for choice, p in rows)])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """The answer itself."""
        return answer
