"""The peer of `benchmark_translation.py`: transformers' Marian from random weights, in an interpreter that has it. The last line
is JSON.

It trains on the pairs of a file in batches of a given number of pairs, each padded to its longest pair. Similar lengths are put
together within 50 batches, as transformers' Trainer does with `group_by_length`. The optimizer, schedule, label smoothing and
mean of the last weights are the same as in our run. Then it translates the held-out sources, with similar lengths together.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import torch
import transformers

GROUP = 50
"""The number of batches within which similar lengths are put together."""
IGNORED = -100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="holds settings.json and pairs.npz")
    parser.add_argument("--model", help="a trained Marian: only translate, without training")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name in ("steps", "threads", "batch-size", "beams"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1, help="how often to translate")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    transformers.logging.set_verbosity_error()
    settings = json.loads((o.directory / "settings.json").read_text())
    pairs = dict(np.load(o.directory / "pairs.npz").items())
    if o.model:
        model, seconds = transformers.MarianMTModel.from_pretrained(o.model).to(o.device), []
    else:
        config = transformers.MarianConfig(**settings["config"])
        model = transformers.MarianMTModel(config).to(o.device)
        seconds = trained(model, settings["training"], pairs, o.steps, o.seed)
    translations, took = [], []
    if o.beams:
        sources = rows_of(pairs, "test_source")
        for _ in range(o.repeats):
            started = time.perf_counter()
            translations = translated(model.eval(), sources, o.batch_size, o.beams, settings["longest"])
            took.append(time.perf_counter() - started)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"seconds": seconds, "translations": translations, "translation_seconds": took, **versions}))


def rows_of(pairs: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Returns the rows of a list of texts that is stored as its tokens and the ends of the texts."""
    return np.split(pairs[name], pairs[f"{name}_ends"][:-1])


def batches(sources: list[np.ndarray], targets: list[np.ndarray], size: int, seed: int) -> Iterator[np.ndarray]:
    """Yields the indices of the pairs of each batch; an epoch has every pair once."""
    generator = np.random.default_rng(seed)
    lengths = np.array([len(a) + len(b) for a, b in zip(sources, targets, strict=True)])
    while True:
        order = generator.permutation(len(sources))
        groups = [order[i : i + GROUP * size] for i in range(0, len(order), GROUP * size)]
        found = [group[np.argsort(-lengths[group], kind="stable")] for group in groups]
        whole = [group[i : i + size] for group in found for i in range(0, len(group), size)]
        generator.shuffle(whole)
        yield from whole


def padded(rows: list[np.ndarray], fill: int) -> torch.Tensor:
    """Returns the rows as one int64 tensor."""
    found = np.full((len(rows), max(map(len, rows))), fill, np.int64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return torch.from_numpy(found)


def trained(model, training: dict, pairs: dict[str, np.ndarray], steps: int, seed: int) -> list[float]:
    """Trains the model. Returns the seconds of each step, including making its batch."""
    sources, targets = rows_of(pairs, "source"), rows_of(pairs, "target")
    device, pad = next(model.parameters()).device, model.config.pad_token_id
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=training["betas"], eps=training["epsilon"], weight_decay=0.0, fused=True
    )
    peak, warmup = training["learning_rate"], training["warmup_steps"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: peak * min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    )
    kept: list[dict[str, torch.Tensor]] = []
    seconds = []
    model.train()
    for step, chosen in zip(range(steps), batches(sources, targets, training["pairs"], seed), strict=False):
        started = time.perf_counter()
        read = padded([sources[i] for i in chosen], pad)
        labels = padded([targets[i] for i in chosen], IGNORED)
        before = torch.cat([torch.full((len(chosen), 1), pad), labels[:, :-1]], 1)
        before = before.masked_fill(before == IGNORED, pad)
        real = (read != pad).long()
        real[:, 0] = 1
        read, labels, before, real = (x.to(device) for x in (read, labels, before, real))
        logits = model(input_ids=read, attention_mask=real, decoder_input_ids=before, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=training["label_smoothing"]
        )
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - started)
        if (step + 1) % training["every"] == 0:
            kept = [*kept, {name: x.detach().clone() for name, x in model.state_dict().items()}][-training["averaged"] :]
            print(f"step {step + 1}  loss {loss.item():.3f}  {sum(seconds):.0f} s", flush=True)
    if kept:
        model.load_state_dict({name: torch.stack([state[name] for state in kept]).mean(0) for name in kept[0]})
    return seconds


@torch.inference_mode()
def translated(model, sources: list[np.ndarray], size: int, beams: int, longest: int) -> list[list[int]]:
    """Returns the ids of the translation of each source, without padding and end, by beam search with length penalty 1."""
    device, config = next(model.parameters()).device, model.config
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: list[list[int]] = [[]] * len(sources)
    for first in range(0, len(order), size):
        some = order[first : first + size]
        rows = padded([sources[i] for i in some], config.pad_token_id).to(device)
        real = (rows != config.pad_token_id).long()
        answers = model.generate(
            rows, attention_mask=real, num_beams=beams, length_penalty=1.0, early_stopping=False, max_length=longest,
            bad_words_ids=[[config.pad_token_id]], forced_eos_token_id=config.eos_token_id,
        )  # fmt: skip
        for i, answer in zip(some, answers.tolist(), strict=True):
            found[i] = [token for token in answer if token not in (config.pad_token_id, config.eos_token_id)]
    return found


if __name__ == "__main__":
    main()
