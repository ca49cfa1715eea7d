"""What both training loops, `pretrain` and `finetune`, are made of."""

from __future__ import annotations

import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.examples.assemble import Batch
from bert_jax.saved_programs import load_program
from bert_jax.terminal import UserError, duration
from bert_jax.training.losses import Sums

log = logging.getLogger(__name__)


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """Shapes that also say where the arrays are to live."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)


def due(step: int, every: int, *, last: int) -> bool:
    """Whether something done every so many steps, and at the last one, is to be done after `step`."""
    return step % every == 0 or step == last


def add(window: Sums, sums: Sums) -> Sums:
    """Sums of several steps, still on the device."""
    return {name: window[name] + value if window else value for name, value in sums.items()}


def compiled(function: Any, *arguments: Any, mesh: Mesh, saved: pathlib.Path | None = None, must: bool = True) -> Any:
    """`function` compiled for such arguments, so that the first step is as fast as the others and the log says what
    compiling took; loaded from the directory `saved` where that is given. Raises UserError where it `must` be there and is not;
    a run that is under way rather compiles."""
    start = time.monotonic()
    lowered = function.lower(*arguments)
    program = None
    if saved:
        try:
            program = load_program(saved, lowered, list(mesh.devices.flat))
        except UserError as error:
            if must:
                raise
            log.warning("compiling, for %s", error)
    how = "loaded" if program is not None else "compiled"
    program = program or lowered.compile()
    log.info("%s the training step in %s", how, duration(time.monotonic() - start))
    return program


def stop_if_diverged(limit: int, directory: pathlib.Path, rows: Callable[[int], Batch], step: int, sums: Sums) -> None:
    """Ends a run whose last `limit` steps were all skipped, and keeps the batch of the last one in `directory` for a look.

    `rows(step)` makes that batch again, `sums` are those of the step before `step`. Raises UserError.
    """
    if not sums or float(sums["skipped_in_a_row"]) < limit:
        return
    path = directory / f"nonfinite-step-{step}-process-{jax.process_index()}.npz"
    np.savez_compressed(path, **dict[str, Any](rows(step - 1)))
    raise UserError(
        f"the loss or the gradient was not finite in {limit} steps in a row, up to step {step:,} "
        f"(config.abort_after_skipped); nothing was learned from them. The last batch is in {path}. "
        "The checkpoints are from before: lower the learning rate, or start the same command again to retry from the newest"
    )


def on_host(params: Any, mesh: Mesh) -> Any:
    """Whole numpy arrays of parameters that may be spread over devices and processes. Collective: every process calls it."""
    replicated = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))(params)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)
