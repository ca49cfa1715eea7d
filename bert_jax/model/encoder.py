"""The Transformer encoder, with parameters stacked over layers. `Architecture` documents the variants of the block.

Parameters have a leading axis N. This is possible for any `layer_types`, since the type of attention does not change the shapes
of parameters. If the first layer has no norm before its attention (`first_attention_norm`), the stacked array still has a row
for this norm, but the row is never read, counted or exported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from bert_jax.errors import UserError
from bert_jax.model.attention import CACHE, INTERMEDIATES, SelfAttention
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import SAVED
from bert_jax.model.layers import (
    Dense,
    Norm,
    PreNorm,
    ResidualNorm,
    Seed,
    dropout,
    gather_positions,
    hash_word,
    initializer,
    layer_parameters,
    same_shape,
)
from bert_jax.model.tokens import Layer, Tokens

if TYPE_CHECKING:
    from bert_jax.data.tokenizers.tokenizer import Tokenizer

ACTIVATION_AXES = ("batch", "length", "embed")
LayerParams = Mapping[str, Any]
"""A nested dictionary of the arrays of one layer, or of all layers stacked along a leading axis N."""


class FeedForward(nn.Module):
    """Two Dense layers, of widths F and D, with an activation in between. With a `gate`, the first layer has two halves. One
    half is activated and then multiplied by the other half."""

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


def attention_products(config: ModelConfig) -> int:
    """Returns the multiply-adds of the projections of attention per token."""
    return 2 * config.hidden_size * (config.hidden_size + config.key_value_heads * config.head_width)


def feed_forward_products(config: ModelConfig) -> int:
    """Returns the multiply-adds of the feed-forward per token."""
    return (2 if config.gate == "none" else 3) * config.hidden_size * config.intermediate_size


class Block(nn.Module):
    """One Transformer layer. With norm_placement=post, as in the paper, a norm follows each residual sum. With "pre", norms
    precede attention and the feed-forward.

    Outputs are computed only for the tokens in `Tokens.queried`, but all tokens are keys and values.
    """

    attention: ClassVar[type[nn.Module]] = SelfAttention
    """The class of the attention, with the arguments and the result of `SelfAttention`."""
    feed_forward: ClassVar[type[nn.Module]] = FeedForward
    """The class of the feed-forward, which maps [B, Q, D] to [B, Q, D]."""
    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B _ D"], tokens: Tokens, seed: Seed | None, layer: Layer
    ) -> Float[Array, "B Q D"]:
        """Returns the hidden states after the layer. Dropout seeds are derived from the index of the layer."""
        c = self.config
        seeds = layer_seeds(seed, layer, 3)
        rate = c.hidden_dropout if c.attention_output_dropout is None else c.attention_output_dropout
        of_attention, of_feed_forward = tokens.dropout(rate, seeds[1]), tokens.dropout(c.hidden_dropout, seeds[2])
        attention, feed_forward = self.attention(c, name="attention"), self.feed_forward(c, name="feed_forward")
        attention_norm, feed_forward_norm = "attention_layer_norm", "feed_forward_layer_norm"

        def read_out(x: Float[Array, "B _ D"]) -> Float[Array, "B Q D"]:
            return x if tokens.queried is None or self.is_mutable_collection(CACHE) else gather_positions(x, tokens.queried)

        what = f"the attention of config.model.encoder={c.encoder}"
        if c.norm_placement == "post":
            y = attention(x, tokens, seeds[0], layer)
            x = read_out(x)
            x = ResidualNorm(c, name=attention_norm)(x, same_shape(what, x, y), of_attention)
            x = ResidualNorm(c, name=feed_forward_norm)(x, feed_forward(x).astype(x.dtype), of_feed_forward)
        else:
            x, normed = PreNorm(c, name=attention_norm)(x, None, of_attention) if layer.has_attention_norm else (x, x)
            y = attention(normed, tokens, seeds[0], layer)
            x = read_out(x)
            x, normed = PreNorm(c, name=feed_forward_norm)(x, same_shape(what, x, y), of_attention)
            x = x + dropout(feed_forward(normed).astype(x.dtype), of_feed_forward)
        return nn.with_logical_constraint(x, ACTIVATION_AXES)


def layer_seeds(seed: Seed | None, layer: Layer, count: int) -> list[Seed | None]:
    """Returns `count` seeds for the dropouts of a layer. In evaluation, the seeds are None."""
    return [None if seed is None else hash_word(seed + layer.number * np.uint32(8) + np.uint32(i + 1)) for i in range(count)]


@functools.cache
def initial_layers(block: type[nn.Module], decodes: bool) -> Callable[[Key[Array, ""], ModelConfig], LayerParams]:
    """Returns a function (key, config) -> initial parameters of layers of the class `block`. See `_stacked`."""
    return lambda key, config: _stacked(block(config.for_initial_parameters(), parent=None), key, decodes=decodes)


@functools.partial(jax.jit, static_argnames=("block", "decodes"))
def _stacked(block: nn.Module, key: Key[Array, ""], *, decodes: bool) -> LayerParams:
    """Returns initial parameters of all layers of `block.config`, boxed with their axis names and stacked along a leading axis
    "layers". If the block `decodes`, it also has attention on an encoder's output.

    A run needs the parameters or their shapes four times, with different dropout or for different devices. Because of jit, JAX
    traces the layers only once.
    """
    config = block.config

    def initial(key: Key[Array, ""]) -> LayerParams:
        x, ids = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
        tokens = Tokens(ids, ids, ids, ids)
        params: LayerParams = block.init(key, x, tokens, None, Layer(jnp.uint32(0)), *(x, tokens) * decodes)["params"]
        return params

    boxed = jax.vmap(initial)(jax.random.split(key, config.num_layers))
    return nn.meta.add_axis(boxed, 0, {nn.PARTITION_NAME: "layers"})


LayerKind = tuple[str, bool]
"""(type of a layer's attention, whether a norm precedes the attention). These are the last two fields of `Layer`."""


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """Returns the kind of each layer."""
    return [(config.layer_type(n), n > 0 or config.first_attention_norm) for n in range(config.num_layers)]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop over a repeating pattern of layers. After the first `prefix` layers, a pattern of `period` layers is repeated
    `repeats` times."""

    prefix: int
    period: int
    repeats: int

    @property
    def end(self) -> int:
        """The index of the first layer after the loop."""
        return self.prefix + self.period * self.repeats


def loop_over(kinds: Sequence[LayerKind]) -> Loop:
    """Returns the loop with which the fewest layers are compiled, counting those inside and outside the loop. If all layers are
    equal, the period is 1. The 22 layers of ModernBERT-base become 1 + 7 x 3, and the 28 layers of ModernBERT-large 1 + 9 x
    3."""
    best = Loop(0, 1, 1)
    for period in range(1, min(len(kinds), MOST_UNLIKE) + 1):
        start = 0
        while start < len(kinds):  # each range of layers that repeat with this period
            end = start
            while end + period < len(kinds) and kinds[end] == kinds[end + period]:
                end += 1
            found = Loop(start, period, (end - start) // period + 1)
            if found.period * (found.repeats - 1) > best.period * (best.repeats - 1):
                best = found
            start = end + 1
    return best


MOST_UNLIKE = 64
"""The longest period that `loop_over` tries."""


def split_over(stacked: LayerParams, loop: Loop) -> tuple[list[LayerParams], list[LayerParams], list[LayerParams]]:
    """Returns the parameters of the layers (before the loop, in the loop, after the loop). The parameters in the loop are one
    tree for each layer of the period, stacked over the repeats. The gradient is a single concatenation, as in `unstack`."""
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
    """Returns a model's parameters with the layers of the encoder and of the decoder as lists, which `Encoder` also accepts.

    Inference uses lists because slicing the stack would copy each layer (7 MB in MiniLM, which would take 5 % of the time for
    1,024 tokens on 2 cores). ZeRO uses lists to gather one layer at a time.
    """
    return with_layers(params, _separate)


def stacked_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `unstacked_layers`."""
    return with_layers(params, lambda layers: jax.tree.map(lambda *parts: jnp.stack(parts), *layers))


def with_layers(params: Mapping[str, Any], change: Callable[[LayerParams], LayerParams | list[LayerParams]]) -> dict[str, Any]:
    """Returns the parameters of a model in which `change` has been applied to the layers of the encoder and of the decoder. The
    parameters of a model without layers are returned unchanged."""
    stacks = {name: params[name] for name in ("encoder", "decoder") if "layers" in params.get(name, {})}
    return {**params, **{name: {**stack, "layers": change(stack["layers"])} for name, stack in stacks.items()}}


def _separate(stacked: LayerParams) -> list[LayerParams]:
    """Returns a tree of arrays [N, ...] as N trees of arrays [...]."""
    leaves, structure = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(structure, layer) for layer in zip(*leaves, strict=True)]


@jax.custom_vjp
def unstack(stacked: LayerParams) -> list[LayerParams]:
    """Returns a tree of arrays [N, ...] as N trees of arrays [...].

    The gradient is a single concatenation. The gradient of N slices would be a sum of N arrays, each of the size of the whole
    stack.
    """
    return _separate(stacked)


unstack.defvjp(
    lambda stacked: (unstack(stacked), None), lambda _, layers: (jax.tree.map(lambda *parts: jnp.stack(parts), *layers),)
)


class Stack(nn.Module):
    """The base class of encoders. It has the facts that are not in the encoder's line in `ENCODERS`; the defaults are BERT's."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "bert", "left_to_right": "next_token"}
    """`ModelConfig.direction` -> the default objective. A direction that is not listed cannot be trained."""
    applies_positions: ClassVar[bool] = True
    """Whether the layers apply the methods `queries_and_keys` and `scores` of the positions (`model/positions.py`)."""
    config: ModelConfig

    @classmethod
    def products(cls, config: ModelConfig, length: int) -> int | None:
        """Returns the multiply-adds in the forward pass of a row of `length` tokens. None: they are counted in the program."""
        return None

    @classmethod
    def vocabulary_tables(cls, tokenizer: Tokenizer | None, rows: int) -> Mapping[str, np.ndarray]:
        """Returns name -> array of `rows` rows for the parameters that describe the pieces of the vocabulary."""
        return {}


class WholeRows(Stack):
    """The base class of encoders that are not Transformers. They compute the last layer at all positions.

    `config.model.encoder=FILE.py:Mine` names a user's own encoder:

        class Mine(WholeRows):
            @nn.compact
            def __call__(self, x, tokens, seed):            # x: the embeddings, [B, L, D]; the seed is None in evaluation
                outputs = []
                for n in range(self.config.num_layers):
                    x = x + ...                             # layers of `model/layers.py`, which name the axes of parameters
                    outputs.append(x)
                return x, jnp.stack(outputs)                # the outputs of the last and of all layers [N, B, L, D]

    Several texts may share a row. `tokens.sequence_ids` is different for each text of a row, and 0 at padding. The name
    "layers" is reserved for parameters that are stacked over layers, as in `Encoder`.

    With direction=left_to_right, the output at a token must not depend on later tokens. A class that ensures this declares it:
    `objectives = {"both": "bert", "left_to_right": "next_token"}`. A class that applies the methods of `make_positions(config)`
    to its queries, keys or scores declares `applies_positions = True`.

    A Transformer with other blocks inherits from `Encoder` instead and names the class of its blocks. The blocks in this
    example have another feed-forward:

        class MyBlock(Block):
            feed_forward = Experts                          # a Flax module: [B, Q, D] -> [B, Q, D]

        class Mine(Encoder):
            block = MyBlock

    `attention` of a block is a class with the arguments and the result of `SelfAttention`. A block with its own `__call__`, or
    an `Encoder` with its own `__call__`, returns all tokens. With any of these three, an encoder declares its `objectives` for
    direction=left_to_right.
    """

    objectives: ClassVar[Mapping[str, str]] = {"both": "bert"}
    applies_positions: ClassVar[bool] = False

    def queried(self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None) -> Float[Array, "B Q D"]:
        """Computes the whole last layer and returns its output at `tokens.queried`."""
        last = self(x, tokens.reading(None), seed)[0]
        return last if tokens.queried is None else gather_positions(last, tokens.queried)


class Encoder(Stack):
    """A stack of N Transformer blocks.

    Parameters have a leading axis N with and without `scan_layers`, so checkpoints do not depend on how layers are compiled. A
    list of layers (`unstacked_layers`) is also accepted. The loop over a list is always unrolled.
    """

    block: ClassVar[type[nn.Module]] = Block
    """The class of a layer's module, which maps (x, tokens, seed, layer, *context) to the hidden states after the layer."""
    decodes: ClassVar[bool] = False
    """Whether layers also read an encoder's output."""

    @classmethod
    def products(cls, config: ModelConfig, length: int) -> int | None:
        """Returns L N (4 D^2 + 2 D F) for the projections and 2 L^2 N D for attention, for a row of L tokens.

        A gated feed-forward layer has 3 D F instead of 2 D F, and shared key and value heads have fewer columns. In a sliding
        layer, only the keys in the window of a token are counted (129 for ModernBERT), even if the program computes more."""
        near = min(length, 2 * config.sliding_radius + 1)
        seen = sum(near if config.layer_type(n) == "sliding" else length for n in range(config.num_layers))
        of_layer = attention_products(config) + feed_forward_products(config)
        return length * (config.num_layers * of_layer + 2 * seen * config.hidden_size)

    def setup(self) -> None:
        """Declares the stacked parameters of all layers, or uses the given list of layers."""
        layers = layer_parameters(self, initial_layers(self.block, self.decodes), self.config)  # type: ignore[arg-type]
        self.is_unstacked = isinstance(layers, list)  # `unstacked_layers` returns a list; flax stores it as a tuple
        self.layers = layers
        if self.config.final_norm:
            self.final_layer_norm = Norm(self.config)

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (output of the last layer, outputs of all layers) for all tokens. The final norm is part of the last layer.
        Each layer also reads `context`. In a decoder, this is the encoder's output and its tokens."""
        c, tokens = self.config, tokens.reading(None)
        if self.is_initializing():  # `setup` has made the parameters of the layers
            last, outputs = x, jnp.broadcast_to(x, (c.num_layers, *x.shape))
        elif c.scan_layers and not self.is_unstacked:
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
        """Returns the output of the last layer at `tokens.queried` only.

        Apart from keys and values, the last layer is computed at these columns only. With the paper's widths, this saves up to
        5/6 of the layer's arithmetic. A scan computes all columns, since taking the last layer out of the stack would copy its
        parameters. So does a subclass that overrides `__call__` but not this method, and a class of blocks with its own
        `__call__`, which may ignore `tokens.queried`.
        """
        own: Any = type(self)
        if own.__call__ is not Encoder.__call__ and own.queried is Encoder.queried:
            last = self(x, tokens.reading(None), seed, *context)[0]
            return last if tokens.queried is None else gather_positions(last, tokens.queried)
        if self.is_initializing():
            read = x if tokens.queried is None else gather_positions(x, tokens.queried)
        elif tokens.queried is not None and self.config.scan_layers and not self.is_unstacked:
            read = gather_positions(self._scanned(x, tokens.reading(None), seed, *context)[0], tokens.queried)
        else:
            read = self._unrolled(x, tokens, seed, *context)[-1]
        return self.final_layer_norm(read) if self.config.final_norm else read

    def _scanned(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None, *context: Any
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (output of the last layer, outputs of all layers), with the loop computed by `jax.lax.scan`."""
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
        """Returns the outputs of all layers. The output of the last layer is returned at `tokens.queried` only."""
        kinds, selects = layer_kinds(self.config), self.block.__call__ is Block.__call__
        blocks = {kind: self._block(tokens.reading(None), seed, kind, *context) for kind in kinds}
        last = self._block(tokens, seed, kinds[-1], *context) if selects else blocks[kinds[-1]]
        outputs = [x]
        for i, params in enumerate(self.layers if self.is_unstacked else unstack(self.layers)):
            is_last = i == self.config.num_layers - 1
            outputs.append((last if is_last else blocks[kinds[i]])(outputs[-1], params, jnp.uint32(i)))
        if not selects and tokens.queried is not None:
            outputs[-1] = gather_positions(outputs[-1], tokens.queried)
        return outputs[1:]

    def _block(
        self, tokens: Tokens, seed: Seed | None, kind: LayerKind, *context: Any
    ) -> Callable[..., Float[Array, "B _ D"]]:
        """Returns a function (x, layer parameters, layer index) -> output of the layer, with remat according to
        `ModelConfig.remat`. If INTERMEDIATES is mutable, the function stores what each module of the layer, such as
        "attention", sows as "weights". Raises UserError for the weights of an own module if the layers are recomputed or run in
        a scan, since they would not be valid outside the layer."""
        c = self.config
        stores: Any = [INTERMEDIATES] if self.is_mutable_collection(INTERMEDIATES) else False
        is_traced = c.remat != "none" or (c.scan_layers and not self.is_unstacked)

        def block(x: Float[Array, "B L D"], params: LayerParams, number: UInt32[Array, ""]) -> Float[Array, "B Q D"]:
            with jax.named_scope("layers"):
                layer = Layer(number, *kind)
                module: Any = self.block(c, parent=None)
                output: Any = module.apply({"params": params}, x, tokens, seed, layer, *context, mutable=stores)
            if stores:
                output, stored = output
                for name, sown in stored.get(INTERMEDIATES, {}).items():  # "attention" and, in a decoder, "cross_attention"
                    if isinstance(sown, Mapping) and "weights" in sown:  # an own block may store other arrays
                        if is_traced and name not in ("attention", "cross_attention"):
                            raise UserError(
                                f"the weights that {name} stores cannot be read with model.scan_layers={c.scan_layers} and "
                                f"model.remat={c.remat}; set config.model.scan_layers=false and config.model.remat=none"
                            )
                        self.sow(INTERMEDIATES, f"{name}_weights", *sown["weights"])
            return output.astype(x.dtype)

        if c.remat == "none":
            return block
        policies = jax.checkpoint_policies
        dots = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(SAVED))
        policy = dots if c.remat == "dots" else None
        return jax.checkpoint(block, policy=policy, prevent_cse=not c.scan_layers)
