"""`embed`: embeddings of texts and of words."""

from __future__ import annotations

import dataclasses
import pathlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.sentence_transformers import TextVectors, read_text_vectors
from bert_jax.prediction import forwards
from bert_jax.prediction.commands import COMBINATIONS, POOLINGS, EmbedOptions
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import encoded, shortened

_MADE_FOR: weakref.WeakKeyDictionary[Engine, TextVectors | None] = weakref.WeakKeyDictionary()
"""The sentence-transformers settings of each loaded model, read once per model."""


@dataclasses.dataclass(frozen=True)
class Embed(EmbedOptions):
    """Computes a vector for each text. With `words`, computes a vector for each word of a text.

    If an option is None and the model directory has the sentence-transformers format, the directory's setting is used. For
    other directories, None means the mean over the tokens of the last layer without normalisation. A text that is too long is
    then an error."""

    fields = (Field("text"),)

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model lacks a part, if options contradict each other, or if an option is out of range."""
        engine.require_encoder()
        options = resolved(self, engine)
        for name, allowed in (("pooling", POOLINGS), ("combine", COMBINATIONS)):
            value = getattr(options.question, name)
            if value not in allowed:
                raise UserError(f"--{name}={value} is unknown: {nearest(str(value), allowed)}; known: {', '.join(allowed)}")
        if options.question.pooling in ("cls", "pooler"):
            causal, static = engine.config.direction == "left_to_right", engine.config.kind.is_static
            if causal or static:
                reason = "has the same vector for a token in every text," if static else "reads from left to right,"
                raise UserError(
                    f"{engine.name} {reason} so its [CLS] sees no text; give --pooling=mean, the mean over the text"
                )
        if options.question.pooling == "pooler":
            engine.require("pooler", "pool with it")
        if not self.layers:
            raise UserError("--layers names no layer; the last one is -1")
        for conflict, reason in (
            (
                self.pooling == "pooler" and not self.words and self.layers != (-1,),
                "--pooling=pooler reads the last layer only, so --layers",
            ),
            (self.words and self.pooling is not None, "--words gives every word a vector, so --pooling"),
        ):
            if conflict:
                raise UserError(f"{reason} has no effect; leave one of the two out")
        last = engine.config.num_layers
        for layer in self.layers:
            if not -last - 1 <= layer <= last:
                raise UserError(
                    f"--layers={layer} is outside [{-last - 1}, {last}]: the model has {counted(last, 'layer')} (0: embeddings)"
                )

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, Item, list[tuple[int, int]]]:
        """Returns (the text of a record, its tokens, the character offsets of each token). The offsets are empty without
        `words`."""
        text, options = values["text"], resolved(self, engine)
        truncate = options.question.truncate
        read = text.strip() if options.strips and not self.words else text
        item = encoded(engine, read, truncate=bool(truncate), longest=options.longest)
        # skip-gram does not train vectors for [CLS] and [SEP], and no vector depends on the context
        if not self.words:
            return text, Item(item.ids[1:-1]) if engine.config.kind.is_static else item, []
        # a truncated text has more offsets than vectors, so `_words` can see whether the last word is cut
        return text, item, engine.model.tokenizer.encode_with_offsets(text)[1][: len(item.ids)]

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, Item, list[tuple[int, int]]]]) -> list[dict[str, Any]]:
        """Returns the vector of each text, or of each of its words."""
        options = resolved(self, engine).question
        last = engine.config.num_layers
        layers = tuple(layer % (last + 1) for layer in self.layers)
        static: dict[str, Any] = {"source": forwards.CombinedLayers(layers, self.combine)}
        items = [item for _, item, _ in prepared]
        if self.words:
            found = engine.run(forwards.token_vectors, items, "token", **static)
            rows = zip(prepared, found, strict=True)
            return [
                {"text": text, "words": self._words(engine, text, offsets, x[1:-1], bool(options.normalise))}
                for (text, _, offsets), x in rows
            ]
        static |= {"pooling": options.pooling, "normalise": bool(options.normalise)}
        found = engine.run(forwards.text_vectors, items, "text", **static)
        return [{"text": text, "embedding": x} for (text, _, _), x in zip(prepared, found, strict=True)]

    def _words(
        self,
        engine: Engine,
        text: str,
        offsets: Sequence[tuple[int, int]],
        vectors: Float[np.ndarray, "tokens I"],
        normalise: bool,
    ) -> list[dict[str, Any]]:
        """Returns each word with the mean vector of its subwords. A word that was cut is left out."""
        pieces = np.array(offsets).reshape(-1, 2)
        words = []
        for start, end in engine.model.tokenizer.words_and_marks(text, offsets):
            if start > pieces[-1, 0]:
                break
            own = (pieces[:, 0] >= start) & (pieces[:, 1] <= end) & (pieces[:, 1] > pieces[:, 0])
            if own.any() and not own[len(vectors) :].any():
                vector = vectors[own[: len(vectors)]].mean(0)
                vector = vector / max(float(np.linalg.norm(vector)), 1e-12) if normalise else vector
                words.append({"word": text[start:end], "start": start, "end": end, "embedding": vector})
        return words

    def blank_answer(self) -> dict[str, Any]:
        """Returns the answer to a blank line. Every line gets an answer, so that the vectors can be joined to other columns."""
        return {"text": "", "words": []} if self.words else {"text": "", "embedding": None}

    def as_text(self, answer: dict[str, Any]) -> str:
        """Returns the text and the first four numbers of each vector."""
        if self.words:
            return "\n".join([answer["text"], *(f"  {w['word']}  {_glimpse(w['embedding'])}" for w in answer["words"])])
        return f"{_glimpse(answer['embedding'])}  {shortened(answer['text'])}" if answer["text"] else "(blank line)"

    def as_json(self, answer: dict[str, Any]) -> JsonObject:
        """Returns the answer. Vectors are converted to lists."""
        if not self.words:
            vector = answer["embedding"]
            return answer | {"embedding": None if vector is None else vector.tolist()}
        return answer | {"words": [word | {"embedding": word["embedding"].tolist()} for word in answer["words"]]}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The options, after the settings of the model have replaced None."""

    question: Embed
    longest: int | None
    """The maximum number of tokens in a text, including [CLS] and [SEP]; None: the size of the position table."""
    strips: bool
    """Whether spaces at the ends of a text are removed for its vector, as in sentence-transformers."""


def resolved(question: Embed, engine: Engine) -> Resolved:
    """Replaces None by the model's settings. Raises UserError if the sentence-transformers settings of the model directory have
    an unsupported pooling or module, unless `question` sets the pooling or asks for words, whose vectors are means."""
    if engine not in _MADE_FOR:
        source = engine.model.source
        _MADE_FOR[engine] = read_text_vectors(pathlib.Path(source), engine.model.tokenizer) if source else None
    made_for = _MADE_FOR[engine]
    made = made_for or TextVectors("mean")
    if made.pooling is None and question.pooling is None and not question.words:
        raise UserError(f"{engine.name} has a pooling that is not implemented here ({made.unknown}); choose one with --pooling")
    return Resolved(
        dataclasses.replace(
            question,
            pooling="mean" if question.words else question.pooling or made.pooling,
            normalise=made.normalise if question.normalise is None else question.normalise,
            truncate=made_for is not None if question.truncate is None else question.truncate,
        ),
        made.longest,
        made_for is not None,
    )


def _glimpse(vector: Float[np.ndarray, " I"]) -> str:
    return "[" + " ".join(f"{x:.3f}" for x in vector[:4]) + f" ... {counted(vector.size, 'number')}]"
