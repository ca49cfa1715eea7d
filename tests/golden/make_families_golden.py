"""Makes `families/`: tiny model directories of ModernBERT, EuroBERT and nomic-bert, and PyTorch's outputs for them.

    PYTHON_WITH_TRANSFORMERS_5 tests/golden/make_families_golden.py
    PYTHON_WITH_TRANSFORMERS_4 tests/golden/make_families_golden.py

Every case is a directory that `save_pretrained` wrote, with `outputs.npz`: the batch, and the outputs, computed in float64. The
second command makes the cases of version 4, whose config.json has other keys. The vocabulary is that of `heads/tokenizer`.
`defaults.json` has the default configuration of each family. `tests/interop/test_families.py` reads all of these files. The
weights are as in `make_heads_golden.py`: far from their initial values, and multiples of 2^-10. All shapes are unusual, and the
window is shorter than the rows.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent / "families"
LENGTH, REAL = 14, (14, 13, 12)  # tokens of a row, including padding and without it
SHAPE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10,
    "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
THREE = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
MODERN = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 6}
LAYERS = {"num_hidden_layers": 5}
THETAS = {"full_attention": {"rope_type": "default", "rope_theta": 777.0}, "sliding_attention": {"rope_theta": 33.0}}
BIASED = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
TANH = "gelu_pytorch_tanh"
EURO = {"bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 4}

KINDS = ("bert", "modernbert", "eurobert", "nomic_bert")

# case -> (class, arguments of its configuration beyond SHAPE)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert_masked": ("ModernBertForMaskedLM", {**MODERN, **LAYERS, "rope_parameters": THETAS, "classifier_pooling": "mean"}),
    "modernbert_masked_biased": (
        "ModernBertForMaskedLM",
        {
            **MODERN,
            **BIASED,
            "num_hidden_layers": 3,
            "local_attention": 5,
            "tie_word_embeddings": False,
            "norm_eps": 1e-4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "modernbert_encoder": (
        "ModernBertModel",
        {**MODERN, **LAYERS, "decoder_bias": False, "hidden_activation": TANH, "classifier_activation": TANH},
    ),
    "modernbert_sequence": ("ModernBertForSequenceClassification", {**MODERN, **THREE, "classifier_dropout": 0.25}),
    "modernbert_sequence_mean": (
        "ModernBertForSequenceClassification",
        {**MODERN, **BIASED, "classifier_pooling": "mean", "num_labels": 1, "problem_type": "regression"},
    ),
    "modernbert_token": ("ModernBertForTokenClassification", {**MODERN, **THREE, "classifier_pooling": "mean"}),
    "modernbert_span": ("ModernBertForQuestionAnswering", {**MODERN, "num_labels": 2}),
    "modernbert_choice": ("ModernBertForMultipleChoice", {**MODERN}),
    "eurobert_masked": ("EuroBertForMaskedLM", {**EURO, "num_key_value_heads": 1, "rope_parameters": {"rope_theta": 555.0}}),
    "eurobert_masked_biased": (
        "EuroBertForMaskedLM",
        {**EURO, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "eurobert_encoder": ("EuroBertModel", {**EURO, "hidden_act": "gelu"}),
    "eurobert_sequence": ("EuroBertForSequenceClassification", {**EURO, **THREE}),
    "eurobert_sequence_bos": ("EuroBertForSequenceClassification", {**EURO, **THREE, "classifier_pooling": "bos"}),
    "eurobert_sequence_mean": ("EuroBertForSequenceClassification", {**EURO, **THREE, "classifier_pooling": "mean"}),
    "eurobert_token": ("EuroBertForTokenClassification", {**EURO, **THREE}),
    "nomic_bert_masked": ("NomicBertForMaskedLM", {"rope_parameters": {"rope_theta": 321.0}, "type_vocab_size": 3}),
    "nomic_bert_encoder": ("NomicBertModel", {"layer_norm_eps": 1e-5}),
    "nomic_bert_sequence": ("NomicBertForSequenceClassification", {**THREE, "classifier_dropout": 0.25}),
    "nomic_bert_token": ("NomicBertForTokenClassification", {**THREE}),
}
CASES_OF_VERSION_4: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert4_masked": (
        "ModernBertForMaskedLM",
        {**MODERN, **LAYERS, "global_rope_theta": 777.0, "local_rope_theta": 33.0, "global_attn_every_n_layers": 2},
    ),
    "modernbert4_sequence": ("ModernBertForSequenceClassification", {**MODERN, **THREE, "local_rope_theta": None}),
}


def make_model(class_name: str, fields: dict[str, Any]) -> Any:
    """Returns a model in float64 whose weights are random and exact in float16."""
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**SHAPE | fields, attn_implementation="eager")
    model = model_class(config).to(torch.float64).eval()
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith(".weight")
            centre, deviation = (1.0, 0.2) if is_scale else (0.0, 0.2)
            values = np.clip(centre + deviation * rng.standard_normal(parameter.shape), -1.99, 1.99)
            parameter.copy_(torch.from_numpy(np.round(values * 1024) / 1024))
    return model


def make_batch() -> dict[str, np.ndarray]:
    """Returns a batch, int32 [rows, LENGTH] each."""
    columns = np.arange(LENGTH)
    mask = np.stack([columns < n for n in REAL]).astype(np.int32)
    ids = np.random.default_rng(11).integers(5, SHAPE["vocab_size"], (len(REAL), LENGTH)).astype(np.int32) * mask
    types = np.stack([columns >= n // 2 for n in REAL]).astype(np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def run(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every output by transformers' name; for multiple choice, the rows are the candidates of one question."""
    inputs = {name: torch.from_numpy(value).long() for name, value in batch.items()}
    if not getattr(model.config, "type_vocab_size", 0):
        del inputs["token_type_ids"]
    if "MultipleChoice" in type(model).__name__:
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        outputs = model(**inputs)
    return {name: value.numpy() for name, value in outputs.items() if value is not None}


def main() -> None:
    version = int(transformers.__version__.split(".")[0])
    if version == 5:
        defaults = {kind: transformers.CONFIG_MAPPING[kind]().to_dict() for kind in KINDS}
        (HERE / "defaults.json").write_text(json.dumps(defaults, indent=1) + "\n")
    for case, (class_name, fields) in (CASES if version == 5 else CASES_OF_VERSION_4).items():
        shutil.rmtree(HERE / case, ignore_errors=True)
        model, batch = make_model(class_name, fields), make_batch()
        outputs = run(model, batch)
        model.to(torch.float32).save_pretrained(HERE / case)
        stored = {f"outputs/{name}": value.astype(np.float32) for name, value in outputs.items()}
        made_with = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
        np.savez_compressed(HERE / case / "outputs.npz", **batch, **stored, made_with=made_with)
        size = sum(path.stat().st_size for path in (HERE / case).iterdir())
        print(f"{case}: {', '.join(f'{name} {list(x.shape)}' for name, x in outputs.items())}; {size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
