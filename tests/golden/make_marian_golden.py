"""Makes `marian/`: tiny model directories of Marian's encoder-decoders, with PyTorch's outputs and generated tokens.

    PYTHON_WITH_TRANSFORMERS_5 tests/golden/make_marian_golden.py
    PYTHON_WITH_TRANSFORMERS_4 tests/golden/make_marian_golden.py

Every case is a directory that `save_pretrained` wrote, with `outputs.npz`: a batch of sources and targets of different lengths,
all hidden states, attention weights and logits, the loss with transformers' LabelSmoother and its gradients, computed in float64
(with the relative errors of PyTorch's gradients in float32), and the tokens of `generate` (greedy, and beam search with several
length penalties). The second command makes the case of version 4. `tests/interop/test_marian.py` and `tests/prediction/
test_translating.py` read them. The weights are as in `make_families_golden.py`. The vocabulary is `heads/tokenizer`: padding is
0, and 3 ends a text.
"""

from __future__ import annotations

import copy
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_pt_utils import LabelSmoother

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.golden.exact_weights import fill

HERE = pathlib.Path(__file__).parent / "marian"
PAD, END = 0, 3
SHAPE: dict[str, Any] = {
    "vocab_size": 97, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 10, "decoder_ffn_dim": 10, "max_position_embeddings": 30,
    "pad_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": END, "decoder_start_token_id": PAD, "bos_token_id": None,
    "dropout": 0.0, "attention_dropout": 0.0, "attn_implementation": "eager",
}  # fmt: skip
# case -> arguments of its configuration beyond SHAPE
CASES: dict[str, dict[str, Any]] = {
    "shared": {"activation_function": "swish", "scale_embedding": True},
    "separate": {
        "activation_function": "relu", "scale_embedding": True, "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 83,
    },
    "untied": {
        "activation_function": "gelu", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 83,
        "tie_word_embeddings": False, "d_model": 15, "encoder_layers": 3, "decoder_layers": 1,
    },
}  # fmt: skip
CASES_OF_VERSION_4: dict[str, dict[str, Any]] = {"shared4": {"activation_function": "relu", "scale_embedding": True}}
SOURCES, TARGETS = (9, 4, 6, 2), (7, 5, 3, 6)
LONGEST = 12
PENALTIES = (0.0, 0.6, 1.0, 2.0)
SEARCHES = {"greedy": {"num_beams": 1}} | {
    f"beams_4_{penalty}_{early}": {"num_beams": 4, "length_penalty": penalty, "early_stopping": early}
    for penalty in PENALTIES
    for early in (False, True)
}


def make_model(fields: dict[str, Any]) -> transformers.MarianMTModel:
    config = transformers.MarianConfig(**SHAPE | fields)
    model = transformers.MarianMTModel(config).to(torch.float64).eval()
    positions = model.model.encoder.embed_positions.weight.detach().clone()
    fill(model, spread=0.3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layer_norm.weight"):
                parameter += 1
            elif "embed_positions" in name:  # not parameters of ours, although transformers lists them
                parameter.copy_(positions)
    model.tie_weights()
    rng = np.random.default_rng(3)
    with torch.no_grad():
        bias = np.round(rng.normal(0, 0.5, model.final_logits_bias.shape) * 1024) / 1024
        model.final_logits_bias.copy_(torch.from_numpy(bias))
    return model


def with_varied_ends(model: Any, batch: dict[str, np.ndarray], mask: np.ndarray) -> None:
    """Sets the bias of the end token so that texts end after as many different numbers of tokens as possible."""

    def distinct(bias: float) -> int:
        model.final_logits_bias[0, END] = bias
        found = generated(model, batch, mask, ("greedy", "beams_4_1.0_False"))
        return sum(len(np.unique((tokens == END).argmax(1))) for tokens in found.values())

    model.final_logits_bias[0, END] = max(np.arange(1.0, 4.0, 0.25), key=distinct)


def make_batch(target_words: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)

    def side(lengths: tuple[int, ...], words: int, fill: int) -> np.ndarray:
        ids = np.full((len(lengths), max(lengths)), fill, np.int32)
        for row, length in enumerate(lengths):
            ids[row, : length - 1], ids[row, length - 1] = rng.integers(5, words, length - 1), END
        return ids

    return {"input_ids": side(SOURCES, 97, PAD), "labels": side(TARGETS, target_words, -100)}


def run(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every output by transformers' name, layers stacked, the smoothed loss, and the gradients of the parameters."""
    model.zero_grad()
    ids, labels = (torch.from_numpy(batch[name]).long() for name in ("input_ids", "labels"))
    mask = torch.from_numpy(np.arange(ids.shape[1]) < np.array(SOURCES)[:, None]).long()
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True, output_attentions=True)
    loss = LabelSmoother(epsilon=0.1)({"logits": outputs.logits}, labels)
    loss.backward()
    found = {"attention_mask": mask.numpy().astype(np.int32), "loss": loss, "logits": outputs.logits}
    stacks = (f"{side}_hidden_states" for side in ("encoder", "decoder")), ("encoder_attentions", "decoder_attentions")
    for name in (*stacks[0], *stacks[1], "cross_attentions"):
        found[name] = torch.stack(outputs[name])
    found |= {f"gradients/{name}": parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: x.detach().numpy() if isinstance(x, torch.Tensor) else x for name, x in found.items()}


def generated(model: Any, batch: dict[str, np.ndarray], mask: np.ndarray, names: Any = tuple(SEARCHES)) -> dict[str, np.ndarray]:
    """Returns the tokens of the searches, without the start token, padded."""
    ids, mask = torch.from_numpy(batch["input_ids"]).long(), torch.from_numpy(mask).long()
    found = {}
    usual = {"max_length": LONGEST, "do_sample": False, "bad_words_ids": [[PAD]], "forced_eos_token_id": END}
    for name in names:
        tokens = model.generate(ids, attention_mask=mask, **usual, **SEARCHES[name])[:, 1:].numpy()
        found[f"generated/{name}"] = np.pad(tokens, ((0, 0), (0, LONGEST - 1 - tokens.shape[1]))).astype(np.int32)
    return found


def main() -> None:
    torch.set_num_threads(1)
    version = int(transformers.__version__.split(".")[0])
    for case, fields in (CASES if version == 5 else CASES_OF_VERSION_4).items():
        shutil.rmtree(HERE / case, ignore_errors=True)
        model = make_model(fields)
        batch = make_batch(fields.get("decoder_vocab_size", 97))
        mask = (np.arange(max(SOURCES)) < np.array(SOURCES)[:, None]).astype(np.int32)
        with_varied_ends(model, batch, mask)
        outputs = run(model, batch)
        narrow = run(copy.deepcopy(model).to(torch.float32), batch)
        outputs |= {
            name.replace("gradients/", "float32_errors/"): np.abs(narrow[name] - x).max() / np.abs(x).max()
            for name, x in outputs.items()
            if name.startswith("gradients/")
        }
        new = generated(model, batch, outputs["attention_mask"])
        model.to(torch.float32).save_pretrained(HERE / case)
        stored = {f"outputs/{name}": np.asarray(value, np.float32) for name, value in outputs.items() if name != "attention_mask"}
        made_with = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
        batch["attention_mask"] = outputs["attention_mask"]
        np.savez_compressed(HERE / case / "outputs.npz", **batch, **stored, **new, made_with=made_with)
        lengths = {name.split("/")[1]: [int((row == END).argmax()) + 1 for row in x] for name, x in new.items()}
        size = sum(path.stat().st_size for path in (HERE / case).iterdir())
        print(f"{case}: loss {float(outputs['loss']):.4f}, {lengths}; {size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
