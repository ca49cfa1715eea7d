"""Checks the shapes of arguments and results of the package's functions, with jaxtyping's import hook and beartype; `conftest.py`
enables it."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxtyping
import numpy as np

ALWAYS, THEN_EVERY = 20, 100
"""The first calls of a function in a test are all checked, later ones only occasionally: a check takes 0.1 ms, and some functions
are called 100,000 times. The calls are counted per test, so that no result depends on earlier tests. CHECK_EVERY_CALL=1 checks
all calls."""
if os.environ.get("CHECK_EVERY_CALL"):
    ALWAYS = sys.maxsize
_tests = 0  # the number started so far
_jaxtyped = jaxtyping.jaxtyped


def check_shapes(modules: Sequence[str]) -> None:
    """Checks calls of functions in `modules`, if they are imported from now on, against the shapes and dtypes in their
    signatures. The hook decorates every function with `jaxtyping.jaxtyped`; the check is then removed from functions without a
    shape."""
    jaxtyping.jaxtyped = _decorated
    jaxtyping.Array = jax.Array | np.ndarray | np.generic  # JAX's functions accept all three if they are not compiled
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def begin_test() -> None:
    """Restarts the count of calls at zero."""
    global _tests
    _tests += 1


def _decorated(function: Any = None, *, typechecker: Any) -> Any:
    if function is None:
        return functools.partial(_decorated, typechecker=typechecker)
    if inspect.isclass(function):
        tree = hasattr(function, "_flax_dataclass")  # its leaves may be anything: shapes, shardings
        if "__dataclass_fields__" in vars(function) and not tree and _says_a_shape(function):
            function.__init__ = _sampled(function.__init__, typechecker)
        return function
    within = "<locals>" in function.__qualname__  # created at every call: its check would cost more than it does
    return function if within or not _says_a_shape(function) else _sampled(function, typechecker)


def _sampled(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None
    calls, test = 0, _tests

    @functools.wraps(function)
    def sampled(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, calls, test
        calls, test = 1 if test != _tests else calls + 1, _tests
        if checked is None:  # not earlier: making a check takes 10 ms, and most tests call few of the functions
            checked = _jaxtyped(function, typechecker=typechecker)
        return (checked if calls <= ALWAYS or calls % THEN_EVERY == 0 else function)(*args, **kwargs)

    return sampled


def _says_a_shape(annotated: Any) -> bool:
    """Returns whether an annotation of a function, or of a field, contains one of jaxtyping. An undefined name does not
    count."""
    names = inspect.getmodule(annotated).__dict__ if inspect.isclass(annotated) else annotated.__globals__
    for annotation in inspect.get_annotations(annotated).values():
        try:
            found = eval(annotation, names) if isinstance(annotation, str) else annotation
        except NameError:
            continue
        if _holds_a_shape(found):
            return True
    return False


def _holds_a_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_holds_a_shape, typing.get_args(annotation)))
