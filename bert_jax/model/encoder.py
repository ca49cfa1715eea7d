"""The encoder: post-LayerNorm Transformer blocks whose parameters are stacked over layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from bert_jax.model.attention import CACHE, INTERMEDIATES, SelfAttention
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels.attention import SAVED
from bert_jax.model.layers import Dense, Seed, gather_positions, hash_word, layer_parameters
from bert_jax.model.residual_norm import ResidualNorm
from bert_jax.model.tokens import Layer, Tokens

ACTIVATION_AXES = ("batch", "length", "embed")
LayerParams = Mapping[str, Any]
"""A nested dictionary of the arrays of one layer, or of all layers stacked along a leading axis N."""


class FeedForward(nn.Module):
    """Two Dense layers, of width F and D, with the activation between them."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """The output of both layers for each token."""
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        narrow_shape, wide_shape = (c.hidden_size,), (c.intermediate_size,)
        first = Dense(narrow_shape, wide_shape, ("embed", "mlp"), c.initializer_range, dtype, c.target, name="intermediate")
        wide = nn.with_logical_constraint(first(x), ("batch", "length", "mlp"))
        axes = ("mlp", "embed")
        return Dense(wide_shape, narrow_shape, axes, c.initializer_range, dtype, c.target, c.activation, name="output")(wide)


class Block(nn.Module):
    """One Transformer layer of the paper, with LayerNorm after each residual sum.

    Only the tokens that are read out (`Tokens.queried`) are computed; all tokens are keys and values.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B _ D"], tokens: Tokens, seed: Seed | None, layer: Layer
    ) -> Float[Array, "B Q D"]:
        """The hidden states after the layer, whose dropout seeds follow from its number."""
        c = self.config
        seeds = [None if seed is None else hash_word(seed + layer.number * np.uint32(8) + np.uint32(i)) for i in range(1, 4)]
        y = SelfAttention(c, name="attention")(x, tokens, seeds[0], layer)
        x = x if tokens.queried is None or self.is_mutable_collection(CACHE) else gather_positions(x, tokens.queried)
        x = ResidualNorm(c, name="attention_layer_norm")(x, y, seeds[1], tokens)
        y = FeedForward(c, name="feed_forward")(x)
        x = ResidualNorm(c, name="feed_forward_layer_norm")(x, y, seeds[2], tokens)
        return nn.with_logical_constraint(x, ACTIVATION_AXES)


def initial_layers(key: Key[Array, ""], config: ModelConfig) -> LayerParams:
    """Fresh parameters of every block, each array boxed with its axis names and stacked along a leading axis "layers"."""

    def initial(key: Key[Array, ""]) -> LayerParams:
        x, ids = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
        return Block(config.plain(), parent=None).init(key, x, Tokens(ids, ids, ids, ids), None, Layer(jnp.uint32(0)))["params"]

    boxed = jax.vmap(initial)(jax.random.split(key, config.num_layers))
    return nn.meta.add_axis(boxed, 0, {nn.PARTITION_NAME: "layers"})


def unstacked_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a model with the layers of its encoder as a list of layers, which `Encoder` accepts too.

    Used in inference, where a slice of stacked layers would copy the layer (7 MB for MiniLM, 5 % of the time of 1,024 tokens on
    2 cores), and in ZeRO, which gathers one layer at a time.
    """
    return with_layers(params, _separate)


def stacked_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `unstacked_layers`."""
    return with_layers(params, lambda layers: jax.tree.map(lambda *parts: jnp.stack(parts), *layers))


def with_layers(params: Mapping[str, Any], change: Callable[[LayerParams], LayerParams | list[LayerParams]]) -> dict[str, Any]:
    """The parameters of a model with the layers of its encoder replaced by `change(layers)`; unchanged without layers."""
    if "encoder" not in params:
        return dict(params)
    return {**params, "encoder": {**params["encoder"], "layers": change(params["encoder"]["layers"])}}


def _separate(stacked: LayerParams) -> list[LayerParams]:
    """A tree of arrays [N, ...] as N trees of arrays [...]."""
    leaves, structure = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(structure, layer) for layer in zip(*leaves, strict=True)]


@jax.custom_vjp
def unstack(stacked: LayerParams) -> list[LayerParams]:
    """A tree of arrays [N, ...] as N trees of arrays [...].

    The gradient of N slices would be a sum of N arrays of the size of the stack; this gradient is one concatenation.
    """
    return _separate(stacked)


unstack.defvjp(
    lambda stacked: (unstack(stacked), None), lambda _, layers: (jax.tree.map(lambda *parts: jnp.stack(parts), *layers),)
)


class WholeRows(nn.Module):
    """Layers other than a Transformer's: the last one is computed at all positions, whichever are read."""

    config: ModelConfig

    def queried(self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None) -> Float[Array, "B Q D"]:
        """The output of the last layer at `tokens.queried` alone; all of it is computed."""
        last = self(x, tokens, seed)[0]
        return last if tokens.queried is None else gather_positions(last, tokens.queried)


class Encoder(nn.Module):
    """N blocks, each applied to the output of the one before.

    The parameters have a leading axis N with and without `scan_layers`, so checkpoints do not depend on how layers are compiled.
    It also accepts the list of layers of `unstacked_layers`, over which the loop is always unrolled.
    """

    objectives: ClassVar[Mapping[str, str]] = {"both": "bert", "left_to_right": "next_token"}
    """`ModelConfig.direction` -> the objective that trains it where none is named."""
    config: ModelConfig

    def setup(self) -> None:
        """Declares the parameters of all layers, stacked along an axis N, or uses the given list of layers."""
        layers = layer_parameters(self, initial_layers, self.config)
        self.is_unstacked = isinstance(layers, list)  # the result of `unstacked_layers`; flax makes it a tuple
        self.layers = layers

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """(output of the last layer, outputs of all layers), for all tokens."""
        c, tokens = self.config, tokens.reading(None)
        if c.scan_layers and not self.is_unstacked:
            scanned = (self.layers, jnp.arange(c.num_layers, dtype=jnp.uint32))
            block = self._block(tokens, seed)

            def body(
                x: Float[Array, "B L D"], layer: tuple[LayerParams, UInt32[Array, ""]]
            ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
                return (x := block(x, *layer)), x

            return jax.lax.scan(body, x, scanned, unroll=c.layers_per_scan_step)
        outputs = self._unrolled(x, tokens, seed)
        return outputs[-1], jnp.stack(outputs)

    def queried(self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None) -> Float[Array, "B Q D"]:
        """The output of the last layer at `tokens.queried` alone.

        All of the last layer but keys and values (5/6 of it with the paper's widths) is computed at these columns only. A loop
        over layers that is not unrolled computes all columns, since taking the last layer out of the stack would copy it.
        """
        if tokens.queried is not None and self.config.scan_layers and not self.is_unstacked:
            return gather_positions(self(x, tokens, seed)[0], tokens.queried)
        return self._unrolled(x, tokens, seed)[-1]

    def _unrolled(self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None) -> list[Float[Array, "B _ D"]]:
        """The outputs of all layers; the last one reads `tokens.queried` out."""
        block, last = self._block(tokens.reading(None), seed), self._block(tokens, seed)
        outputs = [x]
        for i, params in enumerate(self.layers if self.is_unstacked else unstack(self.layers)):
            is_last = i == self.config.num_layers - 1
            outputs.append((last if is_last else block)(outputs[-1], params, jnp.uint32(i)))
        return outputs[1:]

    def _block(self, tokens: Tokens, seed: Seed | None) -> Callable[..., Float[Array, "B _ D"]]:
        """The function (x, parameters of a layer, its number) -> the output of the layer, rematerialised as
        `ModelConfig.remat` says. It stores the attention weights of each layer where INTERMEDIATES is mutable."""
        c = self.config
        stores: Any = [INTERMEDIATES] if self.is_mutable_collection(INTERMEDIATES) else False
        if self.is_initializing():
            c = c.plain()

        def block(x: Float[Array, "B L D"], params: LayerParams, number: UInt32[Array, ""]) -> Float[Array, "B Q D"]:
            with jax.named_scope("layers"):
                output: Any = Block(c, parent=None).apply({"params": params}, x, tokens, seed, Layer(number), mutable=stores)
            if stores:
                output, stored = output
                self.sow(INTERMEDIATES, "attention_weights", *stored[INTERMEDIATES]["attention"]["weights"])
            return output

        if c.remat == "none":
            return block
        policies = jax.checkpoint_policies
        dots = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(SAVED))
        policy = dots if c.remat == "dots" else None
        return jax.checkpoint(block, policy=policy, prevent_cse=not c.scan_layers)
