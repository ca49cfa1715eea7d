"""The parts that all verbs share: their flags, the reading of texts, the model, the list of files."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.progress import DELAY
from bert_jax.analysis.words import Window, read_windows
from bert_jax.errors import UserError, nearest
from bert_jax.interface.figures import FORMATS
from bert_jax.interface.flags import nonempty
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import counted
from bert_jax.prediction.streams import Records, check_whole_file
from bert_jax.storage.fetching import local_place

T = TypeVar("T")
NAME = 60
"""Most characters of a model's name below a picture, its last ones."""


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    """Adds the flags of this verb."""
    run: Callable[[argparse.Namespace], int]
    """Returns the exit status."""


def text_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of verbs that read texts."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="one text per line, .jsonl, a table; .gz, .zst; -: stdin")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")


def format_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of commands that draw pictures."""
    parser.add_argument("--format", type=formats(FORMATS), default=("png",), metavar="F,F", help="png, pdf, svg (png)")


def formats(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads a list of names of formats with commas between them."""

    def read(text: str) -> tuple[str, ...]:
        for name in (found := tuple(text.split(","))):
            if name not in known:
                raise argparse.ArgumentTypeError(f"={text} is unknown: {nearest(name, known)}")
        return tuple(dict.fromkeys(found))

    return read


def dress(folder: Folder, flags: argparse.Namespace, *others: str) -> None:
    """Makes the pictures of a folder name the model, and `others` with which it is compared."""
    names = [name if len(name) <= NAME else f"\u2026{name[-NAME:]}" for name in (flags.model, *others)]
    folder.caption = " | ".join(names)


class Reading:
    """Reads records as windows; counts texts, lines that cannot be read and texts that are cut; shows progress."""

    def __init__(self, analyser: Analyser, records: Records):
        self._engine, self._records = analyser.engine, records
        self._progress = Progress("read", None, "lines", delay=DELAY)
        self._line = 0
        self.texts = self.failed = self._windows = 0

    def windows(self) -> Iterator[Window]:
        """The windows of all texts; a record without a text is reported."""
        return self.each(lambda text: read_windows(self._engine, text))

    def each(self, windows: Callable[[str], Iterator[T]]) -> Iterator[T]:
        """The values that `windows` gives for each text, as `windows` of this class."""
        total = self._records.count()
        for record in self._records:
            self._line, self._total = record.number, total
            try:
                if record.problem:
                    raise UserError(record.problem)
                found = list(windows(record.values["text"]))
            except UserError as error:
                self.failed += 1
                print(f"error: {record.place}{error}", file=sys.stderr)
                continue
            self.texts += 1
            yield from found

    def show(self, note: str) -> None:
        """Shows the progress."""
        self._progress.update(self._line, note, self._total)

    def close(self) -> None:
        """Ends the line of progress."""
        self._progress.close()

    def cut(self, windows: int) -> str:
        """The end of a sentence with the number of windows where a text was cut, else ""."""
        if windows == self.texts:
            return ""
        longest = counted(self._engine.config.max_position, "token")
        return f"; texts longer than {longest} were cut: {counted(windows, 'window')}"


def check_files(flags: argparse.Namespace, names: Iterable[str]) -> None:
    """Raises UserError where the file of one of the flags `names` is a pipe, since annotated files are read several times."""
    for name in names:
        if path := getattr(flags, name):
            check_whole_file(path, f"--{name}")


def check_choose(flags: argparse.Namespace, units: str) -> None:
    """Raises UserError where --choose, the file that heads are chosen on, is --input, whose `units` are then split in halves."""
    if flags.choose and pathlib.Path(flags.choose).resolve() == pathlib.Path(flags.input).resolve():
        raise UserError(f"--choose={flags.choose} is --input too; without --choose, half of its {units} are chosen on")


def load(flags: argparse.Namespace) -> Analyser:
    """The model of --model. Raises UserError where --output, `flags.place` as it was given, is its directory."""
    analyser = Analyser.load(flags.model)
    if local_place(flags.place).resolve() == pathlib.Path(analyser.engine.name).resolve():
        raise UserError(f"--output={flags.place} is the directory of the model itself; choose another --output")
    for note in analyser.engine.model.notes:
        if "activation" in note:  # which the checkpoint does not say, and which changes every number
            print(note, file=sys.stderr)
    return analyser


def print_written(folder: Folder) -> None:
    """Prints the files that were written."""
    print(f"written to {folder.path}: {', '.join(path.name for path in folder.written)}")
