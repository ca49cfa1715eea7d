"""The defaults of the commands of `predict`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.labels import AnswerQuestion, Choose, Classify, Tag
from bert_jax.prediction.language import FillMask, NextSentence, Score

WINDOWS = {"length": 384, "doc_stride": 128, "max_answer": 30}
"""The values of run_squad.py, in tokens."""
ANSWERS = {"n_best": 1, "may_be_unanswerable": False, "no_answer_threshold": 0.0}
GENERATED = {"tokens": 50, "temperature": None, "top_k": None, "top_p": None, "beams": 1, "seed": 0}
VECTORS = {"pooling": None, "layers": (-1,), "combine": "mean", "normalise": None, "words": False, "truncate": None}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (Classify(), {"truncate": False}),  # a text that is too long is an error
        (Choose(), {"truncate": False}),
        (NextSentence(), {"truncate": False}),
        (Score(), {"truncate": False}),
        (Tag(), {"words": False}),
        (FillMask(), {"top_k": 5, "pieces": 1}),
        (Generate(), GENERATED),
        (AnswerQuestion(), WINDOWS | ANSWERS),
        (Embed(), VECTORS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_options_have_their_documented_defaults(command: Any, wanted: dict[str, Any]):
    assert dataclasses.asdict(command) == wanted
