"""Reads the tensors of a Hugging Face directory. They are in one or several safetensors files, or in PyTorch's format."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.interface.words import counted
from bert_jax.storage.formats import HEAD_BYTES, recognise

WEIGHTS = "model.safetensors"
SAFETENSORS_INDEX = f"{WEIGHTS}.index.json"
PYTORCH = "pytorch_model.bin"
PYTORCH_INDEX = f"{PYTORCH}.index.json"
READ = (WEIGHTS, SAFETENSORS_INDEX, PYTORCH, PYTORCH_INDEX)
"""Names of weight files in the order of preference, for a directory with several formats of one model."""
NOT_READ = ("tf_model.h5", "flax_model.msgpack")


def weights_file(directory: pathlib.Path) -> pathlib.Path | None:
    """Returns the file with the tensors of `directory`, or the index file if the tensors are in several files. Returns None if
    `directory` has neither."""
    return next((directory / name for name in READ if (directory / name).is_file()), None)


def read_weights(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a weights file, or of the files in an index, in their stored types.

    Raises a UserError that names the file if a file is damaged, incomplete or missing, or if it needs a package that is not
    installed.
    """
    if path.name.endswith(".index.json"):
        return _read_sharded(path)
    return _read_pytorch(path) if path.suffix == ".bin" else _read_safetensors(path)


def check_finite(tensors: Mapping[str, np.ndarray], refusal: str) -> None:
    """Raises UserError if a tensor has NaN or infinity. The message is `refusal`, in which {found} is replaced by a description
    with the name of the tensor."""

    def is_finite(x: np.ndarray) -> bool:
        # if the sum is finite, all elements are finite; the sum is six times as fast to compute
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(x.sum())) or bool(np.isfinite(x).all())

    broken = [name for name, x in tensors.items() if not is_finite(x)]
    if broken:
        more = f" and {len(broken) - 1} more tensors" if len(broken) > 1 else ""
        raise UserError(refusal.format(found=f"NaN or infinity in {broken[0]}{more}"))


def read_start(path: pathlib.Path) -> bytes:
    """Returns the first bytes of a file, as many as `recognise` needs. Raises UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name another model") from error


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        _refuse_other_formats(path)
        size = counted(path.stat().st_size, "byte")
        raise UserError(f"{path} ({size}) is damaged or incomplete ({error}); copy or export the model again") from error


def _refuse_other_formats(path: pathlib.Path) -> None:
    """Raises UserError if the file has a known format without weights, e.g. if it is a pointer of Git LFS or a web page."""
    found = recognise(read_start(path), path.name, unpacks=False)
    if found and found.kind not in ("zip", "excel"):
        raise UserError(f"{path} {found.what}, not a file of weights; {found.remedy}")


def _read_sharded(index: pathlib.Path) -> dict[str, np.ndarray]:
    file_of = read_object(index, "copy the model again").get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise UserError(f"{index} has no weight_map, which names the file of each tensor; copy the model again")
    files = sorted(set(map(str, file_of.values())))
    outside = [name for name in files if pathlib.PurePath(name).name != name or not name.endswith((".safetensors", ".bin"))]
    if outside:
        raise UserError(f"{index} names {outside[0]!r}, which is not a weights file in its directory; copy the model again")
    absent = [name for name in files if not (index.parent / name).is_file()]
    if absent:
        raise UserError(f"{index} names {counted(len(files), 'file')}, but {', '.join(absent)} is missing; copy the whole model")
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        part = read_weights(index.parent / name)
        wrong = sorted(tensor for tensor in part if file_of.get(tensor) != name)
        wrong += sorted(tensor for tensor, file in file_of.items() if file == name and tensor not in part)
        if wrong:
            raise UserError(f"{index} and {name} contradict each other about the file of {wrong[0]}; copy the whole model again")
        tensors |= part
    return tensors


def _read_pytorch(path: pathlib.Path) -> dict[str, np.ndarray]:
    _refuse_other_formats(path)
    try:
        import torch  # PyTorch is an optional extra, so the base installation does not need it
    except ImportError as error:
        raise UserError(
            f"{path} is in PyTorch's format, which needs PyTorch: pip install -e '.[torch]', or save the model as "
            f"{WEIGHTS} (save_pretrained of transformers does this)"
        ) from error
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)  # weights_only does not run code in the file
        return {name: _to_numpy(torch, tensor) for name, tensor in loaded.items()}
    except Exception as error:  # unpickling a damaged archive can raise any exception
        size = counted(path.stat().st_size, "byte")
        raise UserError(
            f"{path} ({size}) is damaged or holds more than tensors ({type(error).__name__}); copy the model again"
        ) from error


def _to_numpy(torch: Any, tensor: Any) -> np.ndarray:
    """Converts a tensor to numpy. numpy has no bfloat16, so bfloat16 is converted to float32, which is exact."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
