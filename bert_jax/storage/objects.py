"""Lists, reads and writes objects in Google Cloud Storage buckets. Runs on local disks do not import the libraries for buckets.

This module uses gcsfs, as `etils.epath` does. Orbax reads and writes checkpoints through epath, and TensorStore writes the
arrays of the checkpoints. If STORAGE_EMULATOR_HOST is set, gcsfs uses this emulator. TensorStore uses an emulator if
TENSORSTORE_GCS_HTTP_URL is set. Otherwise, both use the proxy in HTTPS_PROXY, if there is one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
import os
import pathlib
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage.paths import SCHEME, AnyPath, is_remote, split

CONNECT_SECONDS, SILENCE_SECONDS = 20, 120
"""The timeouts (seconds) for connecting and for waiting without receiving data. After a timeout, the request is retried."""
_IN_ONE_REQUEST = 8 << 20  # bytes; larger files are uploaded in parts


class StorageError(UserError, OSError):
    """Raised if the storage cannot be reached or rejects a request."""


@dataclasses.dataclass(frozen=True)
class Item:
    """An object in a bucket listing: its size in bytes and its generation, which changes with its content."""

    size: int
    generation: str
    is_compressed: bool = False
    """Whether the object is stored as gzip and decompressed by each download, e.g. after `gcloud storage cp --gzip-local=txt`.
    `size` is then the compressed size."""


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of an object, its generation, and its age in seconds by the storage's clock."""

    data: bytes
    generation: str
    age: float


def file_system() -> Any:
    """Returns the gcsfs file system, the same instance that epath uses."""
    import fsspec

    set_up()
    with explained(SCHEME):
        return fsspec.filesystem("gcs", finalize_on_close=True)  # the same arguments as epath, so that fsspec shares the instance


@functools.cache
def set_up() -> None:
    """Sets up gcsfs for this process without connecting. Listings are not cached, since other processes write too. Messages
    about credentials are hidden."""
    # An experimental feature of gcsfs queries a second service for every bucket, which requires additional permissions.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import aiohttp
    import fsspec.config

    settings: dict[str, Any] = {
        "use_listings_cache": False,
        "requests_timeout": aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
    }
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        settings["token"] = "anon"
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")  # TensorStore then does not look for other credentials
    elif (proxy := urllib.request.getproxies().get("https")) and not urllib.request.proxy_bypass("storage.googleapis.com"):
        settings["session_kwargs"] = {"proxy": proxy}  # aiohttp could read it, but would also take passwords from ~/.netrc
    for protocol in ("gs", "gcs"):
        fsspec.config.conf[protocol] = settings
    for name in ("gcsfs", "google.auth", "asyncio", "fsspec"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # our own errors include the relevant part of these messages
    warnings.filterwarnings("ignore", module=r"google\..*|gcsfs.*")


def require_bucket(path: str | os.PathLike[str]) -> None:
    """Raises UserError unless the bucket of a path exists and is accessible. Orbax requires this before it reads or writes."""
    with explained(path):
        file_system().call("GET", "b/{}", split(path)[0])


def as_path(path: str | os.PathLike[str]) -> AnyPath:
    """Returns a local path, or a path in a bucket, as an object with the methods of pathlib."""
    if not is_remote(path):
        return pathlib.Path(path)
    from etils import epath

    set_up()
    return epath.Path(os.fspath(path))


def listed(path: str | os.PathLike[str], *, deep: bool = True) -> dict[str, Item]:
    """Returns the objects in a directory of a bucket by relative name, including subdirectories if `deep`."""
    bucket, key = split(path)
    prefix = f"{key}/" if key else ""
    return {name.removeprefix(prefix): item for name, item in _listed(bucket, prefix, deep).items()}


def object_at(path: str | os.PathLike[str]) -> Item | None:
    """Returns the object with exactly this name, or None."""
    bucket, key = split(path)
    return _listed(bucket, key, deep=False).get(key)


def _listed(bucket: str, prefix: str, deep: bool) -> dict[str, Item]:
    found, page = {}, ""
    more: Mapping[str, str] = {} if deep else {"delimiter": "/"}
    while True:
        with explained(f"{SCHEME}{bucket}/{prefix}"):
            answer = file_system().call("GET", "b/{}/o", bucket, prefix=prefix, pageToken=page or None, json_out=True, **more)
        for item in answer.get("items", ()):
            if not item["name"].endswith("/"):  # some programs create these objects to mark directories
                is_compressed = item.get("contentEncoding") == "gzip"
                found[item["name"]] = Item(int(item.get("size", 0)), str(item["generation"]), is_compressed)
        page = answer.get("nextPageToken", "")
        if not page:
            return found


def read(path: str | os.PathLike[str]) -> Content | None:
    """Returns the content of an object, or None if it does not exist."""
    bucket, key = split(path)
    with explained(path):
        try:
            headers, data = file_system().call("GET", "b/{}/o/{}", bucket, key, alt="media")
        except FileNotFoundError:
            return None
    age = 0.0
    if {"Date", "Last-Modified"} <= headers.keys():
        age = (parsedate_to_datetime(headers["Date"]) - parsedate_to_datetime(headers["Last-Modified"])).total_seconds()
    return Content(data, headers.get("x-goog-generation", ""), age)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of an object. Raises FileNotFoundError if it does not exist."""
    content = read(path)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, "No such object", str(path))
    return content.data


def write(path: str | os.PathLike[str], data: bytes, generation: str | None = None) -> str:
    """Writes an object and returns its new generation. If `generation` is given, writes only if the object has this generation,
    and otherwise raises FileExistsError. The generation "0" means that there is no object."""
    bucket, key = split(path)
    url = file_system().base.replace("/storage/v1/", f"/upload/storage/v1/b/{urllib.parse.quote(bucket)}/o")
    with explained(path):
        headers = {"Content-Type": "application/octet-stream"}
        about = {"uploadType": "media", "name": key, "ifGenerationMatch": generation}
        answer = file_system().call("POST", url, headers=headers, data=data, json_out=True, **about)
    return str(answer["generation"])


def remove(path: str | os.PathLike[str], generation: str | None = None) -> None:
    """Removes an object if it exists. If `generation` is given, removes the object only if it has this generation, and
    otherwise raises FileExistsError."""
    bucket, key = split(path)
    with explained(path), contextlib.suppress(FileNotFoundError):
        file_system().call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=generation)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Removes all objects in a directory."""
    for name in listed(path):
        remove(f"{os.fspath(path)}/{name}")


def move_tree(path: AnyPath, target: AnyPath) -> None:
    """Moves a directory to an unused name, on a disk or in a bucket."""
    if not is_remote(path):
        path.rename(target)
        return
    for name in listed(path):
        with explained(path):
            file_system().cp_file(f"{path}/{name}", f"{target}/{name}")
        remove(path / name)


def upload(file: pathlib.Path, path: str | os.PathLike[str]) -> str:
    """Uploads a file and returns the generation of the object."""
    if file.stat().st_size <= _IN_ONE_REQUEST:
        return write(path, file.read_bytes())
    with explained(path):
        file_system().put_file(str(file), os.fspath(path))
    item = object_at(path)
    return item.generation if item else ""


def download(path: str | os.PathLike[str], file: pathlib.Path, item: Item, arrived: Callable[[int], object]) -> None:
    """Downloads an object to a file. Calls `arrived` with the count of new bytes whenever data is received. Raises StorageError
    if the size of the object differs from the size in `item`. Compressed objects are decompressed, and their size is not
    checked."""
    bucket, key = split(path)
    with explained(path):
        if item.size <= _IN_ONE_REQUEST:
            _, data = file_system().call("GET", "b/{}/o/{}", bucket, key, alt="media")
            file.write_bytes(data)
            arrived(item.size)
        elif item.is_compressed:  # its parts cannot be requested concurrently, since the uncompressed size is unknown
            file_system().get_file(os.fspath(path), str(file), concurrency=1)
            arrived(item.size)
        else:
            file_system().get_file(os.fspath(path), str(file), callback=_arrivals(arrived))
    if not item.is_compressed and file.stat().st_size != item.size:
        raise StorageError(f"{path} changed during the download; rerun the same command")


def _arrivals(arrived: Callable[[int], object]) -> Any:
    from fsspec.callbacks import Callback

    class Arrivals(Callback):
        def absolute_update(self, value: int) -> None:
            arrived(value - self.value)
            super().absolute_update(value)

        def relative_update(self, inc: int = 1) -> None:
            arrived(inc)
            super().relative_update(inc)

    return Arrivals()


@contextlib.contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Converts storage errors inside the `with` block to a StorageError about `path`. FileExistsError (a failed precondition) is
    not converted."""
    try:
        yield
    except (UserError, FileExistsError):
        raise
    except Exception as error:
        sentence = _explanation(error, os.fspath(path)) if is_remote(path) else None
        if sentence is None:
            raise
        raise StorageError(sentence) from error


def _explanation(error: Exception, path: str) -> str | None:
    """Returns a sentence that describes a storage error and its remedy. Returns None for other errors."""
    set_up()  # gcsfs reads its settings during its import
    import aiohttp
    import google.auth.exceptions
    import requests
    from gcsfs.retry import HttpError

    bucket = split(path)[0]
    code, text = getattr(error, "code", None), str(error)
    anonymous = "Anonymous caller" in text or code in (401, "401")
    log_in = "log in with `gcloud auth application-default login`, or give the VM a service account that may use the bucket"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError | google.auth.exceptions.TransportError):
        reason = f"the storage cannot be reached ({_first_line(error)})"
        return f"{path}: {reason}; check the network and HTTPS_PROXY, then rerun the same command"
    if isinstance(error, google.auth.exceptions.GoogleAuthError) or anonymous:
        return f"{path}: there are no valid credentials for Google Cloud; {log_in}"
    if text.startswith("Forbidden") or code in (403, "403"):
        return (
            f"{path}: permission denied (403); the account needs the roles Storage Object Admin and Storage Legacy Bucket Reader "
            f"on gs://{bucket}: `gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=ACCOUNT --role=ROLE`"
        )
    if isinstance(error, FileNotFoundError) and error.errno is None:
        return f"there is no bucket gs://{bucket}; check its name, or create it: `gcloud storage buckets create gs://{bucket}`"
    lost = (aiohttp.ClientError, requests.RequestException, asyncio.TimeoutError, TimeoutError, ConnectionError)
    if isinstance(error, lost):
        return f"{path}: the connection to the storage was lost ({_first_line(error)}); rerun the same command"
    if isinstance(error, HttpError):
        return f"{path}: the storage answered {code or 'with an error'} ({_first_line(error)}); rerun the same command later"
    if isinstance(error, ValueError) and text.startswith("Bad Request"):
        return f"{path}: the storage refused the request ({_last_line(error)}); check the name"
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2][:200]
