from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.prediction.answers import NPY_HEADER_BYTES, VectorWriter, npy_header
from bert_jax.prediction.fields import Record


def written(path: pathlib.Path, *rows: np.ndarray | None) -> np.ndarray:
    """Returns what np.load reads after these answers; None is a record that failed."""
    with VectorWriter(str(path)) as writer:
        for number, row in enumerate(rows, 1):
            record = Record(number, f"line {number}: ")
            if row is None:
                writer.fail(record, "no good")
            else:
                writer.answer(record, {"embedding": row})
    assert writer.status == int(any(row is None for row in rows))
    assert list(path.parent.iterdir()) == [path], "nothing else is left there"
    return np.load(path)


def crash_after(writer: VectorWriter, row: np.ndarray) -> None:
    writer.answer(Record(1, ""), {"embedding": row})
    raise ValueError("a crash")


def test_rows_answer_the_records_in_order(tmp_path):
    rows = np.random.default_rng(0).standard_normal((50, 7), np.float32)
    found = written(tmp_path / "x.npy", *rows)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("failed", [[0], [0, 1, 2], [2, 5], [7]])
def test_a_failed_record_is_a_row_of_nan(tmp_path, failed):
    rows = np.random.default_rng(1).standard_normal((8, 3), np.float32)
    found = written(tmp_path / "x.npy", *(None if i in failed else row for i, row in enumerate(rows)))
    assert np.isnan(found).all(axis=1).tolist() == [i in failed for i in range(8)]
    whole = [i for i in range(8) if i not in failed]
    np.testing.assert_array_equal(found[whole], rows[whole])


def test_a_file_is_written_without_successful_records(tmp_path):
    assert written(tmp_path / "x.npy").shape == (0, 0)
    assert written(tmp_path / "x.npy", None, None).shape == (2, 0)


def test_vectors_of_other_types_are_written_as_little_endian_float32(tmp_path):
    rows = np.arange(12, dtype=">f8").reshape(3, 4)
    np.testing.assert_array_equal(written(tmp_path / "x.npy", *rows.T), rows.T)


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (10**12, 10**6)])
def test_the_numpy_header_has_the_same_length_for_any_shape(shape, tmp_path):
    found = npy_header(*shape)
    assert len(found) == NPY_HEADER_BYTES
    assert NPY_HEADER_BYTES % 64 == 0
    (tmp_path / "x").write_bytes(found)
    with (tmp_path / "x").open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))
        assert file.tell() == NPY_HEADER_BYTES


def test_an_exception_keeps_the_old_file(tmp_path):
    written(tmp_path / "x.npy", np.ones(3, np.float32))
    with pytest.raises(ValueError, match="a crash"), VectorWriter(str(tmp_path / "x.npy")) as writer:
        crash_after(writer, np.zeros(3, np.float32))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), [[1, 1, 1]])
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("output", ["-", "/dev/null"])
def test_outputs_that_cannot_seek_are_refused(output):
    refused = pytest.raises(UserError, match=r"is not a regular file, but .npy needs one: its header is written last")
    with refused, VectorWriter(output):
        pass


def test_a_missing_directory_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"--output=.*/x\.npy: there is no directory .*none; create it first"):
        written(tmp_path / "none" / "x.npy")
