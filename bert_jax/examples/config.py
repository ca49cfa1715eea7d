"""What an example is: lengths, pairs, masking, packing."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Interval
from jaxtyping import Int64, Integer

from bert_jax.errors import UserError
from bert_jax.interface.ranges import Fraction, OneOf, check_ranges

PAIRS = ("original", "paper", "none")
LONGEST = 2**15 - 1
"""Lengths and columns are held in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class ExampleConfig:
    """How documents become rows. Names and defaults follow the original's create_pretraining_data.py.

    In an experiment it is `config.examples`; a phase has `length`, `max_predictions` and `packed_examples` of its own.
    """

    length: Annotated[int, Interval(ge=3, le=LONGEST)] = 128
    """L, with [CLS] and [SEP]."""
    max_predictions: Annotated[int, Interval(ge=1, le=LONGEST)] = 20
    """M, a row."""
    packed_examples: Annotated[int, Interval(ge=1, le=64)] = 1
    """P, examples a row at most."""
    masked_fraction: Annotated[float, Interval(gt=0, le=1)] = 0.15
    """Of an example's tokens, special ones counted (as the original counts)."""
    mask_probability: Fraction = 0.8
    """A chosen token becomes [MASK] with this probability ..."""
    random_probability: Fraction = 0.1
    """... or a random token with this one; else it is kept."""
    whole_word: bool = False
    """Whether words are chosen, not pieces."""
    pairs: Annotated[str, OneOf(PAIRS)] = "original"
    """"original": the released code, random next above 50 %; "paper": 50 % exactly; "none": one segment, no NSP,
    and a model without pooler and next-sentence head."""
    short_probability: Fraction = 0.1
    """Documents with a random shorter target length (short_seq_prob)."""
    duplicates: Annotated[int, Interval(ge=0, le=10_000)] = 0
    """0: new pairs and masks every epoch; k: k fixed versions in turn (dupe_factor)."""

    def __post_init__(self) -> None:
        check_ranges(self, "examples")
        shortest = self.special_tokens + (1 if self.pairs == "none" else 2)
        if self.length < shortest:
            raise UserError(f"length={self.length} must be at least {shortest}, {self.special_tokens} of them special tokens")
        if self.max_predictions > self.max_tokens:
            raise UserError(
                f"max_predictions={self.max_predictions} must be at most {self.max_tokens}, the places in {self.length}"
            )
        if self.mask_probability + self.random_probability > 1 + 1e-9:
            raise UserError(
                f"mask_probability={self.mask_probability} and random_probability={self.random_probability} sum to more than 1; "
                "the rest of 1 is the share of chosen tokens that are kept"
            )
        if self.packed_examples > 1 and (needed := _most_predictions(self)) > self.max_predictions:
            raise UserError(
                f"max_predictions={self.max_predictions} is too small for packed_examples={self.packed_examples} "
                f"at length={self.length}: one row can have {needed} masks; set max_predictions={needed} or packed_examples=1"
            )

    @property
    def special_tokens(self) -> int:
        """[CLS] and the [SEP]s of one example."""
        return 2 if self.pairs == "none" else 3

    @property
    def max_tokens(self) -> int:
        """Tokens of text in the longest example."""
        return self.length - self.special_tokens

    def predictions(self, lengths: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """The number of masks of examples of `lengths`, special tokens included: the original's formula (half to even)."""
        wanted = np.maximum(1, np.rint(self.masked_fraction * lengths)).astype(np.int64)
        return np.minimum(np.minimum(wanted, self.max_predictions), np.maximum(lengths - self.special_tokens, 0))


@functools.lru_cache(maxsize=64)
def _most_predictions(config: ExampleConfig) -> int:
    """The most masks that examples packed in one row can have together, each counted as if it stood alone.

    most[n]: in n places; one round of the recursion for each example in the row. Rounding up makes several short examples need
    more than one long one: 21 for four at length 128, against 19 for one; 80 for eight at length 512, against 77.
    """
    lengths = np.arange(config.length + 1)
    shortest = config.special_tokens + (1 if config.pairs == "none" else 2)
    count = np.where(lengths >= shortest, config.predictions(lengths), 0)
    most = np.maximum.accumulate(count)
    for _ in range(config.packed_examples - 1):
        most = np.array([np.max(count[: n + 1] + most[n::-1]) for n in lengths])
    return int(most[-1])
