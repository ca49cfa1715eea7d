"""Runs a command: turns errors into one sentence and an exit status, sets UTF-8, and opens closed standard streams."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from bert_jax.errors import USER_ERROR_STATUS, UserError, nearest


def run_verb(main: Callable[[], int | None]) -> NoReturn:
    """Runs the `main` of a command and exits: status 0 if it returns None or 0; 2 for a `UserError`, for too little host memory
    and for an operating-system error with a known remedy; 130 for Ctrl-C; 141 if the reader of standard output has closed it.

    Text and file names are UTF-8 in every locale. Closed standard streams are opened on the null device first.
    """
    _in_utf8()
    _prepare_streams()
    try:
        status = main() or 0
        _flush_stdout()
    except UserError as error:
        _say(f"error: {error}")
        status = USER_ERROR_STATUS
    except MemoryError as error:
        asked = str(error) or "no more could be allocated"
        _say(f"error: this machine's memory ran out ({asked}); end other programs, or take a machine with more")
        status = USER_ERROR_STATUS
    except KeyboardInterrupt:
        _say("interrupted")
        status = 130
    except BrokenPipeError:  # the reader of our output ended (`... | head`): not an error
        sys.stderr.close()
        status = 141
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        _say(f"error: {error.strerror}{where}; {remedy}")
        status = USER_ERROR_STATUS
    if status:
        _discard_stdout()
    sys.exit(status)


_GOES_ON = "free disk space and run the same command again: it continues"
_NAMED = "give an existing path of the right kind (file or directory)"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), _GOES_ON),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO), _NAMED),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or give another path"),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "the disk or the network file system fails; use another one"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "end other programs, or allow more open files (ulimit -n)"),
}
"""errno -> remedy, for an OSError that no caller has turned into a UserError."""


def choose_verb(program: str, description: str | None, verbs: Mapping[str, str], arguments: Sequence[str]) -> str | None:
    """The verb that the `arguments` of a command with several verbs begin with; None after printing the help that they ask for.

    `program` is how the command is called, and `verbs` maps each verb to its summary. Raises UserError for an unknown verb.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = "\n".join(f"  {verb:14} {summary}" for verb, summary in verbs.items())
        print(f"{description}\nVerbs (each has --help):\n{lines}")
        return None
    verb = arguments[0]
    if verb.startswith("-"):
        raise UserError(f"{verb} comes after the verb: {program} VERB {verb}; verbs are {', '.join(verbs)}")
    if verb not in verbs:
        raise UserError(f"unknown verb {verb!r}: {nearest(verb, verbs)}; {program} --help")
    return verb


def require_stdout(remedy: str) -> None:
    """Raises UserError if standard output is closed (`>&-`). For commands whose results go there; others do not need it."""
    if sys.stdout is None:
        raise UserError(f"standard output is closed, so nobody would read the results; {remedy}")


def _in_utf8() -> None:
    """Restarts this process in Python's UTF-8 mode if the locale has another encoding (LC_ALL=C with PYTHONUTF8=0).

    Otherwise arguments that are not ASCII could not be decoded, and files would be read and written in that encoding.
    """
    if sys.getfilesystemencoding().lower() == "utf-8" or not sys.executable or sys.flags.utf8_mode:
        return
    os.environ["PYTHONUTF8"] = "1"  # inherited by child processes
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _prepare_streams() -> None:
    """Opens closed standard streams on the null device, because otherwise the next opened file would take their descriptor and
    receive what is printed; makes characters without an encoding print as backslash escapes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
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
        raise UserError(f"standard output cannot be written: {error.strerror}; redirect it, for example >FILE") from error


def _say(text: str) -> None:
    """Writes a line to standard error; nothing, and the status stays, where its reader has closed it (`2>&1 | head`)."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _open_on_null(2)


def _discard_stdout() -> None:
    """Flushes standard output; if that fails, opens the null device in its place so that Python reports nothing more at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        _open_on_null(1)


def _open_on_null(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
