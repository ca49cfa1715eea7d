"""Makes `heads/`: one tiny model directory for every BERT class of transformers, and PyTorch's outputs for it.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/make_heads_golden.py

Every case of `CASES` is a directory that `save_pretrained` wrote: config.json and the weights, whole, in shards or in half
precision. `tokenizer/` holds the vocabulary of all of them, `logits.npz` the batch and each case's outputs.
`tests/interop/test_round_trips.py` and `tests/interop/test_weights.py` read them.

- The outputs are computed in float64 and rounded once to float32, so that rounding in the reference cannot hide rounding in ours;
  `CASE/float32_error` is the error of PyTorch's own float32, relative to the largest value.
- The weights are far from their initial values, so that each one affects the outputs, and multiples of 2^-10 below 2, hence exact
  in float16.
- All shapes are unusual: the width, the heads' width, the depth and the numbers of token types and positions all vary.
"""

from __future__ import annotations

import pathlib
import shutil
import string
import sys
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.golden.exact_weights import fill

HERE = pathlib.Path(__file__).parent / "heads"
ROWS, LENGTH = 3, 10
REAL = (10, 7, 4)  # tokens that are not padding, per row
SECOND_SEGMENT = (6, 3, 2)  # where segment B begins, per row
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *SPECIALS, *string.ascii_lowercase, *(f"##{x}" for x in string.ascii_lowercase), *string.digits, *".,!?'()-:;",
    "the", "capital", "of", "is", "paris", "france", "river", "##ing", "##ed", "##er", "one", "two", "three", "four", "five",
    "six", "seven", "eight", "nine", "ten",
)  # fmt: skip
SHAPE: dict[str, Any] = {
    "vocab_size": len(PIECES), "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 16,
}  # fmt: skip
NAMES = ("no", "yes", "perhaps")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

# case -> (class, arguments of BertConfig beyond SHAPE, arguments of the class, arguments of save_pretrained)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "encoder": ("BertModel", {}, {}, {}),
    "encoder_without_pooler": (
        "BertModel",
        {"type_vocab_size": 1, "hidden_act": "gelu_new", "num_attention_heads": 2},
        {"add_pooling_layer": False},
        {},
    ),
    "pretraining": ("BertForPreTraining", {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 2}, {}, {}),
    "pretraining_untied": ("BertForPreTraining", {"tie_word_embeddings": False, "hidden_act": "relu"}, {}, {}),
    "masked": ("BertForMaskedLM", {"hidden_act": "gelu_new", "type_vocab_size": 1}, {}, {}),
    "masked_untied_in_shards": (
        "BertForMaskedLM",
        {"tie_word_embeddings": False, "layer_norm_eps": 1e-5},
        {},
        {"max_shard_size": "8KB"},
    ),
    "next_sentence": ("BertForNextSentencePrediction", {"hidden_size": 14, "num_attention_heads": 2}, {}, {}),
    "sequence": (
        "BertForSequenceClassification",
        {
            "id2label": dict(enumerate(NAMES)),
            "label2id": {name: i for i, name in enumerate(NAMES)},
            "classifier_dropout": 0.3,
            "initializer_range": 0.03,
        },
        {},
        {},
    ),
    "sequence_regression": (
        "BertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression", "hidden_act": "gelu_pytorch_tanh"},
        {},
        {},
    ),
    "sequence_multi_label": (
        "BertForSequenceClassification",
        {"num_labels": 4, "problem_type": "multi_label_classification", "type_vocab_size": 3, "num_attention_heads": 1},
        {},
        {},
    ),
    "token_in_shards": (
        "BertForTokenClassification",
        {
            "id2label": dict(enumerate(TAGS)),
            "label2id": {tag: i for i, tag in enumerate(TAGS)},
            "layer_norm_eps": 1e-5,
            "num_hidden_layers": 2,
        },
        {},
        {"max_shard_size": "5KB"},
    ),
    "token_half": ("BertForTokenClassification", {"num_labels": 3, "hidden_dropout_prob": 0.0}, {}, {}),
    "span": ("BertForQuestionAnswering", {"attention_probs_dropout_prob": 0.2, "max_position_embeddings": 11}, {}, {}),
    "choice": ("BertForMultipleChoice", {"classifier_dropout": 0.0, "intermediate_size": 7}, {}, {}),
}


def make_model(class_name: str, fields: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Returns a model in float64 whose weights are random and exact in float16."""
    config = transformers.BertConfig(**SHAPE | fields, attn_implementation="eager")
    model = getattr(transformers, class_name)(config, **arguments).to(torch.float64).eval()
    fill(model, 0.3)
    return model


def make_batch() -> dict[str, np.ndarray]:
    """Returns a batch, int32 [ROWS, LENGTH] each; for a model with one token type, all types are zero."""
    columns = np.arange(LENGTH)
    mask = np.stack([columns < n for n in REAL]).astype(np.int32)
    types = np.stack([columns >= n for n in SECOND_SEGMENT]).astype(np.int32) * mask
    ids = np.random.default_rng(11).integers(len(SPECIALS), len(PIECES), (ROWS, LENGTH)).astype(np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def run(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every output by transformers' name; for multiple choice, the rows are the candidates of one question."""
    inputs = {name: torch.from_numpy(value).long() for name, value in batch.items()}
    if model.config.type_vocab_size == 1:
        inputs["token_type_ids"] = torch.zeros_like(inputs["token_type_ids"])
    if type(model).__name__ == "BertForMultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        outputs = model(**inputs)
    return {name: value.numpy() for name, value in outputs.items() if value is not None}


def write_tokenizer(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True)
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(PIECES) + "\n")
    transformers.BertTokenizer(str(vocabulary)).save_pretrained(directory)


def main() -> None:
    assert len(PIECES) == len(set(PIECES)) == 97, len(PIECES)
    shutil.rmtree(HERE, ignore_errors=True)
    write_tokenizer(HERE / "tokenizer")
    batch = make_batch()
    stored: dict[str, np.ndarray] = dict(batch)
    for case, (class_name, fields, arguments, saving) in CASES.items():
        model = make_model(class_name, fields, arguments)
        reference = run(model, batch)
        single = run(model.to(torch.float32), batch)
        errors = [np.abs(single[name] - value).max() / np.abs(value).max() for name, value in reference.items()]
        stored |= {f"{case}/{name}": value.astype(np.float32) for name, value in reference.items()}
        stored[f"{case}/float32_error"] = np.array(max(errors))
        (model.half() if case.endswith("_half") else model).save_pretrained(HERE / case, **saving)
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in reference.items())
        print(f"{case}: {shapes}; PyTorch's float32 is off by {max(errors):.1e}")
    stored["made_with"] = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
    np.savez_compressed(HERE / "logits.npz", **stored)
    print(f"{sum(path.stat().st_size for path in HERE.rglob('*') if path.is_file()) / 1000:.0f} kB, {stored['made_with']}")


if __name__ == "__main__":
    main()
