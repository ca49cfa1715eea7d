"""The peer of `benchmark_dependencies.py`: transformers' attention weights, reduced in PyTorch. The last line is JSON."""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import resource
import time

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

Sentence = tuple[list[str], list[int], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--treebank", required=True)
    parser.add_argument("--hits", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    started = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = BertModel.from_pretrained(options.model, attn_implementation="eager").eval()
    count, hits = measured(model, tokenizer, options)
    first, seconds, cpu = time.perf_counter() - started, [], []
    for _ in range(options.repeats):
        started, used = time.perf_counter(), time.process_time()
        count, hits = measured(model, tokenizer, options)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    np.savez(options.hits, **hits)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"sentences": count, "first": first, "seconds": seconds, "cpu": cpu, "peak_mb": peak}))


def measured(model: BertModel, tokenizer, options: argparse.Namespace) -> tuple[int, dict[str, np.ndarray]]:
    """Returns (the number of sentences, relation -> hits [direction, layer, head])."""
    sentences = read(options.treebank)
    names = sorted({name for _, _, relations in sentences for name in relations})
    number = {name: i for i, name in enumerate(names)}
    encoded = tokenizer([words for words, _, _ in sentences], is_split_into_words=True, return_attention_mask=False)
    order = sorted(range(len(sentences)), key=lambda i: len(encoded["input_ids"][i]))
    shape = (2, model.config.num_hidden_layers, model.config.num_attention_heads, len(names))
    total = torch.zeros(shape)
    with torch.inference_mode():
        for start in range(0, len(order), options.batch_size):
            some = order[start : start + options.batch_size]
            ids = [encoded["input_ids"][i] for i in some]
            batch = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
            attentions = model(**batch, output_attentions=True).attentions
            words = [[-1 if word is None else word for word in encoded.word_ids(i)] for i in some]
            add(total, attentions, words, [sentences[i] for i in some], number)
    by_name = total.permute(3, 0, 1, 2).numpy()
    return len(sentences), {name: by_name[i] for name, i in number.items() if name != "root"}


def add(total: torch.Tensor, attentions, words: list[list[int]], sentences: list[Sentence], number: dict[str, int]) -> None:
    """Adds the hits of one batch to `total` [direction, layer, head, relation]."""
    rows, length = len(words), attentions[0].shape[-1]
    most = max(len(some) for some, _, _ in sentences)
    member = torch.zeros(rows, length, most)
    heads = torch.full((rows, most), -1)
    relations = torch.zeros(rows, most, dtype=torch.long)
    for i, (own, (_, some_heads, some_relations)) in enumerate(zip(words, sentences, strict=True)):
        places = [(at, word) for at, word in enumerate(own) if word >= 0]
        member[i, [at for at, _ in places], [word for _, word in places]] = 1
        heads[i, : len(some_heads)] = torch.tensor(some_heads)
        relations[i, : len(some_heads)] = torch.tensor([number[name] for name in some_relations])
    pieces = member.sum(1)
    shares = (member / pieces.clamp(min=1)[:, None]).transpose(1, 2)
    left_out = (pieces == 0)[:, None, :] | (pieces == 0)[:, :, None] | torch.eye(most, dtype=torch.bool)
    counted = heads >= 0
    for layer, attention in enumerate(attentions):
        between = torch.matmul(torch.matmul(shares[:, None], attention), member[:, None])
        between.masked_fill_(left_out[:, None], -1.0)
        for direction, axis in ((0, -1), (1, -2)):
            hits = between.argmax(axis) == heads[:, None]
            total[direction, layer].index_add_(1, relations[counted], hits.transpose(0, 1)[:, counted].float())


def read(path: str) -> list[Sentence]:
    """Returns the sentences of a treebank: words, heads from 0 (-1 for the root), relations."""
    data = pathlib.Path(path).read_bytes()
    text = (gzip.decompress(data) if path.endswith(".gz") else data).decode()
    sentences = []
    for block in text.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line and not line.startswith("#")]
        rows = [row for row in rows if row[0].isdigit()]
        if rows:
            sentences.append(([row[1] for row in rows], [int(row[6]) - 1 for row in rows], [row[7] for row in rows]))
    return sentences


if __name__ == "__main__":
    main()
