"""Predicts every token from the tokens before it, with a left-to-right model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxtyping import Array, Key

from bert_jax.model.pretraining import word_head
from bert_jax.objectives.model import Boxed, Model
from bert_jax.objectives.scores import Formula, Score, sum_formula
from bert_jax.objectives.word_prediction import WordPrediction, word_scores


class NextToken(WordPrediction):
    """The mean loss of predicting the next token at the positions of a row."""

    trains: ClassVar[Sequence[str] | None] = ("next_token",)
    title: ClassVar[str] = "next token"
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        **word_scores("next token", "next_token"),
        "loss": sum_formula("next_token_loss"),
    }
    exported: ClassVar[str | None] = "BertLMHeadModel"

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the head of a Transformer, or the softmax of an LSTM."""
        head = word_head(model.config)
        return {head: getattr(model, head)(key)}
