"""The encoders of today against transformers' PyTorch, on random weights: `tests/golden/modernbert_golden.npz`; and what their
switches promise.

Agreement is measured per tensor as max |ours - theirs| / max |theirs|, ours in float32 and theirs in float64. The bias of keys
alone is measured by the largest gradient of the bias of the queries: it hardly changes the scores, and PyTorch's own float32 is
2.4e-6 off there, elsewhere 1e-6.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import initial_parameters, pretraining_model
from tests.golden.make_modernbert import CASES, make_batch, sampled, without_padding
from tests.model.modern_cases import architecture, as_theirs, parameters

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "modernbert_golden.npz"
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def our_batch(case: str) -> dict[str, np.ndarray]:
    batch = make_batch(CASES[case][1].get("type_vocab_size", 0))
    rows, length = batch["input_ids"].shape
    columns = np.broadcast_to(np.arange(length), (rows, length))
    inputs = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch.get("token_type_ids", np.zeros_like(columns)),
        "position_ids": columns,
        "sequence_ids": batch["attention_mask"],
        "masked_positions": columns,
        "cls_positions": np.zeros((rows, 1)),
    }
    return {name: np.asarray(x, np.int32) for name, x in inputs.items()}


def loss_of(logits: Any, case: str) -> Any:
    labels = make_batch()["labels"]
    rows, columns = np.nonzero(labels >= 0)
    return -jax.nn.log_softmax(logits)[rows, columns, labels[rows, columns]].mean()


def trees(case: str, golden: dict[str, np.ndarray], config: ModelConfig) -> Any:
    shapes = nn.unbox(jax.eval_shape(lambda: nn.unbox(initial_parameters(config, jax.random.key(0), next_sentence=False))))
    return parameters(case, {"golden": golden[f"{case}/shapes"], "ours": shapes})


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_layer_the_logits_the_loss_and_all_gradients_equal_transformers(case, scan_layers, golden):
    config = architecture(case, scan_layers=scan_layers)
    params, batch = trees(case, golden, config), our_batch(case)
    model = pretraining_model(config, next_sentence=False)

    def compute(params: Any) -> Any:
        outputs: Any = model.apply({"params": params}, batch)
        return loss_of(outputs["mlm_logits"], case), outputs

    (loss, outputs), gradients = jax.jit(jax.value_and_grad(compute, has_aux=True))(params)
    names = json.loads(str(golden[f"{case}/shapes"]))
    found = {f"hidden/{n}": x for n, x in enumerate(outputs["hidden_states"])} | {"logits": outputs["mlm_logits"]}
    found |= {f"gradient/{name}": x for name, x in as_theirs(case, gradients, names).items()}
    found = {name: without_padding(name, np.asarray(x)) for name, x in found.items()} | {"loss": np.asarray(loss)}
    wanted = {name.removeprefix(f"{case}/"): x for name, x in golden.items() if name.startswith(f"{case}/")}
    assert found.keys() == wanted.keys() - {"shapes"}
    errors = {}
    for name, x in found.items():
        *entries, _ = wanted[name]
        largest = wanted[name.replace("k_proj.bias", "q_proj.bias")][-1]
        errors[name] = np.abs(sampled(name, x) - np.array(entries)).max() / largest
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < TOLERANCE, f"{worst} is off by {errors[worst]:.1e} of its largest value"
