"""Several processes of a run inside one process, connected as after their roll call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from bert_jax.runtime import processes
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.processes import Processes

NAMES = ("worker 0 (a)", "worker 1 (b)", "worker 2 (c)")
Result = TypeVar("Result")


@dataclasses.dataclass
class Group:
    """The processes. A process that leaves puts its number and its exit status into `left`, and its connections close. `exits`
    has the calls of each process before a regular exit."""

    members: list[Processes]
    sockets: dict[int, list[socket.socket]]
    left: queue.Queue[tuple[int, int]]
    exits: list[list[Callable[[], None]]]

    def ends(self, count: int) -> dict[int, int]:
        """Returns the exit statuses of the next `count` processes that leave."""
        return dict(self.left.get(timeout=30) for _ in range(count))

    def die(self, index: int) -> None:
        """Closes the connections of a process, as the kernel does after SIGKILL."""
        for connection in self.sockets[index]:
            with contextlib.suppress(OSError):  # the other end is already closed
                connection.shutdown(socket.SHUT_RDWR)

    def leave(self, index: int, status: int) -> None:
        self.left.put((index, status))
        self.die(index)

    def exit(self, index: int, error: BaseException | None = None) -> threading.Thread:
        """Ends a process as the interpreter does, in a thread of its own."""

        def run() -> None:
            self.members[index].__exit__(type(error) if error else None, error, None)
            for part in self.exits[index]:
                part()
            self.die(index)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def all(self, call: Callable[[Processes], Result]) -> list[Result]:
        """Returns the result of `call` in each process, in which it runs at the same time."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(call, self.members))


@contextlib.contextmanager
def group(patience: float = 60.0, beating: Sequence[int] | None = None, *, count: int = 3, beat: float = 0.05) -> Iterator[Group]:
    beating = range(count) if beating is None else beating
    pairs = {other: socket.socketpair() for other in range(1, count)}
    sockets = {0: [pair[0] for pair in pairs.values()], **{other: [pair[1]] for other, pair in pairs.items()}}
    connections = [{other: pair[0] for other, pair in pairs.items()}, *({0: pair[1]} for pair in pairs.values())]
    several = Group([], sockets, queue.Queue(), [[] for _ in range(count)])
    for i in range(count):
        hosts, leave = Hosts("", count, i, NAMES[:count], "THE REMEDY"), functools.partial(several.leave, i)
        several.members.append(Processes(hosts, connections[i], patience=patience, beat=beat, leave=leave))
    for index in beating:
        several.members[index].__enter__()
    try:
        with pytest.MonkeyPatch.context() as patch:
            exits = {member: several.exits[i] for i, member in enumerate(several.members)}
            register = processes.atexit.register

            def record(part: Callable[..., object], *given: object, **named: object) -> object:
                owner = getattr(part, "__self__", None)
                if isinstance(owner, Processes):
                    return exits[owner].append(part)
                return register(part, *given, **named)  # a library that is imported meanwhile, such as certifi

            patch.setattr(processes.atexit, "register", record)
            yield several
    finally:
        for member in several.members:
            member._ended = True
        for pair in pairs.values():
            for connection in pair:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for index in beating:
            several.members[index]._thread.join(30)
        for pair in pairs.values():
            for connection in pair:
                connection.close()
