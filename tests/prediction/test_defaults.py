"""The defaults of the commands of `predict`."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import pytest

from bert_jax.prediction import translating
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.labelling import AnswerQuestion, Choose, Classify, Tag
from bert_jax.prediction.language import FillMask, NextSentence, Score
from bert_jax.prediction.translating import Translate, translate

ANSWERS = {"length": 384, "doc_stride": 128, "max_answer": 30, "may_be_unanswerable": False, "no_answer_threshold": 0.0}
"""The values of run_squad.py, for a model that does not state those of its training."""
GENERATED = {"tokens": 50, "temperature": None, "top_k": None, "top_p": None, "beams": 1, "seed": 0}
TRANSLATED = {
    "beams": 4, "length_penalty": None, "penalty": "gnmt", "early_stopping": False, "max_length": None, "references": None,
}  # fmt: skip
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
        (AnswerQuestion(), dict.fromkeys(ANSWERS) | {"n_best": 1}),
        (Embed(), VECTORS),
        (Translate(), TRANSLATED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_options_have_their_documented_defaults(command: Any, wanted: dict[str, Any]):
    assert dataclasses.asdict(command) == wanted


def test_answers_are_searched_as_in_training_by_default():
    def settings(command: AnswerQuestion, **reading: Any) -> dict[str, Any]:
        engine: Any = types.SimpleNamespace(model=types.SimpleNamespace(reading=reading))
        return {name: command._setting(engine, name) for name in ANSWERS}

    assert settings(AnswerQuestion()) == ANSWERS
    trained = {"length": 64, "doc_stride": 9, "max_answer": 5, "may_be_unanswerable": True, "no_answer_threshold": -1.5}
    assert settings(AnswerQuestion(), **trained) == trained
    given = {"length": 32, "doc_stride": 8, "max_answer": 4, "may_be_unanswerable": False, "no_answer_threshold": 0.0}
    assert settings(AnswerQuestion(**given), **trained) == given


def test_translations_have_the_settings_of_the_paper():
    given = {name: parameter.default for name, parameter in inspect.signature(translate).parameters.items()}
    paper = {"beams": 4, "length_penalty": 0.6, "penalty": "gnmt", "early_stopping": False, "max_length": None}
    assert {name: given[name] for name in paper} == paper
    assert [Translate(penalty=name).power for name in ("gnmt", "transformers")] == [0.6, 1.0]
    assert Translate(length_penalty=0.0).power == 0.0
    assert (translating.BEYOND, translating.HELD_OUT, translating.AT_A_TIME) == (50, 3_000, 256)
