"""Batches of labelled examples: training batches as a pure function of the step, and evaluation of every example exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int64

from bert_jax.data.assemble import Batch
from bert_jax.data.batches.source import shard_rows
from bert_jax.data.counter_rng import key_of
from bert_jax.data.labelled import Feature, RowShape, assemble_features, feature_logits, pack_features, pack_sizes
from bert_jax.data.packing import permutation

EVALUATED = {"cpu": 2_048}
EVALUATED_ELSEWHERE = 16_384
"""The number of tokens of an evaluation batch on one device: `EVALUATED` on a CPU, `EVALUATED_ELSEWHERE` on other devices."""


PACKED_AHEAD = 20_000
"""The steps of a run that are packed before it begins, to choose the numbers of rows; it takes less than a second."""
WORTH_COMPILING = 2**20
"""The tokens of padding that a second number of rows must save: the time of some compilation on most devices."""


class LabelledBatches:
    """Training batches: `batches.at(step)` has the packed features of a step, as a pure function of the step.

    Every epoch has all features in another random order; its last step has the remaining ones (as in transformers' trainers; the
    original drops them). How many rows they fill depends on their lengths. Each number of rows needs a compilation, so a run of
    `epochs` has one or two (`row_counts`), and batches are padded with empty rows. In a run of more than `PACKED_AHEAD` steps, a
    later batch may need more rows than any of those, and then has a number of its own.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        shape: RowShape,
        batch_size: int,
        seed: int,
        *,
        epochs: int,
        row_multiple: int,
        pad_id: int,
    ):
        self._features, self._shape, self._batch_size, self._seed = features, shape, batch_size, seed
        self._pad_id, self._row_multiple = pad_id, row_multiple
        self.steps_per_epoch = -(-len(features) // batch_size)
        self.row_counts = choose_row_counts(self._needed(epochs), shape.length)
        """The numbers of rows of the batches, ascending."""

    def _order(self, epoch: int) -> Int64[np.ndarray, " _"]:
        """The indices of all features in the order of an epoch."""
        return permutation(len(self._features), key_of(self._seed, epoch), np.int64)

    def _needed(self, epochs: int) -> Int64[np.ndarray, " _"]:
        """The rows that each of the first `PACKED_AHEAD` steps needs, as multiples of `row_multiple`."""
        sizes = np.array([feature.size for feature in self._features])
        rows: list[int] = []
        for epoch in range(epochs):
            of_epoch = sizes[self._order(epoch)]
            for first in range(0, len(sizes), self._batch_size):
                if len(rows) == PACKED_AHEAD:
                    break
                rows.append(self._rounded(len(pack_sizes(of_epoch[first : first + self._batch_size].tolist(), self._shape))))
        return np.array(rows, np.int64)

    def _rounded(self, rows: int) -> int:
        return -(-rows // self._row_multiple) * self._row_multiple

    def members(self, step: int) -> list[int]:
        """The indices of the features of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[place * self._batch_size : (place + 1) * self._batch_size].tolist()

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """The rows of `step`, or the part of them for the host `shard` = (index, count)."""
        features = [self._features[i] for i in self.members(step)]
        rows = pack_features(features, self._shape)
        count = next((count for count in self.row_counts if count >= len(rows)), self._rounded(len(rows)))
        mine = shard_rows(count, shard)
        return assemble_features(features, [rows[r] for r in mine if r < len(rows)], len(mine), self._shape, self._pad_id)


def choose_row_counts(needed: Int64[np.ndarray, " _"], length: int) -> tuple[int, ...]:
    """The numbers of rows to compile for: the most rows that any step needs, and a smaller number for most steps if that saves a
    tenth of the rows and `WORTH_COMPILING` tokens in rows of `length`."""
    most = int(needed.max())
    totals = {count: int(np.where(needed <= count, count, most).sum()) for count in np.unique(needed).tolist()}
    best = min(totals, key=lambda count: (totals[count], count))
    saved = totals[most] - totals[best]
    return (best, most) if saved >= totals[most] / 10 and saved * length >= WORTH_COMPILING else (most,)


@dataclasses.dataclass(frozen=True)
class EvaluationBatches:
    """Evaluation of all `features` in batches of `rows` rows, each feature exactly once on any mesh."""

    features: Sequence[Feature]
    shape: RowShape
    rows: int
    pad_id: int

    def logits(
        self,
        forward: Callable[[Batch], Float[np.ndarray, "B _ C"]],
        mine: Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Float[np.ndarray, " ..."]]:
        """The logits of all features, in their order, in the shapes of `feature_logits`.

        `forward` takes the rows `mine` of a batch, those that this host holds (None: all rows), and returns the logits of all
        rows. `progress` is called after each batch with the number of features that are done, and the number of all features.
        """
        packed = pack_features(self.features, self.shape)
        done = 0
        found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(self.features)
        for rows, batch in self._batches(packed, range(self.rows) if mine is None else mine):
            numbers = [i for members in rows for i in members]
            local = iter(range(len(numbers)))
            local_rows = [[next(local) for _ in members] for members in rows]
            of_features = feature_logits(forward(batch), [self.features[i] for i in numbers], local_rows, self.shape)
            for i, logits in zip(numbers, of_features, strict=True):
                found[i] = logits
            done += len(numbers)
            if progress:
                progress(done, len(self.features))
        return found

    def _batches(self, packed: list[list[int]], mine: Sequence[int]) -> Iterator[tuple[list[list[int]], Batch]]:
        for first in range(0, len(packed), self.rows):
            rows = packed[first : first + self.rows]
            own = [rows[r] if r < len(rows) else [] for r in mine]
            yield rows, assemble_features(self.features, own, len(mine), self.shape, self.pad_id)


def evaluation_rows(shape: RowShape, platform: str, row_multiple: int) -> int:
    """The number of rows of an evaluation batch over `row_multiple` devices."""
    tokens = EVALUATED.get(platform, EVALUATED_ELSEWHERE)
    return row_multiple * max(1, tokens // shape.length)
