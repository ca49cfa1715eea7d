"""Measures rows per second of transformers' DataCollatorForLanguageModeling, started by benchmark_batches.py in an environment
that has it.

The collator only masks, so its rows are already tokenised, paired and of full length. It gets them in every form that it accepts:
the form its documentation recommends (the output of a tokenizer, with special_tokens_mask), and simpler ones with only ids and
labels.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import numpy as np
import torch
import transformers

BATCH_SIZES = (64, 256, 1024)
DOCUMENTED, BARE = "as documented", "bare"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path, help="holds rows.npz and vocab.txt")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.BertTokenizerFast.from_pretrained(options.directory)
    with np.load(options.directory / "rows.npz") as file:
        rows, types = file["input_ids"].astype(np.int64), file["token_type_ids"].astype(np.int64)
    special = np.isin(rows, tokenizer.all_special_ids).astype(np.int64)
    names = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")
    columns = (rows, types, np.ones_like(rows), special)
    forms = [
        (DOCUMENTED, "dicts of lists", dicts(names, [column.tolist() for column in columns])),
        (DOCUMENTED, "dicts of arrays", dicts(names, columns)),
        (BARE, "dicts of ids and special_tokens_mask", dicts(names[::3], [column.tolist() for column in columns[::3]])),
        (BARE, "lists of ids", rows.tolist()),
        (BARE, "tensors of ids", list(torch.from_numpy(rows))),
    ]
    results = []

    def measure(use: str, how: str, size: int, batches) -> None:
        results.append({"use": use, "how": how, "batch_size": size, "rows_per_second": rate(batches, size, options.seconds)})

    for size in BATCH_SIZES:
        for kind in ("pt", "np"):
            collator = transformers.DataCollatorForLanguageModeling(tokenizer, return_tensors=kind)
            for use, name, examples in forms:
                if name != "tensors of ids" or kind == "pt":
                    parts = [examples[i : i + size] for i in range(0, len(examples) - size + 1, size)]
                    measure(use, f"{name} -> {kind}", size, cycle(collator, parts))
        collator = transformers.DataCollatorForLanguageModeling(tokenizer)
        sampler = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=10**8)
        for use, name, examples in (forms[0], forms[3]):
            loading = {"sampler": sampler, "collate_fn": collator, "num_workers": 2, "prefetch_factor": 4}
            loader = torch.utils.data.DataLoader(examples, size, **loading)
            measure(use, f"{name} -> pt, DataLoader with 2 workers", size, iter(loader))
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "results": results}))


def dicts(names, columns) -> list[dict]:
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def cycle(function, parts):
    while True:
        for part in parts:
            yield function(part)


def rate(batches, size: int, seconds: float) -> float:
    """Returns the rows per second, after two batches of warm-up."""
    for _ in range(2):
        next(batches)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(batches)
        count += 1
    return count * size / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
