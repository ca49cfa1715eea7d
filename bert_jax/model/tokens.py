"""`Tokens`, the inputs of an encoder, and `Layer`, the properties of a layer. Both are passed whole, so that a new per-token
input changes no signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, Shaped, UInt32

from bert_jax.model.layers import Dropout, Seed

ARRAYS = {"ids": "input_ids", "types": "token_type_ids", "positions": "position_ids", "sequence_ids": "sequence_ids"}
"""Field of `Tokens` -> its array in a batch."""
INPUTS = tuple(ARRAYS.values())
"""The arrays of a batch that an encoder reads, int32 [B, L]."""
DECODER = "decoder_"
"""The prefix of the arrays of a batch that a decoder reads, in rows of the target language; those of the source have none."""
Batch = Mapping[str, Shaped[Array, " ..."]]
"""The arrays of a batch by name: INPUTS, and those that a head reads."""


@struct.dataclass
class Tokens:
    """B rows of L tokens."""

    ids: Int[Array, "B L"]
    types: Int[Array, "B L"]
    """The token types: 0 for the first text of a pair, 1 for the second one."""
    positions: Int[Array, "B L"]
    """The position of each token in its sequence, from 0."""
    sequence_ids: Int[Array, "B L"]
    """The number of the sequence that a token belongs to: 1..P on packed rows, 0 on padding."""
    queried: Int[Array, "B Q"] | None = None
    """The columns that are read out, where the output of a layer is needed at these tokens only; None: all columns."""
    rows: UInt32[Array, " B"] | None = None
    """The index of each row in the whole batch, consecutive, where these are the rows of one device; None: from 0. Random masks
    follow from it, so they are the same on any mesh."""

    @classmethod
    def of(cls, batch: Batch) -> Tokens:
        """Returns the tokens of a batch: its arrays INPUTS, and "rows" where a device has a part of the rows."""
        return cls(**{field: batch[name] for field, name in ARRAYS.items()}, rows=batch.get("rows"))

    @classmethod
    def of_decoder(cls, batch: Batch) -> Tokens:
        """Returns the tokens that a decoder reads: the arrays INPUTS of a batch with the prefix DECODER."""
        return cls(**{field: batch[f"{DECODER}{name}"] for field, name in ARRAYS.items()}, rows=batch.get("rows"))

    def reading(self, columns: Int[Array, "B Q"] | None) -> Tokens:
        """Returns these tokens with other `queried` columns."""
        return dataclasses.replace(self, queried=columns)

    def only(self, columns: Int[Array, "B Q"]) -> Tokens:
        """Returns the tokens in these columns, all of them read out."""
        own = {field: jnp.take_along_axis(getattr(self, field), columns, axis=1) for field in ARRAYS}
        return Tokens(**own, rows=self.rows)

    @property
    def query_positions(self) -> Int[Array, "B Q"]:
        """`positions` at the columns that are read out."""
        return self.positions if self.queried is None else jnp.take_along_axis(self.positions, self.queried, axis=1)

    @property
    def query_sequence_ids(self) -> Int[Array, "B Q"]:
        """`sequence_ids` at the columns that are read out."""
        return self.sequence_ids if self.queried is None else jnp.take_along_axis(self.sequence_ids, self.queried, axis=1)

    def offsets(self) -> Int[Array, "B 1 Q L"]:
        """Returns the position of each key minus that of each query, for attention scores [B, H, Q, L]; it has a meaning within a
        sequence."""
        return (self.positions[:, None, :] - self.query_positions[:, :, None])[:, None]

    def dropout(self, rate: float, seed: Seed | None) -> Dropout:
        """Returns the dropout of an array with one row for each token that is read out, or for each query of attention."""
        return Dropout(rate, seed, self.queried, self.rows)


@struct.dataclass
class Layer:
    """A layer of the encoder, as `Positions` see it."""

    number: UInt32[Array, ""]
    """From 0; it may be traced, in a loop over layers."""
    kind: str = struct.field(pytree_node=False, default="full")
    """The attention of the layer (`Architecture.layer_types`): "full", every token attends to all tokens of its sequence;
    "sliding", to those near it."""
    has_attention_norm: bool = struct.field(pytree_node=False, default=True)
    """Whether the layer has a norm before its attention, if its norms stand there at all."""
