"""What a person sees of every verb: plain errors, and progress with an estimate of the time left.

This module imports nothing of the project, so every folder may use it.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TextIO

REFUSED = 2
"""The exit status after a `UserError`."""


class UserError(Exception):
    """A mistake that the person at the keyboard can mend.

    The message names the value, the limit and the remedy. `run_verb` prints it without a traceback and exits with status 2;
    every other exception is a bug of ours and keeps its traceback.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause that helps after a misspelt name: `did you mean 'x'?`, or the list of what exists when nothing is near. Dashes
    before a flag say nothing of its name, and those inside are as good as underscores."""
    known = sorted(known)
    bare = {other.lstrip("-").replace("_", "-"): other for other in known}
    given = name.lstrip("-").replace("_", "-")
    close = difflib.get_close_matches(given, bare, n=1, cutoff=0.55)
    if not close:  # the first part of a name, as `nsp` of `nsp_head`
        begun = [other for other in bare if given and other.startswith(f"{given}-")]
        close = begun if len(begun) == 1 else []
    return f"did you mean {bare[close[0]]!r}?" if close else f"known: {', '.join(known)}"


def looked_for(path: str | os.PathLike) -> str:
    """A path that is not there, as a message names it: a relative one with the directory that it was looked for in, and with the
    nearest that is there."""
    near = nearest_path(path)
    said = [] if pathlib.Path(path).is_absolute() else [f"looked for in {_current_directory()}"]
    said += [f"did you mean {near}?"] if near else []
    return f"{os.fspath(path)} ({'; '.join(said)})" if said else os.fspath(path)


def nearest_path(path: str | os.PathLike) -> str | None:
    """The path of a file or directory that is there and spelt nearly as `path`, part by part, or as its beginning; None where
    there is none."""
    found, corrected = pathlib.Path(), False
    for part in pathlib.Path(path).parts:
        if not (found / part).exists():
            try:
                close = difflib.get_close_matches(part, [path.name for path in found.iterdir()], n=1, cutoff=0.6)
            except OSError:
                break
            if not close:
                break
            part, corrected = close[0], True
        found /= part
    return str(found) if corrected else None


def _current_directory() -> str:
    try:
        return str(pathlib.Path.cwd())
    except OSError:
        return "the current directory, which was removed"


def named(text: str) -> str:
    """The `type=` of a flag that names a file, a model or the like: any text but an empty one."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"={text} is empty; give a name, or leave the flag out")
    return text


class FlagParser(argparse.ArgumentParser):
    """argparse whose mistakes are `UserError`s, which names the nearest flag instead of an unknown one, and which refuses a flag
    that is given twice with different values."""

    def __init__(self, **arguments: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)
        self.elsewhere: Callable[[str], str] = lambda argument: ""
        """Says of an argument that is no flag what else it may be."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        self._refuse_contradictions(given)
        values, unknown = self.parse_known_args(given, namespace)
        if unknown and not unknown[0].startswith("-"):
            raise UserError(f"unexpected {unknown[0]!r}: every argument is a flag, --name=value; see {self.prog} --help")
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            hint = self.elsewhere(unknown[0]) or nearest(unknown[0].partition("=")[0], flags)
            raise UserError(f"unknown argument {unknown[0]}: {hint}")
        return values

    def _refuse_contradictions(self, given: Sequence[str]) -> None:
        seen: dict[str, str] = {}
        for i, argument in enumerate(given):
            if argument == "--":
                return
            flag, equals, value = argument.partition("=")
            action = self._option_string_actions.get(flag)
            if action is None or action.default == [] or isinstance(action, argparse._AppendAction):  # may be repeated
                continue
            if not equals and action.nargs != 0:
                value = given[i + 1] if i + 1 < len(given) else ""
            text = f"{flag}={value}" if value else flag
            before = seen.setdefault(action.dest, text)
            if before != text:
                raise UserError(f"{before} and {text} contradict each other; give one of them")

    def error(self, message: str) -> NoReturn:
        hint = "write --flag=VALUE, with the sign; " if "expected one argument" in message else ""
        message = re.sub(r"^argument ([^\s/]+)\S*: =", r"\1=", message)  # of a type that says what is wrong with --flag=VALUE
        raise UserError(f"{message}; {hint}see {self.prog} --help")


def run_verb(main: Callable[[], int | None]) -> NoReturn:
    """Runs a verb's `main` and ends the process: 0 when it returns None or 0, 2 for a `UserError` or too little memory, 130 for
    Ctrl-C. Text and file names are UTF-8 whatever the locale is, and a closed standard stream stays away from files."""
    _in_utf8()
    _prepare_streams()
    try:
        status = main() or 0
        _flush_stdout()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = REFUSED
    except MemoryError as error:
        asked = str(error) or "no more could be allocated"
        print(f"error: this machine's memory ran out ({asked}); end other programs, or take a machine with more", file=sys.stderr)
        status = REFUSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output left (`... | head`): nothing to report, and nothing to report it to
        sys.stderr.close()
        status = 141
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        print(f"error: {error.strerror}{where}; {remedy}", file=sys.stderr)
        status = REFUSED
    if status:
        _discard_stdout()
    sys.exit(status)


_GOES_ON = "free space and give the same command again: it goes on"
_NAMED = "name a file or directory that is there, of the right kind"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), _GOES_ON),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO), _NAMED),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or name another"),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "the disk or the network behind it fails; use another one"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "end other programs, or allow more open files (ulimit -n)"),
}
"""What a person can do about an error of the system that no one nearer to its cause has explained."""


def require_stdout(remedy: str) -> None:
    """Raises UserError where standard output is closed (`>&-`), for a verb whose answers go there; others print to nobody."""
    if sys.stdout is None:
        raise UserError(f"standard output is closed, so nobody would read the answers; {remedy}")


def _in_utf8() -> None:
    """Starts this process anew in Python's UTF-8 mode where the locale has another encoding (LC_ALL=C with PYTHONUTF8=0).

    Else arguments that are not ASCII would be no text, and files would be read and written in that encoding.
    """
    if sys.getfilesystemencoding().lower() == "utf-8" or not sys.executable or sys.flags.utf8_mode:
        return
    os.environ["PYTHONUTF8"] = "1"  # of the processes that this one starts
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _prepare_streams() -> None:
    """Holds closed standard streams open on the null device, else the next file opened would get what is written to them; lets
    names that have no encoding be printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _flush_stdout() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"standard output cannot be written: {error.strerror}; send it elsewhere, for example >FILE") from error


def _discard_stdout() -> None:
    """Writes what standard output still holds if it can be written; else Python would report that once more as it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


PLURALS = {"batch": "batches", "entry": "entries", "pass": "passes", "process": "processes", "vocabulary": "vocabularies"}
"""Of the nouns that `counted` is given, those that take more than an s."""


def counted(number: int, noun: str) -> str:
    """A number with its noun as a person writes them: "1 epoch", "1,234 rows", "0 batches"."""
    return f"{number:,} {noun if number == 1 else PLURALS.get(noun, noun + 's')}"


def byte_unit(size: float) -> tuple[float, str]:
    """The bytes of a unit in which a progress towards `size` bytes is told, and its name: of less than 10 MB in kB."""
    return (1e6, "MB") if size >= 1e7 else (1e3, "kB")


def duration(seconds: float) -> str:
    """`seconds` as a person says it: 42s, 3m05s, 2h07m, 4d03h."""
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86400}d{s % 86400 // 3600:02d}h"


class Progress:
    """One line of progress with an ETA: redrawn in place on a terminal, a plain line every `plain_every` seconds elsewhere.

    What is done before `delay` seconds have passed shows nothing.

    >>> progress = Progress("tokenising", total=8, unit="shards")
    >>> progress.update(3, note="12.1 M tokens")    # tokenising 3/8 shards, 12.1 M tokens, ETA 41s
    >>> progress.close()
    """

    def __init__(
        self,
        title: str,
        total: int | None,
        unit: str,
        *,
        plain_every: float = 10.0,
        delay: float = 0.0,
        stream: TextIO | None = None,
    ):
        self._title, self._total, self._unit = title, total, unit
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._every = 0.1 if self._live else plain_every
        self._start = time.monotonic()
        self._first: int | None = None
        self._shown = self._start + delay - self._every  # as if it had been shown so that the next time is in `delay` seconds
        self._delay, self._last_shown = delay, ""
        self._line = ""

    def update(self, done: int, note: str = "", total: int | None = None) -> None:
        """`done` units are finished, of `total` where that is known only now."""
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._first is None:  # work found finished at the start says nothing about speed
            self._first, self._start = done, now
        self._line = self._format(done, note, now - self._start)
        if now - self._shown >= self._every:
            self._shown = now
            self._draw()

    def close(self) -> None:
        if self._line and (self._last_shown or not self._delay):
            if self._live or self._line != self._last_shown:
                self._draw()
            if self._live:
                self._stream.write("\n")
                self._stream.flush()

    def _format(self, done: int, note: str, elapsed: float) -> str:
        line = f"{self._title} {done:,}" + (f"/{self._total:,}" if self._total is not None else "") + f" {self._unit}"
        line += f", {note}" if note else ""
        gained = done - (self._first or 0)
        if self._total is not None and gained > 0 and done < self._total:
            line += f", ETA {duration(elapsed / gained * (self._total - done))}"
        return line

    def _draw(self) -> None:
        self._last_shown = self._line
        self._stream.write(f"\r\x1b[2K{self._line}" if self._live else f"{self._line}\n")
        self._stream.flush()
