"""The encoder of an LSTM translation model (CoVe; McCann et al. 2017, "Learned in Translation: Contextualized Word Vectors",
arXiv:1708.00107), and the attention decoder that trains it.

The encoder's layers are bidirectional (the paper's MT-LSTM has two), and each direction of a layer reads both directions of the
layer below. As features, the paper concatenates the word vectors with the output of the last layer
(`head.layers=embeddings_and_last`). In the paper, the word vectors are fixed GloVe vectors, which are half as wide as the
outputs. Here, word vectors are trained, and they are as wide as the outputs. Source and target share a vocabulary, its word
vectors and, unless `tied_decoder` is False, the softmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bert_jax.model.bert import Bert
from bert_jax.model.bilm import BiLstm, initial_lstm_layers
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.model.encoder import unstack
from bert_jax.model.heads.pretraining_heads import SoftmaxHead
from bert_jax.model.layers import Dropout, Seed, dropout, hash_word, layer_parameters, parameter, truncated_normal
from bert_jax.model.lstm import batch_major, carried, cell, product, time_major
from bert_jax.model.tokens import Batch, Tokens

DECODER_SEED = np.uint32(0x636F7665)
""""cove" in ASCII. It is combined with the seed of a step to make the dropout seeds of the decoder."""
UNSEEN = -1e9
"""The attention score of tokens of other texts. It is so low that the attention weights of these tokens are exactly 0 in
float32."""


class Cove(BiLstm):
    """The stack of bidirectional LSTM layers, without residual sums. Each layer reads both directions of the layer below."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "translation"}
    is_residual: ClassVar[bool] = False


def initial_decoder_layers(key: Key[Array, ""], config: ModelConfig) -> Mapping[str, Any]:
    """Initialises the parameters of all decoder layers, stacked along a leading axis "layers". The layers are left-to-right
    LSTM layers. Their cells are as wide as their outputs."""
    layers = dataclasses.replace(
        config, encoder="bilm", direction="left_to_right", num_layers=config.decoder_layers, decoder_layers=0,
        intermediate_size=config.hidden_size,
    )  # fmt: skip
    return initial_lstm_layers(key, layers)


class Affine(nn.Module):
    """The kernel [I, O] and the bias [O] of a matrix product inside a loop over time."""

    inputs: int
    outputs: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "I O"], Float[Array, " O"]]:
        """Returns the kernel and the bias."""
        init, shape = truncated_normal(self.inputs**-0.5), (self.inputs, self.outputs)
        kernel = parameter(self, "kernel", init, ("embed", None), shape, (1, 1))
        return kernel, parameter(self, "bias", nn.initializers.zeros, (None,), (self.outputs,))


class AttentionDecoder(nn.Module):
    """An LSTM over the words of the translation so far, with attention on the encoder's output H (section 3 of the paper).

        h_t = LSTM([z_(t-1); a_(t-1)], h_(t-1))
        alpha_t = softmax(H (W1 h_t + b1))
        a_t = tanh(W2 [H' alpha_t; h_t] + b2)

    z_t are word vectors. The output is a_t, "the context-adjusted hidden state", which the next step reads too. States and a_t
    are 0 at the start of each translation."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, z: Float[Array, "B L D"], target: Tokens, encoded: Float[Array, "B source D"], source: Tokens
    ) -> Float[Array, "B L D"]:
        """Returns a_t for each target token, float32. A target token attends only to source tokens with its sequence id."""
        c, d = self.config, self.config.hidden_size
        dtype = jnp.dtype(c.dtype)
        stacked = layer_parameters(self, initial_decoder_layers, c)
        layers = [
            {name: tree["kernel"][0].reshape(d, -1).astype(dtype) for name, tree in layer.items()}
            | {"bias": layer["input"]["bias"][0].reshape(-1)}
            for layer in (stacked if isinstance(stacked, list) else unstack(stacked))
        ]
        feed = parameter(self, "feed", truncated_normal(d**-0.5), ("embed", None, None), (d, 4, d), (1, 2)).reshape(d, -1)
        query, output = Affine(d, d, name="query")(), Affine(2 * d, d, name="output")()
        feed, *kernels = (kernel.astype(dtype) for kernel in (feed, query[0], output[0]))
        encoded = encoded.astype(dtype)
        ids = time_major(target.sequence_ids, 0)
        visible = (ids[:, :, None] == source.sequence_ids[None]) & (ids > 0)[:, :, None]
        words = time_major(z, 0)
        below = product(words.reshape(-1, d), layers[0]["input"]) + layers[0]["bias"][None]
        below = below.reshape(*words.shape[:2], -1)

        def step(
            state: tuple[list[tuple[Array, Array]], Array], now: tuple[Array, Array, Array]
        ) -> tuple[tuple[list[tuple[Array, Array]], Array], Array]:
            (states, fed), (gates, keep, seen) = state, now
            gates = gates + product(keep * fed, feed)
            found: list[tuple[Array, Array]] = []
            for n, (h, memory) in enumerate(states):
                if n:
                    gates = product(found[-1][0], layers[n]["input"]) + layers[n]["bias"][None]
                found.append(cell(gates + product(keep * h, layers[n]["recurrence"]), keep * memory)[:2])
            top = found[-1][0]
            asked = (product(top, kernels[0]) + query[1][None]).astype(dtype)
            scores = jnp.einsum("BD,BSD->BS", asked, encoded, preferred_element_type=jnp.float32)
            weights = jax.nn.softmax(jnp.where(seen, scores, UNSEEN)).astype(dtype)
            context = jnp.einsum("BS,BSD->BD", weights, encoded, preferred_element_type=jnp.float32)
            adjusted = jnp.tanh(product(jnp.concatenate([context, top], axis=-1), kernels[1]) + output[1][None])
            return (found, adjusted), adjusted

        zeros = jnp.zeros((z.shape[0], d))
        _, adjusted = jax.lax.scan(step, ([(zeros, zeros)] * len(layers), zeros), (below, carried(ids), visible))
        return batch_major(adjusted, 0)


class CoveTranslator(Bert):
    """The whole model of `config.encoder = "cove"`: the encoder, the decoder and its softmax."""

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns (8 N' + 7) D^2 + 2 L D + D V for each of the M words of the translation, for N' layers, attention and
        softmax."""
        width = config.hidden_size
        decoder = (8 * config.decoder_layers + 4 + 3) * width**2 + 2 * length * width
        return predictions * (decoder + width * config.vocab_size)

    def setup(self) -> None:
        """Declares the encoder, the decoder and the softmax."""
        super().setup()
        self.decoder = AttentionDecoder(self.config)
        self.lm_head = SoftmaxHead(self.config)

    def __call__(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns "logits" float32 [B, L, V], the encoder's hidden states ("last" and "hidden_states") and the decoder's output
        ("decoder_last"). `Tokens.of` and `Tokens.for_decoder` read the inputs from the batch."""
        source, target = Tokens.of(batch), Tokens.for_decoder(batch)
        encoded, hidden_states = self.encode(source, dropout_seed)
        last = self.decode(target, encoded, source, dropout_seed)
        table = self.embeddings.word_embeddings.embedding
        return {
            "logits": self.lm_head(last, table), "last": encoded, "hidden_states": hidden_states, "decoder_last": last,
        }  # fmt: skip

    def decode(
        self, target: Tokens, encoded: Float[Array, "B source D"], source: Tokens, dropout_seed: Seed | None = None
    ) -> Float[Array, "B L D"]:
        """Returns the decoder's output at every target token. Dropout is applied to the decoder's word vectors and to its
        output."""
        check_ids(self.config, input_ids=target.ids)
        seeds = [None if dropout_seed is None else hash_word((dropout_seed ^ DECODER_SEED) + np.uint32(n)) for n in (0, 1)]
        of_words, of_output = (Dropout(self.config.hidden_dropout, seed, rows=target.rows) for seed in seeds)
        z = dropout(self.embeddings(target, None), of_words)
        return dropout(self.decoder(z, target, encoded, source), of_output)
