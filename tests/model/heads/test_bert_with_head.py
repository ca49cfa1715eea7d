from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.interop.names import our_shapes
from bert_jax.model.config import ModelConfig
from bert_jax.model.crf import Chain, Transitions, conditional_logits
from bert_jax.model.heads import KINDS, head_class, make_head
from bert_jax.model.heads.bert_with_head import HEAD_SEED, BertWithHead, HeadLayers, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead

CONFIG = ModelConfig(
    vocab_size=50, hidden_size=12, num_layers=1, num_heads=3, intermediate_size=20, max_position=16, hidden_dropout=0.3,
    attention_dropout=0.0,
)  # fmt: skip
ROWS, LENGTH = 3, 10
READ = np.array([4, 1, 3, 0, 2], np.int32)
"""A head that reads n tokens other than [CLS] reads the first n of these."""


def head_of(kind: str, **fields) -> TaskHead:
    return make_head(kind, labels=("a", "b", "c") if head_class(kind).has_labels else (), **fields)


def parts_of(head: TaskHead) -> set[str]:
    return {"embeddings", "encoder", head.subtree} | ({"pooler"} if head.reads_pooler else set())


def random_params(config: ModelConfig, head: TaskHead) -> dict:
    """Returns weights far from their initial values, so that every one of them affects the logits."""
    rng = np.random.default_rng(3)
    shapes = {path: shape for path, shape in our_shapes(config, head).items() if path.split("/")[0] in parts_of(head)}
    values = {path: 0.3 * rng.standard_normal(shape, np.float32) + path.endswith("/scale") for path, shape in shapes.items()}
    return unflatten_dict({path: np.asarray(x, np.float32) for path, x in values.items()}, sep="/")


def inputs(head: TaskHead) -> dict[str, np.ndarray]:
    """Returns one example per row, with two segments; each row is shorter than the previous one by two. The positions of the
    example are there twice, so that rows of one and of two texts have the same program."""
    columns = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    mask = (columns < LENGTH - 2 * np.arange(ROWS)[:, None]).astype(np.int32)
    return {
        "input_ids": np.random.default_rng(4).integers(5, CONFIG.vocab_size, (ROWS, LENGTH)).astype(np.int32) * mask,
        "token_type_ids": (columns > 3).astype(np.int32) * mask,
        "position_ids": columns,
        "sequence_ids": mask,
        "cls_positions": np.zeros((ROWS, 2), np.int32),
        "read_positions": np.tile(READ[: head.layout.read_positions], (ROWS, 2, 1)),
    }


def two_texts(head: TaskHead) -> dict[str, np.ndarray]:
    """Returns `inputs` with a second text in each row."""
    read = READ[: head.layout.read_positions]
    ids = np.repeat([1, 2], [4, LENGTH - 4]).astype(np.int32)
    more = {"cls_positions": np.array([[0, 4]] * ROWS, np.int32), "read_positions": np.array([[read, read + 5]] * ROWS)}
    return inputs(head) | more | {"sequence_ids": np.where(inputs(head)["sequence_ids"] > 0, ids, 0)}


@functools.cache
def compiled(config: ModelConfig, head: TaskHead):
    return jax.jit(BertWithHead(config, head).apply)


def outputs_of(config: ModelConfig, head: TaskHead, params: dict, batch: dict, seed: int | None = None) -> dict:
    words = None if seed is None else np.uint32(seed)
    return jax.device_get(compiled(config, head)({"params": params}, batch, words))


def apply(config: ModelConfig, head: TaskHead, params: dict, batch: dict, seed: int | None = None) -> np.ndarray:
    return outputs_of(config, head, params, batch, seed)["logits"]


@pytest.fixture(scope="module", params=KINDS)
def head(request: pytest.FixtureRequest) -> TaskHead:
    return head_of(request.param)


LOGITS = {
    "sequence": (ROWS, 2, 3),
    "choice": (ROWS, 2, 1),
    "mention": (ROWS, 2, 3),
    "token": (ROWS, LENGTH, 3),
    "span": (ROWS, LENGTH, 2),
}
"""The shapes of the logits for `two_texts`."""


def test_logits_have_a_row_per_text_or_per_token_from_only_the_inputs_of_the_kind(head):
    batch = two_texts(head)
    del batch["cls_positions" if head.layout.read_positions else "read_positions"]
    if head.per_token:
        del batch["cls_positions"]
    outputs = jax.eval_shape(lambda: BertWithHead(CONFIG, head).apply({"params": random_params(CONFIG, head)}, batch))
    assert outputs["logits"].shape == LOGITS[head.kind]
    assert outputs["logits"].dtype == jnp.float32
    assert outputs["last"].shape == (ROWS, LENGTH, 12)
    assert outputs["hidden_states"].shape == (2, ROWS, LENGTH, 12)


@functools.partial(jax.jit, static_argnums=(0, 1))
def whole_and_trained(config: ModelConfig, head: TaskHead, params: dict, batch: dict, seed: jax.Array | None = None):
    """Returns the outputs of the full model, and the logits of training."""
    model = BertWithHead(config, head)
    return model.apply({"params": params}, batch, seed), model.apply({"params": params}, batch, seed, method="logits")


def test_training_logits_equal_the_full_model_with_dropout():
    """Those of the other kinds are computed alike, or by the full model."""
    config, head = dataclasses.replace(CONFIG, hidden_dropout=0.1, attention_dropout=0.1), head_of("mention")
    params, batch = random_params(config, head), two_texts(head)
    (whole, few), (other, _) = (whole_and_trained(config, head, params, batch, jnp.uint32(seed)) for seed in (7, 8))
    np.testing.assert_allclose(few, whole["logits"], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(whole["last"], other["last"])


def test_parameters_are_the_table_restricted_to_what_the_head_reads(head):
    config = dataclasses.replace(CONFIG, vocab_multiple=64)
    boxed = jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0)))
    tree = flatten_dict(nn.unbox(boxed), sep="/")
    expected = {path: shape for path, shape in our_shapes(config, head).items() if path.split("/")[0] in parts_of(head)}
    assert {path: x.shape for path, x in tree.items()} == expected
    assert {x.dtype for x in tree.values()} == {jnp.dtype("float32")}
    assert all(isinstance(x, nn.LogicallyPartitioned) for x in flatten_dict(boxed, sep="/").values())


def test_a_new_head_has_small_kernels_and_zero_biases():
    head = SequenceHead(labels=tuple(map(str, range(200))))
    draw = jax.jit(lambda key: nn.unbox(initial_label_parameters(CONFIG, head, key)["sequence_head"]["dense"]))
    layer = draw(jax.random.key(0))
    assert not layer["bias"].any()
    assert 0.016 < layer["kernel"].std() < 0.019  # 0.0176: the deviation of a normal of 0.02 truncated at two deviations
    assert np.abs(layer["kernel"]).max() <= 0.04


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_the_head_is_one_affine_layer_on_the_states_of_the_encoder(kind):
    """`tests/model/test_features.py` compares all kinds on given states, and packed texts with single ones."""
    head = head_of(kind)
    params, batch = random_params(CONFIG, head), inputs(head)
    outputs = outputs_of(CONFIG, head, params, batch)
    last = np.asarray(outputs["last"], np.float64)
    pooler, dense = params.get("pooler"), params[head.subtree]["dense"]
    if kind == "sequence":
        last = np.tanh(last[:, [0, 0]] @ pooler["dense"]["kernel"] + pooler["dense"]["bias"])
    np.testing.assert_allclose(outputs["logits"], last @ dense["kernel"] + dense["bias"], atol=1e-5)


def test_gradients_reach_every_parameter_the_head_has():
    config, head = dataclasses.replace(CONFIG, hidden_dropout=0.0), head_of("sequence")
    weights = np.random.default_rng(5).standard_normal((ROWS, LENGTH, 4), np.float32)

    def loss(params):
        logits = BertWithHead(config, head).apply({"params": params}, inputs(head))["logits"]
        return (logits * weights[:, : logits.shape[1], : logits.shape[2]]).sum()

    gradients = flatten_dict(jax.jit(jax.grad(loss))(random_params(config, head)), sep="/")
    # a key's bias adds one number to all scores of a query, which softmax ignores
    untouched = [path for path, x in gradients.items() if not np.any(x) and not path.endswith("key/bias")]
    assert untouched == []
    assert {path.split("/")[0] for path in gradients} == parts_of(head)


def test_the_dropout_of_a_head_follows_the_step_seed():
    assert int(HEAD_SEED).to_bytes(4, "big") == b"head"
    config, head = dataclasses.replace(CONFIG, hidden_dropout=0.0), head_of("span", dropout=0.5)
    params, batch = random_params(config, head), inputs(head)
    one, same, other = (outputs_of(config, head, params, batch, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one["last"], other["last"])
    np.testing.assert_array_equal(one["logits"], same["logits"])
    assert not np.array_equal(one["logits"], other["logits"])


def test_the_dropout_of_a_head_takes_precedence_over_that_of_the_model():
    usual = {kind: kind != "span" for kind in KINDS}  # like the original's run_squad.py
    cases = [(kind, 0.5, None, usual[kind]) for kind in KINDS]
    cases += [(kind, *rates) for kind in KINDS for rates in ((0.5, 0.0, False), (0.5, 0.5, True), (0.0, 0.5, True))]
    cases += [(kind, 0.0, None, False) for kind in KINDS]

    def logits(kind: str, hidden: float, own: float | None) -> list[jax.Array]:
        """Returns the logits without and with a seed."""
        head = head_of(kind, dropout=own)
        width, outputs = head.input_width(12), head.num_outputs
        params = {"dense": {"kernel": jnp.ones((width, outputs)), "bias": jnp.zeros(outputs)}}
        layer = HeadLayers(dataclasses.replace(CONFIG, hidden_dropout=hidden), head)
        return [layer.apply({"params": params}, jnp.ones((2, 3, width)), seed) for seed in (None, jnp.uint32(1))]

    found = jax.jit(lambda: [logits(*settings) for *settings, _ in cases])()
    for case, (still, dropped) in zip(cases, found, strict=True):
        assert np.array_equal(still, dropped) != case[-1], case


def test_the_head_drops_inputs_at_its_rate_and_scales_the_rest():
    """With a kernel of ones and inputs of one, an output is twice the number of inputs that were kept."""
    layer = HeadLayers(CONFIG, head_of("span", dropout=0.5))
    params = {"dense": {"kernel": np.ones((12, 2), np.float32), "bias": np.zeros(2, np.float32)}}
    sums = np.asarray(jax.jit(layer.apply)({"params": params}, np.ones((20, 30, 12), np.float32), np.uint32(1)))[..., 0].ravel()
    assert set(np.unique(sums.round(4))) <= {2.0 * kept for kept in range(13)}
    assert abs(sums.mean() - 12) < 5 * np.sqrt(12 / sums.size)  # the variance of 2 * Binomial(12, 1/2) is 12


def test_a_crf_is_trained_on_the_words_that_have_a_label():
    rng, head = np.random.default_rng(6), head_of("token", crf="free")
    scores, between, start, end = (rng.standard_normal(shape, np.float32) for shape in ((1, 5, 3), (3, 3), (3,), (3,)))
    batch = {"label_weights": np.float32([[0, 1, 0.5, 0, 1]]), "labels": np.array([[0, 2, 1, 0, 0]])}
    batch["sequence_ids"] = np.ones((1, 5), np.int32)
    words = np.array([[0, 1, 1, 0, 1]])

    @jax.jit
    def run(scores: jax.Array, crf: Transitions, batch: dict) -> tuple[jax.Array, jax.Array]:
        given = HeadLayers(CONFIG, head).apply({"params": {"crf": crf._asdict()}}, scores, batch, method="given_labels")
        return given, conditional_logits(Chain(scores, words, batch["sequence_ids"]), crf, batch["labels"])

    np.testing.assert_array_equal(*run(scores, Transitions(between, start, end), batch))


def test_a_bfloat16_model_returns_float32_logits_close_to_a_float32_model():
    head = head_of("sequence")
    params, batch = random_params(CONFIG, head), inputs(head)
    narrow = outputs_of(dataclasses.replace(CONFIG, dtype="bfloat16"), head, params, batch)
    assert narrow["logits"].dtype == jnp.float32
    assert narrow["last"].dtype == jnp.bfloat16
    wide = apply(CONFIG, head, params, batch)
    difference = np.abs(narrow["logits"] - wide).max() / np.abs(wide).max()
    assert 0 < difference < 0.05


@pytest.mark.parametrize("mlm_head", ["bert", "decoder"])
def test_a_token_head_has_a_pooler_only_in_models_that_pool_by_the_layers_of_their_mlm_head(mlm_head: str):
    for how in ("pooler", "cls", "mean", "late"):
        config = dataclasses.replace(CONFIG, classifier_pooling=how, mlm_head=mlm_head)
        assert head_of("token").has_pooler(config) == (how in ("cls", "mean") and mlm_head == "bert")
        assert head_of("sequence").has_pooler(config)


POOLED = [
    ("cls", "sequence", "decoder"),
    ("mean", "sequence", "bert"),
    ("late", "sequence", "decoder"),
    ("mean", "token", "bert"),
]


def pooling(how: str, mlm_head: str) -> ModelConfig:
    """Returns a model that pools in this way."""
    return dataclasses.replace(CONFIG, classifier_pooling=how, mlm_head=mlm_head, norm_bias=False, head_dense_bias=False)


@functools.cache
def answers() -> list[tuple[dict, np.ndarray]]:
    """Returns the parameters and the logits of each of `POOLED` for the states of the last layer, computed by one program."""
    rng, heads = np.random.default_rng(5), [(pooling(how, mlm_head), head_of(kind)) for how, kind, mlm_head in POOLED]

    def drawn(config: ModelConfig, head: TaskHead) -> dict:
        shapes = nn.unbox(jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0))))
        return jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), shapes)

    def answer(model: BertWithHead, head: TaskHead) -> jax.Array:
        return model.answer(states(), two_texts(head))

    params = [drawn(*each) for each in heads]
    run = jax.jit(
        lambda params: [
            BertWithHead(*each).apply({"params": own}, each[1], method=answer) for own, each in zip(params, heads, strict=True)
        ]
    )
    return list(zip(params, jax.device_get(run(params)), strict=True))


def states() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((ROWS, LENGTH, 12), np.float32)


@pytest.mark.parametrize(("how", "kind", "mlm_head"), POOLED)
def test_the_input_of_a_classifier_follows_the_classifier_pooling_of_the_model(how: str, kind: str, mlm_head: str):
    head = head_of(kind)
    batch, (params, logits) = two_texts(head), answers()[POOLED.index((how, kind, mlm_head))]
    assert "pooler" in params
    last, pooler, dense = states().astype(np.float64), params["pooler"], params[head.subtree]["dense"]

    def pooled(x: np.ndarray) -> np.ndarray:
        y = x @ np.float64(pooler["dense"]["kernel"]) + pooler["dense"].get("bias", 0.0)
        y = y * (1 + scipy.special.erf(y / 2**0.5)) / 2
        if mlm_head == "decoder":
            return y
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * pooler["layer_norm"]["scale"]

    if kind == "token":
        read = pooled(last)
    else:
        rows = []
        for row, ids, firsts in zip(last, batch["sequence_ids"], batch["cls_positions"], strict=True):
            texts = [row[ids == n + 1] for n in range(len(firsts))]
            each = {
                "cls": lambda text: pooled(text[0]),
                "mean": lambda text: pooled(text.mean(0)),
                "late": lambda text: pooled(text).mean(0),
            }
            rows.append([each[how](text) for text in texts])
        read = np.array(rows)
    wanted = read @ np.float64(dense["kernel"]) + dense["bias"]
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooled", POOLED[:2])
def test_training_pools_like_the_full_model(pooled: tuple[str, str, str]):
    (how, kind, mlm_head), (params, _) = pooled, answers()[POOLED.index(pooled)]
    outputs, trained = whole_and_trained(pooling(how, mlm_head), head_of(kind), params, two_texts(head_of(kind)))
    np.testing.assert_allclose(trained, outputs["logits"], rtol=1e-4, atol=1e-4)
