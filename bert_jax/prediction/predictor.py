"""`Predictor`, the Python API for predictions on lists of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.labelling import AnswerQuestion, Choose, Classify, Tag
from bert_jax.prediction.language import Filled, FillMask, NextSentence, Score
from bert_jax.prediction.pronouns import MENTIONS, Resolve
from bert_jax.prediction.questions import Question, ask_each
from bert_jax.prediction.translating import Translate


class Predictor:
    """A loaded model with a method for each command of `predict`. Results are in the order of the texts.

    XLA compiles one program per batch shape, and `packing.py` only makes a few shapes. Short texts share rows of 64 to 256
    tokens. Longer texts get rows of 192 or 384 tokens, or of a power of two. On a CPU, batches have 1, 4 or 16 rows per device.
    Texts of up to 512 tokens need about 20 programs (30 on accelerators), and several times as many for `fill_mask`. A
    single short text gets a row of 16 or 32 tokens.

    Every method raises UserError if the model has no trained head for it, or if a text cannot be answered. The message names
    the first of these texts. The options of a method are the fields of the question's class (`FillMask`, `Embed`, ...).

    >>> predictor = Predictor.load("runs/quickstart/model")
    >>> predictor.fill_mask(["The [MASK] of the array must be positive."], top_k=1)[0].filled
    """

    def __init__(self, engine: Engine):
        self.engine = engine

    @classmethod
    def load(cls, model: str | os.PathLike[str]) -> Predictor:
        """Loads a Hugging Face directory, a workdir or a model of the hub. Raises UserError if `model` is none of them."""
        return cls(Engine.load(model))

    def fill_mask(self, texts: Sequence[str], **options: Any) -> list[Filled]:
        """Returns the most probable words for each [MASK] of each text."""
        return self.ask(FillMask(**options), _each("text", texts))

    def next_sentence(self, pairs: Iterable[tuple[str, str]], **options: Any) -> list[JsonObject]:
        """Returns, for each pair, {"is_next", "probability" that B follows A, ...}."""
        return self.ask(NextSentence(**options), [{"text": a, "text_b": b} for a, b in pairs])

    def score(self, texts: Sequence[str], **options: Any) -> list[JsonObject]:
        """Returns, for each text, {"pseudo_log_likelihood", "pseudo_perplexity", "tokens", ...}."""
        return self.ask(Score(**options), _each("text", texts))

    def generate(self, texts: Sequence[str], **options: Any) -> list[JsonObject]:
        """Returns, for each text, {"continued": the text with its continuation, "tokens", "ended", "log_probability", ...}.
        With beam search, the answer also has the "score" of the hypothesis: its log-probability per token."""
        return self.ask(Generate(**options), _each("text", texts))

    def translate(self, texts: Sequence[str], **options: Any) -> list[JsonObject]:
        """Returns, for each text, {"translation", "log_probability", "score", ...}."""
        return self.ask(Translate(**options), _each("text", texts))

    def embed(self, texts: Sequence[str], **options: Any) -> Float32[np.ndarray, "texts I"]:
        """Returns a vector for each text."""
        question = Embed(**options)
        vectors = [answer["embedding"] for answer in self.ask(question, _each("text", texts))]
        width = self.engine.config.hidden_size * (len(question.layers) if question.combine == "concat" else 1)
        return np.stack(vectors) if vectors else np.zeros((0, width), np.float32)

    def embed_words(self, texts: Sequence[str], **options: Any) -> list[list[JsonObject]]:
        """Returns, for each text, a list of its words: {"word", "start", "end", "embedding" float32 [I]}."""
        return [a["words"] for a in self.ask(Embed(**options, words=True), _each("text", texts))]

    def classify(self, texts: Sequence[str | tuple[str, str]], **options: Any) -> list[JsonObject]:
        """Returns, for each text or pair, {"label", "probability", "probabilities", ...}, or {"value"} for a regression."""
        pairs = [(each["text"], None) if isinstance(each["text"], str) else each["text"] for each in _each("text", texts)]
        return self.ask(Classify(**options), [{"text": a, "text_b": b} for a, b in pairs])

    def tag(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[JsonObject]:
        """Returns, for each text or list of words, {"tags": a label for every word, "entities", ...}."""
        kinds = {isinstance(text, str) for text in texts}
        if len(kinds) > 1:
            raise UserError("some of the texts are strings and some are lists of words; tag them separately")
        return self.ask(Tag(words=False in kinds), _each("words" if False in kinds else "text", texts))

    def answer(self, questions: Iterable[tuple[str, str]], **options: Any) -> list[JsonObject]:
        """Returns, for each (question, context), {"answer", "start", "end", "probability", ...}."""
        return self.ask(AnswerQuestion(**options), [{"question": q, "context": c} for q, c in questions])

    def choose(self, prompts: Iterable[tuple[str, Sequence[str]]], **options: Any) -> list[JsonObject]:
        """Returns, for each (prompt, choices), {"choice": the index of the most probable choice, "probabilities", ...}. The
        first choice has the index `first_choice` of the training data, 0 by default."""
        return self.ask(Choose(**options), [{"prompt": p, "choices": list(c)} for p, c in prompts])

    def resolve(self, pronouns: Iterable[tuple[str, str, str, str]]) -> list[JsonObject]:
        """Returns, for each (text, pronoun, a, b), {"means": a, b or None, "probabilities", ...}. `ask` also accepts character
        offsets."""
        return self.ask(Resolve(), [dict(zip(("text", *MENTIONS), asked, strict=True)) for asked in pronouns])

    def ask(self, question: Question, records: Sequence[JsonObject]) -> list[Any]:
        """Answers any `question` about `records`. Each record has the fields of the question."""
        question.check(self.engine)
        replies = ask_each(self.engine, question, records)
        for number, reply in enumerate(replies, 1):
            if isinstance(reply, UserError):
                raise UserError(f"text {number} of {len(replies)}: {reply}") if len(replies) > 1 else reply
        return replies


def _each(name: str, texts: Sequence[str | Sequence[str]]) -> list[JsonObject]:
    """Returns a record for each of `texts`. Raises UserError if `texts` is a single string, because it would be read as a list
    of characters."""
    if isinstance(texts, str):
        raise UserError("texts is one text, not a list of texts; give [text]")
    return [{name: text} for text in texts]
