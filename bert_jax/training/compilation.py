"""Compiles the steps of a run and logs the time that compilation took."""

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
from bert_jax.training.saved_programs import load_program

log = logging.getLogger(__name__)


@contextlib.contextmanager
def compiling(what: str, prefix: str = "") -> Iterator[None]:
    """Logs that `what` is being compiled, which may take minutes, and afterwards the time that it took."""
    start = time.monotonic()
    log.info("%scompiling %s", prefix, what)
    yield
    log.info("%scompiled %s in %s", prefix, what, duration(time.monotonic() - start))


def compiled(
    function: jax.stages.Wrapped,
    *arguments: PyTree[jax.Array],
    mesh: Mesh,
    saved: pathlib.Path | None = None,
    must_be_saved: bool = True,
) -> jax.stages.Compiled:
    """Returns the jitted `function` compiled for the shapes of `arguments`, or loaded from the directory `saved`.

    Compiling before the first step keeps compilation out of the first step's time. Where `saved` lacks the program, raises
    UserError if it `must_be_saved`, and otherwise compiles: a run that has already trained some steps should go on.
    """
    start = time.monotonic()
    lowered = function.lower(*arguments)
    program = None
    if saved:
        try:
            program = load_program(saved, lowered, list(mesh.devices.flat))
        except UserError as error:
            if must_be_saved:
                raise
            log.warning("the training step is compiled again: %s", error)
    if program is not None:
        log.info("loaded the training step in %s", duration(time.monotonic() - start))
        return program
    with compiling("the training step"):
        return lowered.compile()
