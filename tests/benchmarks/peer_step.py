"""Measures the seconds per step of transformers' PyTorch BERT or ModernBERT, started by benchmark_step.py in an environment that
has it."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import transformers

WIDTH, LAYERS = 256, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("bert", "modern"), required=True)
    for name in ("rows", "length", "predictions", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True, help="the type of products, by autocast")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model, batch = {"bert": bert, "modern": modern}[o.model](o)
    run = embedding(model.model.eval(), batch) if not o.predictions else training(model.train(), batch)
    seconds = []
    for _ in range(o.steps + 2):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bfloat16"):
            end = run()
        end()
        seconds.append(time.perf_counter() - start)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"seconds": seconds[2:], **versions}))


def bert(o: argparse.Namespace) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns BERT, and a batch of pairs."""
    config = transformers.BertConfig(
        num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=WIDTH // 64, intermediate_size=4 * WIDTH
    )
    batch = masked_rows(o, config.vocab_size) | {
        "token_type_ids": (torch.arange(o.length) >= o.length // 2).long().expand(o.rows, -1).contiguous(),
        "next_sentence_label": torch.randint(0, 2, (o.rows,)),
    }
    return transformers.BertForPreTraining(config), batch


def modern(o: argparse.Namespace) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns the model of experiments/pretrain/modern_laptop.py, whose head computes only the masked positions, and a batch."""
    config = transformers.ModernBertConfig(
        vocab_size=8_192, num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=WIDTH // 64, intermediate_size=384,
        local_attention=32, global_attn_every_n_layers=3, global_rope_theta=10_000.0, local_rope_theta=10_000.0,
        max_position_embeddings=o.length, sparse_prediction=True, pad_token_id=0, bos_token_id=2, cls_token_id=2, eos_token_id=3,
        sep_token_id=3,
    )  # fmt: skip
    return transformers.ModernBertForMaskedLM(config), masked_rows(o, config.vocab_size)


def masked_rows(o: argparse.Namespace, words: int) -> dict[str, torch.Tensor]:
    """Returns random rows without padding, with labels at `predictions` positions."""
    ids = torch.randint(1000, words, (o.rows, o.length))
    chosen = torch.rand(o.rows, o.length).argsort(1)[:, : o.predictions]
    labels = torch.full_like(ids, -100).scatter(1, chosen, ids.gather(1, chosen))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def training(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Returns a function that runs the forward pass, and returns a function for the rest of the training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def forward() -> Any:
        loss = model(**batch).loss

        def rest() -> None:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return rest

    return forward


def embedding(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Returns a function that averages the last layer over every row. That function returns one that does nothing."""
    rows = {name: x for name, x in batch.items() if name != "labels"}

    @torch.inference_mode()
    def forward() -> Any:
        model(**rows).last_hidden_state.mean(1).numpy(force=True)
        return lambda: None

    return forward


if __name__ == "__main__":
    main()
