"""Reads files with coreference as documents: CoNLL-U with `Entity=`, CoNLL-2012 and GAP. The format is recognised by the first
line that is not a comment.

CoNLL-U is read as in CorefUD and GUM (https://ufal.mff.cuni.cz/corefud). The comment `# global.Entity` names the fields of an
opening bracket. The first field is the entity. The head word of a mention comes from the tree. In a file without trees, the
head word is the last word of the mention's minimal span (`minspan`), or of the whole mention if there is no minimal span. The
parts of a discontinuous mention ("(e1[1/2]-...") are one mention. If an entity has split antecedents (`SplitAnte=`), no single
mention refers to all of them. The split antecedents therefore do not count as antecedents, and the first mention of the entity
has no antecedent. Empty nodes are left out: a mention that has one keeps its words, and a mention without words is left out.

CoNLL-2012 is the format of the *_conll files of OntoNotes (https://cemantix.org/conll/2012/data.html). The head word of a
mention is the head of its constituent in the parse column. If this column is empty, the head word is found by `last_noun`. This
format annotates only entities with two or more mentions.

An example of GAP (Webster et al. 2018) is a text with a pronoun and two names. The pronoun refers to one of the names, or to
neither name. The candidates are the head words of the two names, which may precede or follow the pronoun. The head word of a
name is its last word that is not "Jr." or a similar suffix. If a pronoun refers to neither name, no candidate is correct."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_jax.analysis.coreference.documents import GROUPS, NEITHER, Document, Question, Text, TextFile
from bert_jax.analysis.coreference.mentions import (
    RULES,
    Mention,
    Phrase,
    find,
    find_traits,
    is_coordinated,
    last_noun,
    mention_kind,
    phrase_head,
    read_parse,
    tree_head,
)  # fmt: skip
from bert_jax.analysis.reading import Treebank
from bert_jax.errors import UserError
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import read_records
from bert_jax.storage.fetching import fetched
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.readers.conll import ends_sentence
from bert_jax.tasks.readers.conllu import MOST_WORDS, Sentence
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.tables import Say


def open_texts(path: str | os.PathLike[str], report: Say | None = None) -> TextFile:
    """Opens a file in CoNLL-U with `Entity=`, in CoNLL-2012 ("#begin document") or in GAP ("ID", TAB, "Text", ...).

    Raises UserError if `path` is standard input, or if the file cannot be read or has a different format.
    """
    if os.fspath(path) == "-":
        raise UserError("--input=- is standard input, but the format is recognised by the first line of a file; give a file")
    for record in read_records((), os.fspath(path), (Field("columns", many=True, words=True),)):
        columns = record.values.get("columns") or [f"{record.problem or 'JSON'}"]
        if columns[:1] == ["#begin"]:
            return Conll2012File(path, report)
        if columns[:2] == ["ID", "Text"]:
            return GapFile(path, report)
        if columns[0].startswith("#"):  # comments may precede the first document
            continue
        if not columns[0][:1].isdecimal():  # a sentence of CoNLL-U begins with the index of a word
            begins = f"{os.fspath(path)}, line {record.number}: {cut(columns[0])!r}"
            raise UserError(f"{begins} does not begin {_KNOWN}; give one of these")
        break
    return CorefudFile(path, report)


_KNOWN = 'a file of CoNLL-U with Entity=, of CoNLL-2012 ("#begin document") or of GAP ("ID", TAB, "Text", ...)'
_BRACKETS = re.compile(r"[()|]|[^()|]+")
_SIGNS = ("(", ")", "|", "")


class Bracket(NamedTuple):
    """A bracket at a word. The bracket opens a mention ("(key"), closes a mention ("key)"), or does both ("(key)")."""

    key: str
    opens: bool
    closes: bool


def read_brackets(text: str) -> tuple[list[Bracket], str]:
    """Returns the brackets in the field of a word, in order, and the rest of the field. Runs in linear time."""
    found: list[Bracket] = []
    rest = []
    parts = [*_BRACKETS.findall(text), "", ""]
    i = 0
    while i < len(parts) - 2:
        if parts[i] == "(" and parts[i + 1] not in _SIGNS:
            closes = parts[i + 2] == ")"
            found.append(Bracket(parts[i + 1], True, closes))
            i += 2 + closes
        elif parts[i] not in _SIGNS and parts[i + 1] == ")":
            found.append(Bracket(parts[i], False, True))
            i += 2
        else:
            rest.append(parts[i])
            i += 1
    return found, "".join(rest)


class Opened(NamedTuple):
    """A bracket that has been opened."""

    key: str
    place: str
    sentence: int
    first: int
    """The index of the mention's first word in the sentence."""
    fields: Mapping[str, str]
    """The fields of the bracket after the key, by name."""
    number: int
    """The index of the bracket, in the order in which the brackets of the document are opened."""


class _DocumentReader:
    """Collects the words, sentences and mentions of one document as they are read. Brackets may be nested and may overlap."""

    def __init__(self, name: str, report: Say):
        self._name, self._report = name, report
        self._words: list[str] = []
        self._starts: list[int] = []
        self._mentions: list[Mention] = []
        self._open: dict[str, list[Opened]] = {}
        self._opened = 0

    def begin_sentence(self, words: Sequence[str]) -> None:
        """Adds the words of the next sentence."""
        self._starts.append(len(self._words))
        self._words += words

    def match(self, text: str, i: int, place: str, fields: Sequence[str] | None = None) -> tuple[list[Opened], str]:
        """Reads the brackets of word `i` of the sentence. Returns (the mentions that end at this word, the rest of the text).

        `fields` names the items of an opening bracket, which are separated by "-". It is None if brackets have only a key.
        """
        ended, number = [], len(self._starts) - 1
        brackets, rest = read_brackets(text)
        for key, opens, closes in brackets:
            if opens:
                key, *given = [key] if fields is None else key.split("-", max(0, len(fields) - 1))
                named = dict(zip(fields[1:] if fields else (), given, strict=False))
                self._open.setdefault(key, []).append(Opened(key, place, number, i, named, self._opened))
                self._opened += 1
            if not closes:
                continue
            if not self._open.get(key):
                self._report(f"{place}{cut(key)}) closes a mention that is not open; it is left out")
                continue
            opened = self._open[key].pop()
            if opened.sentence == number:
                ended.append(opened)
            else:
                other = place.rstrip(": ")
                self._report(f"{opened.place}the mention ({cut(key)} ends in another sentence ({other}); it is left out")
        return ended, rest

    def add(self, mention: Mention, start: int) -> None:
        """Adds a mention. Its word indices are relative to word `start` of the document."""
        words = tuple(start + word for word in mention.words)
        self._mentions.append(dataclasses.replace(mention, words=words, head=start + mention.head))

    def document(self) -> Document:
        """Returns the document after all of its sentences have been read. Reports the mentions that are still open."""
        for opened in sorted(itertools.chain(*self._open.values()), key=lambda opened: opened.number):
            self._report(f"{opened.place}the mention ({cut(opened.key)} is never closed; it is left out")
        mentions = sorted(self._mentions, key=lambda mention: (mention.head, mention.words[0], -mention.words[-1]))
        return Document(self._name, tuple(self._words), tuple(self._starts), tuple(mentions))


_NEWDOC = re.compile(r"#\s*newdoc\b(?:\s+id)?\s*=?\s*(.*)")
_GLOBAL = re.compile(r"#\s*global\.Entity\s*=\s*(\S+)")
_PART = re.compile(r"(.+)\[([0-9]+)/([0-9]+)\]")
_MOST_PARTS = 1_000


class CorefudFile(TextFile):
    """The documents of a CoNLL-U file. A file without `# newdoc` is one document. Raises UserError in the same cases as
    `Treebank`."""

    groups = GROUPS
    rules = RULES

    def __init__(self, path: str | os.PathLike[str], report: Say | None = None):
        super().__init__(path, report)
        wanted = f"a file of CoNLL-U with Entity=, of CoNLL-2012 (its first line is {BEGIN}) or of GAP"
        self._treebank = Treebank(path, report=self.tell, wanted=wanted)
        self.file, self.count = self._treebank.file, self._treebank.count
        self._split = 0
        self._unnamed = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Reports split antecedents, and fields without names."""
        notes = []
        if self._split:
            notes.append(
                f"{counted(self._split, 'split antecedent')} (SplitAnte) left out: several mentions together do not count as an "
                "antecedent"
            )
        if self._unnamed:
            notes.append(
                f"WARNING: no line '# global.Entity = ...' names the fields of the mentions, so the first field is read as the "
                f"entity: {self._unnamed.partition('-')[0][1:]} in {self._unnamed}; add the line if that is wrong"
            )
        return tuple(notes)

    def __iter__(self) -> Iterator[Document]:
        self._split = 0
        fields = _UNNAMED
        has_names = False
        reader: _CorefudReader | None = None
        number: int | None = None
        for sentence in self._treebank:
            self.line = self._treebank.line
            names = [match[1] for comment in sentence.comments if (match := _NEWDOC.match(comment))]
            has_names = has_names or bool(names)
            if reader is None or names or (has_names and sentence.document != number):
                if reader is not None:
                    yield reader.document()
                reader = _CorefudReader(names[-1] if names and names[-1] else str(sentence.document + 1), self.tell)
            number = sentence.document
            for comment in sentence.comments:
                if match := _GLOBAL.match(comment):
                    fields = tuple(match[1].split("-"))
            notes = (*sentence.misc, *(node.misc for node in sentence.empty_nodes))
            self._split += sum("SplitAnte=" in misc for misc in notes)
            if fields == _UNNAMED and not self._unnamed:
                found = (match[0] for misc in notes if (match := _SEVERAL_FIELDS.search(misc)))
                self._unnamed = cut(next(found, ""), 30)
            reader.read(sentence, fields)
        if reader is not None:
            yield reader.document()


_UNNAMED: tuple[str, ...] = ("eid", "other")
"""The fields of a mention if the file does not name the fields. The entity, which has no "-" in it, is followed by the rest."""
_SEVERAL_FIELDS = re.compile(r"(?<=Entity=)\([^()|-]+-[^()|]*")


@dataclasses.dataclass
class _Parts:
    """The parts of a discontinuous mention that have been read so far."""

    entity: str
    count: int
    first: Opened
    words: list[int]
    found: int


class _CorefudReader(_DocumentReader):
    """Reads the sentences of one document of CoNLL-U."""

    def __init__(self, name: str, report: Say):
        super().__init__(name, report)
        self._parts: dict[tuple[str, int, int], list[_Parts]] = {}
        """Incomplete mentions, by entity, number of parts, and number of parts found."""

    def read(self, sentence: Sentence, fields: Sequence[str]) -> None:
        """Adds a sentence."""
        self.begin_sentence(sentence.words)
        words = [(i, i + 1, misc, sentence.places[i]) for i, misc in enumerate(sentence.misc)]
        nodes = [(node.after, node.after, node.misc, node.place) for node in sentence.empty_nodes]
        for first, end, misc, place in sorted([*nodes, *words], key=lambda row: row[:2]):  # in the order of the lines
            value = next((part[7:] for part in misc.split("|") if part.startswith("Entity=")), "")
            ended, rest = self.match(value, first, place, fields)
            for opened in ended:
                self._close(opened, range(opened.first, end), sentence)
            if rest:
                self._report(f"{place}Entity={cut(value)} has no valid brackets of mentions; correct it")

    def document(self) -> Document:
        """Returns the document after all of its sentences have been read. Also reports the mentions that lack parts."""
        document = super().document()
        for parts in sorted(itertools.chain(*self._parts.values()), key=lambda parts: parts.first.number):
            had = f"has {parts.found} of its {parts.count} parts"
            self._report(f"{parts.first.place}the mention ({cut(parts.first.key)} {had}; it is left out")
        return document

    def _close(self, opened: Opened, words: Sequence[int], sentence: Sentence) -> None:
        part = _PART.fullmatch(opened.key)
        if part is None:
            self._add(opened.key, opened, words, sentence)
            return
        count = whole_number(part[3], 1, _MOST_PARTS)
        i = whole_number(part[2], 1, count or 1)
        if count is None or i is None:
            wanted = f"must name part i/n with 1 <= i <= n <= {_MOST_PARTS:,}"
            self._report(f"{opened.place}({cut(opened.key)} {wanted}; it is left out")
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

    def _add(self, entity: str, opened: Opened, words: Sequence[int], sentence: Sentence) -> None:
        if not words:  # only empty nodes
            return
        if sentence.heads:
            head = tree_head(words, sentence.heads)
        else:
            minimal = [whole_number(word, 1, len(words)) for word in opened.fields.get("minspan", "").split(",")]
            inside = [words[word - 1] for word in minimal if word is not None]
            head = (inside or words)[-1]
        if not entity:
            self._report(f"{opened.place}a mention names no entity; it is left out")
            return
        xpos, features = sentence.xpos[head], sentence.features[head]
        kind = mention_kind(sentence.upos[head], xpos)
        texts = [sentence.words[word] for word in words]
        traits = find_traits(texts, sentence.words[head], kind, (xpos, features), opened.fields.get("etype", ""))
        if any(sentence.relations[word] == "conj" and sentence.heads[word] == head for word in words if sentence.heads):
            traits = dataclasses.replace(traits, number="plural")
        self.add(Mention(entity, tuple(words), head, kind, traits), self._starts[opened.sentence])


BEGIN = "#begin document"
_NAME = re.compile(r"#begin document\s*\(?([^);]*)\)?\s*(?:;\s*part\s*(\d+))?")
_LEAST = 12
_NUMBER, _WORD, _TAG, _PARSE, _NAMED = 2, 3, 4, 5, 10


class Conll2012File(TextFile):
    """The documents of a CoNLL-2012 file. Each part of a text is a document.

    Raises UserError if the file cannot be read. If an iteration finds no document, it ends with a UserError.
    """

    groups = GROUPS
    rules = RULES

    def __init__(self, path: str | os.PathLike[str], report: Say | None = None):
        super().__init__(path, report)
        self.open_lines()

    def __iter__(self) -> Iterator[Document]:
        found = 0
        reader: _Conll2012Reader | None = None
        rows: list[Record] = []
        for record in self.open_lines():
            self.line = record.number
            columns = _split(record)
            mark = " ".join(columns) if columns and columns[0] in ("#begin", "#end") else ""
            if columns and columns[0].startswith("#") and not mark:
                continue  # a comment, since the lines of words begin with the name of the document
            if record.problem or not (ends_sentence(record.values.get("line", "")) or mark):
                rows.append(record)
                continue
            self._read(reader, rows)
            rows = []
            if mark and reader is not None:
                found += 1
                yield reader.document()
                reader = None
            if mark.startswith(BEGIN):
                name = _NAME.match(mark)
                parts = [part for part in (name.groups() if name else ()) if part]
                reader = _Conll2012Reader("/".join(parts) or str(found + 1), self.tell)
        self._read(reader, rows)
        if reader is not None:
            self.tell(f"{self.path}, line {self.line}: the file ends without '#end document'; check that it is complete")
            yield reader.document()
        elif not found:
            raise UserError(f"{self.path} has no document that can be read; give a CoNLL-2012 file")

    def _read(self, reader: _Conll2012Reader | None, rows: Sequence[Record]) -> None:
        if rows and reader is None:
            self.tell(f"{rows[0].place}a sentence outside of {BEGIN!r} and '#end document'; it is left out")
        elif rows and reader is not None:
            reader.read(rows)


_WRITTEN = {
    **{"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"},
    **{"/.": ".", "/?": "?", "/-": "-"},
}
"""The text of words that OntoNotes writes otherwise: brackets as in the Penn Treebank, and marks with a slash."""


class _Conll2012Reader(_DocumentReader):
    """Reads the sentences of one document of CoNLL-2012."""

    def read(self, rows: Sequence[Record]) -> None:
        """Adds a sentence, or reports that it cannot be read."""
        try:
            columns, tree = _sentence(rows)
        except UserError as error:
            self._report(f"{error}; the sentence is left out")
            return
        removed = next((r.place for r, row in zip(rows, columns, strict=True) if row[_WORD] == "[WORD]"), None)
        if removed:
            raise UserError(f"{removed}the word is [WORD], as in the *_skel files; restore the words with skeleton2conll.sh")
        tags, types = [row[_TAG] for row in columns], _named([row[_NAMED] for row in columns])
        self.begin_sentence([_WRITTEN.get(row[_WORD], row[_WORD]) for row in columns])
        for i, (record, row) in enumerate(zip(rows, columns, strict=True)):
            ended, rest = self.match(row[-1], i, record.place)
            for opened in ended:
                words = range(opened.first, i + 1)
                phrase = None if tree is None else find(tree, words[0], i)
                head = last_noun(words[0], i, tags) if phrase is None else phrase_head(phrase, tags)
                kind = mention_kind("_", tags[head])
                texts = [columns[word][_WORD] for word in words]
                traits = find_traits(texts, columns[head][_WORD], kind, (tags[head], "_"), types[head])
                if phrase is not None and is_coordinated(phrase, tags):
                    traits = dataclasses.replace(traits, number="plural")
                self.add(Mention(opened.key, tuple(words), head, kind, traits), self._starts[-1])
            if rest.strip("|-_"):
                self._report(f"{record.place}the last column {cut(row[-1])!r} is neither brackets of mentions nor -; correct it")


def _split(record: Record) -> list[str]:
    line: str = record.values.get("line", "")
    if "\t" in line:
        return [column.strip() for column in line.split("\t")]
    return [column for column in line.split(" ") if column]


def _sentence(rows: Sequence[Record]) -> tuple[list[list[str]], Phrase | None]:
    """Returns (the columns of each word of a sentence, its parse). Raises UserError if the sentence cannot be read, or if the
    word indices start again. In that case, the empty line between two sentences is missing."""
    first, last = rows[0], -1
    columns: list[list[str]] = []
    if len(rows) > MOST_WORDS:
        raise UserError(
            f"{first.place}a sentence of {counted(len(rows), 'word')}, more than {MOST_WORDS:,}; end each sentence with an empty "
            "line"
        )
    for record in rows:
        if record.problem:
            raise UserError(f"{record.place}{record.problem}")
        row = _split(record)
        if len(row) < _LEAST:
            least = f"fewer than the {_LEAST} of CoNLL-2012 without predicates"
            raise UserError(f"{record.place}{counted(len(row), 'column')}, {least}; correct it")
        if columns and len(row) != len(columns[0]):
            raise UserError(
                f"{record.place}{counted(len(row), 'column')}, but the first word of the sentence has {len(columns[0])}; "
                "correct it"
            )
        columns.append(row)
    for record, row in zip(rows, columns, strict=True):
        number = whole_number(row[_NUMBER])
        if number is None:
            found = cut(row[_NUMBER])
            raise UserError(f"{record.place}column 3 is {found!r}, not the number of a word as in CoNLL-2012; correct it")
        if number <= last:
            raise UserError(
                f"{record.place}the word {number} follows the word {last}; end the previous sentence with an empty line"
            )
        last = number
    try:
        return columns, read_parse([row[_PARSE] for row in columns])
    except UserError as error:
        raise UserError(f"{first.place}{error}") from error


def _named(column: Sequence[str]) -> list[str]:
    """Returns, for each word, the type of the named entity that contains the word, or "" if there is none."""
    found = []
    inside = ""
    for text in column:
        if text.startswith("("):
            inside = text.strip("()*")
        found.append(inside)
        if text.endswith(")"):
            inside = ""
    return found


_GAP_WORD = re.compile(r"\w+|[^\w\s]")
_AFTER_NAMES = {"jr", "sr", "ii", "iii", "iv", "."}


@dataclasses.dataclass(frozen=True)
class PronounText(Text):
    """A text with a pronoun and two names."""

    pronoun: int
    """The index of the pronoun in the list of words."""
    names: tuple[int, int]
    """The indices of the head words of A and B."""
    label: str | None
    gender: str | None

    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """Returns the head words of the names in [first, last), in order."""
        return tuple(sorted(name for name in {*self.names} if first <= name < last))

    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """If the pronoun is in [own, last) and has a label, returns the question about it. If [first, last) does not contain
        the head words of both names, returns the groups of the question instead."""
        if not own <= self.pronoun < last or self.label is None:
            return [], []
        groups = (NEITHER,) if self.label == NEITHER else ("all", *((self.gender,) if self.gender else ()))
        found = self.candidates(first, last)
        if len(found) < 2:
            return [], [groups]
        right = frozenset((self.names["AB".index(self.label)],)) if self.label != NEITHER else frozenset()
        nearest = min(found, key=lambda name: abs(name - self.pronoun))
        before = [name for name in found if name < self.pronoun]
        return [Question(self.pronoun, len(self.words), right, (nearest, (before or [nearest])[-1], found[0]), groups)], []


class GapFile(TextFile):
    """The texts of a GAP file.

    Raises UserError if the file cannot be read, if it lacks columns, or if no row can be read.
    """

    groups = ("all", "masculine", "feminine", NEITHER)
    rules = ("nearest name", "name before", "first name")
    """Three rules. The first chooses the name that is nearest to the pronoun. The second chooses the nearest name before the
    pronoun, or the nearest name if no name precedes the pronoun. The third chooses the first name in the text."""
    asks_once = True

    def __init__(self, path: str | os.PathLike[str], report: Say | None = None):
        super().__init__(path, report)
        local = fetched(path, "--input")
        self._examples = read_gap(local, self.tell)
        self.file = local.stat()
        self.count = lambda: len(self._examples) + 1

    def __iter__(self) -> Iterator[PronounText]:
        for line, example in enumerate(self._examples, 2):
            self.line = line
            yield pronoun_text(example)


def pronoun_text(example: PronounExample) -> PronounText:
    """Returns the words of an example, and the indices of its pronoun and of its names. A mention that starts inside a word is
    assigned to that word."""
    spans = [match.span() for match in _GAP_WORD.finditer(example.text)]

    def inside(start: int, text: str) -> list[int]:
        return [i for i, (begin, end) in enumerate(spans) if end > start and begin < start + len(text)]

    def head(start: int, text: str) -> int:
        own = inside(start, text)
        while len(own) > 1 and example.text[slice(*spans[own[-1]])].lower() in _AFTER_NAMES:
            own.pop()
        return own[-1]

    words = tuple(example.text[begin:end] for begin, end in spans)
    names = head(example.a_start, example.a), head(example.b_start, example.b)
    pronoun = inside(example.pronoun_start, example.pronoun)[0]
    return PronounText(example.id, words, (0,), pronoun, names, example.label, example.gender)
