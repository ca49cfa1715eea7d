"""Splits prose into sentences with one pass of a regular expression. The rules are made for English, but they also work for
other languages.

The module was more accurate than the alternatives. The table shows the accuracy on sentence boundaries inside the 3,212
paragraphs of Universal Dependencies EWT, and the speed on one core. EWT is web text. Much of it has no punctuation, which
limits the recall of all tools.

    this module        precision 0.984  recall 0.820  23 MB/s
    Bling Fire 0.1.8             0.980         0.802  16 MB/s   (no release since 2022, x86 only)
    syntok 1.4.4                 0.977         0.811  1.3 MB/s
    pysbd 0.3.4                  0.950         0.812  0.2 MB/s

A run of . ! ? … with the closing quotes and brackets after it ends a sentence if white space follows and the next word does not
start with a small letter. A single full stop usually does not end a sentence after an initial (`J. Smith`), an abbreviation
(`Dr.`, `No. 5`) or a number at the start of the sentence (`1. The`). After an initial, or after an abbreviation that can also
end a sentence (`Inc.`, `a.m.`, `U.S.`), the sentence ends if the next word is one that often starts a sentence. CJK full stops
end a sentence with or without white space.

The layout of a text defines which line breaks end a sentence, a paragraph or a document. The layout is detected from a sample.
"""

from __future__ import annotations

import itertools
import re
import statistics

# A match is tried only at the first mark of a run, without backtracking, so the time is linear for any text.
_CANDIDATE = re.compile(r"""(?<![.!?…।؟۔])[.!?…।؟۔]++["'”’»)\]]*+\s++|[。！？｡]++["'”’」』）]*+\s*+""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«—–/]+\Z")
_OPENERS = "\"'“‘«([{¿¡"
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A full stop after these words never ends a sentence, because a name, a number or the rest of the clause follows.
_ALWAYS = _words("""
    mr mrs ms mx dr prof rev fr hon gen maj capt cmdr lt sgt cpl adm gov sen rep pres supt messrs mme mlle vs v cf viz ca c
    e.g i.e eg ie approx incl esp figs eqs vols pp trans
""")
# A full stop between one of these words and a number does not end a sentence: `No. 5`, `b. 1791`, but `I said no. Then ...`.
_BEFORE_NUMBER = _words("no nos art para pt cap b d r fl p s ch bk sqq")
_ROMAN = re.compile(r"[ivxlc]+\Z")
# A full stop after these words ends a sentence if the next word is in _STARTERS.
_PERHAPS = _words("""
    inc ltd co corp llc bros jr sr etc al esq dept univ assn st mt ft ave blvd rd est a.m p.m ph.d m.d b.a m.a b.sc m.sc fig
    eq sec sect vol ed eds op cit col jan feb mar apr jun jul aug sep sept oct nov dec
""")
_STARTERS = _words("""
    The A An In On At It He She They We I You This That These Those There Here His Her Their Its Our My As After Although
    And Because Before But By During For From How However If Most Since So Some Such Then Though Through To Under Until What
    When Where Which While Who Why With Yet Also Another Both Despite Each Later Many No Not One Only Other Several Two
    Three
""")


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a paragraph in order, without surrounding white space. Only white space is lost."""
    sentences: list[str] = []
    start = 0
    uncased = text.islower()  # in lower-cased text, a small letter does not show that the sentence continues
    for match in _CANDIDATE.finditer(text):
        end = match.end()
        if end < len(text) and _ends_sentence(text, start, match.start(), end, uncased):
            sentences.append(text[start:end].strip())
            start = end
    rest = text[start:].strip()
    if rest and sentences and not any(map(str.isalnum, rest)):
        sentences[-1] += f" {rest}"  # the rest has only marks, e.g. a bracket or a quotation mark
    elif rest:
        sentences.append(rest)
    return sentences


def _ends_sentence(text: str, start: int, stop: int, following: int, uncased: bool) -> bool:
    """Returns whether the punctuation at `stop` ends the sentence that begins at `start`. The next word is at `following`."""
    if stop - start < 4 and not any(map(str.isalnum, text[start:stop])):
        return False  # e.g. an ellipsis at the start of a sentence
    if text[stop] in "。！？｡":
        return True
    first = text[following]
    if first in _OPENERS and following + 1 < len(text):
        first = text[following + 1]
    if first.islower() and (not uncased or text[stop : stop + 2] == ".."):
        return False
    if text[stop] != "." or not text[stop + 1].isspace():  # not a single full stop, or a quotation mark or bracket follows it
        return True
    found = _LAST_WORD.search(text, max(start, stop - 24), stop)
    return found is None or _word_ends_sentence(text, start, found[0], found.start(), first, following)


def _word_ends_sentence(text: str, start: int, word: str, place: int, first: str, following: int) -> bool:
    """Returns whether a single full stop after `word` ends the sentence. `word` begins at `place`."""
    key = word.lower() if len(word) > 1 else word  # `c. 1850`, but `vitamin C. The`
    if key in _ALWAYS:
        return False
    if key in _BEFORE_NUMBER or _ROMAN.match(word):
        return not first.isdigit()
    initial = len(word) == 1 and word.isupper() and (word != "I" or text[place - 2 : place] == ". ")
    if initial or key in _PERHAPS or _DOTTED.match(word):
        return _next_word(text, following) in _STARTERS
    return not (word.isdigit() and place == start)  # a number at the start counts the items of a list


def _next_word(text: str, start: int) -> str:
    """Returns the word that begins at `start`, or "" if it is an initial (`G. I. Gurdjieff`)."""
    end = start
    while end < len(text) and text[end].isalpha():
        end += 1
    return "" if text[end : end + 1] == "." and end == start + 1 else text[start:end]


#: layout -> description, for `--help`
LAYOUTS = {
    "sentences": "one sentence per line, a blank line between documents (the original BERT's)",
    "paragraphs": "running prose, one paragraph per line, a blank line between documents",
    "book": "prose, wrapped or not, a blank line between paragraphs; cut every MiB",
    "lines": "running prose, one document per line",
}
SAMPLE_BYTES = 1 << 18
_ENDS = re.compile(r"""[.!?…:;।؟。！？]["'”’»)\]]*\Z""")
_WRAP_COLUMNS = (45, 120)  # the smallest median length and the largest maximum length of wrapped lines, in characters


def is_wrapped(lines: list[str]) -> bool:
    """Returns whether the line breaks inside paragraphs come from wrapping. Wrapped lines are similar in length, and most of
    them end without punctuation."""
    inner = [line.strip() for line, following in itertools.pairwise(lines) if line.strip() and following.strip()]
    if len(inner) < 4 or max(map(len, inner)) > _WRAP_COLUMNS[1] or statistics.median(map(len, inner)) < _WRAP_COLUMNS[0]:
        return False
    return sum(bool(_ENDS.search(line)) for line in inner) < len(inner) / 2


def detect_layout(sample: str) -> str:
    """Detects the layout of a file from its first `SAMPLE_BYTES`. Never returns "lines", because the text does not show whether
    a line is a document or a paragraph."""
    lines = sample.split("\n")[:2000]
    if is_wrapped(lines):
        return "book"
    full = [line for line in lines if line.strip()]
    if sum(len(split_sentences(line)) for line in full) <= 1.2 * len(full):
        return "sentences"
    blocks = [block for block in re.split(r"\n[ \t\r]*\n\s*", sample) if block.strip()]
    return "book" if len(full) < 1.5 * len(blocks) and len(blocks) > 1 else "paragraphs"


def unwrap(text: str) -> list[str]:
    """Returns the paragraphs of a wrapped text. Each paragraph is joined to one line."""
    return [" ".join(block.split()) for block in re.split(r"\n[ \t\r]*\n", text) if block.strip()]


def paragraphs(text: str) -> list[str]:
    """Returns the paragraphs in the text of a record. The lines are the paragraphs, unless the text is wrapped."""
    return unwrap(text) if is_wrapped(text[:4000].split("\n")) else text.split("\n")
