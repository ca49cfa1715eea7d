from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import struct
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bert_jax.errors import UserError
from bert_jax.interop.weights import check_finite, read_weights, weights_file

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "heads"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def shards(tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(GOLDEN / "token_in_shards", tmp_path / "shards"))


@pytest.fixture
def whole(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns one file of three tensors, one of them in half precision."""
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path)
    return path


TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.5, -1.5], np.float16),
    "c": np.arange(4, dtype=np.int64)[None],
}


def edit_index(directory: pathlib.Path, change) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def assert_same(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert ours.keys() == expected.keys()
    for name, x in expected.items():
        assert (ours[name].dtype, ours[name].shape) == (x.dtype, x.shape), name
        np.testing.assert_array_equal(ours[name], x, err_msg=name)


def test_tensors_are_read_in_their_stored_type(whole):
    assert_same(read_weights(whole), TENSORS)


def test_shards_are_read_as_one_model(shards):
    files = list(shards.glob("*.safetensors"))
    assert len(files) > 2
    expected = {name: x for file in files for name, x in safetensors.numpy.load_file(file).items()}
    assert weights_file(shards) == shards / INDEX
    assert_same(read_weights(shards / INDEX), expected)


def test_a_single_safetensors_file_is_preferred(tmp_path):
    for name in ("pytorch_model.bin.index.json", "pytorch_model.bin", INDEX, "model.safetensors"):
        (tmp_path / name).touch()
        assert weights_file(tmp_path) == tmp_path / name
    assert weights_file(tmp_path / "absent") is None


def test_a_missing_shard_is_named(shards):
    (shards / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(UserError, match=r"names 4 files, but model-00002-of-00004\.safetensors is missing; copy"):
        read_weights(shards / INDEX)


@pytest.mark.parametrize(
    "elsewhere", ["../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", INDEX, "config.json", "..", 3]
)
def test_an_index_reaches_only_files_in_its_directory(shards, elsewhere):
    safetensors.numpy.save_file(TENSORS, shards.parent / "model.safetensors")
    edit_index(shards, lambda places: places.update({next(iter(places)): elsewhere}))
    with pytest.raises(UserError, match="is not a weights file in its directory"):
        read_weights(shards / INDEX)


def test_a_tensor_in_the_wrong_shard_is_detected(shards):
    name = "classifier.bias"

    def move(places: dict[str, str]) -> None:
        places[name] = next(file for file in sorted(places.values()) if file != places[name])

    edit_index(shards, move)
    with pytest.raises(UserError, match=r" and .* contradict each other about the file of \S+;"):
        read_weights(shards / INDEX)


@pytest.mark.parametrize(
    "change",
    [lambda places: places.pop("classifier.bias"), lambda places: places.update(x=places["classifier.bias"])],
    ids=["left out", "invented"],
)
def test_an_index_with_missing_or_extra_tensors_is_detected(shards, change):
    edit_index(shards, change)
    with pytest.raises(UserError, match=r" and .* contradict each other about the file of (classifier\.bias|x);"):
        read_weights(shards / INDEX)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": null}', '{"weight_map": {"a": [1]}}', "\xff"]
)
def test_an_invalid_index_is_refused(tmp_path, content):
    (tmp_path / INDEX).write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"index\.json"):
        read_weights(tmp_path / INDEX)


def test_a_file_truncated_anywhere_is_named_with_its_size(whole):
    content = whole.read_bytes()
    for size in (0, 1, 7, 8, 9, 50, len(content) // 2, len(content) - 1):
        whole.write_bytes(content[:size])
        with pytest.raises(UserError, match=rf"model\.safetensors \({size:,} bytes?\) is damaged or incomplete.*copy or export"):
            read_weights(whole)


def test_a_truncated_shard_is_named(shards):
    shard = shards / "model-00002-of-00004.safetensors"
    os.truncate(shard, shard.stat().st_size - 4)
    with pytest.raises(UserError, match=r"model-00002-of-00004\.safetensors .* is damaged or incomplete"):
        read_weights(shards / INDEX)


def test_a_flipped_bit_in_the_header_is_detected_or_harmless(whole):
    """A flipped bit may spell another name; it never leads to an exception other than ours."""
    content = whole.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    refusals = []
    for position in range(8 + length):
        whole.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        try:
            assert len(read_weights(whole)) <= 3
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > length // 2
    assert all("damaged or incomplete" in said for said in refusals)


def header(fields: dict[str, Any] | bytes, claimed: int | None = None) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text


@pytest.mark.parametrize(
    "content",
    [
        header({}, claimed=10**12),
        header({}, claimed=2**64 - 1),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 10**12]}}),
        header({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}) + bytes(8),
        header({"a": 1}),
        header(b"[" * 1000),
        header(b"\xff\xfe"),
        bytes(1000),
        b"PK\x03\x04" + bytes(100),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
    ids=range(14),
)
def test_a_file_with_an_impossible_header_is_refused_quickly(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors (.* is damaged or incomplete|is a pointer of Git LFS.*lfs pull)"):
        read_weights(path)


def test_a_pointer_of_git_lfs_is_no_file_of_pytorch(tmp_path):
    (tmp_path / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is a pointer of Git LFS, .*; fetch the file \(git lfs pull\)"):
        read_weights(weights_file(tmp_path))


def test_pytorch_files_without_pytorch_are_refused_with_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing torch now fails
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is in PyTorch's format.*pip install -e '\.\[torch\]', or save"):
        read_weights(weights_file(tmp_path))


class Malicious:
    def __reduce__(self):
        return os.mkdir, (os.environ["BERT_JAX_TEST_MARK"],)


class Loaded:
    """A tensor in the form of PyTorch, for machines without it."""

    def __init__(self, array: np.ndarray, dtype: str):
        self.array, self.dtype = array, dtype

    def float(self) -> Loaded:
        return Loaded(self.array.astype(np.float32), "float32")

    def detach(self) -> Loaded:
        return self

    def numpy(self) -> np.ndarray:
        return self.array


def test_pytorch_files_load_only_tensors_and_bfloat16_becomes_float32(tmp_path, monkeypatch):
    asked = []

    def load(path: pathlib.Path, **options: Any) -> dict[str, Loaded]:
        asked.append((path, options))
        return {"half": Loaded(TENSORS["b"], "float16"), "wide": Loaded(TENSORS["a"].astype(ml_dtypes.bfloat16), "bfloat16")}

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load, bfloat16="bfloat16"))
    path = tmp_path / "pytorch_model.bin"
    path.touch()
    assert_same(read_weights(path), {"half": TENSORS["b"], "wide": TENSORS["a"]})
    assert asked == [(path, {"map_location": "cpu", "weights_only": True})]


@pytest.mark.parametrize(
    ("broken", "says"), [((), ""), (("b",), "refused: NaN or infinity in b;"), (("c", "a"), "in a and 1 more tensors;")]
)
def test_the_first_tensor_that_is_not_finite_is_named_with_how_many_follow(broken, says):
    values = {"c": np.nan, "b": -np.inf, "a": np.inf}
    tensors = {name: np.float32([1, values[name] if name in broken else 2]) for name in "abc"}
    with pytest.raises(UserError, match=says) if says else contextlib.nullcontext():
        check_finite(tensors, "refused: {found}; end")


def test_pytorch_files_give_the_same_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(x) for name, x in TENSORS.items()}
    tensors |= {"wide": torch.tensor([1.0, -2.5]).bfloat16(), "grown": torch.nn.Parameter(torch.ones(2))}
    expected = TENSORS | {"wide": np.array([1.0, -2.5], np.float32), "grown": np.ones(2, np.float32)}
    assert (expected["wide"].astype(ml_dtypes.bfloat16) == expected["wide"]).all()
    for zipped in (True, False):  # also the format before PyTorch 1.6
        torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        assert_same(read_weights(tmp_path / "pytorch_model.bin"), expected)


def test_pytorch_shards_are_read_as_one_model(tmp_path):
    torch = pytest.importorskip("torch")
    places = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin", "c": "pytorch_model-2.bin"}
    for file in set(places.values()):
        torch.save({name: torch.from_numpy(TENSORS[name]) for name in places if places[name] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(read_weights(weights_file(tmp_path)), TENSORS)


def test_a_pytorch_file_that_runs_code_or_is_damaged_is_refused(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("BERT_JAX_TEST_MARK", str(tmp_path / "ran"))
    path = tmp_path / "pytorch_model.bin"
    for zipped in (True, False):
        torch.save({"a": torch.ones(2), "b": Malicious()}, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(UserError, match=r"pytorch_model\.bin \([\d,]+ bytes\) is damaged or holds more than tensors"):
            read_weights(path)
    assert not (tmp_path / "ran").exists()
    torch.save({"a": torch.ones(2)}, path)
    for content in (b"", bytes(100), path.read_bytes()[:-50]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is damaged or holds more than tensors"):
            read_weights(path)
    torch.save([torch.ones(2)], path)
    with pytest.raises(UserError, match="is damaged or holds more than tensors"):
        read_weights(path)
    torch.save({"step": 3, "model": {"a": torch.ones(2)}}, path)
    with pytest.raises(UserError, match="is damaged or holds more than tensors"):
        read_weights(path)
