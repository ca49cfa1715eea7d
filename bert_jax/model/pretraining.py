"""BERT and its predecessors with their pretraining heads, and functions that initialise and count the parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int, Key, PyTree

from bert_jax.data import DECODER_INPUTS, INPUTS
from bert_jax.interface.named import load_built_in
from bert_jax.interface.words import counted
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embedding
from bert_jax.model.heads.pretraining_heads import MaskedLanguageModelHead, NextSentenceHead, SoftmaxHead
from bert_jax.model.layers import Dropout, Seed, dropout, gather_positions, hash_word, parameter
from bert_jax.model.tokens import Batch, Tokens

HEAD_INPUTS = ("masked_positions", "cls_positions")
"""The batch arrays that the heads read, int32 [B, M] and [B, P]."""


class BertForPreTraining(Bert):
    """The encoder, the pooler, and the heads of masked language modelling (MLM) and next sentence prediction (NSP).

    If `next_sentence` is False, rows are not pairs of texts. Such rows cannot train a pooler and an NSP head, so the model has
    neither.

    Reads the batch arrays INPUTS and HEAD_INPUTS. Training also passes a `dropout_seed`. Returns a dict:

        mlm_logits float32 [B, M, V]        nsp_logits float32 [B, P, 2]        pooled [B, P, D]  (last two: if `next_sentence`)
        last [B, L, D]                      hidden_states [S, B, L, D]: the embeddings, then the output of every layer

    XLA removes entries that are not read, so it costs nothing to return all entries. Outside jit, raises UserError for ids
    outside their tables. There is no check inside jit, so callers of compiled functions call `check_ids` first.
    """

    next_sentence: bool = True

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns M (D^2 + D V) for an MLM head with a dense layer on M positions."""
        dense = config.hidden_size**2 if config.mlm_head == "bert" else 0
        return predictions * (dense + config.hidden_size * config.vocab_size)

    def setup(self) -> None:
        """Declares the encoder and the two heads."""
        super().setup()
        self.mlm_head = MaskedLanguageModelHead(self.config)
        self.nsp_head = NextSentenceHead(self.config)

    def __call__(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the logits of both objectives, and the hidden states."""
        last, hidden_states = self.encode(Tokens.of(batch), dropout_seed)
        states = self.predicting(Tokens.of(batch), dropout_seed) if self.config.kind.reads_words else last
        logits = self.masked_logits(states, batch["masked_positions"])
        outputs = {"mlm_logits": logits, "last": last, "hidden_states": hidden_states}
        if not self.next_sentence:
            return outputs
        pooled = self.pool(last, batch["cls_positions"])
        return outputs | {"nsp_logits": self.nsp_head(pooled), "pooled": pooled}

    def logits(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns only the logits, for training. The last layer is computed only at the positions that a head reads.

        mlm_logits float32 [B, M, V]; nsp_logits float32 [B, P, 2].
        """
        masked_positions, cls_positions = batch["masked_positions"], batch["cls_positions"]
        table, tokens = self.embeddings.word_embeddings, Tokens.of(batch)
        if not self.next_sentence:
            read = self.encode_queried(tokens.reading(masked_positions), dropout_seed)
            return {"mlm_logits": self.mlm_head(read, table.embedding)}
        positions = whole_tiles(jnp.concatenate([masked_positions, cls_positions], axis=1), self.config.target.platform)
        read, predicted = self.encode_queried(tokens.reading(positions), dropout_seed), masked_positions.shape[1]
        masked, cls, _ = jnp.split(read, [predicted, predicted + cls_positions.shape[1]], axis=1)
        return {
            "mlm_logits": self.mlm_head(masked, table.embedding),
            "nsp_logits": self.nsp_head(self.pooler(cls)),
        }

    def predicting(self, tokens: Tokens, dropout_seed: Seed | None = None) -> Float[Array, "B L D"]:
        """Returns the states from which words are predicted, which are the output of the last layer."""
        return self.encode(tokens, dropout_seed)[0]

    def masked_logits(self, last: Float[Array, "B L D"], masked_positions: Int[Array, "B M"]) -> Float[Array, "B M V"]:
        """Returns the MLM logits at the given positions, float32, from the states of `predicting`."""
        return self.mlm_head(gather_positions(last, masked_positions), self.embeddings.word_embeddings.embedding)


SOFTMAX_SEED = np.uint32(0x736F6674)
""""soft" in ASCII. It is combined with the seed of a step to make the seed of the dropout before the softmax."""


class BiLstmForPreTraining(BertForPreTraining):
    """A biLM with one softmax over words for both directions, or a left-to-right LSTM with a softmax."""

    word_head: ClassVar[str] = "softmax"

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns M R W V for the softmax, with R directions of width W."""
        directions = config.hidden_size // config.direction_width
        return directions * predictions * config.word_width * config.vocab_size

    def setup(self) -> None:
        """Declares the layers and the softmax."""
        super().setup()
        self.softmax = SoftmaxHead(self.config)

    def logits(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns "mlm_logits", float32 [B, M, V]. They are the forward LSTM's logits of the token after each of
        "masked_positions". A biLM also returns "backward_logits" [B, M, V], the backward LSTM's logits of the same tokens.

        The backward logits of the last token of a text are meaningless.
        """
        tokens = Tokens.of(batch)
        last, positions = self.predicting(tokens, dropout_seed), batch["masked_positions"]
        seed = None if dropout_seed is None else hash_word(dropout_seed ^ SOFTMAX_SEED)
        read = gather_positions(self._half(last, 0), positions)
        if self.config.direction == "both":
            from bert_jax.model.bilm import backward_positions  # not needed by a Transformer

            after, _ = backward_positions(positions, tokens.sequence_ids)
            read = jnp.concatenate([read, gather_positions(self._half(last, 1), after)], axis=1)
        read = dropout(read, Dropout(self.config.hidden_dropout, seed, rows=tokens.rows))
        if self.config.direction != "both":
            return {"mlm_logits": self.softmax(read, self._table())}
        # The softmax is computed separately for each direction. If the logits were halves of one array, each gradient would be
        # padded to the size of the whole array (42 MB for 32 rows of 20 predictions).
        forward, backward = (self.softmax(half, self._table()) for half in jnp.split(read, 2, axis=1))
        return {"mlm_logits": forward, "backward_logits": backward}

    def logits_and_states(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the `logits` and the "hidden_states". The layers are called twice; their forward passes are the same program,
        which XLA merges."""
        return self.logits(batch, dropout_seed) | {"hidden_states": self.encode(Tokens.of(batch), dropout_seed)[1]}

    def predicting(self, tokens: Tokens, dropout_seed: Seed | None = None) -> Float[Array, "B L D"]:
        """Returns the output of the last layer at every token. In Flair, this output differs from the hidden states, which are
        taken at the ends of words."""
        states: Array = self.encoder.states(self._embed(tokens, dropout_seed), tokens, dropout_seed)[0]
        return states

    def masked_logits(self, last: Float[Array, "B L D"], masked_positions: Int[Array, "B M"]) -> Float[Array, "B M V"]:
        """Returns the log-probabilities of the tokens at the given positions, averaged over both directions, float32. Neither
        direction has read the token that it predicts. If the model is a left-to-right LSTM, returns the logits of the token
        after each position."""
        table = self._table()
        if self.config.direction != "both":
            return self.softmax(gather_positions(last, masked_positions), table)
        ends = jnp.maximum(masked_positions - 1, 0), jnp.minimum(masked_positions + 1, last.shape[1] - 1)
        logits = (self.softmax(gather_positions(self._half(last, n), at), table) for n, at in enumerate(ends))
        forward, backward = (jax.nn.log_softmax(x, axis=-1) for x in logits)
        return (forward + backward) / 2

    def _table(self) -> Float[Array, "V I"] | None:
        return None if self.config.character_cnn else self.embeddings.word_embeddings.embedding

    def _half(self, x: Float[Array, "B L D"], direction: int) -> Float[Array, "B L I"]:
        w = self.config.word_width
        return x[..., direction * w : (direction + 1) * w]


class StaticForPreTraining(Bert):
    """Word vectors with the context vectors of skip-gram (`objectives/skip_gram.py`)."""

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns M D (L + negatives), since each of the M words is scored with the L tokens and the negatives of its row.
        Skip-gram only uses the scores with tokens in the window."""
        return predictions * config.hidden_size * (length + negatives)

    def setup(self) -> None:
        """Declares both tables."""
        super().setup()
        self.skip_gram_head = SkipGramHead(self.config)

    def __call__(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the word vectors and the context vectors."""
        last, hidden_states = self.encode(Tokens.of(batch), dropout_seed)
        return {"last": last, "hidden_states": hidden_states, "contexts": self.skip_gram_head(batch["input_ids"])}


class SkipGramHead(nn.Module):
    """The context vector of each word, and the count of each word in the corpus."""

    config: ModelConfig

    @nn.compact
    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Returns the context vectors of `ids`. Context vectors start at zero, as in word2vec. Counts are 1 until they are set
        from a corpus."""
        c = self.config
        parameter(self, "counts", nn.initializers.ones, (None,), (c.padded_vocab_size,))
        zeros = nn.initializers.zeros
        return Embedding(c.padded_vocab_size, c.hidden_size, zeros, ("vocab", "embed"), name="context_embeddings")(ids)


def pretraining_class(config: ModelConfig) -> type[Bert]:
    """Returns the class of the model of `config` with its pretraining heads."""
    found: type[Bert] = load_built_in(config.kind.pretraining)
    return found


def word_head(config: ModelConfig) -> str:
    """Returns the part of the parameters that predicts the words of a text, e.g. "mlm_head"."""
    return pretraining_class(config).word_head


def pretraining_model(config: ModelConfig, *, next_sentence: bool = True) -> Bert:
    """Returns the model of `config` with its pretraining heads."""
    kind = pretraining_class(config)
    return kind(config, next_sentence) if issubclass(kind, BertForPreTraining) else kind(config)


def whole_tiles(columns: Int[Array, "B M"], platform: str, fill: int = 0) -> Int[Array, "B Q"]:
    """Pads `columns` with `fill` to a multiple of 8, the number of rows in a TPU tile. On other platforms, returns `columns`
    unchanged. The columns are the positions that a head reads, or the targets at these positions.

    With the padding, the reshape of [B, Q, D] to [R, D] is free. Without the padding, the reshape is a copy (77 rows, for
    example, are stored as 80). This costs passes over the logits (0.5 ms each for BERT-Large) and minutes of compilation."""
    missing = -columns.shape[1] % 8 if platform == "tpu" else 0
    return jnp.pad(columns, ((0, 0), (0, missing)), constant_values=fill)


def initial_parameters(config: ModelConfig, key: Key[Array, ""], *, next_sentence: bool = True) -> dict[str, Any]:
    """Returns random initial parameters, float32, boxed with their logical axis names (`flax.linen.unbox` removes the boxes).

    If `next_sentence` is False, there is no "pooler" and no "nsp_head". The other parameters have the same values. The
    "mlm_head" is empty if it only consists of a tied decoder without bias.
    """
    ids = jnp.zeros((1, 1), jnp.int32)
    batch = dict.fromkeys((*INPUTS, *DECODER_INPUTS, *HEAD_INPUTS), ids)
    parameters: dict[str, Any] = pretraining_model(config, next_sentence=next_sentence).init(key, batch)["params"]
    return ({"mlm_head": {}} if pretraining_class(config) is BertForPreTraining else {}) | parameters


def abstract_parameters(config: ModelConfig, *, next_sentence: bool = True) -> dict[str, Any]:
    """Returns the boxed shapes of `initial_parameters` without making arrays."""
    return jax.tree.map(lambda shape: shape, _abstract_parameters(config, next_sentence))  # a copy that the caller may change


@functools.lru_cache(maxsize=8)
def _abstract_parameters(config: ModelConfig, next_sentence: bool) -> dict[str, Any]:
    """Traces each model only once. A run needs the shapes six times, and each trace would take 0.2 s."""
    return jax.eval_shape(lambda: initial_parameters(config, jax.random.key(0), next_sentence=next_sentence))


NEVER_TRAINED = (
    "embeddings/characters/symbols", "encoder/word_starts", "skip_gram_head/counts", "lm_head/final_logits_bias",
)  # fmt: skip
"""The paths of tables that are stored with the parameters but never trained."""


def with_fixed_tables(drawn: PyTree[np.ndarray], own: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
    """Returns the random parameters `drawn`, but with the NEVER_TRAINED tables of the model's `own` parameters. These tables
    describe the words of the model's vocabulary, for example their spelling and their frequency, so they cannot be drawn at
    random."""
    random, known = (flatten_dict(tree, keep_empty_nodes=True, sep="/") for tree in (drawn, own))
    return unflatten_dict(
        {path: known[path] if path in NEVER_TRAINED and path in known else x for path, x in random.items()}, sep="/"
    )


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """The number of parameters of a model."""

    trained: int
    fixed: int = 0
    """Parameters in NEVER_TRAINED tables, including rows of padding."""
    padded: int = 0
    """Parameters in rows that pad the vocabulary to `vocab_multiple`, which are never used."""

    @property
    def in_words(self) -> str:
        """A description, e.g. "1,234 parameters" or "1,234 parameters, 56 fixed numbers, 7 in rows of padding"."""
        words = [counted(self.trained, "parameter")]
        words += [f"{counted(self.fixed, 'fixed number')}"] if self.fixed else []
        words += [f"{self.padded:,} in rows of padding"] if self.padded else []
        return ", ".join(words)


def count_parameters(config: ModelConfig, parts: Mapping[str, Any] | None = None) -> ParameterCounts:
    """Counts the parameters of the boxed `parts` of a model. By default, these are the embeddings, the encoder and the pooler
    (109,482,240 trained parameters for Base) and, in a translation model, the decoder and its softmax."""
    if parts is None:
        every = abstract_parameters(config)
        parts = {name: every[name] for name in ("embeddings", "encoder", "pooler", "decoder", "lm_head") if name in every}
    trained = fixed = padded = 0
    for path, leaf in flatten_dict(parts, sep="/").items():
        shape = nn.unbox(leaf).shape
        size = int(np.prod(shape))
        words = config.decoder_config if config.decoder_vocab_size and path.startswith(("decoder/", "lm_head/")) else config
        rows = words.padded_vocab_size - words.vocab_size if "vocab" in nn.get_partition_spec(leaf) else 0
        padding = size // words.padded_vocab_size * rows
        if path.startswith("encoder/layers/attention_layer_norm/") and not config.first_attention_norm:
            size -= size // config.num_layers
        if path in NEVER_TRAINED:
            fixed += size
        else:
            trained, padded = trained + size - padding, padded + padding
    return ParameterCounts(trained, fixed, padded)
