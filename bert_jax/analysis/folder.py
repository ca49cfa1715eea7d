"""Writes the tables, arrays, pages and figures in the directory of --output. Each file is written completely or not at all."""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from bert_jax.errors import UserError
from bert_jax.files import PartialFile, being_written, remove_leftovers
from bert_jax.interface.drawing import rendered
from bert_jax.interface.flags import FIGURE_FORMATS, in_formats
from bert_jax.interface.output import check_directory, checked_target, writing
from bert_jax.tasks.readers.tables import note

_LOCK = "analysis"  # the name of the temporary file that a process keeps open in its output directory


class _Pending:
    """Files that are complete but still have temporary names, and locked directories."""

    def __init__(self) -> None:
        self.files: dict[pathlib.Path, PartialFile] = {}
        self._locks: dict[pathlib.Path, PartialFile] = {}
        self._made: list[pathlib.Path] = []
        self.usual: dict[pathlib.Path, str] = {}
        """The files that the command can write, by their paths; a run may leave some of them out."""

    def lock(self, directory: pathlib.Path, name: str) -> None:
        """Creates the directory and keeps other processes from writing to it. Raises UserError if another process is already
        writing to it."""
        if directory in self._locks:
            return
        self._made += [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(directory)
        own = self._locks[directory] = PartialFile(directory / _LOCK)
        for part in being_written(directory / _LOCK, besides=own.temporary):
            raise UserError(f"{name} is being written by another process (in {part}); wait for it, or choose another --output")

    def complete(self) -> None:
        """Waits until the contents of all files are on the disk, and then renames every file to its final name."""
        for file in self.files.values():
            file.flush_to_disk()
        for file in self.files.values():
            file.complete()
        if earlier := sorted(self.usual[path] for path in self.usual.keys() - self.files.keys() if path.exists()):
            note(f"not of this run, but in the folder before it: {', '.join(earlier)}")

    def close(self) -> None:
        """Removes unfinished files, locks, and the directories that were made for them."""
        for file in (*self.files.values(), *self._locks.values()):
            file.close()
        for path in self._made:
            with contextlib.suppress(OSError):
                path.rmdir()  # a directory with files in it stays


_pending: contextvars.ContextVar[_Pending | None] = contextvars.ContextVar("_pending", default=None)


@contextlib.contextmanager
def appearing_together() -> Iterator[None]:
    """Makes the files of every `Folder` appear together at the end of the block. If the block fails, no file appears. Files of
    an earlier run that this run does not replace stay, and are named on standard error (in a bucket, they only stay). During
    the block, no other process can write to the same folders."""
    pending = _Pending()
    before = _pending.set(pending)
    try:
        yield
        pending.complete()
    finally:
        pending.close()
        _pending.reset(before)


class Folder:
    """The output directory of a command, created together with its first file.

    Raises UserError if the directory cannot be created or written, or if a file in `names` would overwrite `source`, the file
    from which the texts are read. The names of figures end in .png, but figures are written in each of the `formats`.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        names: Sequence[str] = (),
        source: os.stat_result | None = None,
        formats: Sequence[str] = ("png",),
    ):
        self.formats = [form for form in formats if form in FIGURE_FORMATS]
        self.path = pathlib.Path(output)
        self._name = f"--output={os.fspath(output)}"
        check_directory(output)
        if self.path.is_dir():
            for written in (written for name in names for written in in_formats(name, self.formats)):
                checked_target(os.fspath(self.path / written), source)
        if pending := _pending.get():
            with writing(self._name):
                pending.lock(self.path, self._name)
            pending.usual |= {self.path / written: written for name in names for written in in_formats(name, FIGURE_FORMATS)}
        self.written: list[pathlib.Path] = []
        self.caption = ""
        """The caption printed below every figure."""

    def write(self, name: str, content: bytes) -> pathlib.Path:
        """Writes a file, replacing an older one of the same name. Within `appearing_together`, the file gets its final name at
        the end of the block."""
        pending = _pending.get()
        with writing(self._name), contextlib.ExitStack() as unfinished:
            self.path.mkdir(parents=True, exist_ok=True)
            path = self.path / name
            if pending and path in pending.files:
                pending.files.pop(path).close()
            target = checked_target(os.fspath(path))
            part = unfinished.enter_context(contextlib.closing(PartialFile(target)))
            part.file.write(content)
            part.file.flush()
            if pending:
                pending.files[path] = part
                unfinished.pop_all()
            else:
                part.complete()
        self.written.append(path)
        return target

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes a TSV file: a header line, then a line for each row. Floats have six significant digits, and NaN becomes an
        empty field."""
        lines = ("\t".join(map(_cell, row)) for row in ([*header], *rows))
        self.write(name, "".join(f"{line}\n" for line in lines).encode())

    def arrays(self, name: str, **arrays: np.ndarray) -> None:
        """Writes an .npz file."""
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        self.write(name, file.getvalue())

    def figure(self, name: str, figure: Figure) -> None:
        """Writes a figure in each of the `formats`. `name` ends in .png."""
        for written, form in zip(in_formats(name, self.formats), self.formats, strict=True):
            self.write(written, rendered(figure, form, tight=True, caption=self.caption))


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return re.sub(r"[\t\r\n]", " ", str(value))
