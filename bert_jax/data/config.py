"""`ExampleConfig`, the settings of pretraining examples: lengths, pairs, masking, packing."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Interval
from jaxtyping import Int64, Integer

from bert_jax.data import MASKING, ROWS
from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file, load_named
from bert_jax.interface.ranges import Fraction, NamedIn, OneOf, check_ranges

if TYPE_CHECKING:  # the kinds of rows read this module
    from bert_jax.data.kinds_of_rows import Rows

PAIRS = ("original", "paper", "successive", "none")
KIND_KEY = "config.examples.targets"
LONGEST = 2**15 - 1
"""The maximum length of a row, because lengths and positions are stored in 16 bits."""
MOST_PACKED = 4_096
"""The largest accepted number of examples in a row. The plan of an epoch has this many columns."""


@dataclass(frozen=True, kw_only=True)
class ExampleConfig:
    """The settings of pretraining examples. Names and defaults follow the original's create_pretraining_data.py.

    In an experiment, they are `config.examples`, and each phase has its own `length`, `max_predictions` and `packed_examples`.
    Raises UserError if a value is out of range or if two settings contradict each other.
    """

    length: Annotated[int, Interval(ge=3, le=LONGEST)] = 128
    """L, the length of a row in tokens, with [CLS] and [SEP]."""
    max_predictions: Annotated[int, Interval(ge=1, le=LONGEST)] = 20
    """M, the maximum number of predicted tokens in a row."""
    targets: Annotated[str, NamedIn(tuple(ROWS))] = "masked"
    """The kind of rows, a name in `data.ROWS`. "masked": predict masked tokens. "next": mask nothing and predict the next token
    at M random positions of a row, or at all of them if M is at least L - 1. "centres": choose positions as with "next"; the
    objective predicts their neighbours. "translated": a row holds up to L tokens of texts and up to L tokens of their
    translations, which are predicted; P is the number of pairs. In a run, the objective sets this field."""
    packed_examples: Annotated[int, Interval(ge=1, le=MOST_PACKED)] = 1
    """P, the maximum number of examples in a row."""
    masked_fraction: Annotated[float, Interval(gt=0, le=1)] = 0.15
    """The fraction of an example's tokens that is predicted, up to `max_predictions`. Special tokens count, as in the
    original."""
    mask_probability: Fraction = 0.8
    """The probability that a predicted token is replaced by [MASK]."""
    random_probability: Fraction = 0.1
    """The probability that a predicted token is replaced by a random token. The remaining predicted tokens are not changed."""
    masking: Annotated[str, NamedIn(tuple(MASKING))] = "tokens"
    """"tokens": single subwords. "whole_words": all subwords of a word together, until `masked_fraction` of the subwords is
    reached (the original's whole-word masking). "words": `masked_fraction` of the words, so that long words are drawn as often as
    short ones. "spans": runs of whole words of geometric length (SpanBERT, arXiv:1907.10529), with one kind of replacement per
    span. With "words" the number of predicted subwords varies by row, and words beyond `max_predictions` are dropped, so
    increase `max_predictions` by a third. FILE.py:NAME: your own function, `positions = name(example, rate, rng)`; see
    `masking.Example`."""
    pairs: Annotated[str, OneOf(PAIRS)] = "original"
    """"original": as in the released code, where more than 50 % of next segments are random. "paper": exactly 50 % are random.
    "successive": no next segment is random, for objectives with their own labels, such as the order of the segments. "none":
    one segment, no next sentence prediction, and a model without pooler and next-sentence head."""
    short_probability: Fraction = 0.1
    """The probability that a document has a random shorter target length (short_seq_prob)."""
    duplicates: Annotated[int, Interval(ge=0, le=10_000)] = 0
    """0: new pairs and masks in every epoch; k: epochs cycle through k fixed versions of pairs and masks (dupe_factor)."""

    def __post_init__(self) -> None:
        check_ranges(self, "examples")
        kind = self.kind
        kind.check(self)
        shortest = self.special_tokens + (1 if self.pairs == "none" else 2)
        if self.length < shortest:
            raise UserError(
                f"length={self.length} must be at least {shortest}, because every row has {self.special_tokens} special tokens"
            )
        if self.max_predictions > (most := kind.most_predictions(self)):
            raise UserError(
                f"max_predictions={self.max_predictions} must be at most {most}, because a row of length={self.length} has no "
                "more tokens to predict"
            )
        if self.mask_probability + self.random_probability > 1 + 1e-9:
            raise UserError(
                f"mask_probability={self.mask_probability} and random_probability={self.random_probability} sum to more than "
                "1; lower one of the two (the rest of the predicted tokens stay unchanged)"
            )
        limited = "max_predictions" in kind.reads and not self.counts_words
        if limited and (needed := _most_predictions(self)) > self.max_predictions:
            raise UserError(
                f"max_predictions={self.max_predictions} is too small for packed_examples={self.packed_examples} "
                f"at length={self.length}: one row can have {needed} masks; set max_predictions={needed} or packed_examples=1"
            )

    @property
    def kind(self) -> Rows:
        """The kind of rows, with its arrays and its rules."""
        return rows_kind(self.targets)

    @property
    def counts_words(self) -> bool:
        """Whether the number of predicted tokens may depend on more than an example's length. `most_pieces` then returns the
        upper limit of this number. A policy declares that it does not (`masking.of_all`); a user's file cannot declare this, so
        it is not read here."""
        return is_in_file(self.masking) or not getattr(load_named(self.masking, MASKING, "masking"), "by_length", False)

    @property
    def special_tokens(self) -> int:
        """The number of special tokens of an example."""
        return self.kind.special_tokens(self)

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of an example, excluding special tokens."""
        return self.length - self.special_tokens

    @property
    def wanted_predictions(self) -> int:
        """The number of predicted tokens in a full row, without the limit `max_predictions`."""
        return min(round(self.masked_fraction * self.length), self.max_tokens)

    @property
    def reached_fraction(self) -> float:
        """The fraction of a full row's tokens that is predicted. It is below `masked_fraction` if `max_predictions` is too small
        for it."""
        capped = self.wanted_predictions > self.max_predictions
        return self.max_predictions / self.length if capped else self.masked_fraction

    def with_masked_fraction(self, fraction: float) -> ExampleConfig:
        """Returns a copy with another fraction of predicted tokens and enough `max_predictions`."""
        if fraction == self.masked_fraction or "masked_fraction" not in self.kind.reads:
            return self
        if "max_predictions" not in self.kind.reads:
            return dataclasses.replace(self, masked_fraction=fraction)
        wide = dataclasses.replace(self, masked_fraction=fraction, max_predictions=self.max_tokens)
        scaled = min(self.max_tokens, math.ceil(self.max_predictions * fraction / self.masked_fraction))
        return dataclasses.replace(wide, max_predictions=scaled if self.counts_words else _most_predictions(wide))

    def predictions(self, lengths: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """Returns the number of predicted tokens of examples with these `lengths`, which include special tokens."""
        return self.kind.predictions(self, lengths)

    def predicted_words(self, words: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """Returns the number of predicted words of examples with `words` words, with `masking="words"`."""
        return np.maximum(1, np.rint(self.masked_fraction * words)).astype(np.int64)

    def most_pieces(self, lengths: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """Returns the maximum number of predicted tokens for examples with these `lengths`. The maximum applies to next tokens,
        and if `counts_words` is True. It is `max_predictions`. If rows are packed, each example gets a part of
        `max_predictions` that is proportional to its length."""
        if self.packed_examples == 1:
            return np.full(len(lengths), self.max_predictions, np.int64)
        return (self.max_predictions * lengths.astype(np.int64)) // self.length


@functools.lru_cache(maxsize=16)
def rows_kind(rows: str | type) -> Rows:
    """Returns the kind of rows with the name `rows` in `config.examples.targets`, or with the class `rows`. Raises UserError if
    it is not a kind of rows."""
    from bert_jax.data.kinds_of_rows import Rows

    found = load_named(rows, ROWS, KIND_KEY) if isinstance(rows, str) else rows
    if not (isinstance(found, type) and issubclass(found, Rows)):
        raise UserError(
            f"{KIND_KEY}={rows} is {found!r}, not a kind of rows; make it a class that inherits from "
            "bert_jax.data.kinds_of_rows.Rows"
        )
    if lacking := sorted(found.__abstractmethods__):
        raise UserError(f"{KIND_KEY}={rows} has no {' and no '.join(lacking)}; see the class Rows")
    return found()


@functools.lru_cache(maxsize=64)
def _most_predictions(config: ExampleConfig) -> int:
    """Returns the maximum number of predicted tokens in all examples of a packed row together.

    most(examples)[n] is the maximum for n tokens in up to `examples` examples. Because of rounding, several short examples may
    have more predicted tokens than one long example. For example, at length 128, four examples have up to 21 predicted tokens
    and one example has 19. At length 512, eight examples have up to 80 and one has 77.
    """
    lengths = np.arange(config.length + 1)
    shortest = config.special_tokens + (1 if config.pairs == "none" else 2)
    count = np.where(lengths >= shortest, config.predictions(lengths), 0)

    def together(a: Int64[np.ndarray, " L"], b: Int64[np.ndarray, " L"]) -> Int64[np.ndarray, " L"]:
        return np.array([np.max(a[: n + 1] + b[n::-1]) for n in lengths])

    def most(examples: int) -> Int64[np.ndarray, " L"]:
        if examples == 1:
            return np.maximum.accumulate(count)
        half = most(examples // 2)
        return together(together(half, half), most(1)) if examples % 2 else together(half, half)

    return int(most(config.packed_examples)[-1])
