"""A bad input: what is asked of which command, and how the command has to refuse it."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import shutil
import string
from collections.abc import Callable, Mapping, Sequence

Spoil = Callable[[pathlib.Path], None]
"""Does some damage in the directory in which the command runs."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One mistake.

    The command runs in an empty directory of its own. $NAME in flags, files and `says` is the path of one of the things of
    `places`, which no command may change; $here is that directory's own.
    """

    name: str
    """What is wrong."""
    flags: str = ""
    """As in a shell. They take the place of the usual ones of the same name."""
    says: str = ""
    """The message in its parts, with " ... " between them: the value that is wrong, its limit, the remedy."""
    exit: int = 2
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    """What lies in the directory beforehand."""
    copies: str = ""
    """What lies there besides: copies of places, as NAME or, under another name, OTHER=NAME."""
    spoil: Spoil | Sequence[Spoil] = ()
    """The damage done to them."""
    leaves: str = ""
    """Patterns of files that may be new or other afterwards: where a run was right to begin."""
    without: str = ""
    """Usual flags that are left out."""
    stdin: str | bytes = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file_size: int | None = None
    """No file grows beyond so many bytes, as on a full disk."""
    closed: tuple[int, ...] = ()
    """File descriptors that are closed, as after `>&-`."""
    devices: int = 1

    def fragments(self, places: Mapping[str, pathlib.Path]) -> list[str]:
        """What the message has to hold, in this order."""
        return [filled(text, places) for text in self.says.split(" ... ")]

    def prepare(self, directory: pathlib.Path, places: Mapping[str, pathlib.Path]) -> None:
        """Makes the directory in which the command runs."""
        for copy in self.copies.split():
            name, _, place = copy.partition("=")
            _link(places[place or name], directory / name)
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
    """The flags with which the command would do its work, were it not for the case's."""
    cases: Sequence[Case]

    def command_line(self, case: Case, places: Mapping[str, pathlib.Path]) -> list[str]:
        """The command and its arguments: the case's, and those of the usual ones that they do not replace."""
        given = shlex.split(case.flags)
        replaced = {*(argument.partition("=")[0] for argument in given), *case.without.split()}
        usual = [argument for argument in shlex.split(self.usual) if argument.partition("=")[0] not in replaced]
        return [self.command, *(filled(argument, places) for argument in [*given, *usual])]


def filled(text: str, places: Mapping[str, pathlib.Path]) -> str:
    """`text` with paths for the $NAMEs that are places."""
    return string.Template(text).safe_substitute(places)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
    """A copy of a directory or a file."""
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
