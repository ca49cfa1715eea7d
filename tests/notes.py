"""Stand-ins for parts of a program that record their calls, so that a test can check the order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Notes(list[str]):
    """The recorded calls, in order: a name and its arguments."""

    def of(self, name: str, answer: object = None) -> Callable[..., Any]:
        """Returns a function that records its calls."""

        def called(*given: object, **named: object) -> object:
            self.append(" ".join(map(str, (name, *given, *(f"{key}={value}" for key, value in named.items())))))
            return answer

        return called

    def block(self, name: str) -> Callable[..., Any]:
        """Returns a context manager that records its beginning and its end."""

        @contextlib.contextmanager
        def entered(*given: object) -> Iterator[None]:
            self.of(name)(*given)
            yield
            self.append(f"end of {name}")

        return entered
