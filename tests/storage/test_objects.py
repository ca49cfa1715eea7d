from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable
from typing import Any

import google.auth.exceptions
import pytest

from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.paths import checked, is_url, split
from tests.storage.emulator import Emulator

BINARY = bytes(range(256)) + b"\r\n--==0==\n\n"


@pytest.mark.parametrize("path", ["runs/mine", "/data/x", "a:b", "gs", "", "./gs/x"])
def test_a_local_path_is_not_changed(path: str):
    assert checked(path, "--x") == path
    assert not is_url(path)


def test_a_bucket_path_loses_its_trailing_slash():
    assert checked("gs://bucket/a/b/", "--x") == "gs://bucket/a/b"
    assert split("gs://bucket/a/b") == ("bucket", "a/b")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("gs:/bucket/a", "--x=gs:/bucket/a: a path in a bucket starts with gs://; did you mean gs://bucket/a?"),
        ("gs:bucket/a", "did you mean gs://bucket/a?"),
        ("/gs:/bucket/a", "did you mean gs://bucket/a?"),
        ("GS://bucket/a", "did you mean gs://bucket/a?"),
        ("gs//bucket/a", "did you mean gs://bucket/a?"),
        ("gs:///a", "--x=gs:///a: '' is not a bucket name"),
        ("gs://Bucket/a", "'Bucket' is not a bucket name"),
        ("gs://bucket", "is a whole bucket; name a directory or file in it, such as gs://bucket/NAME"),
        ("gs://bucket/a//b", "a path in a bucket must not have empty parts"),
        ("gs://bucket/../b", "a path in a bucket must not have empty parts"),
        ("s3://bucket/a", "--x=s3://bucket/a is a URL; give a local path, or gs://BUCKET/PATH"),
    ],
)
def test_a_mistyped_path_is_refused_with_a_suggestion(path: str, says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        checked(path, "--x")


def test_a_run_on_local_disks_imports_nothing_for_buckets():
    program = "import sys; from bert_jax.storage import fetching, lock, mirror, objects; objects.as_path('runs/x')"
    program += "; fetching.fetched('x', '--x'); print({'gcsfs', 'fsspec', 'aiohttp', 'etils', 'jax'} & sys.modules.keys())"
    here = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], check=True, cwd=here, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_listing_pages_are_joined_without_directory_markers(bucket: str, emulator: Emulator):
    for name in ("x", "b/y", "b/z"):
        objects.write(f"{bucket}/a/{name}", b"12345")
    marker = urllib.parse.urlencode({"uploadType": "media", "name": f"{split(bucket)[1]}/a/b/"})
    urllib.request.urlopen(f"{emulator.url}/upload/storage/v1/b/{emulator.bucket}/o?{marker}", data=b"1").close()
    whole = objects.listed(f"{bucket}/a")
    assert {name: item.size for name, item in whole.items()} == {"x": 5, "b/y": 5, "b/z": 5}
    with emulator.answering(page=1):
        assert objects.listed(f"{bucket}/a") == whole


def test_the_age_of_an_object_follows_the_clock_of_the_storage(bucket: str, emulator: Emulator):
    objects.write(f"{bucket}/a", b"1")
    for older in (7, -7):
        with emulator.answering(older=older):
            found = objects.read(f"{bucket}/a")
        assert found is not None
        assert found.age in (older, older + 1, older + 2)


def test_a_file_changed_since_its_listing_is_an_error(bucket: str, tmp_path: pathlib.Path):
    objects.write(f"{bucket}/a", b"123")
    with pytest.raises(objects.StorageError, match=f"{bucket}/a changed during the download; rerun the same command"):
        objects.download(f"{bucket}/a", tmp_path / "a", objects.Item(4, "1"), lambda size: None)


def test_download_progress_is_reported_in_bytes():
    arrived: list[int] = []
    library = objects._arrivals(arrived.append)
    library.absolute_update(5)
    library.absolute_update(8)
    library.relative_update(3)
    library.relative_update()
    library.absolute_update(20)
    assert arrived == [5, 3, 3, 1, 8]


def test_only_an_emulator_needs_no_credentials_and_no_proxy(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    import fsspec.config

    for name, there, proxy in (("a bucket", False, False), ("a bucket", False, True), ("an emulator", True, True)):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            for protocol in ("gs", "gcs"):
                patch.setitem(fsspec.config.conf, protocol, {})
            for variable in ("GOOGLE_AUTH_TOKEN_FOR_TESTING", *([] if there else ["STORAGE_EMULATOR_HOST"])):
                patch.delenv(variable)
            if proxy:
                patch.setenv("HTTPS_PROXY", "http://proxy:8080")
            objects.set_up.__wrapped__()
            for protocol in ("gs", "gcs"):
                settings = fsspec.config.conf[protocol]
                assert settings.get("token") == ("anon" if there else None), name
                assert settings.get("session_kwargs") == ({"proxy": "http://proxy:8080"} if proxy and not there else None), name
                assert settings["use_listings_cache"] is False, "other processes write too"
                assert (settings["requests_timeout"].sock_connect, settings["requests_timeout"].sock_read) == (20, 120)
            assert ("GOOGLE_AUTH_TOKEN_FOR_TESTING" in os.environ) is there, name


def test_local_directories_are_moved_like_bucket_directories(tmp_path: pathlib.Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    objects.move_tree(tmp_path / "a", tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def failing(text: str, **attributes: Any) -> Exception:
    error = OSError(text)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def http_error(**content: Any) -> Exception:
    from gcsfs.retry import HttpError  # the emulator's fixture has set gcsfs up

    return HttpError(content)


def unconnected() -> Exception:
    import aiohttp
    from aiohttp.client_reqrep import ConnectionKey

    return aiohttp.ClientConnectorError(ConnectionKey("storage", 443, True, True, None, None, None), OSError("no route"))


EXPLAINED: dict[str, Callable[[], Exception]] = {
    "gs://bkt/a: there are no valid credentials for": lambda: failing("Anonymous caller does not have access"),
    "gs://bkt/a: there are no valid credentials": lambda: failing("x", code=401),
    "gs://bkt/a: there are no valid": lambda: failing("x", code="401"),
    "gs://bkt/a: there are no": lambda: google.auth.exceptions.RefreshError("x"),
    r"gs://bkt/a: permission denied \(403\); .* on gs://bkt: ": lambda: failing("Forbidden: x"),
    r"gs://bkt/a: permission denied \(403\)": lambda: failing("x", code=403),
    "gs://bkt/a: permission denied": lambda: failing("x", code="403"),
    "there is no bucket gs://bkt; check its name": lambda: FileNotFoundError("x"),
    r"gs://bkt/a: the storage cannot be reached \(Cannot connect .*\); check the network and HTTPS_PROXY": unconnected,
    r"gs://bkt/a: the storage cannot be reached \(x\)": lambda: google.auth.exceptions.TransportError("x"),
    r"gs://bkt/a: the connection to the storage was lost \(no\); rerun the same command$": lambda: TimeoutError("no\nanswer"),
    r"gs://bkt/a: the connection to the storage was lost \(ConnectionResetError\)": ConnectionResetError,
    rf"gs://bkt/a: the connection to the storage was lost \({'x' * 200}\)": lambda: TimeoutError("x" * 201),
    r"gs://bkt/a: the storage answered 500 \(x.*\); .* later$": lambda: http_error(code=500, message="x"),
    r"gs://bkt/a: the storage answered with an error \(x.*\); .* later$": lambda: http_error(message="x"),
    rf"gs://bkt/a: the storage refused the request \({'y' * 200}\); check": lambda: ValueError(
        "Bad Request: b\nfirst\n" + "y" * 201 + "\n"
    ),
}


@pytest.mark.parametrize("says", EXPLAINED)
def test_an_error_of_the_library_is_explained_by_its_kind(says: str, emulator: Emulator):
    with pytest.raises(objects.StorageError, match=f"^{says}"), objects.explained("gs://bkt/a"):
        raise EXPLAINED[says]()


@pytest.mark.parametrize(
    "error", [ValueError("other"), FileNotFoundError(2, "x"), KeyError("Bad Request"), OSError("x"), FileExistsError("x")]
)
def test_other_errors_are_not_changed(error: Exception, emulator: Emulator):
    with pytest.raises(type(error)) as raised, objects.explained("gs://bkt/a"):
        raise error
    assert raised.value is error


def test_objects_are_written_read_listed_moved_and_removed(bucket: str, tmp_path: pathlib.Path):
    generation = objects.write(f"{bucket}/a/x.bin", BINARY)
    found = objects.read(f"{bucket}/a/x.bin")
    assert found is not None
    assert (found.data, found.generation) == (BINARY, generation)
    assert objects.read(f"{bucket}/a/none") is None
    objects.write(f"{bucket}/a/b/empty", b"")
    objects.write(f"{bucket}/ab", b"beside")
    assert objects.listed(f"{bucket}/a").keys() == {"x.bin", "b/empty"}
    assert objects.listed(f"{bucket}/a", deep=False) == {"x.bin": objects.Item(len(BINARY), generation)}
    assert objects.object_at(f"{bucket}/a") is None
    place = objects.as_path(f"{bucket}/a")
    objects.move_tree(place, objects.as_path(f"{bucket}/c"))
    assert objects.listed(bucket).keys() == {"ab", "c/x.bin", "c/b/empty"}
    assert objects.read_bytes(objects.as_path(f"{bucket}/c/x.bin")) == BINARY
    with pytest.raises(FileNotFoundError):
        objects.read_bytes(place / "x.bin")
    objects.remove_tree(objects.as_path(f"{bucket}/c"))
    assert objects.listed(bucket).keys() == {"ab"}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # only tests show this warning
def test_a_large_file_survives_an_upload_in_parts(bucket: str, emulator: Emulator, tmp_path: pathlib.Path):
    file, back = tmp_path / "large", tmp_path / "back"
    file.write_bytes(BINARY * (9 << 20 >> 8))
    generation = objects.upload(file, f"{bucket}/large")
    item = objects.object_at(f"{bucket}/large")
    assert item == objects.Item(file.stat().st_size, generation)
    arrived: list[int] = []
    objects.download(f"{bucket}/large", back, item, arrived.append)
    assert back.read_bytes() == file.read_bytes()
    assert sum(arrived) == item.size
    emulator.fail(403, match="uploadType=resumable")
    with pytest.raises(objects.StorageError, match="permission denied"):
        objects.upload(file, f"{bucket}/large")
    back.write_bytes(BINARY)
    assert objects.upload(back, f"{bucket}/small"), "it is sent in one request"


def test_only_one_of_several_conditional_writes_succeeds(bucket: str):
    first = objects.write(f"{bucket}/x", b"first", "0")
    with pytest.raises(FileExistsError):
        objects.write(f"{bucket}/x", b"second", "0")
    second = objects.write(f"{bucket}/x", b"second", first)
    for stale in (first, "0"):
        with pytest.raises(FileExistsError):
            objects.write(f"{bucket}/x", b"third", stale)
        with pytest.raises(FileExistsError):
            objects.remove(f"{bucket}/x", stale)
    objects.remove(f"{bucket}/x", second)
    objects.remove(f"{bucket}/x")
    assert objects.read(f"{bucket}/x") is None


ERRORS = {
    403: "permission denied (403); the account needs the roles Storage Object Admin and Storage Legacy Bucket Reader on gs://bkt",
    401: "there are no valid credentials for Google Cloud; log in with `gcloud auth application-default login`",
    400: "the storage answered 400",
}


@pytest.mark.parametrize("status", ERRORS)
def test_an_error_of_the_storage_is_one_sentence_with_a_remedy(
    status: int, bucket: str, emulator: Emulator, caplog: pytest.LogCaptureFixture
):
    emulator.fail(status)
    path = f"{bucket}/x"
    for action in (lambda: objects.read(path), lambda: objects.write(path, b""), lambda: objects.listed(bucket)):
        with pytest.raises(objects.StorageError, match=re.escape(ERRORS[status])) as error:
            action()
        assert bucket in str(error.value)
        assert "\n" not in str(error.value)
    assert caplog.text == "", "the library reports the error too"


@pytest.mark.parametrize("status", [503, 429, 0], ids=["unavailable", "too_many_requests", "connection_lost"])
def test_a_passing_fault_is_tried_again(status: int, bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gcsfs.retry.min", lambda *_: 0.1, raising=False)  # seconds before the next try
    objects.write(f"{bucket}/x", b"there")
    emulator.fail(status, count=1)
    found = objects.read(f"{bucket}/x")
    assert found is not None
    assert found.data == b"there"


def test_an_unreachable_storage_is_named(bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("random.random", lambda: 0)
    monkeypatch.setattr("gcsfs.retry.min", lambda *_: 0, raising=False)  # seconds before the next try
    emulator.fail(0)
    with pytest.raises(objects.StorageError, match=r"the connection to the storage was lost \(Server disconnected\)"):
        objects.read(f"{bucket}/x")
    emulator.fail(503)
    with pytest.raises(objects.StorageError, match="the storage answered 503"):
        objects.read(f"{bucket}/x")


def test_a_bucket_that_does_not_exist_is_named(bucket: str):
    says = "there is no bucket gs://nobody; check its name, or create it: `gcloud storage buckets create gs://nobody`"
    for action in (
        lambda: objects.require_bucket("gs://nobody/x"),
        lambda: objects.listed("gs://nobody/x"),
        lambda: objects.write("gs://nobody/x", b"1"),
    ):
        with pytest.raises(objects.StorageError, match=re.escape(says)):
            action()


def test_errors_of_the_local_disk_are_not_reported_as_storage_errors(bucket: str):
    with pytest.raises(IsADirectoryError), objects.explained(bucket):
        pathlib.Path("/").read_bytes()
    with pytest.raises(ConnectionError), objects.explained("runs/local"):
        raise ConnectionError
