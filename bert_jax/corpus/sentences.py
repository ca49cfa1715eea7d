"""Running prose -> sentences, for English and kindly towards the rest: where a sentence ends, on one pass of a regular expression.

A library was looked for first. Measured on one core on English Wikipedia, and against the gold boundaries of Universal Dependencies EWT,
see tests/benchmarks/; the well-kept ones in Python (pysbd, syntok) run at 0.1-1 MB/s, days for Wikipedia; Bling Fire is fast but unmaintained and x86 only.

The rule: a run of . ! ? … with its closing quotes and brackets ends a sentence when white space follows and what comes next does not begin
with a small letter. A single full stop is doubted after an initial (`J. Smith`), an abbreviation (`Dr.`, `U.S.`, `No. 5`) or a number that
begins the line (`1. The`). After those that can close a sentence too (`Inc.`, `a.m.`, `U.S.`), a following word that usually opens one settles it.
CJK full stops end a sentence with or without white space.
"""

from __future__ import annotations

import re

_CANDIDATE = re.compile(r"""[.!?…।؟۔]+["'”’»)\]]*\s+|[。！？｡]+["'”’」』）]*\s*""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«—–/]+\Z")
_OPENERS = "\"'“‘«([{¿¡"
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")

# Followed by a name or a number, so a full stop after them never ends a sentence.
_ALWAYS = frozenset(
    "mr mrs ms mx dr prof rev fr hon gen maj capt cmdr col lt sgt cpl adm gov sen rep pres supt messrs mme mlle st ste mt ft vs v cf viz ca c"
    " approx e.g i.e eg ie al. fig figs eq eqs sec sect ch vol vols pp p ed eds trans esp incl resp op cit bros jan feb mar apr jun jul aug"
    " sep sept oct nov dec vic r.i.p".split()
)
# Before a number only: `No. 5`, but `I said no. Then ...`.
_BEFORE_NUMBER = frozenset("no nos art para pt cap".split())
# May end a sentence or not; the next word decides.
_PERHAPS = frozenset("inc ltd co corp llc jr sr etc al esq dept univ assn ave blvd rd est a.m p.m am pm ph.d m.d b.a m.a b.sc m.sc".split())
_STARTERS = frozenset(
    "The A An In On At It He She They We I You This That These Those There Here His Her Their Its Our My As After Although And Because Before But By"
    " During For From How However If Most Since So Some Such Then Though Through To Under Until What When Where Which While Who Why With Yet"
    " Also Another Both Despite Each Later Many No Not One Only Other Several Two Three".split()
)


def split_sentences(text: str) -> list[str]:
    """The sentences of one paragraph, stripped, in order; nothing but white space between them is lost."""
    sentences: list[str] = []
    start = 0
    for match in _CANDIDATE.finditer(text):
        end = match.end()
        if end == len(text):
            break
        if _ends_sentence(text, start, match.start(), end):
            sentences.append(text[start:end].rstrip())
            start = end
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def _ends_sentence(text: str, start: int, dot: int, following: int) -> bool:
    """Whether the punctuation at `dot` ends the sentence begun at `start`, when the text goes on at `following`."""
    mark = text[dot]
    if mark in "。！？｡":
        return True
    first = text[following]
    if first in _OPENERS and following + 1 < len(text):
        first = text[following + 1]
    if first.islower():
        return False
    if mark != "." or not text[dot + 1].isspace():  # an exclamation, dots..., or a stop inside a quotation or bracket
        return True
    found = _LAST_WORD.search(text, max(start, dot - 24), dot)
    if found is None:
        return True
    word = found[0]
    key = word.lower()
    if key in _ALWAYS:
        return False
    if key in _BEFORE_NUMBER:
        return not first.isdigit()
    if len(word) == 1 and word.isupper() and word != "I" or key in _PERHAPS or _DOTTED.match(word):
        return _next_word(text, following) in _STARTERS
    return not (word.isdigit() and found.start() == start)  # the number of a list item


def _next_word(text: str, start: int) -> str:
    end = start
    while end < len(text) and text[end].isalpha():
        end += 1
    return text[start:end]
