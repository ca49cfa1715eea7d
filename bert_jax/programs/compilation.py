"""Compiles the steps of a run, and says how long that took."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import time
from collections.abc import Iterator

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.errors import UserError
from bert_jax.interface.words import duration
from bert_jax.programs.saved import load_program

log = logging.getLogger(__name__)


@contextlib.contextmanager
def compiling(what: str, prefix: str = "") -> Iterator[None]:
    """Says that `what` is being compiled, which may take minutes, and afterwards how long it took."""
    start = time.monotonic()
    log.info("%scompiling %s", prefix, what)
    yield
    log.info("%scompiled %s in %s", prefix, what, duration(time.monotonic() - start))


def compiled(
    function: jax.stages.Wrapped, *arguments: PyTree[jax.Array], mesh: Mesh, saved: pathlib.Path | None = None, must: bool = True
) -> jax.stages.Compiled:
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
    if program is not None:
        log.info("loaded the training step in %s", duration(time.monotonic() - start))
        return program
    with compiling("the training step"):
        return lowered.compile()
