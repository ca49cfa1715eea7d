"""The generations of the objects of which local files are copies, in a file beside the copies' directory.

A local file is unchanged if it has the size and modification time of the record, an object if it has the generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

from bert_jax.files import locked, write_text
from bert_jax.interface.numbers import whole_number


@dataclasses.dataclass(frozen=True)
class Copy:
    """A local file as it was when it was equal to the object of this generation."""

    generation: str
    size: int
    modified: int
    """In nanoseconds."""


def copy_of(file: pathlib.Path, generation: str) -> Copy:
    """The record of a file that equals the object of this generation."""
    facts = file.stat()
    return Copy(generation, facts.st_size, facts.st_mtime_ns)


def is_unchanged(file: pathlib.Path, copy: Copy | None) -> bool:
    """Whether a file is there and is as it was recorded."""
    try:
        return copy is not None and copy_of(file, copy.generation) == copy
    except OSError:
        return False


class Record:
    """The copies in a directory, by their names relative to it. `held` makes sure that one process at a time changes them."""

    def __init__(self, directory: pathlib.Path):
        self._path = directory.parent / f".{directory.name}.copies"

    def read(self) -> dict[str, Copy]:
        """The recorded copies; none without a file. Lines that are not of a record are passed over, and names of files outside of
        the directory, which would be removed as copies."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return {}
        copies = {}
        for line in lines:
            generation, *rest = line.split("\t", 3)
            size, modified = (whole_number(text) for text in (*rest[:2], "", "")[:2])
            is_inside = bool(rest) and not rest[-1].startswith("/") and ".." not in rest[-1].split("/")
            if len(rest) == 3 and size is not None and modified is not None and is_inside:
                copies[rest[2]] = Copy(generation, size, modified)
        return copies

    def write(self, copies: dict[str, Copy]) -> None:
        """Replaces the record."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{copy.generation}\t{copy.size}\t{copy.modified}\t{name}\n" for name, copy in sorted(copies.items())]
        write_text(self._path, "".join(lines))

    @contextlib.contextmanager
    def held(self, *, wait: bool, name: str = "lock") -> Iterator[None]:
        """Holds a lock of the record in the block: waits for another process, or raises UserError without `wait`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        refusal = f"another process of this machine uses {self._path}; wait for its end, or stop it"
        with locked(self._path.with_name(f"{self._path.name}.{name}"), None if wait else refusal):
            yield
