"""What can go wrong with files: each function returns a `Spoil`, which does it in a directory."""

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
    """The last `size` bytes are missing."""
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-size])


def flip(name: str, at: int) -> Spoil:
    """All bits of one byte are the other way round."""

    def spoil(root: pathlib.Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[at] ^= 0xFF
        (root / name).write_bytes(data)

    return spoil


def replace(name: str, old: str, new: str) -> Spoil:
    """The first `old` in a text is `new`."""

    def spoil(root: pathlib.Path) -> None:
        text = (root / name).read_text()
        assert old in text, f"{name} does not hold {old!r}"
        (root / name).write_text(text.replace(old, new, 1))

    return spoil


def keys(name: str, **values: Any) -> Spoil:
    """Keys of a JSON object have other values; None removes one."""

    def spoil(root: pathlib.Path) -> None:
        fields = json.loads((root / name).read_text()) | values
        (root / name).write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))

    return spoil


def remove(name: str) -> Spoil:
    """A file or a directory is not there."""

    def spoil(root: pathlib.Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def link(name: str, target: str) -> Spoil:
    """A symbolic link is there."""

    def spoil(root: pathlib.Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)

    return spoil


def add_line(name: str, line: str) -> Spoil:
    """A text has one line more."""
    return lambda root: (root / name).write_text((root / name).read_text() + line + "\n")


def without_last_column(name: str) -> Spoil:
    """A table of commas lacks its last column."""

    def spoil(root: pathlib.Path) -> None:
        lines = (root / name).read_text().splitlines()
        (root / name).write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))

    return spoil


def turned_round(name: str, first: int) -> Spoil:
    """The lines of a text after the first so many are in the other order."""

    def spoil(root: pathlib.Path) -> None:
        lines = (root / name).read_text().splitlines()
        (root / name).write_text("\n".join([*lines[:first], *reversed(lines[first:])]) + "\n")

    return spoil


def other_vocabulary(corpus: str) -> Spoil:
    """A corpus is one of another vocabulary: the same pieces, the last ones in the other order."""

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
    """One tensor of a model is another."""

    def spoil(root: pathlib.Path) -> None:
        path = root / model / "model.safetensors"
        tensors = safetensors.numpy.load_file(path)
        safetensors.numpy.save_file(tensors | {name: change(tensors[name])}, path, {"format": "pt"})

    return spoil


def extra_tensors(model: str, *names: str) -> Spoil:
    """A model has more tensors than its class."""

    def spoil(root: pathlib.Path) -> None:
        path = root / model / "model.safetensors"
        more = dict.fromkeys(names, np.zeros(1, np.float32))
        safetensors.numpy.save_file(safetensors.numpy.load_file(path) | more, path, {"format": "pt"})

    return spoil


def some_shards(name: str) -> Spoil:
    """A corpus's manifest names its first shard only."""

    def spoil(root: pathlib.Path) -> None:
        manifest = json.loads((root / name).read_text())
        (root / name).write_text(json.dumps(manifest | {"shards": manifest["shards"][:1]}))

    return spoil


def not_finite(model: str) -> Spoil:
    """One weight of a model is not a number."""
    return weight(model, lambda x: x * np.float32("nan"))
