"""The peer of `benchmark_generate.py`: transformers' `generate` with its cache, in an interpreter that has it. The last line is
JSON."""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    for name in ("rows", "tokens", "beams", "repeats", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    prompts = json.loads(pathlib.Path(o.prompts).read_text())["ids"][: o.rows]
    model = transformers.BertLMHeadModel.from_pretrained(o.model).eval()
    ids = torch.tensor(prompts)
    settings = {"max_new_tokens": o.tokens, "do_sample": False, "num_beams": o.beams, "use_cache": True, "pad_token_id": 0}
    settings |= {"attention_mask": torch.ones_like(ids), "eos_token_id": 3}
    seconds = []
    with torch.inference_mode():
        for _ in range(o.repeats + 1):
            started = time.perf_counter()
            found = model.generate(ids, **settings)
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds[1:], "tokens": found[:, ids.shape[1] :].tolist()}))


if __name__ == "__main__":
    main()
