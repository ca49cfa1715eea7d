"""Mentions of entities, questions about them, and the texts and files that they come from."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Iterator

from bert_jax.tasks.readers.tables import Say

KINDS = ("pronoun", "proper", "common", "other")
"""The kinds of mentions, by the part of speech of the head word."""
EVERY_GENDER = frozenset(("masculine", "feminine", "neuter"))


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits in which a mention agrees with its antecedent."""

    number: str = ""
    """"singular", "plural", or "" where it is not known."""
    person: str = ""
    """"1", "2", "3", or "" where it is not known."""
    genders: frozenset[str] = EVERY_GENDER
    """The genders that are possible."""

    def agree(self, other: Traits) -> bool:
        """Whether nothing that is known of both differs."""
        same_number = not (self.number and other.number) or self.number == other.number
        same_person = not (self.person and other.person) or self.person == other.person
        return same_number and same_person and bool(self.genders & other.genders)


@dataclasses.dataclass(frozen=True)
class Mention:
    """Words that refer to an entity."""

    entity: str
    words: tuple[int, ...]
    """The numbers of its words in the document, from 0, in order; those of a discontinuous mention have gaps."""
    head: int
    """The number of its head word."""
    kind: str
    """One of KINDS."""
    traits: Traits = Traits()


@dataclasses.dataclass(frozen=True)
class Question:
    """A mention whose antecedent is looked for."""

    head: int
    """The number of its head word in the document."""
    limit: int
    """The candidates are those with a smaller number."""
    right: frozenset[int]
    """The candidates that are antecedents; empty where none is right."""
    guesses: tuple[int, ...]
    """The candidate that each rule chooses."""
    groups: tuple[str, ...]
    """The groups of mentions that it counts in."""


@dataclasses.dataclass(frozen=True)
class Text(abc.ABC):
    """The content of a file of any format: words, and questions about them."""

    name: str
    words: tuple[str, ...]
    sentences: tuple[int, ...]
    """The number of the first word of each sentence."""

    @abc.abstractmethod
    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """The numbers of the candidate words in [first, last), in order."""

    @abc.abstractmethod
    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """(the questions about mentions whose head word is in [own, last), with the candidates in [first, last); the groups of
        each mention that has antecedents, but none in [first, last))."""


class TextFile(abc.ABC):
    """A file of texts, which is read anew by each iteration.

    What cannot be read is told to `report` as a sentence with file and line, counted in `failed` and left out.
    """

    groups: tuple[str, ...]
    """The groups of mentions that are measured apart."""
    rules: tuple[str, ...]
    """The rules that heads are compared with."""
    asks_once = False
    """Whether every text has at most one question."""

    def __init__(self, path: str | os.PathLike[str], report: Say):
        self.path = os.fspath(path)
        self._report = report
        self._reported: set[str] = set()
        self.line = 0
        """The line that was read last, from 1: the progress."""
        self.file: os.stat_result | None = None
        """The status of the file, if it is a regular one."""
        self.count: Callable[[], int | None] = lambda: None
        """Returns the number of lines, or None if counting takes too long."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Text]: ...

    @property
    def failed(self) -> int:
        """The number of problems that were reported."""
        return len(self._reported)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was left out on purpose in the last iteration."""
        return ()

    def tell(self, problem: str) -> None:
        """Reports a problem, unless an earlier iteration has reported it."""
        if problem not in self._reported:
            self._reported.add(problem)
            self._report(problem)
