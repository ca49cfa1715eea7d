"""Network namespaces joined by a bridge: every process of a run is on a host of its own, whose cable can be pulled."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator

from tests.chaos.toy import Skipped

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
NAMES = "chaos"
BRIDGE = "10.77.0.254"


def address(index: int) -> str:
    """Returns the address of a process."""
    return f"10.77.0.{index + 1}"


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Callable[[int], None]]:
    """Creates `count` namespaces, and yields a function that cuts one of them off. Raises Skipped without the permission for
    that."""
    if os.geteuid() or not shutil.which("ip"):
        raise Skipped("a network namespace needs root and the command ip")
    _remove(count)
    try:
        try:
            _ip(f"link add {NAMES} type bridge")
            _ip(f"addr add {BRIDGE}/24 dev {NAMES}")
            _ip(f"link set {NAMES} up")
            for index in range(count):
                _ip(f"netns add {NAMES}{index}")
                _ip(f"link add {NAMES}{index} type veth peer name eth0 netns {NAMES}{index}")
                _ip(f"link set {NAMES}{index} master {NAMES} up")
                for command in ("link set lo up", f"addr add {address(index)}/24 dev eth0", "link set eth0 up"):
                    _ip(f"-n {NAMES}{index} {command}")
        except subprocess.CalledProcessError as error:
            raise Skipped(f"no network namespaces here: {error.stderr.decode().strip()}") from error
        yield lambda index: _ip(f"link set {NAMES}{index} down")
    finally:
        _remove(count)


def enter(index: int) -> None:
    """Moves this process, which has one thread, into a namespace. Its host name there is its address, which Gloo uses to bind."""
    with pathlib.Path(f"/var/run/netns/{NAMES}{index}").open() as namespace:
        _call("setns", namespace.fileno(), CLONE_NEWNET)
    _call("unshare", CLONE_NEWUTS)
    socket.sethostname(address(index))


def see_instead(source: str, target: str) -> None:
    """Makes this process, and no other, see the directory `source` at `target`."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", os.fsencode(source), os.fsencode(target), None, MS_BIND, None)


@contextlib.contextmanager
def small_disk(directory: pathlib.Path, megabytes: int) -> Iterator[None]:
    """Mounts a file system in memory at `directory`. Raises Skipped without the permission for that."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        _call("mount", b"tmpfs", os.fsencode(directory), b"tmpfs", 0, f"size={megabytes}m".encode())
    except (OSError, AttributeError) as error:
        raise Skipped(f"a small disk needs root on Linux ({error})") from error
    try:
        yield
    finally:
        _call("umount2", os.fsencode(directory), 2)  # lazily


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def _remove(count: int) -> None:
    """Removes the namespaces. A namespace lives on with its cable until its last process has ended, so cables are removed by
    name."""
    namespaces = [f"netns del {NAMES}{index}" for index in range(count)]
    for arguments in [*namespaces, *(f"link del {NAMES}{index}" for index in range(count)), f"link del {NAMES}"]:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(arguments)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc(), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
