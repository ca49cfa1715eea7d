"""`translate`: translates texts with an encoder-decoder, greedily or by beam search, and computes BLEU and chrF.

BLEU (Papineni et al. 2002) and chrF (Popovic 2015) are computed by sacrebleu (arXiv:1804.08771) on detokenised text. Two scores
are only comparable if they have the same signature."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.corpus.store import Corpus, corpus_sources
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.commands import PENALTIES, TranslateOptions
from bert_jax.prediction.decoding import Decoding, Knobs, check_beams, translated
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import power_of_two, row_length
from bert_jax.prediction.questions import shortened
from bert_jax.storage.formats import conversion, open_packed, reading_explained
from bert_jax.tasks.published import Published, published, score_lines

log = logging.getLogger(__name__)

BEAMS = 4
"""The number of hypotheses per source in the paper (arXiv:1706.03762, section 6.1), and the default."""
BEYOND = 50
"""By default, a translation has at most this many more tokens than its source (arXiv:1706.03762, section 6.1)."""
HELD_OUT, AT_A_TIME = 3_000, 256
"""The maximum number of held-out pairs that are translated at the end of a run, and the number of pairs per call of
`translate`."""
WMT14 = "tfds:wmt14_translate/"
"""Corpus sources with this prefix have sentence pairs of WMT14. The test set of WMT14 is newstest2014."""


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of a source."""

    ids: tuple[int, ...]
    """The ids of the translation's tokens, without the end token."""
    log_probability: float
    """The natural logarithm of the translation's probability. In beam search, an end token forced by the limit adds nothing."""
    score: float
    """The log-probability divided by the length penalty, by which beam search ranks translations."""


def translate(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    beams: int = BEAMS,
    length_penalty: float = 0.6,
    penalty: str = "gnmt",
    early_stopping: bool = False,
    max_length: int | None = None,
) -> list[Translation]:
    """Translates `sources`. Each source is a sequence of ids that ends with the end token.

    The defaults are the values of the paper (arXiv:1706.03762, section 6.1): a beam of 4, GNMT's length penalty with exponent
    0.6, and at most 50 more tokens than the source. `max_length` is the limit of every target, including the end token. As in
    Marian in transformers, padding is never chosen, and the end token is forced at the limit. The only one of the model's
    generation settings that is applied is "renormalize_logits". Sources of similar lengths are translated together.

    Raises UserError if the model does not translate, if a source is empty or longer than the position table, or if an option
    is out of range."""
    config, tokenizer = engine.config, engine.model.tokenizer
    if not config.translates:
        raise UserError(f"{engine.name} does not translate: it is a {config.encoder}; use a model with encoder=encoder_decoder")
    if penalty not in PENALTIES:
        raise UserError(f"penalty={penalty!r} is unknown; use one of {', '.join(PENALTIES)}")
    if not 1 <= beams <= config.decoder_config.vocab_size // 2:
        most = config.decoder_config.vocab_size // 2
        raise UserError(f"beams={beams} must be at least 1 and at most {most:,}, half of the target's vocabulary")
    most = config.max_position - 1
    if max_length is not None and not 1 <= max_length <= most:
        raise UserError(
            f"max_length={max_length} must be between 1 and {most}, the number of positions of {engine.name} after the start "
            "token"
        )
    for source in sources:
        if not 1 <= len(source) <= config.max_position:
            raise UserError(
                f"a source has {counted(len(source), 'token')}, but {engine.name} reads 1 to {config.max_position}; split it "
                "into sentences"
            )
    limits = [min(most, len(source) + BEYOND) if max_length is None else max_length for source in sources]
    pieces = None if config.decoder_vocab_size else tokenizer.size
    decoding = Decoding(
        tokenizer.sep_id, tokenizer.pad_id, beams=beams, gnmt_penalty=penalty == "gnmt", early_stopping=early_stopping,
        barred=(tokenizer.pad_id,), forced_end=True, pieces=pieces,
        renormalise=engine.model.generation.get("renormalize_logits") is True,
    )  # fmt: skip
    found: list[Translation] = [Translation((), 0.0, 0.0)] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    while order:
        length = row_length(len(sources[order[-1]]))
        room = row_length(max(limits[i] for i in order))
        # with more beams, a batch has fewer sources, because its memory grows with the number of hypotheses
        rows = engine.mesh.size * max(1, BEAMS * engine.tokens // (length * max(BEAMS, beams)))
        some, order = order[-rows:], order[:-rows]
        width = engine.mesh.size * power_of_two(-(-len(some) // engine.mesh.size))
        ids, real = np.zeros((width, length), np.int32), np.zeros((width, length), np.int32)
        real[:, 0] = 1  # a row without a source reads one token
        ends = np.ones(width, np.int32)
        for row, i in enumerate(some):
            ids[row, : len(sources[i])], real[row, : len(sources[i])], ends[row] = sources[i], 1, limits[i]
        columns = np.broadcast_to(np.minimum(np.arange(length, dtype=np.int32), config.max_position - 1), ids.shape)
        read = Tokens(*(engine.on_devices(x) for x in (ids, np.zeros_like(ids), columns, real)))
        knobs = Knobs(engine.on_devices(ends), length_penalty=length_penalty)
        chosen = jax.device_get(
            translated(
                engine.params, read, knobs, config=config, decoding=decoding, start_id=tokenizer.pad_id, room=room
            )
        )
        engine.batch_count += 1
        for row, i in enumerate(some):
            tokens = chosen.ids[row]
            ends_at = np.flatnonzero(tokens == decoding.end_id)  # empty if logits are NaN, which `ask_each` reports
            end = int(ends_at[0]) if len(ends_at) else len(tokens)
            total = float(chosen.log_probability[row])
            length = end + 1  # with the end token
            divisor = ((5 + length) / 6 if decoding.gnmt_penalty else length) ** length_penalty
            score = total / divisor if chosen.score is None else float(chosen.score[row])
            found[i] = Translation(tuple(tokens[:end].tolist()), total, score)
    return found


@dataclasses.dataclass(frozen=True)
class Translate(TranslateOptions):
    """Translates a text by beam search with `beams` hypotheses, and returns the translation with the best score.

    The score of a hypothesis of n tokens is its log-probability divided by ((5 + n) / 6)^length_penalty (penalty="gnmt"), or by
    n^length_penalty (penalty="transformers").
    """

    fields = (Field("text"),)

    @property
    def power(self) -> float:
        """The exponent of the length penalty. The default is 0.6 for "gnmt", as in the paper, and 1 for "transformers", as in
        transformers."""
        if self.length_penalty is not None:
            return self.length_penalty
        return 0.6 if self.penalty == "gnmt" else 1.0

    @functools.cached_property
    def _translations(self) -> list[str]:
        """The translations of all calls of `answer`, from which the scores are computed."""
        return []

    @functools.cached_property
    def _references(self) -> list[str]:
        return [] if self.references is None else _lines(self.references)

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model does not translate, if an option is out of range, or if the references cannot be
        read."""
        if engine.config.decoder_layers and not engine.config.translates:
            raise UserError(
                f"{engine.name} is an LSTM whose decoder only serves to train the encoder, so it cannot translate here; name a "
                "model trained with config.model.encoder=encoder_decoder"
            )
        if not engine.config.translates:
            raise UserError(
                f"{engine.name} is not an encoder-decoder, so it cannot translate; name a model trained with "
                "config.objective=translation, or a Marian"
            )
        check_beams(self.beams, engine.model.tokenizer.size)
        most = engine.config.max_position - 1
        if self.max_length is not None and self.max_length > most:
            raise UserError(
                f"--max-length={self.max_length} is more than {most}, the number of positions of {engine.name} after the start "
                "token; lower it"
            )
        if self.early_stopping and self.beams == 1:
            raise UserError("--early-stopping ends a beam search, but --beams=1 does not search; leave one of the two out")
        from bert_jax.interop.families.marian import unapplied_settings  # loads Marian's tables of tensors

        for clause in unapplied_settings(engine.model.generation, engine.model.tokenizer.pad_id):
            log.warning("%s: %s", engine.name, clause)
        if self.references is not None and not self._references:
            raise UserError(f"--references={self.references} is empty; give a file with a reference per line")

    def check_count(self, texts: int) -> None:
        """Raises UserError if there are not as many references as `texts`."""
        if texts != len(self._references):
            raise UserError(
                f"--references={self.references} has {counted(len(self._references), 'line')}, but the input has "
                f"{counted(texts, 'text')}; give one reference for each text, and no text that is blank"
            )

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, list[int]]:
        """Returns (the text of a record, its tokens with the end token). Raises UserError if the text has no tokens or is too
        long."""
        tokenizer, longest = engine.model.tokenizer, engine.config.max_position
        ids = [*tokenizer.encode(" ".join(values["text"].split())), tokenizer.sep_id]  # as in `clean_pair` of the corpus
        if len(ids) == 1:
            raise UserError(f"{shortened(values['text'])} has no tokens; give text")
        if len(ids) > longest:
            raise UserError(
                f"{shortened(values['text'])} is {counted(len(ids), 'token')} with its end token, more than the "
                f"{counted(longest, 'position')} of {engine.name}; split it into sentences"
            )
        return values["text"], ids

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, list[int]]]) -> list[JsonObject]:
        """Returns the translation of each text."""
        sources = [ids for _, ids in prepared]
        found = translate(
            engine, sources, self.beams, self.power, self.penalty, self.early_stopping, max_length=self.max_length
        )
        answers: list[JsonObject] = []
        for (text, _), best in zip(prepared, found, strict=True):
            translation = engine.model.tokenizer.decode(best.ids, target=True)
            answers.append(
                {"text": text, "translation": translation, "log_probability": best.log_probability, "score": best.score}
            )
        self._translations.extend(str(answer["translation"]) for answer in answers)
        return answers

    def summary(self, whole: bool) -> list[str]:
        """Returns lines with the scores of all translations against --references. `whole` is whether every text was translated.

        Raises UserError if there are not as many references as texts, or if `whole` is False."""
        if self.references is None:
            return []
        if not whole or len(self._translations) != len(self._references):
            raise UserError(
                f"--references={self.references} has {counted(len(self._references), 'line')}, but "
                f"{counted(len(self._translations), 'text')} were translated, so there is no score; give one reference for each "
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
    """Returns the scores "bleu" and "chrf" of a corpus, from 0 to 100, and the signature of each score."""
    from sacrebleu.metrics import BLEU, CHRF  # this import takes half a second

    found: JsonObject = {}
    metrics: dict[str, Any] = {"bleu": BLEU(), "chrf": CHRF()}
    for name, metric in metrics.items():
        found[name] = float(metric.corpus_score(list(translations), [list(references)]).score)
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def held_out_scores(model: Model, corpus: Corpus, alive: Callable[[], object] = lambda: None) -> JsonObject:
    """Translates at most `HELD_OUT` held-out pairs with the paper's beam search, and returns the scores of the translations.
    `alive` is called regularly.

    The references are decoded from the tokens of the corpus, which does not store the original text."""
    engine = Engine(model)
    tokenizer, longest = model.tokenizer, model.config.max_position
    sentences, documents = corpus.joined_offsets()
    sources: list[list[int]] = []
    references: list[str] = []
    for first in documents[:-1][:HELD_OUT].tolist():
        source, target = (corpus.tokens[sentences[first + side] : sentences[first + side + 1]].tolist() for side in (0, 1))
        if len(source) < longest:
            sources.append([*source, tokenizer.sep_id])
            references.append(tokenizer.decode(target, target=True))
    if not sources:
        return {}
    translations: list[str] = []
    for first in range(0, len(sources), AT_A_TIME):
        found = translate(engine, sources[first : first + AT_A_TIME])
        translations += [tokenizer.decode(best.ids, target=True) for best in found]
        alive()
    return {"pairs": len(sources), "beams": BEAMS, "length_penalty": "gnmt 0.6"} | translation_scores(translations, references)


def translation_results(
    model: Model, train: Corpus, held_out: Corpus, alive: Callable[[], object] = lambda: None
) -> JsonObject:
    """Returns the values that a translation run adds to `results.json`: the scores of the held-out pairs (`held_out_scores`),
    and the published scores of other systems. Logs both."""
    own, others = held_out_scores(model, held_out, alive), published_translations(train)
    if own:
        log.info("translations of %s: BLEU %.2f, chrF %.2f", counted(own["pairs"], "held-out pair"), own["bleu"], own["chrf"])
    for line in score_lines(others, "bleu"):
        log.info("%s", line)
    return {"translations": own, "published": [dataclasses.asdict(row) for row in others]}


def published_translations(corpus: Corpus) -> tuple[Published, ...]:
    """Returns published scores of other systems that were trained on the same pairs. Only scores for WMT14 are known."""
    if corpus.languages and any(source.startswith(WMT14) for source in corpus_sources(corpus)):
        return published(f"newstest2014 {'-'.join(corpus.languages)}")
    return ()


def _lines(path: str) -> list[str]:
    try:
        with reading_explained(f"--references={path}"), open_packed(path) as file:
            return file.read().decode("utf-8").removeprefix("\ufeff").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"--references={path} is not UTF-8 at byte {error.start + 1:,}{conversion(error.object)}") from error
