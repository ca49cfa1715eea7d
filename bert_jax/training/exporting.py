"""Writes the trained model and the results of a run to the workdir, or to another disk if the workdir's is full."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.errors import UserError
from bert_jax.files import JsonObject, remove_tree, write_json
from bert_jax.interface.named import Record
from bert_jax.interop.card import Training, model_card
from bert_jax.interop.directory import Unwritable
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.model.config import IN_FILES
from bert_jax.runtime.workdir import FILES, MODEL, RESULTS


def export_trained(
    workdir: pathlib.Path, model: Model, about: JsonObject, results: JsonObject | None, training: Training | None = None
) -> None:
    """Writes `model` to WORKDIR/model, with a card that describes its `training`. If `results` is not None, writes it to
    WORKDIR/results.json.

    If the model cannot be written to the workdir, writes the model and the results to a new directory on another disk, in the
    same layout. Then raises a UserError that names this directory.
    """
    card = model_card(model, training or Training())
    try:
        export_model(workdir / MODEL, model, about, card=card)
    except Unwritable as error:
        raise UserError(f"{error}. {_exported_elsewhere(workdir, model, about, results, card)}") from error
    if results is not None:
        write_json(workdir / RESULTS, results)


def exported_files(files: Mapping[str, Record]) -> JsonObject:
    """Returns the fields under "bert_jax" of an export for the user's `files` of its run, by configuration key. Files that
    compute parts of the model are left out, because `huggingface_config.own_fields` records them."""
    computing = {f"model.{name}" for name in IN_FILES}
    others = {key: dict(record) for key, record in files.items() if key not in computing}
    return {FILES: others} if others else {}


def files_in_words(files: Mapping[str, Record]) -> str:
    """Returns a sentence of a model card about the user's `files`, after a space, or "" if there are none."""
    named = [f"config.{key} {pathlib.PurePath(one['path']).name} ({one['sha256'][:12]})" for key, one in files.items()]
    return f" With the user's files: {', '.join(named)}." if named else ""


def write_results(directory: pathlib.Path, results: JsonObject) -> UserError | None:
    """Writes `results` to the directory's results.json. If the write fails, returns the error instead of raising it, so that the
    caller can still export the model."""
    try:
        write_json(directory / RESULTS, results)
    except OSError as error:
        return UserError(f"{directory / RESULTS} could not be written ({error.strerror}); free space and rerun the command")
    return None


def _exported_elsewhere(
    workdir: pathlib.Path, model: Model, about: JsonObject, results: JsonObject | None, card: str
) -> str:
    """Writes the model and the results to the first of several directories in which this succeeds. Returns a sentence that
    names this directory. If no directory can be written, returns a sentence with the errors."""
    tried: dict[str, object] = {}
    places = {
        "the directory for temporary files": tempfile.gettempdir,
        "the home directory": pathlib.Path.home,
        "the current directory": pathlib.Path.cwd,
        "/dev/shm": lambda: "/dev/shm",
    }
    for name, find in places.items():
        place, directory = name, None
        try:
            place = str(find())  # fails if there is no such directory
            if place in tried:
                continue
            directory = pathlib.Path(tempfile.mkdtemp(prefix=f"bert_jax-{workdir.name}-", dir=place))
            export_model(directory / MODEL, model, about, card=card)
            if results is not None:
                write_json(directory / RESULTS, results)
            return f"The trained model is in {directory / MODEL}: copy it to permanent storage"
        except (Unwritable, OSError, RuntimeError) as error:  # RuntimeError: a user without a home directory
            tried[place] = error.__cause__ or error
            if directory is not None:
                remove_tree(directory)
    failures = ", ".join(f"{place} ({error})" for place, error in tried.items())
    return f"No other directory could be written either: {failures}"


def on_host(params: PyTree[jax.Array], mesh: Mesh) -> PyTree[np.ndarray]:
    """Gathers parameters that may be sharded over devices and processes into whole numpy arrays. This is a collective that every
    process must call."""
    replicated = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))(params)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)
