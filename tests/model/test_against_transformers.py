"""Our BERT compared with transformers' PyTorch BERT on random weights: `tests/golden/bert_golden.npz`, made by
`make_bert_golden.py`.

Agreement is measured per tensor as max |ours - theirs| / max |theirs|, ours in float32 and theirs in float64 (rounded once when
stored). The bound is 1e-5; PyTorch's own float32 has an error of 8e-7 on the same batch. Gradients are compared one PyTorch
parameter at a time, so that errors in a small layer are not hidden by a large one.
"""

from __future__ import annotations

import pathlib

import jax
import numpy as np
import pytest

from bert_jax.interop.names import params_from_tensors, tensors_from_params
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import BertForPreTraining
from tests.random_rows import objective_for

TOLERANCE = 1e-5
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "bert_golden.npz"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def under(golden: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in golden.items() if name.startswith(prefix)}


def model_config(golden: dict[str, np.ndarray], **fields) -> ModelConfig:
    tensors = under(golden, "parameters/")
    return ModelConfig(
        vocab_size=tensors["bert.embeddings.word_embeddings.weight"].shape[0],
        hidden_size=tensors["bert.embeddings.word_embeddings.weight"].shape[1],
        max_position=tensors["bert.embeddings.position_embeddings.weight"].shape[0],
        intermediate_size=tensors["bert.encoder.layer.0.intermediate.dense.bias"].size,
        num_layers=3,
        num_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **fields,
    )


def our_inputs(golden: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the torch batch in our form: one example per row, with every column "masked" so that all MLM logits are
    compared."""
    batch = under(golden, "inputs/")
    rows, length = batch["input_ids"].shape
    columns = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "position_ids": columns,
        "sequence_ids": batch["attention_mask"],
        "masked_positions": columns,
        "cls_positions": np.zeros((rows, 1), np.int32),
    }


def pretraining_loss(outputs: dict[str, jax.Array], labels: np.ndarray, next_sentence_label: np.ndarray) -> jax.Array:
    """Returns the mean MLM cross-entropy over the labelled columns plus the mean NSP cross-entropy, independently of
    `bert_jax/training`."""
    rows, columns = np.nonzero(labels >= 0)
    mlm = jax.nn.log_softmax(outputs["mlm_logits"])[rows, columns, labels[rows, columns]]
    nsp = jax.nn.log_softmax(outputs["nsp_logits"][:, 0])[np.arange(len(next_sentence_label)), next_sentence_label]
    return -mlm.mean() - nsp.mean()


def assert_close(ours: np.ndarray, theirs: np.ndarray, name: str, scale: float | None = None) -> None:
    error = np.abs(np.asarray(ours, np.float64) - theirs).max() / (scale or np.abs(theirs).max())
    assert error < TOLERANCE, f"{name}: off by {error:.1e} of its largest value"


FORMS = {
    "gelu": {},
    "gelu_tanh": {"remat": "full", "vocab_multiple": 16},  # which change nothing
}


@pytest.fixture(scope="module", params=FORMS)
def comparison(request: pytest.FixtureRequest, golden: dict[str, np.ndarray]):
    """Returns (our outputs, our gradients under their names, theirs) for one form of GELU."""
    config = model_config(golden, activation=request.param, scan_layers=True, **FORMS[request.param])
    params = params_from_tensors(under(golden, "parameters/"), config, "the golden file")
    inputs, batch = our_inputs(golden), under(golden, "inputs/")

    def loss_of(params):
        outputs = BertForPreTraining(config).apply({"params": params}, inputs)
        return pretraining_loss(outputs, batch["labels"], batch["next_sentence_label"]), outputs

    (loss, outputs), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    outputs = jax.device_get(outputs)
    real, padding = np.split(outputs["mlm_logits"], [config.vocab_size], axis=-1)
    assert (padding < real.min()).all()
    for table in (gradients["embeddings"]["word_embeddings"]["embedding"], gradients["mlm_head"]["bias"]):
        assert not np.asarray(table)[config.vocab_size :].any()
    outputs |= {"loss": loss, "mlm_logits": real}
    return outputs, tensors_from_params(gradients, config), under(golden, f"{request.param}/")


def test_every_hidden_state_equals_pytorch(comparison, golden):
    ours, _, theirs = comparison
    real = golden["inputs/attention_mask"].astype(bool)  # padding attends to padding in ours, to words in theirs; nobody reads it
    for layer, (x, y) in enumerate(zip(np.asarray(ours["hidden_states"]), theirs["hidden_states"], strict=True)):
        assert_close(x[real], y[real], f"hidden state {layer}")


def test_pooler_and_both_heads_equal_pytorch(comparison, golden):
    ours, _, theirs = comparison
    real = golden["inputs/attention_mask"].astype(bool)
    assert_close(ours["pooled"][:, 0], theirs["pooler_output"], "pooler")
    assert_close(ours["nsp_logits"][:, 0], theirs["nsp_logits"], "NSP logits")
    assert_close(np.asarray(ours["mlm_logits"])[real], theirs["mlm_logits"][real], "MLM logits")


def test_the_loss_equals_pytorch(comparison):
    ours, _, theirs = comparison
    assert_close(ours["loss"], theirs["loss"], "loss")


def packed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts both examples in one row without their padding, followed by an empty row: only one row, two examples and seven targets
    count."""
    real = batch["attention_mask"].astype(bool)
    examples, columns = np.nonzero(real)
    masked = np.flatnonzero(batch["labels"][real] >= 0)
    row = {
        "input_ids": batch["input_ids"][real],
        "token_type_ids": batch["token_type_ids"][real],
        "position_ids": columns,
        "sequence_ids": examples + 1,
        "masked_positions": masked,
        "masked_targets": batch["labels"][real][masked],
        "cls_positions": np.flatnonzero(columns == 0),
        "nsp_labels": batch["next_sentence_label"],
    }
    empty = {"masked_targets": -1, "nsp_labels": -1}
    return {name: np.stack([x, np.full_like(x, empty.get(name, 0))]).astype(np.int32) for name, x in row.items()}


def test_the_training_loss_of_packed_rows_and_its_gradients_equal_pytorch(golden):
    config, theirs = model_config(golden, scan_layers=True, remat="dots"), under(golden, "gelu/")
    params = params_from_tensors(under(golden, "parameters/"), config, "the golden file")
    batch, objective = packed(under(golden, "inputs/")), objective_for(config)
    counts = objective.counts(batch)
    assert (float(counts["rows"]), float(counts["nsp_examples"]), float(counts["mlm_targets"])) == (1, 2, 7)
    loss_of = jax.value_and_grad(lambda params: objective.loss(objective.sums(params, batch, None), counts))
    loss, gradients = jax.jit(loss_of)(params)
    assert_close(loss, theirs["loss"], "loss")
    for name in ("cls.seq_relationship.weight", "bert.embeddings.word_embeddings.weight"):
        assert_close(tensors_from_params(gradients, config)[name], theirs[f"gradient/{name}"], name)


def test_every_gradient_equals_pytorch(comparison):
    _, ours, theirs = comparison
    gradients = under(theirs, "gradient/")
    assert ours.keys() == gradients.keys()
    for name, value in gradients.items():
        # The key bias adds one constant to all scores of a query, which softmax ignores. Its gradient is only rounding, so it is
        # compared relative to the query bias's gradient.
        scale = np.abs(gradients[name.replace("key", "query")]).max() if name.endswith("key.bias") else None
        assert_close(ours[name], value, name, scale)


def test_the_golden_file_distinguishes_the_two_gelus(golden):
    """The golden file detects the wrong form: their outputs differ by far more than the tolerance."""
    exact, approximate = golden["gelu/mlm_logits"], golden["gelu_tanh/mlm_logits"]
    assert np.abs(exact - approximate).max() / np.abs(exact).max() > 10 * TOLERANCE
