"""Stand-ins for the parts of a program that note what is asked of them, so that a test can compare the order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Notes(list[str]):
    """What was asked, in order: a name and its arguments."""

    def of(self, name: str, answer: object = None) -> Callable[..., Any]:
        """A function that notes its calls."""

        def called(*given: object, **named: object) -> object:
            self.append(" ".join(map(str, (name, *given, *(f"{key}={value}" for key, value in named.items())))))
            return answer

        return called

    def block(self, name: str) -> Callable[..., Any]:
        """A context manager that notes its beginning and its end."""

        @contextlib.contextmanager
        def entered(*given: object) -> Iterator[None]:
            self.of(name)(*given)
            yield
            self.append(f"end of {name}")

        return entered
