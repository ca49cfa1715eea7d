"""`Tokens`, the inputs of an encoder, and `Layer`, the properties of a layer. Functions take one object for all inputs, so a
new per-token input does not change their signatures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Shaped, UInt32

from bert_jax.data import DECODER, INPUTS
from bert_jax.model.layers import Dropout, Seed

ARRAYS = dict(zip(("ids", "types", "positions", "sequence_ids"), INPUTS, strict=True))
"""Field of `Tokens` -> name of its array in a batch."""
Batch = Mapping[str, Shaped[Array, " ..."]]
"""The arrays of a batch by name: INPUTS and the inputs of the head."""


@struct.dataclass
class Tokens:
    """B rows of L tokens."""

    ids: Int[Array, "B L"]
    types: Int[Array, "B L"]
    """The token types: 0 for the first text of a pair, 1 for the second."""
    positions: Int[Array, "B L"]
    """The position of each token in its sequence, from 0."""
    sequence_ids: Int[Array, "B L"]
    """The index of each token's sequence in its row, from 1 to P, or 0 on padding."""
    queried: Int[Array, "B Q"] | None = None
    """The columns at which the output of a layer is needed. None: all columns."""
    visible: Bool[Array, "B Q L"] | None = None
    """Whether each queried token may attend to each column, as an additional mask of self-attention, which then does not use a
    fused kernel. None: all columns that the sequence ids and the direction allow."""
    rows: UInt32[Array, " B"] | None = None
    """The indices of the rows in the whole batch, if one device has only some of the rows. The indices are consecutive. None:
    0, 1, ... Dropout masks depend on these indices, so the masks are the same on any mesh."""

    @classmethod
    def of(cls, batch: Batch) -> Tokens:
        """Returns the tokens of a batch, from the arrays INPUTS and, if a device has only some of the rows, from the array
        "rows"."""
        return cls(**{field: batch[name] for field, name in ARRAYS.items()}, rows=batch.get("rows"))

    @classmethod
    def for_decoder(cls, batch: Batch) -> Tokens:
        """Returns the tokens that a decoder reads, from the arrays INPUTS of a batch with the prefix DECODER."""
        return cls(**{field: batch[f"{DECODER}{name}"] for field, name in ARRAYS.items()}, rows=batch.get("rows"))

    def reading(self, columns: Int[Array, "B Q"] | None) -> Tokens:
        """Returns these tokens with `queried` set to `columns`."""
        return dataclasses.replace(self, queried=columns)

    def only(self, columns: Int[Array, "B Q"]) -> Tokens:
        """Returns only the tokens in these columns, all of them queried."""
        own = {field: jnp.take_along_axis(getattr(self, field), columns, axis=1) for field in ARRAYS}
        return Tokens(**own, rows=self.rows)

    @property
    def query_positions(self) -> Int[Array, "B Q"]:
        """`positions` at the queried columns."""
        return self.positions if self.queried is None else jnp.take_along_axis(self.positions, self.queried, axis=1)

    @property
    def query_sequence_ids(self) -> Int[Array, "B Q"]:
        """`sequence_ids` at the queried columns."""
        return self.sequence_ids if self.queried is None else jnp.take_along_axis(self.sequence_ids, self.queried, axis=1)

    def offsets(self) -> Int[Array, "B 1 Q L"]:
        """Returns the position of each key minus the position of each query, for attention scores [B, H, Q, L]. The difference
        is only meaningful within a sequence."""
        return (self.positions[:, None, :] - self.query_positions[:, :, None])[:, None]

    def dropout(self, rate: float, seed: Seed | None) -> Dropout:
        """Returns the dropout settings of an array with one row for each queried token or for each query of attention."""
        return Dropout(rate, seed, self.queried, self.rows)


@struct.dataclass
class Layer:
    """The properties of an encoder layer that position embeddings may use."""

    number: UInt32[Array, ""]
    """The index of the layer, from 0. It is traced in a scan over layers."""
    kind: str = struct.field(pytree_node=False, default="full")
    """The attention of the layer (`Architecture.layer_types`): "full" or "sliding"."""
    has_attention_norm: bool = struct.field(pytree_node=False, default=True)
    """Whether the layer has a norm before its attention if norm_placement=pre."""
