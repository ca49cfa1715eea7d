"""Loads the user's Python files. These are experiment files, and the files that the settings of an experiment name
(`interface/named.py`). A user's file may import files in its folder, and files of the user's own packages. The function
`get_config()` or `get_config(argument)` of an experiment file returns nested settings. An exception in a user's file becomes a
UserError with the file's part of the traceback."""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from bert_jax.errors import UserError, missing_path, nearest

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


# --------------------------------------------------------------------------------------- the files that a user's file imports
PACKAGE = __name__.partition(".")[0]


def imported_files(file: pathlib.Path, content: bytes) -> dict[pathlib.Path, bytes]:
    """Returns the path and content of every user's file that `file` imports, also indirectly. Files of this package, of Python
    and of installed packages are left out. The import statements are read, but not executed."""
    found: dict[pathlib.Path, bytes] = {}
    roots, unread = _own_roots(), [(file, content)]
    for importer, source in unread:
        for path in _imported(importer, source, roots, file.parent):
            if path != file and path not in found:
                with contextlib.suppress(OSError):
                    found[path] = path.read_bytes()
                    unread.append((path, found[path]))
    return found


def _own_roots() -> list[pathlib.Path]:
    """Returns the directories in `sys.path` without those of Python and of installed packages."""
    directories = [pathlib.Path(entry).absolute() for entry in sys.path]
    of_python = [pathlib.Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    installed = {"site-packages", "dist-packages"}
    return [one for one in directories if not installed & {*one.parts} and not any(map(one.is_relative_to, of_python))]


def _imported(
    file: pathlib.Path, source: bytes, roots: Sequence[pathlib.Path], folder: pathlib.Path
) -> Iterator[pathlib.Path]:
    """Yields the files that `file` imports from a root, or from `folder` if Python has no other module of this name."""

    def absolute(name: str) -> list[pathlib.Path]:
        top = name.partition(".")[0]
        spec = importlib.machinery.PathFinder.find_spec(top)
        other = top in sys.builtin_module_names or (spec and spec.origin)  # a folder without __init__.py has no origin
        return _files(roots, name) or ([] if other else _files([folder], name))

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # reported when the file is executed
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from absolute(one.name)
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                name = f"{node.module}.{one.name}" if node.module else one.name
                yield from _files([*file.parents][node.level - 1 : node.level], name) if node.level else absolute(name)


def _files(roots: Sequence[pathlib.Path], name: str) -> list[pathlib.Path]:
    """Returns the files that are executed if the module `name`, or the object `name` of a module, is imported from a root."""
    parts = name.split(".")
    for root in roots if parts[0] != PACKAGE else ():
        found = []
        for n, part in enumerate(parts):
            folder = root.joinpath(*parts[:n])
            found += [path for path in (folder / part / "__init__.py", folder / f"{part}.py") if path.is_file()][:1]
        if found:
            return [path.resolve() for path in found]
    return []


class _CompiledAnew(importlib.machinery.SourceFileLoader):
    """A loader that neither reads nor writes `__pycache__`. Python reuses a cached file if the size and the modification time
    (in seconds) of the source file match. A quick edit that keeps the size, such as another digit, could be missed. The cache
    folder would also appear next to the user's file."""

    content: bytes | None = None
    """The content to load instead of the file's present content."""

    def get_data(self, path: str) -> bytes:
        return super().get_data(path) if self.content is None else self.content

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("this loader does not cache bytecode")


def loader_of(name: str, file: pathlib.Path, content: bytes | None = None) -> importlib.machinery.SourceFileLoader:
    """Returns a loader of the module `name` that compiles `file` anew. If `content` is given, it is used instead of the file's
    present content."""
    loader = _CompiledAnew(name, str(file))
    loader.content = content
    return loader


_modules: dict[str, tuple[pathlib.Path, bytes]] = {}
"""Names of the modules that `importing` has imported, with their files and contents."""


@contextlib.contextmanager
def importing(folder: pathlib.Path, files: Mapping[pathlib.Path, bytes]) -> Iterator[None]:
    """Lets the user's files in `folder` import each other. The modules of the `files` get the contents that are given there. If
    a module of this name has another file or content, it is imported again."""
    changed = any(files.get(path, content) != content for path, content in _modules.values())
    own = {path.stem if path.name != "__init__.py" else path.parent.name: path for path in files if path.is_relative_to(folder)}
    if changed or any(own.get(name, path) != path for name, (path, _) in _modules.items()):
        for name in _modules:
            sys.modules.pop(name, None)
        _modules.clear()
    finder = _Finder(folder, files)
    importlib.invalidate_caches()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: pathlib.Path, files: Mapping[pathlib.Path, bytes]):
        self._folder, self._files = folder, files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(name, [*sys.path, str(self._folder)] if path is None else path)
        if path is None and found and not found.origin:  # a folder without __init__.py
            if not any(file.is_relative_to(self._folder / name) for file in self._files):
                return None
            _modules[name] = self._folder / name, b""
            return found
        if found is None or not found.origin or (file := pathlib.Path(found.origin).resolve()) not in self._files:
            return None
        _modules[name] = file, self._files[file]
        loader, folders = loader_of(name, file, self._files[file]), found.submodule_search_locations
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)
