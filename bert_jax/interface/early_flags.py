"""Checks the flags of a command before the libraries that it computes with are imported, which takes seconds.

The flags of a command are declared beside what they set: ranges and defaults are those of the measurement, the model, the format.
So the modules of the command are imported once with stand-ins for the libraries, which is quick, then forgotten, and imported
again with the libraries once the flags are right.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LIBRARIES = frozenset(
    (
        *("jax", "jaxlib", "jaxtyping", "flax", "optax", "orbax", "chex", "grain"),
        *("matplotlib", "scipy", "tensorboardX", "tokenizers", "sentencepiece", "safetensors", "tensorflow_datasets"),
    )
)
"""Those that take long to import. None of them has a part in the flags of a command."""


def checked_early(module: str, function: str) -> None:
    """Calls the function of a command that parses its flags, with stand-ins for the `LIBRARIES`. What it raises, or the help that
    it prints before SystemExit, is that of the command itself.

    Where the module cannot be imported with stand-ins nothing happens, and the command checks its flags as it starts.
    """
    parse: Callable[[], object] | None = None
    with _stand_ins():
        with contextlib.suppress(Exception):
            parse = getattr(importlib.import_module(module), function)
        if parse is not None:
            parse()


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Has stand-ins for libraries imported within the block; afterwards they and what has imported them are forgotten."""
    before, finder = dict(sys.modules), _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        package = __name__.partition(".")[0]
        for name in [name for name in sys.modules if name not in before]:
            if name.partition(".")[0] in LIBRARIES | {package}:
                del sys.modules[name]


class _StandIn:
    """Whatever a library has: a function, a decorator, a class to derive from, a type in an annotation."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and isinstance(given[0], type) else self  # a class keeps its fields

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def _itself(self, *_: Any) -> _StandIn:
        return self

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = _itself


class _Module(types.ModuleType):
    """A stand-in for a library or a part of it."""

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in LIBRARIES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""
