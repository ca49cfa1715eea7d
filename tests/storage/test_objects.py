from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.paths import checked, is_url, split
from tests.storage.emulator import Emulator

BINARY = bytes(range(256)) + b"\r\n--==0==\n\n"


@pytest.mark.parametrize("path", ["runs/mine", "/data/x", "a:b", "gs", "", "./gs/x"])
def test_a_local_path_stays_as_it_is(path: str):
    assert checked(path, "--x") == path
    assert not is_url(path)


def test_a_path_in_a_bucket_loses_the_slash_at_its_end():
    assert checked("gs://bucket/a/b/", "--x") == "gs://bucket/a/b"
    assert split("gs://bucket/a/b") == ("bucket", "a/b")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("gs:/bucket/a", "--x=gs:/bucket/a: a path in a bucket begins with gs://; did you mean gs://bucket/a?"),
        ("gs:bucket/a", "did you mean gs://bucket/a?"),
        ("/gs:/bucket/a", "did you mean gs://bucket/a?"),
        ("GS://bucket/a", "did you mean gs://bucket/a?"),
        ("gs//bucket/a", "did you mean gs://bucket/a?"),
        ("gs:///a", "--x=gs:///a: '' is no name of a bucket"),
        ("gs://Bucket/a", "'Bucket' is no name of a bucket"),
        ("gs://bucket", "is a whole bucket; name a directory or file in it, such as gs://bucket/NAME"),
        ("gs://bucket/a//b", "names in a bucket have no empty part"),
        ("gs://bucket/../b", "names in a bucket have no empty part"),
        ("s3://bucket/a", "--x=s3://bucket/a is a URL; give a local path, or gs://BUCKET/PATH"),
    ],
)
def test_a_mistyped_path_is_refused_with_what_was_meant(path: str, says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        checked(path, "--x")


def test_a_run_on_local_disks_imports_nothing_for_buckets():
    program = "import sys; from bert_jax.storage import fetching, lock, mirror, objects; objects.place('runs/x')"
    program += "; fetching.fetched('x', '--x'); print({'gcsfs', 'fsspec', 'aiohttp', 'etils', 'jax'} & sys.modules.keys())"
    here = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], check=True, cwd=here, capture_output=True, text=True)
    assert done.stdout == "set()\n"


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
    place = objects.place(f"{bucket}/a")
    objects.move_tree(place, objects.place(f"{bucket}/c"))
    assert objects.listed(bucket).keys() == {"ab", "c/x.bin", "c/b/empty"}
    assert objects.read_bytes(objects.place(f"{bucket}/c/x.bin")) == BINARY
    with pytest.raises(FileNotFoundError):
        objects.read_bytes(place / "x.bin")
    objects.remove_tree(objects.place(f"{bucket}/c"))
    assert objects.listed(bucket).keys() == {"ab"}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # which nobody sees outside of tests
def test_a_large_file_is_uploaded_in_parts_and_comes_back_as_it_was(bucket: str, tmp_path: pathlib.Path):
    file, back = tmp_path / "large", tmp_path / "back"
    file.write_bytes(BINARY * (9 << 20 >> 8))
    generation = objects.upload(file, f"{bucket}/large")
    item = objects.object_at(f"{bucket}/large")
    assert item == objects.Item(file.stat().st_size, generation)
    arrived: list[int] = []
    objects.download(f"{bucket}/large", back, item, arrived.append)
    assert back.read_bytes() == file.read_bytes()
    assert sum(arrived) == item.size


def test_a_write_with_a_precondition_is_done_by_one_alone(bucket: str):
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
def test_an_error_of_the_storage_is_one_sentence_with_a_remedy(status: int, bucket: str, emulator: Emulator):
    emulator.fail(status)
    path = f"{bucket}/x"
    for action in (lambda: objects.read(path), lambda: objects.write(path, b""), lambda: objects.listed(bucket)):
        with pytest.raises(objects.StorageError, match=re.escape(ERRORS[status])) as error:
            action()
        assert bucket in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("status", [503, 429, 0], ids=["unavailable", "too_many_requests", "connection_lost"])
def test_a_passing_fault_is_tried_again(status: int, bucket: str, emulator: Emulator):
    objects.write(f"{bucket}/x", b"there")
    emulator.fail(status, count=1)
    found = objects.read(f"{bucket}/x")
    assert found is not None
    assert found.data == b"there"


def test_a_storage_that_cannot_be_reached_is_named(bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
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


def test_errors_of_the_local_disk_are_not_taken_for_those_of_the_storage(bucket: str):
    with pytest.raises(IsADirectoryError), objects.explained(bucket):
        pathlib.Path("/").read_bytes()
    with pytest.raises(ConnectionError), objects.explained("runs/local"):
        raise ConnectionError
