"""CoNLL-U with `Entity=` in MISC, as in CorefUD and GUM -> documents (https://ufal.mff.cuni.cz/corefud).

`# global.Entity` names the fields of an opening bracket; the first is the entity. The head word of a mention is that of the tree,
and where the file has no tree the last word of its minimal span (`minspan`) or of the mention. The parts of a discontinuous
mention ("(e1[1/2]-...") are one mention. An entity with split antecedents (`SplitAnte=`) has them nowhere as mentions of its own:
they are no antecedents, and its first mention has none. Mentions on empty nodes are left out with them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax.analysis.coreference.brackets import DocumentReader, Opened, read_brackets
from bert_jax.analysis.coreference.documents import GROUPS, Document
from bert_jax.analysis.coreference.grammar import kind_of, traits_of, tree_head
from bert_jax.analysis.coreference.mentions import Mention, TextFile
from bert_jax.analysis.coreference.rules import RULES
from bert_jax.analysis.treebank import Treebank
from bert_jax.interface.numbers import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.tasks.readers.conllu import Sentence
from bert_jax.tasks.readers.tables import Say, note

_NEWDOC = re.compile(r"#\s*newdoc\b(?:\s+id)?\s*=?\s*(.*)")
_GLOBAL = re.compile(r"#\s*global\.Entity\s*=\s*(\S+)")
_PART = re.compile(r"(.+)\[([0-9]+)/([0-9]+)\]")
_MOST_PARTS = 1_000


class CorefudFile(TextFile):
    """The documents of a CoNLL-U file; a file without `# newdoc` is one document.

    Sentences and mentions that cannot be read are told to `report` and left out. Raises UserError as `Treebank` does.
    """

    groups = GROUPS
    rules = RULES

    def __init__(self, path: str | os.PathLike[str], report: Say = lambda problem: note(f"error: {problem}")):
        super().__init__(path, report)
        self._treebank = Treebank(path, report=self.tell)
        self.file, self.count = self._treebank.file, self._treebank.count
        self._split = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence about split antecedents, if there are any."""
        if not self._split:
            return ()
        return (f"{counted(self._split, 'split antecedent')} (SplitAnte) left out: several mentions together are none",)

    def __iter__(self) -> Iterator[Document]:
        self._split = 0
        fields: tuple[str, ...] = ("GRP",)
        mode = False
        reader: _Reader | None = None
        number: int | None = None
        for sentence in self._treebank:
            self.line = self._treebank.line
            names = [match[1] for comment in sentence.comments if (match := _NEWDOC.match(comment))]
            mode = mode or bool(names)
            if reader is None or names or (mode and sentence.document != number):
                if reader is not None:
                    yield reader.document()
                reader = _Reader(names[-1] if names and names[-1] else str(sentence.document + 1), self.tell)
            number = sentence.document
            for comment in sentence.comments:
                if match := _GLOBAL.match(comment):
                    fields = tuple(match[1].split("-"))
            self._split += sum("SplitAnte=" in misc for misc in sentence.misc)
            reader.read(sentence, fields)
        if reader is not None:
            yield reader.document()


@dataclasses.dataclass
class _Parts:
    """The parts so far of a discontinuous mention."""

    entity: str
    count: int
    first: Opened
    words: list[int]
    found: int


class _Reader(DocumentReader):
    """Reads the sentences of one document."""

    def __init__(self, name: str, report: Say):
        super().__init__(name, report)
        self._parts: dict[tuple[str, int, int], list[_Parts]] = {}
        """Those that are incomplete, by entity, number of parts, and number of parts that were found."""

    def read(self, sentence: Sentence, fields: Sequence[str]) -> None:
        """Adds a sentence."""
        number = len(self._starts)
        self._starts.append(len(self._words))
        self._words += sentence.words
        for i, misc in enumerate(sentence.misc):
            value = next((part[7:] for part in misc.split("|") if part.startswith("Entity=")), "")
            brackets, rest = read_brackets(value)
            for key, opens, closes in brackets:
                place = sentence.places[i]
                if opens:
                    key, *given = key.split("-", max(0, len(fields) - 1))
                    self._brackets.open(Opened(key, place, number, i, dict(zip(fields[1:], given, strict=False))))
                closed = self._brackets.close(key, place, number) if closes else None
                if closed is not None:
                    self._close(closed, range(closed.first, i + 1), sentence)
            if rest:
                self._report(f"{sentence.places[i]}Entity={cut(value)} is not brackets of mentions; correct it")

    def document(self) -> Document:
        """The document, at its end."""
        document = super().document()
        for parts in sorted(itertools.chain(*self._parts.values()), key=lambda parts: parts.first.number):
            self._incomplete(parts)
        return document

    def _close(self, opened: Opened, words: Sequence[int], sentence: Sentence) -> None:
        part = _PART.fullmatch(opened.key)
        if part is None:
            self._add(opened.key, opened, words, sentence)
            return
        count = whole_number(part[3], 1, _MOST_PARTS)
        i = whole_number(part[2], 1, count or 1)
        if count is None or i is None:
            self._report(f"{opened.place}({cut(opened.key)} is not a part from 1 to at most {_MOST_PARTS:,}; it is left out")
            return
        entity = part[1]
        parts = _Parts(entity, count, opened, [], 0)
        if i > 1:
            earlier = self._parts.get((entity, count, i - 1), [])
            if not earlier or earlier[-1].first.sentence != opened.sentence:
                self._report(f"{opened.place}({cut(opened.key)} has no part {i - 1} in its sentence; it is left out")
                return
            parts = earlier.pop()
        parts.words += words
        parts.found = i
        if i == count:
            self._add(entity, parts.first, sorted(set(parts.words)), sentence)
        else:
            self._parts.setdefault((entity, count, i), []).append(parts)

    def _incomplete(self, parts: _Parts) -> None:
        self._report(
            f"{parts.first.place}the mention ({cut(parts.first.key)} has {parts.found} of its {parts.count} parts; it is left out"
        )

    def _add(self, entity: str, opened: Opened, words: Sequence[int], sentence: Sentence) -> None:
        start = self._starts[opened.sentence]
        if sentence.heads:
            head = tree_head(words, sentence.heads)
        else:
            minimal = [whole_number(word, 1, len(words)) for word in opened.fields.get("minspan", "").split(",")]
            inside = [words[word - 1] for word in minimal if word is not None]
            head = (inside or words)[-1]
        upos, xpos, features = sentence.upos[head], sentence.xpos[head], sentence.features[head]
        kind = kind_of(upos, xpos)
        texts = [sentence.words[word] for word in words]
        traits = traits_of(texts, sentence.words[head], kind, (xpos, features), opened.fields.get("etype", ""))
        if any(sentence.relations[word] == "conj" and sentence.heads[word] == head for word in words if sentence.heads):
            traits = dataclasses.replace(traits, number="plural")
        self._mentions.append(Mention(entity, tuple(start + word for word in words), start + head, kind, traits))
