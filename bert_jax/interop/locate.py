"""Finds the model directory of a MODEL: a Hugging Face directory, the workdir of a run, or a name on the Hugging Face hub."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import re
import shlex
from collections.abc import Sequence

from bert_jax.data.corpus.hub import HUB_FILES, hub_fetcher, is_hub_name, name_on_hub
from bert_jax.errors import UserError, broken_link, missing_path
from bert_jax.files import aside, read_json
from bert_jax.interop.directory import CARD, CONFIG, MODULES
from bert_jax.interop.tensor_bundle import STATE, newest_bundle, prefix_name
from bert_jax.interop.weights import NOT_READ, PYTORCH, READ, SAFETENSORS_INDEX, WEIGHTS, read_start, weights_file
from bert_jax.storage.fetching import fetched
from bert_jax.storage.formats import COMPRESSIONS, recognise
from bert_jax.storage.objects import listed, read_bytes
from bert_jax.storage.paths import checked, is_remote

VECTORS = tuple(f"vectors.{form}{packed}" for form in ("txt", "vec", "bin") for packed in ("", *COMPRESSIONS))
"""The names that a file of word vectors may have in a directory. `convert` exports a file with the first name."""
_SHARDS = ("model-*.safetensors", "pytorch_model-*.bin")
"""Patterns of the files of a model whose tensors are in several files."""


def local_model(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns `path` itself, or a local copy of the model or checkpoint if it is in a bucket. If `path` is a workdir, only its
    model is copied. If `path` is a model directory, only the files that are read are copied. Of several TensorFlow checkpoints,
    only one is copied. Raises UserError like `storage.fetching.fetched` and `tensor_bundle.newest_bundle`."""
    if not is_remote(text := checked(os.fspath(path), "MODEL")):
        return path
    for place in (f"{text}/model", text):
        names = listed(place, deep=False)
        if MODULES in names:  # the files of its modules are in subfolders
            return fetched(place, "MODEL", wanted=lambda name: _is_read(name.rpartition("/")[2]))
        if CONFIG in names and (weights := [name for name in names if fnmatch.fnmatch(name, f"{WEIGHTS[:5]}*.safetensors*")]):
            files = {*weights, *(name for name in names if _matches(name, (*HUB_FILES, CARD)))}
            return fetched(place, "MODEL", deep=False, wanted=files.__contains__)
    patterns = (*HUB_FILES, CARD, STATE)
    if not names:  # a file, or the common prefix of the files of a checkpoint
        return fetched(prefix_name(text), "MODEL", deep=False, wanted=lambda name: _matches(name, patterns))
    if any(name.endswith(".index") for name in names) and not {*READ, *VECTORS} & names.keys():
        state = read_bytes(f"{text}/{STATE}").decode("utf-8", "replace") if STATE in names else None
        start = f"{newest_bundle(text, names, state)}."
        return fetched(text, "MODEL", deep=False, wanted=lambda name: name.startswith(start) or _matches(name, patterns))
    if not names.keys() - {CONFIG} or not listed(f"{text}/checkpoints"):
        return fetched(text, "MODEL", deep=False)
    raise UserError(
        f"{text} is a workdir that has no exported model yet; to complete the run, repeat the command that started it"
    )


def _is_read(name: str) -> bool:
    """Returns whether a file of this name in a model directory is read."""
    weights = f"{WEIGHTS[:5]}*.safetensors", f"{PYTORCH[:-4]}*.bin"
    return _matches(name, (*HUB_FILES, CARD, *weights))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def find_model_directory(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the model directory of `path`: `path` itself, WORKDIR/model, or a directory downloaded from the hub.

    Raises UserError if `path` is none of these. The message describes what `path` is."""
    path = local_model(path)
    name, path = os.fspath(path), pathlib.Path(path)
    for candidate in (path, path / "model"):
        # the second path only exists if an export was killed while it exchanged the directories
        for directory in (candidate, aside(candidate)):
            if (directory / CONFIG).is_file() and weights_file(directory):
                return directory
    if inside := transformer_folder(path):
        return inside
    if not path.exists():
        if is_hub_name(name):
            return from_hub(name)
        raise UserError(
            f"there is no {missing_path(path)}; name a directory that holds {CONFIG} and {WEIGHTS}, a workdir, "
            f"or a model of the hub as {name_on_hub(name)}"
        )
    if not path.is_dir():
        convert = (
            "a file of word vectors (a word and its numbers on each line, or word2vec's .bin) must be converted first: "
            f"python -m bert_jax.convert --from={path} --to=DIR"
        )
        raise UserError(f"{_not_a_directory(path)}; {convert}")
    if (path / "checkpoints").is_dir():
        raise UserError(
            f"{path} is a workdir that has no exported model yet; to complete the run, repeat the command that started it"
        )
    others = [path / file for file in NOT_READ if (path / file).exists()]
    if others and not weights_file(path):
        raise UserError(
            f"{others[0]} is in an unsupported format; save the weights as {WEIGHTS} (save_pretrained of transformers does "
            "this)"
        )
    if (path / "bert_config.json").is_file() and (weights := weights_file(path)):
        raise UserError(
            f"{path} has {weights.name}, but no {CONFIG}; if bert_config.json describes the model, copy that file: cp "
            f"{shlex.quote(str(path / 'bert_config.json'))} {shlex.quote(str(path / CONFIG))}"
        )
    if vectors := next((name for name in VECTORS if (path / name).is_file()), None):
        raise UserError(f"{path} holds {vectors}; convert it first: python -m bert_jax.convert --from={path} --to=DIR")
    if any(path.glob("*.index")):
        raise UserError(f"{path} is a TensorFlow checkpoint; convert it first: python -m bert_jax.convert --from={path} --to=DIR")
    absent = [file for file, there in ((CONFIG, (path / CONFIG).is_file()), (WEIGHTS, weights_file(path))) if not there]
    if broken := next((name for name in (CONFIG, *READ) if broken_link(path / name)), None):
        raise UserError(f"{missing_path(path / broken)} cannot be read; copy or download the model again")
    if (path / ADAPTER).is_file():
        raise UserError(
            f"{path} holds an adapter ({ADAPTER}), not a whole model; merge the adapter into its model first "
            "(merge_and_unload of peft), and save the merged model"
        )
    found = sorted(file.name for file in path.iterdir() if file.suffix in _OF_WEIGHTS) if WEIGHTS in absent else []
    if any(re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) for name in found):
        absent[-1] = SAFETENSORS_INDEX
    there = f" (it has {', '.join(found[:3])}{', ...' if len(found) > 3 else ''})" if found else ""
    raise UserError(
        f"{path} is not a model directory, because it has no {' and no '.join(absent)}{there}; name a directory with these "
        "files, or a workdir"
    )


def refuse_file(path: pathlib.Path) -> None:
    """Raises UserError if `path` is a file. The caller must have found that the file holds no word vectors."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{_not_a_directory(path)} (the file has no word vectors either)")


def _not_a_directory(path: pathlib.Path) -> str:
    """Returns the error message for a `path` that is not a directory. If the file has another known format, raises a UserError
    with a remedy instead."""
    other = recognise(read_start(path), path.name) if path.is_file() and path.suffix not in _OF_WEIGHTS else None
    if other and other.kind not in COMPRESSIONS.values():  # word vectors may be compressed
        raise UserError(
            f"{path} {other.what}, not a model; {other.remedy}, and name the directory that holds {CONFIG} and {WEIGHTS}"
        )
    return f"{path} is a file; name the directory that holds {CONFIG} and {WEIGHTS}"


ADAPTER = "adapter_config.json"
_OF_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".gguf", ".ot"}
"""Suffixes of weights files. If no weights in a directory have a name that is read, the error lists the files with these
suffixes."""


def transformer_folder(directory: pathlib.Path) -> pathlib.Path | None:
    """Returns the model directory inside a sentence-transformers directory. Older versions saved the Transformer in a folder such
    as 0_BERT. Returns None if modules.json names no such folder."""
    if not (directory / MODULES).is_file():
        return None
    modules = read_json(directory / MODULES, "copy the model again")
    named = [module.get("path") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    paths = [pathlib.PurePath(path) for path in named if isinstance(path, str)]
    folders = [directory / path for path in paths if len(path.parts) == 1 and path.name != ".."]
    return next((folder for folder in folders if (folder / CONFIG).is_file() and weights_file(folder)), None)


def from_hub(name: str) -> pathlib.Path:
    """Returns the directory of a hub model in huggingface_hub's cache. The model is downloaded at the first use.

    Raises UserError if the hub has no model of this name, if the model is not supported, or if the network fails.
    """
    with hub_fetcher(name) as fetch:
        directory = fetch(*HUB_FILES, CARD, WEIGHTS, _SHARDS[0])
        if weights_file(directory) not in (directory / WEIGHTS, directory / SAFETENSORS_INDEX):
            directory = fetch(*HUB_FILES, PYTORCH, _SHARDS[1])
            if weights_file(directory) is None and (directory / MODULES).is_file():
                directory = fetch(*(f"*/{name}" for name in (*HUB_FILES, WEIGHTS, PYTORCH, *_SHARDS)))
                directory = transformer_folder(directory) or directory
    absent = [file for file, there in ((CONFIG, (directory / CONFIG).is_file()), (WEIGHTS, weights_file(directory))) if not there]
    if absent:
        raise UserError(
            f"{name} on the hub is not a supported model, because it has no {' and no '.join(absent)}; choose another model"
        )
    return directory
