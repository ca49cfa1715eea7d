"""Makes `causal_golden.npz`: the outputs and generated tokens of transformers' BertLMHeadModel, a left-to-right BERT, on random
weights.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/make_causal_golden.py

The file holds one tiny model in the form of `make_bert_golden.py` (float64, weights that are exact in float16), the logits of
every position of a batch, and for each of a few prompts the tokens that `generate` adds: the most probable ones, by beam search,
and by beam search with another length penalty. `tests/prediction/test_decoding.py` compares ours with them. The bias of [SEP] is
raised so that some texts end early and some do not.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.golden.exact_weights import fill

OUTPUT = pathlib.Path(__file__).parent / "causal_golden.npz"
VOCABULARY, WIDTH, LAYERS, HEADS, FEED_FORWARD, MAX_POSITION = 97, 20, 3, 4, 44, 40
CLS, SEP = 2, 3
PROMPTS, LENGTHS, NEW = 6, (3, 5, 8, 5, 1, 12), 14
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams_3": {"num_beams": 3},
    "beams_4_long": {"num_beams": 4, "length_penalty": 2.0},
    "beams_2_short": {"num_beams": 2, "length_penalty": -1.0},
}


def make_model() -> transformers.BertLMHeadModel:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
        max_position_embeddings=MAX_POSITION,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        is_decoder=True,
        bos_token_id=CLS,
        eos_token_id=SEP,
        pad_token_id=0,
    )
    model = transformers.BertLMHeadModel(config).to(torch.float64).eval()
    fill(model)
    with torch.no_grad():
        model.cls.predictions.bias[SEP] = 2.5
    return model


def main() -> None:
    model, rng = make_model(), np.random.default_rng(11)
    ids = rng.integers(5, VOCABULARY, (PROMPTS, max(LENGTHS)))
    ids[:, 0] = CLS
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)).logits.numpy()
    stored: dict[str, np.ndarray] = {"input_ids": ids.astype(np.int32), "lengths": np.array(LENGTHS, np.int32)}
    stored |= {"logits": logits.astype(np.float32)}
    stored |= {f"parameters/{name}": value.detach().numpy().astype(np.float16) for name, value in model.named_parameters()}
    for name, settings in SEARCHES.items():
        added = np.zeros((PROMPTS, NEW), np.int32)
        for row, length in enumerate(LENGTHS):
            prompt = torch.from_numpy(ids[row : row + 1, :length])
            whole = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, **settings
            )
            tokens = whole[0, length:].numpy()
            added[row, : len(tokens)] = tokens
        print(name, *added.tolist(), sep="\n  ")
        stored[name] = added
    stored["made_with"] = np.array(f"torch {torch.__version__}, transformers {transformers.__version__}")
    np.savez_compressed(OUTPUT, **stored)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB, {stored['made_with']}")


if __name__ == "__main__":
    main()
