"""BERT with a task head (paper sections 4 and 5.3, Figure 4)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from bert_jax.data import INPUTS
from bert_jax.errors import UserError
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.crf import Chain, Crf, best_labels, conditional_logits, log_marginals
from bert_jax.model.features import LayerMix, chosen_layers, mean_pooling, over_words
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import EXCLUDED
from bert_jax.model.layers import Dense, Dropout, Seed, dropout, hash_word, initializer
from bert_jax.model.lstm import Lstm
from bert_jax.model.tokens import Batch, Tokens

HEAD_SEED = np.uint32(0x68656164)
""""head" in ASCII. It is combined with the step's seed, so that the head and the encoder have different dropout masks."""


class HeadLayers(nn.Module):
    """The layers of a task head. They are an optional weighted average of hidden states (`LayerMix`), an optional LSTM,
    dropout, a dense layer, and an optional CRF.

    Logits are float32. Raises UserError if `head` reads the last four layers and the model has fewer than four."""

    config: ModelConfig
    head: TaskHead

    def setup(self) -> None:
        """Declares the dense layer, and also the weighted averages of hidden states, the LSTM and the CRF if `head` has
        them."""
        c, head = self.config, self.head
        if head.layers.startswith("last_four") and c.num_layers < 4:
            raise UserError(f"head.layers={head.layers!r} needs 4 layers, but the model has {c.num_layers}; choose another value")
        if mixed := head.mixed_layers(c.num_layers):
            self.mix = LayerMix(mixed)
            if head.mix_at == "both":
                self.output_mix = LayerMix(mixed)
        if head.lstm:
            self.lstm = Lstm(head.lstm, c.target)
        if head.has_crf:
            self.crf = Crf(head.num_outputs)
        width, axis = head.input_width(c.hidden_size), None if head.lstm else "embed"
        self.dense = Dense((width,), (head.num_outputs,), (axis, None), initializer(c), jnp.dtype(jnp.float32), c.target)

    def features(
        self,
        last: Float[Array, "B L D"],
        hidden_states: Float[Array, "S B L D"],
        tokens: Tokens,
        first: Int[Array, "B L"] | None = None,
    ) -> Float[Array, "B L I"]:
        """Computes the features of every token from the results of `encode`. If `first` is given, the LSTM reads words instead
        of tokens. `first` is the position of the first piece in each token's word."""
        head = self.head
        mixed = head.mixed_layers(self.config.num_layers)
        x = self.mix(hidden_states[-mixed:]) if mixed else chosen_layers(last, hidden_states, head.layers)
        if not head.lstm:
            return x

        def lstm(x: Float[Array, "B L D"]) -> Float[Array, "B L O"]:
            if first is None:
                return self.lstm(x, tokens.sequence_ids)
            return over_words(self.lstm, x, tokens.sequence_ids, first)

        if head.mix_at == "input":
            return lstm(x)
        inputs = hidden_states[0] if head.mix_at == "output" else x
        skipped = self.output_mix(hidden_states[-mixed:]) if mixed and head.mix_at == "both" else x
        return jnp.concatenate([lstm(inputs), skipped.astype(jnp.float32)], axis=-1)

    def __call__(
        self, x: Float[Array, "B *shape I"], dropout_seed: Seed | None, rows: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "B *shape C"]:
        """Returns float32 logits for the layer's input `x`, with dropout if a seed is given. `rows` has the same meaning as in
        `Tokens`."""
        usual = self.config.hidden_dropout if self.head.has_dropout else 0.0
        rate = usual if self.head.dropout is None else self.head.dropout
        x = dropout(x.astype(jnp.float32), Dropout(rate, dropout_seed, rows=rows))
        return self.dense(x)

    def given_labels(self, scores: Float[Array, "B L C"], batch: Batch) -> Float[Array, "B L C"]:
        """Returns the `conditional_logits` of the CRF, conditioned on the labels of a training batch."""
        words = (batch["label_weights"] > 0).astype(jnp.int32)
        return conditional_logits(Chain(scores, words, batch["sequence_ids"]), self.crf(), batch["labels"])

    def predicted(
        self, scores: Float[Array, "B L C"], batch: Batch
    ) -> tuple[Int[Array, "B L"], Float[Array, "B L C"], Float[Array, "B L C"]]:
        """Returns (the labels that the CRF predicts, the logits, `log_marginals`). The labels are the argmax of the logits (see
        `best_labels`)."""
        chain, own = Chain(scores, batch["word_starts"], batch["sequence_ids"]), self.crf()
        between, start = self.head.excluded_transitions()
        allowed = own._replace(between=jnp.where(between, EXCLUDED, own.between), start=jnp.where(start, EXCLUDED, own.start))
        return *best_labels(chain, allowed), log_marginals(chain, allowed)


class BertWithHead(Bert):
    """BERT with a task head.

    Call the model with a batch of int32 arrays. To train, also pass a uint32 scalar `dropout_seed`. The batch has:

        input_ids, token_type_ids, position_ids [B, L]
        sequence_ids [B, L]: p + 1 for the tokens of text p in the row, and 0 for padding
        cls_positions [B, P], or read_positions [B, P, n] if the head reads n other tokens of each text
        word_starts [B, L], only for a CRF: 1 for the first piece of each word that has a label

    Returns a dict with:

        logits float32 [B, P, C], or [B, L, C] if the head has logits for every token
        last [B, L, D]        hidden_states [S, B, L, D]

    For multiple choice, each candidate is a text. C is 1, and `answer_scores` groups the candidates. The logits of empty slots
    are finite but meaningless. The predicted label of a word is the label with the highest logit. With a CRF, the logits of a
    word depend on the labels predicted for the other words.
    """

    head: TaskHead

    def setup(self) -> None:
        """Declares the encoder. Declares the head under the name `TaskHead.subtree`."""
        super().setup()
        setattr(self, self.head.subtree, HeadLayers(self.config, self.head))

    def __call__(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the logits and the hidden states of a batch."""
        tokens = Tokens.of(batch)
        last, hidden_states = self.encode(tokens, dropout_seed)
        features = self.features(last, hidden_states, tokens)
        seed = None if dropout_seed is None else hash_word(dropout_seed ^ HEAD_SEED)
        return {"logits": self.answer(features, batch, seed), "last": last, "hidden_states": hidden_states}

    def logits(self, batch: Batch, dropout_seed: Seed | None = None) -> Float[Array, "B _ C"]:
        """Returns only the logits, for training. If the head reads only the last layer, and only at some positions, then the
        last layer is computed only at these positions. The logits of a CRF are conditioned on the batch's labels, so that the
        cross-entropy of the logits is -log p(labels | text)."""
        part, seed = getattr(self, self.head.subtree), None if dropout_seed is None else hash_word(dropout_seed ^ HEAD_SEED)
        tokens = Tokens.of(batch)
        if self.head.has_crf:
            features = self.features(*self.encode(tokens, dropout_seed), tokens)
            return part.given_labels(part(features, seed, tokens.rows), batch)
        if not self.head.reads_last_at_positions or self._pools_tokens:
            return self(batch, dropout_seed)["logits"]
        read = self.encode_queried(tokens.reading(self.head.positions(batch)), dropout_seed)
        return part(self.head.inputs_at(read, self.pooler), seed, tokens.rows)

    def features(
        self, last: Float[Array, "B L D"], hidden_states: Float[Array, "S B L D"], tokens: Tokens
    ) -> Float[Array, "B L I"]:
        """Computes the features of every token from the results of `encode`."""
        first = self.encoder.word_ends(tokens)[0] if self.config.kind.reads_words else None
        return getattr(self, self.head.subtree).features(last, hidden_states, tokens, first)

    def answer(
        self, tokens: Float[Array, "B L I"], batch: Batch, dropout_seed: Seed | None = None
    ) -> Float[Array, "B _ C"]:
        """Computes the logits from the features of all tokens. The rows may be concatenated into a single row, because only the
        positions and `sequence_ids` of `batch` are read."""
        part = getattr(self, self.head.subtree)
        logits: Array = part(self.inputs(tokens, batch), dropout_seed, batch.get("rows"))
        return part.predicted(logits, batch)[1] if self.head.has_crf else logits

    @property
    def _pools_tokens(self) -> bool:
        """Whether the model's `classifier_pooling` averages over the tokens of a text."""
        return self.head.reads_pooler and self.config.classifier_pooling in ("mean", "late")

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch) -> Float[Array, "B _ O"]:
        """Computes the input of the head's layer from the features of all tokens."""
        head = self.head
        if head.per_token and head.has_pooler(self.config):
            return self.pooler(tokens)
        if not self._pools_tokens:
            return head.inputs(tokens, batch, self.pooler)
        ids, texts = batch["sequence_ids"], batch["cls_positions"].shape[1]
        if self.config.classifier_pooling == "mean":
            return self.pooler(mean_pooling(tokens, ids, texts))
        return mean_pooling(self.pooler(tokens), ids, texts)  # the head is linear, so this is the mean of the logits

    def tags(self, tokens: Float[Array, "B L I"], batch: Batch) -> tuple[Int[Array, "B L"], Float[Array, "B L C"]]:
        """Computes (the predicted label of each token, the logits of each token) from the features of all tokens. The softmax
        of the logits is the probability of each label. With a CRF, the labels are the best label sequence, and the logits are
        log marginal probabilities. Labels and logits of a CRF are meaningful only at words."""
        part = getattr(self, self.head.subtree)
        logits: Array = part(self.inputs(tokens, batch), None)
        if not self.head.has_crf:
            return logits.argmax(-1).astype(jnp.int32), logits
        labels, _, marginals = part.predicted(logits, batch)
        return labels, marginals


def initial_label_parameters(config: ModelConfig, head: TaskHead, key: Key[Array, ""]) -> dict[str, Any]:
    """Returns the initial float32 parameters, boxed with their logical axis names. They have no pooler if the head does not
    read it."""
    ids = jnp.zeros((1, 1), jnp.int32)
    read_positions = jnp.zeros((1, 1, head.layout.read_positions), jnp.int32)
    batch = dict.fromkeys((*INPUTS, "cls_positions", "word_starts"), ids) | {"read_positions": read_positions}
    return BertWithHead(config, head).init(key, batch)["params"]
