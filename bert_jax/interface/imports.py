"""Finds and imports the files that a user's Python file imports: files in its folder, and files of the user's own packages."""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NoReturn

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
