"""Position embeddings. Each is a class with up to three methods, which are all optional.

    embeddings(x, tokens)                         [B, L, D], the sum of the word embeddings so far -> the same with positions
    queries_and_keys(query, key, tokens, layer)   [B, Q, H, K] at `tokens.query_positions`, [B, L, H, K] at `tokens.positions`
    scores(scores, tokens, layer)                 [B, H, Q, L], float32, before the mask; see `Tokens.offsets`

`model.POSITIONS` lists the built-in classes, and FILE.py:NAME names your own class. If the first argument of the constructor
is named "config" or has no default, this argument is the `Architecture`. The class may be a Flax module with parameters.
`layer` is a `tokens.Layer`.

Fused attention kernels never hold the scores, so a class with `scores` uses plain attention. Hugging Face's BERT adds a table
of positions to the embeddings. A class other than `Learned` can be exported to it only if a method `table()` returns this
table.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file, load_named, require_call
from bert_jax.model import POSITIONS
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import initializer, parameter
from bert_jax.model.tokens import Layer, Tokens

PLACES = {
    "embeddings": "x, tokens",
    "queries_and_keys": "query, key, tokens, layer",
    "scores": "scores, tokens, layer",
}
"""Method of a class of positions -> the arguments of the method."""


class Learned(nn.Module):
    """A learned vector for each of `max_position` positions, added to the embeddings (paper section 3, Figure 2)."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the table."""
        c = self.config
        self.embedding = parameter(self, "embedding", initializer(c), (None, "embed"), (c.max_position, c.hidden_size))

    def embeddings(self, x: Float[Array, "B L D"], tokens: Tokens) -> Float[Array, "B L D"]:
        """Returns `x` plus the vector of each position."""
        return x + jnp.take(self.embedding, tokens.positions, axis=0)


class Sinusoidal:
    """The fixed table of `sinusoids`, added to the embeddings."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def table(self) -> Float32[np.ndarray, "S D"]:
        """Returns the vector of each position."""
        return sinusoids(self.config.max_position, self.config.hidden_size)

    def embeddings(self, x: Float[Array, "B L D"], tokens: Tokens) -> Float[Array, "B L D"]:
        """Returns `x` plus the vector of each position."""
        return x + jnp.take(jnp.asarray(self.table()), tokens.positions, axis=0)


class SinusoidalHalves(Sinusoidal):
    """The sinusoids without the division by sqrt(width), with all sines before all cosines. This is the layout of Marian and of
    tensor2tensor, which trained the models of the paper. `Architecture.scale_embeddings` multiplies the word embeddings
    instead."""

    def table(self) -> Float32[np.ndarray, "S D"]:
        """Returns the vector of each position."""
        interleaved = interleaved_sinusoids(self.config.max_position, self.config.hidden_size)
        return np.concatenate([interleaved[:, 0::2], interleaved[:, 1::2]], axis=1).astype(np.float32)


class Absent:
    """No position embedding. Only a left-to-right mask conveys the order of tokens."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def table(self) -> Float32[np.ndarray, "S D"]:
        """Returns a table of zeros."""
        return np.zeros((self.config.max_position, self.config.hidden_size), np.float32)


class Angles(NamedTuple):
    """The angles by which a kernel rotates the pairs of dimensions of each head, as `rotary_angles` returns them."""

    of_queries: Float[Array, "B Q _"]
    of_keys: Float[Array, "B L _"]
    interleaved: bool
    """Whether a pair consists of dimensions 2 i and 2 i + 1. If False, a pair consists of dimensions i and i + K/2."""


class Rotary:
    """Rotary positions (Su et al., arXiv:2104.09864). Queries and keys are rotated by angles that grow with the position, so
    that scores depend on the distance between tokens. There are no parameters, and any number of positions is supported."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def queries_and_keys(
        self, query: Float[Array, "B Q H K"], key: Float[Array, "B L G K"], tokens: Tokens, layer: Layer
    ) -> tuple[Float[Array, "B Q H K"], Float[Array, "B L G K"]]:
        """Rotates queries and keys with the base of the layer's type."""
        theta, interleaved = self.theta(layer), self.config.rotary_pairing == "interleaved"
        return rotate(query, tokens.query_positions, theta, interleaved), rotate(key, tokens.positions, theta, interleaved)

    def angles(self, tokens: Tokens, layer: Layer) -> Angles:
        """Returns the angles of queries and keys, for a kernel that rotates them."""
        theta, width = self.theta(layer), self.config.head_width
        of_queries, of_keys = (rotary_angles(at, theta, width) for at in (tokens.query_positions, tokens.positions))
        return Angles(of_queries, of_keys, self.config.rotary_pairing == "interleaved")

    def theta(self, layer: Layer) -> float:
        """Returns the base of the angles in a layer."""
        own = self.config.sliding_rotary_theta if layer.kind == "sliding" else None
        return self.config.rotary_theta if own is None else own


def rotate(
    x: Float[Array, "B L H K"], positions: Int[Array, "B L"], theta: float, interleaved: bool = False
) -> Float[Array, "B L H K"]:
    """Rotates every pair of dimensions of a head by the angle of the pair (`rotary_angles`). Pair i consists of the dimensions
    i and i + K/2 or, if `interleaved`, of 2 i and 2 i + 1."""
    angles = rotary_angles(positions, theta, x.shape[-1])[:, :, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    wide = x.astype(jnp.float32)
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else jnp.split(wide, 2, axis=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    both = jnp.stack(turned, axis=-1).reshape(x.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return both.astype(x.dtype)


def rotary_angles(positions: Int[Array, "B L"], theta: float, head_width: int) -> Float[Array, "B L _"]:
    """Returns the angle position / theta^(2 i / K) of each pair i (0..K/2-1) of a head. Angles are float32, because
    neighbouring positions beyond 256 would have the same angle in bfloat16."""
    frequencies = (1.0 / theta ** (np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width))).astype(np.float32)
    return positions[:, :, None].astype(jnp.float32) * frequencies[None, None]


def positions_class(config: ModelConfig) -> type[Any]:
    """Returns the class of `config.positions`. Raises UserError if a user's file does not define it."""
    return _kind(config.positions)


@functools.cache
def _kind(positions: str) -> type[Any]:
    """Loads the class once, so that changes to the file during a run have no effect."""
    places = {name: known.place for name, known in POSITIONS.items()}
    kind: type[Any] = load_named(positions, places, "config.model.positions")
    if not isinstance(kind, type) or not any(hasattr(kind, place) for place in (*PLACES, "table")):
        raise UserError(
            f"config.model.positions={positions} is not a class with one of the methods {', '.join(PLACES)}; see "
            "bert_jax/model/positions.py"
        )
    for place, arguments in PLACES.items() if is_in_file(positions) else ():
        if hasattr(kind, place):
            require_call(getattr(kind, place), f"self, {arguments}", f"{place} of config.model.positions={positions}")
    return kind


def make_positions(config: ModelConfig, **module: Any) -> Any:
    """Constructs the class `config.positions`. `module` holds Flax's arguments for a submodule ("name", "parent")."""
    kind = positions_class(config)
    parameters = inspect.signature(kind).parameters
    gets_config = "config" in [*parameters][:1] or any(p.default is p.empty for p in parameters.values())
    return kind(*[config] * gets_config, **(module if issubclass(kind, nn.Module) else {}))


def acts_on(config: ModelConfig, place: str) -> bool:
    """Returns whether the positions of a Transformer have the method `place`, one of PLACES."""
    return hasattr(positions_class(config), place)


def fixed_table(config: ModelConfig) -> Float32[np.ndarray, "S D"] | None:
    """Returns the fixed table that the positions add to the embeddings. Returns None if there is no fixed table, or if the
    positions also change queries, keys or scores."""
    if not config.kind.has_positions or not hasattr(positions_class(config), "table"):
        return None
    if acts_on(config, "queries_and_keys") or acts_on(config, "scores"):
        return None
    return np.asarray(make_positions(config).table(), np.float32)


def sinusoids(positions: int, width: int) -> Float32[np.ndarray, "{positions} {width}"]:
    """Returns the sinusoidal position embeddings of "Attention Is All You Need" (section 3.5), divided by sqrt(`width`).

    Before the division, row p holds sin(p / 10000^(2 i / width)) in column 2 i and the cosine in column 2 i + 1. The paper
    multiplies the word embeddings by sqrt(width) instead (section 3.4). After the LayerNorm of the sum, both are equivalent,
    and the division leaves the tied decoder unchanged. Without the division, the sinusoids would be 35 times as large as word
    embeddings with a standard deviation of 0.02. The table is computed in float64 and becomes a constant of the compiled
    program (1.5 MB for 512 x 768).
    """
    return (interleaved_sinusoids(positions, width) / np.sqrt(width)).astype(np.float32)


def interleaved_sinusoids(positions: int, width: int) -> Float64[np.ndarray, "{positions} {width}"]:
    """Returns the sinusoids as in the paper (arXiv:1706.03762, section 3.5), with each sine next to its cosine."""
    even = np.arange(0, width, 2)
    angles = np.arange(positions)[:, None] / 10_000.0 ** (even / width)
    table = np.empty((positions, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : width // 2]
    return table
