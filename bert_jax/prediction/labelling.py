"""`classify`, `tag`, `answer` and `choose`: predictions of task heads for texts, words, contexts and choices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
from jaxtyping import Float, Int32

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import softmax
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.prediction import forwards
from bert_jax.prediction.commands import AnswerOptions, TagOptions, Truncation
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import encoded, shortened
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.entity_scores import as_tags, entities, is_tag
from bert_jax.tasks.spans import Answer, Context, Span, SpanSearch, Window, best_spans, most_context, window_starts, windows


def require_head(engine: Engine, kind: type[TaskHead]) -> TaskHead:
    """Returns the task head of the model. Raises UserError if the model has no trained head of this `kind`, or of another kind
    with the same `action`."""
    head = engine.model.head
    engine.require(head.subtree if head and head.action == kind.action else f"{kind.kind}_head", kind.action)
    assert head is not None
    if head.has_pooler(engine.config):
        engine.require("pooler", kind.action)
    return head


def compute_logits(engine: Engine, head: TaskHead, items: Sequence[Item]) -> list[Float[np.ndarray, "*shape C"]]:
    """Computes the logits of the model's `head` for each of `items`: [tokens, C] for a token head, [query positions, C] for a
    head that reads `query_positions`, and [C] for all other heads."""
    return engine.run(forwards.label_logits, items, head.results_per, head=head)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]+([.][0-9]+)?", text) is not None


def _seems_a_label(text: str, last: str, first: str) -> str:
    return (
        f"{shortened(text)} seems to be a label, not a {last}, but the model must not read labels; leave the label out, or give "
        f"JSON with {first!r} and {last!r}"
    )


@dataclasses.dataclass(frozen=True)
class Classify(Truncation):
    """Predicts the label of a text or a pair and the probabilities of all labels. A regression predicts a value."""

    fields = (Field("text"), Field("text_b", optional=True))

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no trained head for sequences."""
        require_head(engine, SequenceHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, Item]:
        """Returns (the texts of a record, the tokens)."""
        shown = {name: text for name, text in values.items() if text is not None}
        if "text_b" in shown and engine.model.of_pairs is False:
            texts = f"{shortened(shown['text'], 30)} and {shortened(shown['text_b'], 30)}"
            raise UserError(
                f"two texts, {texts}, but {engine.name} was trained on single texts; give one text, without its label"
            )
        if "text_b" not in shown and engine.model.of_pairs:
            column = engine.model.columns.get("text_b", "text_b")
            raise UserError(
                f"{shortened(values['text'])} has no second text, but {engine.name} was trained on pairs; give the second text "
                f"in the column {column!r}, or after a TAB"
            )
        return shown, encoded(engine, values["text"], values.get("text_b"), truncate=self.truncate)

    def label_in_line(self, engine: Engine, values: JsonObject) -> str | None:
        """Returns a message if the second text of a line seems to be a label, because the model must not read labels. Otherwise
        returns None."""
        second, labels = (values.get("text_b") or "").strip(), engine.model.head.labels if engine.model.head else ()
        if not second or engine.model.of_pairs is False:  # `prepare` rejects pairs for a model of single texts
            return None
        known = {label.casefold() for label in labels}
        one_word = engine.model.of_pairs is None and re.fullmatch(r"[\w-]+", second)
        return _seems_a_label(second, "text_b", "text") if second.casefold() in known or _is_number(second) or one_word else None

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, Item]]) -> list[JsonObject]:
        """Returns the label of each record and its probability, or the value of a regression."""
        head = require_head(engine, SequenceHead)
        found = compute_logits(engine, head, [item for _, item in prepared])
        return [shown | head.outputs.answer(logits, head.labels) for (shown, _), logits in zip(prepared, found, strict=True)]

    def as_text(self, answer: JsonObject) -> str:
        """Returns a line with the prediction and the text."""
        text = answer["text"] + (f" | {answer['text_b']}" if "text_b" in answer else "")
        if "value" in answer:
            return f"{answer['value']:9.4f}  {text}"
        if "values" in answer:
            return "  ".join(f"{label} {x:.4f}" for label, x in answer["values"].items()) + f"  {text}"
        if "labels" in answer:
            return f"{', '.join(answer['labels']) or 'none'}  {text}"
        return f"{answer['probability']:7.2%}  {answer['label']}  {text}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


@dataclasses.dataclass(frozen=True)
class _Tagged:
    """A text to tag. It is cut into windows, and each word is labelled in one of them."""

    text: str | None
    words: list[str]
    spans: list[tuple[int, int]] | None
    """The character offsets of each word. None if the record has words instead of a text."""
    items: list[Item]
    """The windows of the text."""
    labelled_words: list[list[tuple[int, int]]]
    """For each window, the words that it labels: (word index, column of the word's first subword)."""


@dataclasses.dataclass(frozen=True)
class Tag(TagOptions):
    """Predicts a label for every word, at its first subword (paper section 5.3). Returns the character offsets of the words.
    Words and punctuation marks are separated for every tokenizer (`Tokenizer.words_and_marks`). A model that was trained on
    words with attached punctuation needs `words`.

    A text longer than the position table is cut into windows that overlap by half. Each word is labelled in the window where
    the word has the most context. A model with a CRF predicts the best label sequence of each window, and the marginal
    probabilities of the labels. If the labels are entity tags in any scheme (`as_tags`), entities are returned too."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The only field of a record, which is "words" or "text"."""
        if self.words:
            hint = "; put the words of each sentence in the field words"
            return (Field("words", many=True, words=True, sentence=True, hint=hint),)
        return (Field("text", sentence=True, hint="; --words reads the field words"),)

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no trained head for tokens."""
        require_head(engine, TokenHead)

    def prepare(self, engine: Engine, values: JsonObject) -> _Tagged:
        """Returns the words of a record and the windows with their subwords."""
        tokenizer = engine.model.tokenizer
        if self.words:
            words, spans, text = list(values["words"]), None, None
            ids, firsts, _ = tokenizer.encode_words(words)
        else:
            text = values["text"]
            spans = tokenizer.words_and_marks(text, tokenizer.encode_with_offsets(text)[1])
            if not spans:
                raise UserError(f"{shortened(text)} holds no word; give text")
            words = [text[start:end] for start, end in spans]
            ids, firsts, _ = tokenizer.encode_words(words)
        items, labelled = _word_windows(ids, firsts, engine.config.max_position - 2, tokenizer.cls_id, tokenizer.sep_id)
        return _Tagged(text, words, spans, items, labelled)

    def label_in_line(self, engine: Engine, values: JsonObject) -> str | None:
        """Returns a message if a line seems to have a word and its tag, as in a training file. Otherwise returns None."""
        labels = {label for label in require_head(engine, TokenHead).labels if any(map(str.isalpha, label))}
        parts = values["words"] if self.words else values["text"].split()
        if len(parts) < 2:
            return None
        stated = self.words or "\t" in values["text"] or (is_tag(parts[-1]) and parts[-1] != "O")
        is_word = len(parts) > 2 and parts[-1] in ("B", "I", "E", "S")  # such as the last word of "my wife and I"
        if parts[-1] in labels and stated and not is_word:
            return (
                f"{shortened(parts[-1])} seems to be the tag of a word, not part of the text; give a sentence per line, "
                'or JSON with "words"'
            )
        return None

    def answer(self, engine: Engine, prepared: Sequence[_Tagged]) -> list[JsonObject]:
        """Returns the tag of each word with its probability, and the entities of the tags."""
        head = require_head(engine, TokenHead)
        results = iter(engine.run(forwards.tags, [item for p in prepared for item in p.items], head.results_per, head=head))
        answers = []
        for p in prepared:
            best, logits = np.zeros(len(p.words), np.int32), np.zeros((len(p.words), head.num_outputs))
            for labelled, (labels, scores) in zip(p.labelled_words, results, strict=False):
                for word, column in labelled:
                    best[word], logits[word] = labels[column], scores[column]
            answers.append(self._answer(p, head, best, softmax(logits)))
        return answers

    def _answer(
        self, p: _Tagged, head: TaskHead, best: Int32[np.ndarray, " words"], probabilities: Float[np.ndarray, "words C"]
    ) -> JsonObject:
        words = []
        for i, word in enumerate(p.words):
            span = {"start": p.spans[i][0], "end": p.spans[i][1]} if p.spans else {}
            words.append({"word": word, "label": head.labels[best[i]], "probability": float(probabilities[i, best[i]]), **span})
        answer: JsonObject = {"text": p.text, "tags": words} if p.text is not None else {"words": p.words, "tags": words}
        if tags := as_tags(head.labels):
            answer["entities"] = [
                {
                    "label": label,
                    "text": p.text[words[first]["start"] : words[last]["end"]] if p.text else " ".join(p.words[first : last + 1]),
                    **({"start": words[first]["start"], "end": words[last]["end"]} if p.spans else {"words": [first, last + 1]}),
                }
                for label, first, last in entities([tags[word["label"]] for word in words])
            ]
        return answer

    def as_text(self, answer: JsonObject) -> str:
        """Returns the words, each followed by its tag unless the tag is O."""
        return " ".join(w["word"] if w["label"] == "O" else f"{w['word']}/{w['label']}" for w in answer["tags"])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


def _word_windows(
    ids: Sequence[int], firsts: Sequence[int], room: int, cls_id: int, sep_id: int
) -> tuple[list[Item], list[list[tuple[int, int]]]]:
    """Cuts a text into windows of at most `room` tokens that overlap by half. Returns (the windows, the words that each window
    labels).

    ids: the subwords of all words. firsts: the index of each word's first subword. A word is labelled in the window
    in which the first subword of the word is furthest from both ends.
    """
    starts = window_starts(len(ids), room, max(1, room // 2))
    pieces = [[cls_id, *ids[start : start + room], sep_id] for start in starts.tolist()]
    labelled: list[list[tuple[int, int]]] = [[] for _ in pieces]
    best = most_context(starts, len(ids), room)
    for word, token in enumerate(firsts):
        labelled[best[token]].append((word, 1 + token - int(starts[best[token]])))
    items = []
    for own, words in zip(pieces, labelled, strict=True):
        word_starts = np.zeros(len(own), np.int32)
        word_starts[[column for _, column in words]] = 1
        items.append(Item(own, columns={"word_starts": word_starts.tolist()}))
    return items, labelled


@dataclasses.dataclass(frozen=True)
class AnswerQuestion(AnswerOptions):
    """Finds the span of a context that answers a question. It consists of whole tokens, as in the scores of `finetune`. Long
    contexts are read in windows, as in run_squad.py. Questions are truncated to the same number of tokens as in training."""

    fields = (Field("question"), Field("context"))

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no trained head for spans, or if an option is out of range."""
        require_head(engine, SpanHead)
        for name in ("n_best", "length", "doc_stride", "max_answer"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')}={value} must be at least 1")
        if self.no_answer_threshold is not None and not math.isfinite(self.no_answer_threshold):
            raise UserError(f"--no-answer-threshold={self.no_answer_threshold} must be a finite number")

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, list[Window], list[tuple[int, int]]]:
        """Returns (the record, the windows over the context, the character offsets of the context's tokens)."""
        tokenizer = engine.model.tokenizer
        question = tokenizer.encode(values["question"])
        ids, offsets = tokenizer.encode_with_offsets(values["context"])
        for name, tokens in (("question", question), ("context", ids)):
            if not tokens:
                raise UserError(f"the {name} {shortened(values[name])} has no tokens; give text")
        own = windows(
            question,
            ids,
            length=min(self._setting(engine, "length"), engine.config.max_position),
            stride=self._setting(engine, "doc_stride"),
            max_question=engine.model.reading.get("max_question", TaskConfig.max_question),
            special_ids=(tokenizer.cls_id, tokenizer.sep_id),
        )
        return values, own, offsets

    def _setting(self, engine: Engine, name: str) -> Any:
        """Returns the value of a setting: the one that is given, the one of the model's training, or the one of run_squad.py."""
        given = getattr(self, name)
        return engine.model.reading.get(name, _RUN_SQUAD[name]) if given is None else given

    def answer(self, engine: Engine, prepared: Sequence[Any]) -> list[JsonObject]:
        """Returns the best spans of each context. The answer is "" if "no answer" scores higher."""
        head = require_head(engine, SpanHead)
        has_types = engine.config.has_segments
        items = [Item(w.input_ids.tolist(), w.offset if has_types else -1) for _, own, _ in prepared for w in own]
        results = iter(compute_logits(engine, head, items))
        candidates = engine.model.reading.get("n_best", TaskConfig.n_best)
        search = SpanSearch(
            n_best=max(candidates, self.n_best),
            candidates=candidates,
            max_answer_tokens=self._setting(engine, "max_answer"),
            may_be_unanswerable=self._setting(engine, "may_be_unanswerable"),
            no_answer_threshold=self._setting(engine, "no_answer_threshold"),
        )
        shown = dataclasses.replace(self, may_be_unanswerable=search.may_be_unanswerable)
        answers = []
        for values, own, offsets in prepared:
            logits = [next(results) for _ in own]
            found = best_spans(
                [x[:, 0] for x in logits],
                [x[:, 1] for x in logits],
                own,
                Context(values["context"], offsets),
                search,
            )
            answers.append(shown._as_dict(values, found))
        return answers

    def _as_dict(self, values: JsonObject, found: Answer) -> JsonObject:
        answer: JsonObject = {"question": values["question"], **_span(found.best)}
        if self.may_be_unanswerable:
            answer["no_answer_margin"] = found.no_answer_margin if np.isfinite(found.no_answer_margin) else None
        if self.n_best > 1:
            answer["n_best"] = [_span(span) for span in found.spans[: self.n_best]]
        return answer

    def as_text(self, answer: JsonObject) -> str:
        """Returns the question, followed by lines with the answer, the other answers of `n_best`, and their probabilities."""
        others = [span for span in answer.get("n_best", []) if (span["start"], span["end"]) != (answer["start"], answer["end"])]
        lines = [f"  {span['probability']:7.2%}  {span['answer'] or '(no answer)'}" for span in (answer, *others)]
        return "\n".join([answer["question"], *lines])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


_RUN_SQUAD: Mapping[str, int | float] = {
    "length": 384, "doc_stride": 128, "max_answer": 30, "may_be_unanswerable": False, "no_answer_threshold": 0.0,
}  # fmt: skip
"""The settings of `AnswerQuestion` that neither a flag nor the model's training gives."""


def _span(span: Span) -> JsonObject:
    place = {"start": span.start, "end": span.end}
    return {"answer": span.text, **place, "probability": span.probability, "score": span.score}


_LONG_WORD = 4
"""A choice with this many letters is not a name of one kind with a single letter."""


@dataclasses.dataclass(frozen=True)
class Choose(Truncation):
    """Chooses the best of several continuations of a prompt. Compares the logits of the (prompt, choice) pairs (paper section
    4.4, SWAG)."""

    fields = (Field("prompt"), Field("choices", many=True))

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no trained head for choices."""
        require_head(engine, ChoiceHead)

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, list[Item]]:
        """Returns (the record, the tokens of the prompt with each choice). Raises UserError if there are fewer than two
        choices."""
        if len(values["choices"]) < 2:
            raise UserError(f"{len(values['choices'])} choice for {shortened(values['prompt'])}; give two or more")
        return values, [encoded(engine, values["prompt"], choice, truncate=self.truncate) for choice in values["choices"]]

    def label_in_line(self, engine: Engine, values: JsonObject) -> str | None:
        """Returns a message if the last choice of a line seems to be the index or the letter of the correct choice. Otherwise
        returns None. A letter may be a choice if all choices are short, such as B6, B12 and A."""
        *others, last = map(str.strip, values["choices"])
        is_number = _is_number(last) and not any(map(_is_number, others))
        letters = {*ascii_uppercase[: len(others)], *ascii_lowercase[1 : len(others)]}  # "a" may be a choice, like "an" and "the"
        is_long = any(len(other.split()) > 1 or sum(map(str.isalpha, other)) >= _LONG_WORD for other in others)
        is_letter = last in letters and is_long and all(len(other) > 1 or not other.isalpha() for other in others)
        return _seems_a_label(last, "choices", "prompt") if others and (is_number or is_letter) else None

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, list[Item]]]) -> list[JsonObject]:
        """Returns the most probable choice of each record, and the probabilities of all choices. Choices are counted as in the
        training data."""
        head, first = require_head(engine, ChoiceHead), engine.model.reading.get("first_choice", 0)
        results = iter(compute_logits(engine, head, [item for _, items in prepared for item in items]))
        answers = []
        for values, items in prepared:
            p = softmax(np.array([next(results)[0] for _ in items]))
            best = int(p.argmax())
            verdict = {"choice": best + first, "text": values["choices"][best], "probability": float(p[best])}
            answers.append({**values, **verdict, "probabilities": p.tolist()})
        return answers

    def as_text(self, answer: JsonObject) -> str:
        """Returns the prompt, followed by lines with the choices and their probabilities."""
        rows = zip(answer["choices"], answer["probabilities"], strict=True)
        return "\n".join([answer["prompt"], *(f"  {p:7.2%}  {choice}" for choice, p in rows)])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer
