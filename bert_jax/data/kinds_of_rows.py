"""The kinds of rows: which arrays a pretraining batch has, and how they are made from a corpus.

    Rows            what every kind of rows has
      TextRows      rows of the texts [CLS] A [SEP] B [SEP], some of whose tokens are predicted
        Masked      tokens are masked and predicted
        Next        the next tokens are predicted
          Centres   as Next, but without targets
      PairRows      rows of a text for an encoder and of a text for a decoder
        Translated  the texts of a parallel corpus and their translations

An objective names its kind in `Objective.rows`. It is a name of `data.ROWS`, or a class in the user's own file that inherits from
one of these classes. All other code reads the facts and calls the methods of `ExampleConfig.kind`."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import numpy as np
from jaxtyping import Bool, Int, Int64, Integer, UInt16

from bert_jax.data import DECODER_INPUTS, INPUTS
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.masking import MaskingTables
from bert_jax.data.plan import EpochPlan, Pairs, document_spans, translations
from bert_jax.data.rows import Batch, Texts, assemble_pairs, assemble_texts, text_widths, token_spans
from bert_jax.errors import UserError

Side: TypeAlias = tuple[Integer[np.ndarray, "E _"], Int64[np.ndarray, " E"]]
"""Texts as (token ids, numbers of tokens). The ids after the end of a text are arbitrary."""


class Rows(abc.ABC):
    """A kind of rows.

    A row of L tokens holds up to P examples. An example is made from one or two spans of a corpus (`Pairs`). A kind has no
    state. Its methods are pure functions, since a resumed run computes its rows again."""

    predicted: ClassVar[str]
    """The array with the ids of the predicted tokens; -1 where nothing is predicted."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Those of the keys "pairs", "max_predictions", "masking", "masked_fraction", "mask_probability" and "random_probability" of
    `config.examples` that the kind reads. The other ones of these keys are refused. If it does not read "max_predictions", a
    phase's `max_predictions` is its `length`."""
    parallel: ClassVar[bool] = False
    """Whether the kind needs a parallel corpus."""
    predicts_separators: ClassVar[bool] = False
    """Whether each [SEP] is predicted like a word."""

    @abc.abstractmethod
    def widths(self, length: int, predictions: int, examples: int) -> Mapping[str, int]:
        """Returns the names and widths of the arrays of a batch. Each is int32 [rows, width]. A row has `length` tokens, at most
        `predictions` predicted tokens, and at most `examples` examples. The arrays include `data.INPUTS`."""

    @abc.abstractmethod
    def assemble(self, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables) -> Batch:
        """Returns the arrays of the plan's rows with indices `rows`. The index -1 stands for an empty row, in which
        "sequence_ids" is 0 and nothing is predicted. A row must not depend on the other rows."""

    def spans(
        self,
        sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
        document_offsets: Int64[np.ndarray, " document_bounds"],
        config: ExampleConfig,
        key: int,
    ) -> Pairs:
        """Returns the spans of all examples of an epoch, given where the sentences begin in the tokens and the documents in the
        sentences. All random decisions depend on `key`. By default, they are chunks of documents."""
        return document_spans(sentence_offsets, document_offsets, config, key)

    def lengths(self, pairs: Pairs, config: ExampleConfig) -> UInt16[np.ndarray, " E"]:
        """Returns the number of tokens of each example, including special tokens. They decide which examples fit into a row."""
        return pairs.a_length + pairs.b_length + np.uint16(config.special_tokens)

    def num_tokens(self, pairs: Pairs, config: ExampleConfig) -> int:
        """Returns the number of tokens of all examples, for the fraction of padding in the log."""
        return int(self.lengths(pairs, config).sum(dtype=np.int64))

    def special_tokens(self, config: ExampleConfig) -> int:
        """Returns the number of special tokens of an example. By default, they are [CLS] and one or two [SEP]."""
        return 2 if config.pairs == "none" else 3

    def most_predictions(self, config: ExampleConfig) -> int:
        """Returns the largest `max_predictions` that can be reached."""
        return config.length

    def predictions(self, config: ExampleConfig, lengths: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """Returns the number of predicted tokens of examples with these `lengths`, which include special tokens. By default,
        every token after the first is predicted, up to the limit `most_pieces`."""
        return np.minimum(config.most_pieces(lengths), lengths.astype(np.int64) - 1)

    def check(self, config: ExampleConfig) -> None:
        """Raises UserError if a setting does not apply to these rows."""
        if config.pairs != "none" and "pairs" not in self.reads:
            raise UserError(f"pairs={config.pairs} makes pairs of texts, but targets={config.targets} needs none; set pairs=none")
        if config.masking != "tokens" and "masking" not in self.reads:
            raise UserError(
                f"masking={config.masking} masks words, but targets={config.targets} needs no masks; leave masking out"
            )


class TextRows(Rows):
    """Rows of the texts [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

    predicted: ClassVar[str] = "masked_targets"
    masks: ClassVar[bool]
    """Whether the predicted tokens are masked."""

    @abc.abstractmethod
    def targets(self, texts: Texts) -> tuple[Integer[np.ndarray, "E W"], Bool[np.ndarray, "E W"]]:
        """Returns (the token that each position predicts, whether it may predict the token). [UNK] is never predicted."""

    def widths(self, length: int, predictions: int, examples: int) -> Mapping[str, int]:
        """Returns the widths of the arrays of `Masked`."""
        return text_widths(length, predictions, examples)

    def assemble(self, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables) -> Batch:
        """Returns the arrays of `Masked`."""
        return assemble_texts(self, corpus, plan, rows, tables)


class Masked(TextRows):
    """Rows whose masked tokens are predicted.

        input_ids         [B, L]  the tokens
        token_type_ids    [B, L]  0 = [CLS] A [SEP], 1 = B [SEP]; 0 at padding
        sequence_ids      [B, L]  0 = padding, 1..P = the index of the example in the row
        position_ids      [B, L]  from 0 for every example; 0 at padding
        masked_positions  [B, M]  positions in the row, ascending; 0 where unused
        masked_targets    [B, M]  the original tokens; -1 where unused
        cls_positions     [B, P]  positions of the [CLS] tokens in the row; 0 where unused
        nsp_labels        [B, P]  0 = B follows A, 1 = random; -1 = no example, or pairs="none"
    """

    masks: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (
        *("pairs", "max_predictions"),
        *("masking", "masked_fraction", "mask_probability", "random_probability"),
    )

    def targets(self, texts: Texts) -> tuple[Integer[np.ndarray, "E W"], Bool[np.ndarray, "E W"]]:
        """Returns the tokens themselves. [CLS] and [SEP] are not predicted."""
        candidates = texts.real.copy()
        candidates.ravel()[texts.starts] = candidates.ravel()[texts.separators] = False
        return texts.ids, candidates

    def most_predictions(self, config: ExampleConfig) -> int:
        """Returns the number of tokens that are not special."""
        return config.max_tokens

    def predictions(self, config: ExampleConfig, lengths: Integer[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
        """Computes the original's formula, which rounds half to even."""
        wanted = np.maximum(1, np.rint(config.masked_fraction * lengths)).astype(np.int64)
        return np.minimum(np.minimum(wanted, config.max_predictions), np.maximum(lengths - config.special_tokens, 0))


class Next(TextRows):
    """Rows with the arrays of `Masked`, in which nothing is masked: "masked_targets" are the tokens after "masked_positions"."""

    masks: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("pairs", "max_predictions")
    predicts_separators: ClassVar[bool] = True

    def targets(self, texts: Texts) -> tuple[Integer[np.ndarray, "E W"], Bool[np.ndarray, "E W"]]:
        """Returns the next tokens. The last [SEP] has none."""
        candidates = texts.real.copy()
        candidates.ravel()[texts.separators[1]] = False
        return np.roll(texts.ids, -1, axis=1), candidates

    def most_predictions(self, config: ExampleConfig) -> int:
        """Returns the number of tokens that have a next token."""
        return config.length - 1


class Centres(Next):
    """Rows in which "centres", int32 [B, M], replaces the masked arrays. It has the "masked_positions" of `Next`, and -1 where
    unused."""

    predicted: ClassVar[str] = "centres"

    def widths(self, length: int, predictions: int, examples: int) -> Mapping[str, int]:
        """Returns the widths with "centres"."""
        widths = super().widths(length, predictions, examples)
        return {name: width for name, width in widths.items() if not name.startswith("masked_")} | {"centres": predictions}

    def assemble(self, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables) -> Batch:
        """Returns the arrays with "centres"."""
        batch = super().assemble(corpus, plan, rows, tables)
        targets, positions = batch.pop("masked_targets"), batch.pop("masked_positions")
        return batch | {"centres": np.where(targets < 0, np.int32(-1), positions)}


class PairRows(Rows):
    """Rows of texts for an encoder and of texts for a decoder. The two texts of an example have the same sequence id.

        input_ids, token_type_ids,   [B, L]   the texts for the encoder, each with a [SEP] at the end; all types are 0
        sequence_ids, position_ids
        decoder_input_ids, ...       [B, L]   the texts for the decoder, each with a [PAD] at the start
        targets                      [B, L]   the next tokens of these texts, each with a [SEP] at the end; -1 at padding
    """

    predicted: ClassVar[str] = "targets"

    @abc.abstractmethod
    def sides(
        self, corpus: Corpus, plan: EpochPlan, examples: Int[np.ndarray, " E"], tables: MaskingTables
    ) -> tuple[Side, Side]:
        """Returns the texts for the encoder and for the decoder of the plan's examples with indices `examples`, without special
        tokens. A text must have fewer tokens than `lengths` returns for its example."""

    def widths(self, length: int, predictions: int, examples: int) -> Mapping[str, int]:
        """Returns the length of a row for every array."""
        return dict.fromkeys((*INPUTS, *DECODER_INPUTS, "targets"), length)

    def assemble(self, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables) -> Batch:
        """Packs the texts of `sides` into rows."""
        return assemble_pairs(self, corpus, plan, rows, tables)

    def special_tokens(self, config: ExampleConfig) -> int:
        """Returns 1, since each text has one [SEP] or one [PAD]."""
        return 1


class Translated(PairRows):
    """Rows of texts and their translations."""

    parallel: ClassVar[bool] = True

    def spans(
        self,
        sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
        document_offsets: Int64[np.ndarray, " document_bounds"],
        config: ExampleConfig,
        key: int,
    ) -> Pairs:
        """Returns the pairs whose two sides both fit into a row."""
        return translations(sentence_offsets, document_offsets, config)

    def sides(
        self, corpus: Corpus, plan: EpochPlan, examples: Int[np.ndarray, " E"], tables: MaskingTables
    ) -> tuple[Side, Side]:
        """Returns the texts and their translations."""
        pairs = plan.pairs

        def side(starts: Int64[np.ndarray, " E"], lengths: UInt16[np.ndarray, " E"]) -> Side:
            return token_spans(corpus.tokens, starts[examples], lengths[examples]), lengths[examples].astype(np.int64)

        return side(pairs.a_start, pairs.a_length), side(pairs.b_start, pairs.b_length)

    def lengths(self, pairs: Pairs, config: ExampleConfig) -> UInt16[np.ndarray, " E"]:
        """Returns the number of tokens of the longer side."""
        return np.maximum(pairs.a_length, pairs.b_length) + np.uint16(config.special_tokens)

    def num_tokens(self, pairs: Pairs, config: ExampleConfig) -> int:
        """Returns half the number of tokens of both sides."""
        both = int(pairs.a_length.sum(dtype=np.int64) + pairs.b_length.sum(dtype=np.int64))
        return both // 2 + len(pairs.a_length)

    def check(self, config: ExampleConfig) -> None:
        """Refuses sentence pairs and masks."""
        for name, only in (("pairs", "none"), ("masking", "tokens")):
            if (value := getattr(config, name)) != only:
                raise UserError(
                    f"{name}={value} does not apply to translation, which has no masks and no sentence pairs; set {name}={only}"
                )
