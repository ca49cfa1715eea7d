"""The steps that the commands of `analyse` share: open the files and the --output folder, load the model, measure controls."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.reading import AnnotatedSource
from bert_jax.errors import UserError
from bert_jax.interface.flags import read_options
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.streams import check_whole_file
from bert_jax.storage.fetching import local_path

File = TypeVar("File")
Options = TypeVar("Options")
Scores = TypeVar("Scores")

NAME = 60
"""Maximum number of characters of a model's name in the caption of a figure. Longer names are cut at the front."""


def check_annotated(flags: argparse.Namespace, *names: str) -> None:
    """Raises UserError if the file of one of the flags `names` is a pipe, since annotated files are read several times."""
    for name in names:
        if path := getattr(flags, name):
            check_whole_file(path, f"--{name}")


def open_with_choose(flags: argparse.Namespace, open_file: Callable[[str], File], units: str) -> tuple[File, File | None]:
    """Opens the file --input, and the file --choose if it is given. Heads are chosen on the file --choose.

    Raises UserError if one of the files is a pipe, or if both are the same file. The error message calls the parts of --input
    `units`, such as "sentences"."""
    check_annotated(flags, "input", "choose")
    file = open_file(flags.input)
    choosing = open_file(flags.choose) if flags.choose else None
    if flags.choose and pathlib.Path(flags.choose).resolve() == pathlib.Path(flags.input).resolve():
        raise UserError(
            f"--choose={flags.choose} is the same file as --input; leave --choose out to choose on half of the {units}"
        )
    return file, choosing


def score_with_controls(
    flags: argparse.Namespace, options: type[Options], score: Callable[[Engine, Options], Scores]
) -> tuple[Engine, Scores, dict[str, Scores]]:
    """Returns the model, its scores, and the scores of each control in --control by name. `score` is called with the model and
    the `options` in the flags, once without a control and once for each control."""
    given: Any = read_options(options, flags)
    engine = load_analyser(flags).engine
    found = {name: score(engine, dataclasses.replace(given, control=name)) for name in dict.fromkeys(("", *flags.control))}
    return engine, found.pop(""), found


def exit_status(*files: AnnotatedSource | None) -> int:
    """Returns 1 if part of a file could not be read, otherwise 0."""
    return int(any(file.failed for file in files if file is not None))


def open_folder(
    flags: argparse.Namespace, names: Sequence[str], sources: Iterable[os.stat_result | None] = (), *others: str, under: str = ""
) -> Folder:
    """Opens the folder of --output, or its subfolder `under`. The caption of every figure names the model and `others`, the
    models that it is compared with.

    Raises UserError if the folder cannot be written, or if an output file in `names` would overwrite one of the input files
    `sources`.
    """
    for source in (None, *sources):
        folder = Folder(pathlib.Path(flags.output) / under if under else flags.output, names, source, flags.format)
    shown = [name if len(name) <= NAME else f"\u2026{name[-NAME:]}" for name in (flags.model, *others)]
    folder.caption = " | ".join(shown)
    return folder


def load_analyser(flags: argparse.Namespace) -> Analyser:
    """Loads the model of --model. Raises UserError if --output (`flags.place`, as the user wrote it) is the model's
    directory."""
    analyser = Analyser.load(flags.model)
    if local_path(flags.place).resolve() == pathlib.Path(analyser.engine.name).resolve():
        raise UserError(f"--output={flags.place} is the directory of the model itself; choose another --output")
    for note in analyser.engine.model.notes:
        if "activation" in note:  # the checkpoint does not record the activation, but it changes every result
            print(note, file=sys.stderr)
    return analyser


def write_windows(folder: Folder, config: ModelConfig) -> bool:
    """Writes how many tokens each head can see, and prints which layers have a sliding window. Returns False if no layer has
    one."""
    local = [layer for layer in range(config.num_layers) if config.layer_type(layer) == "sliding"]
    if not local:
        return False
    seen = 2 * config.sliding_radius + 1
    rows = (
        (f"{layer + 1}-{head + 1}", layer + 1, head + 1, config.layer_type(layer), seen if layer in local else "all")
        for layer in range(config.num_layers)
        for head in range(config.num_heads)
    )
    folder.table("windows.tsv", ("head", "layer", "number", "attention", "tokens"), rows)
    each = counted(config.sliding_radius, "token")
    layers = f"layer{'s' * (len(local) > 1)} {', '.join(str(layer + 1) for layer in local)}"
    print(f"the heads of {layers} see {each} on each side, {seen} in all")
    return True


def print_written(folder: Folder) -> None:
    """Prints the names of the files that were written."""
    print(f"written to {folder.path}: {', '.join(path.name for path in folder.written)}")
