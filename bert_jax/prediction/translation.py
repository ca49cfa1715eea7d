"""`translate`: translations by an encoder-decoder, and their BLEU and chrF against references.

BLEU (Papineni et al. 2002) and chrF (Popovic 2015) are those of sacrebleu (arXiv:1804.08771) on detokenised text; a score is
comparable with another one of the same signature.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.embeddings import check_ids
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.decoding import Decoding, Knobs, translated
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import power_of_two, row_length
from bert_jax.prediction.questions import shortened
from bert_jax.storage.formats import UNREADABLE, open_packed

FURTHER = 50
"""The tokens that a translation may be longer than its source, in the paper (arXiv:1706.03762, section 6.1)."""
HELD_OUT = 3_000
"""The held-out pairs that are translated at the end of a run, at most."""


@dataclasses.dataclass(frozen=True)
class Translate:
    """The translation with the best score that beam search finds, with `beams` hypotheses.

    The score of a hypothesis of n tokens is its log-probability divided by n^length_penalty, as in transformers, or by
    ((5 + n) / 6)^length_penalty (penalty="gnmt", arXiv:1609.08144), which the paper used with 4 beams and 0.6.
    """

    beams: int = 4
    length_penalty: float | None = None
    penalty: str = "transformers"
    early_stopping: bool = False
    max_length: int | None = None
    references: str | None = None
    fields = (Field("text"),)

    @property
    def power(self) -> float:
        """The exponent of the length penalty: 1 by default, as in transformers, and 0.6 of GNMT's."""
        if self.length_penalty is not None:
            return self.length_penalty
        return 1.0 if self.penalty == "transformers" else 0.6

    @functools.cached_property
    def _translations(self) -> list[str]:
        """All translations over all calls of `answer`, for the scores."""
        return []

    @functools.cached_property
    def _references(self) -> list[str]:
        return [] if self.references is None else _lines(self.references)

    def check(self, engine: Engine) -> None:
        """Raises UserError for a model that does not translate, for options out of range, and for references that cannot be
        read."""
        if engine.config.encoder != "encoder_decoder":
            raise UserError(
                f"{engine.name} has no decoder that reads an encoder, so it cannot translate; name a model trained with "
                "config.objective=translation, or a Marian"
            )
        if 2 * self.beams > engine.model.tokenizer.size:
            raise UserError(f"--beams={self.beams} must be at most half of the vocabulary's {engine.model.tokenizer.size:,}")
        longest = engine.config.max_position
        if self.max_length is not None and self.max_length > longest:
            raise UserError(f"--max-length={self.max_length} is more than the {longest} positions of {engine.name}; lower it")
        if self.references is not None and not self._references:
            raise UserError(f"--references={self.references} is empty; give a file with a reference per line")

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, list[int]]:
        """(the text of a record, its tokens with the end). Raises UserError for a text that is too long."""
        tokenizer, longest = engine.model.tokenizer, engine.config.max_position
        ids = [*tokenizer.encode(values["text"]), tokenizer.sep_id]
        if len(ids) == 1:
            raise UserError(f"{shortened(values['text'])} holds no token; give text")
        if len(ids) > longest:
            raise UserError(
                f"{shortened(values['text'])} is {counted(len(ids), 'token')} with its end, more than the {longest} positions of "
                f"{engine.name}; divide it into sentences"
            )
        return values["text"], ids

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, list[int]]]) -> list[JsonObject]:
        """Returns the translation of each text."""
        found = self.translated(engine, [ids for _, ids in prepared])
        self._translations.extend(text for text, _ in found)
        return [
            {"text": text, "translation": translation, "score": score}
            for (text, _), (translation, score) in zip(prepared, found, strict=True)
        ]

    def translated(
        self, engine: Engine, sources: Sequence[Sequence[int]], alive: Callable[[], object] = lambda: None
    ) -> list[tuple[str, float]]:
        """Returns (translation, score) of each source; sources of a similar length are translated together."""
        found: list[tuple[str, float]] = [("", 0.0)] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        while order:
            columns = row_length(len(sources[order[-1]]))
            most = engine.mesh.size * max(1, engine.tokens // columns // self.beams)
            some, order = order[-most:], order[:-most]
            for i, best in zip(some, self._searched(engine, [sources[i] for i in some], columns), strict=True):
                found[i] = best
            alive()
        return found

    def _searched(self, engine: Engine, sources: Sequence[Sequence[int]], columns: int) -> list[tuple[str, float]]:
        tokenizer, longest = engine.model.tokenizer, engine.config.max_position
        rows = engine.mesh.size * power_of_two(-(-len(sources) // engine.mesh.size))
        lengths = np.ones(rows, np.int32)  # rows without a source read one token
        lengths[: len(sources)] = [len(ids) for ids in sources]
        ids = np.full((rows, columns), tokenizer.pad_id, np.int32)
        for row, own in enumerate(sources):
            ids[row, : len(own)] = own
        check_ids(engine.config, input_ids=ids)
        column = np.broadcast_to(np.arange(columns, dtype=np.int32), ids.shape)
        real = (column < lengths[:, None]).astype(np.int32)
        arrays = {"ids": ids, "types": np.zeros_like(ids), "positions": column * real, "sequence_ids": real}
        limits = np.minimum(self.max_length or lengths + FURTHER, longest).astype(np.int32)
        limits = np.broadcast_to(limits, (rows,)).copy()
        limits[len(sources) :] = 1
        decoding = Decoding(
            end_id=tokenizer.sep_id, pad_id=tokenizer.pad_id, beams=self.beams, gnmt_penalty=self.penalty == "gnmt",
            early_stopping=self.early_stopping, barred=(tokenizer.pad_id,), forced_end=True, pieces=tokenizer.size,
        )  # fmt: skip
        result = jax.device_get(
            translated(
                engine.params,
                Tokens(**{name: engine.on_devices(array) for name, array in arrays.items()}),
                Knobs(engine.on_devices(limits), length_penalty=self.power),
                config=engine.config,
                decoding=decoding,
                start_id=tokenizer.pad_id,
                room=min(row_length(int(limits.max())), longest),
            )
        )
        engine.batch_count += 1
        found = []
        for row in range(len(sources)):
            ends = np.flatnonzero(result.ids[row] == tokenizer.sep_id)
            own = result.ids[row, : ends[0] if len(ends) else int(limits[row])].tolist()
            score = result.log_probability if result.score is None else result.score
            found.append((tokenizer.decode(own), float(score[row])))
        return found

    def summary(self, whole: bool) -> list[str]:
        """Returns the lines with the scores of all translations against --references; `whole`: whether every text has one.

        Raises UserError unless there are as many references as texts.
        """
        if self.references is None:
            return []
        if not whole or len(self._translations) != len(self._references):
            raise UserError(
                f"--references={self.references} has {counted(len(self._references), 'line')}, and "
                f"{counted(len(self._translations), 'text')} were translated, so there is no score; give a reference for each "
                "text, and no text that is blank or too long"
            )
        scores = translation_scores(self._translations, self._references)
        return [f"{name} {scores[key]:.2f}   {scores[f'{key}_signature']}" for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))]

    def as_text(self, answer: JsonObject) -> str:
        """Returns the translation."""
        return str(answer["translation"])

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


def translation_scores(translations: Sequence[str], references: Sequence[str]) -> JsonObject:
    """Returns "bleu" and "chrf" of a corpus, from 0 to 100, and the signature of each."""
    from sacrebleu.metrics import BLEU, CHRF  # which takes half a second

    found: JsonObject = {}
    metrics: dict[str, Any] = {"bleu": BLEU(), "chrf": CHRF()}
    for name, metric in metrics.items():
        found[name] = float(metric.corpus_score(list(translations), [list(references)]).score)
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def held_out_scores(model: Model, corpus: Corpus, alive: Callable[[], object] = lambda: None) -> JsonObject:
    """Returns the scores of the translations of held-out pairs, at most `HELD_OUT`, by the search of the paper. `alive` is called
    after each batch.

    References are the translations as the vocabulary spells them, since a corpus stores tokens alone.
    """
    engine, question = Engine(model), Translate(beams=4, penalty="gnmt")
    tokenizer, longest = model.tokenizer, model.config.max_position
    sentences, documents = corpus.joined_offsets()
    sources: list[list[int]] = []
    references: list[str] = []
    for first in documents[:-1][:HELD_OUT].tolist():
        source, target = (corpus.tokens[sentences[first + side] : sentences[first + side + 1]].tolist() for side in (0, 1))
        if len(source) < longest:
            sources.append([*source, tokenizer.sep_id])
            references.append(tokenizer.decode(target))
    if not sources:
        return {}
    translations = [text for text, _ in question.translated(engine, sources, alive)]
    return {"pairs": len(sources), "beams": 4, "length_penalty": "gnmt 0.6"} | translation_scores(translations, references)


def _lines(path: str) -> list[str]:
    try:
        with open_packed(path) as file:
            return file.read().decode("utf-8").removesuffix("\n").split("\n")
    except UNREADABLE as error:
        raise UserError(f"--references={path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--references={path} is not UTF-8 ({error}); convert it (iconv -f LATIN1 -t UTF-8)") from error
