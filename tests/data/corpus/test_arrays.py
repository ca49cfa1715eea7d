"""Arrays of a corpus that are written piece by piece, errors of a disk, and readers of JSON from any source."""

from __future__ import annotations

import errno
import io
import os

import numpy as np
import pytest

from bert_jax.data.corpus.store import ArrayWriter, disk_errors, open_corpus, write_array
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_model_config
from bert_jax.interop.tensorflow import import_tf1
from bert_jax.interop.weights import read_weights
from bert_jax.runtime.workdir import stored_config
from bert_jax.tasks.readers.own_rows import read_own_rows
from bert_jax.tasks.readers.squad import read_squad

NESTED = "[" * 100_000


@pytest.fixture
def synchronised(tmp_path, monkeypatch) -> list[set[bytes]]:
    """Records the contents of all files each time that one is synchronised to the disk, in a list."""
    contents: list[set[bytes]] = []
    monkeypatch.setattr(os, "fsync", lambda _: contents.append({file.read_bytes() for file in tmp_path.iterdir()}))
    return contents


def test_an_array_written_in_pieces_equals_numpys_file_and_is_synchronised(tmp_path, synchronised):
    with ArrayWriter(tmp_path / "a.npy", np.dtype(np.uint16)) as writer:
        writer.append(np.arange(5))
        writer.append(np.arange(5, 12))
    assert writer.length == 12
    assert writer._file.closed
    write_array(tmp_path / "b.npy", np.arange(12), np.dtype(np.uint16))
    expected = io.BytesIO()
    np.save(expected, np.arange(12, dtype=np.uint16))
    for name in ("a.npy", "b.npy"):
        assert (tmp_path / name).read_bytes() == expected.getvalue()
    assert synchronised == [{expected.getvalue()}] * 2


def test_an_interrupted_array_is_closed_and_empty(tmp_path, synchronised):
    writer = ArrayWriter(tmp_path / "a.npy", np.dtype(np.int64))
    writer.append(np.arange(5))
    writer.__exit__(ZeroDivisionError)
    assert writer._file.closed
    assert len(np.load(tmp_path / "a.npy")) == 0
    assert synchronised == []


ERRORS = {
    "no space left for .*x; free space and run the same command again": ("ENOSPC", "EDQUOT"),
    "cannot be written: .*; choose another --output": ("EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST", "EFBIG", "EIO"),
}


@pytest.mark.parametrize(("name", "says"), [(name, says) for says, names in ERRORS.items() for name in names])
def test_a_disk_error_is_one_sentence_with_a_remedy(tmp_path, name, says):
    number = getattr(errno, name)
    with pytest.raises(UserError, match=says), disk_errors(tmp_path / "x"):
        raise OSError(number, os.strerror(number))


def test_other_file_errors_are_not_reported_as_disk_errors(tmp_path):
    with pytest.raises(OSError, match="Bad file descriptor") as raised, disk_errors(tmp_path):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    assert not isinstance(raised.value, UserError)


READERS = {
    "manifest.json": open_corpus,
    "tokenizer.json": load_tokenizer,
    "tokenizer_config.json": load_tokenizer,
    "config.json": read_model_config,
    "bert_config.json": import_tf1,
    "model.safetensors.index.json": lambda directory: read_weights(directory / "model.safetensors.index.json"),
    "train.json": lambda directory: read_squad(directory / "train.json"),
    "train.jsonl": lambda directory: list(read_own_rows(directory / "train.jsonl", None, quotes=None, columns=(), separator=" ")),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", [NESTED, "[]"], ids=["nested", "list"])
def test_every_reader_refuses_endlessly_nested_json_and_a_list_instead_of_an_object(tmp_path, tiny_vocabulary, name, text):
    if name == "tokenizer_config.json":
        (tmp_path / "vocab.txt").write_bytes(tiny_vocabulary.read_bytes())
    (tmp_path / "bert_model.ckpt.index").touch()
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        READERS[name](tmp_path)


def test_damaged_run_configurations_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(NESTED)
    with pytest.raises(
        UserError, match=r"config\.json cannot be read as JSON \(brackets are nested too deep\); name another --w"
    ):
        stored_config(tmp_path)
