"""Draws random weights for the models that make golden files; used by the scripts here, which need PyTorch."""

from __future__ import annotations

import numpy as np
import torch


def fill(model: torch.nn.Module, spread: float = 0.2) -> None:
    """Sets all parameters at random, far from their initial values, so that each one affects the outputs: multiples of 2^-10
    below 2, which are exact in float16. `spread` is the deviation of all parameters except the scales of LayerNorm."""
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre, deviation = (1.0, 0.2) if name.endswith("LayerNorm.weight") else (0.0, spread)
            values = np.clip(centre + deviation * rng.standard_normal(parameter.shape), -1.99, 1.99)
            parameter.copy_(torch.from_numpy(np.round(values * 1024) / 1024))
