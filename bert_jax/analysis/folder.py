"""The directory of --output: tables, arrays, pages and pictures, each written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax.errors import UserError
from bert_jax.metrics.figures import rendered
from bert_jax.prediction.output import PartialFile, checked_target, writing


class Folder:
    """The directory that the files of a verb go to; made with the first of them.

    Raises UserError where it cannot be one or cannot be written, and for `source`, the file that the texts are read from, among
    the files to write (`names`).
    """

    def __init__(self, output: str | os.PathLike[str], names: Sequence[str] = (), source: os.stat_result | None = None):
        self.path = pathlib.Path(output)
        self._name = f"--output={os.fspath(output)}"
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"{self._name} is a file; name a directory")
            there = next(parent for parent in (self.path, *self.path.absolute().parents) if parent.exists())
        except OSError as error:
            raise UserError(f"{self._name} cannot be written: {error.strerror}; choose another --output") from error
        if not there.is_dir():
            raise UserError(f"{self._name} cannot be written: {there} is a file; choose another --output")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"{self._name} cannot be written: no permission to make files in {there}; choose another --output")
        if self.path.is_dir():
            for name in names:
                checked_target(os.fspath(self.path / name), source)
        self.written: list[pathlib.Path] = []
        self.formats: Sequence[str] = ("png",)
        """Of pictures."""
        self.caption = ""
        """Below every picture."""

    def write(self, name: str, content: bytes) -> pathlib.Path:
        """Writes a file, in the place of an older one of its name."""
        with writing(self._name):
            self.path.mkdir(parents=True, exist_ok=True)
            path = checked_target(os.fspath(self.path / name))
            with contextlib.closing(PartialFile(path)) as part:
                part.file.write(content)
                part.complete()
        self.written.append(self.path / name)
        return path

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes a TSV file: a line of names, and a line for each row; numbers with six digits, nothing for NaN."""
        lines = ("\t".join(map(_cell, row)) for row in ([*header], *rows))
        self.write(name, "".join(f"{line}\n" for line in lines).encode())

    def arrays(self, name: str, **arrays: np.ndarray) -> None:
        """Writes an .npz file."""
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        self.write(name, file.getvalue())

    def picture(self, name: str, figure: Figure) -> None:
        """Writes a picture in each of the `formats`; `name` ends in .png."""
        for form in self.formats:
            self.write(f"{name.removesuffix('.png')}.{form}", rendered(figure, form, tight=True, caption=self.caption))


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure of that many inches, which needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, x=0.012, ha="left", fontweight="bold")
    return figure


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(value).replace("\t", " ").replace("\n", " ")
