"""The inputs of heads other than the last layer's [CLS], compared with numpy on single texts."""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.interop.names import our_shapes
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.features import mean_pooling
from bert_jax.model.heads import LAYERS, head_class, make_head
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.tokens import Tokens
from tests.model.head_in_numpy import head_logits
from tests.random_rows import random_parameters

CONFIG = ModelConfig(
    vocab_size=50, hidden_size=12, num_layers=5, num_heads=3, intermediate_size=20, max_position=24, attention_dropout=0.0,
    scan_layers=True,
)  # fmt: skip
LENGTHS = ((5, 3, 9), (), (1, 20), (7,), (), ())
"""The lengths of the texts in each row. There are as many texts as rows, so that putting each in a row of its own compiles
nothing new."""
ROW, SLOTS = 24, 4
ROUNDING = 64 * 2.0**-23
"""The tolerance relative to the largest number: float32 rounds each of at most 64 additions and multiplications in a row, in any
order, by up to half of 2**-23 (48 products if four layers are read, and the operations after them). A wrong term is thousands
of times as large."""


def head_of(kind: str, **fields) -> TaskHead:
    return make_head(kind, labels=("a", "b", "c") if head_class(kind).has_labels else (), **fields)


CONCAT, MENTION, LSTM = head_of("sequence", pooling="concat"), head_of("mention"), head_of("token", lstm=4)
ENDS = head_of("sequence", lstm=4)
TWO_MIXES = head_of("token", lstm=3, layers="last_four_mix", mix_at="both")
HEADS = [
    CONCAT,
    MENTION,
    LSTM,
    ENDS,
    *(head_of("token", layers=layers) for layers in LAYERS),
    head_of("span", layers="second_to_last"),
    head_of("choice", layers="scalar_mix"),
    head_of("sequence", layers="embeddings"),
    head_of("sequence", pooling="concat", layers="last_four_concat"),
    head_of("mention", layers="last_four_concat"),
    head_of("sequence", lstm=4, pooling="concat"),
    head_of("sequence", pooling="last_token"),
    head_of("token", lstm=4, layers="scalar_mix", mix_at="output"),
    TWO_MIXES,
    head_of("span", lstm=3, layers="last_four_concat", mix_at="both"),
]


def name_of(head: TaskHead) -> str:
    pooling = head.pooling if head.pooling != "pooler" else ""
    parts = [head.kind, head.layers, pooling, "lstm" * (head.lstm > 0), head.mix_at]
    return "-".join(part for part in parts if part)


@functools.cache
def random_params(head: TaskHead) -> dict:
    """Returns random parameters of a head, without those of the encoder."""
    rng = np.random.default_rng(3)
    parts = {head.subtree} | ({"pooler"} if head.reads_pooler else set())
    shapes = {path: shape for path, shape in our_shapes(CONFIG, head).items() if path.split("/")[0] in parts}
    values = {path: 0.4 * rng.standard_normal(shape) + path.endswith("/scale") for path, shape in shapes.items()}
    return unflatten_dict({path: np.asarray(x, np.float32) for path, x in values.items()}, sep="/")


def layout(lengths=LENGTHS) -> dict[str, np.ndarray]:
    """Returns the batch with texts of these lengths side by side in its rows, and random ids in the padding too."""
    rng = np.random.default_rng(4)
    batch = {name: np.zeros((len(lengths), ROW), np.int32) for name in ("token_type_ids", "position_ids", "sequence_ids")}
    batch["input_ids"] = rng.integers(5, CONFIG.vocab_size, (len(lengths), ROW)).astype(np.int32)
    batch["cls_positions"] = np.zeros((len(lengths), SLOTS), np.int32)
    batch["read_positions"] = np.zeros((len(lengths), SLOTS, 3), np.int32)
    for r, row in enumerate(lengths):
        start = 0
        for p, n in enumerate(row):
            batch["sequence_ids"][r, start : start + n] = p + 1
            batch["position_ids"][r, start : start + n] = np.arange(n)
            batch["cls_positions"][r, p] = start
            batch["read_positions"][r, p] = start + rng.integers(0, n, 3)
            start += n
    return batch


def texts(batch: dict[str, np.ndarray]) -> list[tuple[int, int, slice]]:
    """Returns (row, slot, columns) of every text."""
    found = []
    for r, p in np.ndindex(batch["cls_positions"].shape):
        (columns,) = np.nonzero(batch["sequence_ids"][r] == p + 1)
        if columns.size:
            found.append((r, p, slice(columns[0], columns[-1] + 1)))
    return found


@functools.cache
def hidden_states() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((CONFIG.num_layers + 1, len(LENGTHS), ROW, 12), np.float32)


@jax.jit
def encoded(params, batch):
    return Bert(CONFIG).apply({"params": params}, Tokens.of(batch), None, method="encode")[1]


def from_states(head, params, states, batch):
    def answer(model):
        return model.answer(model.features(states[-1], states, Tokens.of(batch)), batch)

    return BertWithHead(CONFIG, head).apply({"params": params}, method=answer)


@functools.partial(jax.jit, static_argnums=0)
def _logits(heads, params, states, batch):
    return [from_states(*of, states, batch) for of in zip(heads, params, strict=True)]


def logits_from_states(states, batch: dict, heads=tuple(HEADS)) -> dict[TaskHead, np.ndarray]:
    """Returns the logits of several heads for the encoder's hidden states. One program computes all of them."""
    return dict(zip(heads, jax.device_get(_logits(heads, [random_params(head) for head in heads], states, batch)), strict=True))


@functools.cache
def usual_logits() -> dict[TaskHead, np.ndarray]:
    return logits_from_states(hidden_states(), layout())


@functools.partial(jax.jit, static_argnums=0)
def gradients(head, params, states, batch, weights):
    """Returns the gradients of the sum of the weighted logits for the parameters and for the hidden states."""
    return jax.grad(lambda *of: (from_states(head, *of, batch) * weights).sum(), (0, 1))(params, states)


@pytest.mark.parametrize("head", HEADS, ids=name_of)
def test_a_head_equals_numpy_on_each_text(head):
    params, batch, states, logits = random_params(head), layout(), hidden_states(), usual_logits()[head]
    for r, p, columns in texts(batch):
        ours = logits[r, columns] if head.per_token else logits[r, p]
        theirs = head_logits(head, params, states[:, r, columns], batch["read_positions"][r, p] - columns.start)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ROUNDING * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("head", [CONCAT, MENTION, TWO_MIXES, ENDS], ids=name_of)
def test_a_slot_without_a_text_has_finite_logits_and_no_gradient(head):
    batch = layout()
    assert np.isfinite(usual_logits()[head]).all()
    real = np.zeros_like(usual_logits()[head])
    for r, p, columns in texts(batch):
        real[r, columns if head.per_token else p] = 1
    _, gradient = jax.device_get(gradients(head, random_params(head), hidden_states(), batch, real))
    assert np.isfinite(gradient).all()
    assert gradient[:, batch["sequence_ids"] > 0].any()
    assert not gradient[:, batch["sequence_ids"] == 0].any()


def encoder_params() -> dict:
    return random_parameters(CONFIG, seed=3, scale=1.0, noise=0.4)


def test_packed_texts_have_the_logits_of_separate_rows():
    params, batch = encoder_params(), layout()
    found = texts(batch)
    alone = layout([(columns.stop - columns.start,) for *_, columns in found])
    for i, (r, p, columns) in enumerate(found):
        alone["input_ids"][i, : columns.stop - columns.start] = batch["input_ids"][r, columns]
        alone["read_positions"][i, 0] = batch["read_positions"][r, p] - columns.start
    packed, separate = (logits_from_states(encoded(params, rows), rows) for rows in (batch, alone))
    for head in HEADS:
        for i, (r, p, columns) in enumerate(found):
            ours = packed[head][r, columns] if head.per_token else packed[head][r, p]
            theirs = separate[head][i, : columns.stop - columns.start] if head.per_token else separate[head][i, 0]
            within = 4 * ROUNDING * max(1, np.abs(theirs).max())  # five layers more
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=within, err_msg=name_of(head))


def test_neither_packed_neighbours_nor_padding_change_logits():
    params, batch = encoder_params(), layout()
    other = batch | {"input_ids": (batch["input_ids"] + 7) % CONFIG.vocab_size}
    second = batch["sequence_ids"] == 2
    other["input_ids"] = np.where(second, batch["input_ids"], other["input_ids"])
    ours, theirs = (logits_from_states(encoded(params, rows), rows) for rows in (batch, other))
    for head in HEADS:
        kept = second if head.per_token else np.arange(SLOTS)[None] + 1 == second.max(1)[:, None] * 2
        assert kept.any()
        np.testing.assert_array_equal(ours[head][kept], theirs[head][kept], err_msg=name_of(head))
        assert not np.array_equal(ours[head], theirs[head])


def test_the_mean_over_one_token_is_that_token_and_the_mean_of_an_empty_slot_is_zero():
    x, ids = jnp.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [9.0, 9.0]]]), jnp.array([[1, 2, 2, 0]])
    assert jax.jit(mean_pooling, static_argnums=2)(x, ids, 3).tolist() == [[[1, 2], [4, 5], [0, 0]]]


def test_an_lstm_reads_its_text_to_both_ends():
    """The logits of a text's first and last token both depend on every token of it."""
    batch, states = layout(), hidden_states()
    before = usual_logits()[LSTM]
    for r, _, columns in texts(batch):
        for changed in range(columns.start, columns.stop):
            other = states.copy()
            other[-1, r, changed] += 1
            moved = (logits_from_states(other, batch)[LSTM] != before).any(-1)
            assert moved[r, [columns.start, columns.stop - 1]].all()
            moved[r, columns] = False
            assert not moved.any()


def test_gradients_reach_every_parameter_of_a_head():
    weights = np.random.default_rng(1).standard_normal(usual_logits()[TWO_MIXES].shape, np.float32)
    found, _ = gradients(TWO_MIXES, random_params(TWO_MIXES), hidden_states(), layout(), weights)
    assert [path for path, x in flatten_dict(found, sep="/").items() if not np.any(x)] == []


@pytest.mark.parametrize("layers", ["scalar_mix", "last_four_mix"])
def test_a_new_mix_is_the_mean_of_its_layers(layers):
    head = head_of("token", layers=layers)
    states = hidden_states()

    def mixed(key):
        fresh = nn.unbox(initial_label_parameters(CONFIG, head, key)[head.subtree])
        return BertWithHead(CONFIG, head).apply(
            {"params": {head.subtree: fresh}}, states[-1], states, Tokens.of(layout()), method="features"
        )

    wanted = states[-head.mixed_layers(CONFIG.num_layers) :].mean(0)
    np.testing.assert_allclose(jax.jit(mixed)(jax.random.key(0)), wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("head", [CONCAT, TWO_MIXES], ids=name_of)
def test_new_parameters_have_the_shapes_of_the_table_and_names_for_their_axes(head):
    boxed = jax.eval_shape(lambda: initial_label_parameters(CONFIG, head, jax.random.key(0)))
    leaves = flatten_dict(boxed, sep="/")
    assert all(isinstance(x, nn.LogicallyPartitioned) and len(x.names) == x.value.ndim for x in leaves.values())
    parts = {"embeddings", "encoder", head.subtree} | ({"pooler"} if head.reads_pooler else set())
    expected = {path: shape for path, shape in our_shapes(CONFIG, head).items() if path.split("/")[0] in parts}
    assert {path: x.value.shape for path, x in leaves.items()} == expected


def test_bfloat16_states_are_read_in_float32():
    sums = (head_of("token", layers=layers) for layers in ("last", "last_four_sum", "all_sum"))
    mix, lstm = head_of("token", layers="last_four_mix"), head_of("sequence", lstm=4, pooling="concat")
    heads = (CONCAT, MENTION, mix, lstm, *sums)
    states = jnp.asarray(hidden_states(), jnp.bfloat16)
    wide = logits_from_states(states.astype(jnp.float32), layout())
    for head, ours in logits_from_states(states, layout(), heads).items():
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, wide[head], rtol=0, atol=ROUNDING * np.abs(wide[head]).max(), err_msg=name_of(head))


@pytest.mark.parametrize("layers", [layers for layers in LAYERS if layers.startswith("last_four")])
def test_heads_on_four_layers_refuse_a_model_of_three(layers):
    config = dataclasses.replace(CONFIG, num_layers=3)
    with pytest.raises(UserError, match=f"head.layers='{layers}' needs 4 layers, but the model has 3; choose another"):
        jax.eval_shape(lambda: initial_label_parameters(config, head_of("token", layers=layers), jax.random.key(0)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "mention"}, "a mention head needs labels; name at least one"),
        ({"kind": "mentions"}, "head.kind='mentions' is not one of .*; did you mean 'mention'"),
        ({"kind": "choice", "pooling": "concat"}, "head.pooling='concat' is for a sequence head, not for a choice head; leave"),
        ({"kind": "token", "labels": ("a",), "pooling": "concat"}, "is for a sequence head, not for a token head"),
        ({"kind": "sequence", "labels": ("a",), "pooling": "last_token", "lstm": 3}, "pooling=last_token has no effect; leave"),
        ({"kind": "sequence", "labels": ("a",), "pooling": "max"}, "head.pooling='max' is not one of pooler, concat"),
        ({"kind": "span", "layers": "last_for_sum"}, "head.layers='last_for_sum' is not one of .*; did you mean 'last_four_sum'"),
        ({"kind": "choice", "lstm": 8}, "head.lstm=8 is for a sequence, span or token head, not for a choice head; leave it"),
        ({"kind": "token", "labels": ("a",), "lstm": -1}, "head.lstm=-1 must be at least 0"),
        ({"kind": "token", "labels": ("a",), "mix_at": "both"}, "head.mix_at='both' needs an LSTM"),
        ({"kind": "sequence", "labels": ("a",), "lstm": 4, "mix_at": "both"}, "is for a span or token head"),
        ({"kind": "choice", "layers": "last_four_concat"}, "four times as wide .*; set head.layers='last_four_sum'$"),
        ({"kind": "sequence", "labels": ("a",), "layers": "last_four_concat"}, "'last_four_sum' or head.pooling='concat'"),
        ({"kind": "choice", "layers": "embeddings_and_last"}, "is twice as wide as the pooler's input; set head.layers='last'$"),
        ({"kind": "mention", "labels": ("a",), "problem": "regression"}, "head.problem='regression' is for a sequence head"),
    ],
)  # fmt: skip
def test_incompatible_head_settings_are_refused_with_a_remedy(fields, said):
    with pytest.raises(UserError, match=said):
        make_head(**fields)
