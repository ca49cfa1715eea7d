"""Loads an exported model directory with transformers and compares what it computes; prints one JSON object.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/check_export_with_transformers.py MODEL EXPECTED.npz RESAVED

EXPECTED.npz holds our inputs (`input_ids`, `token_type_ids`, `attention_mask`), our `mlm_logits` at every column, our
`nsp_logits`, and `texts` to tokenise. RESAVED is where `save_pretrained` writes the model again, for us to read back.
Run by `tests/interop/test_transformers_loads_exports.py` when BERT_JAX_PEER_PYTHON names such an interpreter.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
import transformers

CONFIG_FIELDS = ("hidden_act", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "pad_token_id")


def main(model_directory: str, expected_file: str, resaved: str) -> None:
    with np.load(expected_file) as file:
        expected = dict(file)
    model, loading = transformers.BertForPreTraining.from_pretrained(model_directory, output_loading_info=True)
    model.eval()
    with torch.no_grad():
        outputs = model(
            **{name: torch.from_numpy(expected[name]).long() for name in ("input_ids", "token_type_ids", "attention_mask")}
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory)
    real = expected["attention_mask"].astype(bool)
    report = {
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "loading": {key: sorted(map(str, names)) for key, names in loading.items() if names},
        "dtype": str(model.dtype),
        "mlm_difference": difference(outputs.prediction_logits.numpy()[real], expected["mlm_logits"][real]),
        "nsp_difference": difference(outputs.seq_relationship_logits.numpy(), expected["nsp_logits"]),
        "config": {name: getattr(model.config, name) for name in CONFIG_FIELDS},
        "tokenizer": type(tokenizer).__name__,
        "model_max_length": tokenizer.model_max_length,
        "mask_token_id": tokenizer.mask_token_id,
        "token_ids": [tokenizer(str(text))["input_ids"] for text in expected["texts"]],
    }
    model.save_pretrained(resaved)
    tokenizer.save_pretrained(resaved)
    print(json.dumps(report))


def difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """max |theirs - ours| / max |theirs|."""
    return float(np.abs(theirs - ours).max() / np.abs(theirs).max())


if __name__ == "__main__":
    main(*sys.argv[1:])
