"""Defines `Model`, which objectives use to build parameters and to compute hidden states and logits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Num, UInt32

from bert_jax.data import DECODER_INPUTS, INPUTS
from bert_jax.errors import UserError
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.bert import Bert, without_attention
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.pretraining_heads import MaskedLanguageModelHead, NextSentenceHead, Pooler, SoftmaxHead
from bert_jax.model.layers import Seed, activation, hash_word, named, random_words, truncated_normal
from bert_jax.model.pretraining import SkipGramHead, pretraining_model
from bert_jax.model.tokens import Tokens

Batch = dict[str, Num[Array, "B ..."]]
"""Name -> array of a batch."""
Params = Mapping[str, Any]
"""The parameters of a model: nested dictionaries of arrays."""
STATES, MAPS = "kept hidden states", "kept attention maps"
"""Names of what a model `keeps`. No method `outputs` of an objective uses them for its own arrays."""
Outputs = Mapping[str, Float[Array, " ..."]]
"""Name -> array of the predictions for a batch, such as "mlm_logits"."""
Boxed = dict[str, Any]
"""Parameters whose arrays are boxed with axis names, which determine their sharding."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The encoder of a run, as seen by its objective.

    Methods with a `key` return initial parameters, boxed with their axis names. Methods with an argument `params` compute with
    these parameters, a tree with the parts "embeddings" and "encoder". The argument `seed` determines the dropout masks; it is
    None in evaluation."""

    config: ModelConfig
    pairs: bool = False
    """Whether the rows hold pairs of texts, so that next sentence prediction has labels."""
    keeps: tuple[str, ...] = ()
    """What `logits` also returns, from the same encoding: STATES [S, B, L, D], the hidden states of the encoder, or these and
    MAPS [N, B, H, L, L], its attention maps."""

    @property
    def hidden_size(self) -> int:
        """D, the width of the hidden states."""
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        """V, the number of words."""
        return self.config.vocab_size

    def scaled(self, fraction: float) -> Model:
        """Returns a narrower model of the same kind. Widths and the number of heads (at least one) are scaled by `fraction`,
        and the number of layers stays the same."""
        c = self.config
        heads = max(1, round(c.num_heads * fraction))
        head_width = max(1, round(c.hidden_size * fraction / heads))
        if c.positions_kind.is_rotary:
            head_width += head_width % 2
        width = head_width * heads
        if c.kind.is_lstm:
            width += width % 2
        feed_forward = max(1, round(c.intermediate_size * fraction))
        shared = math.gcd(heads, max(1, round(c.num_key_value_heads * fraction))) if c.num_key_value_heads else 0
        config = dataclasses.replace(
            c, hidden_size=width, num_heads=heads, num_key_value_heads=shared, intermediate_size=feed_forward
        )
        return dataclasses.replace(self, config=config)

    # -------------------------------------------------------------------------------------------------------- initial parameters
    def encoder(self, key: Key[Array, ""]) -> Boxed:
        """Returns the parts "embeddings" and "encoder"."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return dict(Bert(self.config).init(key, Tokens.of(dict.fromkeys(INPUTS, ids)), method="encode")["params"])

    def decoder(self, key: Key[Array, ""]) -> Boxed:
        """Returns the parts "decoder" and "lm_head" of a model that translates."""
        ids = jnp.zeros((1, 1), jnp.int32)
        batch = dict.fromkeys((*INPUTS, *DECODER_INPUTS), ids)
        parameters = pretraining_model(self.config).init(key, batch)["params"]
        return {part: parameters[part] for part in ("decoder", "lm_head")}

    def mlm_head(self, key: Key[Array, ""]) -> Boxed:
        """Returns an MLM head. Its decoder is tied to the word embeddings if `config.tied_decoder` is set."""
        return self._head("mlm_head", MaskedLanguageModelHead, key, *self._hidden_and_table())

    def softmax(self, key: Key[Array, ""]) -> Boxed:
        """Returns the softmax layer of an LSTM language model, initialised with the random numbers of an "mlm_head"."""
        return self._head("mlm_head", SoftmaxHead, key, *self._hidden_and_table())

    def pooler(self, key: Key[Array, ""]) -> Boxed:
        """Returns the pooler, tanh(W h + b) of the hidden state of [CLS]."""
        return self._head("pooler", Pooler, key, jnp.zeros((1, 1, self.hidden_size)))

    def nsp_head(self, key: Key[Array, ""]) -> Boxed:
        """Returns the NSP head, which reads the pooler."""
        return self._head("nsp_head", NextSentenceHead, key, jnp.zeros((1, 1, self.hidden_size)))

    def discriminator(self, key: Key[Array, ""]) -> Boxed:
        """Returns ELECTRA's head for `replaced_logits`: a dense layer, the encoder's activation, and a dense layer with one
        output."""
        first, second = jax.random.split(key)
        return {
            "dense": dense(self.hidden_size, self.hidden_size, first),
            "dense_prediction": dense(self.hidden_size, 1, second),
        }

    def skip_gram_head(self, key: Key[Array, ""]) -> Boxed:
        """Returns the context vectors and the counts of the words."""
        return self._head("skip_gram_head", SkipGramHead, key, jnp.zeros((1, 1), jnp.int32))

    def _hidden_and_table(self) -> tuple[Float[Array, "B M I"], Float[Array, "V I"]]:
        width = self.config.word_width
        return jnp.zeros((1, 1, width)), jnp.zeros((self.config.padded_vocab_size, width))

    def _head(self, part: str, kind: type[nn.Module], key: Key[Array, ""], *inputs: Num[Array, " ..."]) -> Boxed:
        """Returns the parameters of a head. The initial values depend on the name `part`, so they are the same as in a larger
        model that has this head under the same name."""
        parameters = _Part(part, kind, self.config).init(key, *inputs).get("params", {})
        return dict(parameters.get(part, {}))  # a tied decoder without bias has no parameters

    # --------------------------------------------------------------------------------------------------------------- computation
    def encode(self, params: Params, batch: Batch, seed: Seed | None = None) -> Float[Array, "B L D"]:
        """Returns the output of the last layer at every token."""
        return self.hidden_states(params, batch, seed)[-1]

    def hidden_states(self, params: Params, batch: Batch, seed: Seed | None = None) -> Float[Array, "S B L D"]:
        """Returns the embeddings and the output of every layer."""
        _, states = Bert(self.config).apply({"params": _own(params)}, Tokens.of(batch), seed, method="encode")
        return cast(Array, states)

    def encode_at(
        self, params: Params, positions: Int[Array, "B Q"], batch: Batch, seed: Seed | None = None
    ) -> Float[Array, "B Q D"]:
        """Returns the output of the last layer at `positions` only, which is cheaper than at every token."""
        tokens = Tokens.of(batch).reading(positions)
        return cast(Array, Bert(self.config).apply({"params": _own(params)}, tokens, seed, method="encode_queried"))

    def mlm_logits(self, params: Params, head: Params, batch: Batch, seed: Seed | None = None) -> Float[Array, "B M V"]:
        """Returns the logits of every word at the "masked_positions" of a batch, float32. `head` holds the parameters of an
        `mlm_head`."""
        hidden = self.encode_at(params, batch["masked_positions"], batch, seed)
        table = params["embeddings"]["word_embeddings"]["embedding"]
        return cast(Array, MaskedLanguageModelHead(self.config).apply({"params": head}, hidden, table))

    def replaced_logits(self, head: Params, hidden: Float[Array, "B L D"]) -> Float[Array, "B L"]:
        """Returns the logit that each token was replaced, float32. `head` holds the parameters of a `discriminator`."""
        inner = activation(self.config.activation)(apply_dense(head["dense"], hidden))
        return apply_dense(head["dense_prediction"], inner)[..., 0]

    def logits(self, params: Params, batch: Batch, seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the logits of the heads of `pretraining_model` for this encoder, e.g. "mlm_logits" and "nsp_logits", or the
        "logits" of a translation, float32, and what the model `keeps`."""
        network = functools.partial(pretraining_model, next_sentence=self.pairs)
        return self.logits_of(network, params, batch, seed)

    def logits_of(
        self, network: Callable[[ModelConfig], Bert], params: Params, batch: Batch, seed: Seed | None = None
    ) -> dict[str, Float[Array, " ..."]]:
        """Returns the logits of a `network` around the encoder, by the network's method "logits", and what the model `keeps`."""
        outputs, kept = self._applied(network, params, batch, seed, method="logits_and_states" if self.keeps else "logits")
        if not isinstance(outputs, Mapping):
            return {"logits": outputs}
        found = {name: x for name, x in outputs.items() if name.endswith("logits")} | kept
        return found | ({STATES: outputs["hidden_states"]} if self.keeps else {})

    def states(self, params: Params, batch: Batch, seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns what the model `keeps`, from an encoding of its own."""
        (_, states), kept = self._applied(Bert, _own(params), Tokens.of(batch), seed, method="encode")
        return {STATES: states} | kept

    def _applied(
        self, network: Callable[[ModelConfig], Bert], params: Params, inputs: Batch | Tokens, seed: Seed | None, method: str
    ) -> tuple[Any, dict[str, Float[Array, "N B H L L"]]]:
        """Returns (the result of a method of `network`, the attention maps if the model `keeps` them)."""
        variables = {"params": params}
        if MAPS not in self.keeps:
            return network(self.config).apply(variables, inputs, seed, method=method), {}
        plain = dataclasses.replace(self.config, attention="plain", remat="none", scan_layers=False)
        result, stored = network(plain).apply(variables, inputs, seed, method=method, mutable=[INTERMEDIATES])
        maps = stored.get(INTERMEDIATES, {}).get("encoder", {}).get("attention_weights")
        if maps is None:  # a user's own layers may store none
            raise UserError(f"{without_attention(self.config)}, or set config.distillation.attention_weight=0")
        return result, {MAPS: jnp.stack(maps)}


class _Part(nn.Module):
    """Wraps a module to give it the same name as in a larger model."""

    subtree: str
    kind: type[nn.Module]
    config: ModelConfig

    @nn.compact
    def __call__(self, *inputs: Num[Array, " ..."]) -> Num[Array, " ..."]:
        """Returns the output of the module."""
        module: Any = self.kind(self.config, name=self.subtree)
        return cast(Array, module(*inputs))


def _own(params: Params) -> Params:
    return {part: params[part] for part in ("embeddings", "encoder") if part in params}


def unboxed(boxed: Boxed) -> Params:
    """Returns the shapes of boxed abstract parameters. Unlike `nn.unbox`, it adds no sharding constraints inside a mesh, since
    constraints apply to arrays and not to shapes."""
    shapes: Params = jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return shapes


# ------------------------------------------------------------------------------------------------------ for objectives' own parts
def dense(inputs: int, outputs: int, key: Key[Array, ""], stddev: float = 0.02) -> Boxed:
    """Returns the initial parameters of a dense layer for `apply_dense`: kernel [inputs, outputs], bias [outputs]."""
    kernel = named(truncated_normal(stddev), "embed", None, product=(1, 1))(key, (inputs, outputs))
    return {"kernel": kernel, "bias": named(nn.initializers.zeros, None)(key, (outputs,))}


def apply_dense(params: Params, x: Float[Array, "*shape D"]) -> Float[Array, "*shape O"]:
    """Computes x W + b over the last axis, float32."""
    product = jnp.einsum("...D,DO->...O", x.astype(jnp.float32), params["kernel"].astype(jnp.float32))
    return product + params["bias"].reshape((1,) * (x.ndim - 1) + (-1,))


def another_seed(seed: Seed | None, number: int) -> Seed | None:
    """Derives the seed with index `number`, for a further use of random numbers in a step. None (evaluation) stays None."""
    return None if seed is None else hash_word(seed + jnp.uint32(0x9E3779B9) * jnp.uint32(number))


def sampled(logits: Float[Array, "B *shape V"], batch: Batch, seed: Seed | None) -> Int[Array, "B *shape"]:
    """Draws a class from each softmax of `logits`; int32. The draw is a pure function of the seed and the index in the global
    batch. A step therefore draws the same classes on any number of devices, and an evaluation (`seed` is None) always draws the
    same classes."""
    words = random_words(jnp.uint32(0x73616D70) if seed is None else seed, logits.shape, rows=batch.get("rows"))
    return jnp.argmax(jax.lax.stop_gradient(logits).astype(jnp.float32) + gumbel(words), axis=-1).astype(jnp.int32)


def gumbel(words: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Converts random words to noise of the Gumbel distribution, which is always finite."""
    uniform = ((words >> 8).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-24)
    uniform = jnp.minimum(uniform, jnp.float32(1.0 - 2.0**-24))  # the largest is rounded to 1, whose noise would be infinite
    return -jnp.log(-jnp.log(uniform))


def with_predictions(batch: Batch, words: Int[Array, "B M"]) -> Int[Array, "B L"]:
    """Returns the "input_ids" of a batch with `words` at the "masked_positions". Unused slots change nothing."""
    ids = batch["input_ids"]
    beyond = ids.shape[1]
    at = jnp.where(batch["masked_targets"] >= 0, batch["masked_positions"], beyond)
    rows = jax.lax.broadcasted_iota(jnp.int32, at.shape, 0)
    return ids.at[rows, at].set(words.astype(ids.dtype), mode="drop")
