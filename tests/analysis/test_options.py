"""The options of the analyses, and the limits on their memory."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.analysis import analyser
from bert_jax.analysis.attention import page
from bert_jax.analysis.bootstrap import CONFIDENCE
from bert_jax.analysis.compare import measure as comparison
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.coreference import measure as antecedents
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.dependencies import measure as hits
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.heads import measure as statistics
from bert_jax.analysis.heads.flags import Heads
from bert_jax.errors import UserError
from bert_jax.interface.ranges import hints, intervals, range_text

SEED_OF_COUNTS = "at least 0 and at most 2,147,483,647"
OPTIONS = {
    Heads: {
        "reach": (16, "at least 1 and at most 128"),
        "in_words": (True, ""),
        "divergence_words": (10_000, SEED_OF_COUNTS),
        "sampled": (16, "at least 1 and at most 512"),
    },
    Dependencies: {
        "reach": (10, "at least 1 and at most 128"),
        "replicates": (1_000, "at least 100 and at most 100,000"),
        "control": ("", ""),
        "seed": (0, SEED_OF_COUNTS),
    },
    Coreference: {
        "tokens": (1_048_576, "at least 8 and at most 1,048,576"),
        "singletons": (True, ""),
        "control": ("", ""),
        "replicates": (1_000, "at least 100 and at most 100,000"),
        "seed": (0, "at least 0 and at most 4,294,967,295"),
    },
    Comparing: {
        "divergence_words": (10_000, SEED_OF_COUNTS),
        "sampled": (16, "at least 1 and at most 512"),
        "masked": (0.15, "above 0 and at most 1"),
        "seed": (0, SEED_OF_COUNTS),
        "differences": (20, SEED_OF_COUNTS),
    },
}
"""The values documented in the pages and in --help: option -> (its default, its range)."""


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_have_documented_defaults_and_ranges(kind):
    ranges = {name: " ".join(map(range_text, intervals(hint))) for name, hint in hints(kind).items()}
    assert {name: (value, ranges[name]) for name, value in dataclasses.asdict(kind()).items()} == OPTIONS[kind]
    for name, (value, text) in OPTIONS[kind].items():
        if text:
            with pytest.raises(UserError, match=rf"\.{name}=-1.* must be {text}"):
                kind(**{name: type(value)(-1)})


def test_the_memory_of_an_analysis_has_documented_limits():
    windows = (statistics.WINDOWS, antecedents.SECTIONS, analyser.MOST_TOKENS)
    assert windows == (128, 64, 4_096)
    assert (hits.MOST_RELATIONS, comparison.MOST_PRODUCTS) == (255, 2**29)
    assert (page.THUMBNAIL, page.PRECISE, CONFIDENCE) == (64, 2**22, 0.95)
