"""Makes `lstm_golden.npz`: the outputs and gradients of PyTorch's bidirectional LSTM, without and with a projection.

    PYTHON_WITH_TORCH tests/golden/make_lstm_golden.py

For each case ("plain", "projected"): the inputs x [L, B, I], the weights by PyTorch's names, the outputs h [L, B, 2 P], and the
gradients of sum(h * seeds) with respect to inputs and weights, computed in float64 and rounded once to float32. The script prints
how far PyTorch's own float32 is from them. `tests/model/test_lstm.py` compares ours with them.
"""

from __future__ import annotations

import pathlib

import numpy as np
import torch

OUTPUT = pathlib.Path(__file__).parent / "lstm_golden.npz"
LENGTH, ROWS, INPUTS, WIDTH = 7, 3, 5, 6
PROJECTED = {"plain": 0, "projected": 4}


def arrays(projected: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Returns the inputs, weights, outputs and gradients of one LSTM, computed in `dtype`."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(INPUTS, WIDTH, bidirectional=True, proj_size=projected).double().to(dtype)
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((LENGTH, ROWS, INPUTS), np.float32), dtype=dtype, requires_grad=True)
    seeds = torch.tensor(rng.standard_normal((LENGTH, ROWS, 2 * (projected or WIDTH)), np.float32), dtype=dtype)
    h, _ = lstm(x)
    (h * seeds).sum().backward()
    found = {"x": x, "seeds": seeds, "h": h, "grad_x": x.grad}
    for name, weight in lstm.named_parameters():
        found |= {name: weight, f"grad_{name}": weight.grad}
    return {name: value.detach().numpy().astype(np.float64) for name, value in found.items()}


def main() -> None:
    golden = {}
    for case, projected in PROJECTED.items():
        exact, single = arrays(projected, torch.float64), arrays(projected, torch.float32)
        off = max(float(np.abs(exact[name] - single[name]).max()) for name in exact)
        print(f"{case}: PyTorch's float32 is off by {off:.1e}")
        golden |= {f"{case}/{name}": value.astype(np.float32) for name, value in exact.items()}
    np.savez_compressed(OUTPUT, made_with=np.array(f"torch {torch.__version__}"), **golden)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB, torch {torch.__version__}")


if __name__ == "__main__":
    main()
