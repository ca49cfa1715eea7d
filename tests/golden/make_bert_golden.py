"""Makes `bert_golden.npz`: the outputs of transformers' PyTorch BERT on random weights, in double precision.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/make_bert_golden.py

The file holds one tiny `BertForPreTraining` and one padded batch, and for either form of GELU every hidden state, the pooler's
output, both heads' logits, the loss and the gradient of every parameter. `tests/model/test_against_transformers.py` compares ours
with it.

Choices that make the comparison strict:
- float64 throughout, so that rounding in the reference cannot hide rounding in ours. The script prints how far PyTorch's own
  float32 is from it.
- Weights far from their initial values (LayerNorm and biases included), so that each one affects the outputs. They are multiples
  of 2^-10 below 2, hence exact in float16 and float32: both sides compute with the very same numbers.
- Dropout 0, eager attention, two segments, and padding in the second row.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.golden.exact_weights import fill

OUTPUT = pathlib.Path(__file__).parent / "bert_golden.npz"
VOCABULARY, WIDTH, LAYERS, HEADS, FEED_FORWARD, MAX_POSITION = 97, 20, 3, 4, 44, 40
ROWS, LENGTH = 2, 24
REAL = (24, 17)  # tokens that are not padding, per row
SECOND_SEGMENT = (13, 8)  # where segment B begins, per row
MASKED = ((2, 5, 11, 20), (1, 9, 15))
GELUS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}  # our name: their name


def make_model(hidden_act: str, dtype: torch.dtype) -> transformers.BertForPreTraining:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
        max_position_embeddings=MAX_POSITION,
        hidden_act=hidden_act,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertForPreTraining(config).to(dtype).eval()
    fill(model)
    return model


def make_batch() -> dict[str, np.ndarray]:
    """Returns the torch side's inputs, int64 [B, L] except for `next_sentence_label` [B]; `labels` is -100 at positions that are
    not predicted."""
    rng = np.random.default_rng(11)
    columns = np.arange(LENGTH)
    attention_mask = np.stack([columns < n for n in REAL]).astype(np.int64)
    token_type_ids = np.stack([columns >= n for n in SECOND_SEGMENT]) * attention_mask
    input_ids = rng.integers(5, VOCABULARY, (ROWS, LENGTH)) * attention_mask
    labels = np.full((ROWS, LENGTH), -100, np.int64)
    for row, positions in enumerate(MASKED):
        labels[row, list(positions)] = rng.integers(5, VOCABULARY, len(positions))
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "labels": labels,
        "next_sentence_label": np.array([0, 1], np.int64),
    }


def run(model: transformers.BertForPreTraining, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every output and every gradient of the pretraining loss, in the model's own precision."""
    inputs = {name: torch.from_numpy(value) for name, value in batch.items()}
    model.zero_grad()
    outputs = model(**inputs, output_hidden_states=True)
    outputs.loss.backward()
    with torch.no_grad():
        pooled = model.bert(**{k: inputs[k] for k in ("input_ids", "attention_mask", "token_type_ids")}).pooler_output
    arrays = {
        "hidden_states": torch.stack(outputs.hidden_states),  # [N+1, B, L, D]: the embeddings, then every layer
        "pooler_output": pooled,
        "mlm_logits": outputs.prediction_logits,
        "nsp_logits": outputs.seq_relationship_logits,
        "loss": outputs.loss,
    }
    arrays |= {f"gradient/{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.detach().numpy() for name, value in arrays.items()}


def main() -> None:
    batch = make_batch()
    stored: dict[str, np.ndarray] = {f"inputs/{name}": value.astype(np.int32) for name, value in batch.items()}
    for ours, theirs in GELUS.items():
        model = make_model(theirs, torch.float64)
        reference = run(model, batch)
        single = run(make_model(theirs, torch.float32), batch)
        # The gradient of a key bias is only rounding: the bias adds a constant to all scores of a query, and softmax ignores
        # that.
        compared = {name: value for name, value in reference.items() if not name.endswith("key.bias")}
        error, where = max((np.abs(single[name] - value).max() / np.abs(value).max(), name) for name, value in compared.items())
        print(f"{ours}: loss {reference['loss']:.6f}; PyTorch's float32 is furthest from its float64 in {where}: {error:.1e}")
        stored |= {f"parameters/{name}": value.detach().numpy().astype(np.float16) for name, value in model.named_parameters()}
        stored |= {f"{ours}/{name}": value.astype(np.float32) for name, value in reference.items()}
    stored["made_with"] = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
    np.savez_compressed(OUTPUT, **stored)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB, {stored['made_with']}")


if __name__ == "__main__":
    main()
