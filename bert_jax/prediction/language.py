"""`fill-mask`, `next-sentence` and `score`: predictions of the MLM and NSP heads."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.model.pretraining import word_head
from bert_jax.prediction import forwards
from bert_jax.prediction.commands import FillMaskOptions, Truncation
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import encoded, shortened


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A predicted word for a [MASK]. The word is one subword of the vocabulary, or several subwords joined."""

    token: str
    ids: tuple[int, ...]
    probability: float
    """The probability of the subword. For several subwords, this is the geometric mean of their probabilities, so that words of
    different lengths are comparable."""


@dataclasses.dataclass(frozen=True)
class Filled:
    """A text, the same text with each mask replaced by its best candidate, and the candidates of each mask."""

    text: str
    filled: str
    masks: tuple[tuple[Candidate, ...], ...]


@dataclasses.dataclass(frozen=True)
class _Hypothesis:
    """A hypothesis of the beam search: a word of `length` subwords, of which the first subwords (`ids`) have been chosen."""

    text: int
    """The index of the text."""
    mask: int
    """The index of the mask in the text."""
    length: int
    ids: tuple[int, ...] = ()
    log_probability: float = 0.0


@dataclasses.dataclass(frozen=True)
class FillMask(FillMaskOptions):
    """Predicts the `top_k` most probable words for each [MASK]. The other masks of the text stay masked.

    If `pieces` is above 1, words of up to `pieces` subwords are tried too. For these, the mask is replaced by 2, 3, ... masks.
    A beam search of width `top_k` fills these masks from left to right. The first mask gets a subword that starts a word, and
    all later masks get subwords that continue a word."""

    fields = (Field("text"),)

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no MLM head or reads from left to right, or if an option is out of range."""
        engine.require_encoder()
        engine.require_direction("both", "fill a [MASK]")
        engine.require(word_head(engine.config), "fill a [MASK]")
        if not 1 <= self.top_k <= engine.model.tokenizer.size:
            raise UserError(f"--top-k={self.top_k} must be between 1 and the vocabulary's size {engine.model.tokenizer.size:,}")
        if not 1 <= self.pieces <= 8:
            raise UserError(f"--pieces={self.pieces} must be between 1 and 8")

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, Item]:
        """Returns (the text of a record, its tokens with the masks as query positions). Raises UserError if the text has no
        mask, or no room for `pieces` subwords."""
        text, tokenizer = values["text"], engine.model.tokenizer
        item = encoded(engine, text, with_specials=True)
        masks = tuple(np.flatnonzero(np.equal(item.ids, tokenizer.mask_id)).tolist())
        if not masks:
            mask = tokenizer.pieces[tokenizer.mask_id]
            remedy = "write it in capitals" if mask.lower() in text.lower() else f"write {mask} in place of a word"
            raise UserError(f"no {mask} in {shortened(text)}; {remedy}")
        if len(item.ids) + self.pieces - 1 > engine.config.max_position:
            raise UserError(
                f"{shortened(text)} leaves no room for {counted(self.pieces, 'piece')} in a mask; shorten it, or lower --pieces"
            )
        return text, dataclasses.replace(item, query_positions=masks)

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, Item]]) -> list[Filled]:
        """Returns the most probable words for each mask of each text."""
        items = [item for _, item in prepared]
        kind = "any" if self.pieces == 1 else "start"
        found = engine.run(forwards.candidates, items, "position", top_k=self.top_k, kind=kind)
        words = [
            [_candidates(engine, ids, probabilities) for ids, probabilities in zip(*of_text, strict=True)] for of_text in found
        ]
        for hypothesis in self._longer_words(engine, items) if self.pieces > 1 else ():
            words[hypothesis.text][hypothesis.mask].append(_joined(engine, hypothesis))
        answers = []
        for (text, _), masks in zip(prepared, words, strict=True):
            best = tuple(tuple(sorted(mask, key=lambda c: -c.probability)[: self.top_k]) for mask in masks)
            answers.append(Filled(text, fill(engine, text, best), best))
        return answers

    def _longer_words(self, engine: Engine, items: Sequence[Item]) -> list[_Hypothesis]:
        masks = [(text, mask) for text, item in enumerate(items) for mask in range(len(item.query_positions))]
        beam = [_Hypothesis(text, mask, n) for text, mask in masks for n in range(2, self.pieces + 1)]
        done: list[_Hypothesis] = []
        for step in range(self.pieces):
            kind = "start" if step == 0 else "continuation"
            tried = [self._item(engine, items[h.text], h) for h in beam]
            found = engine.run(forwards.candidates, tried, "position", top_k=self.top_k, kind=kind)
            grown: dict[tuple[int, int, int], list[_Hypothesis]] = {}
            for h, (ids, probabilities) in zip(beam, found, strict=True):
                for i, p in zip(ids[0].tolist(), probabilities[0].tolist(), strict=True):
                    if p > 0:
                        more = dataclasses.replace(h, ids=(*h.ids, i), log_probability=h.log_probability + math.log(p))
                        grown.setdefault((h.text, h.mask, h.length), []).append(more)
            best = [h for group in grown.values() for h in sorted(group, key=lambda h: -h.log_probability)[: self.top_k]]
            done += [h for h in best if h.length == step + 1]
            beam = [h for h in best if h.length > step + 1]
        return done

    def _item(self, engine: Engine, item: Item, h: _Hypothesis) -> Item:
        """Returns the text with the chosen subwords of `h`, followed by masks for the subwords that are not chosen yet. The
        first of these masks is queried."""
        position = item.query_positions[h.mask]
        word = [*h.ids, *[engine.model.tokenizer.mask_id] * (h.length - len(h.ids))]
        return Item([*item.ids[:position], *word, *item.ids[position + 1 :]], query_positions=(position + len(h.ids),))

    def as_text(self, answer: Filled) -> str:
        """Returns the text, followed by lines with the candidates of each mask."""
        lines = [answer.text]
        for number, mask in enumerate(answer.masks, 1):
            lines += [f"  [MASK] {number}"] if len(answer.masks) > 1 else []
            for candidate in mask:
                token = candidate.token if candidate.token.isprintable() else repr(candidate.token)
                lines.append(f"  {candidate.probability:7.2%}  {token}")
        return "\n".join(lines)

    def as_json(self, answer: Filled) -> JsonObject:
        """Returns the answer's fields."""
        return dataclasses.asdict(answer)


def fill(engine: Engine, text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """Replaces every mask in `text` by its best candidate. A candidate that continues a word is joined to the previous word."""
    tokenizer = engine.model.tokenizer
    filled, *rest = text.split(tokenizer.pieces[tokenizer.mask_id])
    for candidates, after in zip(masks, rest, strict=True):
        token = candidates[0].token.removeprefix("##").replace("\u2581", "")
        joins = bool(tokenizer.is_continuation(np.array(candidates[0].ids))[0])
        if tokenizer.distinguishes_spaces and not tokenizer.mask_takes_space and filled[-1:].isspace():
            joins = False  # the space is a separate piece
        before = filled.rstrip() if joins else f"{filled} " if filled[-1:].isalnum() else filled
        filled = f"{before}{token}{' ' if after[:1].isalnum() else ''}{after}"
    return filled


def _candidates(engine: Engine, ids: Int[np.ndarray, " chosen"], probabilities: Float[np.ndarray, " chosen"]) -> list[Candidate]:
    tokens = engine.model.tokenizer.tokens(ids.tolist())
    columns = zip(tokens, ids.tolist(), probabilities.tolist(), strict=True)
    return [Candidate(token, (i,), p) for token, i, p in columns if p != 0]  # NaN is kept, and `ask_each` reports it


def _joined(engine: Engine, h: _Hypothesis) -> Candidate:
    return Candidate(engine.model.tokenizer.word(h.ids).removeprefix("##"), h.ids, math.exp(h.log_probability / h.length))


@dataclasses.dataclass(frozen=True)
class NextSentence(Truncation):
    """Predicts the probability that `text_b` follows `text` in a document (label 0 of the NSP head)."""

    fields = (Field("text"), Field("text_b"))

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no NSP head or no pooler."""
        for part in ("nsp_head", "pooler"):
            engine.require(part, "predict whether one sentence follows another")

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[JsonObject, Item]:
        """Returns (the record, the tokens of the pair)."""
        return values, encoded(engine, values["text"], values["text_b"], truncate=self.truncate)

    def answer(self, engine: Engine, prepared: Sequence[tuple[JsonObject, Item]]) -> list[JsonObject]:
        """Returns, for each pair, the probability that the second text follows the first text, and "is_next" (whether the
        probability is at least 0.5)."""
        found = engine.run(forwards.next_sentence, [item for _, item in prepared], "text")
        pairs = zip(prepared, found, strict=True)
        return [{**values, "is_next": bool(p[0] >= p[1]), "probability": float(p[0])} for (values, _), p in pairs]

    def as_text(self, answer: JsonObject) -> str:
        """Returns a line with the probability and the pair."""
        return f"{answer['probability']:7.2%} that it follows: {answer['text']} | {answer['text_b']}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


@dataclasses.dataclass(frozen=True)
class Score(Truncation):
    """Computes the pseudo-log-likelihood of a text (Salazar et al. 2020, arXiv:1910.14659). It is the sum of ln p(token) over
    all tokens, where each token is predicted with only this token masked. A text of n tokens takes n forward passes. A
    left-to-right model computes the log-likelihood in one forward pass."""

    fields = (Field("text"),)

    def check(self, engine: Engine) -> None:
        """Raises UserError if the model has no MLM head."""
        engine.require_encoder()
        engine.require(word_head(engine.config), "score a text")

    def prepare(self, engine: Engine, values: JsonObject) -> tuple[str, Item]:
        """Returns (the text of a record, the tokens)."""
        return values["text"], encoded(engine, values["text"], truncate=self.truncate)

    def answer(self, engine: Engine, prepared: Sequence[tuple[str, Item]]) -> list[JsonObject]:
        """Returns the pseudo-log-likelihood of each text, or its log-likelihood under a left-to-right model."""
        causal = engine.config.direction == "left_to_right"
        asked = (_next_tokens if causal else functools.partial(_masked_in_turn, engine.model.tokenizer.mask_id))
        items = (each for _, item in prepared for each in asked(item))
        scores = (score for of_item in engine.stream(forwards.target_log_probabilities, items, "position") for score in of_item)
        kind = "" if causal else "pseudo_"
        answers = []
        for text, item in prepared:
            own = [float(next(scores)) for _ in item.ids[1:-1]]
            tokens = engine.model.tokenizer.tokens(item.ids[1:-1])
            perplexity = math.exp(min(700.0, -sum(own) / len(own)))
            answers.append(
                {
                    "text": text,
                    f"{kind}log_likelihood": sum(own),
                    f"{kind}perplexity": perplexity,
                    "tokens": [{"token": t, "log_probability": s} for t, s in zip(tokens, own, strict=True)],
                }
            )
        return answers

    def as_text(self, answer: JsonObject) -> str:
        """Returns a line with the log-likelihood, the perplexity and the text."""
        kind = "pseudo_" if "pseudo_perplexity" in answer else ""
        per_token = f"perplexity {answer[f'{kind}perplexity']:9.2f} a token"
        return f"log-likelihood {answer[f'{kind}log_likelihood']:10.3f}  {per_token}  {answer['text']}"

    def as_json(self, answer: JsonObject) -> JsonObject:
        """Returns the answer itself."""
        return answer


def _masked_in_turn(mask_id: int, item: Item) -> Iterator[Item]:
    """Yields one item per token, in which only this token is masked."""
    for i in range(1, len(item.ids) - 1):
        yield Item([*item.ids[:i], mask_id, *item.ids[i + 1 :]], query_positions=(i,), targets=(item.ids[i],))


def _next_tokens(item: Item) -> Iterator[Item]:
    """Yields `item` with one query position per token. Each position predicts the token after it."""
    count = len(item.ids) - 2
    yield dataclasses.replace(item, query_positions=tuple(range(count)), targets=tuple(item.ids[1:-1]))
