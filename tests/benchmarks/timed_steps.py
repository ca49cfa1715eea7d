"""Measures the seconds of training steps, for the benchmarks of whole steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.objectives.objective import Objective
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import new_state
from tests.random_rows import boxed, program_for


def seconds_of_steps(objective: Objective, params: Any, batch: Mapping[str, Any], steps: int) -> list[float]:
    """Returns the seconds of each of `steps` steps with AdamW and clipping, after two steps that compile and warm up."""
    optimizer = make_optimizer(OptimizerConfig(name="adamw"), boxed(params))
    state = new_state(params, optimizer)
    program = program_for(objective, optimizer, lambda *_: jnp.float32(1e-4))
    step = jax.jit(program.train_step, donate_argnums=0)
    seconds = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        state, sums = step(state, batch, {"seed": np.uint32(0)})
        jax.block_until_ready((state, sums))
        seconds.append(time.perf_counter() - start)
    return seconds[2:]
