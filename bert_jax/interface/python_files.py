"""Loads the user's Python files. These are experiment files, and the files that the settings of an experiment name
(`interface/named.py`). The function `get_config()` or `get_config(argument)` of an experiment file returns nested settings. An
exception in a user's file becomes a UserError with the file's part of the traceback."""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.interface.imports import imported_files, importing, loader_of

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def load(given: str, flag: str = "--config") -> dict[str, Any]:
    """Returns the settings of the experiment file FILE[:ARG], as plain dicts, lists and values. `flag` is the flag that named the
    file.

    Raises UserError if the file does not exist, has no get_config, or raises an exception (with the file's part of the
    traceback).
    """
    file, argument = find_file(given, flag)
    module = _module(file, flag, "an experiment file is a Python file with a function get_config()")
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise UserError(f"{flag}={file} has no function get_config(); see experiments/pretrain/quickstart.py for an example")
    takes = get_config.__code__.co_argcount if hasattr(get_config, "__code__") else 0
    defaults = getattr(get_config, "__defaults__", None) or ()
    if argument is not None and not takes:
        raise UserError(f"{flag}={file}:{argument}: its get_config does not take an argument; leave `:{argument}` out")
    if argument is None and takes > len(defaults):
        documented = re.search(rf"{re.escape(file.name)}:(\S+)", module.__doc__ or "")
        example = f"for example {given}:{documented[1]}" if documented else "its docstring lists the arguments"
        raise UserError(f"{flag}={given} needs an argument, {flag}={given}:ARG; {example}")
    if argument is None:
        return _plain(_run(file, flag, get_config), file, flag)
    try:
        returned = get_config(argument)
    except KeyError as error:
        raise UserError(_unknown_argument(f"{flag}={file}", argument, _keys_looked_up(error, file))) from error
    except (LookupError, ValueError) as error:
        says = f"{flag}={file}:{argument}: its get_config does not accept {argument!r} ({error}); see its docstring"
        raise UserError(says) from error
    except (Exception, SystemExit):
        returned = _run(file, flag, lambda: get_config(argument))
    return _plain(returned, file, flag)


def _unknown_argument(file: str, argument: str, known: Sequence[str]) -> str:
    """Returns the error message for an unknown argument of an experiment file. It lists the `known` arguments, if there are
    any."""
    says = f"{file}:{argument}: its get_config does not accept {argument!r}; "
    if not known:
        return says + "see its docstring"
    hint = nearest(argument, known)
    return says + (hint if hint.startswith("known") else f"{hint} It accepts {', '.join(known)}.")


def _keys_looked_up(error: KeyError, file: pathlib.Path) -> list[str]:
    """Returns the keys of all dictionaries in the line of `file` that raised `error`, or [] if they are unknown."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    if not frames:
        return []
    frame, line = frames[-1]
    names = {**frame.f_globals, **frame.f_locals}
    keys: list[Any] = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Subscript) and node.lineno <= line <= (node.end_lineno or node.lineno):
            match node.value:
                case ast.Dict(keys=own):
                    keys += [key.value for key in own if isinstance(key, ast.Constant)]
                case ast.Name(id=name) if isinstance(names.get(name), dict):
                    keys += names[name]
    return [key for key in dict.fromkeys(keys) if isinstance(key, str)]


def load_module(
    file: pathlib.Path, flag: str, content: bytes | None = None, imported: Mapping[pathlib.Path, bytes] | None = None
) -> ModuleType:
    """Loads a user's Python file as a module. `flag` is the flag or key that named the file. `content` is used instead of the
    file's present content, and `imported` instead of the contents of the user's files that it imports. Raises UserError if the
    file raises an exception."""
    return _module(file, flag, "give your own Python file as FILE.py:NAME", content, imported)


class MissingFile(UserError):
    """Raised if a user's file does not exist."""

    def __init__(self, what: str, wanted: str, flag: str):
        super().__init__(f"{what}; {wanted}")
        self.what, self.flag = what, flag


_loaded: dict[str, str] = {}
"""Path of a user's file that this process has loaded -> the key or flag that named it first."""
_loaded_for: dict[str, list[str]] = {}
"""Path of a user's file whose objects this process uses -> the keys or flags that named the file, for error messages."""


def loaded_for(file: pathlib.Path, flag: str) -> None:
    """Records that `flag` named a user's file, so that `file_errors_explained` recognises exceptions of its functions."""
    flags = _loaded_for.setdefault(str(file), [])
    if flag not in flags:
        flags.append(flag)


def loaded_files() -> list[str]:
    """Returns the user's files that this process has loaded, each with the key or flag that named it."""
    return [f"{flag}={file}" for file, flag in _loaded.items()]


@contextlib.contextmanager
def file_errors_explained() -> Iterator[None]:
    """Converts an exception that passes through a user's file (see `loaded_for`) to a UserError, with the part of the traceback
    that starts in the file. sys.exit in the file also becomes a UserError. Other exceptions are not changed.

    Every command runs inside this context (`interface/command.py`), and so does every run within its workdir
    (`runtime/launch.py`). Functions that call a user's function need not handle its exceptions."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        # Python converts a StopIteration in a generator to a RuntimeError, whose traceback lacks the generator
        fault = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
        frames = traceback.extract_tb(fault.__traceback__)
        file = next((frame.filename for frame in reversed(frames) if frame.filename in _loaded_for), None)
        if file is None:
            raise
        flag = " and ".join(_loaded_for[file])
        if isinstance(fault, SystemExit):
            raise UserError(f"{flag}={file} ended the program (sys.exit({fault.code!r})); correct the file") from error
        raise _fault(fault, pathlib.Path(file), flag) from error


def find_module(given: str, flag: str, wanted: str) -> pathlib.Path:
    """Returns the absolute path of the user's file `given`, as `load_module` finds it. Raises UserError if the file does not
    exist."""
    for path in (pathlib.Path(given), CHECKOUT / given):
        if path.is_file():
            return path.resolve()
    raise MissingFile(f"{flag}={missing_path(given)} is not a file", wanted, flag)


def _module(
    file: pathlib.Path,
    flag: str,
    wanted: str,
    content: bytes | None = None,
    imported: Mapping[pathlib.Path, bytes] | None = None,
) -> ModuleType:
    if file.suffix not in importlib.machinery.SOURCE_SUFFIXES:
        raise UserError(f"{flag}={file} is not a Python file; {wanted}")
    name = f"experiment_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"  # unique per path
    loader = loader_of(name, file, content)
    specification = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert specification is not None, "there is a loader"
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look up types here
    _loaded.setdefault(str(file), flag)
    imported = imported_files(file, file.read_bytes()) if imported is None else imported
    with importing(file.parent, imported):
        _run(file, flag, lambda: loader.exec_module(module))
    return module


def find_file(given: str, flag: str = "--config") -> tuple[pathlib.Path, str | None]:
    """Splits FILE[:ARG] into (path, argument). A relative FILE is looked up in the current directory, then in the checkout.

    Raises UserError if the file does not exist. The message names the most similar experiment.
    """
    name, colon, argument = given.partition(":")
    for path in (pathlib.Path(name), CHECKOUT / name):
        if path.is_file():
            return path.resolve(), argument if colon else None
    files = (CHECKOUT / "experiments").rglob("[!_]*.py")
    known = sorted(file.relative_to(CHECKOUT).as_posix() for file in files if file.parent.name != "extensions")
    by_stem = {pathlib.PurePath(file).stem: file for file in known}
    close = difflib.get_close_matches(pathlib.PurePath(name).stem, by_stem)
    hint = f"did you mean {by_stem[close[0]]!r}?" if close else f"the experiments are {', '.join(sorted(by_stem))}"
    places = dict.fromkeys(map(str, (pathlib.Path.cwd(), CHECKOUT)))
    looked = "" if pathlib.Path(name).is_absolute() else f" in {' or '.join(places)}"
    raise UserError(f"{flag}={given}: there is no file {name}{looked}; {hint}")


def _run(file: pathlib.Path, flag: str, action: Callable[[], Any]) -> Any:
    """Runs `action`, a call into an experiment file, and returns its result. Converts any exception to a UserError with the
    file's part of the traceback."""
    try:
        return action()
    except SyntaxError as error:
        raise UserError(f"{flag}={file}, line {error.lineno}: {error.msg}") from error
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(f"{flag}={file} ended the program (sys.exit({error.code!r})); correct the file") from error
    except Exception as error:
        raise _fault(error, file, flag) from error


def _fault(error: BaseException, file: pathlib.Path, flag: str) -> UserError:
    """Returns the UserError for an exception, with the part of its traceback that starts in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename == str(file)), len(frames))
    traced = "".join([*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)])
    traced = traced.partition("--------------------\nFor simplicity, JAX has removed")[0]  # a note about frames of JAX
    return UserError(f"{flag}={file} raises {type(error).__name__}; correct the file here:\n{traced.rstrip()}")


def _plain(config: Any, file: pathlib.Path, flag: str) -> dict[str, Any]:
    """Converts a ConfigDict (anything with `items`) to plain dicts, lists and values, because callers handle nothing else."""

    def plain(node: Any) -> Any:
        if hasattr(node, "items"):
            return {str(key): plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, list | tuple) else node

    if not hasattr(config, "items"):
        raise UserError(f"{flag}={file}: its get_config returns {config!r}; it must return a ConfigDict or a dict")
    return plain(config)
