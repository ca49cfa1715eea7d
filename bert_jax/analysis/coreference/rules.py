"""Rules that choose an antecedent, as in Clark et al. 2019 (arXiv:1906.04341, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_jax.analysis.coreference.mentions import Mention

RULES = ("nearest mention", "same head word", "sieve")
"""The nearest mention; the nearest with the same head word, else the nearest; `sieve`."""


def guesses(mention: Mention, before: Sequence[Mention], words: Sequence[str]) -> tuple[int, ...]:
    """The head word that each of RULES chooses for a mention.

    before: the candidates, at least one, the nearest first, by their head words. words: those of the document.
    """
    same_head = _same_head(mention, words)
    nearest = before[0].head
    return nearest, _first(before, (same_head,)), sieve(mention, before, words)


def sieve(mention: Mention, before: Sequence[Mention], words: Sequence[str]) -> int:
    """The head word of the nearest candidate that passes the first test which one of them passes: all words are the same, the
    head word is the same, number, gender and person agree; else of the nearest. It follows Lee et al. 2011."""
    own = _letters(mention, words)
    tests = (
        lambda other: _letters(other, words) == own,
        _same_head(mention, words),
        lambda other: mention.traits.agree(other.traits),
    )
    return _first(before, tests)


def _first(before: Sequence[Mention], tests: Sequence[Callable[[Mention], bool]]) -> int:
    for test in tests:
        for other in before:
            if test(other):
                return other.head
    return before[0].head


def _same_head(mention: Mention, words: Sequence[str]) -> Callable[[Mention], bool]:
    own = words[mention.head].lower()
    return lambda other: words[other.head].lower() == own


def _letters(mention: Mention, words: Sequence[str]) -> list[str]:
    return [words[i].lower() for i in mention.words]
