"""Writes stable_adamw_golden.npz: parameters after 50 steps of the StableAdamW with which ModernBERT was trained.

    python tests/golden/make_stable_adamw.py

It needs a Python with numpy, torch 2.13.0 and torch-optimi 0.3.3.

The parameters are two layers, in which query, key and value are one tensor (Wqkv), and so are the two halves of the gated
feed-forward (Wi). The gradients grow tenfold for a few steps, so that the clipping of StableAdamW has an effect. optimi
computes in float64, and the result is rounded once to float32.
"""

from __future__ import annotations

import pathlib

import numpy as np

GOLDEN = pathlib.Path(__file__).with_name("stable_adamw_golden.npz")
STEPS, PEAK = 50, 0.02
RUNS = {"decoupled": (0.1, False), "fully_decoupled": (0.01, True)}
"""Name -> (weight decay, decouple_lr)."""
BETAS, EPSILON = (0.9, 0.98), 1e-6
LAYERS = 2
SHAPES = {
    "attention/query/kernel": (6, 2, 3),
    "attention/key/kernel": (6, 2, 3),
    "attention/value/kernel": (6, 2, 3),
    "attention/output/kernel": (2, 3, 6),
    "attention_layer_norm/scale": (6,),
    "feed_forward/intermediate/kernel": (6, 5),
    "feed_forward/gate/kernel": (6, 5),
    "feed_forward/output/kernel": (5, 6),
}
"""The arrays of a layer."""
TABLE = (11, 6)
FUSED = (
    ("attention/query/kernel", "attention/key/kernel", "attention/value/kernel"),
    ("feed_forward/intermediate/kernel", "feed_forward/gate/kernel"),
)


def rate(step: int) -> float:
    """Returns the learning rate: a warmup over 10 steps, then the peak."""
    return PEAK * min(1.0, (step + 1) / 10)


def random_arrays(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Returns random numbers for every parameter: "table", and a layer's as "layer/path"."""
    rng = np.random.default_rng(seed)
    shapes = {"table": TABLE} | {f"{n}/{path}": shape for n in range(LAYERS) for path, shape in SHAPES.items()}
    return {name: scale * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def gradients(step: int) -> dict[str, np.ndarray]:
    """Returns the gradients of a step: larger in some steps, of different size in every array, and 0 in rows of the table that
    are rare."""
    found = random_arrays(1_000 + step, 10.0 if step % 17 in (11, 12) else 1.0)
    sizes = np.random.default_rng(7).uniform(-3, 0, len(found))
    found = {name: (array * 10.0**size).astype(np.float32) for (name, array), size in zip(found.items(), sizes, strict=True)}
    found["table"][step % TABLE[0] :: 3] = 0.0
    return found


def main() -> None:
    """Trains with optimi and writes the file."""
    import torch
    from optimi import StableAdamW

    names = list(random_arrays(0))
    fused = {f"{n}/{path}": f"{n}/{'+'.join(group)}" for n in range(LAYERS) for group in FUSED for path in group}
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(fused.get(name, name), []).append(name)

    def joined(arrays: dict[str, np.ndarray], tensor: str) -> np.ndarray:
        return np.concatenate([arrays[name].reshape(-1) for name in members[tensor]])

    written = {}
    for run, (decay, decoupled) in RUNS.items():
        tensors = {tensor: torch.nn.Parameter(torch.from_numpy(joined(random_arrays(0), tensor)).double()) for tensor in members}
        of_norms = [tensor for tensor in tensors if "norm" in tensor]
        groups = [
            {"params": [p for name, p in tensors.items() if name not in of_norms]},
            {"params": [tensors[name] for name in of_norms], "weight_decay": 0.0},
        ]
        optimizer = StableAdamW(
            groups, lr=PEAK, betas=BETAS, weight_decay=decay, eps=EPSILON, decouple_lr=decoupled, max_lr=PEAK, triton=False
        )
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            of_step = gradients(step)
            for tensor, parameter in tensors.items():
                parameter.grad = torch.from_numpy(joined(of_step, tensor)).double()
            optimizer.step()
        for tensor, parameter in tensors.items():
            first = [random_arrays(0)[name] for name in members[tensor]]
            parts = np.split(parameter.detach().numpy(), np.cumsum([array.size for array in first])[:-1])
            for name, array, part in zip(members[tensor], first, parts, strict=True):
                written[f"{run}/{name}"] = part.reshape(array.shape).astype(np.float32)
    np.savez_compressed(GOLDEN, **written)


if __name__ == "__main__":
    main()
