"""The encoder: Transformer blocks whose parameters are stacked over layers. BERT's block is one setting of its switches, which
`Architecture` documents.

The stack has a leading axis N for any `layer_types`, since layers of unlike attention have parameters of the same shapes. Where
the first layer has no norm before its attention (`first_attention_norm`), its row of that norm is never read, and neither
counted nor exported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from bert_jax.model.attention import CACHE, INTERMEDIATES, SelfAttention
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels.attention import SAVED
from bert_jax.model.layers import Dense, Norm, Seed, dropout, gather_positions, hash_word, initializer, layer_parameters
from bert_jax.model.residual_norm import ResidualNorm
from bert_jax.model.tokens import Layer, Tokens

ACTIVATION_AXES = ("batch", "length", "embed")
LayerParams = Mapping[str, Any]
"""A nested dictionary of the arrays of one layer, or of all layers stacked along a leading axis N."""


class FeedForward(nn.Module):
    """Two Dense layers, of width F and D, with the activation between them. With a `gate` there are two first ones: one of them
    is activated, and multiplied by the other."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """Returns the output of both layers for each token."""
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        narrow_shape, wide_shape = (c.hidden_size,), (c.intermediate_size,)

        def widened(name: str) -> Float[Array, "B L F"]:
            axes, use_bias = ("embed", "mlp"), c.intermediate_bias
            first = Dense(narrow_shape, wide_shape, axes, initializer(c), dtype, c.target, use_bias=use_bias, name=name)
            return nn.with_logical_constraint(first(x), ("batch", "length", "mlp"))

        axes, init = ("mlp", "embed"), initializer(c, into_residual=True)
        last = Dense(
            wide_shape, narrow_shape, axes, init, dtype, c.target, c.activation, use_bias=c.output_bias, name="output"
        )
        if c.gate == "none":
            return last(widened("intermediate"))
        first, second = widened("intermediate"), widened("gate")
        return last(first, second) if c.gate == "first" else last(second, first)


class Block(nn.Module):
    """One Transformer layer: with norm_placement=post that of the paper, with a norm after each residual sum; with "pre" norms
    before attention and before the feed-forward.

    Only the tokens that are read out (`Tokens.queried`) are computed; all tokens are keys and values.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B _ D"], tokens: Tokens, seed: Seed | None, layer: Layer
    ) -> Float[Array, "B Q D"]:
        """Returns the hidden states after the layer, whose dropout seeds follow from its number."""
        c = self.config
        seeds = [None if seed is None else hash_word(seed + layer.number * np.uint32(8) + np.uint32(i)) for i in range(1, 4)]
        rate = c.hidden_dropout if c.attention_output_dropout is None else c.attention_output_dropout
        of_attention, of_feed_forward = tokens.dropout(rate, seeds[1]), tokens.dropout(c.hidden_dropout, seeds[2])
        attention, feed_forward = SelfAttention(c, name="attention"), FeedForward(c, name="feed_forward")
        attention_norm, feed_forward_norm = "attention_layer_norm", "feed_forward_layer_norm"

        def read_out(x: Float[Array, "B _ D"]) -> Float[Array, "B Q D"]:
            return x if tokens.queried is None or self.is_mutable_collection(CACHE) else gather_positions(x, tokens.queried)

        if c.norm_placement == "post":
            y = attention(x, tokens, seeds[0], layer)
            x = ResidualNorm(c, name=attention_norm)(read_out(x), y, of_attention)
            x = ResidualNorm(c, name=feed_forward_norm)(x, feed_forward(x), of_feed_forward)
        else:
            y = attention(Norm(c, name=attention_norm)(x) if layer.has_attention_norm else x, tokens, seeds[0], layer)
            x = read_out(x) + dropout(y, of_attention)
            x = x + dropout(feed_forward(Norm(c, name=feed_forward_norm)(x)), of_feed_forward)
        return nn.with_logical_constraint(x, ACTIVATION_AXES)


def initial_layers(key: Key[Array, ""], config: ModelConfig) -> LayerParams:
    """Fresh parameters of every block, each array boxed with its axis names and stacked along a leading axis "layers"."""
    return stacked_initial_layers(Block(config.plain(), parent=None), key, config)


def stacked_initial_layers(block: nn.Module, key: Key[Array, ""], config: ModelConfig, *, decodes: bool = False) -> LayerParams:
    """Returns fresh parameters of `num_layers` layers of the kind `block`, stacked; one that `decodes` reads an encoder's output too."""

    def initial(key: Key[Array, ""]) -> LayerParams:
        x, ids = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
        tokens = Tokens(ids, ids, ids, ids)
        params: LayerParams = block.init(key, x, tokens, None, Layer(jnp.uint32(0)), *(x, tokens) * decodes)["params"]
        return params

    boxed = jax.vmap(initial)(jax.random.split(key, config.num_layers))
    return nn.meta.add_axis(boxed, 0, {nn.PARTITION_NAME: "layers"})


LayerKind = tuple[str, bool]
"""The attention of a layer, and whether a norm stands before it: the last two fields of `Layer`."""


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """Returns the kind of each layer."""
    return [(config.layer_type(n), n > 0 or config.first_attention_norm) for n in range(config.num_layers)]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop over layers that are not all alike: `period` layers, `repeats` times, between the first layers and the last."""

    prefix: int
    period: int
    repeats: int

    @property
    def end(self) -> int:
        """The number of the first layer after the loop."""
        return self.prefix + self.period * self.repeats


def loop_over(kinds: Sequence[LayerKind]) -> Loop:
    """Returns the loop that leaves the fewest layers to compile, in it and outside: all layers alike are a period of 1;
    ModernBERT's 22 are 1 + 7 x 3, its 28 are 1 + 9 x 3."""
    best = Loop(0, 1, 0)
    for period in range(1, min(len(kinds), MOST_UNLIKE) + 1):
        start = 0
        while start < len(kinds):  # each run of layers that are like those a period later
            end = start
            while end + period < len(kinds) and kinds[end] == kinds[end + period]:
                end += 1
            found = Loop(start, period, (end - start) // period + 1)
            if found.period * (found.repeats - 1) > best.period * (best.repeats - 1):
                best = found
            start = end + 1
    return best


MOST_UNLIKE = 64
"""The longest period of unlike layers that a loop is made of."""


def split_over(stacked: LayerParams, loop: Loop) -> tuple[list[LayerParams], list[LayerParams], list[LayerParams]]:
    """Returns the parameters of the layers before a loop; those of each layer of its period, stacked over the repeats; and those
    of the layers after it. The gradient of so many slices is one concatenation, as in `unstack`."""
    layers = jax.tree.leaves(stacked)[0].shape[0]

    @jax.custom_vjp
    def split(stacked: LayerParams) -> tuple[list[LayerParams], list[LayerParams], list[LayerParams]]:
        def part(index: int | slice) -> LayerParams:
            return jax.tree.map(lambda array: array[index], stacked)

        inside = [part(slice(loop.prefix + n, loop.end, loop.period)) for n in range(loop.period)]
        return [part(n) for n in range(loop.prefix)], inside, [part(n) for n in range(loop.end, layers)]

    def joined(_: None, parts: tuple[list[LayerParams], list[LayerParams], list[LayerParams]]) -> tuple[LayerParams]:
        before, inside, after = parts

        def join(*arrays: Array) -> Array:
            one, repeated = arrays[: loop.prefix], arrays[loop.prefix : loop.prefix + loop.period]
            shape = arrays[loop.prefix].shape[1:]
            rows = [array[None] for array in (*one, *arrays[loop.prefix + loop.period :])]
            return jnp.concatenate(
                [*rows[: loop.prefix], jnp.stack(repeated, axis=1).reshape(-1, *shape), *rows[loop.prefix :]]
            )

        return (jax.tree.map(join, *before, *inside, *after),)

    split.defvjp(lambda stacked: (split(stacked), None), joined)
    return split(stacked)


def unstacked_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a model with the layers of its encoder as a list of layers, which `Encoder` accepts too.

    Used in inference, where a slice of stacked layers would copy the layer (7 MB for MiniLM, 5 % of the time of 1,024 tokens on
    2 cores), and in ZeRO, which gathers one layer at a time.
    """
    return with_layers(params, _separate)


def stacked_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inverse of `unstacked_layers`."""
    return with_layers(params, lambda layers: jax.tree.map(lambda *parts: jnp.stack(parts), *layers))


def with_layers(params: Mapping[str, Any], change: Callable[[LayerParams], LayerParams | list[LayerParams]]) -> dict[str, Any]:
    """Returns the parameters of a model with the layers of its encoder, and of its decoder, replaced by `change(layers)`;
    unchanged without layers."""
    stacks = {name: params[name] for name in ("encoder", "decoder") if name in params}
    return {**params, **{name: {**stack, "layers": change(stack["layers"])} for name, stack in stacks.items()}}


def _separate(stacked: LayerParams) -> list[LayerParams]:
    """Returns a tree of arrays [N, ...] as N trees of arrays [...]."""
    leaves, structure = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(structure, layer) for layer in zip(*leaves, strict=True)]


@jax.custom_vjp
def unstack(stacked: LayerParams) -> list[LayerParams]:
    """Returns a tree of arrays [N, ...] as N trees of arrays [...].

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
        """Returns the output of the last layer at `tokens.queried` alone; all of it is computed."""
        last = self(x, tokens, seed)[0]
        return last if tokens.queried is None else gather_positions(last, tokens.queried)


class Encoder(nn.Module):
    """N blocks, each applied to the output of the one before.

    The parameters have a leading axis N with and without `scan_layers`, so checkpoints do not depend on how layers are compiled.
    It also accepts the list of layers of `unstacked_layers`, over which the loop is always unrolled.
    """

    objectives: ClassVar[Mapping[str, str]] = {"both": "bert", "left_to_right": "next_token"}
    """`ModelConfig.direction` -> the objective that trains it where none is named."""
    block: ClassVar[type[nn.Module]] = Block
    """The module of a layer: (x, tokens, seed, layer, *context) -> the hidden states after it."""
    initial: ClassVar[Callable[..., LayerParams]] = staticmethod(initial_layers)
    """(key, config) -> fresh parameters of every layer, stacked."""
    config: ModelConfig

    def setup(self) -> None:
        """Declares the parameters of all layers, stacked along an axis N, or uses the given list of layers."""
        layers = layer_parameters(self, self.initial, self.config)
        self.is_unstacked = isinstance(layers, list)  # the result of `unstacked_layers`; flax makes it a tuple
        self.layers = layers
        if self.config.final_norm:
            self.final_layer_norm = Norm(self.config)

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """(output of the last layer, outputs of all layers), for all tokens. The final norm is part of the last layer. Each layer
        also reads the `context`, of a decoder the encoder's output."""
        c, tokens = self.config, tokens.reading(None)
        if c.scan_layers and not self.is_unstacked:
            last, outputs = self._scanned(x, tokens, seed, *context)
        else:
            every = self._unrolled(x, tokens, seed, *context)
            last, outputs = every[-1], jnp.stack(every)
        if not c.final_norm:
            return last, outputs
        last = self.final_layer_norm(last)
        return last, jnp.concatenate([outputs[:-1], last[None]])

    def queried(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> Float[Array, "B Q D"]:
        """Returns the output of the last layer at `tokens.queried` alone.

        All of the last layer but keys and values (5/6 of it with the paper's widths) is computed at these columns only. A loop
        over layers that is not unrolled computes all columns, since taking the last layer out of the stack would copy it.
        """
        if tokens.queried is not None and self.config.scan_layers and not self.is_unstacked:
            read = gather_positions(self._scanned(x, tokens.reading(None), seed, *context)[0], tokens.queried)
        else:
            read = self._unrolled(x, tokens, seed, *context)[-1]
        return self.final_layer_norm(read) if self.config.final_norm else read

    def _scanned(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns the output of the last layer and the outputs of all layers, those of the loop computed by `jax.lax.scan`."""
        c, kinds = self.config, layer_kinds(self.config)
        loop = loop_over(kinds)
        blocks = [self._block(tokens, seed, kind, *context) for kind in kinds]
        if loop.period == 1 and loop.repeats == c.num_layers:
            scanned = (self.layers, jnp.arange(c.num_layers, dtype=jnp.uint32))

            def one(
                x: Float[Array, "B L D"], layer: tuple[LayerParams, UInt32[Array, ""]]
            ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
                return (x := blocks[0](x, *layer)), x

            return jax.lax.scan(one, x, scanned, unroll=c.layers_per_scan_step)

        before, inside, after = split_over(self.layers, loop)
        outputs = []
        for n, params in enumerate(before):
            outputs.append(x := blocks[n](x, params, jnp.uint32(n)))
        first = jnp.arange(loop.prefix, loop.end, loop.period, dtype=jnp.uint32)

        def group(
            x: Float[Array, "B L D"], layers: tuple[list[LayerParams], UInt32[Array, ""]]
        ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
            found = []
            for n, params in enumerate(layers[0]):
                found.append(x := blocks[loop.prefix + n](x, params, layers[1] + np.uint32(n)))
            return x, jnp.stack(found)

        x, repeated = jax.lax.scan(group, x, (inside, first), unroll=-(-c.layers_per_scan_step // loop.period))
        rest = []
        for n, params in enumerate(after):
            rest.append(x := blocks[loop.end + n](x, params, jnp.uint32(loop.end + n)))
        parts = [jnp.stack(found) for found in (outputs, rest) if found]
        parts.insert(min(1, len(outputs)), repeated.reshape(-1, *x.shape))
        return x, jnp.concatenate(parts)

    def _unrolled(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> list[Float[Array, "B _ D"]]:
        """Returns the outputs of all layers; the last one reads `tokens.queried` out."""
        kinds = layer_kinds(self.config)
        blocks = {kind: self._block(tokens.reading(None), seed, kind, *context) for kind in kinds}
        last = self._block(tokens, seed, kinds[-1], *context)
        outputs = [x]
        for i, params in enumerate(self.layers if self.is_unstacked else unstack(self.layers)):
            is_last = i == self.config.num_layers - 1
            outputs.append((last if is_last else blocks[kinds[i]])(outputs[-1], params, jnp.uint32(i)))
        return outputs[1:]

    def _block(
        self, tokens: Tokens, seed: Seed | None, kind: LayerKind, *context: Any
    ) -> Callable[..., Float[Array, "B _ D"]]:
        """Returns the function (x, parameters of a layer of that kind, its number) -> the output of the layer, rematerialised as
        `ModelConfig.remat` says. It stores the attention weights of each layer where INTERMEDIATES is mutable."""
        c = self.config
        stores: Any = [INTERMEDIATES] if self.is_mutable_collection(INTERMEDIATES) else False
        if self.is_initializing():
            c = c.plain()

        def block(x: Float[Array, "B L D"], params: LayerParams, number: UInt32[Array, ""]) -> Float[Array, "B Q D"]:
            with jax.named_scope("layers"):
                layer = Layer(number, *kind)
                module: Any = self.block(c, parent=None)
                output: Any = module.apply({"params": params}, x, tokens, seed, layer, *context, mutable=stores)
            if stores:
                output, stored = output
                for attention, sown in stored[INTERMEDIATES].items():  # "attention", of a decoder also "cross_attention"
                    self.sow(INTERMEDIATES, f"{attention}_weights", *sown["weights"])
            return output

        if c.remat == "none":
            return block
        policies = jax.checkpoint_policies
        dots = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(SAVED))
        policy = dots if c.remat == "dots" else None
        return jax.checkpoint(block, policy=policy, prevent_cse=not c.scan_layers)
