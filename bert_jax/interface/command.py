"""Runs a command: its errors become one sentence and an exit status, its text is UTF-8, its standard streams are whole."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from bert_jax.errors import REFUSED, UserError


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


