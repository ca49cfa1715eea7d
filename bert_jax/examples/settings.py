"""What an example is: lengths, pairs, masking, packing."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from bert_jax.terminal import UserError, nearest

PAIRS = ("original", "paper", "none")
_LONGEST = 2**15 - 1  # lengths and columns are held in 16 bits
_MOST_PACKED = 64


@dataclass(frozen=True, kw_only=True)
class ExampleConfig:
    """Everything that decides how documents become rows. Names and defaults follow the original's create_pretraining_data.py."""

    length: int  # L, with [CLS] and [SEP]
    max_predictions: int  # M, a row
    masked_fraction: float = 0.15  # of an example's tokens, special ones counted (as the original counts)
    mask_probability: float = 0.8  # a chosen token becomes [MASK] ...
    random_probability: float = 0.1  # ... or a random token; else it is kept
    whole_word: bool = False  # choose words, not pieces
    pairs: str = "original"  # original: the released code, random next above 50 %; paper: 50 % exactly; none: one segment, no NSP
    short_probability: float = 0.1  # documents with a random shorter target length (short_seq_prob)
    packed_examples: int = 1  # P, examples a row at most
    duplicates: int = 0  # 0: new pairs and masks every epoch; k: k fixed versions in turn (dupe_factor)

    def __post_init__(self) -> None:
        if self.pairs not in PAIRS:
            raise UserError(f"pairs={self.pairs!r} is not a way to make pairs; {nearest(str(self.pairs), PAIRS)}")
        shortest = self.special_tokens + (1 if self.pairs == "none" else 2)
        _check_range("length", self.length, shortest, _LONGEST, f"{self.special_tokens} of them are special tokens")
        _check_range("max_predictions", self.max_predictions, 1, self.max_tokens, f"length={self.length} leaves that many places")
        _check_range("packed_examples", self.packed_examples, 1, _MOST_PACKED)
        _check_range("duplicates", self.duplicates, 0, 10_000)
        for name in ("masked_fraction", "mask_probability", "random_probability", "short_probability"):
            _check_range(name, getattr(self, name), 0.0, 1.0)
        if self.masked_fraction == 0:
            raise UserError("masked_fraction=0 leaves nothing to predict; the original uses 0.15")
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

    def predictions(self, lengths: np.ndarray) -> np.ndarray:
        """int64, masks for examples of `lengths`, which count the special tokens: the original's formula (half to even)."""
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


def _check_range(name: str, value: float, lowest: float, highest: float, why: str = "") -> None:
    if not lowest <= value <= highest:
        raise UserError(f"{name}={value} is not between {lowest} and {highest}" + (f": {why}" if why else ""))
