"""Distinguishes paths in a bucket (`gs://BUCKET/PATH`), local paths and mistakes. Also defines the cache directory."""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING, TypeAlias

from bert_jax.errors import UserError
from bert_jax.interface.flags import expand_home

if TYPE_CHECKING:
    from etils import epath

AnyPath: TypeAlias = "pathlib.Path | epath.Path"
"""A local path, or a path in a bucket that has the same methods."""

SCHEME = "gs://"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MISTYPED = re.compile(r"gs:/*|/+gs:/*|gs/*//+", re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is in a bucket."""
    return os.fspath(path).startswith(SCHEME)


def is_url(path: str) -> bool:
    """Returns whether a path is in a bucket, or is a URL that `checked` rejects."""
    return bool(_URL.match(path) or _MISTYPED.match(path))


def checked(path: str, name: str) -> str:
    """Checks `path`, the value of the flag or key `name`, and returns it. `name` may end in a prefix such as `--source=text:`.
    In a local path, `~` is expanded. The trailing slash of a path in a bucket is removed.

    Raises UserError if `gs://` is mistyped, if the name of the bucket is invalid, if the path is a whole bucket or another URL,
    or if there is no home directory for `~`.
    """
    given = name_and_value(name, path)
    if not is_remote(path):
        if mistyped := _MISTYPED.match(path):
            meant = SCHEME + path[mistyped.end() :]
            raise UserError(f"{given}: a path in a bucket starts with {SCHEME}; did you mean {meant}?")
        if _URL.match(path):
            raise UserError(f"{given} is a URL; give a local path, or {SCHEME}BUCKET/PATH for Google Cloud Storage")
        return expand_home(path, given)
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UserError(
            f"{given}: {bucket!r} is not a bucket name (lower-case letters, digits, dashes, dots; at least 3); "
            f"write {SCHEME}BUCKET/PATH"
        )
    parts = key.strip("/").split("/")
    if not parts[0]:
        raise UserError(f"{given} is a whole bucket; name a directory or file in it, such as {SCHEME}{bucket}/NAME")
    if not is_plain("/".join(parts)):
        raise UserError(f"{given}: a path in a bucket must not have empty parts, `.` or `..`; write {SCHEME}BUCKET/PATH")
    return f"{SCHEME}{bucket}/{'/'.join(parts)}"


def is_plain(name: str) -> bool:
    """Returns whether the name of an object is also the name of a file below a directory. A bucket accepts other names, e.g. with
    `..` as a part."""
    return not {"", ".", ".."} & {*name.split("/")}


def name_and_value(name: str, path: str) -> str:
    """Formats the flag or key `name` with its value, as in a command."""
    return f"{name}{path}" if name.endswith(":") else f"{name}={path}"


def split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Splits a path in a bucket into the name of the bucket and the name of the object or directory."""
    bucket, _, key = os.fspath(path).removeprefix(SCHEME).partition("/")
    return bucket, key.strip("/")


def cache_directory() -> pathlib.Path:
    """Returns the cache directory: $BERT_JAX_CACHE, or `bert_jax` in the user's cache directory."""
    stated = os.environ.get("BERT_JAX_CACHE")
    if stated:
        return pathlib.Path(expand_home(stated, f"BERT_JAX_CACHE={stated}"))
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "bert_jax"
    except RuntimeError as error:  # HOME is not set, and the user has no entry in /etc/passwd, as in some containers
        raise UserError("this user has no home directory for the cache; set BERT_JAX_CACHE to a directory") from error
