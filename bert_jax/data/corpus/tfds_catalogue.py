"""Finds prepared TensorFlow Datasets by name: on disk, or in the public bucket of prepared data sets, from which it fetches them.

The builders of the largest text data sets need TensorFlow or Apache Beam to prepare them (`wikipedia`, `lm1b`), but their
prepared files are in that public bucket, and reading them needs neither.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit

HOST = "https://storage.googleapis.com"
_BUCKET, _FOLDER = "tfds-data", "datasets"
_INFO_FILE = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+\Z")
_CONNECTIONS = 8
_TIMEOUT = 60  # seconds without a byte


def tfds_directory(stated: str | None) -> pathlib.Path:
    """`stated`, or the directory in which tfds keeps data sets."""
    return pathlib.Path(stated or os.environ.get("TFDS_DATA_DIR") or pathlib.Path.home() / "tensorflow_datasets")


def find_prepared(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """The directory of the newest prepared version of `name` (NAME, NAME/CONFIG, either with /VERSION) below `root`."""
    directory = root / name
    if (directory / _INFO_FILE).is_file():
        return directory
    versions = [path for path in directory.glob("*") if _VERSION.match(path.name) and (path / _INFO_FILE).is_file()]
    return max(versions, key=lambda path: _version_key(path.name), default=None)


def _version_key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def fetch(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Fetches the newest prepared version of `name` from the bucket into `root`; None if the bucket has none.

    After an interruption, complete files are kept; the directory gets its final name when all files are there. Raises UserError
    if a file cannot be fetched.
    """
    objects = _list_objects(f"{_FOLDER}/{name}/")
    versions = {path.split("/")[0] for path in objects if _VERSION.match(path.split("/")[0])}
    if _INFO_FILE in objects:
        version = ""
    elif versions:
        version = f"{max(versions, key=_version_key)}/"
    else:
        return None
    wanted = {path.removeprefix(version): size for path, size in objects.items() if path.startswith(version)}
    wanted = {path: size for path, size in wanted.items() if path and "/" not in path}
    final = root / name / version.rstrip("/")
    part = final.with_name(f".{final.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(part)
    url = f"{HOST}/{_BUCKET}/{_FOLDER}/{urllib.parse.quote(f'{name}/{version}')}"
    missing = [path for path, size in wanted.items() if not (part / path).is_file() or (part / path).stat().st_size != size]
    scale, unit = byte_unit(sum(wanted.values()))
    progress = Progress(f"fetching {name}:", total=max(1, round(sum(wanted.values()) / scale)), unit=unit)
    done = sum(size for path, size in wanted.items() if path not in missing)
    with progress, concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
        progress.update(round(done / scale))
        fetches = {pool.submit(_fetch_file, url + urllib.parse.quote(path), part / path): path for path in missing}
        for future in concurrent.futures.as_completed(fetches):
            try:
                future.result()
            except OSError as error:
                pool.shutdown(cancel_futures=True)
                raise UserError(
                    f"cannot fetch {fetches[future]} of {name} ({error}); run the same command again to continue"
                ) from error
            done += wanted[fetches[future]]
            progress.update(round(done / scale))
    part.rename(final)
    return final


def _list_objects(prefix: str) -> dict[str, int]:
    """path below `prefix` -> size in bytes, for every object in the bucket."""
    found: dict[str, int] = {}
    page = ""
    while True:
        query = {"prefix": prefix, "fields": "items(name,size),nextPageToken", "pageToken": page}
        with urllib.request.urlopen(
            f"{HOST}/storage/v1/b/{_BUCKET}/o?{urllib.parse.urlencode(query)}", timeout=_TIMEOUT
        ) as reply:
            listing = files.parse_json(reply.read())
        found |= {entry["name"].removeprefix(prefix): int(entry["size"]) for entry in listing.get("items", ())}
        page = listing.get("nextPageToken", "")
        if not page:
            return found


def _fetch_file(url: str, path: pathlib.Path) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as reply, files.replacing(path) as file:
        shutil.copyfileobj(reply, file)
