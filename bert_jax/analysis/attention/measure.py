"""Computes the attention weights of every layer and head, for a text or a pair of texts, or for a source and its
translation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float32

from bert_jax.analysis.attention.flags import PARTS
from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.maps import PREDICTED, first_pair, first_row
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.windows import Kind, Window, Word, plain_words, written_words
from bert_jax.data import DECODER, INPUTS
from bert_jax.errors import UserError, nearest
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import row_length
from bert_jax.prediction.questions import NOT_FINITE, shortened
from bert_jax.prediction.translating import Translate, translate


@dataclasses.dataclass(frozen=True)
class Text:
    """The pieces and words of a text or a pair of texts, including the special tokens."""

    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of_token: tuple[int, ...]
    """The index of the word of each piece."""
    kinds: tuple[Kind, ...]
    """The kind of each word."""
    segments: tuple[int, ...]
    """The text of each word: 0 for the first text or the source, 1 for the second text or the target."""

    def labels(self, in_words: bool = True) -> tuple[str, ...]:
        """Returns the words, or the pieces."""
        return self.words if in_words else self.tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights between the pieces and between the words of a text, or from a target to its source. The weights
    from each piece and from each word sum to 1."""

    model: str
    part: str
    """One of PARTS, or "" for an encoder-only model."""
    pieces: NamedArray
    """float32 [layer, head, from, to]. The labels of `from` and `to` are the indices of the tokens of `rows` and `columns`,
    starting at 0."""
    words: NamedArray
    """float32 [layer, head, from, to] between words. The weights are summed over the pieces of the attended word and averaged
    over the pieces of the attending word."""
    rows: Text
    """The text that attends."""
    columns: Text
    """The text that is attended to."""

    def weights(self, in_words: bool = True) -> NamedArray:
        """Returns the weights between words, or between pieces."""
        return self.words if in_words else self.pieces


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The source word that each target word attends to most, on average over the heads of one layer."""

    layer: int
    weights: NamedArray
    """float32 [from, to] between all words, averaged over the heads."""
    pairs: tuple[tuple[int, int], ...]
    """Pairs of (target word, source word), as indices of the rows and columns of `weights`. The end tokens are left out."""

    @property
    def sharpness(self) -> float:
        """The mean weight of the aligned pairs."""
        return float(np.mean([self.weights.values[pair] for pair in self.pairs]))


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationAttention:
    """The attention of an encoder-decoder for a source and a target."""

    encoder: Attention
    decoder: Attention
    cross: Attention
    target: str
    is_translated: bool
    """Whether the target is the model's own translation."""

    def part(self, name: str) -> Attention:
        """Returns the attention of one of PARTS."""
        found: Attention = getattr(self, name)
        return found

    def alignment(self, layer: int) -> Alignment:
        """Returns the alignment of one decoder layer, counted from 1."""
        weights = self.cross.words.sel(layer=layer)
        mean = weights.values.mean(0)
        of_text = [
            [i for i, kind in enumerate(side.kinds) if kind in (Kind.WORD, Kind.PUNCTUATION)]
            for side in (self.cross.rows, self.cross.columns)
        ]
        pairs = tuple((i, max(of_text[1], key=lambda j: mean[i, j])) for i in of_text[0])
        return Alignment(layer, NamedArray(mean, {"from": weights["from"], "to": weights["to"]}), pairs)

    def alignments(self) -> list[Alignment]:
        """Returns the alignment of each layer."""
        return [self.alignment(layer) for layer in range(1, self.cross.words.shape[0] + 1)]


def read_attention(engine: Engine, window: Window) -> Attention:
    """Returns the weights of all layers and heads for one window. Raises UserError if the weights are not finite, or if the
    model has no attention."""
    engine.require_attention("to show")
    item = window.item(engine.config.has_segments)
    ((pieces, words),) = engine.batches(first_row, [item])
    second = window.segment_b or len(window.words)
    text = _as_text(window.words, engine.model.tokenizer.tokens(item.ids), [int(i >= second) for i in range(len(window.words))])
    return _attention(engine, "", (pieces, words), text, text)


def read_translation_attention(engine: Engine, source: str, target: str | None = None) -> TranslationAttention:
    """Returns the weights of all layers and heads for a source and a target. Without a target, the model translates the source by
    beam search.

    The rows of "decoder" are the tokens that the decoder reads: the start token and the target. The rows of "cross" are the
    tokens that the decoder predicts at the same positions: the target and its end. The rows of "cross" therefore show which
    source words each target word was translated from. Raises UserError if the model is not an encoder-decoder, if a text has no
    tokens or has more tokens than the position table, if the translation is empty, or if the weights are not finite."""
    config, tokenizer = engine.config, engine.model.tokenizer
    question = Translate()
    question.check(engine)
    for part in ("decoder", "lm_head"):
        engine.require(part, "translate")
    _, ids = question.prepare(engine, {"text": source})
    target_tokenizer = tokenizer.target_tokenizer
    if target is None:
        (found,) = translate(engine, [ids])
        if not found.ids:
            raise UserError(f"the translation of {shortened(source)} by {engine.name} is empty; give the target as a second text")
        words, text = written_words(target_tokenizer, found.ids), target_tokenizer.decode(found.ids)
    else:
        words, text = plain_words(target_tokenizer, target), target
        if not words:
            raise UserError(f"the target {shortened(target)} has no tokens; give text")
    size = 1 + sum(len(word.ids) for word in words)
    if size > config.max_position:
        raise UserError(
            f"the target {shortened(text)} is {counted(size, 'token')} with its start token, more than the "
            f"{counted(config.max_position, 'position')} of {engine.name}; shorten it"
        )
    start, end = (
        Word(tokenizer.pieces[i], (i,), kind) for i, kind in ((tokenizer.pad_id, Kind.CLS), (tokenizer.sep_id, Kind.SEP))
    )
    sides = {"": [*plain_words(tokenizer, source), end], DECODER: [start, *words], PREDICTED: [*words, end]}
    batch: dict[str, np.ndarray] = {}
    texts: list[Text] = []
    for prefix, side in sides.items():
        own = [i for word in side for i in word.ids]
        length = row_length(len(own))
        numbers = [number for number, word in enumerate(side) for _ in word.ids]
        kinds = [int(word.kind) for word in side for _ in word.ids]
        columns = [min(i, config.max_position - 1) for i in range(length)]
        arrays: list[list[int]] = [own, [], columns, [1] * len(own), numbers, kinds]
        for name, x in zip((*INPUTS, "words", "kinds"), arrays, strict=True):
            batch[f"{prefix}{name}"] = np.array([x + [0] * (length - len(x))], np.int32)
        owner = tokenizer if prefix == "" else target_tokenizer
        pieces = [piece for word in side for piece in ([word.text] if word in (start, end) else owner.tokens(word.ids))]
        texts.append(_as_text(side, pieces, [int(prefix != "")] * len(side)))
    weights = jax.device_get(first_pair(engine.params, batch, config=config))
    between = {"encoder": (texts[0], texts[0]), "decoder": (texts[1], texts[1]), "cross": (texts[2], texts[0])}
    parts = {name: _attention(engine, name, found, *between[name]) for name, found in zip(PARTS, weights, strict=True)}
    return TranslationAttention(**parts, target=text, is_translated=target is None)


def _as_text(words: Sequence[Word], tokens: Sequence[str], segments: Sequence[int]) -> Text:
    return Text(
        tokens=tuple(tokens),
        words=tuple(word.text for word in words),
        word_of_token=tuple(number for number, word in enumerate(words) for _ in word.ids),
        kinds=tuple(word.kind for word in words),
        segments=tuple(segments),
    )


def _attention(
    engine: Engine,
    part: str,
    weights: tuple[Float32[np.ndarray, "N H _ _"], Float32[np.ndarray, "N H _ _"]],
    rows: Text,
    columns: Text,
) -> Attention:
    """Returns the attention without padding. In the second array of `weights`, a word is at the index of its first piece."""
    firsts = [np.unique(text.word_of_token, return_index=True)[1] for text in (rows, columns)]
    pieces = weights[0][:, :, : len(rows.tokens), : len(columns.tokens)]
    words = weights[1][:, :, firsts[0][:, None], firsts[1]]
    if not np.isfinite(words).all():  # sums over pieces, so this covers `pieces` too
        raise UserError(f"{engine.name} returns {NOT_FINITE}")
    every = {"layer": range(1, len(pieces) + 1), "head": range(1, engine.config.num_heads + 1)}
    return Attention(
        model=engine.name,
        part=part,
        pieces=NamedArray(pieces, {**every, "from": range(pieces.shape[2]), "to": range(pieces.shape[3])}),
        words=NamedArray(words, {**every, "from": range(words.shape[2]), "to": range(words.shape[3])}),
        rows=rows,
        columns=columns,
    )


def read_head(name: str, layers: int, heads: int, owner: str = "the model") -> tuple[int, int]:
    """Parses the name of a head such as "8-10" and returns (layer, head). Raises UserError if `owner` has no such head."""
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", name)
    if found is None:
        raise UserError(f"--head={cut(name)} is not the name of a head: LAYER-HEAD, such as 1-{min(2, heads)}")
    layer, head = whole_number(found[1], 1, layers), whole_number(found[2], 1, heads)
    if layer is None or head is None:
        hint = nearest(name, head_names(layers, heads)) if layers * heads <= 400 else ""
        hint = f"; {hint}" if hint.startswith("did") else ""
        raise UserError(
            f"--head={cut(name)} does not exist: {owner} has layers 1 to {layers}, each with heads 1 to {heads}{hint}"
        )
    return layer, head


def attention_arrays(found: Sequence[Attention]) -> dict[str, np.ndarray]:
    """Returns all fields as arrays for an .npz file. Weights have the axes [layer, head, from, to]. For an encoder-decoder,
    each name starts with the part. In the names of the arrays of a text, "rows" or "columns" follows the part."""
    if not found[0].part:
        return {"pieces": found[0].pieces.values, "words": found[0].words.values, **_text_arrays(found[0].rows)}
    arrays: dict[str, np.ndarray] = {}
    for each in found:
        arrays |= {f"{each.part}_pieces": each.pieces.values, f"{each.part}_words": each.words.values}
        for side, text in (("rows", each.rows), ("columns", each.columns)):
            arrays |= {f"{each.part}_{side}_{name}": x for name, x in _text_arrays(text).items()}
    return arrays


def _text_arrays(text: Text) -> dict[str, np.ndarray]:
    return {
        "tokens": np.array(text.tokens),
        "word_texts": np.array(text.words),
        "word_of_token": np.array(text.word_of_token, np.int32),
        "segments": np.array(text.segments, np.int32),
        "kinds": np.array([kind.name for kind in text.kinds]),
    }
