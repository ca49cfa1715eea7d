"""Measures the seconds per GPU training step of transformers' PyTorch BERT, started by benchmark_gpu_step.py in an environment
that has it."""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from gpu_timing import largest_rate, process_bytes, timed  # Python looks first in the folder of the script


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="holds rows.npz and vocab.txt")
    for name in ("device", "form", "mode"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("layers", "width", "rows", "workers", "side", "steps", "blocks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    o = parser.parse_args()
    device = torch.device({"gpu": "cuda", "cpu": "cpu"}[o.device])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and PyTorch sees none here; --device=cpu needs none")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    matmul = largest_rate(product(device, o.side), o.side)
    try:
        print(json.dumps({"matmul": matmul, **measured(o, device)}))
    except torch.OutOfMemoryError:
        print(json.dumps({"matmul": matmul, "out_of_memory": True}))


def measured(o: argparse.Namespace, device: torch.device) -> dict:
    """Returns the figures of one model and batch size."""
    config = transformers.BertConfig(
        num_hidden_layers=o.layers, hidden_size=o.width, num_attention_heads=o.width // 64, intermediate_size=4 * o.width
    )
    model = transformers.AutoModelForPreTraining.from_config(config, attn_implementation="sdpa").to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compiled = torch.compile(model, dynamic=False, **({} if o.mode == "default" else {"mode": o.mode}))
    batches = iter(loader(o, pinned=device.type == "cuda"))

    def step() -> float:
        started = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - started
        batch = {name: array.to(device, non_blocking=True) for name, array in batch.items()}
        with torch.autocast(device.type, torch.bfloat16):
            loss = compiled(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return waited

    timing = timed(step, functools.partial(finish, device), o.steps, o.blocks)
    gpu = device.type == "cuda"
    return {
        **timing,
        "peak_bytes": torch.cuda.max_memory_allocated() if gpu else process_bytes(),
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def loader(o: argparse.Namespace, pinned: bool) -> torch.utils.data.DataLoader:
    """Yields random rows, masked by the collator in worker processes."""
    with np.load(o.directory / "rows.npz") as file:
        columns = {name: file[name] for name in file.files}
    if o.form == "full":
        full = columns.pop("attention_mask").all(axis=1)
        columns = {name: array[full] for name, array in columns.items()}
    tokenizer = transformers.BertTokenizerFast.from_pretrained(o.directory)
    columns["special_tokens_mask"] = np.isin(columns["input_ids"], tokenizer.all_special_ids).astype(np.int32)
    lists = [column.tolist() for column in columns.values()]
    examples = [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer)

    def batch(rows: list[dict]) -> dict[str, torch.Tensor]:
        made = collator(rows)
        if o.form == "full":
            made.pop("attention_mask", None)  # the collator adds one
        return dict(made)

    return torch.utils.data.DataLoader(
        examples,
        o.rows,
        sampler=torch.utils.data.RandomSampler(examples, replacement=True, num_samples=10**8),
        collate_fn=batch,
        num_workers=o.workers,
        prefetch_factor=4,
        pin_memory=pinned,
        drop_last=True,
    )


def product(device: torch.device, side: int) -> Callable[[int], None]:
    """Multiplies random bfloat16 matrices this many times and waits for the last product."""
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))

    def repeat(times: int) -> None:
        for _ in range(times):
            torch.mm(a, b)
        finish(device)

    return repeat


def finish(device: torch.device) -> None:
    """Waits for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
