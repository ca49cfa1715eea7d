"""Compiles steps and logs the time, or loads saved programs. `aot --save=DIR` saves programs on any machine. `pretrain
--compiled=DIR` loads them.

A saved program is valid for one version of JAX, one compiler version, one kind and number of chips, and one lowered step. The
name of its file is a hash of all of these. The first line of the file lists all of them except the step (see `compatibility`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import pathlib
import re
import time
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.errors import UserError, missing_path
from bert_jax.files import write_bytes
from bert_jax.interface.words import duration

log = logging.getLogger(__name__)

SUFFIX = ".program"


@contextlib.contextmanager
def compiling(what: str, prefix: str = "") -> Iterator[None]:
    """Logs that `what` is being compiled, which may take minutes. Afterwards, logs how long the compilation took."""
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
    """Compiles the jitted `function` for the shapes of `arguments`, or loads it from the directory `saved`.

    Compiling before the first step keeps compilation out of the first step's time. If `saved` does not contain the program and
    `must_be_saved`, raises UserError. Without `must_be_saved`, logs a warning and compiles the program, so that a run that has
    already trained some steps can continue."""
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


def program_name(lowered: jax.stages.Lowered, devices: Sequence[jax.Device]) -> str:
    """Returns the file name of a lowered program for the mesh's `devices`."""
    text = re.sub(r" ?loc\(.*?\)$|^#loc.*$", "", lowered.as_text(), flags=re.MULTILINE)
    places = [(device.device_kind, getattr(device, "coords", None), getattr(device, "slice_index", 0) or 0) for device in devices]
    about = (jax.__version__, _compiler_version(devices), str(places), text)
    return f"{hashlib.sha256(repr(about).encode()).hexdigest()[:24]}{SUFFIX}"


def _compiler_version(devices: Sequence[jax.Device]) -> str:
    name = "libtpu" if devices[0].platform == "tpu" else "jaxlib"
    return f"{name} {importlib.metadata.version(name)}"


def compatibility(devices: Sequence[jax.Device]) -> str:
    """Returns the devices and versions that a program is valid for, e.g. `16 x TPU v5 lite, jax 0.10.2, libtpu 0.0.42.1`."""
    return f"{len(devices)} x {devices[0].device_kind}, jax {jax.__version__}, {_compiler_version(devices)}"


def save_program(
    directory: pathlib.Path, lowered: jax.stages.Lowered, executable: jax.stages.Compiled, devices: Sequence[jax.Device]
) -> pathlib.Path:
    """Writes a compiled program and returns its file."""
    payload, _, _ = serialize_executable.serialize(executable)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / program_name(lowered, devices)
    write_bytes(file, compatibility(devices).encode() + b"\n" + payload)
    return file


def load_program(directory: pathlib.Path, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """Loads the compiled form of `lowered` from `directory`. The files are unpickled and can run arbitrary code, so do not use a
    directory that others can write to.

    Raises UserError if the directory does not exist, or if it holds no program for this step, these devices and this version of
    JAX.
    """
    remedy = "make it with `python -m bert_jax.aot --save=DIR` and the same --config, or leave --compiled out"
    if not directory.is_dir():
        raise UserError(f"--compiled={missing_path(directory)} is not a directory; {remedy}")
    file, here = directory / program_name(lowered, devices), compatibility(devices)
    if not file.exists():
        kept = sorted({_first_line(other) for other in directory.glob(f"*{SUFFIX}")})
        holds = f"programs for {' and for '.join(kept)}" if kept else "no programs"
        why = ", but for a different step (configuration or code differ)" if here in kept else ""
        raise UserError(f"--compiled={directory} holds {holds}{why}; this run needs a program of its step for {here}: {remedy}")
    _, arguments = jax.tree.flatten(lowered.args_info)
    payload = file.read_bytes().partition(b"\n")[2]
    try:
        return serialize_executable.deserialize_and_load(payload, arguments, lowered.out_tree, execution_devices=list(devices))
    except Exception as error:  # unpickling a damaged file can raise any exception
        raise UserError(f"--compiled: {file} cannot be loaded here: {str(error).splitlines()[0]}; {remedy}") from error


def _first_line(file: pathlib.Path) -> str:
    with file.open("rb") as stream:
        return stream.readline(200).decode(errors="replace").strip()
