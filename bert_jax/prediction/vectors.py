"""Writes embeddings to one .npy file, a row for every record; the number of records need not be known in advance."""

from __future__ import annotations

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.prediction.answers import Writer
from bert_jax.prediction.output import writing
from bert_jax.prediction.streams import Record, Records

HEADER_BYTES = 128


class VectorWriter(Writer):
    """A `Writer` of answers {"embedding": float32 [I]} to a .npy file with float32 [records, I].

    The row of a failed record or of a blank line is NaN, so that row i belongs to record i.
    """

    _blank_result = "their rows are NaN"

    def __init__(self, output: str, records: Records | None = None):
        super().__init__(output, None, records)
        self._rows, self._width = 0, 0

    def __enter__(self) -> VectorWriter:
        if self._path is None or (self._path.exists() and not self._path.is_file()):
            raise UserError(f"{self._name} is not a regular file, and the header of a .npy is written last; name a file")
        super().__enter__()
        self._put(bytes(HEADER_BYTES))
        return self

    def answer(self, record: Record, values: JsonObject) -> None:
        """Writes the vector of a record."""
        self._count(record)
        if values["embedding"] is None:
            self._row(self._nan())
            return
        vector = np.ascontiguousarray(values["embedding"], "<f4")
        if not self._width:
            self._width = vector.size
            self._put(self._nan() * self._rows)
        self._row(vector.tobytes())

    def _write_json(self, record: Record, values: JsonObject) -> None:
        self._row(self._nan())  # called for failed records only, since `answer` writes no JSON

    def _row(self, row: bytes) -> None:
        self._rows += 1
        self._put(row)

    def _nan(self) -> bytes:
        return np.full(self._width, np.nan, "<f4").tobytes()

    def _put(self, data: bytes) -> None:
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.write(data)

    def _finish(self) -> None:
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.seek(0)
        self._put(header(self._rows, self._width))
        super()._finish()


def header(rows: int, width: int) -> bytes:
    """Returns the first HEADER_BYTES of a .npy file (format 1.0) of little-endian float32 [rows, width]."""
    described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".ljust(HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + described.encode("latin1")
