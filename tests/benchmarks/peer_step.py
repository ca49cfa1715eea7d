"""Seconds per training step of transformers' PyTorch BERT, started by benchmark_step.py in an environment that has it."""

from __future__ import annotations

import argparse
import json
import time

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("rows", "length", "predictions", "layers", "width", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True, help="of the products, by autocast")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=o.layers, hidden_size=o.width, num_attention_heads=o.width // 64, intermediate_size=4 * o.width
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(1000, config.vocab_size, (o.rows, o.length))
    chosen = torch.rand(o.rows, o.length).argsort(1)[:, : o.predictions]
    batch = {
        "input_ids": ids,
        "token_type_ids": (torch.arange(o.length) >= o.length // 2).long().expand(o.rows, -1).contiguous(),
        "attention_mask": torch.ones_like(ids),
        "labels": torch.full_like(ids, -100).scatter(1, chosen, ids.gather(1, chosen)),
        "next_sentence_label": torch.randint(0, 2, (o.rows,)),
    }
    seconds = []
    for _ in range(o.steps + 2):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"seconds": seconds[2:], **versions}))


if __name__ == "__main__":
    main()
