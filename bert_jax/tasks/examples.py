"""Labelled examples before tokenisation. Each kind of task has its own class.

In test sets without labels, `label` and `labels` are None, and `answers` is empty.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts, for classification or regression."""

    id: str
    text: str
    text_b: str | None = None
    label: str | float | tuple[str, ...] | None = None  # a name, a number (regression), or a tuple of names (multi-label)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the example."""
        return (self.text,) if self.text_b is None else (self.text, self.text_b)


@dataclass(frozen=True)
class WordsExample:
    """A sentence, split into words, for token classification."""

    id: str
    words: tuple[str, ...]
    labels: tuple[str, ...] | None  # one label for each word
    document: int  # sentences with the same `document` form a document, and may be shown together as context

    @property
    def texts(self) -> tuple[str, ...]:
        """The sentence, with spaces between the words."""
        return (" ".join(self.words),)


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context, which may contain the answer."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int | None], ...] = ()
    """(text, start) with `context[start:].startswith(text)`. `start` is None if the context does not contain the text. An
    answer without a start counts in the scores, but is not a training target."""
    is_impossible: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The context (which other questions may share) and the question."""
        return self.context, self.question


@dataclass(frozen=True)
class ChoiceExample:
    """A prompt and its possible continuations. One continuation is correct."""

    id: str
    prompt: str
    choices: tuple[str, ...]
    label: int | None = None  # the index of the correct choice

    @property
    def texts(self) -> tuple[str, ...]:
        """The prompt and the correct choice, or only the prompt if the correct choice is unknown. Wrong choices are left out,
        because they are not text of the domain."""
        return (self.prompt,) if self.label is None else (self.prompt, self.choices[self.label])


@dataclass(frozen=True)
class PronounExample:
    """A text with an ambiguous pronoun and two names. Each `*_start` is the index of a mention's first character in `text`."""

    id: str
    text: str
    pronoun: str
    pronoun_start: int
    a: str
    a_start: int
    b: str
    b_start: int
    label: str | None  # "A", "B" or "neither"
    gender: str | None  # "masculine" or "feminine", or None for any other pronoun

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the example."""
        return (self.text,)
