"""The blocks, tiles, grid steps and on-chip memory of the TPU attention kernels, and the arguments of all attention kernels."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num, UInt32

from bert_jax.model.layers import Seed

LOG2E = 1.4426950408889634
"""log2(e). The chips compute 2**x, so exp(x) is computed as 2**(x LOG2E)."""
LANES = 128
BLOCK = 512
"""The number of queries and of keys whose scores are on the chip at the same time. Longer rows are computed block by block."""
KEYS = 128
"""The height of a tile is this number of keys. The width of a tile is `TpuPlan.queries`."""
SCORES_PER_STEP = 1 << 19
"""The number of scores per grid step. With this many scores, the scheduler can overlap instructions, and the fixed cost of a
step is negligible. With 2**21 scores, a head takes 7 % fewer bundles on v5e (0.2 ms of a BERT-Large step of 4 rows), but each
unrolled layer takes 4 seconds longer to compile."""
BYTES_PER_STEP = 8 << 20
"""The maximum bytes of the arrays in a grid step that computes more than one row and group (bfloat16, two copies of each
array)."""

Inputs = tuple[
    Float[Array, "B Q D"], Float[Array, "B L D"], Float[Array, "B L D"], tuple[Int[Array, "B ..."], ...], Num[Array, " _"]
]
"""The inputs of the kernels are (query, key, value, sequence ids, dropout seeds). Query, key and value are padded to the plan's
lengths and width. The keys have sequence ids and, if only some tokens are queries, the queries have their own.
`ids_shapes` has the shapes of the ids, and `seeds` returns the seeds."""
Results = tuple[Float[Array, "B Q D"], Float[Array, "B ..."]]
"""The results of the forward kernel: (the context, log2 of the softmax sums in float32)."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """The dropout seed, and the location of one device's rows and heads in the whole batch. Together they determine the random
    words of the device."""

    seed: Seed
    first_row: UInt32[Array, ""]
    """The index of the device's first row in the whole batch."""
    heads_shard: UInt32[Array, ""]
    """The index of this device's shard of the heads. All shards have the same size."""
    heads_shards: int
    """The number of shards of the heads."""


@dataclasses.dataclass(frozen=True)
class TpuPlan:
    """The blocks of one call on one device. The forward and backward pass share the plan, because they must draw the same
    random words in the same order."""

    rows: int
    length: int
    """The padded number of keys (`padded_length`)."""
    groups: int
    """The number of column groups. A group is the heads that fill 128 lanes together, or a single wider head."""
    head_width: int
    rate: float
    """The dropout rate, a multiple of 2**-16. 0: no dropout."""
    radius: int | None
    """The largest distance at which a query sees a key. None: a query sees all keys."""
    interpret: bool
    queried: int | None = None
    """The padded number of queries if only some tokens are queries. None: every token is a query."""

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        heads: int,
        rate: float,
        radius: int | None = None,
        queried: int | None = None,
        *,
        interpret: bool,
    ) -> TpuPlan:
        """Returns the plan for keys of `shape` [rows, length, heads x head width]. `rate` is rounded to a multiple of
        2**-16."""
        rows, length, width = shape
        head_width = width // heads
        groups = -(-width // max(LANES, head_width))
        # With several blocks of keys, libtpu 0.0.42 crashes on a v6e if the queries are not whole tiles of 256.
        tile = LANES if length <= BLOCK else 2 * LANES
        rate, asked = round(rate * 65536) / 65536, None if queried is None else padded_length(queried, tile)
        return cls(rows, padded_length(length), groups, head_width, rate, radius, interpret, asked)

    @property
    def query_length(self) -> int:
        """The number of queries."""
        return self.length if self.queried is None else self.queried

    @property
    def width(self) -> int:
        """The number of columns of the padded arrays, which hold all groups."""
        return self.groups * self.lanes

    @property
    def ids_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the sequence ids that the kernels read. The first shape is for the keys. If only some tokens are
        queries, a second shape is for the queries."""
        return [(self.rows, 1, length) for length in (self.length, self.queried) if length]

    def seeds(self, place: Placement) -> Int[Array, " 4"]:
        """Returns the dropout seed, the index of the device's first row in the whole batch, the index of its first group, and
        the number of groups of all devices, including the padded groups."""
        all_groups = self.groups * place.heads_shards
        first_group = np.uint32(self.groups) * place.heads_shard
        seeds = jnp.stack([place.seed, place.first_row, first_group, jnp.uint32(all_groups)])
        return jax.lax.bitcast_convert_type(seeds, jnp.int32)

    @property
    def lanes(self) -> int:
        """The number of columns of a group."""
        return max(LANES, self.head_width)

    @property
    def heads(self) -> int:
        """The number of heads in a group."""
        return self.lanes // self.head_width

    @property
    def block(self) -> int:
        """The number of keys in a block."""
        return min(self.length, BLOCK)

    @property
    def blocks(self) -> int:
        """The number of blocks of keys in a row."""
        return self.length // self.block

    @property
    def query_block(self) -> int:
        """The number of queries in a block."""
        return min(self.query_length, BLOCK)

    @property
    def query_blocks(self) -> int:
        """The number of blocks of queries in a row."""
        return self.query_length // self.query_block

    @property
    def queries(self) -> int:
        """The number of queries in a tile."""
        return 256 if self.query_block % 256 == 0 else self.query_block

    @property
    def step(self) -> tuple[int, int]:
        """(number of rows, number of groups) in one grid step."""
        scores = self.heads * self.query_length * self.length
        budget = min(SCORES_PER_STEP // scores, BYTES_PER_STEP // (32 * self.length * self.lanes))
        groups = _largest_divisor(self.groups, budget)
        return (_largest_divisor(self.rows, budget // groups) if groups == self.groups else 1), groups

    @property
    def shifts(self) -> list[int]:
        """The offsets from a block of queries to the blocks of keys within the radius. They are sorted by distance, starting
        with offset 0."""
        reach = min(-(-(self.radius or 0) // self.block), self.blocks - 1)
        return sorted(range(-reach, reach + 1), key=abs)

    def tiles(self, shift: int = 0) -> list[tuple[int, int, int]]:
        """Returns (first query, first key, head) of every tile of a block, in the order in which both passes draw random words.
        The block of keys is `shift` blocks after the block of queries. With a radius, only tiles that overlap the window are
        returned."""
        q_size = self.queries
        places = [(q, k) for q in range(0, self.query_block, q_size) for k in range(0, self.block, KEYS)]
        if self.radius is not None:
            first = shift * self.block  # the position of the first key, relative to the first query
            places = [(q, k) for q, k in places if -self.radius - KEYS < first + k - q < q_size + self.radius]
        return [(q, k, h) for q, k in places for h in range(self.heads)]


def _largest_divisor(of: int, limit: int) -> int:
    return max(d for d in range(1, of + 1) if of % d == 0 and d <= max(limit, 1))


def padded_length(length: int, tile: int = LANES) -> int:
    """Rounds `length` up to whole tiles, or to whole blocks if `length` exceeds a block."""
    multiple = tile if length <= BLOCK else BLOCK
    return -(-length // multiple) * multiple


def vmem_bytes(plan: TpuPlan, dtype: DTypeLike) -> int:
    """Returns an upper bound on the vector memory of the backward kernel (bytes). The forward kernel needs less memory.

    The bound is the sum of three parts. First, eight arrays [rows, length, lanes] of a grid step. Each has two copies, because
    the arrays of the next step are transferred in the meantime. Second, the accumulated query gradient, if a row has several
    blocks. Third, the registers that the compiler spills. Compiled for v4 and v5p, these are 3.4 MiB in bfloat16 and up to 13
    MiB in float32 with 128 lanes, and 5.4 MiB in bfloat16 with 256 lanes."""
    rows, groups = plan.step
    size = jnp.dtype(dtype).itemsize
    wide = rows * groups * plan.length * plan.lanes
    sums = 4 * plan.query_length * plan.lanes if plan.blocks > 1 else 0
    return 16 * wide * size + sums + (size**2 << 20) * plan.lanes // LANES


def rotates_heads(head_width: int) -> bool:
    """Returns whether the TPU kernel of rotary positions supports this head width. The width must be even and divide 128, so
    that whole heads fill the lanes."""
    return head_width % 2 == 0 and LANES % head_width == 0


def divides_lanes(head_width: int) -> bool:
    """Returns whether the TPU attention kernels support this head width. The widths 16, 32 and 64 are supported because several
    such heads share the lanes. Multiples of 128 are supported too."""
    return head_width % 16 == 0 and (LANES % head_width == 0 or head_width % LANES == 0)
