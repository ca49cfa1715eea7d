"""Damages files: each function returns a `Spoil`, which damages a directory in one way."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from tests.bad_inputs.case import Spoil


def cut(name: str, size: int) -> Spoil:
    """Removes the last `size` bytes."""
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-size])


def flip(name: str, at: int) -> Spoil:
    """Inverts all bits of one byte."""

    def spoil(root: pathlib.Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[at] ^= 0xFF
        (root / name).write_bytes(data)

    return spoil


def replace(name: str, old: str, new: str) -> Spoil:
    """Replaces the first `old` in a text by `new`."""

    def spoil(root: pathlib.Path) -> None:
        text = (root / name).read_text()
        assert old in text, f"{name} does not hold {old!r}"
        (root / name).write_text(text.replace(old, new, 1))

    return spoil


def keys(name: str, **values: Any) -> Spoil:
    """Sets keys of a JSON object to other values; None removes a key."""

    def spoil(root: pathlib.Path) -> None:
        fields = json.loads((root / name).read_text()) | values
        (root / name).write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))

    return spoil


def remove(name: str) -> Spoil:
    """Removes a file or a directory."""

    def spoil(root: pathlib.Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def link(name: str, target: str) -> Spoil:
    """Creates a symbolic link."""

    def spoil(root: pathlib.Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)

    return spoil


def add_line(name: str, line: str) -> Spoil:
    """Adds a line to a text."""
    return lambda root: (root / name).write_text((root / name).read_text() + line + "\n")


def add_file(name: str) -> Spoil:
    """Creates a file with a letter in it."""
    return lambda root: (root / name).write_text("x")


def without_last_column(name: str) -> Spoil:
    """Removes the last column of a CSV file."""

    def spoil(root: pathlib.Path) -> None:
        lines = (root / name).read_text().splitlines()
        (root / name).write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))

    return spoil


def turned_round(name: str, first: int) -> Spoil:
    """Reverses the order of the lines of a text after the first few."""

    def spoil(root: pathlib.Path) -> None:
        lines = (root / name).read_text().splitlines()
        (root / name).write_text("\n".join([*lines[:first], *reversed(lines[first:])]) + "\n")

    return spoil


def other_vocabulary(corpus: str) -> Spoil:
    """Gives a corpus another vocabulary: the same pieces, with the last ones in reversed order."""

    def spoil(root: pathlib.Path) -> None:
        tokenizer = root / corpus / "tokenizer"
        pieces = (tokenizer / "vocab.txt").read_text().splitlines()
        shutil.rmtree(tokenizer)
        (root / "pieces.txt").write_text("".join(f"{piece}\n" for piece in [*pieces[:-9], *reversed(pieces[-9:])]))
        made = load_tokenizer(root / "pieces.txt", lowercase=True)
        (root / "pieces.txt").unlink()
        made.save(tokenizer)
        keys(f"{corpus}/manifest.json", vocabulary=dataclasses.asdict(made.vocabulary))(root)

    return spoil


def weight(model: str, change: Callable[[np.ndarray], np.ndarray], name: str = "bert.embeddings.LayerNorm.bias") -> Spoil:
    """Replaces one tensor of a model."""

    def spoil(root: pathlib.Path) -> None:
        path = root / model / "model.safetensors"
        tensors = safetensors.numpy.load_file(path)
        safetensors.numpy.save_file(tensors | {name: change(tensors[name])}, path, {"format": "pt"})

    return spoil


def extra_tensors(model: str, *names: str) -> Spoil:
    """Adds tensors to a model that its class does not have."""

    def spoil(root: pathlib.Path) -> None:
        path = root / model / "model.safetensors"
        more = dict.fromkeys(names, np.zeros(1, np.float32))
        safetensors.numpy.save_file(safetensors.numpy.load_file(path) | more, path, {"format": "pt"})

    return spoil


def some_shards(name: str) -> Spoil:
    """Keeps only the first shard in a corpus's manifest."""

    def spoil(root: pathlib.Path) -> None:
        manifest = json.loads((root / name).read_text())
        (root / name).write_text(json.dumps(manifest | {"shards": manifest["shards"][:1]}))

    return spoil


def not_finite(model: str) -> Spoil:
    """Sets one weight of a model to NaN."""
    return weight(model, lambda x: x * np.float32("nan"))
