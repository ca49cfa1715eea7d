"""Measures the seconds per training step of a biLM made from PyTorch's LSTM, started by benchmark_bilm.py in an environment that
has it."""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch.nn import functional


class BiLm(torch.nn.Module):
    """Layers of LSTMs in two separate directions, and a softmax tied to the word vectors."""

    def __init__(self, o: argparse.Namespace):
        super().__init__()
        projected = o.width if o.width != o.cell else 0
        self.words = torch.nn.Embedding(o.vocabulary, o.width)
        lstms = [torch.nn.LSTM(o.width, o.cell, proj_size=projected) for _ in range(2 * o.layers)]
        self.directions = torch.nn.ModuleList([torch.nn.ModuleList(lstms[n::2]) for n in (0, 1)])
        self.bias = torch.nn.Parameter(torch.zeros(o.vocabulary))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of the words after `positions` [M, B] of `ids` [L, B], predicted from both sides."""
        targets, loss = ids.gather(0, positions + 1), 0.0
        for direction, lstms in enumerate(self.directions):
            x = self.words(ids.flip(0) if direction else ids)
            for n, lstm in enumerate(lstms):
                y, _ = lstm(functional.dropout(x, 0.1))
                x = x + y if n else y
            at = len(ids) - 1 - (positions + 2) if direction else positions
            read = functional.dropout(x.gather(0, at[..., None].expand(-1, -1, x.shape[-1])), 0.1)
            logits = functional.linear(read, self.words.weight, self.bias)
            loss = loss + functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / 2
        return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("rows", "length", "predictions", "layers", "vocabulary", "width", "cell", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model = BiLm(o).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(5, o.vocabulary, (o.length, o.rows))
    positions = torch.rand(o.length - 2, o.rows).argsort(0)[: o.predictions]
    seconds = []
    for _ in range(o.steps + 2):
        start = time.perf_counter()
        model(ids, positions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[2:], "torch": torch.__version__}))


if __name__ == "__main__":
    main()
