"""Makes `modernbert_golden.npz`: transformers' outputs for modern encoders on random weights.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS_5 tests/golden/make_modernbert.py

ModernBERT with each bias on and off, odd windows and two pairs of rotary bases; EuroBERT with grouped-query heads; nomic-bert.
All sizes differ from each other. For each case the file has the loss and, for every hidden state, the logits and the gradient of
every parameter, SAMPLES entries chosen at random and the largest absolute value. `tests/model/test_modern_block.py` makes the
weights and the rows again (`weights_of`, `make_batch`), so the file has neither.

As in `make_bert_golden.py` the reference runs in float64, except for the angles of rotary positions, which transformers always
computes in float32. The script prints how far PyTorch's own float32 is from it.
"""

from __future__ import annotations

import json
import pathlib
import zlib
from typing import Any

import numpy as np

OUTPUT = pathlib.Path(__file__).parent / "modernbert_golden.npz"
SAMPLES = 128
ROWS, LENGTH, REAL = 2, 40, (40, 39)
PAD = 3
MODERN: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 7, "num_attention_heads": 3,
    "max_position_embeddings": 64, "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
    "classifier_bias": False, "decoder_bias": True, "local_attention": 8, "thetas": (160_000.0, 10_000.0), "pad_token_id": PAD,
    "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
EURO: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "pad_token_id": PAD, "bos_token_id": 1,
    "eos_token_id": 2, "mask_token_id": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
}  # fmt: skip
NOMIC: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": PAD,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000.0},
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "no_biases": ("ModernBert", MODERN),
    "all_biases": (
        "ModernBert",
        MODERN
        | dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
        | {"local_attention": 7, "thetas": (777.0, 33.0)},
    ),
    "norm_bias": ("ModernBert", MODERN | {"norm_bias": True, "local_attention": 2}),
    "attention_bias": ("ModernBert", MODERN | {"attention_bias": True, "local_attention": 13}),
    "mlp_bias": ("ModernBert", MODERN | {"mlp_bias": True, "num_hidden_layers": 4}),
    "classifier_bias": ("ModernBert", MODERN | {"classifier_bias": True, "num_hidden_layers": 1}),
    "no_decoder_bias": ("ModernBert", MODERN | {"decoder_bias": False, "num_hidden_layers": 2}),
    "eurobert": ("EuroBert", EURO),
    "eurobert_biases": ("EuroBert", EURO | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 3}),
    "nomic_bert": ("NomicBert", NOMIC),
}


def weights_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the weights of a tensor: multiples of 2^-10, far from their initial values; weights of norms are around 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    steps = rng.integers(-200, 201, shape) / 1024
    is_norm = "norm" in name.lower() and name.endswith("weight")
    return (steps + 1.0 if is_norm else steps).astype(np.float32)


def make_batch(types: int = 0) -> dict[str, np.ndarray]:
    """Returns the torch side's inputs, int64 [B, L]; `labels` is -100 at positions that are not predicted."""
    rng = np.random.default_rng(11)
    attention_mask = np.stack([np.arange(LENGTH) < n for n in REAL]).astype(np.int64)
    ids = np.where(attention_mask, rng.integers(5, 67, (ROWS, LENGTH)), PAD)
    labels = np.full((ROWS, LENGTH), -100, np.int64)
    for row, n in enumerate(REAL):
        chosen = rng.permutation(n)[: n // 4]
        labels[row, chosen] = rng.integers(5, 67, len(chosen))
    batch = {"input_ids": ids, "attention_mask": attention_mask, "labels": labels}
    if types:
        batch["token_type_ids"] = (np.arange(LENGTH) >= 17).astype(np.int64) * attention_mask
    return batch


def sampled(name: str, array: np.ndarray) -> np.ndarray:
    """Returns SAMPLES entries of an array, always the same ones for a name and a shape; all entries of a small array."""
    flat = np.asarray(array).reshape(-1)
    return flat[np.random.default_rng(zlib.crc32(name.encode())).permutation(flat.size)[:SAMPLES]]


def without_padding(name: str, array: np.ndarray) -> np.ndarray:
    """Returns only the rows of real tokens for outputs [B, L, ...], since in torch padding attends to other tokens. Removes
    the row of padding from the gradient of the word embeddings, since torch gives no gradient to padding in the input."""
    if name.startswith("gradient/"):
        return np.delete(array, PAD, axis=0) if name.endswith(("tok_embeddings.weight", "word_embeddings.weight")) else array
    return np.concatenate([row[:n] for row, n in zip(array, REAL, strict=True)])


def make_model(kind: str, settings: dict[str, Any], dtype: Any) -> Any:
    """Returns transformers' model with the weights of `weights_of`."""
    import torch
    import transformers

    settings = dict(settings)
    if thetas := settings.pop("thetas", None):
        settings["rope_parameters"] = {
            f"{layers}_attention": {"rope_type": "default", "rope_theta": theta}
            for layers, theta in zip(("full", "sliding"), thetas, strict=True)
        }
    config = getattr(transformers, f"{kind}Config")(**settings, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights_of(name, tuple(parameter.shape))))
    return model


def run(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every hidden state, the logits, the loss, and its gradient for every parameter."""
    import torch

    outputs = model(**{name: torch.from_numpy(value) for name, value in batch.items()}, output_hidden_states=True)
    outputs.loss.backward()
    arrays = {f"hidden/{n}": x for n, x in enumerate(outputs.hidden_states)} | {"logits": outputs.logits}
    arrays |= {f"gradient/{name}": parameter.grad for name, parameter in model.named_parameters()}
    found = {name: without_padding(name, x.detach().numpy()) for name, x in arrays.items()}
    return found | {"loss": outputs.loss.detach().numpy()}


def main() -> None:
    import torch
    import transformers

    stored: dict[str, np.ndarray] = {}
    for case, (kind, settings) in CASES.items():
        batch = make_batch(settings.get("type_vocab_size", 0))
        model = make_model(kind, settings, torch.float64)
        reference, single = run(model, batch), run(make_model(kind, settings, torch.float32), batch)
        error, where = max((np.abs(single[name] - x).max() / np.abs(x).max(), name) for name, x in reference.items())
        print(f"{case}: loss {reference['loss']:.4f}; PyTorch's float32 is furthest in {where}: {error:.1e}")
        for name, x in reference.items():
            stored[f"{case}/{name}"] = np.append(sampled(name, x), np.abs(x).max()).astype(np.float32)
        shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        stored[f"{case}/shapes"] = np.array(json.dumps(shapes))
    stored["made_with"] = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
    np.savez_compressed(OUTPUT, **stored)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB, {stored['made_with']}")


if __name__ == "__main__":
    main()
