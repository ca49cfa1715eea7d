"""Runs a command. Turns errors into one sentence and an exit status, sets UTF-8, and opens closed standard streams.

The imports of a command take seconds, so `run_command` is called before them. During the imports, Ctrl-C already ends the
command with "interrupted", and wrong flags are rejected immediately. If JAX cannot start, this is reported in one sentence.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import NoReturn, Self

from bert_jax.errors import USER_ERROR_STATUS, UserError, nearest
from bert_jax.interface.progress import CLEAR_LINE
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.interface.words import shortened, without_controls

INTERRUPTED = 128 + signal.SIGINT
"""The exit status after Ctrl-C."""


def run_command(module: str, check: str = "") -> NoReturn:
    """Imports the `module` of a command, runs its `main` and exits, as `run_main` does. Every command starts with this call.

        if __name__ == "__main__":  # before the imports below, which take seconds
            from bert_jax.interface.command import run_command
            run_command("bert_jax.convert", check="bert_jax.interop.flags:check_flags")

    The function that `check` names ("MODULE:FUNCTION") is called before the import with the command's name and docstring. It
    prints the help and rejects wrong flags without the slow imports.
    """
    os.environ.pop("MPLBACKEND", None)  # figures need no display, and matplotlib fails if the value is invalid
    _end_when_interrupted()
    _in_utf8()
    _allow_open_files()
    _prepare_streams()
    for name, kind in (("stderr", _Messages), ("stdout", _Shown if sys.stdout and sys.stdout.isatty() else _Results)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # sys.stdout is None if it is closed
            made = kind.wrapping(stream)
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)
    run_main(lambda: _checked_and_run(module, check))


def _checked_and_run(module: str, check: str) -> int | None:
    if check:
        checking, _, function = check.partition(":")
        getattr(importlib.import_module(checking), function)(module.rpartition(".")[2], sys.modules["__main__"].__doc__)
    refuses_flags = _start_parsing_xla_flags()
    _add_in_one_instruction()
    try:
        command = importlib.import_module(module)
    except ValueError as error:
        raise _jax_refusal(error) or error from None
    if (reason := refuses_flags()) and "jax" in sys.modules:
        raise UserError(f"JAX cannot start: {reason}; correct XLA_FLAGS={_given('XLA_FLAGS')}, or unset it")
    _raise_when_interrupted()
    return command.main()


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Runs the `main` of a command and exits with its status, or 0 if it returns None. After a `UserError`, the status is
    that of the error, usually 2. It is also 2 after an operating-system error with a known remedy, if the host memory is
    exhausted, or if JAX cannot start. The status is 130 after Ctrl-C, and 141 if the reader of standard output has closed it.

    An exception in a user's file (FILE.py:NAME in a setting) is shown with the lines of that file. Text and file names are UTF-8
    in every locale. Closed standard streams are opened on the null device first.
    """
    _in_utf8()
    _prepare_streams()
    try:
        try:
            with file_errors_explained():
                status = main() or 0
            _flush_stdout()
        except Exception as error:
            if _interrupted:  # a library has converted the KeyboardInterrupt
                raise KeyboardInterrupt from error
            raise
        if _interrupted:  # a library has swallowed the KeyboardInterrupt
            raise KeyboardInterrupt
    except UserError as error:
        _say(f"error: {error}")
        status = error.status
    except KeyboardInterrupt:
        _say("interrupted")
        status = INTERRUPTED
    except MemoryError as error:
        _say(_out_of_memory(error))
        status = USER_ERROR_STATUS
    except BrokenPipeError:  # the reader of the output has ended (`... | head`), which is not an error
        sys.stderr.close()
        status = 141
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if isinstance(error, BlockingIOError) and hasattr(error, "characters_written"):
            remedy = "standard output must wait for its reader; write to a file or a blocking pipe"
        if remedy is None:
            raise
        if error.filename is None and error.errno == errno.ENOENT and _has_no_directory():
            remedy = "the current directory was removed, change to another one"
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        _say(_out_of_memory(error) if remedy == _MEMORY else f"error: {error.strerror}{where}; {remedy}")
        status = USER_ERROR_STATUS
    except (RuntimeError, ImportError, AssertionError, ValueError) as error:
        refusal = _jax_refusal(error)
        if refusal is None and not _NO_MEMORY.search(str(error)):
            raise
        _say(f"error: {refusal}" if refusal else _out_of_memory(error))
        status = USER_ERROR_STATUS
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, _leave_at_once)  # from here on, a KeyboardInterrupt would show a traceback
    if status:
        _discard_stdout()
    sys.exit(status)


def _has_no_directory() -> bool:
    try:
        pathlib.Path.cwd()
    except OSError:
        return True
    return False


_GOES_ON = "free disk space and rerun the same command, which resumes"
_MEMORY = "end other programs, or use a machine with more memory"
_NAMED = "give an existing path of the right kind (file or directory)"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), _GOES_ON),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO), _NAMED),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or give another path"),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE, errno.ENODEV, getattr(errno, "EREMOTEIO", errno.EIO)),
        "the disk or the network file system failed; use another one",
    ),
    **dict.fromkeys(
        (errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
        "the network or a network file system does not answer; repair the connection, or mount the file system again",
    ),
    errno.EBUSY: "another program uses it; end that program, or give another path",
    errno.EAGAIN: "end other programs, or allow more processes (ulimit -u)",
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "end other programs, or allow more open files (ulimit -n)"),
}
"""errno -> remedy, for OSErrors that no caller has converted to a UserError."""


_NO_MEMORY = re.compile(r"[Cc]annot allocate memory|failed to map segment|can't start new thread")
"""Error messages of the dynamic loader and of Python's threads when memory runs out."""


def _out_of_memory(error: Exception) -> str:
    asked = getattr(error, "strerror", None) or str(error) or "no more could be allocated"
    return f"error: this machine ran out of memory ({asked}); {_MEMORY}"


_NO_BACKEND = re.compile(r"Unable to initialize backend '(?P<name>[^']*)': (?P<reason>.*?)(?: \((?:set|you) [^()]*\))?$", re.S)
_REFUSED_VARIABLE = re.compile(r"for environment '(?P<name>JAX_\w+)'|for JAX flag (?P<flag>jax_\w+)")


def _jax_refusal(error: Exception) -> UserError | None:
    """Returns a UserError if `error` means that JAX cannot start, and None otherwise."""
    text = str(error)
    if isinstance(error, AssertionError):  # JAX asserts that it found a device of a known platform
        code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        text = "Unable to initialize backend '': there is no such device" if code.co_filename.endswith("xla_bridge.py") else ""
    if backend := _NO_BACKEND.match(text):
        names = ["JAX_PLATFORMS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"]
        if backend["name"] == "cpu":  # the CPU is always available, so the cause is another platform
            names.reverse()
        cause = next((name for name in names if _given(name)), "")
        given = f"unset {cause}={_given(cause)}, or correct it" if cause else "end other programs that use the devices"
        install = "for another device, install JAX for it: BERT_JAX_DEVICE=cuda13 (or tpu, cuda12, cpu) tpu_scripts/run.sh"
        return UserError(f"JAX cannot start: {' '.join(backend['reason'].split()).rstrip('.')}; {given}; {install}")
    if refused := _REFUSED_VARIABLE.search(text):
        name = refused["name"] or refused["flag"].upper()
        return UserError(f"JAX cannot start: {text}; correct {name}={os.environ.get(name, '')}, or unset it")
    return None


_ONE_INSTRUCTION = "--xla_gpu_ftz=true"


def _add_in_one_instruction() -> None:
    """Makes XLA add float32 numbers in the memory of GPUs before compute capability 9 (A100, T4, RTX 30) with one instruction.

    The JAX in requirements.txt compiles such an addition to a loop that repeats as long as others add to the same number, unless
    numbers below 1e-38 may become 0. Thousands of tokens add their gradients to one row of the tables of segments and positions,
    and a reported case took 450 times as long (openxla/xla#46225). JAX 0.11.1 mends it."""
    flags = os.environ.get("XLA_FLAGS", "")
    on_gpus = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    if not on_gpus or "xla_gpu_ftz" in flags:
        return
    from importlib.metadata import version  # takes 0.06 s

    if version("jaxlib") in ("0.10.2", "0.11.0"):
        os.environ["XLA_FLAGS"] = f"{flags} {_ONE_INSTRUCTION}".lstrip()


def _given(name: str) -> str:
    """Returns the value that the user has given to an environment variable."""
    return os.environ.get(name, "").removesuffix(_ONE_INSTRUCTION).rstrip()


def _start_parsing_xla_flags() -> Callable[[], str]:
    """Starts parsing XLA_FLAGS in another process, since XLA aborts the process if a flag is wrong. Returns a function that
    waits for the result and returns the error in the flags, or "" if there is none."""
    if not os.environ.get("XLA_FLAGS", "").strip() or not sys.executable:
        return lambda: ""
    program = [sys.executable, "-P", "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
    process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wrong() -> str:
        said = process.communicate()[1]
        found = re.search(r"^[EF]\d{4} .*?\] (.*?)(?: \(We assumed.*)?$", said, re.M)
        return found[1].rstrip(".") if process.returncode and found else ""

    return wrong


# Ctrl-C. Python's handler raises KeyboardInterrupt wherever the program is. During imports, this causes a traceback or an abort
# in C++. In a callback of the garbage collector, such as JAX's, the exception has no effect.

_interrupted = False


def _end_when_interrupted() -> None:
    """Makes Ctrl-C end this process immediately, unless the process was started to ignore Ctrl-C (`nohup`, `&` in a script)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave_at_once)


def _raise_when_interrupted() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt, so that unfinished work is cleaned up. If the exception is swallowed, e.g. in a
    destructor, it is raised again."""
    if signal.getsignal(signal.SIGINT) is not _leave_at_once:
        return
    signal.signal(signal.SIGINT, _interrupt)
    otherwise = sys.unraisablehook

    def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _signal_main_thread).start()  # an exception in this hook would be swallowed again
        else:
            otherwise(unraisable)

    sys.unraisablehook = interrupt_again


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def _signal_main_thread() -> None:
    number = threading.main_thread().ident
    if number is not None:
        signal.pthread_kill(number, signal.SIGINT)


def choose_command(program: str, description: str | None, commands: Mapping[str, str], arguments: Sequence[str]) -> str | None:
    """Returns the first of `arguments`, which names a command of `program`. If help is requested, prints it and returns None.

    `commands` maps each command to its summary. Raises UserError if the command is unknown.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        from bert_jax.interface.flags import filled

        lines = "\n".join(f"  {command:14} {summary}" for command, summary in commands.items())
        usage = f"usage: {program} COMMAND [--FLAG=VALUE ...]"
        print(f"{usage}\n\n{filled(description or '')}\n\nCommands (each has --help):\n{lines}")
        return None
    command = arguments[0]
    if command.startswith("-"):
        raise UserError(f"{command} must come after the command: {program} COMMAND {command}; commands are {', '.join(commands)}")
    if command not in commands:
        raise UserError(f"unknown command {command!r}: {nearest(command, commands)}; {program} --help")
    return command


def require_stdout(remedy: str) -> None:
    """Raises UserError if standard output is closed (`>&-`). Commands that print results call this function."""
    if sys.stdout is None:
        raise UserError(f"standard output is closed, so the results would be lost; {remedy}")


def _in_utf8() -> None:
    """Restarts this process in Python's UTF-8 mode if the locale has another encoding (LC_ALL=C with PYTHONUTF8=0).

    Without this, non-ASCII arguments could not be decoded, and files would be read and written in that encoding."""
    if sys.getfilesystemencoding().lower() == "utf-8" or not sys.executable or sys.flags.utf8_mode:
        return
    os.environ["PYTHONUTF8"] = "1"  # child processes inherit this setting
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _allow_open_files() -> None:
    """Raises the soft limit of open files to the hard limit, because a large corpus consists of thousands of files. The usual
    soft limit, 1,024, is meant for programs that call select()."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in _OPEN_FILES:
        if 0 <= soft < limit:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit if hard < 0 else min(hard, limit), hard))
                return


_OPEN_FILES = 1 << 20, 10_240
"""The highest limits of open files that Linux and macOS allow by default. On macOS, the hard limit may be higher."""


def _prepare_streams() -> None:
    """Opens closed standard streams on the null device. Otherwise, the next opened file would get the descriptor of a closed
    stream, and printed text would be written to it. Also prints unencodable characters as backslash escapes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the opened file gets the lowest free descriptor, which is `number`
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


class _Results(io.TextIOWrapper):
    """Standard output. A write error raises a UserError that names standard output, so that the error is not attributed to
    another file."""

    def write(self, text: str) -> int:
        """Writes `text`."""
        with _stdout_errors():
            return super().write(text)

    def flush(self) -> None:
        """Flushes the stream."""
        with _stdout_errors():
            super().flush()

    @classmethod
    def wrapping(cls, stream: io.TextIOWrapper) -> Self:
        """Returns a stream of this class that replaces `stream`. `stream` must not be used afterwards."""
        encoding, errors, by_lines, at_once = stream.encoding, stream.errors, stream.line_buffering, stream.write_through
        stream.flush()
        return cls(stream.detach(), encoding, errors, line_buffering=by_lines, write_through=at_once)


class _Shown(_Results):
    """A standard stream for human readers. Control characters are escaped, so that texts and names from files cannot control
    the terminal."""

    def write(self, text: str) -> int:
        """Writes `text` with its control characters escaped. The control characters that start a progress line are kept."""
        redraw = next((start for start in (CLEAR_LINE, "\r") if text.startswith(start)), "")
        super().write(redraw + without_controls(text.removeprefix(redraw)))
        return len(text)


class _Messages(_Shown):
    """Standard error. Very long words and lines are shortened. Text that cannot be written, e.g. because the disk is full, is
    lost."""

    def write(self, text: str) -> int:
        """Writes `text`, omitting the middle of very long words and lines."""
        with contextlib.suppress(UserError):
            super().write(shortened(text))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        with contextlib.suppress(UserError):
            super().flush()


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"standard output cannot be written: {error.strerror}; redirect it, for example >FILE") from error


def _flush_stdout() -> None:
    with _stdout_errors():
        if sys.stdout is not None:
            sys.stdout.flush()


def _say(text: str) -> None:
    """Writes a line to standard error. If the reader of standard error has closed it (`2>&1 | head`), nothing is written, and the
    exit status does not change."""
    try:
        print(shortened(without_controls(text)), file=sys.stderr, flush=True)
    except BrokenPipeError:
        _open_on_null(2)


def _discard_stdout() -> None:
    """Flushes standard output. If this fails, replaces standard output by the null device, so that Python reports nothing at
    exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError, UserError):
        _open_on_null(1)


def _open_on_null(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
