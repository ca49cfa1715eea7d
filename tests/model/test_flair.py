"""Flair: the states at the ends of words, compared with numpy on single texts, and their use by heads and the language model."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece, train_wordpiece
from bert_jax.errors import UserError
from bert_jax.interop.names import our_shapes
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.features import over_words
from bert_jax.model.flair import word_starts
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.tokens import Tokens
from tests.model.head_in_numpy import head_logits
from tests.model.test_bilm import BILM, ROUNDING, TEXTS, random_params, rows, states_in_numpy
from tests.random_rows import objective_for

FLAIR = dataclasses.replace(BILM, encoder="flair")
STARTS = np.zeros(FLAIR.padded_vocab_size, np.float32)
STARTS[[0, 2, 3, 5, 6, 7, 8, 9]] = 1
"""Some of the 15 pieces of the texts begin a word."""


def flair_params() -> dict:
    params = random_params(FLAIR)
    return {**params, "encoder": {**params["encoder"], "word_starts": STARTS}}


def words_of(pieces: np.ndarray) -> list[tuple[int, int]]:
    """Returns the first and the last piece of each word of a text, which starts with a word."""
    begins = [n for n, piece in enumerate(pieces) if n == 0 or STARTS[piece]]
    return list(zip(begins, [n - 1 for n in (*begins[1:], len(pieces))], strict=True))


def texts_of(batch: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """Returns (row, columns) of each text."""
    slots = [(row, n + 1) for row, texts in enumerate(TEXTS) for n in range(len(texts))]
    return [(row, np.nonzero(batch["sequence_ids"][row] == n)[0]) for row, n in slots]


@jax.jit
def encoded(params, batch):
    """Returns (the last hidden states, those of all layers)."""
    return Bert(FLAIR).apply({"params": params}, Tokens.of(batch), method="encode")


def test_each_piece_has_the_states_at_the_ends_of_its_word():
    params, batch, w = flair_params(), rows(), FLAIR.word_width
    last, states = encoded(params, batch)
    assert np.array_equal(last, states[-1])
    plain = {**params, "encoder": {"layers": params["encoder"]["layers"]}}
    words = 0
    for row, columns in texts_of(batch):
        pieces = batch["input_ids"][row, columns]
        alone = states_in_numpy(BILM, plain, pieces)
        np.testing.assert_allclose(states[0, row, columns], alone[0], rtol=0, atol=ROUNDING * np.abs(alone).max())
        for first, end in words_of(pieces):
            wanted = np.concatenate([alone[1:, end, :w], alone[1:, first, w:]], axis=-1)
            for n in range(first, end + 1):
                found = states[1:, row, columns[n]]
                np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDING * np.abs(alone).max())
            words += end > first
    assert words > 3, "words of several pieces"


def test_the_language_model_equals_the_bilm():
    params, batch = flair_params(), rows()
    plain = {**params, "encoder": {"layers": params["encoder"]["layers"]}}
    found, wanted = (
        jax.jit(objective_for(config, False).sums)(own, batch, None) for config, own in ((FLAIR, params), (BILM, plain))
    )
    assert found == wanted


@pytest.mark.parametrize("kind", [TokenHead, SequenceHead])
def test_the_lstm_of_a_head_reads_one_vector_per_word_of_a_text_to_both_ends(kind):
    head, batch = kind(labels=("a", "b"), lstm=3), rows()
    rng, shapes = np.random.default_rng(3), our_shapes(FLAIR, head)
    own = {path: 0.5 * rng.standard_normal(shape) for path, shape in shapes.items() if path.startswith(head.subtree)}
    params = {part: flair_params()[part] for part in ("embeddings", "encoder")} | unflatten_dict(own, sep="/")
    starts = np.zeros((len(TEXTS), 4), np.int32)
    for row, columns in texts_of(batch):
        starts[row, batch["sequence_ids"][row, columns[0]] - 1] = columns[0]
    given = batch if head.per_token else batch | {"cls_positions": starts}
    logits = jax.jit(BertWithHead(FLAIR, head).apply)({"params": jax.tree.map(np.float32, params)}, given)["logits"]
    _, states = encoded(flair_params(), batch)
    for row, columns in texts_of(batch):
        words = words_of(batch["input_ids"][row, columns])
        wanted = head_logits(head, params, np.asarray(states)[:, row, columns[[first for first, _ in words]]])
        number = batch["sequence_ids"][row, columns[0]] - 1
        if not head.per_token:
            np.testing.assert_allclose(logits[row, number], wanted, rtol=0, atol=1e-5)
            continue
        for n, (first, end) in enumerate(words):
            for column in columns[first : end + 1]:
                np.testing.assert_allclose(logits[row, column], wanted[n], rtol=0, atol=1e-6)


def test_a_layer_over_words_gives_each_piece_the_output_of_its_word():
    x = jnp.arange(6.0)[None, :, None]
    first, ids = jnp.asarray([[0, 1, 1, 3, 3, 5]]), jnp.asarray([[1, 1, 1, 2, 2, 0]])
    seen = []

    def layer(features, sequence_ids):
        seen.append((features[0, :, 0].tolist(), sequence_ids[0].tolist()))
        return features + 10

    found = over_words(layer, x, ids, first)
    assert found[0, :, 0].tolist() == [10, 11, 11, 13, 13, 15]
    assert seen[0][0][:4] == [0, 1, 3, 5]
    assert seen[0][1] == [1, 1, 2, 0, 0, 0]


def test_the_words_of_a_long_row_keep_their_order():
    begins = np.random.default_rng(0).random((1, 300)) < 0.3
    first = jnp.maximum.accumulate(jnp.where(begins, jnp.arange(300), 0), axis=1)
    columns = jnp.arange(300.0)[None, :, None]
    found = over_words(lambda features, ids: features, columns, jnp.ones((1, 300), jnp.int32), first)
    np.testing.assert_array_equal(found[..., 0], first)


def test_words_start_at_their_space_and_not_at_an_unknown_character():
    tokenizer = train_sentencepiece([["The rivers of Paris", "are the Seine's"]] * 20, 256, None, characters=True)
    assert [piece for piece in tokenizer.pieces[5:] if len(piece) > 1] == []
    assert not tokenizer.vocabulary.lowercase
    ids = tokenizer.encode("The riveŁr Paris")
    assert tokenizer.tokens(ids) == [*"▁The", *"▁rive", "<unk>", "r", *"▁Paris"]
    starts = word_starts(tokenizer, tokenizer.size + 3)
    assert [n for n, i in enumerate(ids) if starts[i]] == [0, 4, 11]
    assert starts[[tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]].all()
    assert starts[-3:].all()
    pieces = train_wordpiece([["the rivers of paris river the"]] * 20, 40, True)
    starts = word_starts(pieces, pieces.size)
    assert starts[pieces.unk_id] == 1, "a word without pieces is one"
    assert [bool(x) for x in starts[5:]] == [not piece.startswith("##") for piece in pieces.pieces[5:]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"direction": "left_to_right"}, r"direction=left_to_right does not apply to model.encoder=flair; leave it out \(both\)"),
        ({"hidden_size": 7}, "each direction of model.encoder=flair uses half of it; set 8$"),
        ({"character_cnn": True, "tied_decoder": False}, "model.character_cnn=True requires model.encoder=bilm"),
        ({"positions": "none"}, "model.positions=none does not apply to model.encoder=flair"),
        ({"num_layers": 0}, "model.num_layers=0 must be at least 1"),
    ],
)
def test_unsupported_settings_of_flair_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(**{"encoder": "flair", "hidden_size": 8, "num_layers": 1} | fields)
