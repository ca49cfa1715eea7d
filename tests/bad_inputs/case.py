"""Describes a bad input: the command line, and the error with which the command has to refuse it."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import shutil
import string
from collections.abc import Callable, Mapping, Sequence

Spoil = Callable[[pathlib.Path], None]
"""Damages files in the directory in which the command runs."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One mistake of a user.

    The command runs in an empty directory of its own. $NAME in flags, files and `says` is a path in `places`, which no command
    may change; $here is the directory of the command.
    """

    name: str
    """What is wrong, in words."""
    flags: str = ""
    """Flags as in a shell. They replace the usual flags of the same name."""
    says: str = ""
    """The parts of the message, separated by " ... ": the wrong value, its limit, the remedy."""
    exit: int = 2
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    """Files that are in the directory beforehand."""
    copies: str = ""
    """Copies of places that are also in the directory, as NAME or, under another name, OTHER=NAME."""
    spoil: Spoil | Sequence[Spoil] = ()
    """The damage done to these copies."""
    leaves: str = ""
    """Patterns of files that may be new or changed afterwards, if the run was right to start."""
    without: str = ""
    """The usual flags to leave out."""
    stdin: str | bytes = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file_size: int | None = None
    """The maximum size of a file in bytes, as on a full disk."""
    closed: tuple[int, ...] = ()
    """The file descriptors to close, as after `>&-`."""
    devices: int = 1

    def fragments(self, places: Mapping[str, pathlib.Path]) -> list[str]:
        """Returns the parts that the message has to contain, in this order."""
        return [filled(text, places) for text in self.says.split(" ... ")]

    def prepare(self, directory: pathlib.Path, places: Mapping[str, pathlib.Path]) -> None:
        """Creates the files in the directory in which the command runs."""
        for copy in self.copies.split():
            name, _, place = copy.partition("=")
            _copy(places[place or name], directory / name)
        for name, content in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else filled(content, places).encode())
        for damage in [self.spoil] if callable(self.spoil) else self.spoil:
            damage(directory)


@dataclasses.dataclass(frozen=True)
class Table:
    """The cases of one command."""

    command: str
    usual: str
    """Valid flags of the command; a case adds to them or replaces them."""
    cases: Sequence[Case]

    def command_line(self, case: Case, places: Mapping[str, pathlib.Path]) -> list[str]:
        """Returns the command and its arguments: the case's flags, and the usual flags that they do not replace."""
        given = shlex.split(case.flags)
        replaced = {*(argument.partition("=")[0] for argument in given), *case.without.split()}
        usual = [argument for argument in shlex.split(self.usual) if argument.partition("=")[0] not in replaced]
        return [self.command, *(filled(argument, places) for argument in [*given, *usual])]


def filled(text: str, places: Mapping[str, pathlib.Path]) -> str:
    """Returns `text` with paths in place of $NAMEs."""
    return string.Template(text).safe_substitute(places)


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a directory or a file."""
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
