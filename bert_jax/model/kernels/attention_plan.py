"""How fused attention cuts a call into blocks, tiles and grid steps, and the memory on the chip that takes."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax.typing import DTypeLike

MASKED_SCORE = -1e9
"""The original adds -10,000, which leaks a little attention to padding; a `where` with this leaks exactly none in float32."""
LOG2E = 1.4426950408889634
"""Chips have 2**x: exp(x) is 2**(x LOG2E)."""
LANES = 128
BLOCK = 512
"""Queries and keys whose scores are held at once; a longer row is done block by block."""
KEYS = 128
"""Keys of a tile, its height. Its width, the queries, is `Plan.queries`."""
SCORES_PER_STEP = 1 << 19
"""Scores computed in one grid step: enough for the scheduler to overlap, and for the step's fixed cost to vanish. With 2**21 a
head takes 7 % fewer bundles on v5e, 0.2 ms of a BERT-Large step of 4 rows, and each unrolled layer compiles 4 seconds longer."""
BYTES_PER_STEP = 8 << 20
"""What the arrays of a grid step in bfloat16 may take, both copies together, if it does more than one row and group."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one call is cut up; the same for both passes, which must draw the same dropout bits in the same order."""

    rows: int
    length: int
    groups: int
    """Column groups of the model width: as many heads as fill 128 lanes, or one wider head."""
    head_width: int
    rate: float
    """Dropout rate, a multiple of 2**-16; 0 for none."""
    interpret: bool

    @property
    def lanes(self) -> int:
        """Columns of a group."""
        return max(LANES, self.head_width)

    @property
    def heads(self) -> int:
        """Heads of a group."""
        return self.lanes // self.head_width

    @property
    def block(self) -> int:
        """Positions of a block."""
        return min(self.length, BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.length // self.block

    @property
    def queries(self) -> int:
        """Queries of a tile."""
        return 256 if self.block % 256 == 0 else self.block

    @property
    def step(self) -> tuple[int, int]:
        """(rows, groups) of one grid step."""
        budget = min(SCORES_PER_STEP // (self.heads * self.length**2), BYTES_PER_STEP // (32 * self.length * self.lanes))
        groups = _largest_divisor(self.groups, budget)
        return (_largest_divisor(self.rows, budget // groups) if groups == self.groups else 1), groups

    @property
    def tiles(self) -> list[tuple[int, int, int]]:
        """(first query, first key, head) of every tile of a block, in the order in which both passes draw their bits."""
        b = self.block
        return [(q, k, h) for q in range(0, b, self.queries) for k in range(0, b, KEYS) for h in range(self.heads)]


def _largest_divisor(of: int, limit: int) -> int:
    return max(d for d in range(1, of + 1) if of % d == 0 and d <= max(limit, 1))


def padded_length(length: int) -> int:
    """`length` rounded up to whole tiles, or to whole blocks where it is longer than one."""
    multiple = LANES if length <= BLOCK else BLOCK
    return -(-length // multiple) * multiple


def vmem_bytes(plan: Plan, dtype: DTypeLike) -> int:
    """About the vector memory that the backward kernel takes, from above (the forward one takes less).

    Eight arrays [rows, length, lanes] of a grid step, each twice, since the next step's travel meanwhile; the sum of the queries'
    gradient where a row has several blocks; and what the compiler spills, 3.4 MiB in bfloat16 and up to 13 in float32 as
    compiled for v4 and v5p with 128 lanes, 5.4 in bfloat16 with 256.
    """
    rows, groups = plan.step
    size = jnp.dtype(dtype).itemsize
    wide = rows * groups * plan.length * plan.lanes
    sums = 4 * plan.length * plan.lanes if plan.blocks > 1 else 0
    return 16 * wide * size + sums + (size**2 << 20) * plan.lanes // LANES


def divides_lanes(head_width: int) -> bool:
    """Whether the TPU kernels compute heads of that width: 16, 32, 64, which share the lanes, or a multiple of 128."""
    return head_width % 16 == 0 and (LANES % head_width == 0 or head_width % LANES == 0)
